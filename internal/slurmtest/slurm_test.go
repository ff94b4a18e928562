//go:build linux

package slurmtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 30 * time.Second

// script writes a job script and returns its path.
func script(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.sbatch")
	text := "#!/bin/bash\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func output(t *testing.T, s JobState) string {
	t.Helper()
	text, err := os.ReadFile(s.StdOut)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSlurm(t *testing.T) {
	c := Start(t, 2)

	t.Run("srun spans the nodes", func(t *testing.T) {
		out, code := c.Srun(t, patience, "--nodes=2", "--ntasks-per-node=2", "--mpi=pmix", "--label",
			"sh", "-c", "echo $SLURMD_NODENAME $PMIX_RANK; sleep 0.5; exit $SLURM_PROCID")
		for _, want := range []string{"0: n1 0", "1: n1 1", "2: n2 2", "3: n2 3"} {
			if !strings.Contains(out, want+"\n") {
				t.Errorf("no line %q in\n%s", want, out)
			}
		}
		if code != 3 {
			t.Errorf("exit code %d, want 3, the highest of any task", code)
		}
	})

	t.Run("the script's exit code is the job's", func(t *testing.T) {
		id := c.Submit(t, t.TempDir(), []string{"CODE=5"}, script(t, "echo $1 in $PWD; exit $CODE"), "hello")
		s := c.Wait(t, id, patience)[0]
		if s.State != "FAILED" || s.ExitCode != 5 {
			t.Errorf("%v, want FAILED with exit code 5", s)
		}
		if out := output(t, s); !strings.HasPrefix(out, "hello in /") {
			t.Errorf("output %q", out)
		}
	})

	t.Run("GPUs are given out", func(t *testing.T) {
		id := c.Submit(t, t.TempDir(), nil, "--gpus-per-node=3", script(t, "echo devices $CUDA_VISIBLE_DEVICES"))
		s := c.Wait(t, id, patience)[0]
		if out := output(t, s); !strings.Contains(out, "devices 0,1,2\n") {
			t.Errorf("%v, output %q", s, out)
		}
	})

	t.Run("array", func(t *testing.T) {
		id := c.Submit(t, t.TempDir(), nil, "--array=0-2", script(t, "exit $SLURM_ARRAY_TASK_ID"))
		states := c.Wait(t, id, patience)
		if len(states) != 3 {
			t.Fatalf("%d tasks, want 3: %v", len(states), states)
		}
		for i, s := range states {
			if s.ArrayTask != strconv.Itoa(i) || s.ExitCode != i {
				t.Errorf("task %s: %v, want exit code %d", s.ArrayTask, s, i)
			}
		}
	})

	t.Run("cancel leaves no process", func(t *testing.T) {
		id := c.Submit(t, t.TempDir(), nil, "--nodes=2", script(t, "srun --mpi=none sleep 300"))
		c.WaitState(t, id, "RUNNING", patience)
		waitFor(t, "two sleeping tasks", func() bool {
			n := 0
			for _, p := range c.Processes(id) {
				if p.Name == "sleep" {
					n++
				}
			}
			return n == 2
		})
		c.Cancel(t, id)
		if s := c.Wait(t, id, patience)[0]; s.State != "CANCELLED" {
			t.Errorf("%v, want CANCELLED", s)
		}
		waitFor(t, "no process of the job", func() bool { return len(c.Processes(id)) == 0 })
	})

	t.Run("requeue runs again", func(t *testing.T) {
		id := c.Submit(t, t.TempDir(), nil, "--requeue", "--open-mode=append",
			script(t, "echo attempt ${SLURM_RESTART_COUNT:-0}", "[ -n \"${SLURM_RESTART_COUNT:-}\" ] || sleep 300"))
		s := c.WaitState(t, id, "RUNNING", patience)
		waitFor(t, "the first attempt's line", func() bool {
			text, _ := os.ReadFile(s.StdOut)
			return string(text) == "attempt 0\n"
		})
		c.Requeue(t, id)
		s = c.Wait(t, id, patience)[0]
		if s.State != "COMPLETED" || s.Restarts != 1 {
			t.Errorf("%v, %d restarts; want COMPLETED after 1", s, s.Restarts)
		}
		if out := output(t, s); !strings.Contains(out, "attempt 1\n") {
			t.Errorf("output %q", out)
		}
	})
}

func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ready(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no sign of %s after %v", what, patience)
		}
	}
}

