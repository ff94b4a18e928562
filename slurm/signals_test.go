//go:build linux

package slurm_test

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/slurm"

	"github.com/ddpstep/ddpstep/internal/required"
)

// endless are the arguments of a run that something else must end; a step
// takes a part of a second.
func (u *user) endless(t *testing.T) []string {
	return []string{"--params", u.list(t, 200000, 100000), "--steps", "1000000", "--deadline", "10s"}
}

// stepping waits until a running job has finished some steps.
func (u *user) stepping(t *testing.T, id, log string, steps int) {
	t.Helper()
	u.WaitState(t, id, "RUNNING", patience)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(log)
		if strings.Count(string(text), `"step":`) >= steps {
			return
		}
	}
	t.Fatalf("job %s made no %d steps in %v", id, steps, patience)
}

// signalRank sends a signal to one rank of a job.
func (u *user) signalRank(t *testing.T, id, rank string, sig syscall.Signal) {
	t.Helper()
	for _, p := range u.Processes(id) {
		if p.Name == "ddpstep" && p.Env("SLURM_PROCID") == rank {
			if err := syscall.Kill(p.PID, sig); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("job %s has no rank %s: %v", id, rank, u.Processes(id))
}

// rankKilled loses a rank; srun ends the others.
func rankKilled(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, append([]string{"--ntasks-per-node=2", u.committed(slurm.MultiNode)}, u.endless(t)...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.signalRank(t, id, "1", syscall.SIGKILL)
	state := u.Wait(t, id, 20*time.Second)[0] // the deadline and 10 s
	if state.State != "FAILED" || state.ExitCode == 0 {
		t.Errorf("%v, want FAILED", state)
	}
	u.gone(t, id)
}

// rankKilledSurvivorsLeft has nobody end the other ranks: they find out. It
// takes PMI2, and so MPICH, because Slurm's PMIx plug-in ends a step that loses
// a rank to a signal, with or without --kill-on-bad-exit. It takes TCP because
// UCX would otherwise read the lost rank's memory, and end the reader itself
// when that fails; between real hosts there is no such memory.
func rankKilledSurvivorsLeft(t *testing.T, s *site) {
	if s.mpich == "" {
		required.Skip(t, "mpich", "needs MPICH: apt-get install mpich libmpich-dev")
	}
	u := s.user(t, s.mpich)
	script := u.script(t, `#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
srun --mpi=pmi2 --kill-on-bad-exit=0 bin/ddpstep run "$@" --out report.json
`)
	id := u.submit(t, []string{"UCX_TLS=tcp,self"}, append([]string{script}, u.endless(t)...)...)
	u.stepping(t, id, u.file("report.jsonl"), 2)
	u.signalRank(t, id, "1", syscall.SIGKILL)
	u.lost(t, id)
}

// rankStopped has a rank stand still: no launcher notices, the deadline does.
func rankStopped(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, append([]string{"--ntasks-per-node=2", u.committed(slurm.MultiNode)}, u.endless(t)...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.signalRank(t, id, "1", syscall.SIGSTOP)
	u.lost(t, id)
}

// lost waits for the end of a job that lost its rank 1.
func (u *user) lost(t *testing.T, id string) {
	t.Helper()
	state := u.Wait(t, id, 30*time.Second)[0] // the deadline and 10 s, on a busy machine
	if state.State != "FAILED" || state.ExitCode == 0 {
		t.Errorf("%v, want FAILED", state)
	}
	u.gone(t, id)
	text := u.output(t, state)
	if !regexp.MustCompile(`(no answer from|waiting for) rank 1\b`).MatchString(text) {
		t.Errorf("no survivor names the lost rank 1:\n%s", text)
	}
	if !strings.Contains(text, "Abort(7)") && !strings.Contains(text, "errorcode 7") {
		t.Errorf("no survivor ended with 7:\n%s", text)
	}
}

// cancelled is scancel in the middle of a run.
func cancelled(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, append([]string{u.committed(slurm.OneNode)}, u.endless(t)...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.Cancel(t, id)
	u.ends(t, id, "CANCELLED", 0)
	interrupted(t, u.file("reports", id, "report.json"))
}

// cancelledUnderMpirun is harder: the ranks get SIGTERM twice.
func cancelledUnderMpirun(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, u.rendered(t, slurm.MultiNode, slurm.Options{MPI: "mpirun", TasksPerNode: 2, Args: u.endless(t)}))
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.Cancel(t, id)
	if state := u.Wait(t, id, patience)[0]; state.State != "CANCELLED" {
		t.Errorf("%v, want CANCELLED", state)
	}
	u.gone(t, id)
	interrupted(t, u.file("reports", id, "report.json"))
}

// warned sends what Slurm sends before the time limit, as Slurm sends it: to
// the tasks of the step, not to the batch shell.
func warned(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, append([]string{"--ntasks-per-node=2", u.committed(slurm.MultiNode)}, u.endless(t)...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.Cancel(t, id, "--signal=USR1")
	state := u.ends(t, id, "COMPLETED", 0)
	interrupted(t, u.file("reports", id, "report.json"))
	if text := u.output(t, state); !strings.Contains(text, "INTERRUPTED after ") {
		t.Errorf("no line says so:\n%s", text)
	}
}

// warnedUnderMpirun: the warning goes to the batch shell.
func warnedUnderMpirun(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, u.rendered(t, slurm.MultiNode, slurm.Options{MPI: "mpirun", TasksPerNode: 2, Args: u.endless(t)}))
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.Cancel(t, id, "--batch", "--signal=USR1")
	u.ends(t, id, "COMPLETED", 0)
	interrupted(t, u.file("reports", id, "report.json"))
}

// timeLimit has Slurm end runs: by the warning that the scripts ask for, in two
// ways, and by the limit itself where no warning comes. Slurm looks at the time
// every half a minute, so the warned ones leave the CPU to other tests.
func timeLimit(t *testing.T, s *site) {
	idle := s.user(t, s.wrapped(t, "nice -n 19"))
	var warned []string
	for _, script := range []string{idle.committed(slurm.OneNode), idle.rendered(t, slurm.OneNode, slurm.Options{MPI: "mpirun"})} {
		warned = append(warned, idle.submit(t, nil, append([]string{"--time=2", "--ntasks-per-node=1", script}, idle.endless(t)...)...))
	}
	u := s.user(t, s.openmpi)
	id := u.submit(t, nil, append([]string{"--time=1", "--signal=USR1@0", "--ntasks-per-node=2", u.committed(slurm.OneNode)}, u.endless(t)...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	if state := u.Wait(t, id, 3*time.Minute)[0]; state.State != "TIMEOUT" {
		t.Errorf("%v, want TIMEOUT", state)
	}
	u.gone(t, id)
	interrupted(t, u.file("reports", id, "report.json"))
	for _, id := range warned {
		idle.ends(t, id, "COMPLETED", 0)
		interrupted(t, idle.file("reports", id, "report.json"))
	}
}

// requeued stops a run in the middle twice, each time in another way, and has
// it go on: the final report is that of a run which was left in peace.
func requeued(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	args := []string{"--params", u.list(t, 700000, 500001), "--world", "4", "--steps", "12"}
	id := u.submit(t, nil, append([]string{"--ntasks-per-node=2", u.committed(slurm.OneNode)}, args...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.Requeue(t, id)
	u.stepping(t, id, u.file("reports", id+"-restart1", "report.jsonl"), 5)
	u.Requeue(t, id)
	state := u.ends(t, id, "COMPLETED", 0)
	if state.Restarts != 2 {
		t.Errorf("%d restarts, want 2", state.Restarts)
	}
	same(t, readReport(t, u.file("reports", id+"-restart2", "report.json")), u.reference(t, "4", args...))
	if text := u.output(t, state); strings.Count(text, "resuming after step ") != 2 {
		t.Errorf("the job did not resume twice:\n%s", text)
	}
}

// failing ends with a verdict that is not good, on every rank, though not at
// the same moment: the code that comes out is ddpstep's, not that of a signal
// by which srun ends the ranks that are later.
func failing(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	late := u.script(t, `#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
trap : TERM
srun --mpi=pmix --kill-on-bad-exit=1 bin/ddpstep run "$@"
`)
	for range 5 {
		id := u.submit(t, nil, late, "--params", u.small(t), "--values", "nan")
		u.ends(t, id, "FAILED", 5)
	}
}
