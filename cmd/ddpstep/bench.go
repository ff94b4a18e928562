package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/gradsync/values"
)

type benchCmd struct {
	flagValues
	MinBytes byteSize `short:"b" default:"4K" placeholder:"SIZE" help:"Smallest message (${default}); K, M and G are powers of 1024."`
	MaxBytes byteSize `short:"e" default:"64M" placeholder:"SIZE" help:"Largest message (${default})."`
	Factor   int      `short:"f" default:"4" placeholder:"N" help:"From one size to the next (${default})."`
	Buckets  int      `default:"1" placeholder:"N" help:"Messages of a size, all back to back in one measurement (${default})."`
	DType    []string `name:"dtype" default:"float32" placeholder:"T,…" help:"Element types (${default})."`
	Reducers []string `placeholder:"R,…" help:"Reducers side by side (fixed,mpi, or fixed,nccl on GPUs); fixed:shm, :mpi, :peer or :nccl forces a transport."`
	Repeats  int      `short:"n" default:"9" placeholder:"N" help:"Measurements of each, of which the median counts (${default})."`
	JSON     bool     `name:"json" help:"Print JSON."`
	deviceFlags

	onCPU, onGPU bool // what the reducers asked for need
}

// Help is shown by ddpstep bench --help.
func (*benchCmd) Help() string {
	return `Every reducer sums the same messages in turn, in place, back to back, and its answer is checked first. Times are
of the slowest rank; bandwidths are those of nccl-tests; the last columns are times the speed of the last reducer.

  mpirun -np 4 ddpstep bench --dtype float32,float64
  mpirun -np 2 ddpstep bench --device gpu -b 512 -e 512M
  mpirun -np 2 ddpstep bench --device gpu -b 25M -e 25M --buckets 19`
}

// byteSize is a number of bytes, written with K, M or G as nccl-tests does.
type byteSize int64

