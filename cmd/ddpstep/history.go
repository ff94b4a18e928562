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
// writes the log.
type history struct {
	job   *gradsync.Job
	steps []gradsync.Step
	log   *report.Log // rank 0's, nil without --out
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
	if c.Out == "" {
		return h, nil
	}
	id := identity{logFormat, job.Plan.Digest(), job.Layout.World, c.Average, c.Reducer, c.Grads, c.Values, c.Seed, c.Check}
	var err error
	if w.Rank() == 0 {
		if err = h.open(c.logPath(), id, c.Resume); err != nil {
			err = usage(err)
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

// open reads what a resumed run has and leaves the log ready for more.
func (h *history) open(path string, id identity, resume bool) (err error) {
	if !resume {
		if h.log, err = report.OpenLog(path, true); err != nil {
			return err
		}
		return h.log.Append(id)
	}
	first := true
	valid, err := report.ReadLog(path, func(line []byte) error {
		if first {
			first = false
			var was identity
			if err := json.Unmarshal(line, &was); err != nil {
				return err
			}
			if was != id {
				return fmt.Errorf("was written by a run with other inputs or flags; run with the same, or without --resume")
			}
			return nil
		}
		var s gradsync.Step
		if err := json.Unmarshal(line, &s); err != nil {
			return err
		}
		if s.Step != len(h.steps) || len(s.Digests) != len(h.job.Plan.Params) || len(s.Buckets) != len(h.job.Plan.Buckets) {
			return fmt.Errorf("is not step %d of this run; run without --resume", len(h.steps))
		}
		h.steps = append(h.steps, s)
		return nil
	})
	if err != nil {
		return err
	}
	if valid > 0 { // cut off what a killed job left of its last line
		if err := os.Truncate(path, valid); err != nil {
			return err
		}
	}
	if h.log, err = report.OpenLog(path, false); err != nil {
		return err
	}
	if first {
		return h.log.Append(id)
	}
	return nil
}

// next is the first step that the history lacks.
func (h *history) next() int { return len(h.steps) }

// add appends a step, on rank 0 to the log too.
func (h *history) add(s *gradsync.Step) error {
	h.steps = append(h.steps, *s)
	if h.log == nil {
		return nil
	}
	return h.log.Append(s)
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
