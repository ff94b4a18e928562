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
//     (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., §4.2).
//
// NaN fails every comparison that it should fail: comparisons are written as
// !(difference <= bound).
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
	// How far the value is from the float64 reference, and how far it may be.
	Error float64 `json:"-"`
	Bound float64 `json:"-"`
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

// RelativeL2 is ‖got-ref‖ / ‖ref‖, 0 when both are zero.
func (r Result) RelativeL2() float64 {
	if r.SumDiff == 0 {
		return 0
	}
	return math.Sqrt(r.SumDiff) / math.Sqrt(r.SumRef)
}

// A Checker compares blocks of one dtype. One goroutine at a time may use it,
// on a thread with the default floating-point environment (package fpenv).
type Checker struct {
	dtype   contract.DType
	average contract.Average
	world   int
	accum   contract.DType

	ref, abs, got, tmp []float64
}

// New returns a Checker for sums of world addends of dtype t. accum is the
// dtype in which the reducer under test adds: t.Accumulator() for the fixed
// order, t itself for libraries that round after each addition.
func New(t contract.DType, a contract.Average, world int, accum contract.DType) *Checker {
	mem := make([]float64, 4*Block)
	return &Checker{t, a, world, accum, mem[:Block], mem[Block : 2*Block], mem[2*Block : 3*Block], mem[3*Block:]}
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
				r.FirstDiffer = &Mismatch{Index: first + int64(i), Got: bits, Want: want}
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
	ref, abs, val, tmp := c.ref[:n], c.abs[:n], c.got[:n], c.tmp[:n]
	for i := range ref {
		ref[i], abs[i] = 0, 0
		val[i] = value(t, t.Bits(got, i))
	}
	scale := 1.0
	switch c.average {
	case contract.Mean:
		scale = value(t.Accumulator(), nearest(t.Accumulator(), 1/float64(c.world)))
	case contract.Pre:
		scale = value(t, nearest(t, 1/float64(c.world)))
	}
	for _, g := range addends {
		for i := range tmp {
			tmp[i] = value(t, t.Bits(g, i))
			if c.average == contract.Pre { // the addends of the sum are the scaled, rounded ones
				tmp[i] = value(t, nearest(t, tmp[i]*scale))
			}
		}
		floats.Add(ref, tmp)
		for i, v := range tmp {
			tmp[i] = math.Abs(v)
		}
		floats.Add(abs, tmp)
	}
	if c.average != contract.Mean {
		scale = 1
	}
	largest := math.Ldexp(2-math.Ldexp(1, -c.accum.MantissaBits()), c.accum.MaxExp())
	for i, raw := range abs {
		overflows := !(raw < largest) // the chain itself may leave the finite numbers: only the bits can judge
		ref[i] *= scale
		limit := float64(c.world-1)*c.unit(c.accum)*raw*scale + c.unit(t)*math.Abs(ref[i]) + c.floor(t, ref[i])
		diff := math.Abs(val[i] - ref[i])
		if !c.within(val[i], ref[i], diff, limit, overflows) {
			r.Beyond++
			if r.FirstBeyond == nil {
				r.FirstBeyond = &Mismatch{first + int64(i), t.Bits(got, i), nearest(t, ref[i]), diff, limit}
			}
		}
		if finite(val[i]) && finite(ref[i]) {
			r.MaxULP = max(r.MaxULP, ulps(t, t.Bits(got, i), nearest(t, ref[i])))
		} else {
			val[i], ref[i] = 0, 0 // out of the norms
		}
	}
	d, norm := floats.Distance(val, ref, 2), floats.Norm(ref, 2)
	r.SumDiff = min(r.SumDiff+d*d, math.MaxFloat64) // stays a number that JSON can carry
	r.SumRef = min(r.SumRef+norm*norm, math.MaxFloat64)
}

func (c *Checker) within(got, ref, diff, limit float64, overflows bool) bool {
	switch {
	case math.IsNaN(ref): // a NaN, or infinities of both signs, went in
		return math.IsNaN(got)
	case overflows && finite(ref):
		return true
	case math.IsInf(ref, 0):
		return got == ref || overflows && !finite(got) && c.dtype == contract.Float64
	case math.IsInf(got, 0): // the rounding to T overflowed, or should not have
		reached := value(c.dtype, nearest(c.dtype, math.Copysign(math.Abs(ref)+limit, ref)))
		return reached == got
	}
	return diff <= limit
}

// unit is the unit roundoff of t: half the distance from 1 to the next number.
func (c *Checker) unit(t contract.DType) float64 {
	return math.Ldexp(1, -t.MantissaBits()-1)
}

// floor is the absolute rounding error that replaces the relative one below
// the normal numbers of t: half the smallest subnormal.
func (c *Checker) floor(t contract.DType, ref float64) float64 {
	if math.Abs(ref) >= math.Ldexp(1, t.MinExp()) || t == contract.Float64 {
		return 0
	}
	return math.Ldexp(1, t.MinExp()-t.MantissaBits()-1)
}

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
