package gradsync

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/kernels"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// peers is the fixed order among the GPUs of one host: every process maps the
// gradients of all others, and kernels read and write them over NVLink. It is
// the same algorithm as shared, in one shot or two.
type peers struct {
	*gpuMemory
	group    *kernels.Group
	launches []queued     // by bucket
	copies   *cuda.Stream // for copying peers' gradients in
	scratch  cuda.Buffer
	exported int // how many closers free what peers may have mapped
}

// queued is a prepared reduction: one kernel, or a pipeline of them.
type queued interface {
	Queue(*cuda.Stream) error
}

// peerHandles is what processes tell each other: the allocations that hold
// their gradients and the kernels' flags.
type peerHandles struct {
	Gradients, Flags cuda.IPCHandle
	Bytes            int
	Err              string
}

// newPeers maps the peers' memory, collectively. When a process cannot take
// part, every process gets the same noSharedMemory.
func newPeers(cfg Config, g *GPU, algorithm string) (*peers, error) {
	if len(cfg.World.LocalRanks()) < cfg.Layout.Procs {
		return nil, noSharedMemory("the ranks are on several hosts")
	}
	if cfg.Layout.World > kernels.MaxWorld || cfg.Layout.Procs > kernels.MaxProcs {
		return nil, noSharedMemory(fmt.Sprintf("the kernels take %d logical ranks on %d processes", kernels.MaxWorld, kernels.MaxProcs))
	}
	m, err := newGPUMemory(cfg, g)
	if err != nil {
		return nil, err
	}
	p := &peers{gpuMemory: m, exported: len(m.closers)}
	blocks, flags, err := p.mapPeers()
	if err == nil {
		err = Agree(cfg.World, refusedByGPU(p.prepare(blocks, flags, algorithm)))
	}
	var none noSharedMemory
	switch {
	case errors.As(err, &none): // on every process
		if e := p.Close(); e != nil {
			return nil, e
		}
		return nil, err
	case err != nil:
		Leave(p, err)
		return nil, err
	}
	return p, nil
}

// mapPeers exchanges handles and returns every process's gradients and flags.
func (p *peers) mapPeers() (blocks, flags []cuda.Buffer, err error) {
	l, ctx := p.cfg.Layout, p.gpu.ctx
	me := peerHandles{Bytes: p.block.Bytes()}
	defer p.guard("mapping the peers' memory")()
	own, err := kernels.AllocShared(p.comm, l.World)
	if err == nil {
		p.own(own.Free)
		p.exported = len(p.closers)
		if l.Procs > 1 {
			if me.Gradients, err = p.block.IPC(); err == nil {
				me.Flags, err = own.IPC()
			}
		}
	}
	if err != nil {
		me.Err = err.Error()
	}
	all, err := p.tell(me)
	if err != nil {
		return nil, nil, err
	}
	me.Err = ""
	for q, h := range all {
		if q == l.Proc {
			blocks, flags = append(blocks, p.block), append(flags, own)
			continue
		}
		block, err := ctx.OpenIPC(h.Gradients, cuda.Uint8, h.Bytes)
		if err == nil {
			p.own(block.Free)
			var flag cuda.Buffer
			if flag, err = ctx.OpenIPC(h.Flags, cuda.Uint8, kernels.SharedBytes(l.World)); err == nil {
				p.own(flag.Free)
				blocks, flags = append(blocks, block), append(flags, flag)
				continue
			}
		}
		me.Err = fmt.Sprintf("mapping the memory of rank %d: %v", q, err)
		break
	}
	_, err = p.tell(me)
	return blocks, flags, err
}

// tell exchanges handles; an error of any process is everyone's.
func (p *peers) tell(me peerHandles) ([]peerHandles, error) {
	raw, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	texts, err := p.cfg.World.AllgatherBytes(raw)
	if err != nil {
		return nil, err
	}
	all := make([]peerHandles, len(texts))
	for q, t := range texts {
		if err := json.Unmarshal(t, &all[q]); err != nil {
			return nil, fmt.Errorf("rank %d sent handles %q: %w", q, t, err)
		}
	}
	for q, h := range all {
		if h.Err != "" {
			return nil, noSharedMemory(fmt.Sprintf("rank %d: %s", q, h.Err))
		}
	}
	return all, nil
}

// prepare lays out one launch for each bucket.
func (p *peers) prepare(blocks, flags []cuda.Buffer, algorithm string) (err error) {
	defer p.guard("loading kernels")()
	l := p.cfg.Layout
	if p.group, err = kernels.NewGroup(p.gpu.ctx, l.World, l.Proc, flags); err != nil {
		return err
	}
	p.own(p.group.Close)
	_, size := offsets(p.cfg.Plan)
	// Views of every logical rank's buckets, ascending, and of each process's
	// first, where results go.
	var addends, results [][]cuda.Buffer
	for q, block := range blocks {
		for i := range l.Local(q) {
			views, err := bucketViews(p.cfg, block, p.at, int64(i)*size)
			if err != nil {
				return err
			}
			addends = append(addends, views)
			if i == 0 {
				results = append(results, views)
			}
		}
	}
	for b, bucket := range p.cfg.Plan.Buckets {
		column := func(views [][]cuda.Buffer) (c []cuda.Buffer) {
			for _, v := range views {
				c = append(c, v[b])
			}
			return c
		}
		scale := kernelScale(bucket.DType, p.cfg.Average, l.World)
		launch, err := p.launch(p.choose(bucket.Bytes(), algorithm), column(addends), column(results), scale)
		if err != nil {
			return fmt.Errorf("bucket %d: %w", b, err)
		}
		p.launches = append(p.launches, launch)
	}
	return nil
}

