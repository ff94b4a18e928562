package gradsync

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/digest"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// Job is everything a step needs.
type Job struct {
	Config
	Source         Source
	Reducer        Reducer
	Check          CheckMode
	AllowNonFinite bool
	// Interrupted reports whether this process was asked to stop. All
	// processes stop after the step in which one was. It may be nil.
	Interrupted func() bool
}

// Step is the outcome of one step, the same on every process.
type Step struct {
	Step    int             `json:"step"`
	Digest  string          `json:"digest"`  // SHA-256 over the parameters' names and digests
	Digests []digest.Digest `json:"digests"` // by parameter, in registration order

	RanksEqual     bool  `json:"ranks_equal"`
	ReferenceEqual *bool `json:"reference_equal"` // null where the reducer promises no bits or nothing was checked
	WithinBound    *bool `json:"within_bound"`    // null where nothing was checked
	Found          Found `json:"check"`

	// Seconds, of the slowest process.
	Compute float64   `json:"compute_s"`       // making the gradients
	Comm    float64   `json:"communication_s"` // reducing them
	Exposed float64   `json:"exposed_s"`       // communication that no computation hid
	Buckets []float64 `json:"buckets_s"`       // communication, by bucket

	Interrupted bool `json:"interrupted,omitempty"`
}

// Fits reports whether s, read from a file, can be a step of this job: whether
// what it counts and points at is there.
func (j *Job) Fits(s *Step) bool {
	params, buckets := len(j.Plan.Params), len(j.Plan.Buckets)
	for _, p := range []*Place{s.Found.FirstDiffer, s.Found.FirstBeyond} {
		if p != nil && (uint(p.Bucket) >= uint(buckets) || uint(p.Param) >= uint(params)) {
			return false
		}
	}
	if u := s.Found.Unequal; u != nil && uint(u.Param) >= uint(params) {
		return false
	}
	return len(s.Digests) == params && len(s.Buckets) == buckets
}

// summary is what a process tells the others at the end of a step.
type summary struct {
	Err         string          `json:"err,omitempty"`
	Code        int             `json:"code,omitempty"`
	NonFinite   *nonFinite      `json:"nonfinite,omitempty"`
	Digests     []digest.Digest `json:"digests"`
	Compute     float64         `json:"compute"`
	Exposed     float64         `json:"exposed"`
	Buckets     []float64       `json:"buckets"`
	Interrupted bool            `json:"interrupted,omitempty"`
}

