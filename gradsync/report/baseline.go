package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// BaselineFormat is the name and version of the baseline's format.
const BaselineFormat = "ddpstep-baseline/1"

// Baseline is what a recorded run promised: its inputs and its digests. It
// holds nothing that may change between machines, plans or transports.
type Baseline struct {
	Format     string       `json:"format"`
	World      int          `json:"world"`
	Average    string       `json:"average"`
	Reducer    string       `json:"reducer"`
	Values     string       `json:"values"` // "" for files
	Seed       uint64       `json:"seed"`
	Steps      []StepDigest `json:"steps"`
	Parameters []Parameter  `json:"parameters"` // digests of the last step
}

// StepDigest is the digest of one step.
type StepDigest struct {
	Step   int    `json:"step"`
	Digest string `json:"digest"`
}

// NewBaseline takes a baseline from a report.
func NewBaseline(r *Report) *Baseline {
	b := &Baseline{
		Format: BaselineFormat, World: r.Contract.World, Average: r.Contract.Average.String(),
		Reducer: r.Reducer.Name, Values: r.Inputs.Values, Seed: r.Inputs.Seed, Parameters: r.Parameters,
	}
	if b.Values == "" {
		b.Seed = 0 // files do not depend on it
	}
	for _, s := range r.Steps {
		b.Steps = append(b.Steps, StepDigest{s.Step, s.Digest})
	}
	return b
}

// ReadBaseline reads a baseline file. Everything in it is checked.
func ReadBaseline(path string) (*Baseline, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, readError(path, err)
	}
	b, err := parseBaseline(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: no baseline: %w; make one with --save-baseline", path, err)
	}
	return b, nil
}

func readError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: cannot be read: %v; check the path", path, err)
}

func parseBaseline(raw []byte) (*Baseline, error) {
	b := &Baseline{}
	if err := json.Unmarshal(raw, b); err != nil {
		return nil, err
	}
	switch {
	case b.Format != BaselineFormat:
		return nil, fmt.Errorf("its format is %q, not %q", b.Format, BaselineFormat)
	case b.World < 1, len(b.Steps) == 0, len(b.Parameters) == 0:
		return nil, errors.New("it holds no steps or parameters")
	}
	if _, err := contract.ParseAverage(b.Average); err != nil {
		return nil, err
	}
	for i, s := range b.Steps {
		if i > 0 && s.Step <= b.Steps[i-1].Step {
			return nil, fmt.Errorf("step %d after step %d", s.Step, b.Steps[i-1].Step)
		}
		if s.Digest == "" {
			return nil, fmt.Errorf("step %d has no digest", s.Step)
		}
	}
	seen := map[string]bool{}
	for _, p := range b.Parameters {
		if !p.DType.Valid() {
			return nil, fmt.Errorf("parameter %q has no dtype", p.Name)
		}
		if seen[p.Name] {
			return nil, fmt.Errorf("parameter %q is there twice", p.Name)
		}
		seen[p.Name] = true
	}
	return b, nil
}

// Comparable returns an error that names the first input in which a run and
// the baseline differ: then different digests would say nothing.
func (b *Baseline) Comparable(now *Baseline) error {
	for _, f := range []struct {
		name      string
		was, here any
	}{
		{"world", b.World, now.World},
		{"average", b.Average, now.Average},
		{"values", b.Values, now.Values},
		{"seed", b.Seed, now.Seed},
		{"number of parameters", len(b.Parameters), len(now.Parameters)},
	} {
		if f.was != f.here {
			return fmt.Errorf("the baseline was recorded with %s %v, this run has %v; run with the same or record a new one", f.name, f.was, f.here)
		}
	}
	was := b.byName()
	for _, q := range now.Parameters {
		p, ok := was[q.Name]
		if !ok {
			return fmt.Errorf("parameter %q is not in the baseline; record a new one", q.Name)
		}
		if p.DType != q.DType || !slices.Equal(p.Shape, q.Shape) {
			return fmt.Errorf("parameter %q is %v %v in the baseline and %v %v here; record a new one", q.Name, p.DType, p.Shape, q.DType, q.Shape)
		}
	}
	return nil
}

func (b *Baseline) byName() map[string]Parameter {
	m := map[string]Parameter{}
	for _, p := range b.Parameters {
		m[p.Name] = p
	}
	return m
}

// Compare returns nil when every digest of a comparable run equals the
// baseline's, and otherwise an error that names the first difference. A run of
// other steps than the baseline's is an error too: equal means all of them.
func (b *Baseline) Compare(now *Baseline) error {
	was := b.byName()
	if len(b.Steps) != len(now.Steps) {
		return fmt.Errorf("the baseline has %d steps, this run %d", len(b.Steps), len(now.Steps))
	}
	var last error
	for i, s := range now.Steps {
		if s.Step != b.Steps[i].Step {
			return fmt.Errorf("the baseline has step %d where this run has step %d", b.Steps[i].Step, s.Step)
		}
		if s.Digest == b.Steps[i].Digest {
			continue
		}
		err := fmt.Errorf("step %d has other bits than in the baseline", s.Step)
		if i < len(now.Steps)-1 {
			return err
		}
		last = err // unless its parameters tell more
	}
	for _, q := range now.Parameters {
		if p := was[q.Name]; p.Digest != q.Digest {
			return fmt.Errorf("parameter %q has other bits than in the baseline (digest %v, not %v)", q.Name, q.Digest, p.Digest)
		}
	}
	return last
}
