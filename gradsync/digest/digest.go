// Package digest computes ddpstep's digest of a gradient: a 128-bit number that
// is equal when all bits are equal, and differs, in practice, when any differs.
//
// It is a sum over elements of a mix of (index, bit pattern), in two lanes of
// 64 bits, each modulo 2^64. Addition commutes, so the digest does not depend
// on how elements are split over threads, buckets and ranks: parts are digested
// apart and added. It detects accidents, not attackers.
//
// The mix. Let i be the element's index within its parameter, p its bit
// pattern, zero-extended to 64 bits; lo and hi are 32-bit halves; all
// arithmetic is modulo 2^32, except × which gives 64 bits, and the final
// additions, modulo 2^64.
//
//	k  = lo(i)*0x9e3779b1 + hi(i)*0x85ebca77 + 0x165667b1
//	k  = (k ^ k>>15) * 0x85ebca6b
//	k  = k ^ k>>13
//	lane A:  u = lo(p) ^ k          v = (lo(p) + rotl(k,16))*0xc2b2ae3d + hi(p)*0x27d4eb2f
//	k' = k*0xcc9e2d51 + 0x1b873593
//	lane B:  u = lo(p) ^ k'         v = (lo(p) + rotl(k',16))*0x9e3779b1 + hi(p)*0x85ebca77
//	mix = u×v + (v<<32 | u)
//
// Test vectors, lane A and lane B of one element:
//
//	dtype             index   pattern            lane A           lane B
//	float32               0   00000000           2c3833e40a3fff6b a253a1d6b4148cc8
//	float32               0   80000000           9b1b7d590a3fff6b 0514100534148cc8
//	float32               1   3f800000           5c23466dd8282d23 5acab9c80f47b914
//	float16               2   3c00               b4bf5b8b0cc655bc 86d9f2b83cfeb303
//	bfloat16     4294967295   7fc0               087377659ff0ddfb 079e990b89810a48
//	float32      4294967296   7f800000           cb4924a45bb6e88c 0c86326ac166dd40
//	float64               5   3ff0000000000001   ba8fe7ac6fcf2a2c 1e0d91217f464723
//	float64   1099511627776   fff0000000000000   0cd763c3f957c50c 444280fb05c7dff6
//
// and the digest of the 1000 float32 elements 0, 1, 2, … 999:
//
//	e0a3c0bbd1f95672c05fc02d491bda5b
//
// The index key k is not linear in i and multiplies the pattern, so that
// swapped elements, shifted blocks and errors that cancel in a plain sum show. A
// few 32-bit multiplications an element cost a GPU less than reading the data.
package digest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// Digest is the two lanes. The zero Digest is that of no elements.
type Digest struct{ A, B uint64 }

// Add returns the digest of the union of two disjoint sets of elements.
func (d Digest) Add(e Digest) Digest { return Digest{d.A + e.A, d.B + e.B} }

// String is 32 hexadecimal digits, lane A first.
func (d Digest) String() string { return fmt.Sprintf("%016x%016x", d.A, d.B) }

// MarshalText writes what String gives.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Digest) UnmarshalText(b []byte) error {
	var raw [16]byte
	if len(b) != 2*len(raw) {
		return fmt.Errorf("digest %q has %d characters, not 32", b, len(b))
	}
	if _, err := hex.Decode(raw[:], b); err != nil {
		return fmt.Errorf("digest %q: %w", b, err)
	}
	d.A, d.B = be64(raw[:8]), be64(raw[8:])
	return nil
}

// FromBytes reads the lanes as kernels leave them: two little-endian words,
// A first.
func FromBytes(b []byte) Digest {
	return Digest{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

func be64(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

// Of digests the elements of one parameter that b holds: whole elements of
// dtype t, the first of them at index first within the parameter. b must be
// aligned to t.
func Of(t contract.DType, first uint64, b []byte) Digest {
	switch t.Size() {
	case 2:
		return of(first, contract.View[uint16](b))
	case 4:
		return of(first, contract.View[uint32](b))
	default:
		return of(first, contract.View[uint64](b))
	}
}

func of[E uint16 | uint32 | uint64](first uint64, v []E) (d Digest) {
	for j, p := range v {
		a, b := mix(first+uint64(j), uint64(p))
		d.A += a
		d.B += b
	}
	return d
}

func mix(i, p uint64) (a, b uint64) {
	lo, hi := uint32(p), uint32(p>>32)
	k := uint32(i)*0x9e3779b1 + uint32(i>>32)*0x85ebca77 + 0x165667b1
	k = (k ^ k>>15) * 0x85ebca6b
	k ^= k >> 13
	a = fold(lo^k, (lo+bits.RotateLeft32(k, 16))*0xc2b2ae3d+hi*0x27d4eb2f)
	k = k*0xcc9e2d51 + 0x1b873593
	b = fold(lo^k, (lo+bits.RotateLeft32(k, 16))*0x9e3779b1+hi*0x85ebca77)
	return a, b
}

func fold(u, v uint32) uint64 {
	return uint64(u)*uint64(v) + (uint64(v)<<32 | uint64(u))
}
