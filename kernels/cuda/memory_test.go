package cuda_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

func TestDevice(t *testing.T) {
	d := open(t)
	n := ok[int](t)(d.Count())
	if n < 1 {
		t.Fatalf("%d devices", n)
	}
	dev := ok[*cuda.Device](t)(d.Device(0))
	if len(dev.UUID) != 40 || !strings.HasPrefix(dev.UUID, "GPU-") || !strings.Contains(dev.Bus, ":") || dev.Name == "" {
		t.Errorf("device 0 is %+v", dev)
	}
	if dev.SMs < 1 || dev.Capability[0] < 7 || dev.MaxThreads < 512 || dev.Memory < 1<<20 {
		t.Errorf("device 0 is %+v", dev)
	}
	_, err := d.Device(n)
	var e *cuda.Error
	if !errors.As(err, &e) || e.Call != "cuDeviceGet" || e.Name != "CUDA_ERROR_INVALID_DEVICE" || e.Text == "" {
		t.Errorf("device %d of %d: %v, want the driver's own words", n, n, err)
	}
	if v := ok[int](t)(d.Version()); v < 12000 {
		t.Errorf("driver version %d", v)
	}
}

func TestDTypes(t *testing.T) {
	for d := cuda.Int8; d.Valid(); d++ {
		got, err := cuda.ParseDType(d.String())
		if err != nil || got != d || d.Size() == 0 {
			t.Errorf("%v (%d bytes) parses as %v, %v", d, d.Size(), got, err)
		}
	}
	if _, err := cuda.ParseDType("float17"); err == nil || cuda.DType(0).Valid() {
		t.Error("an unknown name or the zero type passed")
	}
}

