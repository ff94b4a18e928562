package gradsync

import (
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
)

// library sums with MPI_Allreduce, in an order that the MPI library chooses.
// It promises no bits; it is here to be compared with.
//
// The logical ranks of one process are summed before, and the mean is taken
// after, by the contract's own code.
type library struct {
	*private
	cfg   Config
	local map[contract.DType]*contract.Folder // sums, pre-scaled where asked
	scale map[contract.DType]*contract.Folder // averages one addend
}

func newLibrary(cfg Config) (*library, error) {
	mem, err := newPrivate(cfg)
	if err != nil {
		return nil, err
	}
	m := &library{private: mem, cfg: cfg}
	sum := cfg
	if cfg.Average == contract.Mean {
		sum.Average = contract.None
	}
	m.local, m.scale = folders(sum), folders(cfg)
	return m, nil
}

func (m *library) Name() string      { return "mpi" }
func (m *library) Transport() string { return "mpi" }

// Accumulator is the dtype itself: MPI rounds after every addition.
func (m *library) Accumulator(t contract.DType) contract.DType { return t }

func (m *library) Reduce(b int) error {
	defer m.measure(b)()
	fpenv.Set()
	t := m.cfg.Plan.Buckets[b].DType
	buf := [][]byte{m.bucket(0, b)}
	if n := len(m.ranks); n > 1 || m.cfg.Average == contract.Pre {
		var addends [][]byte
		for i := range n {
			addends = append(addends, m.bucket(i, b))
		}
		m.local[t].Fold(buf, addends)
	}
	if err := m.cfg.World.AllreduceSum(buf[0], t.String()); err != nil {
		return err
	}
	if m.cfg.Average == contract.Mean {
		fpenv.Set() // the library may have loaded a plug-in
		m.scale[t].Fold(buf, buf)
	}
	return nil
}
