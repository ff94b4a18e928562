package kernels

import (
	"fmt"
	"testing"
)

// area is a guarded buffer of the hosts' memory.
type area struct {
	operand
	b, all []byte
}

func (h *hosts) area(like operand, skew int) area {
	at, all := h.alloc(like.bytes()+2*guardBytes, skew)
	return area{operand{at + guardBytes, like.t, like.n}, guard(all, like.bytes()), all}
}

func TestFoldOnHost(t *testing.T) {
	h := newHosts(t, 1, 8<<20)
	seed := uint64(0)
	// Buffer i lies skew(i) bytes off: addends from 0 on, results after them.
	check := func(t *testing.T, g int, a int, world, n, results int, skew func(i int) int) {
		t.Helper()
		h.reset()
		d, avg := gradients[g], averages[a]
		like := operand{t: d.t, n: n}
		var ops, to []operand
		var in [][]byte
		var areas []area
		seed++
		for r := range world {
			x := h.area(like, skew(r))
			in = append(in, addend(d.c, n, r, seed))
			copy(x.b, in[r])
			ops, areas = append(ops, x.operand), append(areas, x)
		}
		to = append(to, ops[0]) // in place
		out := areas[:1:1]
		for i := 1; i < results; i++ {
			x := h.area(like, skew(world+i))
			to, out = append(to, x.operand), append(out, x)
		}
		shape := Shape{int(seed%5) + 1, 1}
		calls, err := foldCalls(ops, to, scaleOf(avg, d.c, world), results-1, shape)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			h.run(calls)
		}
		name := fmt.Sprintf("%v %v world %d length %d results %d", d.t, avg, world, n, results)
		want := answer(d.c, avg, in)
		for i, x := range out {
			if s := differ(d.c, x.b, want); s != "" {
				t.Fatalf("%s, result %d: %s", name, i, s)
			}
		}
		for i, x := range areas {
			if i > 0 && differ(d.c, x.b, in[i]) != "" {
				t.Fatalf("%s: addend %d changed", name, i)
			}
		}
		for i, x := range append(areas, out[1:]...) {
			if !guarded(x.all, like.bytes()) {
				t.Fatalf("%s: wrote around buffer %d", name, i)
			}
		}
	}
	same := func(bytes int) func(int) int { return func(int) int { return bytes } }
	for g := range gradients {
		size := gradients[g].t.Size()
		t.Run(gradients[g].t.String(), func(t *testing.T) {
			for a := range averages {
				for _, n := range lengths {
					for _, w := range []int{1, 2, 3, 8} {
						check(t, g, a, w, n, 1, same(0))
					}
				}
				for w := 1; w <= MaxWorld; w += 1 + w/17*8 {
					check(t, g, a, w, 333, w%3+1, same(w*size%16))
				}
				for skew := 0; skew < 16; skew += size {
					for _, n := range []int{1, 7, 8, 33, 100} {
						check(t, g, a, 3, n, 2, same(skew))
						check(t, g, a, 4, n, 1, func(i int) int { return (skew + i*size) % 16 })
						check(t, g, a, 2, n, 2, func(i int) int { return (skew + i/3*size) % 16 }) // only a result
					}
				}
			}
		})
	}
}

// Every float16 and bfloat16 goes through widening and rounding alone, and pairs of them through every kind of rounding.
func TestFoldRoundsAllPatternsOnHost(t *testing.T) {
	h := newHosts(t, 1, 8<<20)
	const n = 1 << 16
	for g, d := range gradients[:2] {
		for step := range 8 {
			h.reset()
			like := operand{t: gradients[g].t, n: n}
			x, y := h.area(like, 0), h.area(like, 0)
			for i := range n {
				d.c.PutBits(x.b, i, uint64(i))
				d.c.PutBits(y.b, i, uint64(i*(2*step+1)*40503+step*7919)&0xffff)
			}
			in := [][]byte{append([]byte(nil), x.b...), append([]byte(nil), y.b...)}
			for _, a := range averages {
				copy(x.b, in[0])
				calls, err := foldCalls([]operand{x.operand, y.operand}, []operand{x.operand}, scaleOf(a, d.c, 2), 0, Shape{1, 1})
				if err != nil {
					t.Fatal(err)
				}
				h.run(calls)
				if s := differ(d.c, x.b, answer(d.c, a, in)); s != "" {
					t.Fatalf("%v %v step %d: %s", d.t, a, step, s)
				}
			}
		}
	}
}
