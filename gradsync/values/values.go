// Package values generates gradients: each value is a pure function of (seed,
// step, logical rank, parameter name, index), made with integer arithmetic only, so
// that any process or GPU can produce any rank's value without communication,
// and all produce the same bits.
//
// Sets:
//
//	wide       order-sensitive (the default): pairs of ranks (2k, 2k+1) carry
//	           large values that almost cancel, the others small ones, with an
//	           exponent that varies by element. A reversed or rotated fold of
//	           three or more ranks gives other bits in most elements, for every
//	           dtype, because small values that meet a large one lose their tail.
//	exact      integers from -15 to 15: every order gives one answer, so a lost
//	           or doubled contribution shows at tolerance 0.
//	cancel     ranks 2k and 2k+1 cancel exactly; a last odd rank remains.
//	subnormal  subnormal values of both signs: shows flush-to-zero.
//	zero       zeros of both signs, fifteen of sixteen negative: shows a chain that starts from +0.
//	huge       values near the largest finite one: sums overflow to infinity.
//	inf        wide, with about one element in 64 an infinity.
//	nan        wide, with about one element in 64 a NaN with a payload.
//
// The function. Keys are made once per (step, rank, parameter) by Key; for the
// element at index i, with 32-bit arithmetic (so that it is cheap on a GPU):
//
//	a = mix(lo(i)*0x9e3779b1 + hi(i)*0x85ebca77 + key.param)   the same on all ranks
//	c = step(a ^ key.pair)                                     the same on ranks 2k and 2k+1
//	d = step(c ^ key.rank)                                     this rank's own
//	mix(x):  x = (x ^ x>>16)*0x7feb352d;  x = (x ^ x>>15)*0x846ca68b;  x ^ x>>16
//	step(x): x = x*0xcc9e2d51;  x ^ x>>15
//
// and the bit pattern is put together from a, c and d as pattern.go shows.
package values

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// Set names a family of values.
type Set uint8

// The sets; the package comment says what each is for. The numbers are part
// of the GPU kernel's interface.
const (
	Wide Set = iota
	Exact
	Cancel
	Subnormal
	Zero
	Huge
	Inf
	NaN
	numSets
)

var setNames = [numSets]string{"wide", "exact", "cancel", "subnormal", "zero", "huge", "inf", "nan"}

// Names lists the sets.
func Names() []string { return append([]string(nil), setNames[:]...) }

// Parse reads a set by its name.
func Parse(s string) (Set, error) {
	for i, n := range setNames {
		if n == s {
			return Set(i), nil
		}
	}
	return 0, fmt.Errorf("unknown values %q; use one of %s", s, strings.Join(setNames[:], ", "))
}

// Finite reports whether the set has no infinities and no NaN.
func (s Set) Finite() bool { return s != Inf && s != NaN }

func (s Set) String() string { return setNames[s] }

// Key is what the function needs to know besides the index.
type Key struct {
	Param uint32 // from seed, step and parameter
	Pair  uint32 // and rank/2
	Rank  uint32 // and rank
	Odd   uint32 // rank mod 2
	First uint32 // 1 for ranks 0 and 1, whose pair is large more often
}

// KeyFor makes the key of one logical rank's parameter. A parameter is known by
// its name, so that its values do not depend on the order of parameters.
func KeyFor(seed uint64, step, rank int, param string) Key {
	h := fnv.New64a()
	h.Write([]byte(param))
	p := splitmix(splitmix(splitmix(seed)^uint64(step)) ^ h.Sum64())
	k := Key{
		Param: uint32(p),
		Pair:  uint32(splitmix(p ^ uint64(rank/2)<<1 ^ 0x5bd1e995)),
		Rank:  uint32(splitmix(p ^ uint64(rank)<<1 ^ 1)),
		Odd:   uint32(rank & 1),
	}
	if rank < 2 {
		k.First = 1
	}
	return k
}

// splitmix is the SplitMix64 finalizer (Steele, Lea and Flood, 2014).
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Fill writes the elements [first, first+n) of a parameter to b, whole elements
// of dtype t, aligned to t.
func Fill(b []byte, t contract.DType, set Set, k Key, first int64) {
	switch t {
	case contract.Float16:
		for j, v := 0, contract.View[uint16](b); j < len(v); j++ {
			a, c, d := hashes(k, uint64(first)+uint64(j))
			v[j] = uint16(format16.pattern(set, k, a, c, d))
		}
	case contract.BFloat16:
		for j, v := 0, contract.View[uint16](b); j < len(v); j++ {
			a, c, d := hashes(k, uint64(first)+uint64(j))
			v[j] = uint16(formatB.pattern(set, k, a, c, d))
		}
	case contract.Float32:
		for j, v := 0, contract.View[uint32](b); j < len(v); j++ {
			a, c, d := hashes(k, uint64(first)+uint64(j))
			v[j] = format32.pattern(set, k, a, c, d)
		}
	case contract.Float64:
		for j, v := 0, contract.View[uint64](b); j < len(v); j++ {
			a, c, d := hashes(k, uint64(first)+uint64(j))
			v[j] = pattern64(set, k, a, c, d)
		}
	}
}
