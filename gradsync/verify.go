package gradsync

import (
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/ddpstep/ddpstep/gradsync/check"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// CheckMode says how many elements are held against the reference.
type CheckMode uint8

// The modes.
const (
	Full   CheckMode = iota // every element
	Sample                  // the first and last block of each process's share and one block in sixteen
	Off                     // none; digests are compared all the same
)

var checkModes = map[string]CheckMode{"full": Full, "sample": Sample, "off": Off}

// ParseCheckMode reads full, sample or off.
func ParseCheckMode(s string) (CheckMode, error) {
	m, ok := checkModes[s]
	if !ok {
		return 0, fmt.Errorf("unknown check %q; use full, sample or off", s)
	}
	return m, nil
}

// Found is what the check of a step found.
type Found struct {
	check.Result
	FirstDiffer *Place   `json:"first_differ,omitempty"` // in launch order, among all processes
	FirstBeyond *Place   `json:"first_beyond,omitempty"`
	Unequal     *Unequal `json:"unequal,omitempty"`
}

// Place is one wrong element.
type Place struct {
	Proc   int `json:"rank"` // process whose result it is
	Bucket int `json:"bucket"`
	Param  int `json:"param"`
	check.Mismatch
}

// Unequal names the first parameter that is not equal on all processes, and
// two processes that differ.
type Unequal struct {
	Param int    `json:"param"`
	Ranks [2]int `json:"ranks"`
}

func (p *Place) before(q *Place) bool {
	if q == nil {
		return true
	}
	return p.Bucket < q.Bucket || p.Bucket == q.Bucket && (p.Param < q.Param || p.Param == q.Param && p.Index < q.Index)
}

// check holds this process's share of the result, and all of the odd
// parameters, against the reference, and merges what all processes found.
func (j *Job) check(step int, odd map[int]bool, out *Step) error {
	if j.Check == Off {
		return nil
	}
	fpenv.Set()
	mine := Found{}
	v := newVerifier(j)
	failed := j.results(func(b int, s plan.Span, got []byte) error {
		if !odd[s.Param] { // only this process's share
			lo, hi := j.Layout.Slice(j.Plan.Buckets[b].Elements, j.Layout.Proc)
			size := int64(j.Plan.Buckets[b].DType.Size())
			first, last := max(s.Offset, lo), min(s.Offset+s.Elements, hi)
			if last <= first {
				return nil
			}
			got = got[(first-s.Offset)*size : (last-s.Offset)*size]
			s = plan.Span{Param: s.Param, First: s.First + first - s.Offset, Offset: first, Elements: last - first}
		}
		return v.span(step, b, s, got, &mine)
	})
	if err := Agree(j.World, failed); err != nil {
		return err
	}
	raw, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	texts, err := j.World.AllgatherBytes(raw)
	if err != nil {
		return err
	}
	for p, t := range texts {
		var f Found
		if err := json.Unmarshal(t, &f); err != nil {
			return fmt.Errorf("rank %d found %q: %w", p, t, err)
		}
		out.Found.Merge(f.Result)
		if d := f.FirstDiffer; d != nil && d.before(out.Found.FirstDiffer) {
			out.Found.FirstDiffer = d
		}
		if d := f.FirstBeyond; d != nil && d.before(out.Found.FirstBeyond) {
			out.Found.FirstBeyond = d
		}
	}
	within := out.Found.Beyond == 0
	out.WithinBound = &within
	if j.Reducer.Name() == "fixed" {
		equal := out.Found.Differ == 0
		out.ReferenceEqual = &equal
	}
	return nil
}

// verifier has the scratch memory of a check.
type verifier struct {
	job      *Job
	checkers map[contract.DType]*check.Checker
	addends  [][]byte // one block for each logical rank
}

func newVerifier(j *Job) *verifier {
	v := &verifier{job: j, checkers: map[contract.DType]*check.Checker{}}
	for _, b := range j.Plan.Buckets {
		if v.checkers[b.DType] == nil {
			v.checkers[b.DType] = check.New(b.DType, j.Average, j.Layout.World, j.Reducer.Accumulator(b.DType))
		}
	}
	for range j.Layout.World {
		words := make([]uint64, check.Block) // aligned for every dtype
		v.addends = append(v.addends, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*check.Block))
	}
	return v
}

// span checks the elements of a span of bucket b, which got holds.
func (v *verifier) span(step, b int, s plan.Span, got []byte, found *Found) error {
	j := v.job
	t := j.Plan.Buckets[b].DType
	size := int64(t.Size())
	for lo := int64(0); lo < s.Elements; lo += check.Block {
		hi := min(lo+check.Block, s.Elements)
		if j.Check == Sample && lo != 0 && hi != s.Elements && !sampled(step, s.Param, s.First+lo) {
			continue
		}
		addends := make([][]byte, len(v.addends))
		for r := range addends {
			addends[r] = v.addends[r][:(hi-lo)*size]
			if err := j.Source.Read(addends[r], step, r, s.Param, s.First+lo); err != nil {
				return err
			}
		}
		res := v.checkers[t].Check(got[lo*size:hi*size], addends, s.First+lo)
		found.Merge(res)
		if m := res.FirstDiffer; m != nil && found.FirstDiffer == nil {
			found.FirstDiffer = &Place{j.Layout.Proc, b, s.Param, *m}
		}
		if m := res.FirstBeyond; m != nil && found.FirstBeyond == nil {
			found.FirstBeyond = &Place{j.Layout.Proc, b, s.Param, *m}
		}
	}
	return nil
}

// sampled picks one block in sixteen, others at each step.
func sampled(step, param int, at int64) bool {
	x := uint64(step)*0x9e3779b97f4a7c15 ^ uint64(param)*0xbf58476d1ce4e5b9 ^ uint64(at)*0x94d049bb133111eb
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	return x>>60 == 0
}