// TestSlurmClustersAreApart has two clusters side by side: a job of one is
// unknown to the other, which outlives it.
func TestSlurmClustersAreApart(t *testing.T) {
	a := Start(t, 1)
	var dir string
	t.Run("second cluster", func(t *testing.T) {
		b := Start(t, 1)
		dir = b.dir
		b.Submit(t, t.TempDir(), nil, script(t, "sleep 300"))
		if states, err := a.States("1"); err == nil {
			t.Errorf("the other cluster's job is here: %v", states)
		}
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if _, code := a.Srun(t, patience, "--mpi=none", "true"); code != 0 {
		t.Errorf("the first cluster no longer runs a task: exit code %d", code)
	}
}

// victim, set in the environment, makes TestVictim start a cluster and a job,
// and wait to be killed.
const victim = "DDPSTEP_SLURMTEST_VICTIM"

func TestVictim(t *testing.T) {
	if os.Getenv(victim) == "" {
		t.Skip("only for TestSlurmKilledTestLeavesNothing, which runs it in a process of its own")
	}
	c := Start(t, 1)
	id := c.Submit(t, t.TempDir(), nil, script(t, "trap '' TERM", "srun --mpi=none sh -c \"trap '' TERM; sleep 300\""))
	waitFor(t, "the job's task", func() bool {
		return slices.ContainsFunc(c.Processes(id), func(p Process) bool { return p.Name == "sleep" })
	})
	os.Stdout.WriteString("dir " + c.dir + "\n")
	for _, p := range descendants(c.keeper.Process.Pid) {
		os.Stdout.WriteString("pid " + strconv.Itoa(p.PID) + "\n")
	}
	os.Stdout.WriteString("pid " + strconv.Itoa(c.keeper.Process.Pid) + "\n")
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}

// TestSlurmKilledTestLeavesNothing kills a test process, so that none of its
// own cleaning can run, and looks for what it started.
func TestSlurmKilledTestLeavesNothing(t *testing.T) {
	if missing := requirements(); missing != "" {
		Start(t, 1) // skips, or fails
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), victim+"=1", "TMPDIR="+t.TempDir()) // its own temporary folder is ours to remove
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	var pids []int
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
		key, value, _ := strings.Cut(lines.Text(), " ")
		switch key {
		case "dir":
			dir = value
		case "pid":
			pid, _ := strconv.Atoi(value)
			pids = append(pids, pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// munged, slurmctld and its script runner, slurmd, two step daemons, the
	// batch shell, srun twice, the task's shell, sleep, keeper: fewer means
	// that the list is not what it should be.
	if dir == "" || len(pids) < 10 {
		t.Fatalf("the victim did not come up: folder %q, processes %v", dir, pids)
	}
	for _, pid := range pids {
		waitFor(t, "the end of pid "+strconv.Itoa(pid), func() bool { return syscall.Kill(pid, 0) != nil })
	}
	waitFor(t, "the removal of "+dir, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
}

// TestMissing runs a test process that cannot find Slurm.
func TestMissing(t *testing.T) {
	for _, test := range []struct{ require, want string }{
		{"", "--- SKIP"},
		{"gpu", "--- SKIP"},
		{"mpi,slurm", "--- FAIL"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.v")
		cmd.Env = []string{victim + "=1", "PATH=/nonexistent", "DDPSTEP_REQUIRE=" + test.require}
		out, _ := cmd.CombinedOutput()
		if !strings.Contains(string(out), test.want) || !strings.Contains(string(out), "a private Slurm needs ") {
			t.Errorf("DDPSTEP_REQUIRE=%q: no %q and reason in\n%s", test.require, test.want, out)
		}
	}
}

func TestAccounted(t *testing.T) {
	c := &Cluster{dir: t.TempDir()}
	log := `JobId=1 UserId=root(0) JobState=FAILED Partition=main
JobId=2 UserId=root(0) JobState=PENDING Partition=main
JobId=3 UserId=root(0) JobState=PENDING Partition=main
JobId=3 UserId=root(0) JobState=COMPLETED Partition=main
`
	if err := os.WriteFile(filepath.Join(c.dir, "jobcomp.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"1": "FAILED", "2": "COMPLETING", "3": "COMPLETED", "4": "COMPLETING", "": "COMPLETING"} {
		if got := c.accounted(JobState{ID: id, State: "COMPLETING"}); got != want {
			t.Errorf("job %s: %s, want %s", id, got, want)
		}
	}
}

func TestParseJobs(t *testing.T) {
	states, err := parseJobs(`JobId=7 ArrayJobId=7 ArrayTaskId=1 JobName=x JobState=FAILED Reason=NonZeroExitCode Restarts=2 ExitCode=4:0 NodeList=n[1-2] Command=/a b --c=d StdOut=/tmp/o
JobId=8 ArrayJobId=7 ArrayTaskId=0 JobState=CANCELLED Reason=None Restarts=0 ExitCode=0:15 NodeList= Command=(null)
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(states) != 2 {
		t.Fatalf("%d jobs, want 2", len(states))
	}
	b, a := states[0], states[1] // in order of array task
	if a.ID != "7" || a.ArrayTask != "1" || a.State != "FAILED" || a.ExitCode != 4 || a.Restarts != 2 ||
		a.NodeList != "n[1-2]" || a.StdOut != "/tmp/o" || a.Fields["Command"] != "/a b" {
		t.Errorf("task 1: %+v", a)
	}
	if b.State != "CANCELLED" || b.ExitCode != 0 || b.Signal != 15 || !b.Ended() {
		t.Errorf("task 0: %+v", b)
	}
	for _, bad := range []string{"", "nonsense", "JobId=1 JobState=RUNNING ExitCode=0 Restarts=0"} {
		if states, err := parseJobs(bad); err == nil {
			t.Errorf("parseJobs(%q) = %v, want an error", bad, states)
		}
	}
}
