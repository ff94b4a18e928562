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
// arithmetic is modulo 2^32, except × which gives 64 bits.
//
//	x = lo(i)*0x9e3779b1 + hi(i)*0x85ebca77 + 0x165667b1
//	j = (x ^ x>>15) * 0x85ebca6b
//	k = j ^ j>>13
//	lane A:  (lo(p) ^ k)         ×  (lo(p)*0xc2b2ae3d + hi(p)*0x27d4eb2f + j)
//	lane B:  (lo(p) ^ (j + k))   ×  (lo(p)*0x9e3779b1 + hi(p)*0x85ebca77 + k)
//
// Test vectors, lane A and lane B of one element:
//
//	dtype             index   pattern            lane A           lane B
//	float32               0   00000000           32bb1f6f38c580eb 6576ea855bfcd0e4
//	float32               0   80000000           e4b1275938c580eb 5e718e14dbfcd0e4
//	float32               1   3f800000           293daad4fa1ed0bd af9eb1ad40df32de
//	float16               2   3c00               066e55fb9a08620e 006c2956e7fa4332
//	bfloat16     4294967295   7fc0               09306b47b202410f 81a076e2bd3784b0
//	float32      4294967296   7f800000           195c3e4854946994 04747656fc31a6bd
//	float64               5   3ff0000000000001   be4735d655dd44d0 9f99aa24624c8f08
//	float64   1099511627776   fff0000000000000   5fe10838ed1cdf30 cacafd961a354301
//
// and the digest of the 1000 float32 elements 0, 1, 2, … 999:
//
//	daf89ffc970883deeb498937e2ebb116
//
// The index keys j and k are not linear in i and multiply the pattern, so that
// swapped elements, shifted blocks and errors that cancel in a plain sum show;
// a factor that happens to be zero hides an element from one lane only. Five
// multiplications and a dozen other operations cost a GPU less than reading
// the data.
package digest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

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
	x := uint32(i)*0x9e3779b1 + uint32(i>>32)*0x85ebca77 + 0x165667b1
	j := (x ^ x>>15) * 0x85ebca6b
	k := j ^ j>>13
	a = uint64(lo^k) * uint64(lo*0xc2b2ae3d+hi*0x27d4eb2f+j)
	b = uint64(lo^(j+k)) * uint64(lo*0x9e3779b1+hi*0x85ebca77+k)
	return a, b
}
