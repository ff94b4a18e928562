package contract

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// define is IEEE 754's definition of a bit pattern's value, the only place
// where these tests say what a format is.
func define(bits uint64, mantissa, exponent uint) float64 {
	fraction := float64(bits & (1<<mantissa - 1))
	e := int(bits >> mantissa & (1<<exponent - 1))
	bias := 1<<(exponent-1) - 1
	sign := 1.0
	if bits>>(mantissa+exponent)&1 == 1 {
		sign = -1
	}
	scale := math.Ldexp(1, -int(mantissa))
	switch e {
	case 0:
		return sign * math.Ldexp(fraction*scale, 1-bias)
	case 1<<exponent - 1:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1+fraction*scale, e-bias)
}

var small = []struct {
	t                  DType
	mantissa, exponent uint
}{{Float16, 10, 5}, {BFloat16, 7, 8}}

// sameNumber compares bits, so that zeros differ; NaN equals NaN.
func sameNumber(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

func TestWidenEveryPattern(t *testing.T) {
	for _, f := range small {
		for bits := uint64(0); bits < 1<<16; bits++ {
			want := define(bits, f.mantissa, f.exponent)
			if got := f.t.Widen(bits); !sameNumber(got, want) {
				t.Fatalf("%v %#04x widens to %v, not %v", f.t, bits, got, want)
			}
			if finite := !math.IsNaN(want) && !math.IsInf(want, 0); f.t.Finite(bits) != finite {
				t.Fatalf("%v %#04x: Finite is not %v", f.t, bits, finite)
			}
			back := bits
			if want != want {
				back = f.t.NaN()
			}
			if got := f.t.Narrow(want); got != back {
				t.Fatalf("%v %#04x comes back as %#04x", f.t, bits, got)
			}
		}
	}
}

// Rounding is a monotone step function, so the edges of its steps define it:
// between neighbours lo and hi, everything below the midpoint goes to lo,
// everything above to hi, and the midpoint to the even one. Above the largest
// finite value the next step would be 2^(maxExp+1), and stands for infinity.
func TestNarrowAtEveryStep(t *testing.T) {
	for _, f := range small {
		infinity := uint64(1<<f.exponent-1) << f.mantissa
		for lo := uint64(0); lo < infinity; lo++ {
			a, b := define(lo, f.mantissa, f.exponent), define(lo+1, f.mantissa, f.exponent)
			if lo+1 == infinity {
				b = math.Ldexp(1, f.t.MaxExp()+1)
			}
			mid := (a + b) / 2 // exact
			even := lo + lo&1
			for _, c := range []struct {
				v    float64
				want uint64
			}{
				{a, lo}, {math.Nextafter(a, b), lo},
				{math.Nextafter(mid, a), lo}, {mid, even}, {math.Nextafter(mid, b), lo + 1},
				{math.Nextafter(b, a), lo + 1},
			} {
				if got := f.t.Narrow(c.v); got != c.want {
					t.Fatalf("%v: Narrow(%x) is %#04x, not %#04x", f.t, c.v, got, c.want)
				}
				if got := f.t.Narrow(-c.v); got != c.want|1<<15 {
					t.Fatalf("%v: Narrow(%x) is %#04x, not %#04x", f.t, -c.v, got, c.want|1<<15)
				}
			}
			m := float32(mid) // exact: float32 has more bits and a wider range
			for _, c := range []struct {
				v    float32
				want uint64
			}{{math.Nextafter32(m, 0), lo}, {m, even}, {math.Nextafter32(m, math.MaxFloat32), lo + 1}} {
				if float64(m) == math.MaxFloat32 {
					t.Fatal("the midpoint does not fit float32")
				}
				if got := narrow32(f.t, c.v); got != c.want {
					t.Fatalf("%v of float32 %x is %#04x, not %#04x", f.t, c.v, got, c.want)
				}
				if got := narrow32(f.t, -c.v); got != c.want|1<<15 {
					t.Fatalf("%v of float32 %x is %#04x, not %#04x", f.t, -c.v, got, c.want|1<<15)
				}
			}
		}
		for v, want := range map[float64]uint64{math.Inf(1): infinity, math.MaxFloat64: infinity, math.SmallestNonzeroFloat64: 0} {
			if got := f.t.Narrow(v); got != want {
				t.Errorf("%v: Narrow(%v) is %#x, not %#x", f.t, v, got, want)
			}
		}
	}
}

func narrow32(t DType, v float32) uint64 {
	if t == BFloat16 {
		return uint64(BFloat16FromFloat32(v))
	}
	return uint64(Float16FromFloat32(v))
}

func TestNarrowNaN(t *testing.T) {
	for _, bits := range []uint32{0x7f800001, 0x7fc00000, 0xffc12345, 0x7fffffff, 0xff800001} {
		v := math.Float32frombits(bits)
		if h := Float16FromFloat32(v); h != 0x7e00 {
			t.Errorf("float32 %#x narrows to float16 %#x", bits, h)
		}
		if h := BFloat16FromFloat32(v); h != 0x7fc0 {
			t.Errorf("float32 %#x narrows to bfloat16 %#x", bits, h)
		}
	}
	for _, d := range DTypes {
		if got := d.Narrow(math.Float64frombits(0xfff0000000000001)); got != d.NaN() {
			t.Errorf("%v: Narrow(NaN) is %#x, not %#x", d, got, d.NaN())
		}
	}
}

// Float32 and float64 against math/big, which rounds to any precision.
func TestNarrowFloat32(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		// Exponents around all of float32's range, and past both ends of it.
		v := math.Ldexp(1+rng.Float64(), rng.IntN(290)-155)
		if rng.IntN(4) == 0 { // at or beside a tie
			v = math.Float64frombits(math.Float64bits(v)&^(1<<29-1) | 1<<28)
			v = math.Nextafter(v, v*float64(rng.IntN(3)))
		}
		want, _ := new(big.Float).SetFloat64(v).Float32()
		if got := Float32.Narrow(v); got != uint64(math.Float32bits(want)) {
			t.Fatalf("Narrow(%x) is %#x, not %#x", v, got, math.Float32bits(want))
		}
		if got := Float64.Narrow(-v); got != math.Float64bits(-v) {
			t.Fatalf("float64 Narrow(%x) is %#x", -v, got)
		}
	}
}

func TestScales(t *testing.T) {
	for _, d := range DTypes {
		for world := 1; world <= 1000; world++ {
			exact := new(big.Rat).SetFrac64(1, int64(world))
			near := func(t DType) float64 { // the nearest value of t, by trying the neighbours
				v, _ := exact.Float64()
				bits := t.Narrow(v)
				best := bits
				for _, b := range []uint64{bits - 1, bits + 1} {
					if distance(exact, t.Widen(b)).Cmp(distance(exact, t.Widen(best))) < 0 {
						best = b
					}
				}
				return t.Widen(best)
			}
			if got, want := PreScale(d, world), near(d); got != want {
				t.Errorf("%v: PreScale(%d) is %x, not %x", d, world, got, want)
			}
			if got, want := MeanScale(d, world), near(d.Accumulator()); got != want {
				t.Errorf("%v: MeanScale(%d) is %x, not %x", d, world, got, want)
			}
		}
	}
}

func distance(a *big.Rat, v float64) *big.Rat {
	d := new(big.Rat).Sub(a, new(big.Rat).SetFloat64(v))
	return d.Abs(d)
}
