package mpiboot

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// Options are the limits of a world.
type Options struct {
	// Deadline is the longest that any one call may wait; 0 sets no limit.
	Deadline time.Duration

	// Stuck is called, on another goroutine, when a call that cannot be
	// polled (MPI_Init, MPI_Allreduce, MPI_Finalize) overruns the deadline.
	// The call goes on; Stuck should end the process, with World.Abort where
	// there is a world and os.Exit during Init. Nil leaves the call waiting.
	Stuck func(op string)
}

// World is the MPI world of this process; there is one in its lifetime.
type World struct {
	place
	host  string
	opts  Options
	link  link             // how to reach the other ranks; nil without MPI
	inbox map[int][][]byte // messages to oneself, by tag
	watch *time.Timer      // the watchdog of AllreduceSum
	spent error            // why the world can no longer be used
}

// place is what MPI says about this process at the start.
type place struct {
	rank, size int
	local      []int
	library    string
	level      string
}

// link starts calls among several ranks. At most one is under way; poll
// completes it. Peers equal to one's own rank are skipped: the world has
// served them already.
type link interface {
	barrier() error
	bcast(buf []byte, root int) error
	allgather(send, recv []byte) error
	exchange(ch channel, tag int, sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error
	poll(d time.Duration) (done bool, err error)
	probe(peer, tag int, d time.Duration) (found bool, err error)
	allreduce(buf []byte, t elem) error // blocks
	callHere()                          // says "here" to every rank, once
	heard() []bool                      // who has said "here" so far, by rank
	abort(code int)
	finalize() error // blocks
}

// channel keeps the messages of different methods apart.
type channel int

const (
	internal channel = iota // the collectives; the tag is the method
	direct                  // Send and Recv; the tag is the caller's
)

const (
	// pollSlice is how long the loop in C runs before Go looks at the
	// deadline and answers roll calls.
	pollSlice = 100 * time.Millisecond

	// abortPause lets the launcher read what this rank has just printed, its
	// reason to abort for one: MPICH's drops the rest when a rank aborts.
	abortPause = 200 * time.Millisecond

	// abortGrace is how long MPI_Abort may take to end the process.
	abortGrace = 3 * time.Second
)

// rollWait is how long an overrun call waits for the others' answers. They
// come within a pollSlice from every rank that is in a call here.
var rollWait = 2 * time.Second

var initialised atomic.Bool

// Init starts MPI, locks the calling goroutine to its OS thread, and returns
// the world. It fails with a *RefusedError where the world has one rank but
// the launcher announced more.
func Init(opts Options) (*World, error) {
	if initialised.Swap(true) {
		return nil, &ArgumentError{"Init", "a process can start MPI only once"}
	}
	runtime.LockOSThread()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	w := &World{host: host, opts: opts, inbox: map[int][][]byte{}}
	defer w.guard("MPI_Init")()
	if err := refuseBefore(os.LookupEnv, needsPMI); err != nil {
		return nil, err
	}
	w.link, w.place, err = open()
	if err != nil {
		return nil, err
	}
	if w.size == 1 {
		if err := refuseAlone(os.LookupEnv, w.library); err != nil {
			if w.link != nil {
				w.link.finalize() // the refusal says more than its error could
			}
			return nil, err
		}
	}
	return w, nil
}

// Rank returns this process's rank, 0 to Size-1.
func (w *World) Rank() int { return w.rank }

// Size returns the number of ranks.
func (w *World) Size() int { return w.size }

// Host returns the name of this host, for people; ranks in containers may
// share a name without sharing a host.
func (w *World) Host() string { return w.host }

// LocalRanks returns the ranks that share this host's memory, ascending, own
// included.
func (w *World) LocalRanks() []int { return slices.Clone(w.local) }

// LocalRank returns this rank's index in LocalRanks.
func (w *World) LocalRank() int { return slices.Index(w.local, w.rank) }

// LocalSize returns the number of ranks that share this host's memory.
func (w *World) LocalSize() int { return len(w.local) }

// Library returns the first line of MPI_Get_library_version, or "" in a build
// without MPI.
func (w *World) Library() string { return w.library }

// ThreadLevel returns the name of the thread level that MPI granted, or "" in
// a build without MPI.
func (w *World) ThreadLevel() string { return w.level }

// SetDeadline changes the longest wait of later calls; 0 sets no limit.
func (w *World) SetDeadline(d time.Duration) { w.opts.Deadline = d }

// Abort ends this process and, through MPI_Abort, the whole world, with the
// launcher's exit code set to code (1 when code is not in 1..255). It does
// not return, and may be called from any goroutine, Stuck included.
func (w *World) Abort(code int) {
	if code < 1 || code > 255 {
		code = 1
	}
	if w.link != nil {
		// A library that hangs in MPI_Abort must not keep the process: the
		// launcher ends the others when a rank exits without MPI_Finalize.
		time.AfterFunc(abortGrace, func() { os.Exit(code) })
		time.Sleep(abortPause)
		w.link.abort(code)
	}
	os.Exit(code)
}

// Finalize waits for all ranks and ends MPI. The world cannot be used
// afterwards. After a failure it returns that failure at once and leaves MPI
// as it is: such a process must end by Abort.
func (w *World) Finalize() error {
	if err := w.Barrier(); err != nil {
		return err
	}
	w.spent = &ArgumentError{"Finalize", "MPI has ended"}
	if w.link == nil {
		return nil
	}
	defer w.guard("MPI_Finalize")()
	return w.link.finalize()
}

// guard arranges for Stuck to be called unless the returned function is called
// before the deadline.
func (w *World) guard(op string) (done func()) {
	if w.opts.Deadline <= 0 || w.opts.Stuck == nil {
		return func() {}
	}
	timer := time.AfterFunc(w.opts.Deadline, func() { w.opts.Stuck(op) })
	return func() { timer.Stop() }
}

// ready reports why a call cannot be made at all.
func (w *World) ready(op string) error {
	if w.spent != nil {
		return fmt.Errorf("mpiboot: %s: the world is spent: %w", op, w.spent)
	}
	return nil
}

// fail records the failure after which MPI can no longer be trusted.
func (w *World) fail(err error) error {
	w.spent = err
	return err
}

// wait completes the call that was started, or gives up at the deadline.
func (w *World) wait(op string, started error) error {
	if started != nil {
		return w.fail(started)
	}
	start := time.Now()
	for {
		done, err := w.link.poll(w.slice(start))
		if err != nil {
			if short, ok := err.(*SizeError); ok {
				short.Op = op
			}
			return w.fail(err)
		}
		if done {
			return nil
		}
		if w.overrun(start) {
			return w.giveUp(op, start)
		}
		w.answer()
	}
}

func (w *World) overrun(start time.Time) bool {
	return w.opts.Deadline > 0 && time.Since(start) >= w.opts.Deadline
}

// slice returns how long to poll before looking at the deadline again.
func (w *World) slice(start time.Time) time.Duration {
	if w.opts.Deadline <= 0 {
		return pollSlice
	}
	return max(0, min(pollSlice, w.opts.Deadline-time.Since(start)))
}

// giveUp ends a call that overran: it names the missing and spends the world.
func (w *World) giveUp(op string, start time.Time) error {
	after := time.Since(start)
	return w.fail(&DeadlineError{Op: op, After: after, Missing: w.RollCall(rollWait)})
}