// launch prepares one bucket's reduction.
func (p *peers) launch(a kernels.Algorithm, addends, results []cuda.Buffer, scale kernels.Scale) (queued, error) {
	k, l := p.gpu.kernels, p.cfg.Layout
	first, last := l.Ranks(l.Proc)
	if a == kernels.AlgorithmCopyIn {
		return p.copyIn(addends, results, scale)
	}
	var one *kernels.Launch
	var err error
	switch a {
	case kernels.AlgorithmFold:
		one, err = k.Fold(kernels.Fold{Addends: addends, Results: results, Scale: scale})
	case kernels.AlgorithmOneShot:
		one, err = k.OneShot(p.group, kernels.OneShot{Addends: addends[first:last], Result: addends[first], Scale: scale, World: l.World, First: first})
	default:
		one, err = k.TwoShot(p.group, kernels.TwoShot{Addends: addends, Results: results, Scale: scale})
	}
	if err != nil {
		return nil, err
	}
	p.own(freed(one))
	return one, nil
}

func (p *peers) copyIn(addends, results []cuda.Buffer, scale kernels.Scale) (queued, error) {
	l := p.cfg.Layout
	if p.copies == nil { // the first bucket of this kind brings what all of them use
		var err error
		if p.copies, err = p.gpu.ctx.NewStream(); err != nil {
			return nil, err
		}
		p.own(p.copies.Close)
		if p.scratch, err = p.gpu.ctx.Alloc(cuda.Uint8, kernels.CopyInScratch(l.World-l.Local(l.Proc), kernels.CopyInChunk)); err != nil {
			return nil, err
		}
		p.own(p.scratch.Free)
	}
	first, _ := l.Ranks(l.Proc)
	pipe, err := p.gpu.kernels.CopyIn(p.group, kernels.CopyIn{Addends: addends, Results: results, First: first, Own: l.Local(l.Proc), Scale: scale,
		Scratch: p.scratch, Copies: p.copies})
	if err != nil {
		return nil, err
	}
	p.own(pipe.Free)
	return pipe, nil
}

// Algorithms names what can be forced on the peer transport.
var Algorithms = []kernels.Algorithm{kernels.AlgorithmOneShot, kernels.AlgorithmTwoShot, kernels.AlgorithmCopyIn}

// choose is kernels.Choose, unless an algorithm is forced that can take the message.
func (p *peers) choose(bytes int64, algorithm string) kernels.Algorithm {
	a := kernels.Choose(int(bytes), p.cfg.Layout.World, p.cfg.Layout.Procs)
	if a == kernels.AlgorithmFold {
		return a
	}
	for _, forced := range Algorithms {
		if forced.String() != algorithm {
			continue
		}
		if forced == kernels.AlgorithmOneShot && bytes > kernels.OneShotBytes {
			return kernels.AlgorithmTwoShot
		}
		return forced
	}
	return a
}

func (p *peers) Name() string { return "fixed" }

func (p *peers) Transport() string {
	if p.cfg.Layout.Procs == 1 {
		return "none"
	}
	return "peer"
}

func (p *peers) Accumulator(t contract.DType) contract.DType { return t.Accumulator() }

func (p *peers) Reduce(b int) error {
	defer p.guard("all-reduce on the GPU")()
	return errors.Join(p.begin(b), p.queue(b), p.end(b))
}

func (p *peers) queue(b int) error { return p.launches[b].Queue(p.comm) }

// Repeat is for benchmarks; see Repeater.
func (p *peers) Repeat(n int) (float64, error) { return p.repeat(n, p.queue, p.wait) }

// Wait polls; a deadline ends the spinning kernels, so that the device is free.
func (p *peers) Wait() ([]float64, error) { return p.finish(p.wait) }

func (p *peers) wait(e *cuda.Event) error {
	err := cuda.Wait(e, p.deadline(), nil)
	if !errors.Is(err, cuda.ErrDeadline) {
		return err
	}
	p.group.Abort()
	lost := &LostError{Op: "all-reduce on the GPU", Cause: fmt.Sprintf("not there after %v", p.cfg.Deadline)}
	if cuda.Wait(e, time.Now().Add(abortWait), nil) != nil {
		return lost
	}
	if what := p.group.Waited(); what != "" {
		lost.Ranks = []int{p.lacking()}
		lost.Cause += ": a kernel waited for " + what
	}
	return lost
}

// lacking is the process for which an aborted kernel waited.
func (p *peers) lacking() int {
	peer, logical := p.group.WaitedFor()
	if !logical {
		return peer
	}
	for q := range p.cfg.Layout.Procs {
		if lo, hi := p.cfg.Layout.Ranks(q); lo <= peer && peer < hi {
			return q
		}
	}
	return peer
}

// Close lets the peers' memory go before its owners free it. It is collective.
func (p *peers) Close() error {
	if err := p.cfg.World.Barrier(); err != nil { // no kernel of anybody's touches it any more
		return err
	}
	err := p.closeTo(p.exported)
	if e := p.cfg.World.Barrier(); e != nil { // nobody has it mapped any more
		return errors.Join(err, e)
	}
	return errors.Join(err, p.gpuMemory.Close())
}

// Abandon ends kernels that wait for peers. The driver frees everything when
// the process ends.
func (p *peers) Abandon(error) {
	if p.group != nil {
		p.group.Abort()
	}
}
