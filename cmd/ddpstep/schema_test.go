package main

import (
	"bytes"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ddpstep/ddpstep/gradsync/report"
)

// schema FILE holds a report against the JSON Schema.
func schema(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: schema file")
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(ts.ReadFile(args[0]))))
	ts.Check(err)
	s, err := compileSchema()
	ts.Check(err)
	switch err := s.Validate(doc); {
	case neg && err == nil:
		ts.Fatalf("%s holds to the schema", args[0])
	case !neg:
		ts.Check(err)
	}
}

func compileSchema() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(report.Schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("report.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("report.json")
}

// What GPUs add to a report holds to the schema too, with and without NVML.
func TestSchemaTakesGPUs(t *testing.T) {
	s, err := compileSchema()
	if err != nil {
		t.Fatal(err)
	}
	links, errors := 18, uint64(0)
	r := &report.Report{Format: report.Format, Status: "ok", Versions: map[string]string{"ddpstep": "v", "go": "v", "mpi": "v"},
		Environment: map[string]string{}, Started: "2026-01-02T03:04:05Z", Finished: "2026-01-02T03:04:06Z",
		Inputs: report.Inputs{Steps: 1}, Contract: report.Contract{World: 1, Average: 1},
		Reducer: report.Reducer{Name: "fixed", Device: "gpu", Transport: "peer"}, Check: report.Check{Mode: "full"},
		Plan:    report.Plan{Digest: string(bytes.Repeat([]byte("a"), 64)), CapsBytes: []int64{1}, Buckets: 1, Parameters: 1, Elements: 1, Bytes: 4},
		Buckets: []report.Bucket{}, Steps: []report.Step{}, Parameters: []report.Parameter{},
		Ranks: []report.Rank{{GPU: &report.GPU{Name: "NVIDIA H200", NVLinks: &links, ECCCorrected: &errors}}}}
	for _, null := range []bool{false, true} {
		if null {
			r.Ranks[0].GPU.NVLinks, r.Ranks[0].GPU.ECCCorrected = nil, nil
		}
		text, err := report.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(doc); err != nil {
			t.Error(err)
		}
	}
}
