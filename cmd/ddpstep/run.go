package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/report"
)

type runCmd struct {
	flagValues
	gradFlags      `group:"Gradients"`
	reduceFlags    `group:"Reduction"`
	bucketFlags    `group:"Reduction"`
	Steps          int     `default:"1" placeholder:"N" help:"Counted steps (${default})." group:"Steps and checks"`
	Warmup         int     `default:"0" placeholder:"N" help:"Steps before them, not counted (${default})." group:"Steps and checks"`
	Check          string  `default:"full" placeholder:"HOW" help:"Elements checked: full (default), sample or off." group:"Steps and checks"`
	MinBusBW       float64 `name:"min-busbw" placeholder:"GB/S" help:"Floor of a step's bus bandwidth, median: exit code 8 below it." group:"Steps and checks"`
	AllowNonfinite bool    `help:"Go on when a gradient is infinite or NaN." group:"Steps and checks"`
	outputFlags    `group:"Output"`

	baseline *report.Baseline // read once, on rank 0
}

// Help is shown by ddpstep run --help.
func (*runCmd) Help() string {
	return `One process for each rank, started by a launcher:

  mpirun -np 4 ddpstep run --grads 'grads/rank{rank}.safetensors' --out report.json
  srun -n 8 --mpi=pmix ddpstep run --model gpt2 --steps 20 --baseline good.json`
}

// Validate is called by kong after parsing, before any file is opened.
func (c *runCmd) Validate() error {
	if err := c.gradFlags.validate(); err != nil {
		return err
	}
	if err := c.reduceFlags.validate(); err != nil {
		return err
	}
	if c.Steps < 1 {
		return fmt.Errorf("--steps %d: must be at least 1", c.Steps)
	}
	if c.Warmup < 0 {
		return fmt.Errorf("--warmup %d: must not be negative", c.Warmup)
	}
	if !(c.MinBusBW >= 0) {
		return fmt.Errorf("--min-busbw %v: must not be negative", c.MinBusBW)
	}
	if _, err := gradsync.ParseCheckMode(c.Check); err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	return c.outputFlags.validate()
}

func (c *runCmd) main(stdout, stderr io.Writer) int {
	var asked *nvmlQuery
	if c.Device != "cpu" {
		asked = startNVML() // before MPI, after which a fork is unsafe
	}
	w, code := start(c.flags, c.Deadline, stderr)
	if w == nil {
		return code
	}
	w.nvml = asked
	w.stepping.Store(true)
	return w.finish(c.run(w, stdout))
}

// run does the job. Each phase ends in agreement, so that no rank goes on
// alone; only rank 0 writes.
func (c *runCmd) run(w *job, stdout io.Writer) (err error) {
	rep := newReport(w, c)
	if err := refuse(w, c.preflightDevice()); err != nil {
		return err
	}
	in, err := c.openInputs(w.Size())
	if err := gradsync.Agree(w, err); err != nil {
		return err
	}
	defer in.close()
	if err := agreeWorld(w, in.world); err != nil {
		return err
	}
	job, dev, err := c.prepare(w, in, rep)
	if err != nil {
		return err
	}
	defer func() { err = dev.leave(err, job.Reducer) }()

	history, err := c.openHistory(w, job)
	if err != nil {
		return err
	}
	defer history.close()
	if err := c.steps(w, job, history); err != nil {
		return err
	}
	verdict := history.finish(rep, c.Steps)
	verdict = c.compareBaseline(w, rep, verdict)
	if verdict == nil {
		verdict = c.compareFloor(rep)
	}
	if err := gatherMemory(w, job, rep); err != nil {
		return err
	}
	if err := c.write(w, history, rep, verdict, stdout); err != nil {
		return err
	}
	return verdict
}

// agreeWorld refuses ranks that see other numbers of gradient files.
func agreeWorld(w *job, world int) error {
	all, err := w.AllgatherBytes([]byte(strconv.Itoa(world)))
	if err != nil {
		return err
	}
	for r, theirs := range all {
		if string(theirs) != string(all[0]) {
			return &gradsync.AgreedError{Code: gradsync.ExitUsage, Rank: r, Text: fmt.Sprintf(
				"sees the gradients of %s logical ranks, rank 0 sees %s; give all ranks the same files, or --world", theirs, all[0])}
		}
	}
	return nil
}

