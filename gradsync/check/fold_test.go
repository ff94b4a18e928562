package check

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

var averages = []contract.Average{contract.Mean, contract.Pre, contract.None}

func words(t contract.DType, n int) []byte {
	mem := make([]uint64, n*t.Size()/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), n*t.Size())
}

// The rounding written here agrees with the contract's at every pattern, and
// beside and on every midpoint of the 16-bit dtypes.
func TestNearestIsNarrow(t *testing.T) {
	for _, d := range contract.DTypes {
		see := func(v float64) {
			t.Helper()
			for _, v := range []float64{v, -v} {
				if got, want := nearest(d, v), d.Narrow(v); got != want {
					t.Fatalf("%v: nearest(%x) is %#x, the contract says %#x", d, v, got, want)
				}
			}
		}
		for _, v := range []float64{0, math.Inf(1), math.NaN(), math.MaxFloat64, math.SmallestNonzeroFloat64, 1, math.Pi, 65519.99, 65520} {
			see(v)
		}
		if d.Size() > 2 {
			continue
		}
		infinity := d.Narrow(math.Inf(1))
		for bits := uint64(0); bits < infinity; bits++ {
			a, b := value(d, bits), value(d, bits+1)
			if a != d.Widen(bits) {
				t.Fatalf("%v: %#x is %v here and %v in the contract", d, bits, a, d.Widen(bits))
			}
			see(a)
			if !math.IsInf(b, 0) {
				mid := (a + b) / 2
				see(math.Nextafter(mid, a))
				see(mid)
				see(math.Nextafter(mid, b))
			}
		}
		for bits := range uint64(1 << 16) {
			if a, b := value(d, bits), d.Widen(bits); math.Float64bits(a) != math.Float64bits(b) && (a == a || b == b) {
				t.Fatalf("%v: %#x is %v here and %v in the contract", d, bits, a, b)
			}
		}
	}
}

// kinds of addends; each shows another part of the arithmetic.
var kinds = []struct {
	name string
	bits func(rng *rand.Rand, t contract.DType) uint64
}{
	{"any bits", func(rng *rand.Rand, t contract.DType) uint64 { return rng.Uint64() & mask(t) }},
	{"normal", func(rng *rand.Rand, t contract.DType) uint64 { return t.Narrow(rng.NormFloat64()) }},
	{"wide", func(rng *rand.Rand, t contract.DType) uint64 {
		return t.Narrow(rng.NormFloat64() * math.Ldexp(1, rng.IntN(20)-10))
	}},
	{"subnormal", func(rng *rand.Rand, t contract.DType) uint64 {
		return rng.Uint64()&(1<<t.MantissaBits()-1) | rng.Uint64()&sign(t)
	}},
	{"smallest normal", func(rng *rand.Rand, t contract.DType) uint64 {
		return t.Narrow(math.Ldexp(1+3*rng.Float64(), t.MinExp()-1)) | rng.Uint64()&sign(t)
	}},
	{"zero", func(rng *rand.Rand, t contract.DType) uint64 { return rng.Uint64() & sign(t) }},
	{"largest", func(rng *rand.Rand, t contract.DType) uint64 {
		return t.Narrow(math.Inf(1)) - 1 - rng.Uint64N(3) | rng.Uint64()&sign(t)
	}},
	{"large", func(rng *rand.Rand, t contract.DType) uint64 {
		return t.Narrow(math.Ldexp(1+rng.Float64(), t.MaxExp()-3)) | rng.Uint64()&sign(t)
	}},
	{"cancelling", func(rng *rand.Rand, t contract.DType) uint64 {
		return t.Narrow(1024+float64(rng.IntN(3))) | rng.Uint64()&sign(t)
	}},
	{"half a unit", func(rng *rand.Rand, t contract.DType) uint64 { // the chain loses what the reference keeps
		if rng.IntN(8) == 0 {
			return t.Narrow(1)
		}
		return t.Narrow(math.Ldexp(1, -t.Accumulator().MantissaBits()-1)) - 1
	}},
	{"infinite", func(rng *rand.Rand, t contract.DType) uint64 {
		return []uint64{t.Narrow(math.Inf(1)), t.Narrow(math.Inf(-1)), t.Narrow(1), t.Narrow(2)}[rng.IntN(4)]
	}},
	{"largest and infinite", func(rng *rand.Rand, t contract.DType) uint64 {
		return t.Narrow(math.Inf(1)) - rng.Uint64N(3) | rng.Uint64()&sign(t)
	}},
	{"NaN", func(rng *rand.Rand, t contract.DType) uint64 {
		return []uint64{t.NaN(), t.NaN() | sign(t) | 3, t.Narrow(math.Inf(1)) | 1, t.Narrow(2), t.Narrow(1), t.Narrow(0)}[rng.IntN(6)]
	}},
}