// UnmarshalText reads 4096, 4K, 64M or 1G.
func (b *byteSize) UnmarshalText(text []byte) error {
	digits, unit := string(text), int64(1)
	if i := strings.IndexAny(digits, "KMG"); i >= 0 && i == len(digits)-1 {
		unit = 1 << (10 * (strings.IndexByte("KMG", digits[i]) + 1))
		digits = digits[:i]
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > (1<<40)/unit {
		return fmt.Errorf("%q is no size; write 4096, 4K, 64M or 1G", text)
	}
	*b = byteSize(n * unit)
	return nil
}

// Validate is called by kong after parsing.
func (c *benchCmd) Validate() error {
	switch {
	case c.MinBytes > c.MaxBytes:
		return errors.New("--min-bytes is above --max-bytes")
	case c.Factor < 2 || c.Factor > 1<<20: // its product with a size fits an int64
		return fmt.Errorf("--factor %d: must be from 2 to 2^20", c.Factor)
	case c.Buckets < 1 || c.Buckets > 1<<20: // likewise
		return fmt.Errorf("--buckets %d: must be from 1 to 2^20", c.Buckets)
	case c.Repeats < 1:
		return fmt.Errorf("--repeats %d: must be at least 1", c.Repeats)
	}
	for _, t := range c.DType {
		if _, err := contract.ParseDType(t); err != nil {
			return fmt.Errorf("--dtype: %w", err)
		}
	}
	onCPU, onGPU := c.Device == "cpu", c.Device == "gpu"
	for _, r := range c.Reducers {
		switch r {
		case "fixed":
		case "fixed:shm", "fixed:mpi", "mpi":
			onCPU = true
		case "fixed:peer", "fixed:nccl", "nccl":
			onGPU = true
		default:
			return fmt.Errorf("--reducers: unknown %q; use fixed, fixed:shm, fixed:mpi, fixed:peer, fixed:nccl, mpi or nccl", r)
		}
	}
	if onCPU && onGPU {
		return errors.New("--reducers: some sum host memory and some GPU memory; measure them apart")
	}
	c.onGPU, c.onCPU = onGPU, onCPU
	return c.deviceFlags.validate()
}

// benchRow is one message size. Times are of all its buckets together.
type benchRow struct {
	Bytes    int64          `json:"bytes"`
	Buckets  int            `json:"buckets"`
	Elements int64          `json:"elements"`
	DType    contract.DType `json:"dtype"`
	Results  []benchResult  `json:"results"`
}

// benchResult is one reducer's figures for it.
type benchResult struct {
	Reducer string       `json:"reducer"`
	Seconds report.Times `json:"seconds"`
	AlgBW   float64      `json:"algbw_gb_s"`
	BusBW   float64      `json:"busbw_gb_s"`
	Wrong   int64        `json:"wrong"` // elements that the check refused
}

func (c *benchCmd) main(stdout, stderr io.Writer) int {
	w, code := start(c.flags, c.Deadline, stderr)
	if w == nil {
		return code
	}
	return w.finish(c.run(w, stdout))
}

func (c *benchCmd) run(w *job, stdout io.Writer) (err error) {
	if w.Rank() != 0 {
		stdout = io.Discard
	}
	if err := refuse(w, c.preflightDevice()); err != nil {
		return err
	}
	c.direct = true // as nccl-tests calls it
	dev, err := c.openDevice(w, w.Size(), c.onGPU, c.onCPU)
	if err != nil {
		return err
	}
	defer func() { err = dev.leave(err) }()
	if err := agreeVersions(w, dev, map[string]string{"ddpstep": version, "mpi": w.Library()}); err != nil {
		return err
	}
	if len(c.Reducers) == 0 {
		c.Reducers = []string{"fixed", "mpi"}
		if dev.GPU != nil {
			c.Reducers[1] = "nccl"
		}
	}
	rows := []benchRow{}
	wrong := int64(0)
	for _, name := range c.DType {
		t, err := contract.ParseDType(name)
		if err != nil {
			return err
		}
		if !c.JSON {
			if err := c.header(w, dev, stdout); err != nil {
				return err
			}
		}
		for size := int64(c.MinBytes); size <= int64(c.MaxBytes); size *= int64(c.Factor) {
			row, err := c.measure(w, dev, t, size)
			if err != nil {
				return err
			}
			rows = append(rows, *row)
			for _, r := range row.Results {
				wrong += r.Wrong
			}
			if !c.JSON {
				if err := row.print(stdout); err != nil {
					return err
				}
			}
		}
	}
	if c.JSON {
		text, err := report.Encode(struct {
			MPI       string     `json:"mpi"`
			Processes int        `json:"processes"`
			Rows      []benchRow `json:"rows"`
		}{mpiName(w.Library()), w.Size(), rows})
		if err != nil {
			return err
		}
		if _, err := stdout.Write(text); err != nil {
			return err
		}
	}
	if wrong > 0 {
		return &gradsync.AgreedError{Code: gradsync.ExitNumbers, Rank: -1, Text: fmt.Sprintf("%d wrong elements: the times above are of wrong answers", wrong)}
	}
	return nil
}

// measure times every reducer on one message size, in turn, so that a slow
// moment of the machine meets all of them.
func (c *benchCmd) measure(w *job, dev *device, t contract.DType, size int64) (row *benchRow, err error) {
	n := max(size/int64(t.Size()), 1)
	bytes := n * int64(t.Size())
	var params []plan.Param
	for b := range c.Buckets {
		params = append(params, plan.Param{Name: fmt.Sprint("message ", b), DType: t, Shape: []int64{n}})
	}
	p, err := plan.New(params, bytes) // one a bucket
	if err != nil {
		return nil, err
	}
	layout, err := gradsync.NewLayout(w.Size(), w.Size(), w.Rank())
	if err != nil {
		return nil, err
	}
	// Without an average, so that MPI_Allreduce is timed alone.
	cfg := gradsync.Config{World: w, Layout: layout, Plan: p, Average: contract.None, Deadline: c.Deadline, Stuck: w.stuck}
	row = &benchRow{Bytes: bytes, Buckets: c.Buckets, Elements: n, DType: t}
	var reducers []gradsync.Reducer
	defer func() {
		for _, r := range reducers {
			if e := gradsync.Leave(r, err); err == nil {
				err = e
			}
		}
	}()
	for _, spec := range c.Reducers {
		name, transport, forced := strings.Cut(spec, ":")
		if !forced {
			transport = c.Transport
		}
		r, _, err := dev.reducer(cfg, name, transport)
		if err != nil {
			return nil, err
		}
		reducers = append(reducers, r)
		job := &gradsync.Job{Config: cfg, Reducer: r, Source: &gradsync.Generated{Params: params, Seed: 1, Set: values.Wide}}
		s, err := job.Run(0)
		if err != nil {
			return nil, err
		}
		bad := s.Found.Beyond
		if s.ReferenceEqual != nil {
			bad += s.Found.Differ
		}
		row.Results = append(row.Results, benchResult{Reducer: spec, Wrong: bad})
	}
	iters := int(min(max((256<<20)/p.Bytes(), 8), 400)) // of one measurement
	samples := make([][]float64, len(reducers))
	for range c.Repeats + 1 { // the first warms up
		for i, r := range reducers {
			s, err := timeLoop(w, r, c.Buckets, iters)
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], s)
		}
	}
	for i := range row.Results {
		res := &row.Results[i]
		res.Seconds = report.Summarize(samples[i][1:])
		res.AlgBW, res.BusBW = report.Bandwidth(p.Bytes(), res.Seconds.P50, w.Size())
	}
	return row, nil
}

