package kernels

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// A hostGroup is processes on the hosts' memory, each with a contiguous block of logical ranks.
type hostGroup struct {
	*hosts
	local []int // logical ranks of each process
	world int
	peers []peersArgs
	keep  int // what is allocated of the memory for good
}

func newHostGroup(t *testing.T, local ...int) *hostGroup {
	g := &hostGroup{local: local}
	for _, n := range local {
		g.world += n
	}
	g.hosts = newHosts(t, len(local), len(local)*SharedBytes(g.world)+16<<20)
	var shared []uint64
	for range local {
		at, _ := g.room(SharedBytes(g.world), 0) // zeros, of a new file
		shared = append(shared, at)
	}
	for p := range local {
		control, _ := g.alloc(8, 0)
		g.peers = append(g.peers, peersArgs{shared, control, p})
	}
	g.keep = g.used
	return g
}

// message is one all-reduce to be checked: what was given, and where results are.
type message struct {
	name    string
	addends []area
	firsts  []operand // of each process
	want    []byte
	d, a    int
}

// message makes the addends, the buffer of rank r lying skew(r) bytes off.
func (g *hostGroup) message(d, a, n int, seed uint64, skew func(r int) int) message {
	m := message{name: fmt.Sprintf("%v %v length %d ranks %v seed %d", gradients[d].t, averages[a], n, g.local, seed), d: d, a: a}
	var in [][]byte
	for r := range g.world {
		x := g.area(operand{t: gradients[d].t, n: n}, skew(r))
		in = append(in, addend(gradients[d].c, n, r, seed))
		copy(x.b, in[r])
		m.addends = append(m.addends, x)
	}
	for r, p := 0, 0; p < len(g.local); r, p = r+g.local[p], p+1 {
		m.firsts = append(m.firsts, m.addends[r].operand)
	}
	m.want = answer(gradients[d].c, averages[a], in)
	return m
}

func (m *message) ops() (ops []operand) {
	for _, x := range m.addends {
		ops = append(ops, x.operand)
	}
	return ops
}

// calls are what each process runs to reduce the message.
func (g *hostGroup) calls(m message, oneShot bool, blocks int) [][]call {
	g.t.Helper()
	scale := scaleOf(averages[m.a], gradients[m.d].c, g.world)
	calls := make([][]call, len(g.local))
	first := 0
	for p, n := range g.local {
		var err error
		if oneShot {
			calls[p], err = oneShotCalls(g.peers[p], m.ops()[first:first+n], m.firsts[p], scale, g.world, first, 1)
		} else {
			calls[p], err = twoShotCalls(g.peers[p], m.ops(), m.firsts, scale, Shape{blocks, 1})
		}
		if err != nil {
			g.t.Fatalf("%s: %v", m.name, err)
		}
		first += n
	}
	return calls
}

// check compares every process's result, and looks at what lies around the buffers.
func (g *hostGroup) check(m message) {
	g.t.Helper()
	first := 0
	for p, n := range g.local {
		if s := differ(gradients[m.d].c, m.addends[first].b, m.want); s != "" {
			g.t.Fatalf("%s, process %d: %s", m.name, p, s)
		}
		first += n
	}
	for r, x := range m.addends {
		if !guarded(x.all, len(x.b)) {
			g.t.Fatalf("%s: wrote around rank %d's buffer", m.name, r)
		}
	}
}

// reduce has all processes run the all-reduce and checks it. Where early is a word, the others begin only some time
// after process 0 has changed it.
func (g *hostGroup) reduce(m message, oneShot bool, blocks int, early *uint32) {
	g.t.Helper()
	calls := g.calls(m, oneShot, blocks)
	if early != nil {
		before := atomic.LoadUint32(early)
		g.start(0, calls[0])
		g.eventually(func() bool { return atomic.LoadUint32(early) != before })
		time.Sleep(5 * time.Millisecond)
	} else {
		g.start(0, calls[0])
	}
	for p := 1; p < len(calls); p++ {
		g.start(p, calls[p])
	}
	for p := range calls {
		g.finish(p, calls[p])
	}
	g.check(m)
}

func (h *hosts) eventually(done func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatal("waited 10 s in vain")
		}
	}
}

