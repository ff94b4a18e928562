// Package contract holds the arithmetic that ddpstep promises: the sum of W
// gradient contributions in ascending rank order.
//
//	s = A(g_0)
//	for r = 1 .. W-1:  s = s + A(g_r)     one IEEE-754 addition, round to nearest even
//	result = T(average(s))                one rounding to T, NaN canonical
//
// T is the gradient's dtype, A its accumulator: float32 for float16, bfloat16
// and float32; float64 for float64. The chain starts from g_0, not from +0, so
// that −0 + −0 stays −0. Nothing is fused, flushed or reassociated, so the bits
// depend on the values, W, T and the average, and on nothing else: not on
// buckets, processes, hosts, transports or processors.
//
// Buffers are little-endian bytes, as MPI, CUDA and safetensors carry them.
// The floating-point environment of the calling thread must be the IEEE
// default (package fpenv); a thread with flush-to-zero on breaks the promise.
package contract

import "fmt"

// DType is the type of one gradient element.
type DType uint8

// The dtypes that gradients have.
const (
	Float16 DType = iota + 1
	BFloat16
	Float32
	Float64
)

// DTypes lists every dtype, narrow ones first.
var DTypes = []DType{Float16, BFloat16, Float32, Float64}

var dtypes = [...]struct {
	name          string
	size          int
	mantissa      int // explicit mantissa bits
	minExp        int // exponent of the smallest normal value, as in 1.m × 2^minExp
	maxExp        int // exponent of the largest finite value
	accum         DType
	nan, infinity uint64
}{
	Float16:  {"float16", 2, 10, -14, 15, Float32, 0x7e00, 0x7c00},
	BFloat16: {"bfloat16", 2, 7, -126, 127, Float32, 0x7fc0, 0x7f80},
	Float32:  {"float32", 4, 23, -126, 127, Float32, 0x7fc00000, 0x7f800000},
	Float64:  {"float64", 8, 52, -1022, 1023, Float64, 0x7ff8000000000000, 0x7ff0000000000000},
}

// ParseDType reads a dtype by its name: float16, bfloat16, float32 or float64.
func ParseDType(s string) (DType, error) {
	for _, t := range DTypes {
		if t.String() == s {
			return t, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %q; use float16, bfloat16, float32 or float64", s)
}

// Valid reports whether t is one of the dtypes above.
func (t DType) Valid() bool { return t >= Float16 && t <= Float64 }

func (t DType) String() string {
	if !t.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(t))
	}
	return dtypes[t].name
}

// MarshalText writes the dtype's name, so that JSON shows it.
func (t DType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (t *DType) UnmarshalText(b []byte) (err error) {
	*t, err = ParseDType(string(b))
	return err
}

// Size is the number of bytes of one element.
func (t DType) Size() int { return dtypes[t].size }

// MantissaBits is the number of explicit mantissa bits.
func (t DType) MantissaBits() int { return dtypes[t].mantissa }

// MinExp is the binary exponent of the smallest normal value.
func (t DType) MinExp() int { return dtypes[t].minExp }

// MaxExp is the binary exponent of the largest finite value.
func (t DType) MaxExp() int { return dtypes[t].maxExp }

// Accumulator is the dtype in which the chain adds.
func (t DType) Accumulator() DType { return dtypes[t].accum }

// NaN is the bit pattern in which every NaN result is stored.
func (t DType) NaN() uint64 { return dtypes[t].nan }

// Finite reports whether the bit pattern is neither an infinity nor a NaN.
func (t DType) Finite(bits uint64) bool { return bits&dtypes[t].infinity != dtypes[t].infinity }
