package mpiboot

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// A scenario is a program for one rank, the same on all ranks. launch_test.go
// builds this package's test binary with a tag and launches it with
// scenarioVar set to a name; local_test.go runs the sound ones in this process.
const (
	scenarioVar = "MPIBOOT_SCENARIO"
	deadlineVar = "MPIBOOT_DEADLINE"
	reportVar   = "MPIBOOT_REPORT"
)

var scenarios = map[string]func(*World) error{
	"place":         wherePlaced,
	"place in turn": wherePlaced,
	"collectives":   collectives,
	"pieces":        pieces,
	"messages":      messages,
	"arguments":     arguments,
	"halves":        halves,
	"allocations":   allocations,
	"big":           big,
	"sleeper":       sleeper,
	"latecomer":     latecomer,
	"short":         shortMessage,
	"long":          longMessage,
	"piece mix":     pieceMix,
	"stuck sum":     stuckSum,
	"stuck init":    func(*World) error { return nil },
	"stuck end":     stuckEnd,
	"abort":         abort,
	"abort apart":   abortApart,
	"killed":        killed,
	"stopped":       stopped,
	"wrong thread":  wrongThread,
	"lost receiver": lostReceiver,
}

// announcedLast reports whether this process is the last rank; it needs no
// world.
func announcedLast() bool {
	rank, size, _, ok := Announced()
	return ok && rank == size-1
}

func init() { runtime.LockOSThread() } // Init locks it too; this makes it the main thread

func TestMain(m *testing.M) {
	name := os.Getenv(scenarioVar)
	if name == "" {
		os.Exit(mpitest.Main(m))
	}
	deadline, err := time.ParseDuration(os.Getenv(deadlineVar))
	if err != nil {
		deadline = time.Minute
	}
	rollWait = 3 * time.Second // a loaded machine answers slowly
	if rank, _, _, _ := Announced(); name == "place in turn" {
		// Open MPI's worlds of one, started at once, race for a folder of
		// theirs, and the loser aborts.
		time.Sleep(time.Duration(rank) * 2 * time.Second)
	}
	if name == "stuck init" && announcedLast() {
		time.Sleep(time.Hour)
	}
	initDeadline := time.Minute // a loaded machine starts slowly
	if name == "stuck init" {
		initDeadline = deadline
	}
	w, err := Init(Options{Deadline: initDeadline, Stuck: func(op string) {
		fmt.Fprintf(os.Stderr, "stuck in %s\n", op)
		os.Exit(9)
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(6)
	}
	w.SetDeadline(deadline)
	err = scenarios[name](w)
	if err == nil {
		err = w.Finalize()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "scenario %s, rank %d: %v\n", name, w.Rank(), err)
		w.Abort(1)
	}
	os.Exit(0)
}
