package check

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// Faults of reducers, each as the result that it would give. bound says that
// the error bound must show it too, in most elements; the bits always must.
var faults = []struct {
	name  string
	bound bool
	plant func(d contract.DType, a contract.Average, addends [][]byte, answer []byte) []byte
}{
	{"lost contribution", true, func(d contract.DType, a contract.Average, g [][]byte, _ []byte) []byte {
		zero := words(d, len(g[0])/d.Size())
		return refold(d, a, len(g), append([][]byte{zero}, g[1:]...))
	}},
	{"doubled contribution", true, func(d contract.DType, a contract.Average, g [][]byte, _ []byte) []byte {
		return refold(d, a, len(g), append([][]byte{g[1]}, g...))
	}},
	{"stale contribution", true, func(d contract.DType, a contract.Average, g [][]byte, _ []byte) []byte {
		old := draw(rand.New(rand.NewPCG(99, 99)), d, 1, len(g[0])/d.Size(), kinds[1].bits)
		return refold(d, a, len(g), append(old, g[1:]...))
	}},
	{"no average", true, func(d contract.DType, _ contract.Average, g [][]byte, _ []byte) []byte {
		return refold(d, contract.None, len(g), g)
	}},
	{"averaged twice", true, func(d contract.DType, _ contract.Average, g [][]byte, answer []byte) []byte {
		return refold(d, contract.Mean, len(g), [][]byte{answer})
	}},
	{"NaN in the result", false, func(d contract.DType, _ contract.Average, _ [][]byte, answer []byte) []byte {
		d.PutBits(answer, 7, d.NaN())
		return answer
	}},
	{"infinity in the result", false, func(d contract.DType, _ contract.Average, _ [][]byte, answer []byte) []byte {
		d.PutBits(answer, 7, d.Narrow(math.Inf(1)))
		return answer
	}},
	{"zeros", true, func(d contract.DType, _ contract.Average, _ [][]byte, answer []byte) []byte {
		clear(answer)
		return answer
	}},
	{"signs", true, func(d contract.DType, _ contract.Average, _ [][]byte, answer []byte) []byte {
		for i := range len(answer) / d.Size() {
			d.PutBits(answer, i, d.Bits(answer, i)^sign(d))
		}
		return answer
	}},
}

func refold(d contract.DType, a contract.Average, world int, addends [][]byte) []byte {
	got := words(d, len(addends[0])/d.Size())
	contract.NewFolder(d, a, world).Fold([][]byte{got}, addends)
	return got
}

func TestFaultsAreSeen(t *testing.T) {
	const n = 400
	for _, d := range contract.DTypes {
		for _, a := range []contract.Average{contract.Mean, contract.Pre} {
			for _, accum := range []contract.DType{d.Accumulator(), d} {
				for _, fault := range faults {
					t.Run(fmt.Sprintf("%v/%v/%v/%s", d, a, accum, fault.name), func(t *testing.T) {
						const world = 5
						addends := draw(rand.New(rand.NewPCG(1, 2)), d, world, n, kinds[1].bits)
						answer := refold(d, a, world, addends)
						c := New(d, a, world, accum)
						if r := c.Check(answer, addends, 0); r.Differ != 0 || r.Beyond != 0 {
							t.Fatalf("without the fault: %+v", r)
						}
						r := c.Check(fault.plant(d, a, addends, answer), addends, 0)
						if r.Differ == 0 || r.FirstDiffer == nil || r.Beyond == 0 || r.FirstBeyond == nil {
							t.Fatalf("not seen: %+v", r)
						}
						if fault.bound && r.Beyond < n*8/10 {
							t.Errorf("beyond the bound in %d of %d elements only", r.Beyond, n)
						}
						if m := r.FirstBeyond; m.Got == m.Want {
							t.Errorf("the first element beyond is %#x and should be %#x", m.Got, m.Want)
						}
					})
				}
			}
		}
	}
}