func TestBufferMisuse(t *testing.T) {
	d := open(t)
	c := attachTo(t, d, 0)
	s := ok[*cuda.Stream](t)(c.NewStream())
	host := ok[*cuda.HostMem](t)(c.AllocHost(64))
	alloc := func() cuda.Buffer { return ok[cuda.Buffer](t)(c.Alloc(cuda.Float32, 8)) }
	live := alloc()
	tests := []struct {
		name string
		call func() error
		want error
	}{
		{"zero buffer", func() error { _, err := cuda.Buffer{}.Ptr(); return err }, cuda.ErrNull},
		{"zero buffer copied in", func() error { return s.CopyIn(cuda.Buffer{}, host, 0) }, cuda.ErrNull},
		{"zero buffer as an argument", func() error { return cuda.NewArgs(8).Buffer(0, cuda.Buffer{}) }, cuda.ErrNull},
		{"nil stream", func() error { return (*cuda.Stream)(nil).Fill(live, 0) }, cuda.ErrNull},
		{"nil pinned memory", func() error { return s.CopyOut(nil, 0, live) }, cuda.ErrNull},
		{"freed twice", func() error { b := alloc(); must(t, b.Free()); return b.Free() }, cuda.ErrFreed},
		{"used after free", func() error { b := alloc(); must(t, b.Free()); return s.Fill(b, 0) }, cuda.ErrFreed},
		{"slice used after its parent's free", func() error {
			b := alloc()
			part := ok[cuda.Buffer](t)(b.Slice(2, 4))
			must(t, b.Free())
			return s.Fill(part, 0)
		}, cuda.ErrFreed},
		{"slice of a freed buffer", func() error { b := alloc(); must(t, b.Free()); _, err := b.Slice(0, 1); return err }, cuda.ErrFreed},
		{"part freed", func() error { return ok[cuda.Buffer](t)(live.Slice(1, 8)).Free() }, cuda.ErrRange},
		{"part shared", func() error { _, err := ok[cuda.Buffer](t)(live.Slice(1, 8)).IPC(); return err }, cuda.ErrRange},
		{"slice beyond the end", func() error { _, err := live.Slice(0, 9); return err }, cuda.ErrRange},
		{"slice of negative length", func() error { _, err := live.Slice(5, 4); return err }, cuda.ErrRange},
		{"slice before the start", func() error { _, err := live.Slice(-1, 4); return err }, cuda.ErrRange},
		{"negative length", func() error { _, err := c.Alloc(cuda.Float32, -1); return err }, cuda.ErrRange},
		{"unknown type", func() error { _, err := c.Alloc(0, 1); return err }, cuda.ErrRange},
		{"view of a wrong size", func() error {
			part := ok[cuda.Buffer](t)(live.Slice(0, 3))
			_, err := part.View(cuda.Float64)
			return err
		}, cuda.ErrType},
		{"copy between types", func() error {
			to := ok[cuda.Buffer](t)(c.Alloc(cuda.Int32, 8))
			return s.Copy(to, live)
		}, cuda.ErrType},
		{"copy between lengths", func() error { return s.Copy(ok[cuda.Buffer](t)(live.Slice(0, 4)), live) }, cuda.ErrRange},
		{"pinned memory too short", func() error { return s.CopyIn(live, host, 40) }, cuda.ErrRange},
		{"pinned memory before its start", func() error { return s.CopyOut(host, -4, live) }, cuda.ErrRange},
		{"pinned memory freed", func() error {
			h := ok[*cuda.HostMem](t)(c.AllocHost(64))
			must(t, h.Free())
			return s.CopyIn(live, h, 0)
		}, cuda.ErrFreed},
		{"closed stream", func() error {
			s := ok[*cuda.Stream](t)(c.NewStream())
			must(t, s.Close())
			return s.Fill(live, 0)
		}, cuda.ErrFreed},
		{"other thread", func() error {
			errs := make(chan error)
			go func() { _, err := c.Alloc(cuda.Int8, 1); errs <- err }()
			return <-errs
		}, cuda.ErrThread},
		{"other thread's stream", func() error {
			errs := make(chan error)
			go func() { errs <- s.Fill(live, 0) }()
			return <-errs
		}, cuda.ErrThread},
	}
	for _, tt := range tests {
		// Not as a subtest, whose goroutine has another thread than the context.
		if err := tt.call(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	must(t, c.Close())
	if err := live.Free(); !errors.Is(err, cuda.ErrFreed) {
		t.Errorf("free after the context's end: %v", err)
	}
}

func TestOtherContext(t *testing.T) {
	d := open(t)
	if ok[int](t)(d.Count()) < 2 {
		t.Skip("needs 2 GPUs")
	}
	c := attachTo(t, d, 0)
	mine := ok[cuda.Buffer](t)(c.Alloc(cuda.Float32, 4))
	type theirs struct {
		ctx *cuda.Context
		b   cuda.Buffer
	}
	made, end := make(chan theirs), make(chan bool)
	go func() { // the other device's context lives on a thread of its own
		defer close(made)
		dev, err := d.Device(1)
		if err != nil {
			t.Error(err)
			return
		}
		c, err := dev.Attach()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		b, err := c.Alloc(cuda.Float32, 4)
		if err != nil {
			t.Error(err)
			return
		}
		made <- theirs{c, b}
		<-end
	}()
	other, alive := <-made
	if !alive {
		t.FailNow()
	}
	defer close(end)
	s := ok[*cuda.Stream](t)(c.NewStream())
	if err := s.Copy(mine, other.b); !errors.Is(err, cuda.ErrContext) {
		t.Errorf("copy from another device: %v, want %v", err, cuda.ErrContext)
	}
	one, two := ok[*cuda.Device](t)(d.Device(0)), ok[*cuda.Device](t)(d.Device(1))
	if !ok[bool](t)(one.CanAccessPeer(two)) {
		return
	}
	must(t, c.EnablePeer(other.ctx))
	must(t, c.EnablePeer(other.ctx)) // twice is as good as once
	must(t, s.Copy(mine, other.b))
	drain(t, s)
}

func TestCopies(t *testing.T) {
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	const n = 1000
	in := ok[*cuda.HostMem](t)(c.AllocHost(n + 8))
	out := ok[*cuda.HostMem](t)(c.AllocHost(n + 8))
	for i := range in.Bytes() {
		in.Bytes()[i] = byte(i * 7)
	}
	a := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint8, n))
	b := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint8, n))
	must(t, s.Fill(b, 0xee))
	must(t, s.CopyIn(a, in, 8))
	must(t, s.Copy(ok[cuda.Buffer](t)(b.Slice(1, 500)), ok[cuda.Buffer](t)(a.Slice(1, 500))))
	must(t, s.CopyOut(out, 0, b))
	drain(t, s)
	want := bytes.Repeat([]byte{0xee}, n)
	copy(want[1:500], in.Bytes()[9:508])
	if !bytes.Equal(out.Bytes()[:n], want) || !bytes.Equal(out.Bytes()[n:], make([]byte, 8)) {
		t.Error("the bytes that came back are not those that went in")
	}
	empty := ok[cuda.Buffer](t)(c.Alloc(cuda.Float64, 0))
	must(t, s.CopyIn(empty, in, 0))
	must(t, empty.Free())
	free, total, err := c.MemoryInfo()
	must(t, err)
	if free <= 0 || free > total {
		t.Errorf("%d of %d bytes free", free, total)
	}
}

func TestOutOfMemory(t *testing.T) {
	c := attach(t)
	_, err := c.Alloc(cuda.Float64, 1<<45)
	var e *cuda.Error
	if !errors.As(err, &e) || e.Code != cuda.CodeOutOfMemory || !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("%v, want out of memory", err)
	}
}

// The double finds a write past a buffer's end, as compute-sanitizer does on a GPU.
func TestDoubleFindsOverrun(t *testing.T) {
	if gpudouble.Need(t).Real {
		t.Skip("needs the double")
	}
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	f := ok[*cuda.Function](t)(ok[*cuda.Module](t)(c.LoadPTX(probePTX)).Function("probe_scale"))
	b := ok[cuda.Buffer](t)(c.Alloc(cuda.Float32, 10))
	args := scaleArgs(t, b, 2)
	args.Bytes(1)[8]++ // one element too many
	must(t, s.Launch(f, 1, 32, 0, args))
	drain(t, s)
	if err := b.Free(); err == nil || !strings.Contains(err.Error(), "ILLEGAL_ADDRESS") {
		t.Errorf("%v, want the overrun found", err)
	}
}
