package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// endless is a run that is still going on when a test does something to it.
func endless(t *testing.T, binary, dir string, args ...string) []string {
	t.Helper()
	list := writeFile(t, dir, "list.json", mixed)
	return append([]string{binary, "run", "--params", list, "--out", filepath.Join(dir, "r.json"), "--steps", "100000"}, args...)
}

// during launches a job and calls do once its step log has some steps.
func during(t *testing.T, lib *mpitest.Library, ranks int, command []string, dir string, do func(pids map[int]int)) mpitest.Result {
	t.Helper()
	return duringOf(t, lib, ranks, command, command[0], dir, do)
}

// duringOf is during for a command that is not the binary itself.
func duringOf(t *testing.T, lib *mpitest.Library, ranks int, command []string, binary, dir string, do func(pids map[int]int)) mpitest.Result {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3000 {
			if log, _ := os.ReadFile(filepath.Join(dir, "r.jsonl")); bytes.Count(log, []byte("\n")) > 3 {
				do(rankPIDs(binary))
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("no steps within 30 s")
	}()
	r := launch(t, lib, mpitest.Job{Ranks: ranks, Command: command})
	<-done
	return r
}

// rankPIDs finds the processes of a launch, by rank.
func rankPIDs(binary string) map[int]int {
	pids := map[int]int{}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if exe, _ := os.Readlink(link); exe != binary {
			continue
		}
		folder := filepath.Dir(link)
		env, _ := os.ReadFile(filepath.Join(folder, "environ"))
		for e := range bytes.SplitSeq(env, []byte{0}) {
			name, value, _ := strings.Cut(string(e), "=")
			if name != "OMPI_COMM_WORLD_RANK" && name != "PMI_RANK" {
				continue
			}
			rank, _ := strconv.Atoi(value)
			pids[rank], _ = strconv.Atoi(filepath.Base(folder))
		}
	}
	return pids
}

// TestLost kills and stops a rank in mid-run: the launch ends, not well, says
// which rank was lost, and leaves no process (launch checks that by pid).
func TestLost(t *testing.T) {
	for _, tt := range []struct {
		name, transport string
		signal          syscall.Signal
		limit           time.Duration
	}{
		{"killed", "shm", syscall.SIGKILL, 12 * time.Second},
		{"killed", "mpi", syscall.SIGKILL, 12 * time.Second},
		{"stopped", "shm", syscall.SIGSTOP, 12 * time.Second},
		{"stopped", "mpi", syscall.SIGSTOP, 12 * time.Second},
	} {
		t.Run(tt.name+" "+tt.transport, func(t *testing.T) {
			eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
				dir := t.TempDir()
				command := endless(t, lib.Build(t, "."), dir, "--transport", tt.transport, "--deadline", "2s")
				var hit time.Time
				r := during(t, lib, 3, command, dir, func(pids map[int]int) {
					hit = time.Now()
					syscall.Kill(pids[2], tt.signal)
				})
				if took := time.Since(hit); took > tt.limit {
					t.Errorf("ended %v after the signal: %v", took, r)
				}
				if r.Code == 0 || tt.signal == syscall.SIGSTOP && r.Code != 7 {
					t.Errorf("wrong exit code: %v", r)
				}
				// MPICH's launcher ends the survivors of a kill before they can
				// speak, and names no rank itself; see TestSurvivors.
				if tt.signal != syscall.SIGKILL || lib != mpitest.MPICH {
					if !regexp.MustCompile(`rank 2\b`).MatchString(r.Stderr) {
						t.Errorf("does not name rank 2: %v", r)
					}
				}
				if _, err := os.Stat(filepath.Join(dir, "r.json")); err == nil {
					t.Errorf("wrote a report: %v", r)
				}
				if tt.signal == syscall.SIGKILL && tt.transport == "shm" {
					resume(t, dir, command[2:])
				}
			})
		})
	}
}

// TestSurvivors kills a rank under a launcher that leaves the others alone:
// they find out by themselves, name the rank, and exit with code 7.
func TestSurvivors(t *testing.T) {
	lib := mpitest.OpenMPI // MPICH's launcher disturbs the survivors whatever its options
	for _, transport := range []string{"shm", "mpi"} {
		t.Run(transport, func(t *testing.T) {
			dir := t.TempDir()
			codes := filepath.Join(dir, "codes")
			command := endless(t, lib.Build(t, "."), dir, "--deadline", "2s", "--transport", transport)
			apart := append([]string{"--enable-recovery", "sh", "-c", `codes=$1; shift; "$@"; echo $? >>"$codes"`, "sh", codes}, command...)
			r := duringOf(t, lib, 3, apart, command[0], dir, func(pids map[int]int) { syscall.Kill(pids[1], syscall.SIGKILL) })
			named := len(regexp.MustCompile(`ddpstep: rank [02] on .*(waiting for|no answer from) ranks? ([02], )*1\b`).FindAllString(r.Stderr, -1))
			text, _ := os.ReadFile(codes)
			// The first survivor's MPI_Abort may end the other, or its shell,
			// before it speaks.
			ends := slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(text)))))
			if named == 0 || !slices.Equal(ends, []string{"137", "7"}) {
				t.Errorf("%d survivors named rank 1, exit codes %v: %v", named, ends, r)
			}
		})
	}
}