// Run makes one step: gradients in, buckets reduced, digests agreed on, result
// checked. It is collective. A failure that one process meets is returned by
// all; only a lost peer (ErrLost) leaves processes without agreement.
func (j *Job) Run(step int) (*Step, error) {
	me, err := j.reduce(step)
	if err != nil {
		return nil, err
	}
	all, err := j.gather(me)
	if err != nil {
		return nil, err
	}
	out := &Step{Step: step, Digests: me.Digests, RanksEqual: true}
	odd := j.compare(all, out)
	for _, s := range all {
		out.Interrupted = out.Interrupted || s.Interrupted
		out.Compute = math.Max(out.Compute, s.Compute)
		out.Exposed = math.Max(out.Exposed, s.Exposed)
		for b, t := range s.Buckets {
			if len(out.Buckets) <= b {
				out.Buckets = append(out.Buckets, 0)
			}
			out.Buckets[b] = math.Max(out.Buckets[b], t)
		}
	}
	for _, t := range out.Buckets {
		out.Comm += t
	}
	if err := j.check(step, odd, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Warm makes an uncounted step: nothing is digested or checked.
func (j *Job) Warm(step int) error {
	_, err := j.reduce(step)
	return err
}

// reduce puts and reduces every bucket, and waits. Errors of the source are
// kept for the agreement, so that this process does not leave the others waiting.
func (j *Job) reduce(step int) (*summary, error) {
	me := &summary{}
	begun := time.Now()
	for b := range j.Plan.Buckets {
		start := time.Now()
		err := j.put(step, b, me)
		switch {
		case errors.Is(err, ErrLost): // the device does not answer: every further call would wait as long
			return nil, fmt.Errorf("step %d, bucket %d: %w", step, b, err)
		case err != nil && me.Code == ExitOK:
			me.Err, me.Code = err.Error(), ExitCode(err)
		}
		me.Compute += time.Since(start).Seconds()
		if err := j.Reducer.Reduce(b); err != nil {
			return nil, fmt.Errorf("step %d, bucket %d: %w", step, b, err)
		}
	}
	seconds, err := j.Reducer.Wait()
	if err != nil {
		return nil, fmt.Errorf("step %d: %w", step, err)
	}
	me.Buckets = append([]float64(nil), seconds...)
	me.Exposed = time.Since(begun).Seconds() - me.Compute
	if c, ok := j.Reducer.(clock); ok {
		if me.Compute, me.Exposed, err = c.StepTimes(); err != nil {
			return nil, err
		}
	}
	return me, nil
}

// put makes the gradients of a bucket for every local logical rank.
func (j *Job) put(step, b int, me *summary) error {
	lo, hi := j.Layout.Ranks(j.Layout.Proc)
	bucket := j.Plan.Buckets[b]
	size := int64(bucket.DType.Size())
	made, isMade := j.Source.(*Generated)
	g, isGenerator := j.Reducer.(generator)
	for r := lo; r < hi; r++ {
		if isMade && isGenerator && made.Set.Finite() {
			if err := g.Generate(r-lo, b, made, step, r); err != nil {
				return err
			}
			continue
		}
		err := j.Reducer.Put(r-lo, b, func(dst []byte, first int64) error {
			for _, s := range j.Plan.Spans(bucket, first, first+int64(len(dst))/size) {
				at := (s.Offset - first) * size
				mem := dst[at : at+s.Elements*size]
				if err := j.Source.Read(mem, step, r, s.Param, s.First); err != nil {
					return err
				}
				if at := findNonFinite(bucket.DType, mem); at >= 0 && me.NonFinite == nil {
					me.NonFinite = &nonFinite{r, s.Param, s.First + at, bucket.DType.Bits(mem, int(at))}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// digests returns the digest of every parameter's result on this process.
func (j *Job) digests() ([]digest.Digest, error) {
	if d, ok := j.Reducer.(digester); ok {
		return d.Digests()
	}
	all := make([]digest.Digest, len(j.Plan.Params))
	err := j.results(func(_ int, s plan.Span, got []byte) error {
		t := j.Plan.Params[s.Param].DType
		all[s.Param] = all[s.Param].Add(digest.Of(t, uint64(s.First), got))
		return nil
	})
	return all, err
}

// results calls f with every piece of the result, in launch order, cut at
// parameters and so that Get can hand it out.
func (j *Job) results(f func(bucket int, s plan.Span, got []byte) error) error {
	for b, bucket := range j.Plan.Buckets {
		size := int64(bucket.DType.Size())
		for lo := int64(0); lo < bucket.Elements; lo += getBytes / size {
			hi := min(lo+getBytes/size, bucket.Elements)
			mem, err := j.Reducer.Get(b, lo, hi)
			if err != nil {
				return err
			}
			for _, s := range j.Plan.Spans(bucket, lo, hi) {
				at := (s.Offset - lo) * size
				if err := f(b, s, mem[at:at+s.Elements*size]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// gather exchanges summaries, and returns the failure of the step, if any, on
// every process.
func (j *Job) gather(me *summary) ([]summary, error) {
	var err error
	if me.Digests, err = j.digests(); err != nil {
		return nil, err
	}
	me.Interrupted = j.Interrupted != nil && j.Interrupted()
	raw, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	texts, err := j.World.AllgatherBytes(raw)
	if err != nil {
		return nil, err
	}
	all := make([]summary, len(texts))
	for p, t := range texts {
		if err := json.Unmarshal(t, &all[p]); err != nil {
			return nil, fmt.Errorf("rank %d summed its step up as %q: %w", p, t, err)
		}
	}
	if p := worst(len(all), func(p int) int { return all[p].Code }); p >= 0 {
		return nil, &AgreedError{all[p].Code, p, all[p].Err}
	}
	for p, s := range all {
		if n := s.NonFinite; n != nil && !j.AllowNonFinite {
			param := j.Plan.Params[n.Param]
			return nil, &AgreedError{ExitNonFinite, p, fmt.Sprintf(
				"the gradient of logical rank %d, parameter %q, index %d is %v (bits %#x); find out why, or pass --allow-nonfinite",
				n.Rank, param.Name, n.Index, param.DType.Widen(n.Bits), n.Bits)}
		}
	}
	return all, nil
}

// compare sets RanksEqual and Digest, and returns the parameters on which
// processes differ.
func (j *Job) compare(all []summary, out *Step) (odd map[int]bool) {
	odd = map[int]bool{}
	out.Digests = all[0].Digests
	for i, d := range out.Digests {
		for p, s := range all {
			if s.Digests[i] == d {
				continue
			}
			odd[i] = true
			out.RanksEqual = false
			if out.Found.Unequal == nil {
				out.Found.Unequal = &Unequal{Param: i, Ranks: [2]int{0, p}}
			}
		}
	}
	// By name, so that the order of registration does not matter.
	lines := make([]string, len(out.Digests))
	for i, d := range out.Digests {
		lines[i] = fmt.Sprintf("%q %v\n", j.Plan.Params[i].Name, d)
	}
	sort.Strings(lines)
	h := sha256.New()
	for _, l := range lines {
		h.Write([]byte(l))
	}
	out.Digest = hex.EncodeToString(h.Sum(nil))
	return odd
}