// What is too small for the bound, the bits see: one unit in the last place, and
// the sign of a zero.
func TestBitsAreSeen(t *testing.T) {
	for _, d := range contract.DTypes {
		zero, one := words(d, 1), words(d, 1)
		d.PutBits(one, 0, d.Narrow(1))
		for _, c := range []struct {
			name      string
			addends   [][]byte
			got, want uint64
			ulp       uint64
		}{
			{"one unit up", [][]byte{one, one}, d.Narrow(1) + 1, d.Narrow(1), 1},
			{"one unit down", [][]byte{one, one}, d.Narrow(1) - 1, d.Narrow(1), 1},
			{"sign of zero", [][]byte{zero, zero}, sign(d), 0, 0},
		} {
			got := words(d, 1)
			d.PutBits(got, 0, c.got)
			r := New(d, contract.Mean, 2, d.Accumulator()).Check(got, c.addends, 41)
			want := Mismatch{41, c.got, c.want}
			if r.Differ != 1 || *r.FirstDiffer != want || r.MaxULP != c.ulp {
				t.Errorf("%v, %s: %+v", d, c.name, r)
			}
		}
	}
}

// Inputs for which only some results can be right.
func TestSpecialValues(t *testing.T) {
	inf, nan, most := math.Inf(1), math.NaN(), math.MaxFloat32
	for _, c := range []struct {
		d       contract.DType
		addends []float64
		got     float64
		within  bool
	}{
		{contract.Float32, []float64{1, inf, 2}, inf, true},
		{contract.Float32, []float64{1, inf, 2}, nan, false},
		{contract.Float32, []float64{1, inf, 2}, -inf, false},
		{contract.Float32, []float64{1, inf, 2}, 3, false},
		{contract.Float64, []float64{1, inf, 2}, nan, false},
		{contract.Float64, []float64{1, inf, 2}, inf, true},
		{contract.Float32, []float64{inf, -inf, 2}, nan, true},
		{contract.Float32, []float64{inf, -inf, 2}, inf, false},
		{contract.Float32, []float64{1, nan, 2}, nan, true},
		{contract.Float32, []float64{1, nan, 2}, 3, false},
		{contract.Float64, []float64{1, nan, 2}, inf, false},
		// The chain may overflow, and any result is one of some order,
		{contract.Float32, []float64{most, most, -most}, inf, true},
		{contract.Float32, []float64{most, most, -most}, most, true},
		{contract.Float64, []float64{math.MaxFloat64, math.MaxFloat64, -math.MaxFloat64}, inf, true},
		{contract.Float64, []float64{math.MaxFloat64, math.MaxFloat64, -math.MaxFloat64}, math.MaxFloat64, true},
		// but an infinity that went in comes out, or meets its opposite.
		{contract.Float32, []float64{most, most, -inf}, nan, true},
		{contract.Float32, []float64{most, most, -inf}, -inf, true},
		{contract.Float32, []float64{most, most, -inf}, 0, false},
		// float16 overflows when it is rounded, not in its accumulator.
		{contract.Float16, []float64{65504, 65504, 0}, inf, true},
		{contract.Float16, []float64{65504, 65504, 0}, 65504, false},
		{contract.Float16, []float64{65504, 15, 0}, 65504, true},
		{contract.Float16, []float64{60000, 15, 0}, inf, false},
		{contract.Float16, []float64{-65504, -65504, 0}, inf, false},
		{contract.Float16, []float64{-65504, -65504, 0}, -inf, true},
	} {
		got, addends := words(c.d, 1), make([][]byte, len(c.addends))
		c.d.PutBits(got, 0, c.d.Narrow(c.got))
		for r, v := range c.addends {
			addends[r] = words(c.d, 1)
			c.d.PutBits(addends[r], 0, c.d.Narrow(v))
		}
		r := New(c.d, contract.None, len(addends), c.d.Accumulator()).Check(got, addends, 0)
		if within := r.Beyond == 0; within != c.within {
			t.Errorf("%v %v gives %v: within the bound is %v", c.d, c.addends, c.got, within)
		}
		if nonfinite := c.got-c.got != 0; r.NonFinite == 1 != nonfinite {
			t.Errorf("%v: counted %d non-finite results", c.got, r.NonFinite)
		}
	}
}