// resume goes on with a run that was killed, on one process, and compares it
// with one that was not.
func resume(t *testing.T, dir string, args []string) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(dir, "r.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	steps := fmt.Sprint(bytes.Count(log, []byte("\n")) + 2)
	args = append([]string{"run"}, args...)
	args = append(args, "--steps", steps, "--world", "3", "--transport", "auto")
	text := alone(t, append(args, "--resume", "--grads-out", dir+"/resumed.safetensors")...)
	if !strings.Contains(text, "resuming after step ") {
		t.Errorf("did not resume: %s", text)
	}
	whole := filepath.Join(dir, "whole.json")
	alone(t, append(args, "--out", whole, "--grads-out", dir+"/whole.safetensors")...)
	if got, want := bits(t, filepath.Join(dir, "r.json")), bits(t, whole); got != want {
		t.Errorf("resumed, the digests are\n%swithout interruption\n%s", got, want)
	}
	if err := sameTensors(dir+"/resumed.safetensors", dir+"/whole.safetensors"); err != nil {
		t.Error(err)
	}
}

// TestInterrupted asks all ranks, or one, to stop: the run ends after the step
// with a report of what was done.
func TestInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		ranks  []int // that get it
		args   []string
		result string
		code   int
	}{
		{"SIGUSR1", syscall.SIGUSR1, []int{0, 1, 2}, nil, "ok", 0},
		{"SIGTERM", syscall.SIGTERM, []int{0, 1, 2}, nil, "ok", 0},
		{"one rank", syscall.SIGUSR1, []int{2}, nil, "ok", 0},
		{"a failing run", syscall.SIGUSR1, []int{0, 1, 2}, []string{"--min-busbw", "1e9"}, "FAILED", 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
				dir := t.TempDir()
				command := endless(t, lib.Build(t, "."), dir)
				r := during(t, lib, 3, append(command, tt.args...), dir, func(pids map[int]int) {
					for _, rank := range tt.ranks {
						syscall.Kill(pids[rank], tt.signal)
					}
				})
				report := filepath.Join(dir, "r.json")
				line := fmt.Sprintf(`INTERRUPTED after \d+ of 100000 steps; what was done is %s \(exit code %d\)\n`, tt.result, tt.code)
				if r.Code != tt.code || !regexp.MustCompile(line).MatchString(r.Stdout) {
					t.Fatal(r)
				}
				if s, code := field(t, report, "status"), field(t, report, "exit_code"); s != "interrupted" || code != float64(tt.code) {
					t.Errorf("status %v, exit code %v: %v", s, code, r)
				}
				whole := filepath.Join(dir, "whole.json")
				steps := len(field(t, report, "steps").([]any))
				alone(t, append(append([]string{"run"}, command[2:]...), "--world", "3", "--steps", fmt.Sprint(steps), "--out", whole)...)
				if got, want := bits(t, report), bits(t, whole); got != want {
					t.Errorf("interrupted, the digests are\n%swithout interruption\n%s", got, want)
				}
			})
		})
	}
}

// TestSecondTERM makes a step last, by stopping a rank, and asks twice. A second
// signal right after the first is taken for its echo.
func TestSecondTERM(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
		dir := t.TempDir()
		command := endless(t, lib.Build(t, "."), dir)
		r := during(t, lib, 2, command, dir, func(pids map[int]int) {
			syscall.Kill(pids[1], syscall.SIGSTOP)
			syscall.Kill(pids[0], syscall.SIGTERM)
			time.Sleep(echo / 10)
			syscall.Kill(pids[0], syscall.SIGTERM)
			time.Sleep(2 * echo)
			if syscall.Kill(pids[0], 0) != nil || len(rankPIDs(command[0])) != 2 {
				t.Error("the first SIGTERM ended it")
			}
			syscall.Kill(pids[0], syscall.SIGTERM)
		})
		if r.Code == 0 {
			t.Error(r)
		}
	})
}
