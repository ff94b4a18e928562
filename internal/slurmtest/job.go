//go:build linux

package slurmtest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// JobState is what `scontrol show job` says of one job or array task.
type JobState struct {
	ID        string // the job's own number: of an array task too
	ArrayTask string // "" outside arrays
	State     string // PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT...
	Reason    string // why it is pending, or how it ended
	ExitCode  int    // of the batch script
	Signal    int    // that ended the batch script, or 0
	Restarts  int
	NodeList  string
	StdOut    string // path of the job's output
	Fields    map[string]string
}

// Ended tells whether Slurm is done with the job.
func (s JobState) Ended() bool {
	switch s.State {
	case "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED", "BOOT_FAIL":
		return true
	}
	return false
}

func (s JobState) String() string {
	return fmt.Sprintf("job %s: %s, exit code %d:%d, reason %s", s.ID, s.State, s.ExitCode, s.Signal, s.Reason)
}

// Submit runs sbatch in the folder dir with what a user would type after it,
// and returns the job's number. env is added to the client's environment, and
// so to the job's.
func (c *Cluster) Submit(t testing.TB, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := c.Command("sbatch", append([]string{"--parsable"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sbatch %s: %v\n%s", strings.Join(args, " "), err, stderrOf(err))
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), ";")
	return id
}

// Wait polls until the job, or every task of the array, has ended, and returns
// the states in order of array task. It fails the test when timeout passes.
func (c *Cluster) Wait(t testing.TB, id string, timeout time.Duration) []JobState {
	t.Helper()
	states, err := c.poll(id, timeout, JobState.Ended)
	if err != nil {
		t.Fatal(err)
	}
	return states
}

// WaitState polls until the one job is in the state wanted, say RUNNING, and
// fails the test when it ends otherwise or timeout passes.
func (c *Cluster) WaitState(t testing.TB, id, want string, timeout time.Duration) JobState {
	t.Helper()
	states, err := c.poll(id, timeout, func(s JobState) bool { return s.State == want || s.Ended() })
	if err == nil && states[0].State != want {
		err = fmt.Errorf("wanted %s: %v", want, states[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	return states[0]
}

func (c *Cluster) poll(id string, timeout time.Duration, done func(JobState) bool) ([]JobState, error) {
	var states []JobState
	var err error
	for end := time.Now().Add(timeout); ; time.Sleep(100 * time.Millisecond) {
		states, err = c.States(id)
		if err == nil {
			all := true
			for _, s := range states {
				all = all && done(s)
			}
			if all {
				return states, nil
			}
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("job %s after %v: %v, %v", id, timeout, states, err)
		}
	}
}

// States asks for the job, or for all tasks of an array, once.
func (c *Cluster) States(id string) ([]JobState, error) {
	out, err := c.Command("scontrol", "-o", "show", "job", id).Output()
	if err != nil {
		return nil, fmt.Errorf("scontrol show job %s: %w: %s", id, err, stderrOf(err))
	}
	states, err := parseJobs(string(out))
	for i, s := range states {
		// COMPLETING: the job has ended, its nodes are being cleared. That can
		// take a minute when a step daemon hangs, and is no matter of the job.
		if s.State == "COMPLETING" {
			states[i].State = c.accounted(s)
		}
	}
	return states, err
}

// accounted is the state in which Slurm's accounting says that a job ended, or
// the state it has where it did not end for good.
func (c *Cluster) accounted(s JobState) string {
	text, err := os.ReadFile(filepath.Join(c.dir, "jobcomp.log"))
	if err != nil {
		return s.State
	}
	state := s.State
	for line := range strings.Lines(string(text)) {
		rest, found := strings.CutPrefix(line, "JobId="+s.ID+" ")
		if !found {
			continue
		}
		for _, word := range strings.Fields(rest) {
			if value, found := strings.CutPrefix(word, "JobState="); found {
				state = value
			}
		}
	}
	if recorded := (JobState{State: state}); !recorded.Ended() {
		return s.State // requeued
	}
	return state
}

// Cancel runs scancel, with options before the job's number if any are given.
func (c *Cluster) Cancel(t testing.TB, id string, options ...string) {
	t.Helper()
	c.client(t, "scancel", append(options, id)...)
}

// Requeue puts a running job back into the queue, with a second in place of the
// two minutes that Slurm adds. A second it must be: a slurmd takes a credential
// made in the second in which it ended the job for the old one, and refuses it.
func (c *Cluster) Requeue(t testing.TB, id string) {
	t.Helper()
	c.client(t, "scontrol", "requeue", id)
	if _, err := c.poll(id, time.Minute, func(s JobState) bool { return s.State == "PENDING" }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond)
	c.client(t, "scontrol", "update", "JobId="+id, "StartTime=now")
}

// Srun runs srun with args and returns its output and its exit code.
func (c *Cluster) Srun(t testing.TB, timeout time.Duration, args ...string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := c.command(ctx, "srun", args...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("srun %s: no end after %v\n%s", strings.Join(args, " "), timeout, out)
	}
	if cmd.ProcessState == nil {
		t.Fatalf("srun: %v", err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (c *Cluster) client(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := c.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// parseJobs reads `scontrol -o show job`: one line a job, Key=Value words. A
// value may hold spaces (a command with arguments): a word without '=' belongs
// to the value before it. Tasks of an array come in order.
func parseJobs(text string) ([]JobState, error) {
	var states []JobState
	for line := range strings.Lines(text) {
		fields := make(map[string]string)
		var last string
		for _, word := range strings.Fields(line) {
			if key, value, found := strings.Cut(word, "="); found {
				fields[key], last = value, key
			} else if last != "" {
				fields[last] += " " + word
			}
		}
		if fields["JobId"] == "" {
			continue
		}
		s := JobState{
			ID:        fields["JobId"],
			ArrayTask: fields["ArrayTaskId"],
			State:     fields["JobState"],
			Reason:    fields["Reason"],
			NodeList:  fields["NodeList"],
			StdOut:    fields["StdOut"],
			Fields:    fields,
		}
		code, signal, found := strings.Cut(fields["ExitCode"], ":")
		var err [3]error
		s.ExitCode, err[0] = strconv.Atoi(code)
		s.Signal, err[1] = strconv.Atoi(signal)
		s.Restarts, err[2] = strconv.Atoi(fields["Restarts"])
		if !found || err != [3]error{} {
			return nil, fmt.Errorf("cannot read what scontrol says of job %s: %q", s.ID, line)
		}
		states = append(states, s)
	}
	if states == nil {
		return nil, fmt.Errorf("scontrol shows no job: %q", text)
	}
	slices.SortStableFunc(states, func(a, b JobState) int {
		i, _ := strconv.Atoi(a.ArrayTask)
		j, _ := strconv.Atoi(b.ArrayTask)
		return cmp.Compare(i, j)
	})
	return states, nil
}

func stderrOf(err error) string {
	if exit, ok := err.(*exec.ExitError); ok {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}