// A thread that flushes subnormals gives zeros where the contract has numbers;
// the absolute part of the bound must not hide that.
func TestFlushedSubnormalsAreSeen(t *testing.T) {
	for _, d := range contract.DTypes {
		addends := [][]byte{words(d, 1), words(d, 1)}
		d.PutBits(addends[0], 0, 3)
		d.PutBits(addends[1], 0, 5)
		r := New(d, contract.None, 2, d.Accumulator()).Check(words(d, 1), addends, 0)
		if r.Differ != 1 || r.Beyond != 1 || r.MaxULP != 8 {
			t.Errorf("%v: 3 + 5 units that gave 0: %+v", d, r)
		}
	}
}

func TestMerge(t *testing.T) {
	a := Result{Elements: 10, Differ: 1, FirstDiffer: &Mismatch{3, 1, 2}, MaxULP: 4, SumDiff: 9, SumRef: 16}
	a.Merge(Result{Elements: 5, Differ: 2, Beyond: 1, NonFinite: 1, FirstDiffer: &Mismatch{9, 1, 2}, FirstBeyond: &Mismatch{8, 1, 2}, MaxULP: 3, SumRef: math.MaxFloat64})
	a.Merge(Result{SumRef: math.MaxFloat64, SumDiff: 7})
	got := fmt.Sprintf("%d %d %d %d %d %d %d %v %v", a.Elements, a.Differ, a.Beyond, a.NonFinite, a.FirstDiffer.Index, a.FirstBeyond.Index, a.MaxULP, a.SumDiff, a.SumRef)
	if want := fmt.Sprintf("15 3 1 1 3 8 4 16 %v", math.MaxFloat64); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// Figures are numbers that JSON can carry, whatever was compared.
func TestRelativeL2(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want float64
	}{
		{Result{}, 0},
		{Result{SumRef: 4}, 0},
		{Result{SumDiff: 9, SumRef: 36}, 0.5},
		{Result{SumDiff: 9}, math.MaxFloat64},
		{Result{SumDiff: math.MaxFloat64, SumRef: math.SmallestNonzeroFloat64}, math.MaxFloat64},
	} {
		got := c.r.RelativeL2()
		if _, err := json.Marshal(got); err != nil || got > c.want || c.want != math.MaxFloat64 && got != c.want {
			t.Errorf("%+v: %v, not %v (%v)", c.r, got, c.want, err)
		}
	}
	addends := draw(rand.New(rand.NewPCG(5, 5)), contract.Float64, 2, 100, kinds[6].bits)
	r := New(contract.Float64, contract.None, 2, contract.Float64).Check(words(contract.Float64, 100), addends, 0)
	if _, err := json.Marshal([]any{r, r.RelativeL2()}); err != nil {
		t.Error(err)
	}
}

func TestULPs(t *testing.T) {
	for _, c := range []struct {
		d    contract.DType
		a, b uint64
		want uint64
	}{
		{contract.Float16, 0x0000, 0x8000, 0}, {contract.Float16, 0x0001, 0x8001, 2},
		{contract.Float32, 0x3f800000, 0x3f7fffff, 1}, {contract.Float32, 0xbf800000, 0xbf800002, 2},
		{contract.Float64, 0x7fefffffffffffff, 0xffefffffffffffff, 2 * 0x7fefffffffffffff},
	} {
		if got := ulps(c.d, c.a, c.b); got != c.want {
			t.Errorf("%v: %#x and %#x are %d apart, not %d", c.d, c.a, c.b, got, c.want)
		}
		if got := ulps(c.d, c.b, c.a); got != c.want {
			t.Errorf("%v: %#x and %#x are %d apart, not %d", c.d, c.b, c.a, got, c.want)
		}
	}
}
