// Command ddpstep runs the gradient synchronisation of data-parallel training
// as a batch job and says, by its exit code and one report, whether it still
// gives the same bits, right numbers and full speed.
//
// This package parses, validates, wires and reports; the work is done in
// gradsync. The main goroutine stays on the main OS thread: MPI and CUDA are
// called from there alone.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/mpiboot"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "devel"

func init() { runtime.LockOSThread() }

// commandLine is the grammar. Each flag has an environment twin,
// DDPSTEP_FLAG_NAME.
type commandLine struct {
	Run     runCmd     `cmd:"" help:"Run the gradient synchronisation and check it: the job."`
	Plan    planCmd    `cmd:"" help:"Print the buckets, without MPI."`
	Bench   benchCmd   `cmd:"" help:"Time the reducers side by side, over message sizes."`
	Doctor  doctorCmd  `cmd:"" help:"Say what would be refused or slow here, and what to do."`
	Compare compareCmd `cmd:"" help:"Hold the digests of a report against those of another or of a baseline."`
	Slurm   slurmCmd   `cmd:"" help:"Print a job script for sbatch."`

	Version kong.VersionFlag `env:"-" help:"Print the version and exit."`
}

const description = `Checks the gradient synchronisation of data-parallel training: same bits, right numbers, full speed.

Start it with a launcher, one process for each rank:

  mpirun -np 4 ddpstep run --grads 'grads/rank{rank}.safetensors'

Every flag can be set by the environment too: --bucket-cap-mb by DDPSTEP_BUCKET_CAP_MB.

Exit codes: 0 all verdicts hold, 1 internal error, 2 bad usage or input, 3 wrong numbers, 4 differs from the baseline, 5 non-finite gradients, 6 environment refused, 7 deadline passed or a peer was lost, 8 slower than the floor.`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if p := recover(); p != nil { // Go's own exit code for a panic, 2, means bad usage here
			fmt.Fprintf(stderr, "ddpstep: internal error: %v\n%s", p, debug.Stack())
			code = gradsync.ExitInternal
		}
	}()
	rank, size, _, _ := mpiboot.Announced()
	if rank > 0 {
		stdout = io.Discard // rank 0's is enough
	}
	done := -1
	parser, err := newParser(stdout, stderr, func(code int) { done = code })
	if err != nil {
		fmt.Fprintln(stderr, "ddpstep:", err)
		return gradsync.ExitInternal
	}
	ctx, err := parser.Parse(args)
	switch {
	case done >= 0: // --help or --version
		return done
	case err == nil:
		if rank == 0 {
			for _, name := range strangers(parser.Model.Node, os.Environ()) {
				fmt.Fprintf(stderr, "ddpstep: note: %s is the variable of no flag and has no effect; see ddpstep --help\n", name)
			}
		}
		return ctx.Selected().Target.Addr().Interface().(command).main(stdout, stderr)
	}
	usage := usageText(err)
	if size != 1 { // perhaps only this rank's line or environment is wrong
		return refuseUsage(usage, stderr)
	}
	fmt.Fprintln(stderr, "ddpstep:", usage)
	return gradsync.ExitUsage
}

// newParser makes the parser of the command line. exit is called after --help
// and --version.
func newParser(stdout, stderr io.Writer, exit func(code int)) (*kong.Kong, error) {
	return kong.New(&commandLine{},
		kong.Name("ddpstep"),
		kong.Description(description),
		kong.DefaultEnvars("DDPSTEP"),
		kong.Vars{"version": version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.ValueFormatter(func(v *kong.Value) string { return v.Help }), // the description says how variables are named
		kong.Writers(stdout, stderr),
		kong.Exit(exit),
	)
}

// ours are the variables that are no flags: of job scripts, of the NVML helper
// and of tests. A name that ends in * stands for all that start so.
var ours = []string{"DDPSTEP_BIN", "DDPSTEP_MPI", "DDPSTEP_MAIL_TO", nvmlVar, "DDPSTEP_REQUIRE", "DDPSTEP_TEST_*", "DDPSTEP_DOUBLE_*", "DDPSTEP_SLURMTEST_*"}

// strangers are the DDPSTEP_ variables that nothing reads: misspelt, most likely.
func strangers(n *kong.Node, environ []string) (names []string) {
	known := map[string]bool{}
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, f := range n.Flags {
			for _, name := range f.Envs {
				known[name] = true
			}
		}
		for _, c := range n.Children {
			visit(c)
		}
	}
	visit(n)
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "DDPSTEP_") && !known[name] && !listed(ours, name) {
			names = append(names, name)
		}
	}
	return names
}

// usageText says what is wrong with a command line and where to read more.
func usageText(err error) string {
	hint := "ddpstep --help"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context.Command() != "" {
		hint = "ddpstep " + parse.Context.Command() + " --help"
	}
	return oneLine(err) + "; see " + hint
}

// A command does its work and returns the exit code.
type command interface {
	main(stdout, stderr io.Writer) int
}
