package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/digest"
)

// example is a report of two steps of two parameters.
func example() *Report {
	return &Report{
		Format:   Format,
		Inputs:   Inputs{Values: "wide", Seed: 7, Steps: 2},
		Contract: Contract{World: 4, Average: contract.Mean},
		Reducer:  Reducer{Name: "fixed"},
		Steps:    []Step{{Step: 0, Digest: "aa"}, {Step: 1, Digest: "bb"}},
		Parameters: []Parameter{
			{Name: "w", DType: contract.Float32, Shape: []int64{2, 3}, Digest: digest.Digest{A: 1, B: 2}},
			{Name: "b", DType: contract.Float16, Shape: []int64{}, Digest: digest.Digest{A: 3, B: 4}},
		},
	}
}

func TestBaselineComesBack(t *testing.T) {
	want := NewBaseline(example())
	raw, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "good.json")
	if err := WriteFile(path, raw); err != nil {
		t.Fatal(err)
	}
	got, err := ReadBaseline(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// A report serves as well, where digests are asked for.
	raw, err = Encode(example())
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "report.json")
	if err := WriteFile(path, raw); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, filepath.Join(dir, "good.json")} {
		got, err := ReadDigests(p)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	if _, err := ReadBaseline(path); err == nil {
		t.Error("a report is taken for a baseline")
	}
}

// Files do not depend on the seed, so it must not keep runs from comparing.
func TestBaselineOfFilesHasNoSeed(t *testing.T) {
	r := example()
	r.Inputs.Values, r.Inputs.Gradients = "", "rank{rank}.safetensors"
	if b := NewBaseline(r); b.Seed != 0 {
		t.Errorf("seed %d", b.Seed)
	}
}

func TestComparable(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b *Baseline)
		want   string // "" where runs can be compared
	}{
		{"nothing", func(*Baseline) {}, ""},
		{"digests", func(b *Baseline) { b.Steps[0].Digest, b.Parameters[0].Digest = "x", digest.Digest{} }, ""},
		{"reducer", func(b *Baseline) { b.Reducer = "mpi" }, ""},
		{"order", func(b *Baseline) { slices.Reverse(b.Parameters) }, ""},
		{"world", func(b *Baseline) { b.World = 8 }, "world 4, this run has 8"},
		{"average", func(b *Baseline) { b.Average = "none" }, "average mean"},
		{"values", func(b *Baseline) { b.Values = "exact" }, "values wide"},
		{"seed", func(b *Baseline) { b.Seed = 8 }, "seed 7"},
		{"one less", func(b *Baseline) { b.Parameters = b.Parameters[:1] }, "number of parameters 2"},
		{"name", func(b *Baseline) { b.Parameters[1].Name = "c" }, `"c" is not in the baseline`},
		{"dtype", func(b *Baseline) { b.Parameters[1].DType = contract.BFloat16 }, `"b" is float16 [] in the baseline and bfloat16 [] here`},
		{"shape", func(b *Baseline) { b.Parameters[0].Shape = []int64{3, 2} }, `"w" is float32 [2 3] in the baseline and float32 [3 2] here`},
	} {
		now := NewBaseline(example())
		c.change(now)
		check(t, c.name, NewBaseline(example()).Comparable(now), c.want)
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b *Baseline)
		want   string // "" where the runs are equal
	}{
		{"nothing", func(*Baseline) {}, ""},
		{"order", func(b *Baseline) { slices.Reverse(b.Parameters) }, ""},
		{"a step", func(b *Baseline) { b.Steps[0].Digest = "x" }, "step 0 has other bits"},
		{"the last step", func(b *Baseline) { b.Steps[1].Digest, b.Parameters[1].Digest.B = "x", 9 }, `parameter "b" has other bits`},
		// A file that was edited must not pass.
		{"the last step alone", func(b *Baseline) { b.Steps[1].Digest = "x" }, "step 1 has other bits"},
		{"a parameter alone", func(b *Baseline) { b.Parameters[0].Digest.A = 9 }, `parameter "w" has other bits`},
		{"one step less", func(b *Baseline) { b.Steps = b.Steps[:1] }, "has 2 steps, this run 1"},
		{"no steps", func(b *Baseline) { b.Steps = nil }, "has 2 steps, this run 0"},
		{"other steps", func(b *Baseline) { b.Steps[1].Step = 5 }, "step 1 where this run has step 5"},
	} {
		now := NewBaseline(example())
		c.change(now)
		check(t, c.name, NewBaseline(example()).Compare(now), c.want)
	}
}

func check(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, expected %q", name, err, want)
	}
}

func TestReadBaselineRefuses(t *testing.T) {
	good, err := Encode(NewBaseline(example()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"ddpstep-baseline/1", "ddpstep-baseline/2", "its format is"},
		{`"world": 4`, `"world": 0`, "no steps or parameters"},
		{`"world": 4`, `"world": "4"`, "world"},
		{`"float16"`, `"int8"`, "unknown dtype"},
		{`"mean"`, `"median"`, "unknown average"},
		{"0000000000000003", "000000000000000", "not 32"},
		{`"name": "b"`, `"name": "w"`, `parameter "w" is there twice`},
		{`"step": 1`, `"step": 0`, "step 0 after step 0"},
		{`"digest": "bb"`, `"digest": ""`, "step 1 has no digest"},
		{`"dtype": "float16",`, "", `parameter "b" has no dtype`},
		{"{", "", "invalid character"},
		{"}\n", "}\nx", "invalid character"},
	} {
		text := strings.Replace(string(good), c.old, c.new, 1)
		if strings.HasPrefix(c.old, "}") {
			text = strings.TrimSuffix(string(good), c.old) + c.new
		}
		if text == string(good) {
			t.Fatalf("%q is not in the baseline", c.old)
		}
		path := filepath.Join(t.TempDir(), "base.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadBaseline(path)
		check(t, c.new, err, c.want)
		if err != nil && (!strings.HasPrefix(err.Error(), path) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: one line that names the file is expected", err)
		}
	}
	_, err = ReadBaseline(filepath.Join(t.TempDir(), "none.json"))
	check(t, "no file", err, "none.json: cannot be read: no such file or directory")
}

func FuzzBaseline(f *testing.F) {
	good, err := Encode(NewBaseline(example()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":"ddpstep-baseline/1","world":1,"steps":[{}],"parameters":[{}]}`))
	f.Add([]byte(`{"format":"ddpstep-baseline/1","world":1e9,"parameters":[null],"steps":[null]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := parseBaseline(raw)
		if err != nil {
			return
		}
		// What is accepted is written and read as the same, and equals itself.
		text, err := Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseBaseline(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if err := b.Comparable(again); err != nil {
			t.Error(err)
		}
		if err := b.Compare(again); err != nil {
			t.Error(err)
		}
		if _, err := json.Marshal(again); err != nil {
			t.Error(err)
		}
	})
}
