package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/report"
)

// environment lists the variables that a report may hold. Others can carry
// secrets. A name that ends in * stands for all that start so.
var environment = []string{
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING",
	"NCCL_*", "OMPI_MCA_*", "UCX_TLS", "UCX_NET_DEVICES", "GOMAXPROCS", "OMP_NUM_THREADS",
	"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT",
	"SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_MPI_TYPE",
}

func allowedEnvironment(environ []string) map[string]string {
	kept := map[string]string{}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); listed(environment, name) {
			kept[name] = value
		}
	}
	return kept
}

// listed reports whether a name is on a list, where one that ends in * stands
// for all that start so.
func listed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(l string) bool {
		prefix, open := strings.CutSuffix(l, "*")
		return l == name || open && strings.HasPrefix(name, prefix)
	})
}

func newReport(w *job, c *runCmd) *report.Report {
	r := &report.Report{
		Format: report.Format, Status: "ok", Started: time.Now().UTC().Format(time.RFC3339),
		Versions:    map[string]string{"ddpstep": version, "go": runtime.Version(), "mpi": mpiName(w.Library())},
		Environment: allowedEnvironment(os.Environ()),
		Inputs:      report.Inputs{Gradients: c.Grads, Parameters: c.name(), Seed: c.Seed, Steps: c.Steps, Warmup: c.Warmup},
		Check:       report.Check{Mode: c.Check},
	}
	if c.Grads == "" {
		r.Inputs.Values = c.Values
	}
	return r
}

// mpiName shortens the library's description to its name and version.
func mpiName(library string) string {
	if library == "" {
		return "no MPI"
	}
	name, _, _ := strings.Cut(library, ",")
	return name
}

// fillReport adds what is known once the buckets are planned.
func fillReport(r *report.Report, j *gradsync.Job, c *runCmd) {
	p := j.Plan
	r.Contract = report.Contract{World: j.Layout.World, Average: j.Average}
	r.Plan = report.Plan{Digest: p.Digest(), CapsBytes: c.caps(), Buckets: len(p.Buckets), Parameters: len(p.Params), Bytes: p.Bytes()}
	for i, b := range p.Buckets {
		r.Plan.Elements += b.Elements
		r.Buckets = append(r.Buckets, report.Bucket{Index: i, DType: b.DType, Elements: b.Elements, Bytes: b.Bytes(), Parameters: len(b.Slots)})
	}
	for _, q := range p.Params {
		shape := q.Shape
		if shape == nil {
			shape = []int64{}
		}
		r.Parameters = append(r.Parameters, report.Parameter{Name: q.Name, DType: q.DType, Shape: shape})
	}
}

// gatherRanks fills the map of ranks, collectively.
func gatherRanks(w *job, j *gradsync.Job, d *device, r *report.Report) error {
	lo, hi := j.Layout.Ranks(w.Rank())
	raw, err := json.Marshal(report.Rank{Rank: w.Rank(), Host: w.Host(), LocalRank: w.LocalRank(), Logical: [2]int{lo, hi}, GPU: d.describe()})
	if err != nil {
		return err
	}
	all, err := w.AllgatherBytes(raw)
	if err != nil {
		return err
	}
	r.Ranks = make([]report.Rank, len(all))
	for i, t := range all {
		if err := json.Unmarshal(t, &r.Ranks[i]); err != nil {
			return err
		}
	}
	return nil
}

// gatherMemory adds what every process has of memory, collectively.
func gatherMemory(w *job, j *gradsync.Job, r *report.Report) error {
	mine := report.Memory{Gradients: r.Plan.Bytes * int64(j.Layout.Local(w.Rank()))}
	mine.PeakResident = procBytes("/proc/self/status", "VmHWM:")
	mine.FinalProportion = procBytes("/proc/self/smaps_rollup", "Pss:")
	raw, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	all, err := w.AllgatherBytes(raw)
	if err != nil {
		return err
	}
	for i, t := range all {
		if err := json.Unmarshal(t, &r.Ranks[i].Memory); err != nil {
			return err
		}
	}
	return nil
}

// procBytes reads a line such as "VmHWM:  1234 kB", nil where there is none.
func procBytes(file, name string) *int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name && f[2] == "kB" {
			if kb, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				kb *= 1024
				return &kb
			}
		}
	}
	return nil
}