func sign(t contract.DType) uint64 { return 1 << (8*t.Size() - 1) }
func mask(t contract.DType) uint64 { return sign(t)<<1 - 1 }

func draw(rng *rand.Rand, t contract.DType, world, n int, bits func(*rand.Rand, contract.DType) uint64) [][]byte {
	addends := make([][]byte, world)
	for r := range addends {
		addends[r] = words(t, n)
		for i := range n {
			t.PutBits(addends[r], i, bits(rng, t))
		}
	}
	return addends
}

// each calls f for every dtype, average, kind and some worlds, with random
// addends and the contract's answer.
func each(t *testing.T, worlds []int, n int, f func(t *testing.T, rng *rand.Rand, d contract.DType, a contract.Average, addends [][]byte, answer []byte)) {
	for _, d := range contract.DTypes {
		for _, a := range averages {
			t.Run(fmt.Sprintf("%v/%v", d, a), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(d), uint64(a)))
				for _, kind := range kinds {
					for _, world := range worlds {
						addends := draw(rng, d, world, n, kind.bits)
						answer := words(d, n)
						contract.NewFolder(d, a, world).Fold([][]byte{answer}, addends)
						f(t, rng, d, a, addends, answer)
						if t.Failed() {
							t.Fatalf("with %d addends that are %s", world, kind.name)
						}
					}
				}
			})
		}
	}
}

func TestTheContractPasses(t *testing.T) {
	each(t, []int{1, 2, 3, 4, 7, 16, 64}, 200, func(t *testing.T, _ *rand.Rand, d contract.DType, a contract.Average, addends [][]byte, answer []byte) {
		r := New(d, a, len(addends), d.Accumulator()).Check(answer, addends, 10)
		if r.Differ != 0 {
			t.Errorf("%d elements differ, first %+v", r.Differ, *r.FirstDiffer)
		}
		if r.Beyond != 0 {
			t.Errorf("%d elements beyond the bound, first %+v", r.Beyond, *r.FirstBeyond)
		}
		if r.Elements != 200 {
			t.Errorf("%d elements", r.Elements)
		}
	})
}

// Any order of the same additions is within the bound: the others than the
// contract's are what libraries do.
func TestAnyOrderIsWithinTheBound(t *testing.T) {
	differ := int64(0)
	each(t, []int{2, 3, 5, 16, 64}, 150, func(t *testing.T, rng *rand.Rand, d contract.DType, a contract.Average, addends [][]byte, _ []byte) {
		for name, order := range map[string]func([][]byte) [][]byte{
			"reversed": func(g [][]byte) [][]byte { slices.Reverse(g); return g },
			"rotated":  func(g [][]byte) [][]byte { return append(g[1:], g[0]) },
			"shuffled": func(g [][]byte) [][]byte {
				rng.Shuffle(len(g), func(i, j int) { g[i], g[j] = g[j], g[i] })
				return g
			},
		} {
			got := words(d, 150)
			contract.NewFolder(d, a, len(addends)).Fold([][]byte{got}, order(slices.Clone(addends)))
			r := New(d, a, len(addends), d.Accumulator()).Check(got, addends, 0)
			differ += r.Differ
			if r.Beyond != 0 {
				t.Errorf("%s: %d elements beyond the bound, first %+v", name, r.Beyond, *r.FirstBeyond)
			}
		}
		for _, accum := range []contract.DType{d.Accumulator(), d} {
			got := tree(d, a, accum, addends)
			if r := New(d, a, len(addends), accum).Check(got, addends, 0); r.Beyond != 0 {
				t.Errorf("tree of %v: %d elements beyond the bound, first %+v", accum, r.Beyond, *r.FirstBeyond)
			}
		}
	})
	if differ == 0 {
		t.Error("no order gave other bits: the data cannot show what this test is about")
	}
}

// tree sums in halves, rounding to accum after each addition as libraries do.
func tree(d contract.DType, a contract.Average, accum contract.DType, addends [][]byte) []byte {
	world := len(addends)
	round := func(v float64) float64 { return accum.Widen(accum.Narrow(v)) } // two numbers of accum
	var sum func(i, lo, hi int) float64
	sum = func(i, lo, hi int) float64 {
		if hi-lo == 1 {
			v := d.Widen(d.Bits(addends[lo], i))
			if a == contract.Pre {
				v = d.Widen(d.Narrow(v * contract.PreScale(d, world)))
			}
			return v
		}
		m := (lo + hi) / 2
		return round(sum(i, lo, m) + sum(i, m, hi))
	}
	got := words(d, len(addends[0])/d.Size())
	for i := range len(got) / d.Size() {
		v := sum(i, 0, world)
		if a == contract.Mean {
			m := d.Accumulator()
			v = m.Widen(m.Narrow(v * contract.MeanScale(d, world)))
		}
		d.PutBits(got, i, d.Narrow(v))
	}
	return got
}
