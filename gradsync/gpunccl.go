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
// unique ID goes to all as bytes.
func joinNCCL(cfg Config, g *GPU) (*nccl.Comm, error) {
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
	comm, err := lib.Init(g.ctx, id, cfg.World.Rank(), cfg.World.Size(), nccl.Config{Timeout: cfg.Deadline, Direct: g.options.Direct})
	if err != nil {
		return nil, lostOnGPU("NCCL initialisation", err)
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

func newNCCLReducer(cfg Config, g *GPU) (r *ncclReducer, err error) {
	m, err := newGPUMemory(cfg, g)
	if err := Agree(cfg.World, err); err != nil {
		if m != nil {
			m.Close()
		}
		return nil, err
	}
	r = &ncclReducer{gpuMemory: m}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.nccl, err = joinNCCL(cfg, g); err != nil {
		return nil, err
	}
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
			if local, err = g.kernels.Fold(kernels.Fold{Addends: addends, Results: addends[:1], Scale: sum}); err != nil {
				return nil, err
			}
			r.own(freed(local))
		}
		if cfg.Average == contract.Mean {
			if mean, err = g.kernels.Fold(kernels.Fold{Addends: addends[:1], Results: addends[:1], Scale: scale}); err != nil {
				return nil, err
			}
			r.own(freed(mean))
		}
		r.local, r.mean = append(r.local, local), append(r.mean, mean)
	}
	return r, nil
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
func (r *ncclReducer) Repeat(b, n int) (float64, error) {
	s, err := r.repeat(b, n, r.queue, r.nccl.Wait)
	return s, lostOnGPU("ncclAllReduce", err)
}

func (r *ncclReducer) Wait() ([]float64, error) {
	s, err := r.finish(r.nccl.Wait)
	return s, lostOnGPU("ncclAllReduce", err)
}

func (r *ncclReducer) Close() error { return errors.Join(closeNCCL(r.nccl), r.gpuMemory.Close()) }

// closeNCCL ends a communicator in order, unless it was aborted.
func closeNCCL(c *nccl.Comm) error {
	if c == nil {
		return nil
	}
	err := c.Close()
	if errors.Is(err, nccl.ErrAborted) {
		return nil // reported when it happened
	}
	return err
}
