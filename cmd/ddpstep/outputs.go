package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/params"
	"github.com/ddpstep/ddpstep/gradsync/report"
)

// outputFlags say what a run writes.
type outputFlags struct {
	Out          string `placeholder:"FILE" help:"Report as JSON; steps go to the same name with .jsonl."`
	JSON         bool   `name:"json" help:"Print the report in place of the summary."`
	GradsOut     string `placeholder:"FILE" help:"The last step's reduced gradients, as safetensors."`
	SaveBaseline string `placeholder:"FILE" help:"Record the digests of this run, when it is good."`
	Baseline     string `placeholder:"FILE" help:"Compare with recorded digests; exit code 4 if unequal."`
	Resume       bool   `help:"Go on after the last step that the step log has."`
}

func (f *outputFlags) validate() error {
	if f.Resume && f.Out == "" {
		return fmt.Errorf("--resume reads the step log beside the report: give --out")
	}
	if f.Out != "" && f.Out == f.logPath() {
		return fmt.Errorf("--out %s: a name ending in .jsonl is the step log's; name the report otherwise, such as report.json", f.Out)
	}
	seen := map[string]string{}
	for _, o := range f.outputs() {
		path, err := filepath.Abs(o.path)
		if err != nil {
			return err
		}
		if other, twice := seen[path]; twice {
			return fmt.Errorf("%s and %s both write %s: give each its own file", other, o.flag, o.path)
		}
		seen[path] = o.flag
	}
	return nil
}

type output struct{ flag, path string }

// outputs lists the files that will be written.
func (f *outputFlags) outputs() (list []output) {
	for _, o := range []output{
		{"--out", f.Out}, {"the step log of --out", f.logPath()}, {"--grads-out", f.GradsOut}, {"--save-baseline", f.SaveBaseline},
	} {
		if o.path != "" {
			list = append(list, o)
		}
	}
	return list
}

// logPath is the step log's name, "" without --out.
func (f *outputFlags) logPath() string {
	if f.Out == "" {
		return ""
	}
	return strings.TrimSuffix(f.Out, filepath.Ext(f.Out)) + ".jsonl"
}

// checkWritable refuses outputs that could not be written at the end, or that
// would replace an input. The baseline is one, but for a run that records it
// anew: only a run of equal bits does.
func (f *outputFlags) checkWritable(inputs []string) error {
	inputs = append(inputs, f.Baseline)
	for _, o := range f.outputs() {
		if err := report.CheckWritable(o.path); err != nil {
			return usage(err)
		}
		now, err := os.Stat(o.path)
		if err != nil {
			continue // not there yet
		}
		for _, in := range inputs {
			if in == f.Baseline && o.flag == "--save-baseline" {
				continue
			}
			if was, err := os.Stat(in); err == nil && os.SameFile(now, was) {
				return usage(fmt.Errorf("%s would write over the input %s: name another file", o.flag, in))
			}
		}
	}
	return nil
}

// writeGrads writes the reducer's results, parameter by parameter.
func writeGrads(path string, j *gradsync.Job, metadata map[string]string) error {
	type home struct {
		bucket      int
		first, last int64 // elements
	}
	at := make([]home, len(j.Plan.Params))
	for b, bucket := range j.Plan.Buckets {
		for _, s := range bucket.Slots {
			at[s.Param] = home{b, s.Offset, s.Offset + j.Plan.Params[s.Param].Elements()}
		}
	}
	err := params.Write(path, j.Plan.Params, metadata, func(i int, dst io.Writer) error {
		const chunk = 1 << 20
		for lo := at[i].first; lo < at[i].last; lo += chunk {
			mem, err := j.Reducer.Get(at[i].bucket, lo, min(lo+chunk, at[i].last))
			if err != nil {
				return err
			}
			if _, err := dst.Write(mem); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return usage(err)
	}
	return nil
}
