package gradsync

import (
	"errors"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/digest"
	"github.com/ddpstep/ddpstep/gradsync/values"
	"github.com/ddpstep/ddpstep/kernels"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// stageBytes is the pinned memory through which gradients go to the device and
// results come back, a chunk at a time.
const stageBytes = 16 << 20

// gpuMemory is the gradients of this process's logical ranks on its device,
// and the streams on which they come and are reduced: a bucket's reduction
// starts behind what was put into it, while the next bucket is being put.
type gpuMemory struct {
	cfg     Config
	gpu     *GPU
	at      []int64 // where each bucket starts in a rank's memory
	block   cuda.Buffer
	buckets [][]cuda.Buffer // by local logical rank, by bucket: typed views
	stage   *cuda.HostMem
	back    *cuda.HostMem
	staged  *cuda.Event // the copy out of stage is done
	compute *cuda.Stream
	comm    *cuda.Stream
	ready   []*cuda.Event // by bucket: its gradients are there
	begun   []*cuda.Event // its reduction
	done    []*cuda.Event
	pending []int       // buckets whose reduction was started
	waited  int         // how many of them are known to be done
	making  bool        // gradients of a step are under way
	first   *cuda.Event // the step's gradients begin
	last    *cuda.Event // and end
	ended   *cuda.Event // its last reduction, nil when nothing was reduced
	sums    cuda.Buffer
	graphs  map[int]*cuda.Graph // by repetitions
	closers []func() error
}

// newGPUMemory is collective: it fails on every process when it does on one.
func newGPUMemory(cfg Config, g *GPU) (*gpuMemory, error) {
	m := &gpuMemory{cfg: cfg, gpu: g}
	if err := Agree(cfg.World, refusedByGPU(m.allocate())); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *gpuMemory) allocate() (err error) {
	defer m.guard("allocating memory on the GPU")()
	cfg, g := m.cfg, m.gpu
	at, size := offsets(cfg.Plan)
	m.at = at
	local := cfg.Layout.Local(cfg.Layout.Proc)
	if m.block, err = g.ctx.Alloc(cuda.Uint8, int(size)*local); err != nil {
		return err
	}
	m.own(m.block.Free)
	for i := range local {
		views, err := bucketViews(cfg, m.block, at, int64(i)*size)
		if err != nil {
			return err
		}
		m.buckets = append(m.buckets, views)
	}
	for _, mem := range []**cuda.HostMem{&m.stage, &m.back} {
		if *mem, err = g.ctx.AllocHost(stageBytes); err != nil {
			return err
		}
		m.own((*mem).Free)
	}
	for _, s := range []**cuda.Stream{&m.compute, &m.comm} {
		if *s, err = g.ctx.NewStream(); err != nil {
			return err
		}
		m.own((*s).Close)
	}
	if m.staged, err = m.event(false); err != nil {
		return err
	}
	if m.first, err = m.event(true); err != nil {
		return err
	}
	if m.last, err = m.event(true); err != nil {
		return err
	}
	if m.sums, err = g.ctx.Alloc(cuda.Uint64, 2*len(cfg.Plan.Params)); err != nil {
		return err
	}
	m.own(m.sums.Free)
	for range cfg.Plan.Buckets {
		for _, list := range []*[]*cuda.Event{&m.ready, &m.begun, &m.done} {
			e, err := m.event(list != &m.ready)
			if err != nil {
				return err
			}
			*list = append(*list, e)
		}
	}
	return nil
}

// bucketViews cuts one logical rank's memory, which starts at byte first of
// block, into typed buckets.
func bucketViews(cfg Config, block cuda.Buffer, at []int64, first int64) ([]cuda.Buffer, error) {
	var views []cuda.Buffer
	for b, bucket := range cfg.Plan.Buckets {
		lo := int(first + at[b])
		part, err := block.Slice(lo, lo+int(bucket.Bytes()))
		if err != nil {
			return nil, err
		}
		if part, err = part.View(deviceType(bucket.DType)); err != nil {
			return nil, err
		}
		views = append(views, part)
	}
	return views, nil
}

// own remembers what Close frees, last first.
func (m *gpuMemory) own(f func() error) { m.closers = append(m.closers, f) }

func (m *gpuMemory) event(timing bool) (*cuda.Event, error) {
	e, err := m.gpu.ctx.NewEvent(timing)
	if err == nil {
		m.own(e.Close)
	}
	return e, err
}

func (m *gpuMemory) Device() string { return "gpu" }

// guard watches calls of the libraries, which may block whatever they promise:
// a launch behind a kernel that never ends does when the queue is full. Waits
// have deadlines of their own, and what ends them when they pass takes a while.
func (m *gpuMemory) guard(op string) (done func()) {
	if m.cfg.Deadline <= 0 || m.cfg.Stuck == nil {
		return func() {}
	}
	t := time.AfterFunc(m.cfg.Deadline+abortWait+time.Second, func() { m.cfg.Stuck(op) })
	return func() { t.Stop() }
}

// abortWait is how long aborted kernels and communicators may take to end.
const abortWait = 2 * time.Second

// deadline is when a wait that starts now gives up.
func (m *gpuMemory) deadline() time.Time {
	if m.cfg.Deadline <= 0 {
		return time.Time{}
	}
	return time.Now().Add(m.cfg.Deadline)
}

// startClock is called before a step's gradients are queued, for the clock.
func (m *gpuMemory) startClock() error {
	if m.making {
		return nil
	}
	m.making = true
	return m.first.Record(m.compute)
}

// StepTimes tells how long gradients took on the device, and the reduction
// after the last of them.
func (m *gpuMemory) StepTimes() (compute, exposed float64, err error) {
	if m.ended == nil {
		return 0, 0, nil
	}
	c, errC := m.last.Since(m.first)
	e, errE := m.ended.Since(m.last)
	return c.Seconds(), max(e.Seconds(), 0), errors.Join(errC, errE)
}

func (m *gpuMemory) Put(local, bucket int, fill func(dst []byte, first int64) error) error {
	if err := m.startClock(); err != nil {
		return err
	}
	size := m.cfg.Plan.Buckets[bucket].DType.Size()
	buf := m.buckets[local][bucket]
	chunk := stageBytes / size
	for lo := 0; lo < buf.Len(); lo += chunk {
		hi := min(lo+chunk, buf.Len())
		if err := cuda.Wait(m.staged, m.deadline(), nil); err != nil { // the chunk before has left
			return lostOnGPU("copy to the GPU", err)
		}
		if err := fill(m.stage.Bytes()[:(hi-lo)*size], int64(lo)); err != nil {
			return err
		}
		if err := m.send(buf, lo, hi); err != nil {
			return err
		}
	}
	return nil
}

// send copies what is staged to the elements [lo, hi) of a buffer.
func (m *gpuMemory) send(buf cuda.Buffer, lo, hi int) error {
	defer m.guard("copy to the GPU")()
	part, err := buf.Slice(lo, hi)
	if err != nil {
		return err
	}
	return errors.Join(m.compute.CopyIn(part, m.stage, 0), m.staged.Record(m.compute))
}

// Generate fills a bucket on the device, with the bits that Put of the same
// source would have copied there.
func (m *gpuMemory) Generate(local, bucket int, g *Generated, step, rank int) error {
	defer m.guard("making values on the GPU")()
	if err := m.startClock(); err != nil {
		return err
	}
	b := m.cfg.Plan.Buckets[bucket]
	for _, s := range m.cfg.Plan.Spans(b, 0, b.Elements) {
		part, err := m.buckets[local][bucket].Slice(int(s.Offset), int(s.Offset+s.Elements))
		if err != nil {
			return err
		}
		k := values.KeyFor(g.Seed, step, rank, g.Params[s.Param].Name)
		l, err := m.gpu.kernels.Fill(part, 0, kernels.Values{Param: k.Param, Pair: k.Pair, Rank: k.Rank, Odd: k.Odd, First: k.First, Set: uint32(g.Set)}, kernels.Shape{})
		if err != nil {
			return err
		}
		err = l.Queue(m.compute)
		l.Free()
		if err != nil {
			return err
		}
	}
	return nil
}

// begin puts the reduction of a bucket behind its gradients, end after it.
func (m *gpuMemory) begin(bucket int) error {
	return errors.Join(m.ready[bucket].Record(m.compute), m.last.Record(m.compute), m.comm.WaitEvent(m.ready[bucket]), m.begun[bucket].Record(m.comm))
}

func (m *gpuMemory) end(bucket int) error {
	m.pending = append(m.pending, bucket)
	return m.done[bucket].Record(m.comm)
}

// catchUp waits with wait for the reductions that are done already, which takes
// no time, so that a communicator no longer counts them against its deadline:
// making all gradients of a step may take longer than that.
func (m *gpuMemory) catchUp(wait func(*cuda.Event) error) error {
	for ; m.waited < len(m.pending); m.waited++ {
		e := m.done[m.pending[m.waited]]
		if done, err := e.Done(); !done || err != nil {
			return err
		}
		if err := wait(e); err != nil {
			return err
		}
	}
	return nil
}

// finish waits with wait for every reduction, each with the whole deadline, and
// returns the times.
func (m *gpuMemory) finish(wait func(*cuda.Event) error) ([]float64, error) {
	seconds := make([]float64, len(m.cfg.Plan.Buckets))
	for ; m.waited < len(m.pending); m.waited++ {
		if err := wait(m.done[m.pending[m.waited]]); err != nil {
			return nil, err
		}
	}
	for _, b := range m.pending {
		d, err := m.done[b].Since(m.begun[b])
		if err != nil {
			return nil, err
		}
		seconds[b] = d.Seconds()
	}
	if n := len(m.pending); n > 0 {
		m.ended = m.done[m.pending[n-1]]
	}
	m.making = false
	m.pending, m.waited = m.pending[:0], 0
	return seconds, nil
}

// repeat queues n reductions of every bucket with queue between two events, as a
// graph that is kept for the next call, and waits with wait.
func (m *gpuMemory) repeat(n int, queue func(int) error, wait func(*cuda.Event) error) (float64, error) {
	defer m.guard("repeating a reduction on the GPU")()
	if m.graphs[n] == nil {
		g, err := m.comm.Capture(func() error {
			for range n {
				for b := range m.cfg.Plan.Buckets {
					if err := queue(b); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		m.own(g.Close)
		if m.graphs == nil {
			m.graphs = map[int]*cuda.Graph{}
		}
		m.graphs[n] = g
	}
	begun, done := m.begun[0], m.done[0]
	if err := errors.Join(begun.Record(m.comm), m.comm.LaunchGraph(m.graphs[n]), done.Record(m.comm)); err != nil {
		return 0, err
	}
	if err := wait(done); err != nil {
		return 0, err
	}
	d, err := done.Since(begun)
	return d.Seconds() / float64(n), err
}

func (m *gpuMemory) Get(bucket int, lo, hi int64) ([]byte, error) {
	part, err := m.buckets[0][bucket].Slice(int(lo), int(hi))
	if err != nil {
		return nil, err
	}
	if part.Bytes() == 0 {
		return nil, nil
	}
	defer m.guard("copy from the GPU")()
	if err := errors.Join(m.comm.CopyOut(m.back, 0, part), m.staged.Record(m.comm)); err != nil {
		return nil, err
	}
	if err := cuda.Wait(m.staged, m.deadline(), nil); err != nil {
		return nil, lostOnGPU("copy from the GPU", err)
	}
	return m.back.Bytes()[:part.Bytes()], nil
}

// Digests returns the digest of every parameter's result, made on the device.
func (m *gpuMemory) Digests() ([]digest.Digest, error) {
	defer m.guard("digest on the GPU")()
	if err := m.comm.Fill(m.sums, 0); err != nil {
		return nil, err
	}
	for b, bucket := range m.cfg.Plan.Buckets {
		for _, s := range m.cfg.Plan.Spans(bucket, 0, bucket.Elements) {
			part, err := m.buckets[0][b].Slice(int(s.Offset), int(s.Offset+s.Elements))
			if err != nil {
				return nil, err
			}
			lanes, err := m.sums.Slice(2*s.Param, 2*s.Param+2)
			if err != nil {
				return nil, err
			}
			l, err := m.gpu.kernels.Digest(part, 0, lanes, kernels.Shape{})
			if err != nil {
				return nil, err
			}
			err = l.Queue(m.comm)
			l.Free()
			if err != nil {
				return nil, err
			}
		}
	}
	out := make([]digest.Digest, len(m.cfg.Plan.Params))
	per := stageBytes / 16
	for lo := 0; lo < len(out); lo += per {
		hi := min(lo+per, len(out))
		part, err := m.sums.Slice(2*lo, 2*hi)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(m.comm.CopyOut(m.back, 0, part), m.staged.Record(m.comm)); err != nil {
			return nil, err
		}
		if err := cuda.Wait(m.staged, m.deadline(), nil); err != nil {
			return nil, lostOnGPU("digest on the GPU", err)
		}
		for i := lo; i < hi; i++ {
			out[i] = digest.FromBytes(m.back.Bytes()[16*(i-lo):])
		}
	}
	return out, nil
}

// Close frees everything, last first.
func (m *gpuMemory) Close() error { return m.closeTo(0) }

// closeTo frees all but the first n things owned.
func (m *gpuMemory) closeTo(n int) error {
	defer m.guard("freeing memory on the GPU")()
	var errs []error
	for i := len(m.closers) - 1; i >= n; i-- {
		errs = append(errs, m.closers[i]())
		m.closers = m.closers[:i]
	}
	return errors.Join(errs...)
}
