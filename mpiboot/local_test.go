package mpiboot

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// one returns the world of this process, which no launcher started. In a
// build with a tag it is a real MPI world of one rank.
var one = sync.OnceValues(func() (*World, error) { return Init(Options{Deadline: time.Minute}) })

// TestAlone runs the sound scenarios in a world of one rank. Tests may run on
// any thread; MPI is not called after Init in a world of one.
func TestAlone(t *testing.T) {
	w, err := one()
	if err != nil {
		t.Fatal(err)
	}
	defer func(b, e int) { pieceBytes, pieceElems = b, e }(pieceBytes, pieceElems)
	for _, name := range []string{"place", "collectives", "pieces", "messages", "arguments", "halves", "allocations"} {
		t.Run(name, func(t *testing.T) {
			if err := scenarios[name](w); err != nil {
				t.Error(err)
			}
		})
	}
	if missing := w.RollCall(time.Hour); missing != nil {
		t.Errorf("missing %v from a world of one", missing)
	}
}

func TestAnnouncedAlone(t *testing.T) {
	rank, size, launcher, ok := Announced()
	if rank != 0 || size != 1 || launcher != "" || ok {
		t.Errorf("rank %d of %d by %q, %v; want rank 0 of 1 by nobody", rank, size, launcher, ok)
	}
}

// fakeLink plays the other ranks. Methods that a test does not set panic.
type fakeLink struct {
	link
	pollFunc func(time.Duration) (bool, error)
	here     []bool
	called   int
}

func (f *fakeLink) barrier() error                              { return nil }
func (f *fakeLink) poll(d time.Duration) (bool, error)          { return f.pollFunc(d) }
func (f *fakeLink) callHere()                                   { f.called++ }
func (f *fakeLink) heard() []bool                               { return f.here }
func (f *fakeLink) allgather(send, recv []byte) error           { return errors.New("refused") }
func (f *fakeLink) probe(int, int, time.Duration) (bool, error) { return false, nil }

func fakeWorld(f *fakeLink, deadline time.Duration) *World {
	return &World{place: place{rank: 1, size: 4}, opts: Options{Deadline: deadline}, link: f, inbox: map[int][][]byte{}}
}

func TestDeadlineNamesTheMissing(t *testing.T) {
	defer func(d time.Duration) { rollWait = d }(rollWait)
	rollWait = 50 * time.Millisecond
	for _, tt := range []struct {
		name string
		here []bool
		want []int
	}{
		{"all here", []bool{true, false, true, true}, nil},
		{"one lost", []bool{true, false, true, false}, []int{3}},
		{"all lost", make([]bool, 4), []int{0, 2, 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeLink{here: tt.here, pollFunc: func(d time.Duration) (bool, error) { time.Sleep(d); return false, nil }}
			w := fakeWorld(f, 20*time.Millisecond)
			err := w.Barrier()
			var late *DeadlineError
			if !errors.As(err, &late) || late.Op != "Barrier" || !slices.Equal(late.Missing, tt.want) || late.After < w.opts.Deadline {
				t.Fatalf("got %v, want %v missing", err, tt.want)
			}
			if f.called == 0 {
				t.Error("the rank did not answer its own roll call")
			}
			f.pollFunc = func(time.Duration) (bool, error) { return true, nil }
			if again := w.Barrier(); !errors.As(again, &late) {
				t.Errorf("a call in a spent world: %v", again)
			}
		})
	}
}

// A rank without a deadline polls on, and answers the others' roll call.
func TestWaitingAnswers(t *testing.T) {
	polls := 0
	f := &fakeLink{here: make([]bool, 4)}
	f.pollFunc = func(d time.Duration) (bool, error) {
		if d != pollSlice {
			t.Errorf("polled for %v, want %v", d, pollSlice)
		}
		polls++
		f.here[2] = polls >= 3
		return polls == 6, nil
	}
	if err := fakeWorld(f, 0).Barrier(); err != nil {
		t.Fatal(err)
	}
	if polls != 6 || f.called != 3 {
		t.Errorf("%d polls and %d answers, want 6 and 3", polls, f.called)
	}
}

func TestFailureSpendsTheWorld(t *testing.T) {
	broken := &Error{Call: "MPI_Testall", Code: 5, Class: 6, Message: "broken"}
	f := &fakeLink{here: make([]bool, 4), pollFunc: func(time.Duration) (bool, error) { return false, broken }}
	w := fakeWorld(f, time.Hour)
	if err := w.Barrier(); err != error(broken) {
		t.Errorf("got %v, want MPI's own error", err)
	}
	if err := w.Bcast(nil, 0); !errors.Is(err, broken) {
		t.Errorf("the next call returns %v, want the first failure", err)
	}
	w = fakeWorld(f, time.Hour)
	if err := w.Allgather(make([]byte, 1), make([]byte, 4)); err == nil || w.spent == nil {
		t.Errorf("a call that could not start returns %v and leaves the world usable", err)
	}
}

func TestRecvTimeoutHarmsNothing(t *testing.T) {
	w := fakeWorld(&fakeLink{here: make([]bool, 4)}, time.Hour)
	var late *DeadlineError
	if err := w.RecvTimeout(nil, 2, 0, time.Millisecond); !errors.As(err, &late) || !slices.Equal(late.Missing, []int{2}) {
		t.Errorf("got %v, want rank 2 missing", err)
	}
	if w.spent != nil {
		t.Errorf("the world is spent: %v", w.spent)
	}
}
