// Package slurm renders the job scripts that submit ddpstep to Slurm.
//
// # The scripts
//
// The *.sbatch files beside this source are plain files that sbatch takes as
// they are, one for each Kind. They are also exactly what Render gives for the
// defaults of their kind (a test holds them to it), so that a script from the
// folder and a script from `ddpstep slurm --nodes 4 ...` differ in the lines
// that were asked to differ and in no other.
//
// Every script starts with the few lines that a site changes. Below them are
// the lines that took measuring, and these are the reasons:
//
//   - The exit code of the job is ddpstep's own. srun returns the highest exit
//     code of any task, and a task that a signal ends counts 128 and more. With
//     --kill-on-bad-exit=1 the first rank to fail has the others sent SIGTERM
//     at once, and SIGKILL after Slurm's KillWait, so a code below 128 comes
//     out only because ddpstep handles SIGTERM to the very end.
//   - scancel and the time limit send SIGTERM to the batch shell as well. A
//     shell without a trap dies of it and the exit code with it, so there is a
//     trap that does nothing.
//   - srun hands one SIGTERM to each task. Open MPI's mpirun is different: its
//     ranks get two within milliseconds, one from Slurm and one from mpirun,
//     and SIGKILL a second later unless told to wait longer. Slurm's warning
//     before the time limit reaches the tasks of srun by itself, but mpirun only
//     through the batch shell (B:USR1), which must not wait in the foreground
//     then.
//   - A requeued job runs the script again under the same job number. Reports
//     lie in a folder by job, array task and restart count, so that no attempt
//     overwrites another, and the newest report.jsonl is copied to the new
//     folder for --resume to go on from.
//
// # Values
//
// Values that end in shell code are quoted for it; values that end in #SBATCH
// lines, which Slurm reads by rules of its own, are limited to the characters
// that such names have. Settings of a site have environment twins (DDPSTEP_BIN,
// DDPSTEP_MPI), for `sbatch --export=ALL,DDPSTEP_BIN=...`.
package slurm

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

// Kind names one script: the file is Kind + ".sbatch".
type Kind string

const (
	OneNode   Kind = "one-node"   // one run on one node
	MultiNode Kind = "multi-node" // one run on several nodes
	Matrix    Kind = "matrix"     // a job array: reducers x bucket caps x models
	Nightly   Kind = "nightly"    // run, compare with the baseline, summary: three jobs in a chain
	Qualify   Kind = "qualify"    // doctor, bench and run, to accept a machine
)

// Kinds lists every kind.
func Kinds() []Kind { return []Kind{OneNode, MultiNode, Matrix, Nightly, Qualify} }

// Options is what a site or a user may choose. The zero value of a field takes
// the default of the kind; Defaults tells them.
type Options struct {
	JobName      string
	Nodes        int
	TasksPerNode int    // processes a node; by default one a GPU
	GPUsPerNode  int    // 0: none asked for
	CPUsPerTask  int    // 0: Slurm's default
	Time         string // limit, as sbatch takes it: 30, 1:30:00, 2-12
	Partition    string // "": the site's default
	Account      string // "": the user's default

	MPI     string   // pmix or pmi2 (srun), or mpirun
	Binary  string   // path of ddpstep on the nodes
	Modules []string // environment modules to load
	Args    []string // arguments of `ddpstep run`

	Reducers   []string // Matrix only
	BucketCaps []string // Matrix only, in MiB
	Models     []string // Matrix only

	Baseline string // Nightly only: path, relative to the folder of submission or absolute
	MailTo   string // Nightly only: address; "": nothing is mailed
}

// Defaults returns the options that make the committed script of a kind.
func Defaults(kind Kind) Options {
	o := Options{
		JobName:      "ddpstep",
		Nodes:        1,
		TasksPerNode: 4,
		Time:         "00:30:00",
		MPI:          "pmix",
		Binary:       "bin/ddpstep",
		Args:         []string{"--model", "resnet50", "--steps", "5"},
	}
	switch kind {
	case MultiNode:
		o.Nodes = 2
	case Matrix:
		o.JobName = "ddpstep-matrix"
		o.Args = []string{"--steps", "5"}
		o.Reducers = []string{"fixed", "mpi"}
		o.BucketCaps = []string{"25", "5", "1"}
		o.Models = []string{"resnet50", "vit_b_16"}
	case Nightly:
		o.JobName = "ddpstep-nightly"
		o.Baseline = "baseline.json"
	case Qualify:
		o.JobName = "ddpstep-qualify"
		o.Nodes = 2
	}
	return o
}

//go:embed templates/*.tmpl
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"dec":   func(n int) int { return n - 1 },
	"quote": quote,
	"words": func(list []string) string {
		quoted := make([]string, len(list))
		for i, s := range list {
			quoted[i] = quote(s)
		}
		return strings.Join(quoted, " ")
	},
}).ParseFS(files, "templates/*.tmpl"))

// Render returns the script of a kind with the options o. An error is one line
// that names the option at fault.
func Render(kind Kind, o Options) (string, error) {
	if !slices.Contains(Kinds(), kind) {
		return "", fmt.Errorf("slurm: no script of kind %q: it is one of %v", kind, Kinds())
	}
	o = o.withDefaults(kind)
	if err := o.validate(kind); err != nil {
		return "", fmt.Errorf("slurm: %w", err)
	}
	data := struct {
		Options
		Kind  Kind
		Cells int // of the matrix
	}{o, kind, len(o.Reducers) * len(o.BucketCaps) * len(o.Models)}
	var script strings.Builder
	if err := templates.ExecuteTemplate(&script, string(kind)+".tmpl", data); err != nil {
		return "", fmt.Errorf("slurm: %w", err)
	}
	return script.String(), nil
}

// quote makes one shell word of s.
func quote(s string) string {
	safe := s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,@%+-") == ""
	if safe {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
