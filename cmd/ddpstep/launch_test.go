package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// runsVar makes this test binary, started as a rank, make several runs in one
// world: a line of arguments for each. Starting MPI takes longer than they do.
const runsVar = "CMD_TEST_RUNS"

func makeRuns(lines string, stdout, stderr io.Writer) int {
	j, code := start(nil, time.Minute, stderr)
	if j == nil {
		return code
	}
	for line := range strings.Lines(lines) {
		parser, err := newParser(stdout, stderr, os.Exit)
		if err != nil {
			return j.finish(err)
		}
		ctx, err := parser.Parse(strings.Fields(line))
		if err == nil {
			err = ctx.Selected().Target.Addr().Interface().(*runCmd).run(j, io.Discard)
		}
		if err != nil {
			return j.finish(fmt.Errorf("%s: %w", strings.TrimSpace(line), err))
		}
	}
	return j.finish(nil)
}

// alone runs ddpstep in a world of one rank and returns its stderr.
func alone(t *testing.T, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Cmd{Path: self, Args: append([]string{"ddpstep"}, args...), Stderr: &stderr}
	if err := cmd.Run(); err != nil {
		t.Fatalf("ddpstep %v: %v\n%s", args, err, &stderr)
	}
	return stderr.String()
}

// bits is what must not change: the digests of a report's steps and of its
// parameters, as far as the steps go.
func bits(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, path := range []string{"steps", "parameters"} {
		list, err := lookUp(text, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.([]any) {
			fmt.Fprintln(&b, item.(map[string]any)["digest"])
		}
	}
	return b.String()
}

// field is a value of a report, as JSON prints it.
func field(t *testing.T, file, path string) any {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	v, err := lookUp(text, path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// eachLibrary runs a test for Open MPI and for MPICH.
func eachLibrary(t *testing.T, f func(t *testing.T, lib *mpitest.Library)) {
	for _, lib := range mpitest.Libraries() {
		t.Run(lib.Tag, func(t *testing.T) { f(t, lib) })
	}
}

// launch runs a job and makes sure that it ends by itself, wholly.
func launch(t *testing.T, lib *mpitest.Library, job mpitest.Job) mpitest.Result {
	t.Helper()
	r := lib.Run(t, job)
	if r.TimedOut || r.Left > 0 {
		t.Fatalf("%v: %v", job.Command, r)
	}
	return r
}

// said returns what we ourselves wrote to stderr, without the launcher's words.
func said(r mpitest.Result) (lines []string) {
	for line := range strings.Lines(r.Stderr) {
		if strings.Contains(line, "ddpstep: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// mixed is a parameter list of all dtypes, with more ranks than elements in
// places and slices that do not divide.
const mixed = `{"parameters": [
  {"name": "a", "shape": [257, 33], "dtype": "float32"},
  {"name": "one", "shape": [], "dtype": "float32"},
  {"name": "half", "shape": [1021], "dtype": "float16"},
  {"name": "none", "shape": [0], "dtype": "float16"},
  {"name": "brain", "shape": [3, 5], "dtype": "bfloat16"},
  {"name": "double", "shape": [4099], "dtype": "float64"},
  {"name": "tail", "shape": [70001], "dtype": "float32"}
]}`

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}
