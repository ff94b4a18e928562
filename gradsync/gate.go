package gradsync

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// A gate lets the processes of one host wait for each other through counters in
// shared memory. Each process owns one counter, which only grows; a process
// has arrived at step n when its counter is at least n. Flags that go back to
// zero would be unsafe here: a slow reader could miss one.
//
// Go's atomics are sequentially consistent, so what a process wrote before it
// arrived is visible to whoever saw it arrive.
type gate struct {
	self     int
	counters []*atomic.Uint64 // by process
	pids     []int            // 0 where unknown
	now      uint64
	deadline time.Duration
	spins    int // polls before the processor is offered to others
}

// spins is how often a process polls, some 50 µs long, before it offers its
// processor to others: longer than a small bucket takes, and short beside the
// time slice that a system may give to whoever takes the offer.
const spins = 20000

// newGate makes a gate over the first 8 bytes of each process's control page.
func newGate(self int, control [][]byte, pids []int, deadline time.Duration) *gate {
	g := &gate{self: self, pids: pids, deadline: deadline, spins: spins}
	for _, c := range control {
		g.counters = append(g.counters, (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(c))))
	}
	return g
}

// arrive announces that this process is at the next step.
func (g *gate) arrive() {
	g.now++
	g.counters[g.self].Store(g.now)
}

// wait returns when every process has arrived at the current step.
func (g *gate) wait(op string) error {
	for p, c := range g.counters {
		if c.Load() >= g.now {
			continue
		}
		if err := g.waitFor(op, p); err != nil {
			return err
		}
	}
	return nil
}

func (g *gate) waitFor(op string, p int) error {
	c := g.counters[p]
	for i := 0; i < g.spins; i++ {
		if c.Load() >= g.now {
			return nil
		}
	}
	for start := time.Now(); ; {
		for range 64 {
			if c.Load() >= g.now {
				return nil
			}
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
		waited := time.Since(start)
		if g.deadline > 0 && waited > g.deadline {
			return &LostError{op, g.missing(), fmt.Sprintf("not there after %v", g.deadline)}
		}
		if waited < patience {
			continue
		}
		// A process that is gone after we have what we waited for is fine.
		if q := g.gone(); q >= 0 && c.Load() < g.now {
			return &LostError{op, []int{q}, fmt.Sprintf("its process %d is gone", g.pids[q])}
		}
		time.Sleep(time.Millisecond)
	}
}

// patience is how long a wait polls without a pause. Then nobody needs an
// answer within microseconds any more, and somebody may have died.
const patience = 50 * time.Millisecond

// gone is the first process that has ended, -1 when all live.
func (g *gate) gone() int {
	for q, pid := range g.pids {
		if pid != 0 && syscall.Kill(pid, 0) == syscall.ESRCH {
			return q
		}
	}
	return -1
}

// missing lists the processes that have not arrived.
func (g *gate) missing() (ranks []int) {
	for p, c := range g.counters {
		if c.Load() < g.now {
			ranks = append(ranks, p)
		}
	}
	return ranks
}
