package contract

import (
	"encoding/binary"
	"unsafe"
)

// View returns b as elements of type E without a copy. b must be aligned to E
// and hold whole elements; anything else is the caller's mistake and panics.
func View[E uint16 | uint32 | uint64 | float32 | float64](b []byte) []E {
	var e E
	size := int(unsafe.Sizeof(e))
	if len(b)%size != 0 {
		panic("contract: View of a partial element")
	}
	if len(b) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%uintptr(size) != 0 {
		panic("contract: View of misaligned memory")
	}
	return unsafe.Slice((*E)(p), len(b)/size)
}

// Bits returns the bit pattern of element i of b.
func (t DType) Bits(b []byte, i int) uint64 {
	switch t.Size() {
	case 2:
		return uint64(binary.LittleEndian.Uint16(b[2*i:]))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b[4*i:]))
	default:
		return binary.LittleEndian.Uint64(b[8*i:])
	}
}

// PutBits stores the bit pattern of element i of b.
func (t DType) PutBits(b []byte, i int, bits uint64) {
	switch t.Size() {
	case 2:
		binary.LittleEndian.PutUint16(b[2*i:], uint16(bits))
	case 4:
		binary.LittleEndian.PutUint32(b[4*i:], uint32(bits))
	default:
		binary.LittleEndian.PutUint64(b[8*i:], bits)
	}
}
