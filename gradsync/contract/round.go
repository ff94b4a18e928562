package contract

import "math"

// Conversions between the 16-bit dtypes and float32. Widening is exact.
// Narrowing rounds to nearest even; overflow gives infinity, NaN the canonical
// NaN. Both are integer arithmetic, so no floating-point mode can change them.

// Float32FromFloat16 widens a float16 bit pattern, exactly.
func Float32FromFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	man := uint32(h) & 0x3ff
	switch exp {
	case 0x1f: // infinity or NaN; the payload moves up with the mantissa
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	case 0: // zero or subnormal: man × 2^-24, an integer times a power of two, exact
		v := float32(man) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(v))
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | man<<13)
}

// Float16FromFloat32 rounds to a float16 bit pattern.
func Float16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return uint16(Float16.NaN())
	case abs >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	case abs >= 0x38800000: // normal in float16: drop 13 bits
		abs -= (127 - 15) << 23
		return sign | uint16((abs+0xfff+abs>>13&1)>>13)
	case abs < 0x33000000: // below 2^-25: less than half the smallest subnormal
		return sign
	}
	// Subnormal: the mantissa with its hidden bit, in units of 2^-24.
	shift := 126 - abs>>23 // 14 .. 24
	man := abs&0x7fffff | 0x800000
	return sign | uint16((man+(1<<(shift-1)-1)+man>>shift&1)>>shift)
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
