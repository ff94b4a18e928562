package mpitest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// jobVar marks every process of a launch, so that those left behind are found.
const jobVar = "MPITEST_JOB"

// Job is one launch.
type Job struct {
	Ranks   int
	Command []string      // the program and its arguments
	Env     []string      // NAME=value, beside the test's own environment
	Dir     string        // working directory; empty for the test's own
	Timeout time.Duration // when to end the launch; 0 means one minute
}

// Result is how a launch ended.
type Result struct {
	Stdout, Stderr string
	Code           int  // the launcher's exit code
	TimedOut       bool // the launch was ended by Timeout
	Left           int  // processes found alive after the launcher's end, and ended
}

func (r Result) String() string {
	return fmt.Sprintf("exit code %d, timed out %v, %d processes left\nstdout:\n%s\nstderr:\n%s",
		r.Code, r.TimedOut, r.Left, r.Stdout, r.Stderr)
}

// Run launches a job under the library's launcher and waits for its end. It
// calls Need.
func (l *Library) Run(t testing.TB, job Job) Result {
	t.Helper()
	l.Need(t)
	args := append(l.flags(), "-n", strconv.Itoa(job.Ranks))
	return run(t, exec.Command(l.launcher(), append(args, job.Command...)...), job)
}

// RunAlone runs a job's command as one process without any launcher.
func RunAlone(t testing.TB, job Job) Result {
	t.Helper()
	return run(t, exec.Command(job.Command[0], job.Command[1:]...), job)
}

func run(t testing.TB, cmd *exec.Cmd, job Job) Result {
	t.Helper()
	mark := fmt.Sprintf("%s=%d.%d", jobVar, os.Getpid(), time.Now().UnixNano())
	cmd.Env = append(append(os.Environ(), job.Env...), mark)
	cmd.Dir = job.Dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second // a process left behind may hold the pipes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := job.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var r Result
	var err error
	select {
	case err = <-ended:
	case <-time.After(limit):
		r.TimedOut = true
		cmd.Process.Signal(syscall.SIGTERM) // a launcher passes it on
		select {
		case err = <-ended:
		case <-time.After(5 * time.Second):
			cmd.Process.Kill()
			err = <-ended
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatal(err)
	}
	r.Stdout, r.Stderr, r.Code = stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	r.Left = endMarked(mark)
	return r
}

// endMarked ends the processes that carry the mark and returns how many there
// were. A launcher may return a moment before its ranks are gone.
func endMarked(mark string) int {
	left := marked(mark)
	for wait := time.Now().Add(2 * time.Second); len(left) > 0 && time.Now().Before(wait); left = marked(mark) {
		time.Sleep(20 * time.Millisecond)
	}
	for _, pid := range left {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(left)
}

// marked lists the living processes whose environment carries the mark.
func marked(mark string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte{0}, mark+"\x00"...)) {
			continue // gone, another user's, or none of ours
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
