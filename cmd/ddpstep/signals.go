package main

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// echo is how long after a SIGTERM another one is taken for the same: at
	// a time limit Slurm sends each task two within some 15 ms, and below
	// mpirun one comes from Slurm and one from mpirun.
	echo = 250 * time.Millisecond

	// courtesy is how long a rank that has nothing to say leaves to those that
	// do, and to an outcome that is on its way.
	courtesy = time.Second
)

// signals decide how a job ends that somebody else wants to end.
//
// They are watched from before MPI starts until the process is gone, because
// srun --kill-on-bad-exit sends SIGTERM to every rank as soon as the first one
// has ended with a code: a rank that died of it, in MPI_Init or on its way
// out, would put 143 in the place of that code.
type signals struct {
	stepping    atomic.Bool // steps are made: a signal ends the run after the current one
	interrupted atomic.Bool // a signal came
	leaving     atomic.Bool // the outcome is known: signals change nothing
}

// watch starts to handle SIGUSR1 and SIGTERM. While steps are made, both end
// the run after the current step and a second SIGTERM ends the process; at
// other times SIGTERM ends it, though not before an outcome that is on its way.
func (s *signals) watch() {
	c := make(chan os.Signal, 8)
	signal.Notify(c, syscall.SIGUSR1, syscall.SIGTERM)
	go func() {
		var first time.Time
		for sig := range c {
			s.interrupted.Store(true)
			if sig != syscall.SIGTERM || s.leaving.Load() {
				continue
			}
			if !s.stepping.Load() {
				time.AfterFunc(courtesy, s.end)
			} else if first.IsZero() {
				first = time.Now()
			} else if time.Since(first) > echo {
				s.end()
			}
		}
	}()
}

// end is the end by SIGTERM.
func (s *signals) end() {
	if !s.leaving.Load() {
		os.Exit(128 + int(syscall.SIGTERM))
	}
}
