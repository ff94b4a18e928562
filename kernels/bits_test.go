package kernels

import (
	"encoding/binary"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/digest"
	"github.com/ddpstep/ddpstep/gradsync/values"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// indices are where a parameter's run of elements begins: around 2^32 too, where launches are split.
var indices = []uint64{0, 1, 12345, 1<<32 - 1000, 1<<32 + 3, 7<<32 - 17}

func TestFillOnHost(t *testing.T) {
	h := newHosts(t, 1, 8<<20)
	for _, d := range gradients {
		for i, n := range lengths {
			for s := range values.Names() {
				set, key := values.Set(s), values.KeyFor(9, i, (i+s)%5, "layer.weight")
				index := indices[(i+s)%len(indices)]
				h.reset()
				x := h.area(operand{t: d.t, n: n}, (i+s)*d.t.Size()%16)
				calls, err := fillCalls(x.operand, index, valuesOf(set, key), Shape{i%4 + 1, 1})
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range calls {
					h.run([]call{c})
				}
				want := make([]byte, n*d.t.Size()+8)[:n*d.t.Size()]
				values.Fill(want, d.c, set, key, int64(index))
				if s := differ(d.c, x.b, want); s != "" || !guarded(x.all, len(x.b)) {
					t.Fatalf("%v %v length %d from %d: %s (guards %v)", d.t, set, n, index, s, guarded(x.all, len(x.b)))
				}
			}
		}
	}
}

func TestDigestOnHost(t *testing.T) {
	h := newHosts(t, 1, 8<<20)
	for g, d := range gradients {
		for i, n := range lengths {
			for skew := 0; skew < 16; skew += d.t.Size() {
				h.reset()
				index := indices[(i+skew)%len(indices)]
				x := h.area(operand{t: d.t, n: n}, skew)
				copy(x.b, addend(d.c, n, i, uint64(8+9*g)))
				at, sums := h.alloc(16, 0)
				calls, err := digestCalls(x.operand, index, operand{at, cuda.Uint64, 2}, Shape{i%4 + 1, 1})
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range append(calls, calls...) { // twice: what stands in sums counts
					h.run([]call{c})
				}
				want := digest.Of(d.c, index, x.b)
				want = want.Add(want)
				got := digest.Digest{A: binary.NativeEndian.Uint64(sums), B: binary.NativeEndian.Uint64(sums[8:])}
				if got != want {
					t.Fatalf("%v length %d skew %d from %d: %v, not %v", d.t, n, skew, index, got, want)
				}
			}
		}
	}
}
