package cuda_test

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// scaleArgs lays out probe_scale's parameters: the buffer, and a structure of factor, padding and count.
func scaleArgs(t *testing.T, b cuda.Buffer, by float32) *cuda.Args {
	t.Helper()
	a := cuda.NewArgs(8, 16)
	t.Cleanup(a.Free)
	must(t, a.Buffer(0, b))
	s := a.Bytes(1)
	binary.NativeEndian.PutUint32(s, math.Float32bits(by))
	binary.NativeEndian.PutUint64(s[8:], uint64(b.Len()))
	return a
}

func TestLaunch(t *testing.T) {
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	m := ok[*cuda.Module](t)(c.LoadPTX(probePTX))
	f := ok[*cuda.Function](t)(m.Function("probe_scale"))
	for _, shape := range [][3]int{{1, 1, 1}, {3, 32, 1000}, {7, 1024, 5000}} {
		n := shape[2]
		b := ok[cuda.Buffer](t)(c.Alloc(cuda.Float32, n))
		h := ok[*cuda.HostMem](t)(c.AllocHost(4 * n))
		for i := range n {
			binary.NativeEndian.PutUint32(h.Bytes()[4*i:], math.Float32bits(float32(i)))
		}
		must(t, s.CopyIn(b, h, 0))
		must(t, s.Launch(f, shape[0], shape[1], 0, scaleArgs(t, b, 3)))
		must(t, s.CopyOut(h, 0, b))
		drain(t, s)
		for i := range n {
			if got := math.Float32frombits(binary.NativeEndian.Uint32(h.Bytes()[4*i:])); got != float32(4*i) {
				t.Fatalf("%d blocks of %d: element %d is %v, want %d", shape[0], shape[1], i, got, 4*i)
			}
		}
		must(t, b.Free())
		must(t, h.Free())
	}
}

func TestLaunchMisuse(t *testing.T) {
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	m := ok[*cuda.Module](t)(c.LoadPTX(probePTX))
	f := ok[*cuda.Function](t)(m.Function("probe_count"))
	b := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint32, 1))
	args := cuda.NewArgs(8)
	must(t, args.Buffer(0, b))
	freed := cuda.NewArgs(8)
	freed.Free()
	for name, tt := range map[string]struct {
		err  error
		want error
	}{
		"no blocks":            {s.Launch(f, 0, 1, 0, args), cuda.ErrRange},
		"too many threads":     {s.Launch(f, 1, 1<<20, 0, args), cuda.ErrRange},
		"negative shared":      {s.Launch(f, 1, 1, -1, args), cuda.ErrRange},
		"no kernel":            {s.Launch(nil, 1, 1, 0, args), cuda.ErrNull},
		"arguments after free": {s.Launch(f, 1, 1, 0, freed), cuda.ErrFreed},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", name, tt.err, tt.want)
		}
	}
	if _, err := m.Function("no_such_kernel"); err == nil || !strings.Contains(err.Error(), "no_such_kernel") {
		t.Errorf("a kernel that is not there: %v, want its name", err)
	}
	if _, err := c.LoadPTX([]byte("this is no PTX")); err == nil || !strings.Contains(err.Error(), "Binary format") {
		t.Errorf("a module that is none: %v, want the driver's log", err)
	}
	const unfinished = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry probe_unfinished()\n{\n\tret;\n"
	if _, err := c.LoadPTX([]byte(unfinished)); err == nil || !strings.Contains(err.Error(), "ptxas") {
		t.Errorf("a module that does not compile: %v, want the compiler's log", err)
	}
	must(t, m.Close())
	if err := s.Launch(f, 1, 1, 0, args); !errors.Is(err, cuda.ErrFreed) {
		t.Errorf("a kernel of a closed module: %v", err)
	}
}

func TestLaunchAllocatesNothing(t *testing.T) {
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	f := ok[*cuda.Function](t)(ok[*cuda.Module](t)(c.LoadPTX(probePTX)).Function("probe_count"))
	e := ok[*cuda.Event](t)(c.NewEvent(false))
	args := cuda.NewArgs(8)
	b := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint32, 1))
	if n := testing.AllocsPerRun(100, func() {
		if args.Buffer(0, b) != nil || s.Launch(f, 1, 1, 0, args) != nil || e.Record(s) != nil {
			t.Error("launch failed")
		}
	}); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
	drain(t, s)
}