var worlds = [][]int{{1}, {3}, {1, 1}, {2, 1}, {1, 1, 1}, {1, 2, 4}, {2, 2, 2, 2}, {8, 8}, {1, 1, 1, 1, 1, 1, 1, 1},
	{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}

func TestPeersOnHost(t *testing.T) {
	for _, local := range worlds {
		t.Run(fmt.Sprint(local), func(t *testing.T) {
			g := newHostGroup(t, local...)
			seed := uint64(0)
			for d := range gradients {
				size := gradients[d].t.Size()
				for i, n := range lengths {
					skews := []func(int) int{
						func(int) int { return 0 },
						func(int) int { return i * size % 16 },
						func(r int) int { return (i + r) * size % 16 },
					}
					seed++
					skew := skews[seed%3]
					g.used = g.keep
					g.reduce(g.message(d, int(seed/3%3), n, seed, skew), true, 0, nil)
					g.reduce(g.message(d, int(seed/9%3), n, seed, skew), false, i%4+1, nil)
				}
			}
		})
	}
}

// Lengths, types, algorithms and grids change from call to call; epochs, slots and flags must not mind.
func TestManyCallsOnHost(t *testing.T) {
	calls := 10000
	if testing.Short() {
		calls = 500
	}
	g := newHostGroup(t, 1, 2)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < calls; {
		// A batch is queued on every process at once, so that one may run ahead of another.
		g.used = g.keep
		var batch []message
		queue := make([][]call, len(g.local))
		for range 25 {
			n, skew := rng.IntN(1<<rng.IntN(12)), rng.IntN(2)*8
			m := g.message(rng.IntN(len(gradients)), rng.IntN(3), n, uint64(i), func(int) int { return skew })
			for p, c := range g.calls(m, rng.IntN(3) > 0, rng.IntN(5)+1) {
				queue[p] = append(queue[p], c...)
			}
			batch = append(batch, m)
			i++
		}
		for p := range queue {
			queue[p] = append(queue[p], barrierCalls(g.peers[p])...)
		}
		g.run(queue...)
		for _, m := range batch {
			g.check(m)
		}
	}
}

// The largest one-shot message fills every slot and every block; epochs pass their largest value at
// the first call, when no slot was written yet.
func TestOneShotFullAndWrapsOnHost(t *testing.T) {
	g := newHostGroup(t, 1, 1)
	for _, p := range g.peers {
		for b := range uint64(maxBlocks) {
			*g.word(p.shared[p.self] + epochsAt + 4*b) = 0xffffffff
			*g.word(p.shared[p.self] + lineEpochsAt + 4*b) = 0xffffffff
			for q := range uint64(len(g.local)) {
				for phase := range uint64(phases) {
					*g.word(p.shared[p.self] + 4*((phase*maxBlocks+b)*MaxProcs+q)) = 0xffffffff
				}
			}
		}
	}
	for i, n := range []int{10, 1000, 10, OneShotBytes / 4, OneShotBytes / 4} {
		g.used = g.keep
		g.reduce(g.message(2, 0, n, uint64(i), func(int) int { return 0 }), true, 0, g.word(g.peers[0].shared[0]+lineEpochsAt))
		g.reduce(g.message(2, 0, 5000, uint64(i), func(int) int { return 4 }), false, 3, nil)
	}
}

// A block without a line takes no part, its epoch included: a grid that is larger than the message needs, on one process
// only, leaves both ready for a message that needs it.
func TestOneShotIdleBlocksOnHost(t *testing.T) {
	g := newHostGroup(t, 1, 1)
	for i := range 3 {
		g.used = g.keep
		m := g.message(2, 0, 100, uint64(i), func(int) int { return 0 })
		calls := g.calls(m, true, 0)
		calls[i%2][0].grid = 4 // of which one has work
		g.run(calls...)
		g.check(m)
		for p, peer := range g.peers {
			for b := range uint64(4) {
				want := uint32(i) // large messages
				if b == 0 {
					want = uint32(2*i + 1)
				}
				if got := *g.word(peer.shared[p] + lineEpochsAt + 4*b); got != want {
					t.Fatalf("process %d, block %d is at epoch %d, not %d", p, b, got, want)
				}
			}
		}
		g.reduce(g.message(2, 0, 4*blockLines*2, uint64(i), func(int) int { return 0 }), true, 0, nil)
	}
}

// A process that comes early reads nothing of one that has not filled its buffer yet, and one that has added its slice
// does not leave before the others have added theirs. The test plays process 1.
func TestTwoShotWaitsOnHost(t *testing.T) {
	g := newHostGroup(t, 1, 1)
	m := g.message(2, 0, 64, 0, func(int) int { return 0 }) // two slices of 32
	calls := g.calls(m, false, 1)
	late := append([]byte(nil), m.addends[1].b...)
	clear(m.addends[1].b)
	g.start(0, calls[0])
	time.Sleep(10 * time.Millisecond)
	copy(m.addends[1].b, late)
	flag := func(phase int) *uint32 {
		return g.word(g.peers[0].shared[0] + uint64(4*(phase*maxBlocks*MaxProcs+1)))
	}
	atomic.StoreUint32(flag(0), 1)
	const half = 32 * 4
	g.eventually(func() bool { return differ(gradients[2].c, m.addends[1].b[:half], m.want[:half]) == "" })
	time.Sleep(10 * time.Millisecond)
	copy(m.addends[0].b[half:], m.want[half:])
	copy(m.addends[1].b[half:], m.want[half:])
	if *g.word(g.peers[0].shared[0] + epochsAt) != 0 {
		t.Fatal("process 0 left before process 1 was done")
	}
	atomic.StoreUint32(flag(1), 1)
	g.finish(0, calls[0])
	g.check(m)
}

// A kernel whose peer never comes ends when it is told to, and says for whom it waited.
func TestAbortOnHost(t *testing.T) {
	g := newHostGroup(t, 1, 1)
	m := g.message(2, 0, 100, 1, func(int) int { return 0 })
	scale := Scale{Factor: 1}
	one, err1 := oneShotCalls(g.peers[0], m.ops()[:1], m.firsts[0], scale, 2, 0, 1)
	two, err2 := twoShotCalls(g.peers[0], m.ops(), m.firsts, scale, Shape{2, 1})
	if err := firstError(err1, err2); err != nil {
		t.Fatal(err)
	}
	abort, status := g.word(g.peers[0].control), g.word(g.peers[0].control+4)
	for _, c := range []struct {
		calls []call
		want  string
	}{
		{one, "logical rank 1 in a one-shot"},
		{two, "process 1 to begin a two-shot"},
		{barrierCalls(g.peers[0]), "process 1 at a barrier"},
	} {
		atomic.StoreUint32(abort, 0)
		atomic.StoreUint32(status, 0)
		timer := time.AfterFunc(20*time.Millisecond, func() { atomic.StoreUint32(abort, 1) })
		g.run(c.calls)
		if timer.Stop() {
			t.Errorf("%s ended by itself", c.calls[0].kernel)
		}
		if got := waited(atomic.LoadUint32(status)); got != c.want {
			t.Errorf("%s waited for %q, not %q", c.calls[0].kernel, got, c.want)
		}
	}
}
