package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/digest"
	"github.com/ddpstep/ddpstep/gradsync/values"
	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// These tests go through the driver: the double's, or with DDPSTEP_TEST_GPU=real a GPU's. One GPU is enough: the
// processes of a group are streams of one context here, each with memory of its own.

func TestMain(m *testing.M) {
	os.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32") // a GPU has 8 queues else, and streams of one queue wait for each other
	if l, err := gpudouble.Find(); err == nil && !l.Real && os.Getenv("DDPSTEP_DOUBLE_KERNELS") == "" {
		files, err := filepath.Glob("*.cu")
		if err == nil {
			var so string
			if so, err = gpudouble.Kernels(files...); err == nil {
				os.Setenv("DDPSTEP_DOUBLE_KERNELS", so)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// A device is a context with kernels and an arena of device memory, mirrored on the host.
type device struct {
	t      testing.TB
	real   bool
	ctx    *cuda.Context
	s      *cuda.Stream
	m      *Module
	arena  cuda.Buffer
	mirror *cuda.HostMem
	used   int
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get returns a function that fails the test when a call failed, and else returns the call's value.
func get[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func newDevice(t testing.TB, bytes int) *device {
	t.Helper()
	d := newBareDevice(t, bytes)
	d.mirror = get[*cuda.HostMem](t)(d.ctx.AllocHost(bytes))
	t.Cleanup(func() { must(t, d.mirror.Free()) })
	return d
}

// newBareDevice is a device whose arena has no mirror.
func newBareDevice(t testing.TB, bytes int) *device {
	t.Helper()
	l := gpudouble.Need(t)
	drv := get[*cuda.Driver](t)(cuda.Open(l.CUDA))
	must(t, drv.Init())
	ctx := get[*cuda.Context](t)(get[*cuda.Device](t)(drv.Device(0)).Attach())
	t.Cleanup(func() { must(t, ctx.Close()) })
	d := &device{t: t, real: l.Real, ctx: ctx, s: get[*cuda.Stream](t)(ctx.NewStream()), m: New(ctx, os.Getenv("DDPSTEP_TEST_KERNELS"))}
	d.arena = get[cuda.Buffer](t)(ctx.Alloc(cuda.Uint8, bytes))
	t.Cleanup(func() { must(t, firstError(d.m.Close(), d.arena.Free(), d.s.Close())) })
	return d
}

// take returns n elements of the arena, skew bytes above a multiple of 256, and their mirror.
func (d *device) take(t cuda.DType, n, skew int) (cuda.Buffer, []byte) {
	d.t.Helper()
	lo := (d.used+255)&^255 + skew
	d.used = lo + n*t.Size()
	b := get[cuda.Buffer](d.t)(d.arena.Slice(lo, d.used))
	b = get[cuda.Buffer](d.t)(b.View(t))
	if d.mirror == nil {
		return b, nil
	}
	return b, d.mirror.Bytes()[lo:d.used:d.used]
}

// upload and download move all that was taken; download waits for the stream.
func (d *device) upload() {
	d.t.Helper()
	if d.used > 0 {
		must(d.t, d.s.CopyIn(get[cuda.Buffer](d.t)(d.arena.Slice(0, d.used)), d.mirror, 0))
	}
}

func (d *device) download() {
	d.t.Helper()
	if d.used > 0 {
		must(d.t, d.s.CopyOut(d.mirror, 0, get[cuda.Buffer](d.t)(d.arena.Slice(0, d.used))))
	}
	d.drain(d.s)
}

func (d *device) drain(s *cuda.Stream) {
	d.t.Helper()
	must(d.t, cuda.WaitFor(s.Done, time.Now().Add(30*time.Second), nil))
}

// queue prepares, queues and frees.
func (d *device) queue(l *Launch, err error) {
	d.t.Helper()
	must(d.t, err)
	must(d.t, l.Queue(d.s))
	l.Free()
}

// sizes are the lengths to try: on a GPU also such as keep every thread busy for several rounds.
func (d *device) sizes() []int {
	if d.real {
		return append(lengths[:len(lengths):len(lengths)], 1<<20, 3<<20+5, 5<<20-3)
	}
	return lengths
}

func TestFoldOnDevice(t *testing.T) {
	d := newDevice(t, 256<<20)
	for g := range gradients {
		dt, c := gradients[g].t, gradients[g].c
		for i, n := range d.sizes() {
			for _, world := range []int{1, 2, 3, 4, 8, 16}[:6-n>>20] {
				a := averages[(i+world)%3]
				d.used = 0
				q := Fold{Scale: scaleOf(a, c, world)}
				var in [][]byte
				var mirror []byte
				for r := range world + 1 {
					skew := (i%3 + i%2*r) * dt.Size() % 16 // alike, or each another
					b, host := d.take(dt, n, skew)
					mirror = host
					if r == world {
						q.Results = []cuda.Buffer{b}
						break
					}
					copy(host, addend(c, n, r, uint64(i+world)))
					in = append(in, append(make([]byte, 0, len(host)+8), host...))
					q.Addends = append(q.Addends, b)
				}
				d.upload()
				d.queue(d.m.Fold(q))
				d.download()
				if s := differ(c, mirror, answer(c, a, in)); s != "" {
					t.Fatalf("%v %v world %d length %d: %s", dt, a, world, n, s)
				}
			}
		}
	}
}

func TestFillAndDigestOnDevice(t *testing.T) {
	d := newDevice(t, 64<<20)
	for g := range gradients {
		dt, c := gradients[g].t, gradients[g].c
		for i, n := range d.sizes() {
			set := values.Set((i + g) % len(values.Names()))
			key, index := values.KeyFor(4, i, i%5, "w"), indices[i%len(indices)]
			d.used = 0
			sums, lanes := d.take(cuda.Uint64, 2, 0)
			b, host := d.take(dt, n, i*dt.Size()%16)
			clear(lanes)
			d.upload()
			d.queue(d.m.Fill(b, index, valuesOf(set, key), Shape{}))
			d.queue(d.m.Digest(b, index, sums, Shape{}))
			d.download()
			want := make([]byte, len(host)+8)[:len(host)]
			values.Fill(want, c, set, key, int64(index))
			if s := differ(c, host, want); s != "" {
				t.Fatalf("%v %v length %d: %s", dt, set, n, s)
			}
			got := digest.Digest{A: binary.NativeEndian.Uint64(lanes), B: binary.NativeEndian.Uint64(lanes[8:])}
			if sum := digest.Of(c, index, want); got != sum {
				t.Fatalf("%v %v length %d: digest %v, not %v", dt, set, n, got, sum)
			}
		}
	}
}

// A deviceGroup is processes, each a stream of the device.
type deviceGroup struct {
	*device
	local   []int
	world   int
	groups  []*Group
	streams []*cuda.Stream
}

func newDeviceGroup(t testing.TB, local ...int) *deviceGroup {
	d := &deviceGroup{device: newDevice(t, 64<<20), local: local}
	for _, n := range local {
		d.world += n
	}
	var shared []cuda.Buffer
	for range local {
		b := get[cuda.Buffer](t)(AllocShared(d.s, d.world))
		t.Cleanup(func() { must(t, b.Free()) })
		shared = append(shared, b)
	}
	for p := range local {
		g := get[*Group](t)(NewGroup(d.ctx, d.world, p, shared))
		s := get[*cuda.Stream](t)(d.ctx.NewStream())
		t.Cleanup(func() { must(t, firstError(g.Close(), s.Close())) })
		d.groups, d.streams = append(d.groups, g), append(d.streams, s)
	}
	return d
}

func TestAllocSharedFreesWhatItCannotZero(t *testing.T) {
	d := newBareDevice(t, 1)
	s := get[*cuda.Stream](t)(d.ctx.NewStream())
	must(t, s.Close())
	before, _, err := d.ctx.MemoryInfo()
	must(t, err)
	if _, err := AllocShared(s, 16); err == nil {
		t.Fatal("zeroed on a closed stream")
	}
	if after, _, err := d.ctx.MemoryInfo(); after != before || err != nil {
		t.Errorf("%d bytes are lost (%v)", before-after, err)
	}
}

// reduction is one all-reduce on a deviceGroup: buffers of all logical ranks, launches of all processes.
type reduction struct {
	launches []*Launch
	hosts    [][]byte
	firsts   []int
	want     []byte
	name     string
}

func (d *deviceGroup) prepare(g int, a contract.Average, n int, seed uint64, oneShot bool, shape Shape) *reduction {
	dt, c := gradients[g].t, gradients[g].c
	r := &reduction{name: fmt.Sprintf("%v %v length %d ranks %v one-shot %v seed %d", dt, a, n, d.local, oneShot, seed)}
	var all, firsts []cuda.Buffer
	var in [][]byte
	d.used = 0
	for rank := range d.world {
		b, host := d.take(dt, n, int(seed)*dt.Size()%16)
		in = append(in, addend(c, n, rank, seed))
		copy(host, in[rank])
		all, r.hosts = append(all, b), append(r.hosts, host)
	}
	r.want = answer(c, a, in)
	for p, first := 0, 0; p < len(d.local); p, first = p+1, first+d.local[p] {
		r.firsts, firsts = append(r.firsts, first), append(firsts, all[first])
	}
	scale := scaleOf(a, c, d.world)
	for p, first := range r.firsts {
		var l *Launch
		var err error
		if oneShot {
			l, err = d.m.OneShot(d.groups[p], OneShot{Addends: all[first : first+d.local[p]], Result: all[first], Scale: scale, World: d.world, First: first})
		} else {
			l, err = d.m.TwoShot(d.groups[p], TwoShot{Addends: all, Results: firsts, Scale: scale, Shape: shape})
		}
		must(d.t, err)
		r.launches = append(r.launches, l)
	}
	return r
}

// run uploads the addends, has queue put the launches on the streams, and checks every process's result.
func (d *deviceGroup) run(r *reduction, queue func(p int) error) {
	d.t.Helper()
	d.upload()
	d.drain(d.s)
	for p := range d.local {
		must(d.t, queue(p))
	}
	for _, s := range d.streams {
		d.drain(s)
	}
	d.download()
	for p, first := range r.firsts {
		if string(r.hosts[first]) != string(r.want) {
			d.t.Fatalf("%s: process %d has another result", r.name, p)
		}
	}
}

func (d *deviceGroup) reduce(r *reduction) {
	d.t.Helper()
	d.run(r, func(p int) error { return r.launches[p].Queue(d.streams[p]) })
	for _, l := range r.launches {
		l.Free()
	}
}

func TestPeersOnDevice(t *testing.T) {
	for _, local := range [][]int{{1, 1}, {2, 1}, {1, 3, 4}, {8, 8}} {
		t.Run(fmt.Sprint(local), func(t *testing.T) {
			d := newDeviceGroup(t, local...)
			for g := range gradients {
				for i, n := range lengths {
					a := averages[(i+g)%3]
					d.reduce(d.prepare(g, a, n, uint64(i), true, Shape{}))
					d.reduce(d.prepare(g, a, n, uint64(i), false, Shape{i%4 + 1, 64}))
				}
			}
		})
	}
}

func TestManyCallsOnDevice(t *testing.T) {
	d := newDeviceGroup(t, 1, 1)
	calls := 300
	if d.real {
		calls = 10000
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range calls {
		g, n := rng.IntN(len(gradients)), rng.IntN(1<<rng.IntN(14))
		d.reduce(d.prepare(g, averages[i%3], n, uint64(i), rng.IntN(2) == 0, Shape{1 + rng.IntN(8), 32 << rng.IntN(5)}))
	}
}

// A captured graph counts on by itself: replays with new values, mixed with plain calls, give each time the new sum.
func TestGraphReplaysOnDevice(t *testing.T) {
	d := newDeviceGroup(t, 1, 2)
	for _, oneShot := range []bool{true, false} {
		shape := Shape{3, 64}
		captured := d.prepare(2, contract.Mean, 5000, 0, oneShot, shape)
		var graphs []*cuda.Graph
		for p, s := range d.streams {
			graphs = append(graphs, get[*cuda.Graph](t)(s.Capture(func() error { return captured.launches[p].Queue(s) })))
		}
		for i := range uint64(6) {
			r := d.prepare(2, contract.Mean, 5000, 16*i, oneShot, shape) // the same buffers
			d.run(r, func(p int) error { return d.streams[p].LaunchGraph(graphs[p]) })
			d.reduce(d.prepare(2, contract.Mean, 700, i, oneShot, shape))
			for _, l := range r.launches {
				l.Free()
			}
		}
		for p := range graphs {
			captured.launches[p].Free()
			must(t, graphs[p].Close())
		}
	}
}

// The other process never comes: the kernel ends when it is told to, and says for whom it waited.
func TestAbortOnDevice(t *testing.T) {
	d := newDeviceGroup(t, 1, 1)
	g := d.groups[0]
	x, _ := d.take(cuda.Float32, 1000, 0)
	y, _ := d.take(cuda.Float32, 1000, 0)
	one := get[*Launch](t)(d.m.OneShot(g, OneShot{Addends: []cuda.Buffer{x}, Result: x, Scale: Scale{Factor: 1}, World: 2}))
	defer one.Free()
	two := get[*Launch](t)(d.m.TwoShot(g, TwoShot{Addends: []cuda.Buffer{x, y}, Results: []cuda.Buffer{x, y}, Scale: Scale{Factor: 1}}))
	defer two.Free()
	must(t, one.Queue(d.streams[0]))
	time.Sleep(20 * time.Millisecond)
	if done, err := d.streams[0].Done(); done || err != nil {
		t.Fatalf("the kernel did not wait: %v", err)
	}
	g.Abort()
	d.drain(d.streams[0])
	if got := g.Waited(); got != "logical rank 1 in a one-shot" {
		t.Errorf("waited for %q", got)
	}
	must(t, two.Queue(d.streams[0])) // later kernels end as well
	d.drain(d.streams[0])
	if got := g.Waited(); got != "process 1 to begin a two-shot" {
		t.Errorf("waited for %q", got)
	}
}

func TestRequestsAreChecked(t *testing.T) {
	d := newDeviceGroup(t, 1, 1)
	x, _ := d.take(cuda.Float32, 8, 0)
	short, _ := d.take(cuda.Float32, 7, 0)
	half, _ := d.take(cuda.Float16, 8, 2)
	ints, _ := d.take(cuda.Int32, 8, 0)
	sums, _ := d.take(cuda.Uint64, 2, 0)
	odd := get[cuda.Buffer](t)(get[cuda.Buffer](t)(d.arena.Slice(2, 34)).View(cuda.Float32))
	big := get[cuda.Buffer](t)(get[cuda.Buffer](t)(d.arena.Slice(0, OneShotBytes+4)).View(cuda.Float32))
	of := func(b ...cuda.Buffer) []cuda.Buffer { return b }
	one := Scale{Factor: 1}
	group := d.groups[0]
	for _, tt := range []struct {
		name, want string
		prepare    func() (*Launch, error)
	}{
		{"no addend", "0 addends", func() (*Launch, error) { return d.m.Fold(Fold{Results: of(x), Scale: one}) }},
		{"65 addends", "65 addends", func() (*Launch, error) {
			return d.m.Fold(Fold{Addends: make65(x), Results: of(x), Scale: one})
		}},
		{"no result", "0 results", func() (*Launch, error) { return d.m.Fold(Fold{Addends: of(x), Scale: one}) }},
		{"length", "addend 1 is 7 of float32 where 8", func() (*Launch, error) {
			return d.m.Fold(Fold{Addends: of(x, short), Results: of(x), Scale: one})
		}},
		{"type", "result 0 is 8 of float16 where 8 of float32", func() (*Launch, error) {
			return d.m.Fold(Fold{Addends: of(x), Results: of(half), Scale: one})
		}},
		{"integers", "no sum of int32", func() (*Launch, error) {
			return d.m.Fold(Fold{Addends: of(ints), Results: of(ints), Scale: one})
		}},
		{"alignment", "not aligned to its float32", func() (*Launch, error) {
			return d.m.Fold(Fold{Addends: of(odd), Results: of(odd), Scale: one})
		}},
		{"scale", "scale 0", func() (*Launch, error) { return d.m.Fold(Fold{Addends: of(x), Results: of(x)}) }},
		{"null", "fold: buffer", func() (*Launch, error) { return d.m.Fold(Fold{Addends: of(cuda.Buffer{}), Scale: one}) }},
		{"world", "group made for 2", func() (*Launch, error) {
			return d.m.OneShot(group, OneShot{Addends: of(x), Result: x, Scale: one, World: 3})
		}},
		{"first", "2 as the first rank", func() (*Launch, error) {
			return d.m.OneShot(group, OneShot{Addends: of(x), Result: x, Scale: one, World: 2, First: 2})
		}},
		{"too long", "bytes in a one-shot", func() (*Launch, error) {
			return d.m.OneShot(group, OneShot{Addends: of(big), Result: big, Scale: one, World: 2})
		}},
		{"results", "1 results among 2 processes", func() (*Launch, error) {
			return d.m.TwoShot(group, TwoShot{Addends: of(x, x), Results: of(x), Scale: one})
		}},
		{"blocks", "257 blocks", func() (*Launch, error) {
			return d.m.TwoShot(group, TwoShot{Addends: of(x, x), Results: of(x, x), Scale: one, Shape: Shape{257, 32}})
		}},
		{"sums", "digest's sum 0 is 8 of float32", func() (*Launch, error) { return d.m.Digest(x, 0, x, Shape{}) }},
		{"set", "9 as the set", func() (*Launch, error) { return d.m.Fill(x, 0, Values{Set: 9}, Shape{}) }},
		{"fill integers", "no sum of uint64", func() (*Launch, error) { return d.m.Fill(sums, 0, Values{}, Shape{}) }},
	} {
		l, err := tt.prepare()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if l != nil {
			l.Free()
		}
	}
}

func make65(b cuda.Buffer) []cuda.Buffer {
	all := make([]cuda.Buffer, MaxWorld+1)
	for i := range all {
		all[i] = b
	}
	return all
}