// summarize prints the human summary.
func summarize(out io.Writer, r *report.Report, c *runCmd) error {
	var b strings.Builder
	hosts := map[string]bool{}
	for _, k := range r.Ranks {
		hosts[k.Host] = true
	}
	source := r.Inputs.Gradients
	if source == "" {
		source = fmt.Sprintf("%s, generated values %q, seed %d", r.Inputs.Parameters, r.Inputs.Values, r.Inputs.Seed)
	}
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("gradients", "%s", source)
	row("world", "%s, %s on %s, %s", plural(r.Contract.World, "logical rank"), plural(len(r.Ranks), "process"), plural(len(hosts), "host"), r.Versions["mpi"])
	row("plan", "%s, %s in %s, digest %.12s", plural(r.Plan.Parameters, "parameter"), humanize.IBytes(uint64(r.Plan.Bytes)), plural(r.Plan.Buckets, "bucket"), r.Plan.Digest)
	row("reducer", "%s on the %s over %s, average %v", r.Reducer.Name, r.Reducer.Device, r.Reducer.Transport, r.Contract.Average)
	var comm, compute []float64
	for _, s := range r.Steps {
		comm, compute = append(comm, s.Communication), append(compute, s.Compute)
	}
	if len(comm) > 0 {
		t := report.Summarize(comm)
		alg, bus := report.Bandwidth(r.Plan.Bytes, t.P50, len(r.Ranks))
		row("speed", "%s: communication %s a step (median), algbw %.3g GB/s, busbw %.3g GB/s; compute %s",
			plural(len(comm), "step"), seconds(t.P50), alg, bus, seconds(report.Summarize(compute).P50))
	}
	if text := memoryText(r.Ranks); text != "" {
		row("memory", "%s", text)
	}
	v := r.Verdicts
	row("ranks", "%s", verdictText(v.RanksEqual, "equal on all ranks", "DIFFERENT between ranks", "not compared"))
	row("reference", "%s", verdictText(v.ReferenceEqual, fmt.Sprintf("equal bit for bit (%d elements, %s check)", r.Check.Elements, c.Check),
		fmt.Sprintf("DIFFERENT in %d of %d elements", r.Check.Differ, r.Check.Elements), notPromised(r)))
	row("bound", "%s", verdictText(v.WithinBound, fmt.Sprintf("within it; largest distance %d ULP, relative L2 error %.3g", r.Check.MaxULP, r.Check.RelativeL2),
		fmt.Sprintf("OUTSIDE it in %d of %d elements", r.Check.Beyond, r.Check.Elements), "not checked"))
	row("baseline", "%s", verdictText(v.BaselineEqual, "equal to "+c.Baseline, "DIFFERENT from "+c.Baseline, "none given"))
	switch {
	case r.Status == "interrupted":
		row("result", "INTERRUPTED after %d of %d steps; what was done is %s (exit code %d)", len(r.Steps), c.Steps, okWord(r.ExitCode), r.ExitCode)
	default:
		row("result", "%s (exit code %d)", okWord(r.ExitCode), r.ExitCode)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// memoryText is about the process with the highest peak.
func memoryText(ranks []report.Rank) string {
	var most *report.Memory
	for i := range ranks {
		m := &ranks[i].Memory
		if m.PeakResident != nil && (most == nil || *m.PeakResident > *most.PeakResident) {
			most = m
		}
	}
	if most == nil {
		return ""
	}
	text := fmt.Sprintf("gradients %s a process, peak resident %s", humanize.IBytes(uint64(most.Gradients)), humanize.IBytes(uint64(*most.PeakResident)))
	if p := most.FinalProportion; p != nil {
		text += fmt.Sprintf(", its share of it %s", humanize.IBytes(uint64(*p)))
	}
	return text
}

func okWord(code int) string {
	if code == gradsync.ExitOK {
		return "ok"
	}
	return "FAILED"
}

func notPromised(r *report.Report) string {
	if r.Verdicts.WithinBound == nil {
		return "not checked"
	}
	return fmt.Sprintf("no bits promised by %s; %d of %d elements differ from the fixed order", r.Reducer.Name, r.Check.Differ, r.Check.Elements)
}

func verdictText(v *bool, yes, no, unasked string) string {
	switch {
	case v == nil:
		return unasked
	case *v:
		return yes
	}
	return no
}

func plural(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "ss"):
		what += "es"
	default:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// seconds writes a duration with three digits.
func seconds(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", s)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g µs", s*1e6)
}
