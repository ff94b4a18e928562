package mpitest

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestRunAlone(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
		want         Result
	}{
		{"output and code", "echo $WORD; echo err >&2; exit 3", 0, Result{Stdout: "out\n", Stderr: "err\n", Code: 3}},
		{"a process left behind", "sleep 600 >/dev/null 2>&1 & exit 0", 0, Result{Left: 1}},
		{"too slow", "trap 'exit 5' TERM; while :; do sleep 0.05; done", 300 * time.Millisecond, Result{Code: 5, TimedOut: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			job := Job{Command: []string{"sh", "-c", tt.script}, Env: []string{"WORD=out"}, Timeout: tt.timeout}
			if got := RunAlone(t, job); got != tt.want {
				t.Errorf("got %v\nwant %v", got, tt.want)
			}
		})
	}
}

// Each library's own launcher is used, whichever of them is called mpirun.
func TestLaunch(t *testing.T) {
	for lib, variable := range map[*Library]string{OpenMPI: "OMPI_COMM_WORLD_SIZE", MPICH: "PMI_SIZE"} {
		t.Run(lib.Tag, func(t *testing.T) {
			r := lib.Run(t, Job{Ranks: 3, Command: []string{"sh", "-c", "echo size $" + variable}})
			if r.Code != 0 || r.Left != 0 || strings.Count(r.Stdout, "size 3\n") != 3 {
				t.Error(r)
			}
		})
	}
}
