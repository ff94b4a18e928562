package gradsync

import (
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/values"
)

// Source gives gradients. It must answer the same bytes for the same question
// on every process, because each process checks elements of all ranks.
type Source interface {
	// Read fills dst with elements of parameter param of a logical rank's
	// gradient at a step, from element first on. dst holds whole elements of
	// the parameter's dtype and is aligned to it.
	Read(dst []byte, step, rank, param int, first int64) error
}

// Generated is a Source of generated values.
type Generated struct {
	Params []plan.Param
	Seed   uint64
	Set    values.Set
}

// Read fills dst; it never fails.
func (g *Generated) Read(dst []byte, step, rank, param int, first int64) error {
	p := g.Params[param]
	values.Fill(dst, p.DType, g.Set, values.KeyFor(g.Seed, step, rank, p.Name), first)
	return nil
}

// Files is a Source of gradient files: every step has the same gradients.
type Files struct {
	// Set reads the elements [lo, hi) of one logical rank's parameter;
	// params.Set does.
	Set interface {
		Read(dst []byte, rank, param int, lo, hi int64) error
	}
	Params []plan.Param
}

// Read reads the file of the logical rank.
func (f *Files) Read(dst []byte, _, rank, param int, first int64) error {
	n := int64(len(dst) / f.Params[param].DType.Size())
	return f.Set.Read(dst, rank, param, first, first+n)
}

// nonFinite is a position at which an input is infinite or NaN.
type nonFinite struct {
	Rank  int    `json:"rank"` // logical
	Param int    `json:"param"`
	Index int64  `json:"index"`
	Bits  uint64 `json:"bits"`
}

// findNonFinite returns the index of the first infinite or NaN element of b, -1
// when there is none. It looks at exponent fields only, so it costs little.
func findNonFinite(t contract.DType, b []byte) int64 {
	switch t {
	case contract.Float64:
		return firstWith(contract.View[uint64](b), 0x7ff0000000000000)
	case contract.Float32:
		return firstWith(contract.View[uint32](b), 0x7f800000)
	case contract.BFloat16:
		return firstWith(contract.View[uint16](b), 0x7f80)
	default:
		return firstWith(contract.View[uint16](b), 0x7c00)
	}
}

func firstWith[E uint16 | uint32 | uint64](v []E, exponent E) int64 {
	for i, x := range v {
		if x&exponent == exponent {
			return int64(i)
		}
	}
	return -1
}
