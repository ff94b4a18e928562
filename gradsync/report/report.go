// Package report holds what ddpstep writes: the report of a run, the log of
// its steps, and baselines.
//
// A report is one JSON document; schema.json describes it and the tests hold
// every report against it. Seconds and bytes are in the names. Unknown values
// are null, never a string or a NaN. The log beside it (report.jsonl) has one
// line for each step that was finished, so a job that is killed keeps them.
package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"

	"github.com/google/renameio/v2"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/digest"
)

// Format is the name and version of the report's format. Fields may be added
// within a version; one that changes or goes makes a new version.
const Format = "ddpstep-report/1"

// Schema is the JSON Schema of the report.
//
//go:embed schema.json
var Schema []byte

// Report is the outcome of a run.
type Report struct {
	Format      string            `json:"format"`
	Status      string            `json:"status"` // ok, failed or interrupted
	ExitCode    int               `json:"exit_code"`
	Failure     *string           `json:"failure"`
	Started     string            `json:"started"`  // RFC 3339
	Finished    string            `json:"finished"` // RFC 3339
	Versions    map[string]string `json:"versions"`
	Environment map[string]string `json:"environment"`
	Inputs      Inputs            `json:"inputs"`
	Contract    Contract          `json:"contract"`
	Reducer     Reducer           `json:"reducer"`
	Plan        Plan              `json:"plan"`
	Ranks       []Rank            `json:"ranks"`
	Verdicts    Verdicts          `json:"verdicts"`
	Check       Check             `json:"check"`
	Buckets     []Bucket          `json:"buckets"`
	Steps       []Step            `json:"steps"`
	Parameters  []Parameter       `json:"parameters"`
}

// Inputs says where gradients came from.
type Inputs struct {
	Gradients  string `json:"gradients"`  // pattern of the files, or "" for generated values
	Parameters string `json:"parameters"` // list, model or checkpoint that names them
	Values     string `json:"values"`     // set of generated values, or ""
	Seed       uint64 `json:"seed"`
	Steps      int    `json:"steps"`
	Warmup     int    `json:"warmup"`
}

// Contract says what the bits may depend on, besides the values.
type Contract struct {
	World   int              `json:"world"` // logical ranks
	Average contract.Average `json:"average"`
}

// Reducer says what summed.
type Reducer struct {
	Name      string `json:"name"`
	Device    string `json:"device"` // cpu or gpu
	Transport string `json:"transport"`
	Note      string `json:"note,omitempty"` // why this transport and not a faster one
}

// Plan sums the buckets up.
type Plan struct {
	Digest     string  `json:"digest"`
	CapsBytes  []int64 `json:"caps_bytes"`
	Buckets    int     `json:"buckets"`
	Parameters int     `json:"parameters"`
	Elements   int64   `json:"elements"`
	Bytes      int64   `json:"bytes"`
}

// Rank is one process.
type Rank struct {
	Rank      int    `json:"rank"`
	Host      string `json:"host"`
	LocalRank int    `json:"local_rank"`
	Logical   [2]int `json:"logical"` // its logical ranks, first and one past the last
	GPU       *GPU   `json:"gpu"`
	Memory    Memory `json:"memory"`
}

// Memory is what a process had of host memory. A page that several processes
// map counts whole in each one's resident memory and in parts in the
// proportional one, whose sum over processes is what the host gave.
type Memory struct {
	Gradients       int64  `json:"gradients_bytes"`     // of its logical ranks
	PeakResident    *int64 `json:"peak_resident_bytes"` // null where the system does not tell
	FinalProportion *int64 `json:"proportional_bytes"`  // after the last step; null likewise
}

// GPU is the device of a process.
type GPU struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Bus     string `json:"bus"`
	Driver  string `json:"driver"`
	// From NVML, null where it is not there. Errors are those since the driver was loaded.
	NVLinks        *int    `json:"nvlinks"` // active links
	ECCUncorrected *uint64 `json:"ecc_uncorrected"`
	ECCCorrected   *uint64 `json:"ecc_corrected"`
}

// Verdicts are the answers. Null means that the question was not asked.
type Verdicts struct {
	RanksEqual     *bool `json:"ranks_equal"`
	ReferenceEqual *bool `json:"reference_equal"`
	WithinBound    *bool `json:"within_bound"`
	BaselineEqual  *bool `json:"baseline_equal"`
}

