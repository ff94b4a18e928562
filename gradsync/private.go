package gradsync

import (
	"time"

	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/shm"
)

// private is memory of one process for the gradients of its logical ranks.
type private struct {
	plan  *plan.Plan
	at    []int64
	ranks []*shm.Segment // by local logical rank
	stopwatch
}

func newPrivate(cfg Config) (*private, error) {
	at, size := offsets(cfg.Plan)
	m := &private{plan: cfg.Plan, at: at, stopwatch: newStopwatch(cfg)}
	for i := 0; i < cfg.Layout.Local(cfg.Layout.Proc); i++ {
		seg, err := shm.Private(size)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.ranks = append(m.ranks, seg)
	}
	return m, nil
}

func (m *private) bucket(local, b int) []byte {
	return m.ranks[local].Bytes()[m.at[b] : m.at[b]+m.plan.Buckets[b].Bytes()]
}

func (m *private) Device() string { return "cpu" }

func (m *private) Put(local, bucket int, fill func([]byte, int64) error) error {
	return fill(m.bucket(local, bucket), 0)
}

func (m *private) Get(bucket int, lo, hi int64) ([]byte, error) {
	size := int64(m.plan.Buckets[bucket].DType.Size())
	return m.bucket(0, bucket)[lo*size : hi*size], nil
}

func (m *private) Close() error {
	var first error
	for _, s := range m.ranks {
		if err := s.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.ranks = nil
	return first
}

// stopwatch times reductions that are done when Reduce returns.
type stopwatch struct{ seconds []float64 }

func newStopwatch(cfg Config) stopwatch {
	return stopwatch{make([]float64, len(cfg.Plan.Buckets))}
}

// measure starts the clock of a bucket; the function that it returns stops it.
func (w *stopwatch) measure(bucket int) func() {
	begun := time.Now()
	return func() { w.seconds[bucket] = time.Since(begun).Seconds() }
}

// Wait has nothing to wait for.
func (w *stopwatch) Wait() ([]float64, error) { return w.seconds, nil }
