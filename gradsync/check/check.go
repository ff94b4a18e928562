// Package check holds a reduced gradient against what it should be.
//
// Two questions, asked of every element:
//
//   - Is it bit for bit what the contract says? The expected bits come from a
//     fold written independently of the reducers (fold.go).
//
//   - Is it within the error bound of any order of summation? The reference is
//     the sum in float64, by gonum, and the bound, to first order,
//
//     (W-1) · u_A · Σ|g_r| · |scale|  +  u_T · |ref|
//
//     with u the unit roundoff of the accumulator A and of the dtype T
//     (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., §4.2),
//     plus half the smallest subnormal of T and what rounding the reference
//     to float64 may cost, which shows for float64 only. The reference is a
//     compensated sum, so that its own additions cost nothing.
//
// An element whose sum may leave the finite numbers on the way, in some order,
// has no bound: only its bits can be judged.
//
// NaN fails every comparison that it should fail: what is right is written as
// difference <= bound, which holds for numbers only.
package check

import (
	"math"

	"gonum.org/v1/gonum/floats"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// Block is how many elements a Checker takes at a time.
const Block = 4096

// Mismatch is one element that is not what it should be.
type Mismatch struct {
	Index int64  `json:"index"` // within the parameter
	Got   uint64 `json:"got"`   // bit patterns
	Want  uint64 `json:"want"`  // the contract's bits, or the rounded reference
}

// Result sums up a number of elements.
type Result struct {
	Elements  int64 `json:"elements"`
	Differ    int64 `json:"differ"`    // elements whose bits are not the contract's
	Beyond    int64 `json:"beyond"`    // elements outside the error bound
	NonFinite int64 `json:"nonfinite"` // results that are infinite or NaN

	FirstDiffer *Mismatch `json:"first_differ,omitempty"`
	FirstBeyond *Mismatch `json:"first_beyond,omitempty"`

	MaxULP  uint64  `json:"max_ulp"`   // largest distance from the rounded reference, in units in the last place, over finite elements
	SumDiff float64 `json:"sum_diff2"` // Σ (got-ref)² over finite elements
	SumRef  float64 `json:"sum_ref2"`  // Σ ref² over finite elements
}

// Merge adds other elements' outcome to r. The first mismatches of r stay.
func (r *Result) Merge(o Result) {
	r.Elements += o.Elements
	r.Differ += o.Differ
	r.Beyond += o.Beyond
	r.NonFinite += o.NonFinite
	if r.FirstDiffer == nil {
		r.FirstDiffer = o.FirstDiffer
	}
	if r.FirstBeyond == nil {
		r.FirstBeyond = o.FirstBeyond
	}
	r.MaxULP = max(r.MaxULP, o.MaxULP)
	r.SumDiff = min(r.SumDiff+o.SumDiff, math.MaxFloat64)
	r.SumRef = min(r.SumRef+o.SumRef, math.MaxFloat64)
}

// RelativeL2 is ‖got-ref‖ / ‖ref‖, 0 when both are zero. When only ref is, it
// is the largest number and not infinity, which JSON cannot carry.
func (r Result) RelativeL2() float64 {
	if r.SumDiff == 0 {
		return 0
	}
	return min(math.Sqrt(r.SumDiff)/math.Sqrt(r.SumRef), math.MaxFloat64)
}

// A Checker compares blocks of one dtype. One goroutine at a time may use it,
// on a thread with the default floating-point environment (package fpenv).
type Checker struct {
	dtype   contract.DType
	average contract.Average
	world   int

	pre, mean    float64 // factors before and after the sum, 1 where the average has none
	chain, round float64 // relative errors of all additions and of the last rounding
	floor        float64 // absolute error of a subnormal result
	largest      float64 // finite number of the accumulator

	got, ref, column []float64 // scratch
}

// New returns a Checker for sums of world addends of dtype t. accum is the
// dtype in which the reducer under test adds: t.Accumulator() for the fixed
// order, t itself for libraries that round after each addition.
func New(t contract.DType, a contract.Average, world int, accum contract.DType) *Checker {
	c := &Checker{
		dtype: t, average: a, world: world, pre: 1, mean: 1,
		chain: float64(world-1) * unit(accum),
		// What rounding the reference to float64 costs shows for float64 only.
		round:   unit(t) + 2*unit(contract.Float64),
		floor:   max(math.Ldexp(1, t.MinExp()-t.MantissaBits()-1), math.SmallestNonzeroFloat64),
		largest: math.Ldexp(2-math.Ldexp(1, -accum.MantissaBits()), accum.MaxExp()),
		got:     make([]float64, Block), ref: make([]float64, Block), column: make([]float64, world),
	}
	switch a {
	case contract.Mean:
		c.mean = value(t.Accumulator(), nearest(t.Accumulator(), 1/float64(world)))
	case contract.Pre:
		c.pre = value(t, nearest(t, 1/float64(world)))
	}
	return c
}

// Check compares got with the sum of addends, all of the same length, at most
// Block elements; first is the index within the parameter of the first one.
func (c *Checker) Check(got []byte, addends [][]byte, first int64) Result {
	n := len(got) / c.dtype.Size()
	r := Result{Elements: int64(n)}
	for i := 0; i < n; i++ {
		var want uint64
		if c.dtype == contract.Float64 {
			want = fold64(c.average, c.world, addends, i)
		} else {
			want = fold32(c.dtype, c.average, c.world, addends, i)
		}
		bits := c.dtype.Bits(got, i)
		if bits != want {
			r.Differ++
			if r.FirstDiffer == nil {
				r.FirstDiffer = &Mismatch{first + int64(i), bits, want}
			}
		}
		if !c.dtype.Finite(bits) {
			r.NonFinite++
		}
	}
	c.bound(&r, got, addends, first)
	return r
}

// bound does the float64 half of Check.
func (c *Checker) bound(r *Result, got []byte, addends [][]byte, first int64) {
	t, n := c.dtype, int(r.Elements)
	val, ref := c.got[:n], c.ref[:n]
	for i := range n {
		s := c.sum(addends, i)
		bits := t.Bits(got, i)
		val[i], ref[i] = value(t, bits), s.ref+s.special
		if !s.allows(t, val[i]) {
			r.Beyond++
			if r.FirstBeyond == nil {
				r.FirstBeyond = &Mismatch{first + int64(i), bits, nearest(t, ref[i])}
			}
		}
		if finite(val[i]) && finite(ref[i]) {
			r.MaxULP = max(r.MaxULP, ulps(t, bits, nearest(t, ref[i])))
		} else {
			val[i], ref[i] = 0, 0 // out of the norms
		}
	}
	d, norm := floats.Distance(val, ref, 2), floats.Norm(ref, 2)
	r.SumDiff = min(r.SumDiff+d*d, math.MaxFloat64) // stays a number that JSON can carry
	r.SumRef = min(r.SumRef+norm*norm, math.MaxFloat64)
}

// sum is what is known of one element's sum, whatever the order.
type sum struct {
	special   float64 // the sum of the addends that are infinite or NaN, 0 without any
	ref       float64 // the average of the others
	limit     float64 // how far a finite result may be from ref
	overflows bool    // the others may leave the finite numbers on the way
}

func (c *Checker) sum(addends [][]byte, i int) (s sum) {
	t, abs := c.dtype, 0.0
	for r, g := range addends {
		v := value(t, t.Bits(g, i))
		if c.pre != 1 { // the addends of the sum are the scaled, rounded ones
			v = value(t, nearest(t, v*c.pre))
		}
		if !finite(v) {
			s.special += v
			v = 0
		}
		c.column[r] = v
		abs += math.Abs(v)
	}
	s.overflows = !(abs < c.largest)
	s.ref = floats.SumCompensated(c.column) * c.mean
	s.limit = c.chain*abs*c.mean + c.round*math.Abs(s.ref) + c.floor
	return s
}

// allows reports whether got may be the result, in dtype t.
func (s sum) allows(t contract.DType, got float64) bool {
	switch {
	case math.IsNaN(s.special): // a NaN, or infinities of both signs, went in
		return math.IsNaN(got)
	case s.overflows:
		return s.special == 0 || !finite(got)
	case s.special != 0:
		return got == s.special
	case math.IsInf(got, 0): // the rounding to T overflowed, or should not have
		return value(t, nearest(t, math.Copysign(math.Abs(s.ref)+s.limit, s.ref))) == got
	}
	return math.Abs(got-s.ref) <= s.limit
}

// unit is the unit roundoff of t: half the distance from 1 to the next number.
func unit(t contract.DType) float64 { return math.Ldexp(1, -t.MantissaBits()-1) }

func finite(v float64) bool { return v-v == 0 }

// ulps is the number of representable values between a and b, of either sign.
func ulps(t contract.DType, a, b uint64) uint64 {
	x, y := ordered(t, a), ordered(t, b)
	if x < y {
		x, y = y, x
	}
	return uint64(x) - uint64(y)
}

// ordered maps bit patterns to integers in the order of their values; both
// zeros map to 0.
func ordered(t contract.DType, bits uint64) int64 {
	sign := uint64(1) << (8*t.Size() - 1)
	if bits&sign != 0 {
		return -int64(bits &^ sign)
	}
	return int64(bits)
}
