package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/check"
	"github.com/ddpstep/ddpstep/gradsync/report"
)

// history is the counted steps of a run: those that the step log had when the
// run was resumed, and those made since. Every rank has all of them; rank 0
// writes the log. The log is not touched before there is a step to add: a run
// that fails at once leaves no trace.
type history struct {
	job   *gradsync.Job
	steps []gradsync.Step
	path  string      // of the log, on rank 0 with --out
	id    identity    // the log's first line
	keep  int64       // bytes of the log that stay
	held  bool        // the reducer has the last step's result
	log   *report.Log // once a step was added
}

// identity is the first line of a step log: what must be the same in a run
// that goes on with it.
type identity struct {
	Format  string `json:"format"`
	Plan    string `json:"plan"`
	World   int    `json:"world"`
	Average string `json:"average"`
	Reducer string `json:"reducer"`
	Grads   string `json:"grads"`
	Values  string `json:"values"`
	Seed    uint64 `json:"seed"`
	Check   string `json:"check"`
}

const logFormat = "ddpstep-steps/1"

// openHistory opens the step log, and with --resume reads it, collectively.
func (c *runCmd) openHistory(w *job, job *gradsync.Job) (*history, error) {
	h := &history{job: job}
	if c.Out == "" { // neither log nor --resume
		return h, nil
	}
	var err error
	if w.Rank() == 0 {
		h.path = c.logPath()
		h.id = identity{logFormat, job.Plan.Digest(), job.Layout.World, c.Average, c.Reducer, c.Grads, c.Values, c.Seed, c.Check}
		if c.Resume {
			err = h.read(c.Steps)
		}
	}
	if err := gradsync.AgreeRoot(w, err); err != nil {
		return nil, err
	}
	if !c.Resume {
		return h, nil
	}
	raw, err := json.Marshal(h.steps)
	if err != nil {
		return nil, err
	}
	if w.Rank() != 0 {
		raw = nil
	}
	all, err := w.AllgatherBytes(raw)
	if err != nil {
		return nil, err
	}
	h.steps = nil
	if err := json.Unmarshal(all[0], &h.steps); err != nil {
		return nil, err
	}
	if n := len(h.steps); n > 0 && w.Rank() == 0 {
		fmt.Fprintf(w.stderr, "ddpstep: resuming after step %d of %d\n", n, c.Steps)
	}
	return h, nil
}

// read takes the steps that a log has, whose run was to have wanted steps.
func (h *history) read(wanted int) (err error) {
	first := true
	h.keep, err = report.ReadLog(h.path, func(line []byte) error {
		if first {
			first = false
			var was identity
			if json.Unmarshal(line, &was) != nil || was.Format != logFormat {
				return fmt.Errorf("is not the first line of a step log; run without --resume")
			}
			if was != h.id {
				return fmt.Errorf("was written by a run with other inputs or flags; run with the same, or without --resume")
			}
			return nil
		}
		var s gradsync.Step
		if json.Unmarshal(line, &s) != nil || s.Step != len(h.steps) || !h.job.Fits(&s) {
			return fmt.Errorf("is not step %d of this run; run without --resume", len(h.steps))
		}
		h.steps = append(h.steps, s)
		return nil
	})
	if err == nil && len(h.steps) > wanted {
		err = fmt.Errorf("%s: has %d steps already; give --steps %d or more, or run without --resume", h.path, len(h.steps), len(h.steps))
	}
	if err != nil {
		return usage(err)
	}
	return nil
}

// open makes the log ready for the next step, without what a killed job left
// of its last line.
func (h *history) open() (err error) {
	if h.keep > 0 {
		if err := os.Truncate(h.path, h.keep); err != nil {
			return err
		}
	}
	if h.log, err = report.OpenLog(h.path, h.keep == 0); err != nil || h.keep > 0 {
		return err
	}
	return h.log.Append(h.id)
}

// next is the first step that the history lacks.
func (h *history) next() int { return len(h.steps) }

// add appends a step, on rank 0 to the log too.
func (h *history) add(s *gradsync.Step) error {
	h.steps = append(h.steps, *s)
	h.held = true
	if h.path == "" {
		return nil
	}
	if h.log == nil {
		if err := h.open(); err != nil {
			return usage(err)
		}
	}
	if err := h.log.Append(s); err != nil {
		return usage(err)
	}
	return nil
}

// redo puts a step in the place of the last one, which the log has.
func (h *history) redo(s *gradsync.Step) error {
	err := h.sameBits(s)
	h.steps[len(h.steps)-1] = *s
	h.held = true
	return err
}

