package contract

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/blas64"
)

// BlockElements is how many elements a Folder accumulates at a time: small
// enough that accumulators and one addend stay in the first-level cache.
const BlockElements = 2048

// A Folder computes the contract's sum for one dtype, average and world. It
// owns scratch memory; one goroutine at a time may use it.
//
// On amd64 with AVX2 and F16C the bulk goes through assembly. Elsewhere, for
// the last few elements, and for the average pre, additions are gonum's Axpy
// with alpha 1: 1·x is exact, so each is one addition rounded once, and its
// vector code keeps elements apart. Both give the same bits.
type Folder struct {
	dtype   DType
	average Average
	scale   float64 // Mean: A(1/W); Pre: T(1/W); None: 1
	asm     bool    // the vector code takes what it can
	acc32   []float32
	tmp32   []float32
	acc64   []float64
	tmp64   []float64
	zeros32 []float32 // −0
	zeros64 []float64
}

// NewFolder returns a Folder for sums of world addends of dtype t. It panics
// on an invalid dtype, average or world.
func NewFolder(t DType, a Average, world int) *Folder {
	if !t.Valid() || a < Mean || a > None || world < 1 {
		panic(fmt.Sprintf("contract: NewFolder(%v, %v, %d)", t, a, world))
	}
	// Pre rounds each addend, which only the portable code does.
	f := &Folder{dtype: t, average: a, scale: 1, asm: hasVector && a != Pre}
	switch a {
	case Mean:
		f.scale = MeanScale(t, world)
	case Pre:
		f.scale = PreScale(t, world)
	}
	if t.Accumulator() == Float64 {
		f.acc64 = make([]float64, BlockElements)
		f.tmp64 = make([]float64, BlockElements)
		f.zeros64 = make([]float64, BlockElements)
		for i := range f.zeros64 {
			f.zeros64[i] = math.Copysign(0, -1)
		}
	} else {
		f.acc32 = make([]float32, BlockElements)
		f.tmp32 = make([]float32, BlockElements)
		f.zeros32 = make([]float32, BlockElements)
		for i := range f.zeros32 {
			f.zeros32[i] = float32(math.Copysign(0, -1))
		}
	}
	return f
}

// Fold adds addends[0], addends[1], … in that order, averages, and writes the
// result to every dst. All slices have the same length, whole elements,
// aligned; Fold panics otherwise. A dst may be one of the addends, but must not
// overlap one otherwise.
func (f *Folder) Fold(dsts, addends [][]byte) {
	size := len(addends[0])
	checkLengths(dsts, size)
	checkLengths(addends, size)
	block := BlockElements * f.dtype.Size()
	lo := 0
	if f.asm {
		lo = f.vector(dsts, addends)
	}
	for ; lo < size; lo += block {
		hi := min(lo+block, size)
		f.block(dsts, addends, lo, hi)
	}
}

func checkLengths(list [][]byte, size int) {
	for _, b := range list {
		if len(b) != size {
			panic(fmt.Sprintf("contract: Fold of slices of %d and %d bytes", size, len(b)))
		}
	}
}

func (f *Folder) block(dsts, addends [][]byte, lo, hi int) {
	n := (hi - lo) / f.dtype.Size()
	first := dsts[0][lo:hi]
	switch f.dtype {
	case Float64:
		acc, tmp := f.acc64[:n], f.tmp64[:n]
		for r, g := range addends {
			x := View[float64](g[lo:hi])
			if f.average == Pre {
				x = scaled64(tmp, x, f.scale)
			}
			if r == 0 {
				copy(acc, x)
				continue
			}
			blas64.Axpy(1, blas64.Vector{N: n, Data: x, Inc: 1}, blas64.Vector{N: n, Data: acc, Inc: 1})
		}
		f.store64(View[float64](first), acc)
	case Float32:
		acc, tmp := f.acc32[:n], f.tmp32[:n]
		for r, g := range addends {
			x := View[float32](g[lo:hi])
			if f.average == Pre {
				x = scaled32(tmp, x, float32(f.scale))
			}
			f.add32(acc, x, r == 0)
		}
		f.store32(View[float32](first), acc)
	default:
		acc, tmp := f.acc32[:n], f.tmp32[:n]
		for r, g := range addends {
			f.widen(tmp, View[uint16](g[lo:hi]))
			f.add32(acc, tmp, r == 0)
		}
		f.store16(View[uint16](first), acc)
	}
	for _, d := range dsts[1:] {
		copy(d[lo:hi], first)
	}
}

