package gradsync

import "github.com/ddpstep/ddpstep/gradsync/shm"

// private is memory of one process for the gradients of its logical ranks.
type private struct {
	plan  []int64 // sizes of the buckets, in bytes
	at    []int64
	ranks []*shm.Segment // by local logical rank
}

func newPrivate(cfg Config) (*private, error) {
	at, size := offsets(cfg.Plan)
	m := &private{at: at}
	for _, b := range cfg.Plan.Buckets {
		m.plan = append(m.plan, b.Bytes())
	}
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
	return m.ranks[local].Bytes()[m.at[b] : m.at[b]+m.plan[b]]
}

func (m *private) Put(local, bucket int, fill func([]byte) error) error {
	return fill(m.bucket(local, bucket))
}

func (m *private) Get(bucket int) ([]byte, error) { return m.bucket(0, bucket), nil }

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
