package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/params"
	"github.com/ddpstep/ddpstep/gradsync/report"
)

// outputFlags say what a run writes.
type outputFlags struct {
	Out          string `placeholder:"FILE" help:"Write the report as JSON, and a line per step to the same name ending in .jsonl."`
	JSON         bool   `name:"json" help:"Print the report as JSON in place of the summary."`
	GradsOut     string `placeholder:"FILE" help:"Write the reduced gradients of the last step as safetensors."`
	SaveBaseline string `placeholder:"FILE" help:"Record the digests."`
	Baseline     string `placeholder:"FILE" help:"Compare with recorded digests: exit code 4 when they differ."`
	Resume       bool   `help:"Go on after the last step that the step log has."`
}

func (f *outputFlags) validate() error {
	if f.Resume && f.Out == "" {
		return fmt.Errorf("--resume reads the step log beside the report: give --out")
	}
	seen := map[string]string{}
	for _, o := range []struct{ flag, path string }{
		{"--out", f.Out}, {"--out's step log", f.logPath()}, {"--grads-out", f.GradsOut}, {"--save-baseline", f.SaveBaseline},
	} {
		if o.path == "" {
			continue
		}
		if other, twice := seen[filepath.Clean(o.path)]; twice {
			return fmt.Errorf("%s and %s both write %s: give each its own file", other, o.flag, o.path)
		}
		seen[filepath.Clean(o.path)] = o.flag
	}
	return nil
}

// logPath is the step log's name, "" without --out.
func (f *outputFlags) logPath() string {
	if f.Out == "" {
		return ""
	}
	return strings.TrimSuffix(f.Out, filepath.Ext(f.Out)) + ".jsonl"
}

// checkWritable refuses outputs that could not be written at the end.
func (f *outputFlags) checkWritable() error {
	for _, path := range []string{f.Out, f.GradsOut, f.SaveBaseline} {
		if path != "" {
			if err := report.CheckWritable(path); err != nil {
				return usage(err)
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
