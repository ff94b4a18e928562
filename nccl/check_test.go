package nccl_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

func TestMisuse(t *testing.T) {
	r := alone(t)
	alloc := func(t_ cuda.DType, n int) cuda.Buffer {
		b, err := r.ctx.Alloc(t_, n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	f32, i32, short := alloc(cuda.Float32, 8), alloc(cuda.Int32, 8), alloc(cuda.Float32, 7)
	freed := alloc(cuda.Float32, 8)
	if err := freed.Free(); err != nil {
		t.Fatal(err)
	}
	part := func(b cuda.Buffer, lo, hi int) cuda.Buffer {
		s, err := b.Slice(lo, hi)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	closed, err := r.ctx.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	c, s := r.comm, r.stream
	for _, tt := range []struct {
		name string
		err  error
		want error
		says string
	}{
		{"types differ", c.AllReduce(f32, i32, nccl.Sum, s), nccl.ErrArgument, "sends float32 and receives int32"},
		{"lengths differ", c.AllReduce(f32, short, nccl.Sum, s), nccl.ErrArgument, "sends 8 and receives 7 elements"},
		{"broadcast lengths differ", c.Broadcast(f32, short, 0, s), nccl.ErrArgument, "sends 8 and receives 7"},
		{"gather too short", c.AllGather(f32, short, s), nccl.ErrArgument, "world of 1"},
		{"scatter too short", c.ReduceScatter(f32, short, nccl.Sum, s), nccl.ErrArgument, "world of 1"},
		{"overlap", c.AllReduce(part(f32, 0, 5), part(f32, 2, 7), nccl.Sum, s), nccl.ErrArgument, "overlap"},
		{"overlap the other way", c.AllReduce(part(f32, 2, 7), part(f32, 0, 5), nccl.Sum, s), nccl.ErrArgument, "overlap"},
		{"no such operation", c.AllReduce(f32, f32, 5, s), nccl.ErrArgument, "Op(5)"},
		{"root too large", c.Broadcast(f32, f32, 1, s), nccl.ErrArgument, "root 1 in a world of 1"},
		{"root negative", c.Broadcast(f32, f32, -1, s), nccl.ErrArgument, "root -1"},
		{"peer too large", c.Send(f32, 3, s), nccl.ErrArgument, "peer 3 in a world of 1"},
		{"peer negative", c.Recv(f32, -1, s), nccl.ErrArgument, "peer -1"},
		{"zero buffer", c.AllReduce(cuda.Buffer{}, f32, nccl.Sum, s), cuda.ErrNull, "never allocated"},
		{"freed buffer", c.AllReduce(f32, freed, nccl.Sum, s), cuda.ErrFreed, "after it was freed"},
		{"nil stream", c.AllReduce(f32, f32, nccl.Sum, nil), cuda.ErrNull, "stream"},
		{"closed stream", c.AllReduce(f32, f32, nccl.Sum, closed), cuda.ErrFreed, "stream"},
		{"nil communicator", (*nccl.Comm)(nil).AllReduce(f32, f32, nccl.Sum, s), cuda.ErrNull, "communicator"},
	} {
		if !errors.Is(tt.err, tt.want) || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%s: %v, want %v and %q", tt.name, tt.err, tt.want, tt.says)
		}
	}
	errs := make(chan error)
	go func() { errs <- c.AllReduce(f32, f32, nccl.Sum, s) }()
	if err := <-errs; !errors.Is(err, cuda.ErrThread) {
		t.Errorf("on another thread: %v, want %v", err, cuda.ErrThread)
	}
	for _, bad := range []struct {
		rank, world int
		timeout     time.Duration
	}{{0, 0, 1}, {1, 1, 1}, {-1, 2, 1}, {0, 1, 0}, {0, 1, -1}} {
		if _, err := r.lib.Init(r.ctx, nccl.ID{}, bad.rank, bad.world, nccl.Config{Timeout: bad.timeout}); !errors.Is(err, nccl.ErrArgument) {
			t.Errorf("init %+v: %v", bad, err)
		}
	}
	// None of it reached NCCL: the communicator still works.
	if err := c.AllReduce(f32, f32, nccl.Sum, s); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"close": c.Close(), "all-reduce": c.AllReduce(f32, f32, nccl.Sum, s)} {
		if !errors.Is(err, nccl.ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
}

func TestMixedDevices(t *testing.T) {
	r := alone(t)
	d, err := cuda.Open(mustFind(t).CUDA)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Count(); err != nil || n < 2 {
		t.Skipf("needs 2 GPUs, there are %d (%v)", n, err)
	}
	dev, err := d.Device(1)
	if err != nil {
		t.Fatal(err)
	}
	type theirs struct {
		b   cuda.Buffer
		s   *cuda.Stream
		err error
	}
	made, end := make(chan theirs), make(chan bool)
	go func() {
		ctx, err := dev.Attach()
		if err != nil {
			made <- theirs{err: err}
			return
		}
		defer ctx.Close()
		b, err1 := ctx.Alloc(cuda.Float32, 4)
		s, err2 := ctx.NewStream()
		made <- theirs{b, s, errors.Join(err1, err2)}
		<-end
	}()
	other := <-made
	defer close(end)
	if other.err != nil {
		t.Fatal(other.err)
	}
	mine, err := r.ctx.Alloc(cuda.Float32, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.comm.AllReduce(mine, other.b, nccl.Sum, r.stream); !errors.Is(err, cuda.ErrContext) {
		t.Errorf("a buffer of another device: %v", err)
	}
	if err := r.comm.AllReduce(mine, mine, nccl.Sum, other.s); !errors.Is(err, cuda.ErrThread) && !errors.Is(err, cuda.ErrContext) {
		t.Errorf("a stream of another device: %v", err)
	}
	if err := r.comm.Close(); err != nil {
		t.Error(err)
	}
}

func TestGroupIsClosed(t *testing.T) {
	r := alone(t)
	c, s := r.comm, r.stream
	b, err := r.ctx.Alloc(cuda.Float32, 8)
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if err := c.Group(func() error { return stop }); err != stop {
		t.Errorf("a body that fails: %v", err)
	}
	if err := c.Group(func() error { return errors.Join(c.AllReduce(b, b, nccl.Sum, s), stop) }); !errors.Is(err, stop) {
		t.Errorf("a body that fails after an operation: %v", err)
	}
	func() {
		defer func() {
			if recover() != "stop" {
				t.Error("the panic was lost")
			}
		}()
		_ = c.Group(func() error { panic("stop") })
	}()
	if err := c.Group(func() error { return c.Group(func() error { return nil }) }); !errors.Is(err, nccl.ErrArgument) {
		t.Errorf("a group inside a group: %v", err)
	}
	if err := c.Group(func() error { return c.Close() }); !errors.Is(err, nccl.ErrArgument) {
		t.Errorf("close inside a group: %v", err)
	}
	// If a group were still open, this would never reach the stream.
	if err := c.AllReduce(b, b, nccl.Sum, s); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// What a call costs the garbage collector, once a stream is warm.
func TestAllReduceAllocatesNothing(t *testing.T) {
	r := alone(t)
	b, err := r.ctx.Alloc(cuda.Float32, 8)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(50, func() {
		if err := r.comm.AllReduce(b, b, nccl.Sum, r.stream); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a call", n)
	}
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if err := r.comm.Close(); err != nil {
		t.Fatal(err)
	}
}
