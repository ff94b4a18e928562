package gradsync

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/values"
)

// gates makes a gate for each of n processes over common counters.
func gates(n int, pids []int, deadline time.Duration) (all []*gate) {
	control := make([][]byte, n)
	for p := range control {
		control[p] = aligned(8)
	}
	for p := range n {
		all = append(all, newGate(p, control, pids, deadline))
	}
	return all
}

// generous is how long a test waits for what has a deadline of milliseconds.
const generous = 20 * time.Second

func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(generous):
		t.Fatalf("not done after %v", generous)
		return nil
	}
}

// Nobody passes a step that somebody has not reached.
func TestGateHoldsEveryoneBack(t *testing.T) {
	const procs, steps = 5, 300
	var mu sync.Mutex
	at := make([]int, procs)
	var all sync.WaitGroup
	errs := make([]error, procs)
	for p, g := range gates(procs, nil, time.Minute) {
		all.Go(func() {
			for step := 1; step <= steps && errs[p] == nil; step++ {
				mu.Lock()
				at[p] = step
				mu.Unlock()
				g.arrive()
				if errs[p] = g.wait("test"); errs[p] != nil {
					return
				}
				mu.Lock()
				for q, s := range at {
					if s < step {
						errs[p] = fmt.Errorf("process %d passed step %d while %d was at %d", p, step, q, s)
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestGateDeadline(t *testing.T) {
	for _, c := range []struct {
		absent []int
		want   string
	}{
		{[]int{2}, "bucket all-reduce: waiting for rank 2: not there after 100ms"},
		{[]int{1, 3}, "bucket all-reduce: waiting for rank 1, 3: not there after 100ms"},
	} {
		all := gates(4, make([]int, 4), 100*time.Millisecond)
		for p, g := range all {
			if p != c.absent[0] && p != c.absent[len(c.absent)-1] {
				g.arrive()
			}
		}
		err := within(t, func() error { return all[0].wait("bucket all-reduce") })
		if !errors.Is(err, ErrLost) || err.Error() != c.want {
			t.Errorf("%v, expected %q", err, c.want)
		}
	}
}

// A process that is gone is found long before the deadline.
func TestGateNamesADeadProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pids := []int{os.Getpid(), 0, cmd.Process.Pid} // 0: in a name space of its own
	all := gates(3, pids, time.Hour)
	all[0].arrive()
	err := within(t, func() error { return all[0].wait("bucket all-reduce") })
	want := fmt.Sprintf("bucket all-reduce: waiting for rank 2: its process %d is gone", cmd.Process.Pid)
	if !errors.Is(err, ErrLost) || err.Error() != want {
		t.Errorf("%v, expected %q", err, want)
	}
	// Whoever arrived before it went has been there.
	all[1].arrive()
	all[2].arrive()
	if err := within(t, func() error { return all[0].wait("bucket all-reduce") }); err != nil {
		t.Error(err)
	}
}

// A peer that stops between two buckets is named by all others.
func TestReducerLosesAPeer(t *testing.T) {
	for _, n := range []int64{100, 100_000} { // in one shot and in two
		list := []plan.Param{{Name: "a", DType: contract.Float32, Shape: []int64{n}}}
		p, err := plan.New(list, plan.All)
		if err != nil {
			t.Fatal(err)
		}
		dir := folder(t)
		lost := make(chan struct{}, 3)
		launch(t, 3, false, func(w World) error {
			job, err := open(w, Job{
				Config: Config{Layout: Layout{World: 3}, Plan: p, Average: contract.Mean},
				Source: &Generated{list, 1, values.Wide},
			}, "fixed", "shm", dir)
			if err != nil {
				return err
			}
			defer job.Reducer.Close()
			job.Reducer.(*shared).gate.deadline = 200 * time.Millisecond
			if _, err := job.Run(0); err != nil {
				return err
			}
			if w.Rank() == 1 { // and does not come again, but lives
				for range 2 {
					select {
					case <-lost:
					case <-time.After(generous):
						return errors.New("nobody missed rank 1")
					}
				}
				return nil
			}
			_, err = job.Run(1)
			lost <- struct{}{}
			var e *LostError
			if !errors.As(err, &e) || len(e.Ranks) != 1 || e.Ranks[0] != 1 || ExitCode(err) != ExitLost {
				return fmt.Errorf("expected a LostError of rank 1, not %v", err)
			}
			if !strings.HasPrefix(err.Error(), "step 1, bucket 0: bucket all-reduce: waiting for rank 1: ") {
				return err
			}
			return nil
		})
	}
}
