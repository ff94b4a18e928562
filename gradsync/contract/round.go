package contract

import "math"

// Conversions between the 16-bit dtypes and float32. Widening is exact.
// Narrowing rounds to nearest even; overflow gives infinity, NaN the canonical
// NaN. Both are exact steps and integer arithmetic, so no floating-point mode
// can change them. They compute the rare cases beside the common one and
// choose: gradients mix normal and subnormal values, and a mispredicted branch
// costs more than both.

// Float32FromFloat16 widens a float16 bit pattern, exactly.
func Float32FromFloat16(h uint16) float32 {
	sign, abs := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	bits := abs<<13 + (127-15)<<23
	if abs >= 0x7c00 { // infinity or NaN: the largest exponent here too
		bits += (127 - 15) << 23 // the payload moves up with the mantissa
	}
	// Zero or subnormal: abs × 2^-24, an integer times a power of two.
	small := math.Float32bits(float32(int32(abs)) * 0x1p-24)
	if abs < 0x400 {
		bits = small
	}
	return math.Float32frombits(sign | bits)
}

// Float16FromFloat32 rounds to a float16 bit pattern.
func Float16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	sign, abs := b>>16&0x8000, b&0x7fffffff
	// Normal in float16: drop 13 bits. What lies above the largest value
	// carries into infinity, or beyond it.
	bits := abs - (127-15)<<23
	bits = min((bits+0xfff+bits>>13&1)>>13, 0x7c00)
	// Subnormal: the mantissa with its hidden bit, in units of 2^-24. A shift
	// of 25 leaves nothing of it, even rounded.
	shift := min(126-abs>>23, 25) & 31 // the mask spares a test; 14 .. 25 where it counts
	man := abs&0x7fffff | 0x800000
	small := (man + 1<<(shift-1&31) - 1 + man>>shift&1) >> shift
	if abs < 0x38800000 {
		bits = small
	}
	bits |= sign
	if abs > 0x7f800000 {
		bits = uint32(Float16.NaN())
	}
	return uint16(bits)
}

// Float32FromBFloat16 widens a bfloat16 bit pattern, exactly.
func Float32FromBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// BFloat16FromFloat32 rounds to a bfloat16 bit pattern.
func BFloat16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(BFloat16.NaN())
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// Narrow rounds a float64 once to t and returns the bit pattern.
//
// It goes through round-to-odd at float32 for the 16-bit dtypes: the odd last
// bit remembers that something was dropped, so the second rounding is the only
// one that counts (Boldo and Melquiond, "When double rounding is odd", 2005;
// it needs two more bits than the final format, float32 has at least 13).
func (t DType) Narrow(v float64) uint64 {
	switch t {
	case Float64:
		if v != v {
			return t.NaN()
		}
		return math.Float64bits(v)
	case Float32:
		if v != v {
			return t.NaN()
		}
		return uint64(math.Float32bits(float32(v)))
	case Float16:
		return uint64(Float16FromFloat32(roundToOdd(v)))
	case BFloat16:
		return uint64(BFloat16FromFloat32(roundToOdd(v)))
	}
	panic("contract: Narrow of " + t.String())
}

// roundToOdd rounds v to float32: exact values stay, others take the
// neighbour whose last bit is one.
func roundToOdd(v float64) float32 {
	f := float32(v)
	if float64(f) == v || v != v {
		return f
	}
	b := math.Float32bits(f)
	if b&1 == 1 {
		return f
	}
	// f is the even neighbour (or an overflow to infinity, whose neighbour
	// below is the largest finite value, which is odd): step towards v.
	if math.Abs(float64(f)) > math.Abs(v) {
		b--
	} else {
		b++
	}
	return math.Float32frombits(b)
}

// Widen returns the value of a bit pattern of t, exactly.
func (t DType) Widen(bits uint64) float64 {
	switch t {
	case Float64:
		return math.Float64frombits(bits)
	case Float32:
		return float64(math.Float32frombits(uint32(bits)))
	case Float16:
		return float64(Float32FromFloat16(uint16(bits)))
	case BFloat16:
		return float64(Float32FromBFloat16(uint16(bits)))
	}
	panic("contract: Widen of " + t.String())
}