// A spinning kernel ends when any thread stores to the pinned word that it polls; until then waits end at their
// deadline, and with poll's error.
func TestSpinAndAbortWord(t *testing.T) {
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	f := ok[*cuda.Function](t)(ok[*cuda.Module](t)(c.LoadPTX(probePTX)).Function("probe_spin"))
	e := ok[*cuda.Event](t)(c.NewEvent(false))
	word := ok[*cuda.HostMem](t)(c.AllocHost(8))
	out := ok[*cuda.HostMem](t)(c.AllocHost(4))
	seen := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint32, 1))
	args := cuda.NewArgs(8, 8)
	args.Uint64(0, ok[uint64](t)(word.DevicePtr()))
	must(t, args.Buffer(1, seen))
	must(t, s.Launch(f, 1, 1, 0, args))
	must(t, e.Record(s))
	if err := cuda.Wait(e, time.Now().Add(20*time.Millisecond), nil); !errors.Is(err, cuda.ErrDeadline) {
		t.Errorf("waiting for a spinning kernel: %v, want %v", err, cuda.ErrDeadline)
	}
	stop := errors.New("stop")
	if err := cuda.Wait(e, time.Time{}, func() error { return stop }); err != stop {
		t.Errorf("waiting with a poll that fails: %v, want its error", err)
	}
	if done, err := s.Done(); done || err != nil {
		t.Errorf("the stream is done: %v, %v", done, err)
	}
	go atomic.StoreUint32(word.Word(0), 42)
	must(t, cuda.Wait(e, time.Now().Add(30*time.Second), nil))
	must(t, s.CopyOut(out, 0, seen))
	drain(t, s)
	if got := atomic.LoadUint32(out.Word(0)); got != 42 {
		t.Errorf("the kernel saw %d, want 42", got)
	}
}

func TestEvents(t *testing.T) {
	c := attach(t)
	one, two := ok[*cuda.Stream](t)(c.NewStream()), ok[*cuda.Stream](t)(c.NewStream())
	m := ok[*cuda.Module](t)(c.LoadPTX(probePTX))
	spin := ok[*cuda.Function](t)(m.Function("probe_spin"))
	start, end, plain := ok[*cuda.Event](t)(c.NewEvent(true)), ok[*cuda.Event](t)(c.NewEvent(true)), ok[*cuda.Event](t)(c.NewEvent(false))
	if done := ok[bool](t)(plain.Done()); !done {
		t.Error("an event that was never recorded is not done")
	}
	word := ok[*cuda.HostMem](t)(c.AllocHost(4))
	seen := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint32, 1))
	args := cuda.NewArgs(8, 8)
	args.Uint64(0, ok[uint64](t)(word.DevicePtr()))
	must(t, args.Buffer(1, seen))
	must(t, start.Record(one))
	must(t, one.Launch(spin, 1, 1, 0, args))
	must(t, plain.Record(one))
	must(t, two.WaitEvent(plain))
	must(t, end.Record(two))
	time.Sleep(5 * time.Millisecond)
	if done := ok[bool](t)(end.Done()); done {
		t.Error("the second stream did not wait for the first")
	}
	atomic.StoreUint32(word.Word(0), 1)
	must(t, cuda.Wait(end, time.Now().Add(30*time.Second), nil))
	if d := ok[time.Duration](t)(end.Since(start)); d <= 0 {
		t.Errorf("%v between an event and a later one", d)
	}
	if _, err := plain.Since(start); !errors.Is(err, cuda.ErrType) {
		t.Errorf("time of an event without timing: %v", err)
	}
	must(t, plain.Close())
	if err := plain.Record(one); !errors.Is(err, cuda.ErrFreed) {
		t.Errorf("record of a closed event: %v", err)
	}
}

func TestGraph(t *testing.T) {
	c := attach(t)
	s, side := ok[*cuda.Stream](t)(c.NewStream()), ok[*cuda.Stream](t)(c.NewStream())
	f := ok[*cuda.Function](t)(ok[*cuda.Module](t)(c.LoadPTX(probePTX)).Function("probe_count"))
	fork, join := ok[*cuda.Event](t)(c.NewEvent(false)), ok[*cuda.Event](t)(c.NewEvent(false))
	b := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint32, 1))
	h := ok[*cuda.HostMem](t)(c.AllocHost(4))
	args := cuda.NewArgs(8)
	must(t, args.Buffer(0, b))
	must(t, s.Fill(b, 0))
	drain(t, s)
	g, err := s.Capture(func() error {
		return errors.Join(s.Launch(f, 1, 1, 0, args), fork.Record(s), side.WaitEvent(fork),
			side.Launch(f, 1, 1, 0, args), join.Record(side), s.WaitEvent(join))
	})
	must(t, err)
	count := func() uint32 {
		must(t, s.CopyOut(h, 0, b))
		drain(t, s)
		return atomic.LoadUint32(h.Word(0))
	}
	if n := count(); n != 0 {
		t.Errorf("%d runs while capturing, want none", n)
	}
	for range 5 {
		must(t, s.LaunchGraph(g))
	}
	if n := count(); n != 10 {
		t.Errorf("%d runs after 5 launches of a graph of 2, want 10", n)
	}
	must(t, g.Close())
	if err := s.LaunchGraph(g); !errors.Is(err, cuda.ErrFreed) {
		t.Errorf("launch of a closed graph: %v", err)
	}
	stop := errors.New("stop")
	if _, err := s.Capture(func() error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a capture whose body fails: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Capture(func() error { panic("stop") })
	}()
	must(t, s.Launch(f, 1, 1, 0, args)) // the stream is no longer capturing
	if n := count(); n != 11 {
		t.Errorf("%d runs after a failed capture, want 11", n)
	}
}