func (f *Folder) add32(acc, x []float32, first bool) {
	if first {
		copy(acc, x)
		return
	}
	blas32.Axpy(1, blas32.Vector{N: len(x), Data: x, Inc: 1}, blas32.Vector{N: len(x), Data: acc, Inc: 1})
}

func scaled32(dst, x []float32, scale float32) []float32 {
	for i, v := range x {
		dst[i] = float32(v * scale) // the conversion forbids fusing with a later addition
	}
	return dst
}

func scaled64(dst, x []float64, scale float64) []float64 {
	for i, v := range x {
		dst[i] = float64(v * scale)
	}
	return dst
}

// widen fills dst with the addends as float32, pre-scaled and rounded back to
// the 16-bit dtype when the average asks for it.
func (f *Folder) widen(dst []float32, x []uint16) {
	dst = dst[:len(x)]
	if f.dtype == BFloat16 {
		for i, h := range x {
			dst[i] = Float32FromBFloat16(h)
		}
	} else {
		for i, h := range x {
			dst[i] = Float32FromFloat16(h)
		}
	}
	if f.average == Pre {
		for i, v := range dst { // the float64 product of two 16-bit values is exact
			dst[i] = float32(f.dtype.Widen(f.dtype.Narrow(float64(v) * f.scale)))
		}
	}
}

// store32 averages the accumulators and writes them, NaN canonical.
//
// The mean is Axpy onto −0: x·scale is rounded once, and adding −0 changes no
// number and no sign of zero, so this is a vectorised multiplication.
func (f *Folder) store32(dst, acc []float32) {
	n := len(acc)
	vec := func(x []float32) blas32.Vector { return blas32.Vector{N: n, Data: x, Inc: 1} }
	if f.average == Mean {
		copy(dst, f.zeros32[:n])
		blas32.Axpy(float32(f.scale), vec(acc), vec(dst))
	} else {
		copy(dst, acc)
	}
	// A sum of squares is NaN exactly when one of them is.
	if sum := blas32.Dot(vec(dst), vec(dst)); sum != sum {
		for i, v := range dst {
			if v != v {
				dst[i] = math.Float32frombits(uint32(Float32.NaN()))
			}
		}
	}
}

func (f *Folder) store64(dst, acc []float64) {
	n := len(acc)
	vec := func(x []float64) blas64.Vector { return blas64.Vector{N: n, Data: x, Inc: 1} }
	if f.average == Mean {
		copy(dst, f.zeros64[:n])
		blas64.Axpy(f.scale, vec(acc), vec(dst))
	} else {
		copy(dst, acc)
	}
	if sum := blas64.Dot(vec(dst), vec(dst)); sum != sum {
		for i, v := range dst {
			if v != v {
				dst[i] = math.Float64frombits(Float64.NaN())
			}
		}
	}
}

func (f *Folder) store16(dst []uint16, acc []float32) {
	dst = dst[:len(acc)]
	if f.average == Mean {
		acc = scaled32(acc, acc, float32(f.scale))
	}
	if f.dtype == BFloat16 {
		for i, v := range acc {
			dst[i] = BFloat16FromFloat32(v)
		}
		return
	}
	for i, v := range acc {
		dst[i] = Float16FromFloat32(v)
	}
}
