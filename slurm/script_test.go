package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// These tests run the shell's part of the scripts with a srun that only notes
// its arguments: what reaches the launcher, whatever the values look like.

// desk is a folder of submission with stand-ins for Slurm's clients.
type desk struct {
	dir string
	env []string
}

func newDesk(t *testing.T) *desk {
	d := &desk{dir: t.TempDir()}
	bin := filepath.Join(d.dir, "clients")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	note := "#!/bin/bash\nprintf '%s\\0' \"$@\" >\"$NOTE\"\nexit \"${CODE:-0}\"\n"
	for _, name := range []string{"srun", "mpirun"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(note), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "module"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.env = []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "NOTE=" + filepath.Join(d.dir, "note"),
		"SLURM_SUBMIT_DIR=" + d.dir, "SLURM_JOB_ID=7", "SLURM_NTASKS=4",
	}
	return d
}

// run runs a script as Slurm would and returns the launcher's arguments.
func (d *desk) run(t *testing.T, script string, env []string, args ...string) (launched []string, code int) {
	t.Helper()
	path := filepath.Join(d.dir, "slurm_script")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = d.dir
	cmd.Env = append(append([]string{}, d.env...), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	note, _ := os.ReadFile(filepath.Join(d.dir, "note"))
	_ = os.Remove(filepath.Join(d.dir, "note"))
	if t.Logf("%s", out); len(note) > 0 {
		launched = strings.Split(strings.TrimSuffix(string(note), "\x00"), "\x00")
	}
	return launched, cmd.ProcessState.ExitCode()
}

func render(t *testing.T, kind Kind, o Options) string {
	t.Helper()
	script, err := Render(kind, o)
	if err != nil {
		t.Fatal(err)
	}
	return script
}

func TestValuesReachTheLauncher(t *testing.T) {
	evil := []string{"it's", "$(touch evil)", "`touch evil`", `"; touch evil; "`, "a b", "", "*", `\`, "}", "#", "~", "é"}
	for _, mpi := range []string{"pmix", "pmi2", "mpirun"} {
		d := newDesk(t)
		binary := "/opt/it's ${HOME} }$(touch evil)/ddpstep"
		got, code := d.run(t, render(t, OneNode, Options{MPI: mpi, Binary: binary, Args: evil, Modules: []string{"mpi"}}), nil)
		launcher := []string{"--mpi=" + mpi, "--kill-on-bad-exit=1"}
		if mpi == "mpirun" {
			launcher = []string{"-np", "4"}
		}
		want := append(append(launcher, binary, "run"), evil...)
		want = append(want, "--out", filepath.Join(d.dir, "reports/7/report.json"))
		if diff := cmp.Diff(want, got); diff != "" || code != 0 {
			t.Errorf("%s: exit code %d, arguments (-want +got):\n%s", mpi, code, diff)
		}
		if _, err := os.Stat(filepath.Join(d.dir, "evil")); err == nil {
			t.Errorf("%s: a value was run", mpi)
		}
	}
}

func TestArgumentsAndTwinsReplace(t *testing.T) {
	d := newDesk(t)
	got, _ := d.run(t, render(t, OneNode, Options{}), []string{"DDPSTEP_BIN=/x y/d", "DDPSTEP_MPI=pmi2"}, "--model", "g p t")
	want := []string{"--mpi=pmi2", "--kill-on-bad-exit=1", "/x y/d", "run", "--model", "g p t",
		"--out", filepath.Join(d.dir, "reports/7/report.json")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestExitCodeIsTheLaunchersOwn(t *testing.T) {
	for _, kind := range []Kind{OneNode, MultiNode, Matrix, Qualify} {
		for _, mpi := range []string{"pmix", "mpirun"} {
			d := newDesk(t)
			_, code := d.run(t, render(t, kind, Options{MPI: mpi}),
				[]string{"CODE=5", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=0"})
			if code != 5 {
				t.Errorf("%s by %s: exit code %d, want 5", kind, mpi, code)
			}
		}
	}
}

// TestResume requeues a job: each attempt has a folder, and goes on from the
// newest report.jsonl that has a line.
func TestResume(t *testing.T) {
	d := newDesk(t)
	script := render(t, OneNode, Options{Args: []string{"--model", "m"}})
	for _, attempt := range []struct {
		restart string
		resume  bool
		leaves  string // in its report.jsonl
	}{
		{"", false, "step 1\n"},
		{"1", true, "step 1\nstep 2\n"},
		{"2", true, ""},
		{"4", true, ""}, // 3 did not come as far as a folder
	} {
		var env []string
		out := filepath.Join(d.dir, "reports/7")
		if attempt.restart != "" {
			env = append(env, "SLURM_RESTART_COUNT="+attempt.restart)
			out += "-restart" + attempt.restart
		}
		got, _ := d.run(t, script, env)
		want := []string{"--mpi=pmix", "--kill-on-bad-exit=1", "bin/ddpstep", "run", "--model", "m"}
		if attempt.resume {
			want = append(want, "--resume")
		}
		want = append(want, "--out", filepath.Join(out, "report.json"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("restart %q: arguments (-want +got):\n%s", attempt.restart, diff)
		}
		if attempt.leaves != "" {
			if err := os.WriteFile(filepath.Join(out, "report.jsonl"), []byte(attempt.leaves), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if text, err := os.ReadFile(filepath.Join(out, "report.jsonl")); err != nil || string(text) != "step 1\nstep 2\n" {
			t.Errorf("restart %q goes on from %q, %v", attempt.restart, text, err)
		}
	}
}

// TestMatrixCells walks all cells: each combination once, none outside.
func TestMatrixCells(t *testing.T) {
	d := newDesk(t)
	script := render(t, Matrix, Options{
		Reducers: []string{"fixed", "mpi"}, BucketCaps: []string{"25", "1", "all"}, Models: []string{"a", "my/list.json"}, Args: []string{"--steps", "3"},
	})
	if !strings.Contains(script, "\n#SBATCH --array=0-11\n") {
		t.Error("no array of 12")
	}
	seen := make(map[string]int)
	for cell := range 13 {
		got, code := d.run(t, script, []string{"SLURM_ARRAY_JOB_ID=5", "SLURM_ARRAY_TASK_ID=" + strconv.Itoa(cell)})
		if cell == 12 {
			if code != 2 || got != nil {
				t.Errorf("cell 12 of 12: exit code %d, launched %q", code, got)
			}
			continue
		}
		if len(got) < 10 {
			t.Fatalf("cell %d: exit code %d, launched %q", cell, code, got)
		}
		seen[strings.Join(got[4:10], " ")]++
		want := filepath.Join(d.dir, "reports/5_"+strconv.Itoa(cell), "report.json")
		if tail := got[10:]; strings.Join(tail, " ") != "--steps 3 --out "+want {
			t.Errorf("cell %d ends with %q", cell, tail)
		}
	}
	for _, model := range []string{"--model a", "--params my/list.json"} {
		for _, cap := range []string{"25", "1", "all"} {
			for _, reducer := range []string{"fixed", "mpi"} {
				key := model + " --reducer " + reducer + " --bucket-cap-mb " + cap
				if seen[key] != 1 {
					t.Errorf("%s: run %d times, want once", key, seen[key])
				}
			}
		}
	}
}
