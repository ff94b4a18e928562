package slurm

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the committed scripts anew")

// TestCommitted holds the scripts of this folder to the renderer, and both to
// a folder without strangers.
func TestCommitted(t *testing.T) {
	var want []string
	for _, kind := range Kinds() {
		script, err := Render(kind, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if same, err := Render(kind, Defaults(kind)); err != nil || same != script {
			t.Errorf("%s: the zero Options and Defaults give different scripts (%v)", kind, err)
		}
		file := string(kind) + ".sbatch"
		want = append(want, file)
		if *update {
			if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(committed), script); diff != "" {
			t.Errorf("%s is not what Render gives; run `go test ./slurm -run Committed -update` (-file +rendered):\n%s", file, diff)
		}
	}
	have, err := filepath.Glob("*.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(len(want), len(have)); diff != "" {
		t.Errorf("scripts in the folder: %v, want %v", have, want)
	}
}

// variants are options that between them take every branch of the templates.
func variants(kind Kind) map[string]Options {
	full := Options{
		JobName: "j", Nodes: 1, GPUsPerNode: 8, CPUsPerTask: 12, Time: "1-2:30:00",
		Partition: "a,b", Account: "proj", MPI: "pmi2", Binary: "/opt/d d/ddpstep",
		Modules: []string{"openmpi/4.1.6", "cuda"}, Args: []string{"--grads", "it's/{rank}.safetensors"},
	}
	mpirun := full
	mpirun.MPI = "mpirun"
	switch kind {
	case Nightly:
		full.Baseline, full.MailTo = "b a/se}.json", "ops@example.org"
	case Matrix:
		full.Reducers, full.BucketCaps, full.Models = []string{"fixed"}, []string{"all", "0.5"}, []string{"gpt2"}
	}
	return map[string]Options{"default": {}, "full": full, "mpirun": mpirun}
}

// TestShell has bash parse every script, and shellcheck judge it where it is
// installed.
func TestShell(t *testing.T) {
	_, noShellcheck := exec.LookPath("shellcheck")
	for _, kind := range Kinds() {
		for name, o := range variants(kind) {
			t.Run(string(kind)+"/"+name, func(t *testing.T) {
				script, err := Render(kind, o)
				if err != nil {
					t.Fatal(err)
				}
				checks := [][]string{{"bash", "-n"}}
				if noShellcheck == nil {
					checks = append(checks, []string{"shellcheck", "--norc", "-"})
				}
				for _, c := range checks {
					cmd := exec.Command(c[0], c[1:]...)
					cmd.Stdin = strings.NewReader(script)
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("%v: %v\n%s", c, err, out)
					}
				}
				for i, line := range strings.Split(script, "\n") {
					if strings.TrimRight(line, " \t") != line {
						t.Errorf("line %d ends with white space: %q", i+1, line)
					}
					// A job runs what was built, the same on all nodes.
					if code, _, _ := strings.Cut(line, "#"); slices.Contains(strings.Fields(code), "make") {
						t.Errorf("line %d builds: %q", i+1, line)
					}
				}
				// sbatch stops reading at the first line that is neither comment nor empty.
				head, _, _ := strings.Cut(script, "\nDDPSTEP_BIN=")
				if in, all := strings.Count(head, "\n#SBATCH"), strings.Count(script, "\n#SBATCH"); in != all || in < 7 {
					t.Errorf("%d of %d #SBATCH lines come before the shell's part", in, all)
				}
			})
		}
	}
	if noShellcheck != nil {
		t.Skip("SKIPPED in part: shellcheck is not installed: apt-get install shellcheck")
	}
}
