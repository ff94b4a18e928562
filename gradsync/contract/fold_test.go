package contract

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// words is zeroed memory for n elements of dtype t, aligned.
func words(t DType, n int) []byte {
	mem := make([]uint64, n*t.Size()/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), n*t.Size())
}

// chain is the contract, one element at a time, on numbers and not on blocks:
// the operations of the promise in Go's own arithmetic.
func chain(t DType, a Average, world int, bits []uint64) uint64 {
	if t == Float64 {
		term := func(r int) float64 {
			v := math.Float64frombits(bits[r])
			if a == Pre {
				v = float64(v * (1 / float64(world)))
			}
			return v
		}
		s := term(0)
		for r := 1; r < len(bits); r++ {
			s = float64(s + term(r))
		}
		if a == Mean {
			s = float64(s * (1 / float64(world)))
		}
		if s != s {
			return 0x7ff8000000000000
		}
		return math.Float64bits(s)
	}
	term := func(r int) float32 {
		var v float64
		switch t {
		case Float16:
			v = define(bits[r], 10, 5)
		case BFloat16:
			v = define(bits[r], 7, 8)
		default:
			v = float64(math.Float32frombits(uint32(bits[r])))
		}
		if a == Pre {
			v = toNearest(t, v*toNearest(t, 1/float64(world))) // the product is exact in float64
		}
		return float32(v)
	}
	s := term(0)
	for r := 1; r < len(bits); r++ {
		s = float32(s + term(r))
	}
	if a == Mean {
		s = float32(s * float32(1/float64(world)))
	}
	if s != s {
		return map[DType]uint64{Float16: 0x7e00, BFloat16: 0x7fc0, Float32: 0x7fc00000}[t]
	}
	if t == Float32 {
		return uint64(math.Float32bits(s))
	}
	return patternOf(t, toNearest(t, float64(s)))
}

// toNearest rounds v to a value of t by counting units in the last place.
func toNearest(t DType, v float64) float64 {
	var mantissa, minExp, maxExp int
	switch t {
	case Float16:
		mantissa, minExp, maxExp = 10, -14, 15
	case BFloat16:
		mantissa, minExp, maxExp = 7, -126, 127
	default:
		return float64(float32(v))
	}
	if v == 0 || v-v != 0 {
		return v
	}
	_, e := math.Frexp(v)
	unit := max(e-1, minExp) - mantissa
	r := math.Ldexp(math.RoundToEven(math.Ldexp(v, -unit)), unit)
	if math.Abs(r) >= math.Ldexp(1, maxExp+1) {
		return math.Inf(int(math.Copysign(1, v)))
	}
	return math.Copysign(r, v)
}