// mostBytes bounds the gradients of all logical ranks, so that no sum of sizes,
// paddings and offsets leaves an int64.
const mostBytes = int64(1) << 60

// prepare plans the buckets and sets the reducer up.
func (c *runCmd) prepare(w *job, in *inputs, rep *report.Report) (*gradsync.Job, *device, error) {
	job := &gradsync.Job{Source: in.source, AllowNonFinite: c.AllowNonfinite, Interrupted: w.interrupted.Load}
	err := func() (err error) {
		if job.Layout, err = gradsync.NewLayout(in.world, w.Size(), w.Rank()); err != nil {
			return err
		}
		if job.Average, err = contract.ParseAverage(c.Average); err != nil {
			return usage(err)
		}
		if job.Check, err = gradsync.ParseCheckMode(c.Check); err != nil {
			return usage(err)
		}
		if job.Plan, err = plan.New(in.params, c.caps()...); err != nil {
			return usage(err)
		}
		if job.Plan.Bytes() > mostBytes/int64(in.world) {
			return usage(fmt.Errorf("%s of gradients on each of %s: more than any machine has; check the shapes and --world",
				humanize.IBytes(uint64(job.Plan.Bytes())), plural(in.world, "logical rank")))
		}
		if w.Rank() == 0 {
			return c.checkWritable(c.inputFiles(in.world))
		}
		return nil
	}()
	if err := gradsync.Agree(w, err); err != nil {
		return nil, nil, err
	}
	if err := gradsync.AgreePlan(w, job.Plan); err != nil {
		return nil, nil, err
	}
	job.World, job.Deadline, job.Stuck = w, c.Deadline, w.stuck
	fillReport(rep, job, c)
	if err := c.checkBaseline(w, rep); err != nil {
		return nil, nil, err
	}
	dev, err := c.openDevice(w, job.Layout.World, c.Reducer == "nccl", c.Reducer == "mpi")
	if err != nil {
		return nil, nil, err
	}
	if err := c.connect(w, job, dev, rep); err != nil {
		return nil, nil, dev.leave(err)
	}
	return job, dev, nil
}

// connect makes the reducer, once it is known that all ranks are alike.
func (c *runCmd) connect(w *job, job *gradsync.Job, dev *device, rep *report.Report) error {
	if err := agreeVersions(w, dev, rep.Versions); err != nil {
		return err
	}
	r, note, err := dev.reducer(job.Config, c.Reducer, c.Transport)
	if err != nil {
		return err
	}
	job.Reducer = r
	rep.Reducer = report.Reducer{Name: r.Name(), Device: r.Device(), Transport: r.Transport(), Note: note}
	switch {
	case note == "":
		rep.Reducer.Note = dev.note
	case w.Rank() == 0:
		fmt.Fprintln(w.stderr, "ddpstep: note:", note)
	}
	if err := gatherRanks(w, job, dev, rep); err != nil {
		gradsync.Leave(r, err)
		return err
	}
	return nil
}

// steps makes the warm-up and the counted steps that history lacks.
func (c *runCmd) steps(w *job, job *gradsync.Job, h *history) error {
	for i := range c.Warmup {
		if err := job.Warm(-1 - i); err != nil {
			return err
		}
		if stop, err := w.stopping(); stop || err != nil {
			return err
		}
	}
	p := newProgress(w, c.Steps)
	defer p.close()
	if h.next() == c.Steps && c.GradsOut != "" { // a resumed run that had ended
		s, err := job.Run(c.Steps - 1)
		if err != nil {
			return err
		}
		return h.redo(s)
	}
	for step := h.next(); step < c.Steps; step++ {
		s, err := job.Run(step)
		if err != nil {
			return err
		}
		if c.Grads != "" && step > 0 {
			if err := h.sameBits(s); err != nil {
				return err
			}
		}
		if err := gradsync.AgreeRoot(w, h.add(s)); err != nil {
			return err
		}
		p.step(s)
		if s.Interrupted {
			return nil
		}
	}
	return nil
}

