package contract

import "golang.org/x/sys/cpu"

// The assembly folds dsts and addends from byte lo to byte hi. Neither list
// may be empty, and hi-lo is a multiple of vectorBytes.

//go:noescape
func foldFloat16(dsts, addends [][]byte, lo, hi int, scale float32)

//go:noescape
func foldBFloat16(dsts, addends [][]byte, lo, hi int, scale float32)

//go:noescape
func foldFloat32(dsts, addends [][]byte, lo, hi int, scale float32)

//go:noescape
func foldFloat64(dsts, addends [][]byte, lo, hi int, scale float64)

func hasF16C() bool

const vectorBytes = 128

// hasVector says whether this processor runs the assembly. Only the F16C bit
// is asked of the processor here: AVX2 in package cpu already means that the
// system saves the registers.
var hasVector = cpu.X86.HasAVX2 && hasF16C()

// vector folds the first bytes of each list, as many as the assembly takes,
// and returns how many. scale is 1 where nothing is averaged: 1·x is exact.
func (f *Folder) vector(dsts, addends [][]byte) int {
	hi := len(addends[0]) / vectorBytes * vectorBytes
	switch f.dtype {
	case Float16:
		foldFloat16(dsts, addends, 0, hi, float32(f.scale))
	case BFloat16:
		foldBFloat16(dsts, addends, 0, hi, float32(f.scale))
	case Float32:
		foldFloat32(dsts, addends, 0, hi, float32(f.scale))
	case Float64:
		foldFloat64(dsts, addends, 0, hi, f.scale)
	}
	return hi
}
