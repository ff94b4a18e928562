package values

import "math/bits"

// format describes the word that holds sign, exponent and leading mantissa: the
// whole value, or the upper half of a float64.
type format struct {
	mantissa uint32 // mantissa bits in the word
	bias     uint32 // exponent bias
	base     uint32 // lowest exponent field of a small wide value
	spread   uint32 // mask of the element's own exponent offset
	top      uint32 // exponent field of the largest finite values
	sign     uint32 // the sign bit's position
}

var (
	format16 = format{10, 15, 2, 3, 30, 15}
	formatB  = format{7, 127, 87, 63, 254, 15}
	format32 = format{23, 127, 87, 63, 254, 31}
	format64 = format{20, 1023, 983, 63, 2046, 31} // upper word
)

const (
	largeBy   = 23 // binades between a small value and a large one of the same element
	sharedTop = 13 // leading mantissa bits that a pair of large values shares; the rest is each rank's own
)

func hashes(k Key, i uint64) (a, c, d uint32) {
	a = uint32(i)*0x9e3779b1 + uint32(i>>32)*0x85ebca77 + k.Param
	a = (a ^ a>>16) * 0x7feb352d
	a = (a ^ a>>15) * 0x846ca68b
	a ^= a >> 16
	c = (a ^ k.Pair) * 0xcc9e2d51
	c ^= c >> 15
	d = (c ^ k.Rank) * 0xcc9e2d51
	d ^= d >> 15
	return a, c, d
}

// pattern puts the word together.
func (f *format) pattern(set Set, k Key, a, c, d uint32) uint32 {
	mask := uint32(1)<<f.mantissa - 1
	sign := d >> 31
	own := d >> (23 - f.mantissa) & mask
	shared := c >> (32 - f.mantissa)
	exp := f.base + a>>26&f.spread
	var man uint32
	switch set {
	case Exact:
		n := d >> 27 & 15
		if n == 0 {
			return 0
		}
		e := uint32(bits.Len32(n)) - 1
		exp, man = f.bias+e, n<<(f.mantissa-e)&mask
	case Cancel:
		sign, man = k.Odd, shared
	case Subnormal:
		exp, man = 0, own
	case Zero:
		exp, man = 0, 0
		if d>>28 != 0 {
			sign = 1
		} else {
			sign = 0
		}
	case Huge:
		exp, man = f.top, own
	default:
		if special := d>>3&63 == 0; special && set == Inf {
			exp, man = f.top+1, 0
			break
		} else if special && set == NaN {
			exp, man = f.top+1, own|1<<(f.mantissa-1)
			break
		}
		if large := c&3 == 0; large != (k.First == 1) {
			// Odd ranks are negative: the pair cancels but for its own bits.
			tail := uint32(0)
			if f.mantissa > sharedTop {
				tail = 1<<(f.mantissa-sharedTop) - 1
			}
			sign, exp, man = k.Odd, exp+largeBy, shared&^tail|d>>4&tail
		} else {
			exp, man = exp+d>>29&3, own
		}
	}
	return sign<<f.sign | exp<<f.mantissa | man
}

// pattern64 adds the lower half of a float64 to its upper word.
func pattern64(set Set, k Key, a, c, d uint32) uint64 {
	hi := format64.pattern(set, k, a, c, d)
	var lo uint32
	switch set {
	case Exact, Zero:
	case Cancel:
		lo = c*0x85ebca6b ^ a
	case Inf:
		if hi<<1 != 0xffe00000 {
			lo = d*0x85ebca6b ^ c
		}
	default:
		lo = d*0x85ebca6b ^ c
	}
	return uint64(hi)<<32 | uint64(lo)
}
