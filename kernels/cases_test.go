package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/values"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// What the tests on the host, on the double and on a GPU share: the dtypes and averages, lengths around every boundary
// of a kernel, addends that show faults, and the answer.

var gradients = []struct {
	t cuda.DType
	c contract.DType
}{
	{cuda.Float16, contract.Float16}, {cuda.BFloat16, contract.BFloat16},
	{cuda.Float32, contract.Float32}, {cuda.Float64, contract.Float64},
}

var averages = []contract.Average{contract.Mean, contract.Pre, contract.None}

// lengths are those around a word, a line, a vector and a warp of them, and around lines that blocks own.
var lengths = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 1023, 1024, 1025, 4097, 20011}

func scaleOf(a contract.Average, t contract.DType, world int) Scale {
	switch a {
	case contract.Mean:
		return Scale{Factor: contract.MeanScale(t, world)}
	case contract.Pre:
		return Scale{Factor: contract.PreScale(t, world), Pre: true}
	}
	return Scale{Factor: 1}
}

func valuesOf(set values.Set, k values.Key) Values {
	return Values{k.Param, k.Pair, k.Rank, k.Odd, k.First, uint32(set)}
}

// addend is a rank's n values: of the generated sets in turn, or any bit patterns at all.
func addend(t contract.DType, n, rank int, seed uint64) []byte {
	b := make([]byte, n*t.Size()+8)[:n*t.Size()]
	set := values.Set(seed % 9)
	if int(set) < len(values.Names()) {
		values.Fill(b, t, set, values.KeyFor(seed, 0, rank, "p"), 0)
		return b
	}
	rng := rand.New(rand.NewPCG(seed, uint64(rank)))
	for i := 0; i < len(b); i += 2 {
		binary.LittleEndian.PutUint16(b[i:], uint16(rng.Uint32()))
	}
	return b
}

// answer is the contract's sum.
func answer(t contract.DType, a contract.Average, addends [][]byte) []byte {
	b := make([]byte, len(addends[0]))
	contract.NewFolder(t, a, len(addends)).Fold([][]byte{b}, addends)
	return b
}

// differ says where two runs of elements first differ, and is empty when they do not.
func differ(t contract.DType, got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	for i := range len(want) / t.Size() {
		if g, w := t.Bits(got, i), t.Bits(want, i); g != w {
			return fmt.Sprintf("element %d of %d is %#x, not %#x", i, len(want)/t.Size(), g, w)
		}
	}
	return "lengths differ"
}

const guardBytes = 64

// guard marks the bytes around a buffer, and guarded says whether the marks still stand.
func guard(b []byte, n int) []byte {
	for i := range b {
		b[i] = 0xa5
	}
	return b[guardBytes : guardBytes+n]
}

func guarded(b []byte, n int) bool {
	mark := bytes.Repeat([]byte{0xa5}, len(b)-n)
	return bytes.Equal(b[:guardBytes], mark[:guardBytes]) && bytes.Equal(b[guardBytes+n:], mark[guardBytes:])
}