// patternOf encodes a value that t holds.
func patternOf(t DType, v float64) uint64 {
	f := small[0]
	if t == BFloat16 {
		f = small[1]
	}
	var sign uint64
	if math.Signbit(v) {
		sign = 1 << 15
	}
	lo, hi := uint64(0), uint64(1<<f.exponent-1)<<f.mantissa
	for lo < hi { // patterns of positive values are in the order of their values
		m := (lo + hi) / 2
		if define(m, f.mantissa, f.exponent) < math.Abs(v) {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return sign | lo
}

// kinds of addends: what they are made of decides what they can show.
var kinds = []struct {
	name string
	bits func(rng *rand.Rand, t DType) uint64
}{
	{"any bits", func(rng *rand.Rand, t DType) uint64 { return rng.Uint64() & mask(t) }},
	{"near one", func(rng *rand.Rand, t DType) uint64 {
		return t.Narrow((rng.Float64() - 0.5) * math.Ldexp(1, rng.IntN(12)))
	}},
	{"subnormal", func(rng *rand.Rand, t DType) uint64 {
		return rng.Uint64()&(1<<t.MantissaBits()-1) | rng.Uint64()&1<<(8*t.Size()-1)
	}},
	{"zero", func(rng *rand.Rand, t DType) uint64 {
		if rng.IntN(8) == 0 {
			return 0
		}
		return 1 << (8*t.Size() - 1)
	}},
	{"largest", func(rng *rand.Rand, t DType) uint64 {
		return dtypes[t].infinity - 1 - rng.Uint64N(3) | rng.Uint64()&1<<(8*t.Size()-1)
	}},
	{"infinite", func(rng *rand.Rand, t DType) uint64 {
		if rng.IntN(3) > 0 {
			return t.Narrow(rng.NormFloat64())
		}
		return dtypes[t].infinity | rng.Uint64()&1<<(8*t.Size()-1)
	}},
	{"NaN", func(rng *rand.Rand, t DType) uint64 {
		if rng.IntN(3) > 0 {
			return t.Narrow(rng.NormFloat64())
		}
		return dtypes[t].infinity | 1 | rng.Uint64()&mask(t) // quiet and signalling, with payloads of both signs
	}},
}

func mask(t DType) uint64 { return 1<<(8*t.Size()-1)<<1 - 1 }

var averages = []Average{Mean, Pre, None}

func TestFoldIsTheChain(t *testing.T) {
	lengths := []int{0, 1, 2, 3, 15, 16, 17, BlockElements - 1, BlockElements, BlockElements + 1}
	for _, d := range DTypes {
		for _, a := range averages {
			t.Run(fmt.Sprintf("%v/%v", d, a), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(d), uint64(a)))
				for world := 1; world <= 16; world++ {
					f := NewFolder(d, a, world)
					for li, n := range lengths {
						if n > 17 && (world+li)%4 != 0 {
							continue // long ones for some worlds only: they take the time
						}
						kind := kinds[(world+li)%len(kinds)]
						addends := make([][]byte, world)
						for r := range addends {
							addends[r] = words(d, n)
							for i := range n {
								d.PutBits(addends[r], i, kind.bits(rng, d))
							}
						}
						checkFold(t, f, d, a, kind.name, addends, n)
					}
				}
				for _, kind := range kinds { // each kind at a length with a tail after the vector code
					for _, world := range []int{1, 2, 3, 8} {
						addends := make([][]byte, world)
						for r := range addends {
							addends[r] = words(d, 1003)
							for i := range 1003 {
								d.PutBits(addends[r], i, kind.bits(rng, d))
							}
						}
						checkFold(t, NewFolder(d, a, world), d, a, kind.name, addends, 1003)
					}
				}
			})
		}
	}
}

// checkFold folds into memory of its own, then in place of each addend and of
// all of them, and holds every result against the chain.
func checkFold(t *testing.T, f *Folder, d DType, a Average, kind string, addends [][]byte, n int) {
	t.Helper()
	world := len(addends)
	want := words(d, n)
	column := make([]uint64, world)
	for i := range n {
		for r, g := range addends {
			column[r] = d.Bits(g, i)
		}
		d.PutBits(want, i, chain(d, a, world, column))
	}
	var kept [][]byte
	for _, g := range addends {
		kept = append(kept, slices.Clone(g))
	}
	see := func(where string, got []byte) {
		t.Helper()
		if bytes.Equal(got, want) {
			return
		}
		for i := range n {
			if d.Bits(got, i) != d.Bits(want, i) {
				for r := range column {
					column[r] = d.Bits(kept[r], i)
				}
				t.Fatalf("%s, world %d, %d elements, %s: element %d is %#x, not %#x; addends %#x", kind, world, n, where, i, d.Bits(got, i), d.Bits(want, i), column)
			}
		}
	}
	dsts := [][]byte{words(d, n), words(d, n)}
	f.Fold(dsts, addends)
	see("apart", dsts[0])
	see("apart, second", dsts[1])
	for r, g := range addends {
		if !bytes.Equal(g, kept[r]) {
			t.Fatalf("%s, world %d: addend %d was changed", kind, world, r)
		}
	}
	for r := range addends {
		f.Fold([][]byte{addends[r]}, addends)
		see(fmt.Sprint("in place of addend ", r), addends[r])
		copy(addends[r], kept[r])
	}
	f.Fold(addends, addends)
	for r, g := range addends {
		see(fmt.Sprint("in place of all, addend ", r), g)
		copy(g, kept[r])
	}
}

