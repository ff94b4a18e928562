package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// Args holds the arguments of a kernel in C memory, laid out once and set in place before each launch, so that a launch
// allocates nothing. Set them in the kernel's order and sizes: the driver knows neither and checks neither.
type Args struct {
	block []byte // the array of addresses, then the values, each at a multiple of 16
	off   []int  // of each value in block
	size  []int
}

// NewArgs makes room for parameters of these sizes in bytes, a structure passed by value being one parameter. All are
// zero at first.
func NewArgs(sizes ...int) *Args {
	a := &Args{size: sizes, off: make([]int, len(sizes))}
	at := (8*len(sizes) + 15) &^ 15
	for i, n := range sizes {
		a.off[i] = at
		at += (n + 15) &^ 15
	}
	a.block = cArray(max(at, 16))
	addresses := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&a.block[0])), len(sizes))
	for i, off := range a.off {
		addresses[i] = unsafe.Pointer(&a.block[off])
	}
	return a
}

// Free gives the memory back. Queued launches have their own copy.
func (a *Args) Free() {
	if a.block != nil {
		cFree(a.block)
		a.block = nil
	}
}

// Bytes returns the memory of parameter i, for a structure that the caller lays out as C does.
func (a *Args) Bytes(i int) []byte {
	return a.block[a.off[i] : a.off[i]+a.size[i] : a.off[i]+a.size[i]]
}

// Uint64, Uint32, Float32 and Float64 set parameter i. They panic when its size is another.
func (a *Args) Uint64(i int, v uint64)   { binary.NativeEndian.PutUint64(a.sized(i, 8), v) }
func (a *Args) Uint32(i int, v uint32)   { binary.NativeEndian.PutUint32(a.sized(i, 4), v) }
func (a *Args) Float32(i int, v float32) { a.Uint32(i, math.Float32bits(v)) }
func (a *Args) Float64(i int, v float64) { a.Uint64(i, math.Float64bits(v)) }

// Buffer sets parameter i to the address of a buffer.
func (a *Args) Buffer(i int, b Buffer) error {
	p, err := b.Ptr()
	if err != nil {
		return fmt.Errorf("cuda: argument %d: %w", i, err)
	}
	a.Uint64(i, p)
	return nil
}

func (a *Args) sized(i, n int) []byte {
	if a.size[i] != n {
		panic(fmt.Sprintf("cuda: argument %d has %d bytes, set as %d", i, a.size[i], n))
	}
	return a.Bytes(i)
}

// params is what the driver takes: the addresses of the values. A nil Args is a kernel without parameters.
func (a *Args) params() (*unsafe.Pointer, error) {
	if a == nil {
		return nil, nil
	}
	if a.block == nil {
		return nil, fmt.Errorf("arguments: %w", ErrFreed)
	}
	return (*unsafe.Pointer)(unsafe.Pointer(&a.block[0])), nil
}
