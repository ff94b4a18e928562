//go:build linux

package slurm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/internal/required"
	"github.com/ddpstep/ddpstep/internal/slurmtest"
	"github.com/ddpstep/ddpstep/slurm"
)

// patience is for a job of a few seconds on a machine that does other work.
const patience = 2 * time.Minute

// site is a cluster, and the programs that its users submit.
type site struct {
	*slurmtest.Cluster
	source  string // the folder of this repository
	openmpi string // ddpstep, built with -tags mpi
	mpich   string // ddpstep, built with -tags mpich, or "" where MPICH is not installed
	alone   string // ddpstep without MPI
}

func newSite(t *testing.T) *site {
	s := &site{Cluster: slurmtest.Start(t, 4)}
	var err error
	if s.source, err = filepath.Abs(".."); err != nil {
		t.Fatal(err)
	}
	if exec.Command("pkg-config", "--exists", "ompi").Run() != nil {
		required.Skip(t, "slurm", "the job scripts need Open MPI: apt-get install openmpi-bin libopenmpi-dev pkg-config")
	}
	dir := t.TempDir()
	s.openmpi, s.alone = filepath.Join(dir, "openmpi"), filepath.Join(dir, "alone")
	s.build(t, "mpi", s.openmpi)
	s.build(t, "", s.alone)
	if exec.Command("pkg-config", "--exists", "mpich").Run() == nil {
		s.mpich = filepath.Join(dir, "mpich")
		s.build(t, "mpich", s.mpich)
	}
	return s
}

func (s *site) build(t *testing.T, tags, path string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-tags", tags, "-o", path, "./cmd/ddpstep")
	cmd.Dir = s.source
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build -tags %q: %v\n%s", tags, err, out)
	}
}

// user is somebody with a folder from which jobs are submitted, where
// bin/ddpstep is what the scripts call.
type user struct {
	*site
	dir string
}

func (s *site) user(t *testing.T, binary string) *user {
	t.Helper()
	u := &user{s, t.TempDir()}
	if err := os.Mkdir(filepath.Join(u.dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(u.dir, "bin", "ddpstep")); err != nil {
		t.Fatal(err)
	}
	return u
}

// wrapped is a script that starts ddpstep by another command.
func (s *site) wrapped(t *testing.T, command string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ddpstep")
	if err := os.WriteFile(path, []byte(fmt.Sprintf("#!/bin/sh\nexec %s '%s' \"$@\"\n", command, s.openmpi)), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// committed is the path of a script as a user has it from the repository.
func (u *user) committed(kind slurm.Kind) string {
	return filepath.Join(u.source, "slurm", string(kind)+".sbatch")
}

// rendered writes a script for other options.
func (u *user) rendered(t *testing.T, kind slurm.Kind, o slurm.Options) string {
	t.Helper()
	text, err := slurm.Render(kind, o)
	if err != nil {
		t.Fatal(err)
	}
	return u.script(t, text)
}

func (u *user) script(t *testing.T, text string) string {
	t.Helper()
	f, err := os.CreateTemp(u.dir, "*.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// submit runs sbatch in the user's folder.
func (u *user) submit(t *testing.T, env []string, args ...string) string {
	t.Helper()
	return u.Submit(t, u.dir, env, args...)
}

// ends waits for a job of one task and holds its state and exit code, which
// must be one that the script gave: a script that a signal ended has none.
func (u *user) ends(t *testing.T, id, state string, code int) slurmtest.JobState {
	t.Helper()
	s := u.Wait(t, id, patience)[0]
	u.gone(t, s.ID)
	// The exit code of a cancelled script comes after its state.
	for end := time.Now().Add(10 * time.Second); s.Fields["JobState"] == "COMPLETING" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s = u.Wait(t, id, patience)[0]
	}
	if s.State != state || s.ExitCode != code || s.Signal != 0 {
		t.Errorf("%v, want %s with exit code %d; it wrote:\n%s", s, state, code, u.output(t, s))
	}
	return s
}

// gone waits until no process of a job is left, by pid.
func (u *user) gone(t *testing.T, id string) {
	t.Helper()
	var left []slurmtest.Process
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left = u.Processes(id); len(left) == 0 {
			return
		}
	}
	t.Errorf("job %s has ended, these run on: %v", id, left)
}

func (u *user) output(t *testing.T, s slurmtest.JobState) string {
	t.Helper()
	text, err := os.ReadFile(s.StdOut)
	if err != nil {
		t.Errorf("output of job %s: %v", s.ID, err)
	}
	return string(text)
}

// file is a path below the folder of submission.
func (u *user) file(parts ...string) string {
	return filepath.Join(append([]string{u.dir}, parts...)...)
}

func (u *user) read(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(u.file(parts...))
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func readReport(t *testing.T, path string) *report.Report {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := new(report.Report)
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return r
}

// reference runs ddpstep as one process, without any launcher or Slurm, with
// the same arguments: the contract says that its digests are those of any
// other way to run it.
func (u *user) reference(t *testing.T, world string, args ...string) *report.Report {
	t.Helper()
	out := filepath.Join(t.TempDir(), "reference.json")
	cmd := exec.Command(u.alone, append([]string{"run", "--world", world, "--out", out}, args...)...)
	cmd.Dir = u.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("reference run: %v\n%s", err, text)
	}
	return readReport(t, out)
}

// same holds a report to be complete, good, and of the same bits as another.
func same(t *testing.T, got, want *report.Report) {
	t.Helper()
	if got.Status != "ok" || got.ExitCode != 0 {
		t.Errorf("report: status %q, exit code %d, failure %v", got.Status, got.ExitCode, got.Failure)
	}
	v := got.Verdicts
	for name, verdict := range map[string]*bool{"ranks_equal": v.RanksEqual, "within_bound": v.WithinBound} {
		if verdict == nil || !*verdict {
			t.Errorf("report: verdict %s does not hold", name)
		}
	}
	if len(got.Steps) != len(want.Steps) || len(got.Parameters) != len(want.Parameters) || len(got.Steps) == 0 {
		t.Fatalf("report: %d steps and %d parameters, want %d and %d",
			len(got.Steps), len(got.Parameters), len(want.Steps), len(want.Parameters))
	}
	for i := range want.Steps {
		if got.Steps[i].Step != want.Steps[i].Step || got.Steps[i].Digest != want.Steps[i].Digest {
			t.Errorf("step %d: digest %s, want step %d with %s", got.Steps[i].Step, got.Steps[i].Digest, want.Steps[i].Step, want.Steps[i].Digest)
		}
	}
	for i := range want.Parameters {
		if got.Parameters[i].Digest != want.Parameters[i].Digest {
			t.Errorf("parameter %s: another digest than the reference", want.Parameters[i].Name)
		}
	}
}
