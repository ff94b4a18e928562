package kernels

import (
	"fmt"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// Fold adds buffers of one process's making: Addends in their order, averaged and rounded, to each of Results. A result
// may be one of the addends but must not overlap one otherwise. First is the result that is stored first: processes
// that store to one another's memory at the same time each name another. A length of 0 is a launch of nothing.
type Fold struct {
	Addends, Results []cuda.Buffer
	Scale            Scale
	First            int
	Shape            Shape
}

// Fold prepares a fold.
func (m *Module) Fold(q Fold) (*Launch, error) {
	addends, errA := operands(q.Addends)
	results, errR := operands(q.Results)
	if err := firstError(errA, errR); err != nil {
		return nil, fmt.Errorf("kernels: fold: %w", err)
	}
	return m.prepare(foldCalls(addends, results, q.Scale, q.First, q.Shape))
}

// OneShot all-reduces a small message in a group: at most OneShotBytes. Addends are this process's logical ranks, from
// rank First of World on; Result may be one of them. Scale, lengths and World are the same in all processes.
type OneShot struct {
	Addends      []cuda.Buffer
	Result       cuda.Buffer
	Scale        Scale
	World, First int
	Threads      int // of each block; 0 is as many as are useful
}

// OneShot prepares a one-shot all-reduce.
func (m *Module) OneShot(g *Group, q OneShot) (*Launch, error) {
	addends, errA := operands(q.Addends)
	result, errR := operandOf(q.Result)
	if err := firstError(errA, errR); err != nil {
		return nil, fmt.Errorf("kernels: one-shot: %w", err)
	}
	if q.World != g.world {
		return nil, fmt.Errorf("kernels: one-shot of %d logical ranks in a group made for %d", q.World, g.world)
	}
	return m.prepare(oneShotCalls(g.args, addends, result, q.Scale, q.World, q.First, q.Threads))
}

// TwoShot all-reduces a message in a group, in place. Addends are all logical ranks' buffers, ascending, those of
// other processes as they are mapped here; Results holds one buffer of each process, usually its first addend. Shape,
// Scale and lengths are the same in all processes.
type TwoShot struct {
	Addends, Results []cuda.Buffer
	Scale            Scale
	Shape            Shape
}

// TwoShot prepares a two-shot all-reduce.
func (m *Module) TwoShot(g *Group, q TwoShot) (*Launch, error) {
	addends, errA := operands(q.Addends)
	results, errR := operands(q.Results)
	if err := firstError(errA, errR); err != nil {
		return nil, fmt.Errorf("kernels: two-shot: %w", err)
	}
	return m.prepare(twoShotCalls(g.args, addends, results, q.Scale, q.Shape))
}

// Barrier prepares a barrier of a group: what any process queued before its own is done, and seen, after it.
func (m *Module) Barrier(g *Group) (*Launch, error) { return m.prepare(barrierCalls(g.args), nil) }

// Fill prepares the generated values of a parameter's elements from index first on.
func (m *Module) Fill(b cuda.Buffer, first uint64, v Values, shape Shape) (*Launch, error) {
	x, err := operandOf(b)
	if err != nil {
		return nil, fmt.Errorf("kernels: fill: %w", err)
	}
	return m.prepare(fillCalls(x, first, v, shape))
}

// Digest prepares the digest of a parameter's elements from index first on, added to the lanes A and B that stand in
// sums, two of Uint64.
func (m *Module) Digest(b cuda.Buffer, first uint64, sums cuda.Buffer, shape Shape) (*Launch, error) {
	x, errX := operandOf(b)
	s, errS := operandOf(sums)
	if err := firstError(errX, errS); err != nil {
		return nil, fmt.Errorf("kernels: digest: %w", err)
	}
	return m.prepare(digestCalls(x, first, s, shape))
}

func operands(b []cuda.Buffer) ([]operand, error) {
	ops := make([]operand, len(b))
	for i := range b {
		var err error
		if ops[i], err = operandOf(b[i]); err != nil {
			return nil, err
		}
	}
	return ops, nil
}