// Check has the figures behind the verdicts, over all counted steps.
type Check struct {
	Mode        string  `json:"mode"`
	Elements    int64   `json:"elements"`
	Differ      int64   `json:"differ"`
	Beyond      int64   `json:"beyond_bound"`
	NonFinite   int64   `json:"nonfinite"`
	MaxULP      uint64  `json:"max_ulp"`
	RelativeL2  float64 `json:"relative_l2"`
	FirstDiffer *Place  `json:"first_differ"`
	FirstBeyond *Place  `json:"first_beyond_bound"`
}

// Place is one wrong element; bit patterns are hexadecimal.
type Place struct {
	Step      int    `json:"step"`
	Rank      int    `json:"rank"`
	Bucket    int    `json:"bucket"`
	Parameter string `json:"parameter"`
	Index     int64  `json:"index"`
	Got       string `json:"got"`
	Want      string `json:"want"`
}

// Bucket is one message and its times. Bandwidths are those of nccl-tests:
// algbw = bytes / time, busbw = algbw × 2(n-1)/n for n processes; from the median.
type Bucket struct {
	Index      int            `json:"index"`
	DType      contract.DType `json:"dtype"`
	Elements   int64          `json:"elements"`
	Bytes      int64          `json:"bytes"`
	Parameters int            `json:"parameters"`
	Seconds    Times          `json:"seconds"`
	AlgBW      float64        `json:"algbw_gb_s"`
	BusBW      float64        `json:"busbw_gb_s"`
}

// Times are order statistics over steps.
type Times struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	Max float64 `json:"max"`
}

// Step is one counted step, times of the slowest process.
type Step struct {
	Step          int     `json:"step"`
	Digest        string  `json:"digest"`
	Compute       float64 `json:"compute_s"`
	Communication float64 `json:"communication_s"`
	Exposed       float64 `json:"exposed_s"`
}

// Parameter is one parameter with the digest of its result in the last step.
type Parameter struct {
	Name   string         `json:"name"`
	DType  contract.DType `json:"dtype"`
	Shape  []int64        `json:"shape"`
	Digest digest.Digest  `json:"digest"`
}

// Summarize returns the order statistics of samples, by nearest rank. Without
// samples all are zero.
func Summarize(samples []float64) Times {
	if len(samples) == 0 {
		return Times{}
	}
	s := append([]float64(nil), samples...)
	sort.Float64s(s)
	at := func(q float64) float64 { return s[max(int(math.Ceil(q*float64(len(s))))-1, 0)] }
	return Times{s[0], at(0.50), at(0.95), s[len(s)-1]}
}

// Bandwidth returns nccl-tests' algorithm and bus bandwidth of an all-reduce,
// in GB/s (10^9 bytes), zero when no time was measured.
func Bandwidth(bytes int64, seconds float64, procs int) (alg, bus float64) {
	if seconds <= 0 {
		return 0, 0
	}
	alg = float64(bytes) / seconds / 1e9
	return alg, alg * 2 * float64(procs-1) / float64(procs)
}

// Encode returns v as indented JSON with a final newline.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// WriteFile writes b to path in one piece: a reader sees the old file or the
// new one, and nothing is left of a failed write.
func WriteFile(path string, b []byte) error {
	if err := checkPlace(path); err != nil {
		return err
	}
	target := path
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		target = resolved // a rename would put the file in the place of the link
	}
	if err := renameio.WriteFile(target, b, 0o644); err != nil {
		return fileError(path, err)
	}
	return nil
}

// checkPlace refuses folders, and devices and pipes such as /dev/stdout, in
// whose place a rename would put a file.
func checkPlace(path string) error {
	switch st, err := os.Stat(path); {
	case err != nil:
	case st.IsDir():
		return fmt.Errorf("%s: is a folder; name a file", path)
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s: is not a regular file; name another", path)
	}
	return nil
}

// CheckWritable refuses a path that WriteFile could not write to, before the
// work is done: its folder must exist and take a file.
func CheckWritable(path string) error {
	if err := checkPlace(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".ddpstep-*")
	if err != nil {
		return fileError(path, err)
	}
	f.Close()
	return os.Remove(f.Name())
}

func fileError(path string, err error) error {
	if pe, ok := err.(*fs.PathError); ok {
		err = pe.Err
	}
	hint := "choose another place"
	if errors.Is(err, fs.ErrNotExist) {
		hint = "make its folder first"
	}
	return fmt.Errorf("%s: cannot be written: %v; %s", path, err, hint)
}