// The fold must not be one that any order satisfies: a small addend that meets
// a large one is lost, and which one does depends on the order.
func TestFoldSeesTheOrder(t *testing.T) {
	const n = 4096
	for _, d := range DTypes {
		rng := rand.New(rand.NewPCG(7, uint64(d)))
		small, large := d.MinExp()/2, d.MaxExp()
		if d == Float16 {
			small = d.MinExp() // its whole range, just enough for a float32 accumulator
		}
		addends := [][]byte{words(d, n), words(d, n), words(d, n), words(d, n)}
		for i := range n {
			l := d.Narrow(math.Ldexp(1+rng.Float64(), large-1))
			d.PutBits(addends[0], i, d.Narrow(math.Ldexp(1+rng.Float64(), small)))
			d.PutBits(addends[1], i, l)
			d.PutBits(addends[2], i, l|1<<(8*d.Size()-1))
			d.PutBits(addends[3], i, d.Narrow(math.Ldexp(1+rng.Float64(), small)))
		}
		f := NewFolder(d, None, 4)
		up, down := words(d, n), words(d, n)
		f.Fold([][]byte{up}, addends)
		slices.Reverse(addends)
		f.Fold([][]byte{down}, addends)
		differ := 0
		for i := range n {
			if d.Bits(up, i) != d.Bits(down, i) {
				differ++
			}
		}
		if differ < n/2 {
			t.Errorf("%v: a reversed fold differs in %d of %d elements only", d, differ, n)
		}
	}
}

// -0 + -0 is -0: the chain starts from the first addend and not from +0.
func TestFoldKeepsNegativeZero(t *testing.T) {
	for _, d := range DTypes {
		for _, a := range averages {
			for world := 1; world <= 5; world++ {
				addends := make([][]byte, world)
				for r := range addends {
					addends[r] = words(d, 1)
					d.PutBits(addends[r], 0, 1<<(8*d.Size()-1))
				}
				NewFolder(d, a, world).Fold(addends[:1], addends)
				if got := d.Bits(addends[0], 0); got != 1<<(8*d.Size()-1) {
					t.Errorf("%v, %v: the sum of %d negative zeros is %#x", d, a, world, got)
				}
			}
		}
	}
}

func TestNewFolderRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		t DType
		a Average
		w int
	}{{0, Mean, 2}, {Float64 + 1, Mean, 2}, {Float32, 0, 2}, {Float32, None + 1, 2}, {Float32, Mean, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewFolder(%v, %v, %d) did not panic", c.t, c.a, c.w)
				}
			}()
			NewFolder(c.t, c.a, c.w)
		}()
	}
}

func TestNames(t *testing.T) {
	for _, d := range DTypes {
		var back DType
		text, err := d.MarshalText()
		if err == nil {
			err = back.UnmarshalText(text)
		}
		if err != nil || back != d {
			t.Errorf("%v comes back as %v, %v", d, back, err)
		}
	}
	for _, a := range averages {
		var back Average
		text, err := a.MarshalText()
		if err == nil {
			err = back.UnmarshalText(text)
		}
		if err != nil || back != a {
			t.Errorf("%v comes back as %v, %v", a, back, err)
		}
	}
	for _, s := range []string{"", "Float32", "int8", "float", "DType(0)"} {
		if d, err := ParseDType(s); err == nil {
			t.Errorf("ParseDType(%q) is %v", s, d)
		}
		if a, err := ParseAverage(s); err == nil {
			t.Errorf("ParseAverage(%q) is %v", s, a)
		}
	}
}

// One rank's share of the reading and writing, as GB/s of all addends read.
// "plain" is the loop that one would write without the vector code, for
// float32 only.
func BenchmarkFold(b *testing.B) {
	const n, world = 1 << 16, 4
	for _, d := range DTypes {
		addends := make([][]byte, world)
		for r := range addends {
			addends[r] = words(d, n)
			for i := range n {
				d.PutBits(addends[r], i, d.Narrow(float64(i%100)))
			}
		}
		dst := [][]byte{words(d, n)}
		for _, a := range averages {
			b.Run(fmt.Sprintf("%v/%v", d, a), func(b *testing.B) {
				f := NewFolder(d, a, world)
				b.SetBytes(int64(n * d.Size() * world))
				for b.Loop() {
					f.Fold(dst, addends)
				}
			})
		}
		if d == Float32 {
			b.Run("float32/mean/plain", func(b *testing.B) {
				b.SetBytes(int64(n * d.Size() * world))
				scale := float32(MeanScale(d, world))
				for b.Loop() {
					out := View[float32](dst[0])
					g0, g1, g2, g3 := View[float32](addends[0])[:n], View[float32](addends[1])[:n], View[float32](addends[2])[:n], View[float32](addends[3])[:n]
					for i := range out {
						out[i] = (g0[i] + g1[i] + g2[i] + g3[i]) * scale
					}
				}
			})
		}
	}
}
