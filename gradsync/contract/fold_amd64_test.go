package contract_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/check"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
)

// pattern draws a bit pattern: any, or one where trouble lives.
func pattern(rng *rand.Rand, t contract.DType) uint64 {
	width := 8 * t.Size()
	mantissa := t.MantissaBits()
	infinity := t.NaN() &^ (1<<(mantissa-1) | 1<<(width-1))
	sign := rng.Uint64() & 1 << (width - 1)
	low := rng.Uint64() & (1<<mantissa - 1)
	switch rng.IntN(16) {
	case 0:
		return sign // zeros
	case 1:
		return sign | infinity
	case 2:
		return sign | infinity | max(low, 1) // NaN, quiet or signalling, any payload
	case 3:
		return sign | low // subnormal
	case 4:
		return sign | (infinity - 1) // largest
	case 5, 6, 7, 8, 9, 10: // near one, where sums round
		one := uint64(t.MaxExp()) << mantissa
		return sign | (one+(rng.Uint64N(5)-2)<<mantissa)&infinity | low
	}
	return rng.Uint64() & (1<<(width-1)<<1 - 1)
}

func TestVectorFoldHasThePortableBits(t *testing.T) {
	if !contract.HasVector {
		t.Skip("needs a processor with AVX2 and F16C")
	}
	fpenv.Set()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dt := range contract.DTypes {
		for _, average := range []contract.Average{contract.Mean, contract.None} {
			for world := 1; world <= 9; world++ {
				t.Run(fmt.Sprintf("%v/%v/%d", dt, average, world), func(t *testing.T) {
					for _, n := range []int{1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 129, 1000 + rng.IntN(3000)} {
						compare(t, rng, dt, average, world, n)
					}
				})
			}
		}
	}
}

// compare folds n elements in place with and without assembly, into every
// rank's gradients, which lie at odd places between guards.
func compare(t *testing.T, rng *rand.Rand, dt contract.DType, average contract.Average, world, n int) {
	const guard = 64
	size := dt.Size()
	var around, addends, original, portable [][]byte
	for range world {
		mem := bytes.Repeat([]byte{0xa5}, n*size+2*guard)
		at := rng.IntN(32/size)*size + 32
		g := mem[at : at+n*size]
		for i := range n {
			dt.PutBits(g, i, pattern(rng, dt))
		}
		around, addends = append(around, mem[:at], mem[at+n*size:]), append(addends, g)
		original, portable = append(original, slices.Clone(g)), append(portable, slices.Clone(g))
	}
	contract.NewFolder(dt, average, world).Portable().Fold(portable, portable)
	contract.NewFolder(dt, average, world).Fold(addends, addends)
	for r, g := range addends {
		for i := range n {
			if got, want := dt.Bits(g, i), dt.Bits(portable[r], i); got != want {
				t.Fatalf("destination %d, element %d of %d: %#x, portable code %#x", r, i, n, got, want)
			}
		}
	}
	for _, mem := range around {
		if len(bytes.Trim(mem, "\xa5")) > 0 {
			t.Fatalf("%d elements: wrote outside the destination", n)
		}
	}
	found := check.New(dt, average, world, dt.Accumulator()).Check(addends[0], original, 0)
	if found.Differ > 0 {
		t.Fatalf("%d elements of %d differ from the independent fold, first %+v", found.Differ, n, found.FirstDiffer)
	}
}

// TestVectorRoundsEveryPattern adds to every 16-bit pattern some that lie up to
// sixteen exponents away: every rounding case of every exponent.
func TestVectorRoundsEveryPattern(t *testing.T) {
	if !contract.HasVector {
		t.Skip("needs a processor with AVX2 and F16C")
	}
	fpenv.Set()
	rng := rand.New(rand.NewPCG(3, 4))
	for _, dt := range []contract.DType{contract.Float16, contract.BFloat16} {
		all, other := make([]byte, 2<<16), make([]byte, 2<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(all[2*i:], uint16(i))
		}
		for range 8 {
			for i := range 1 << 16 {
				near := uint16(i) - uint16(rng.IntN(16)<<dt.MantissaBits()) ^ uint16(rng.IntN(64)) ^ uint16(rng.IntN(2)<<15)
				binary.LittleEndian.PutUint16(other[2*i:], near)
			}
			for _, average := range []contract.Average{contract.Mean, contract.None} {
				got, want := make([]byte, 2<<16), make([]byte, 2<<16)
				addends := [][]byte{all, other, all}
				contract.NewFolder(dt, average, 3).Fold([][]byte{got}, addends)
				contract.NewFolder(dt, average, 3).Portable().Fold([][]byte{want}, addends)
				if !bytes.Equal(got, want) {
					t.Fatalf("%v, %v: the assembly's bits differ from the portable code's", dt, average)
				}
				for lo := 0; lo < len(got); lo += 2 * check.Block {
					hi := lo + 2*check.Block
					part := [][]byte{all[lo:hi], other[lo:hi], all[lo:hi]}
					if found := check.New(dt, average, 3, dt.Accumulator()).Check(got[lo:hi], part, 0); found.Differ > 0 {
						t.Fatalf("%v, %v: %+v", dt, average, found.FirstDiffer)
					}
				}
			}
		}
	}
}

func TestFoldRefusesUnequalLengths(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("folded slices of different lengths")
		}
	}()
	long, short := make([]byte, 256), make([]byte, 128)
	contract.NewFolder(contract.Float32, contract.Mean, 2).Fold([][]byte{long}, [][]byte{long, short})
}

// BenchmarkFold folds in place, as the reducers do.
func BenchmarkFold(b *testing.B) {
	for _, dt := range contract.DTypes {
		for _, n := range []int{1 << 10, 64 << 10} {
			for _, code := range []string{"vector", "portable"} {
				b.Run(fmt.Sprintf("%v/%d/%s", dt, n, code), func(b *testing.B) {
					f := contract.NewFolder(dt, contract.Mean, 2)
					if code == "portable" {
						f.Portable()
					}
					rng := rand.New(rand.NewPCG(5, 6))
					var addends [][]byte
					for range 2 {
						g := make([]byte, n*dt.Size())
						for i := range n {
							dt.PutBits(g, i, finite(rng, dt))
						}
						addends = append(addends, g)
					}
					b.SetBytes(int64(n * dt.Size()))
					b.ReportAllocs()
					for b.Loop() {
						f.Fold(addends, addends)
					}
				})
			}
		}
	}
}

// finite draws a finite value of any magnitude.
func finite(rng *rand.Rand, dt contract.DType) uint64 {
	for {
		if v := rng.Uint64() >> (64 - 8*dt.Size()); dt.Finite(v) {
			return v
		}
	}
}
