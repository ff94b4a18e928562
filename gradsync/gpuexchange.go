package gradsync

import (
	"errors"
	"fmt"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/kernels"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

// gpuExchange is the fixed order where GPUs cannot map each other's memory. It
// is the same algorithm as exchange, with NCCL's send and receive for the bytes
// and the fold kernel for the sum.
//
// A bucket goes in chunks, three of which are under way at a time: while chunk
// c is folded on a stream of its own, the addends of c+1 come in and the
// results of c-1 go out, together in one NCCL group.
type gpuExchange struct {
	*gpuMemory
	nccl    *nccl.Comm
	folding *cuda.Stream
	scratch cuda.Buffer    // two turns of one chunk for each logical rank of other processes
	arrived [2]*cuda.Event // by turn: the addends are in scratch
	folded  [2]*cuda.Event // by turn: scratch is free, the result is there
	chunks  [][]chunk      // by bucket
}

// chunk is one piece of every process's slice of a bucket.
type chunk struct {
	sends, recvs     []message       // addends
	results, updates []message       // our result to all, theirs to us
	fold             *kernels.Launch // nil when our piece is empty
}

type message struct {
	peer int
	buf  cuda.Buffer
}

// gpuChunkBytes bounds one message: large enough for NVLink and network cards
// to run at speed, small enough that folding one hides behind moving another.
const gpuChunkBytes = 4 << 20

func newGPUExchange(cfg Config, g *GPU) (*gpuExchange, error) {
	m, err := newGPUMemory(cfg, g)
	if err != nil {
		return nil, err
	}
	x := &gpuExchange{gpuMemory: m}
	if x.nccl, err = joinNCCL(m); err == nil {
		err = Agree(cfg.World, refusedByGPU(x.prepare()))
	}
	if err != nil {
		Leave(x, err)
		return nil, err
	}
	return x, nil
}

func (x *gpuExchange) prepare() (err error) {
	defer x.guard("loading kernels")()
	l := x.cfg.Layout
	if x.folding, err = x.gpu.ctx.NewStream(); err != nil {
		return err
	}
	x.own(x.folding.Close)
	for turn := range 2 {
		if x.arrived[turn], err = x.event(false); err != nil {
			return err
		}
		if x.folded[turn], err = x.event(false); err != nil {
			return err
		}
	}
	foreign := l.World - l.Local(l.Proc)
	size := x.messageBytes()
	if x.scratch, err = x.gpu.ctx.Alloc(cuda.Uint8, int(2*int64(foreign)*size)); err != nil {
		return err
	}
	x.own(x.scratch.Free)
	for b, bucket := range x.cfg.Plan.Buckets {
		var chunks []chunk
		for c := int64(0); c*size < x.longest(bucket); c++ {
			next, err := x.lay(b, c)
			if err != nil {
				return fmt.Errorf("bucket %d: %w", b, err)
			}
			chunks = append(chunks, next)
		}
		x.chunks = append(x.chunks, chunks)
	}
	return nil
}

// longest is the size in bytes of the longest slice of a bucket: the first.
func (x *gpuExchange) longest(b plan.Bucket) int64 {
	_, hi := x.cfg.Layout.Slice(b.Elements, 0)
	return hi * int64(b.DType.Size())
}

// messageBytes is the size of one message: no larger than any bucket needs,
// equal on all processes.
func (x *gpuExchange) messageBytes() int64 {
	most := int64(256)
	for _, b := range x.cfg.Plan.Buckets {
		most = max(most, x.longest(b))
	}
	return (min(most, gpuChunkBytes) + 255) / 256 * 256
}

// lay prepares chunk c of bucket b.
func (x *gpuExchange) lay(b int, c int64) (out chunk, err error) {
	l, bucket := x.cfg.Layout, x.cfg.Plan.Buckets[b]
	step := x.messageBytes() / int64(bucket.DType.Size())
	part := func(buf cuda.Buffer, proc int) (cuda.Buffer, error) {
		lo, hi := l.Slice(bucket.Elements, proc)
		return buf.Slice(int(min(lo+c*step, hi)), int(min(lo+(c+1)*step, hi)))
	}
	mine, err := part(x.buckets[0][b], l.Proc)
	if err != nil {
		return out, err
	}
	var addends []cuda.Buffer
	at := (c & 1) * int64(l.World-l.Local(l.Proc)) * x.messageBytes()
	for p := range l.Procs {
		if p == l.Proc {
			for i := range l.Local(p) {
				own, err := part(x.buckets[i][b], p)
				if err != nil {
					return out, err
				}
				addends = append(addends, own)
			}
			continue
		}
		for range l.Local(p) {
			raw, err := x.scratch.Slice(int(at), int(at)+mine.Bytes())
			if err == nil {
				raw, err = raw.View(mine.DType())
			}
			if err != nil {
				return out, err
			}
			at += x.messageBytes()
			addends = append(addends, raw)
			out.recvs = add(out.recvs, p, raw)
		}
		for i := range x.buckets {
			theirs, err := part(x.buckets[i][b], p)
			if err != nil {
				return out, err
			}
			out.sends = add(out.sends, p, theirs)
			if i == 0 {
				out.results = add(out.results, p, mine)
				out.updates = add(out.updates, p, theirs)
			}
		}
	}
	if mine.Len() > 0 {
		out.fold, err = x.gpu.kernels.Fold(kernels.Fold{Addends: addends, Results: []cuda.Buffer{mine},
			Scale: kernelScale(bucket.DType, x.cfg.Average, l.World)})
		if err != nil {
			return out, err
		}
		x.own(freed(out.fold))
	}
	return out, nil
}

// add appends a message unless it is empty, on both sides alike.
func add(list []message, peer int, buf cuda.Buffer) []message {
	if buf.Len() == 0 {
		return list
	}
	return append(list, message{peer, buf})
}

func (x *gpuExchange) Name() string { return "fixed" }

func (x *gpuExchange) Transport() string { return "nccl" }

func (x *gpuExchange) Accumulator(t contract.DType) contract.DType { return t.Accumulator() }

func (x *gpuExchange) Reduce(b int) error {
	defer x.guard("NCCL exchange")()
	if err := x.catchUp(x.nccl.Wait); err != nil {
		return lostOnGPU("NCCL exchange", err)
	}
	if err := x.begin(b); err != nil {
		return err
	}
	if err := x.queue(b); err != nil {
		return err
	}
	return x.end(b)
}

func (x *gpuExchange) queue(b int) error {
	chunks := x.chunks[b]
	for k := range len(chunks) + 2 {
		var in, out *chunk
		if k < len(chunks) {
			in = &chunks[k]
		}
		if k >= 2 {
			out = &chunks[k-2]
			if err := x.comm.WaitEvent(x.folded[k&1]); err != nil {
				return err
			}
		}
		if err := x.move(in, out); err != nil {
			return lostOnGPU(fmt.Sprintf("NCCL exchange of bucket %d", b), err)
		}
		if in == nil {
			continue
		}
		err := errors.Join(x.arrived[k&1].Record(x.comm), x.folding.WaitEvent(x.arrived[k&1]))
		if err == nil && in.fold != nil {
			err = in.fold.Queue(x.folding)
		}
		if err := errors.Join(err, x.folded[k&1].Record(x.folding)); err != nil {
			return err
		}
	}
	return nil
}

// Repeat is for benchmarks; see Repeater.
func (x *gpuExchange) Repeat(n int) (float64, error) {
	s, err := x.repeat(n, x.queue, x.nccl.Wait)
	return s, lostOnGPU("NCCL exchange", err)
}

// move exchanges the addends of one chunk and the results of another, in one
// group. Between two processes messages match in order.
func (x *gpuExchange) move(in, out *chunk) error {
	var sends, recvs []message
	if in != nil {
		sends, recvs = append(sends, in.sends...), append(recvs, in.recvs...)
	}
	if out != nil {
		sends, recvs = append(sends, out.results...), append(recvs, out.updates...)
	}
	if len(sends)+len(recvs) == 0 {
		return nil
	}
	return x.nccl.Group(func() error {
		for _, m := range sends {
			if err := x.nccl.Send(m.buf, m.peer, x.comm); err != nil {
				return err
			}
		}
		for _, m := range recvs {
			if err := x.nccl.Recv(m.buf, m.peer, x.comm); err != nil {
				return err
			}
		}
		return nil
	})
}

func (x *gpuExchange) Wait() ([]float64, error) {
	s, err := x.finish(x.nccl.Wait)
	return s, lostOnGPU("NCCL exchange", err)
}

func (x *gpuExchange) Close() error { return closeNCCL(x.gpuMemory, x.nccl) }

func (x *gpuExchange) Abandon(cause error) { abandonNCCL(x.gpuMemory, x.nccl, cause) }