// reduceLoop reduces all buckets iters times and returns the seconds that one
// time took: by the device's own clock where there is one.
func reduceLoop(r gradsync.Reducer, buckets, iters int) (float64, error) {
	if d, ok := r.(gradsync.Repeater); ok {
		return d.Repeat(iters)
	}
	begin := time.Now()
	for range iters {
		for b := range buckets {
			if err := r.Reduce(b); err != nil {
				return 0, err
			}
		}
	}
	_, err := r.Wait()
	return time.Since(begin).Seconds() / float64(iters), err
}

// timeLoop is reduceLoop's time on the slowest rank.
//
// One reduction goes ahead untimed, as in nccl-tests: it fetches the message
// back from where another reducer's turn has driven it.
func timeLoop(w *job, r gradsync.Reducer, buckets, iters int) (float64, error) {
	if _, err := reduceLoop(r, buckets, 1); err != nil {
		return 0, err
	}
	if err := w.Barrier(); err != nil {
		return 0, err
	}
	took, err := reduceLoop(r, buckets, iters)
	if err != nil {
		return 0, err
	}
	mine, err := json.Marshal(took)
	if err != nil {
		return 0, err
	}
	all, err := w.AllgatherBytes(mine)
	if err != nil {
		return 0, err
	}
	slowest := 0.0
	for _, text := range all {
		var s float64
		if err := json.Unmarshal(text, &s); err != nil {
			return 0, err
		}
		slowest = max(slowest, s)
	}
	return slowest, nil
}

func (c *benchCmd) header(w *job, dev *device, out io.Writer) error {
	var b strings.Builder
	what := "all-reduce"
	if c.Buckets > 1 {
		what = fmt.Sprint(c.Buckets, " all-reduces, one after another,")
	}
	fmt.Fprintf(&b, "# %s in place on the %s, %s, %s, median of %d\n", what, dev.kind(), mpiName(w.Library()), plural(w.Size(), "process"), c.Repeats)
	fmt.Fprintf(&b, "%12s %8s", "bytes", "dtype")
	for _, r := range c.Reducers {
		fmt.Fprintf(&b, " | %9s µs %7s %7s %5s", r, "algbw", "busbw", "wrong")
	}
	for _, r := range c.Reducers[:len(c.Reducers)-1] {
		fmt.Fprintf(&b, " | %s", speedup(r))
	}
	fmt.Fprintln(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

func speedup(reducer string) string { return reducer + " ×" }

func (row *benchRow) print(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%12d %8v", row.Bytes, row.DType)
	for _, r := range row.Results {
		fmt.Fprintf(&b, " | %12.2f %7.2f %7.2f %5d", r.Seconds.P50*1e6, r.AlgBW, r.BusBW, r.Wrong)
	}
	last := row.Results[len(row.Results)-1].Seconds.P50
	for _, r := range row.Results[:len(row.Results)-1] {
		fmt.Fprintf(&b, " | %*.2f", len([]rune(speedup(r.Reducer))), last/r.Seconds.P50)
	}
	fmt.Fprintln(&b)
	_, err := io.WriteString(out, b.String())
	return err
}
