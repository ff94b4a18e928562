package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/preflight"
	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/mpiboot"
)

type doctorCmd struct {
	flagValues
	Device   string        `default:"auto" enum:"auto,cpu,gpu" placeholder:"D" help:"What the job is to run on: auto (default), cpu or gpu."`
	Deadline time.Duration `default:"1m" placeholder:"T" help:"Longest wait for a peer (${default})."`
	JSON     bool          `name:"json" help:"Print JSON."`
	Out      string        `placeholder:"FILE" help:"Write the JSON to a file."`
}

// Help is shown by ddpstep doctor --help.
func (*doctorCmd) Help() string {
	return `Looks at the environment of a job, one line a check, and says what to do. Start it as the job will be started;
exit code 6 means that ddpstep run would refuse.

  srun --mpi=pmix -N 2 --ntasks-per-node=8 --gpus-per-node=8 ddpstep doctor`
}

// Validate is called by kong after parsing.
func (c *doctorCmd) Validate() error {
	if c.Deadline <= 0 {
		return fmt.Errorf("--deadline %v: must be positive", c.Deadline)
	}
	return nil
}

func (c *doctorCmd) main(stdout, stderr io.Writer) int {
	j := &job{stderr: stderr}
	j.watch()
	var plugins []string
	if rank, _, _, _ := mpiboot.Announced(); rank == 0 {
		plugins = srunPlugins() // before MPI, after which a fork is unsafe
	}
	w, err := mpiboot.Init(mpiboot.Options{Deadline: c.Deadline, Stuck: j.stuck})
	var refused *mpiboot.RefusedError
	switch {
	case errors.As(err, &refused):
		j.leaving.Store(true)
		letFirstSpeak()
		return c.alone(stdout, stderr, plugins, refused)
	case err != nil:
		fmt.Fprintf(stderr, "ddpstep: %s: %v\n", j.place(), err)
		return exitCode(err)
	}
	j.World = w
	if err := j.greet(c.flags, ""); err != nil {
		return j.finish(err)
	}
	checks, err := examine(j, c.Device, plugins)
	if err == nil {
		if j.Rank() == 0 {
			err = c.print(stdout, checks)
		}
		err = gradsync.AgreeRoot(j, err)
	}
	if err == nil && preflight.Worst(checks) == preflight.Refuse {
		// Printed above: leave without another word.
		j.stderr = io.Discard
		err = &gradsync.AgreedError{Code: gradsync.ExitEnvironment, Rank: -1, Text: "refused"}
	}
	return j.finish(err)
}

// alone reports what can be seen without a world, which mpiboot has refused:
// every task would say the same, so the first one speaks.
func (c *doctorCmd) alone(stdout, stderr io.Writer, plugins []string, refused *mpiboot.RefusedError) int {
	if rank, _, _, _ := mpiboot.Announced(); rank == 0 {
		f := observe()
		f.Size, f.Local, f.Plugins = 1, []int{0}, plugins
		checks := preflight.Judge([]preflight.Facts{f}, c.Device)
		for i := range checks {
			if checks[i].Verdict == preflight.Refuse {
				checks[i].Advice = refused.Hint // it knows more
			}
		}
		if err := c.print(stdout, checks); err != nil {
			fmt.Fprintln(stderr, "ddpstep:", err)
			return exitCode(err)
		}
	}
	return gradsync.ExitEnvironment
}

// observe is preflight.Observe and what the launcher says.
func observe() preflight.Facts {
	f := preflight.Observe(os.LookupEnv)
	f.Version, f.Plugin = version, mpiboot.SrunPlugin
	f.Host, _ = os.Hostname()
	if gpus, err := visibleGPUs(); err == nil {
		f.GPUDevices, f.GPUs = len(gpus), gpus
	}
	if _, size, launcher, ok := mpiboot.Announced(); ok {
		f.Launcher, f.Announced = launcher, size
	}
	return f
}

// srunPlugins asks srun what its --mpi takes; nil where there is no Slurm.
func srunPlugins() (plugins []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "srun", "--mpi=list")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput() // on stderr in older versions, after "srun: "
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(out)) {
		// The others are sentences.
		if word := strings.Fields(strings.TrimPrefix(line, "srun: ")); len(word) == 1 {
			plugins = append(plugins, word[0])
		}
	}
	slices.Sort(plugins) // they come in any order
	return plugins
}

// visibleGPUs returns the UUIDs of what the CUDA driver shows to this process.
func visibleGPUs() ([]string, error) {
	drv, err := cuda.Open(os.Getenv("DDPSTEP_CUDA_LIB"))
	if err == nil {
		err = drv.Init()
	}
	if err != nil {
		return nil, err
	}
	n, err := drv.Count()
	uuids := make([]string, n)
	for i := 0; i < n && err == nil; i++ {
		var d *cuda.Device
		if d, err = drv.Device(i); err == nil {
			uuids[i] = d.UUID
		}
	}
	return uuids, err
}

// examine gathers the facts of all ranks and judges them, collectively.
func examine(w *job, device string, plugins []string) ([]preflight.Check, error) {
	f := observe()
	f.Rank, f.Size, f.Host, f.Local, f.Library = w.Rank(), w.Size(), w.Host(), w.LocalRanks(), mpiName(w.Library())
	f.Plugins = plugins
	raw, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	texts, err := w.AllgatherBytes(raw)
	if err != nil {
		return nil, err
	}
	all := make([]preflight.Facts, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal(t, &all[r]); err != nil {
			return nil, fmt.Errorf("rank %d described its environment as %q: %w", r, t, err)
		}
	}
	return preflight.Judge(all, device), nil
}

// refuse fails, on every rank alike, when the job must not run here. doctor
// shows the other checks.
func refuse(w *job, device string) error {
	checks, err := examine(w, device, nil)
	if err != nil {
		return err
	}
	if err := preflight.Refused(checks); err != nil {
		return &gradsync.AgreedError{Code: gradsync.ExitEnvironment, Rank: -1, Text: err.Error() + "; see ddpstep doctor"}
	}
	return nil
}

// doctorReport is what --json prints.
type doctorReport struct {
	Format  string            `json:"format"`
	Verdict preflight.Verdict `json:"verdict"` // the worst of all checks
	Checks  []preflight.Check `json:"checks"`
}

func (c *doctorCmd) print(stdout io.Writer, checks []preflight.Check) error {
	text, err := report.Encode(doctorReport{"ddpstep-doctor/1", preflight.Worst(checks), checks})
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := report.WriteFile(c.Out, text); err != nil {
			return usage(err)
		}
	}
	if c.JSON {
		_, err = stdout.Write(text)
		return err
	}
	for _, check := range checks {
		if _, err := fmt.Fprintln(stdout, check); err != nil {
			return err
		}
	}
	return nil
}
