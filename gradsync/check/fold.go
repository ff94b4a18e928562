package check

import (
	"math"
	"sync"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// This file is the contract written a second time, one element at a time and
// with arithmetic on values where package contract works on bit patterns, so
// that a mistake in one shows against the other. It shares no code with it.

// value returns the number that a bit pattern stands for.
func value(t contract.DType, bits uint64) float64 {
	switch t {
	case contract.Float64:
		return math.Float64frombits(bits)
	case contract.Float32:
		return float64(math.Float32frombits(uint32(bits)))
	case contract.Float16:
		return tables().half[bits]
	default:
		return tables().brain[bits]
	}
}

// tables holds the value of each 16-bit pattern, from the definition
// (-1)^sign × significand × 2^exponent.
var tables = sync.OnceValue(func() *struct{ half, brain [1 << 16]float64 } {
	var t struct{ half, brain [1 << 16]float64 }
	for b := range t.half {
		t.half[b] = define(uint(b), 10, 5)
		t.brain[b] = define(uint(b), 7, 8)
	}
	return &t
})

func define(bits, mantissa, exponent uint) float64 {
	fraction := bits & (1<<mantissa - 1)
	e := int(bits >> mantissa & (1<<exponent - 1))
	negative := bits>>(mantissa+exponent) == 1
	bias := 1<<(exponent-1) - 1
	var v float64
	switch e {
	case 1<<exponent - 1:
		if fraction != 0 {
			return math.NaN()
		}
		v = math.Inf(1)
	case 0:
		v = math.Ldexp(float64(fraction), 1-bias-int(mantissa))
	default:
		v = math.Ldexp(float64(fraction+1<<mantissa), e-bias-int(mantissa))
	}
	if negative {
		return math.Copysign(v, -1)
	}
	return v
}

// nearest rounds v once to t, to nearest even, and returns the bit pattern.
func nearest(t contract.DType, v float64) uint64 {
	switch {
	case v != v:
		return t.NaN()
	case t == contract.Float64:
		return math.Float64bits(v)
	case t == contract.Float32:
		return uint64(math.Float32bits(float32(v)))
	}
	mantissa, bias := t.MantissaBits(), t.MaxExp()
	signBit := uint64(0)
	if math.Signbit(v) {
		signBit, v = 1<<15, -v
	}
	infinity := uint64(bias*2+1) << mantissa
	switch {
	case math.IsInf(v, 0):
		return signBit | infinity
	case v == 0: // has no exponent
		return signBit
	}
	_, e := math.Frexp(v) // v = f × 2^e, f in [1/2, 1)
	// The unit in the last place is 2^(exponent - mantissa), never below that
	// of the subnormals.
	unit := max(e-1, t.MinExp()) - mantissa
	n := uint64(math.RoundToEven(math.Ldexp(v, -unit)))
	// n counts units. A normal value has n in [2^m, 2^(m+1)]; the encoding is
	// linear in n from there on, and a carry moves to the next exponent.
	field := uint64(unit + mantissa - t.MinExp())
	return signBit | min(field<<mantissa+n, infinity)
}

// fold32 is the chain for accumulators of float32.
func fold32(t contract.DType, a contract.Average, world int, addends [][]byte, i int) uint64 {
	term := func(r int) float32 {
		v := value(t, t.Bits(addends[r], i))
		if a == contract.Pre {
			if t == contract.Float32 {
				return float32(float32(v) * float32(1/float64(world))) // the conversion forbids a fused multiply-add
			}
			return float32(value(t, nearest(t, v*value(t, nearest(t, 1/float64(world))))))
		}
		return float32(v)
	}
	s := term(0)
	for r := 1; r < len(addends); r++ {
		s += term(r)
	}
	if a == contract.Mean {
		s *= float32(1 / float64(world))
	}
	return nearest(t, float64(s))
}

// fold64 is the chain for float64.
func fold64(a contract.Average, world int, addends [][]byte, i int) uint64 {
	t := contract.Float64
	scale := 1 / float64(world)
	term := func(r int) float64 {
		v := math.Float64frombits(t.Bits(addends[r], i))
		if a == contract.Pre {
			v = float64(v * scale)
		}
		return v
	}
	s := term(0)
	for r := 1; r < len(addends); r++ {
		s += term(r)
	}
	if a == contract.Mean {
		s *= scale
	}
	return nearest(t, s)
}
