package kernels

import (
	"fmt"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// Scale is the average, as the kernels take it. The zero Scale is not one; a plain sum has Factor 1.
type Scale struct {
	Factor float64 // by which the sum is multiplied, or each addend: A(1/W), T(1/W), or 1
	Pre    bool    // multiply each addend and round it to its type, before the sum
}

// Values is what fill needs to know besides the index: the parts of a values.Key, and the number of the set.
type Values struct{ Param, Pair, Rank, Odd, First, Set uint32 }

// An operand is a buffer in plain numbers.
type operand struct {
	at uint64
	t  cuda.DType
	n  int
}

func (o operand) bytes() int { return o.n * o.t.Size() }

func operandOf(b cuda.Buffer) (operand, error) {
	at, err := b.Ptr()
	return operand{at, b.DType(), b.Len()}, err
}

// alike checks that all operands are n elements of one gradient type, aligned to it, and returns their addresses.
func alike(what string, like operand, ops []operand) ([]uint64, error) {
	at := make([]uint64, len(ops))
	for i, o := range ops {
		if o.t != like.t || o.n != like.n {
			return nil, fmt.Errorf("kernels: %s %d is %d of %v where %d of %v are wanted", what, i, o.n, o.t, like.n, like.t)
		}
		if o.at%uint64(o.t.Size()) != 0 {
			return nil, fmt.Errorf("kernels: %s %d at %#x is not aligned to its %v", what, i, o.at, o.t)
		}
		at[i] = o.at
	}
	return at, nil
}

func gradient(t cuda.DType) error {
	switch t {
	case cuda.Float16, cuda.BFloat16, cuda.Float32, cuda.Float64:
		return nil
	}
	return fmt.Errorf("kernels: no sum of %v; use float16, bfloat16, float32 or float64", t)
}

func within(what string, n, low, high int) error {
	if n < low || n > high {
		return fmt.Errorf("kernels: %d %s; %d to %d are possible", n, what, low, high)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// sumOf checks what every kernel that adds is given.
func sumOf(addends, results []operand, scale Scale, first int) (sumArgs, error) {
	if err := firstError(within("addends", len(addends), 1, MaxWorld), within("results", len(results), 1, MaxProcs)); err != nil {
		return sumArgs{}, err
	}
	if err := firstError(gradient(addends[0].t), within("as the first result", first, 0, len(results)-1)); err != nil {
		return sumArgs{}, err
	}
	if !(scale.Factor > 0 && scale.Factor <= 1) {
		return sumArgs{}, fmt.Errorf("kernels: scale %g is not in (0, 1]", scale.Factor)
	}
	a, errA := alike("addend", addends[0], addends)
	r, errR := alike("result", addends[0], results)
	return sumArgs{a, r, scale, first}, firstError(errA, errR)
}

func foldCalls(addends, results []operand, scale Scale, first int, shape Shape) ([]call, error) {
	sum, err := sumOf(addends, results, scale, first)
	if err != nil || addends[0].n == 0 {
		return nil, err
	}
	if shape == (Shape{}) {
		shape = foldShape(addends[0].bytes())
	}
	return []call{newCall("fold_"+addends[0].t.String(), shape, foldArgs{sum, addends[0].n})}, nil
}

func twoShotCalls(p peersArgs, addends, results []operand, scale Scale, shape Shape) ([]call, error) {
	sum, err := sumOf(addends, results, scale, p.self)
	if err != nil {
		return nil, err
	}
	if len(results) != len(p.shared) {
		return nil, fmt.Errorf("kernels: two-shot with %d results among %d processes", len(results), len(p.shared))
	}
	x := addends[0]
	slice := SliceElements(x.n, x.t.Size(), len(p.shared))
	if shape == (Shape{}) {
		shape = twoShotShape(slice * x.t.Size())
	}
	if err := within("blocks of a two-shot", shape.Blocks, 1, maxBlocks); err != nil || x.n == 0 {
		return nil, err
	}
	return []call{newCall("twoshot_"+x.t.String(), shape, twoShotArgs{sum, p, x.n, slice})}, nil
}

func oneShotCalls(p peersArgs, addends []operand, result operand, scale Scale, world, first, threads int) ([]call, error) {
	sum, err := sumOf(addends, []operand{result}, scale, 0)
	if err != nil {
		return nil, err
	}
	err = firstError(within("logical ranks", world, len(addends), MaxWorld), within("as the first rank", first, 0, world-len(addends)),
		within("bytes in a one-shot", result.bytes(), 0, OneShotBytes))
	if err != nil || result.n == 0 {
		return nil, err
	}
	shape := oneShotShape(result.bytes())
	if threads != 0 {
		shape.Threads = threads
	}
	return []call{newCall("oneshot_"+result.t.String(), shape, oneShotArgs{sum.addends, result.at, scale, result.n, world, first, p})}, nil
}

func barrierCalls(p peersArgs) []call {
	return []call{newCall("barrier", Shape{1, max(ceil(len(p.shared), 32), 1) * 32}, p)}
}

// spans calls f for the parts of n elements from index on whose indices have one upper half, which the kernels want.
func spans(index uint64, n int, f func(index uint64, offset, n int)) {
	for offset := 0; offset < n; {
		part := min(uint64(n-offset), 1<<32-index&(1<<32-1))
		f(index, offset, int(part))
		index, offset = index+part, offset+int(part)
	}
}

func digestCalls(x operand, index uint64, sums operand, shape Shape) (calls []call, err error) {
	size := x.t.Size()
	if size != 2 && size != 4 && size != 8 {
		return nil, fmt.Errorf("kernels: no digest of %v", x.t)
	}
	_, errX := alike("digest's buffer", x, []operand{x})
	_, errS := alike("digest's sum", operand{t: cuda.Uint64, n: 2}, []operand{sums})
	if err := firstError(errX, errS); err != nil {
		return nil, err
	}
	spans(index, x.n, func(index uint64, offset, n int) {
		s := shape
		if s == (Shape{}) {
			s = accesses(ceil(n*size, 16), freeBlocks)
		}
		calls = append(calls, newCall(fmt.Sprintf("digest_%d", size), s, digestArgs{x.at + uint64(offset*size), sums.at, n, index}))
	})
	return calls, nil
}

func fillCalls(x operand, index uint64, v Values, shape Shape) (calls []call, err error) {
	_, errX := alike("fill's buffer", x, []operand{x})
	if err := firstError(gradient(x.t), errX, within("as the set of values", int(v.Set), 0, 7)); err != nil {
		return nil, err
	}
	size := x.t.Size()
	spans(index, x.n, func(index uint64, offset, n int) {
		s := shape
		if s == (Shape{}) {
			s = accesses(ceil(n*size, 16), freeBlocks)
		}
		calls = append(calls, newCall("fill_"+x.t.String(), s, fillArgs{x.at + uint64(offset*size), n, index, v}))
	})
	return calls, nil
}