// checkBaseline reads the baseline on rank 0, and refuses one that could not be
// compared, before the work is done.
func (c *runCmd) checkBaseline(w *job, rep *report.Report) error {
	read := func() error {
		b, err := report.ReadBaseline(c.Baseline)
		if err != nil {
			return err
		}
		if err := b.Comparable(report.NewBaseline(rep)); err != nil {
			return fmt.Errorf("%s: %w", c.Baseline, err)
		}
		if n := len(b.Steps); n != c.Steps {
			return fmt.Errorf("%s: the baseline has %d steps; run with --steps %d or record a new one", c.Baseline, n, n)
		}
		c.baseline = b
		return nil
	}
	var err error
	if c.Baseline != "" && w.Rank() == 0 {
		if err = read(); err != nil {
			err = usage(err)
		}
	}
	return gradsync.AgreeRoot(w, err)
}

// compareBaseline sets the fourth verdict. A failure of higher priority stays.
func (c *runCmd) compareBaseline(w *job, rep *report.Report, verdict error) error {
	if c.Baseline == "" || rep.Status == "interrupted" {
		return verdict
	}
	var err error
	if w.Rank() == 0 {
		if err = c.baseline.Compare(report.NewBaseline(rep)); err != nil {
			err = fmt.Errorf("%w: %s: %w", gradsync.ErrBaseline, c.Baseline, err)
		}
	}
	err = gradsync.AgreeRoot(w, err)
	if err != nil && gradsync.ExitCode(err) != gradsync.ExitBaseline {
		return err
	}
	equal := err == nil
	rep.Verdicts.BaselineEqual = &equal
	if verdict != nil {
		return verdict
	}
	return err
}

// compareFloor holds the speed of a step against --min-busbw. All ranks have
// the same times.
func (c *runCmd) compareFloor(rep *report.Report) error {
	if c.MinBusBW == 0 || len(rep.Steps) == 0 {
		return nil
	}
	var took []float64
	for _, s := range rep.Steps {
		took = append(took, s.Communication)
	}
	_, bus := report.Bandwidth(rep.Plan.Bytes, report.Summarize(took).P50, len(rep.Ranks))
	if bus >= c.MinBusBW {
		return nil
	}
	return &gradsync.AgreedError{Code: gradsync.ExitSlow, Rank: -1, Text: fmt.Sprintf(
		"the bus bandwidth of a step is %.3g GB/s (median), below the floor of %g; see the buckets in the report", bus, c.MinBusBW)}
}

// write writes the outputs, on rank 0.
func (c *runCmd) write(w *job, h *history, rep *report.Report, verdict error, stdout io.Writer) error {
	var err error
	if w.Rank() == 0 {
		rep.Finished = time.Now().UTC().Format(time.RFC3339)
		rep.ExitCode = exitCode(verdict)
		if verdict != nil {
			text := verdict.Error()
			rep.Failure = &text
			if rep.Status == "ok" { // what was interrupted is called so, whatever else
				rep.Status = "failed"
			}
		}
		err = c.writeFiles(h, rep, verdict == nil && rep.Status == "ok", stdout)
	}
	return gradsync.AgreeRoot(w, err)
}

func (c *runCmd) writeFiles(h *history, rep *report.Report, good bool, stdout io.Writer) error {
	text, err := report.Encode(rep)
	if err != nil {
		return err
	}
	if c.GradsOut != "" && h.held {
		meta := map[string]string{"world": fmt.Sprint(rep.Contract.World), "average": rep.Contract.Average.String(), "step": fmt.Sprint(rep.Steps[len(rep.Steps)-1].Step)}
		if err := writeGrads(c.GradsOut, h.job, meta); err != nil {
			return err
		}
	}
	if c.Out != "" {
		if err := report.WriteFile(c.Out, text); err != nil {
			return usage(err)
		}
	}
	if c.SaveBaseline != "" && good {
		b, err := report.Encode(report.NewBaseline(rep))
		if err != nil {
			return err
		}
		if err := report.WriteFile(c.SaveBaseline, b); err != nil {
			return usage(err)
		}
	}
	if c.JSON {
		_, err = stdout.Write(text)
		return err
	}
	return summarize(stdout, rep, c)
}
