package gradsync

import (
	"errors"
	"fmt"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/kernels"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

// joinNCCL makes a communicator of the whole world, collectively: rank 0's
// unique ID goes to all as bytes. It fails on all ranks alike before NCCL is
// asked; from then on NCCL's ranks wait for each other.
func joinNCCL(m *gpuMemory) (*nccl.Comm, error) {
	cfg, g := m.cfg, m.gpu
	lib, err := g.NCCL()
	var id nccl.ID
	if err == nil && cfg.World.Rank() == 0 {
		id, err = lib.UniqueID()
	}
	if err := Agree(cfg.World, err); err != nil {
		return nil, err
	}
	if err := cfg.World.Bcast(id[:], 0); err != nil {
		return nil, err
	}
	const op = "NCCL initialisation"
	defer m.guard(op)()
	comm, err := lib.Init(g.ctx, id, cfg.World.Rank(), cfg.World.Size(), nccl.Config{Timeout: cfg.Deadline, Grace: abortWait, Direct: g.options.Direct})
	var e *nccl.Error
	switch {
	case errors.As(err, &e) && e.Code == nccl.CodeInvalidUsage: // two ranks on one GPU, which --share-gpu let through
		return nil, fmt.Errorf("%w: %w", ErrEnvironment, err)
	case err != nil:
		return nil, lostOnGPU(op, err)
	}
	return comm, nil
}

// ncclReducer sums with ncclAllReduce, in the order that NCCL chooses. It
// promises no bits; it is here to be compared with. What a process's own
// logical ranks and the average need is done by the contract's kernels.
type ncclReducer struct {
	*gpuMemory
	nccl  *nccl.Comm
	local []*kernels.Launch // by bucket: sums the local ranks, nil where there is nothing to do
	mean  []*kernels.Launch // by bucket: scales the sum, nil likewise
}

func newNCCLReducer(cfg Config, g *GPU) (*ncclReducer, error) {
	m, err := newGPUMemory(cfg, g)
	if err != nil {
		return nil, err
	}
	r := &ncclReducer{gpuMemory: m}
	if r.nccl, err = joinNCCL(m); err == nil {
		err = Agree(cfg.World, refusedByGPU(r.prepare()))
	}
	if err != nil {
		Leave(r, err)
		return nil, err
	}
	return r, nil
}

func (r *ncclReducer) prepare() (err error) {
	defer r.guard("loading kernels")()
	cfg, m, k := r.cfg, r.gpuMemory, r.gpu.kernels
	for b, bucket := range cfg.Plan.Buckets {
		scale := kernelScale(bucket.DType, cfg.Average, cfg.Layout.World)
		sum := scale
		if cfg.Average == contract.Mean {
			sum = kernels.Scale{Factor: 1}
		}
		var addends []cuda.Buffer
		for i := range m.buckets {
			addends = append(addends, m.buckets[i][b])
		}
		var local, mean *kernels.Launch
		if len(addends) > 1 || cfg.Average == contract.Pre {
			if local, err = k.Fold(kernels.Fold{Addends: addends, Results: addends[:1], Scale: sum}); err != nil {
				return err
			}
			r.own(freed(local))
		}
		if cfg.Average == contract.Mean {
			if mean, err = k.Fold(kernels.Fold{Addends: addends[:1], Results: addends[:1], Scale: scale}); err != nil {
				return err
			}
			r.own(freed(mean))
		}
		r.local, r.mean = append(r.local, local), append(r.mean, mean)
	}
	return nil
}

func freed(l *kernels.Launch) func() error {
	return func() error {
		l.Free()
		return nil
	}
}

func (r *ncclReducer) Name() string      { return "nccl" }
func (r *ncclReducer) Transport() string { return "nccl" }

// Accumulator is the dtype itself: NCCL may round after every addition.
func (r *ncclReducer) Accumulator(t contract.DType) contract.DType { return t }

func (r *ncclReducer) Reduce(b int) error {
	defer r.guard("ncclAllReduce")()
	if err := r.catchUp(r.nccl.Wait); err != nil {
		return lostOnGPU("ncclAllReduce", err)
	}
	if err := r.begin(b); err != nil {
		return err
	}
	if err := r.queue(b); err != nil {
		return err
	}
	return r.end(b)
}

func (r *ncclReducer) queue(b int) error {
	if l := r.local[b]; l != nil {
		if err := l.Queue(r.comm); err != nil {
			return err
		}
	}
	if buf := r.buckets[0][b]; buf.Len() > 0 {
		if err := r.nccl.AllReduce(buf, buf, nccl.Sum, r.comm); err != nil {
			return lostOnGPU(fmt.Sprintf("ncclAllReduce of bucket %d", b), err)
		}
	}
	if l := r.mean[b]; l != nil {
		return l.Queue(r.comm)
	}
	return nil
}

// Repeat is for benchmarks; see Repeater.
func (r *ncclReducer) Repeat(n int) (float64, error) {
	s, err := r.repeat(n, r.queue, r.nccl.Wait)
	return s, lostOnGPU("ncclAllReduce", err)
}

func (r *ncclReducer) Wait() ([]float64, error) {
	s, err := r.finish(r.nccl.Wait)
	return s, lostOnGPU("ncclAllReduce", err)
}

func (r *ncclReducer) Close() error { return closeNCCL(r.gpuMemory, r.nccl) }

func (r *ncclReducer) Abandon(cause error) { abandonNCCL(r.gpuMemory, r.nccl, cause) }

// closeNCCL ends a communicator in order and frees the memory. When a peer does
// not come the memory stays: work on it may not have ended.
func closeNCCL(m *gpuMemory, c *nccl.Comm) error {
	if c != nil {
		done := m.guard("ncclCommFinalize")
		err := c.Close()
		done()
		if err != nil {
			return lostOnGPU("ncclCommFinalize", err)
		}
	}
	return m.Close()
}

// abandonNCCL aborts a communicator, unless that has happened.
func abandonNCCL(m *gpuMemory, c *nccl.Comm, cause error) {
	if c != nil {
		defer m.guard("ncclCommAbort")()
		c.Abort(cause)
	}
}