// sameBits refuses a step that should have the bits of the last one and has
// not: then the gradients are not those of the steps before. Wrong results are
// not its concern: the verdict tells of them.
func (h *history) sameBits(s *gradsync.Step) error {
	right := func(s *gradsync.Step) bool { return s.RanksEqual && s.ReferenceEqual != nil && *s.ReferenceEqual }
	last := &h.steps[len(h.steps)-1]
	if s.Digest == last.Digest || !right(s) || !right(last) {
		return nil
	}
	return &gradsync.AgreedError{Code: gradsync.ExitUsage, Rank: -1, Text: fmt.Sprintf(
		"step %d should have the bits of step %d and has others: the gradients were changed since; run again without --resume", s.Step, last.Step)}
}

func (h *history) close() {
	if h.log != nil {
		h.log.Close()
	}
}

// finish writes the steps into the report and returns the verdict: nil, or the
// failure that all ranks agree on, since they hold the same steps.
func (h *history) finish(rep *report.Report, wanted int) error {
	params, buckets := h.job.Plan.Params, h.job.Plan.Buckets
	var total check.Result
	var verdict *gradsync.AgreedError
	fail := func(format string, args ...any) {
		if verdict == nil {
			verdict = &gradsync.AgreedError{Code: gradsync.ExitNumbers, Rank: -1, Text: fmt.Sprintf(format, args...)}
		}
	}
	place := func(step int, p *gradsync.Place) *report.Place {
		t := buckets[p.Bucket].DType
		hex := func(bits uint64) string { return fmt.Sprintf("0x%0*x", 2*t.Size(), bits) }
		return &report.Place{Step: step, Rank: p.Proc, Bucket: p.Bucket, Parameter: params[p.Param].Name,
			Index: p.Index, Got: hex(p.Got), Want: hex(p.Want)}
	}
	samples := make([][]float64, len(buckets))
	rep.Steps = []report.Step{}
	for _, s := range h.steps {
		rep.Steps = append(rep.Steps, report.Step{Step: s.Step, Digest: s.Digest, Compute: s.Compute, Communication: s.Comm, Exposed: s.Exposed})
		for b, t := range s.Buckets {
			samples[b] = append(samples[b], t)
		}
		v := &rep.Verdicts
		and(&v.RanksEqual, &s.RanksEqual)
		and(&v.ReferenceEqual, s.ReferenceEqual)
		and(&v.WithinBound, s.WithinBound)
		total.Merge(s.Found.Result)
		if u := s.Found.Unequal; u != nil {
			fail("step %d: ranks %d and %d hold different bits of parameter %q", s.Step, u.Ranks[0], u.Ranks[1], params[u.Param].Name)
		}
		if d := s.Found.FirstDiffer; d != nil && rep.Check.FirstDiffer == nil {
			rep.Check.FirstDiffer = place(s.Step, d)
			if s.ReferenceEqual != nil {
				p := rep.Check.FirstDiffer
				fail("step %d: bucket %d, parameter %q, index %d is %s on rank %d, the reference says %s", p.Step, p.Bucket, p.Parameter, p.Index, p.Got, p.Rank, p.Want)
			}
		}
		if d := s.Found.FirstBeyond; d != nil && rep.Check.FirstBeyond == nil {
			rep.Check.FirstBeyond = place(s.Step, d)
			p := rep.Check.FirstBeyond
			fail("step %d: bucket %d, parameter %q, index %d is %s on rank %d, outside the error bound around %s", p.Step, p.Bucket, p.Parameter, p.Index, p.Got, p.Rank, p.Want)
		}
	}
	c := &rep.Check
	c.Elements, c.Differ, c.Beyond, c.NonFinite = total.Elements, total.Differ, total.Beyond, total.NonFinite
	c.MaxULP, c.RelativeL2 = total.MaxULP, total.RelativeL2()
	for i := range rep.Buckets {
		b := &rep.Buckets[i]
		b.Seconds = report.Summarize(samples[i])
		b.AlgBW, b.BusBW = report.Bandwidth(b.Bytes, b.Seconds.P50, h.job.Layout.Procs)
	}
	if n := len(h.steps); n > 0 {
		for i := range rep.Parameters {
			rep.Parameters[i].Digest = h.steps[n-1].Digests[i]
		}
	}
	if len(h.steps) < wanted {
		rep.Status = "interrupted"
	}
	if verdict == nil {
		return nil
	}
	return verdict
}

// and folds a step's answer into a verdict; an unasked question stays null.
func and(v **bool, answer *bool) {
	if answer == nil {
		return
	}
	if *v == nil {
		t := true
		*v = &t
	}
	**v = **v && *answer
}
