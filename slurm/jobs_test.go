//go:build linux

package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/slurm"

	"github.com/ddpstep/ddpstep/internal/required"
)

// TestSlurm runs every script on a Slurm of its own, with ddpstep as it is
// built here, on the CPU and on doubles of GPUs.
func TestSlurm(t *testing.T) {
	s := newSite(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *site)
	}{
		{"time limit", timeLimit}, // first: Slurm takes its time to notice
		{"one node", oneNode},
		{"several nodes", severalNodes},
		{"several nodes by mpirun", byMpirun},
		{"PMI2 with MPICH", byPMI2},
		{"matrix", matrix},
		{"nightly", nightly},
		{"qualify", qualify},
		{"wrong baseline", wrongBaseline},
		{"every task alone", everyTaskAlone},
		{"no launcher", noLauncher},
		{"rank killed", rankKilled},
		{"rank killed, survivors left", rankKilledSurvivorsLeft},
		{"rank stopped", rankStopped},
		{"cancelled", cancelled},
		{"cancelled under mpirun", cancelledUnderMpirun},
		{"warned", warned},
		{"warned under mpirun", warnedUnderMpirun},
		{"requeued", requeued},
		{"failing, one rank ends earlier", failing},
		{"GPUs of one node", gpusOfOneNode},
		{"GPUs of several nodes", gpusOfSeveralNodes},
		{"GPUs, matrix", matrixOnGPUs},
		{"GPUs, nightly", nightlyOnGPUs},
		{"GPUs, qualify", qualifyOnGPUs},
		{"GPUs, too few", tooFewGPUs},
		{"GPUs, requeued", requeuedOnGPUs},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, s)
		})
	}
}

// list writes a parameter list of some tensors and returns its name.
func (u *user) list(t *testing.T, elements ...int) string {
	t.Helper()
	var tensors []string
	for i, n := range elements {
		tensors = append(tensors, fmt.Sprintf(`{"name": "p%d", "shape": [%d]}`, i, n))
	}
	text := `{"dtype": "float32", "parameters": [` + strings.Join(tensors, ", ") + `]}`
	if err := os.WriteFile(u.file("list.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "list.json"
}

// small is for jobs that only have to be right: uneven slices, several buckets.
func (u *user) small(t *testing.T) string { return u.list(t, 1000, 17, 300001, 5, 70000) }

func oneNode(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	grads := filepath.Join(s.source, "testdata", "digits_cnn_w4_f32", "rank{rank}.safetensors")
	id := u.submit(t, nil, u.committed(slurm.OneNode), "--grads", grads, "--steps", "2")
	u.ends(t, id, "COMPLETED", 0)
	same(t, readReport(t, u.file("reports", id, "report.json")), u.reference(t, "4", "--grads", grads, "--steps", "2"))
}

func severalNodes(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	args := []string{"--params", u.small(t), "--steps", "3"}
	id := u.submit(t, nil, append([]string{u.committed(slurm.MultiNode)}, args...)...)
	state := u.ends(t, id, "COMPLETED", 0)
	if n := state.Fields["NumNodes"]; n != "2" {
		t.Errorf("ran on %s nodes, want 2", n)
	}
	same(t, readReport(t, u.file("reports", id, "report.json")), u.reference(t, "8", args...))
}

func byMpirun(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	args := []string{"--params", u.small(t), "--steps", "3"}
	id := u.submit(t, nil, u.rendered(t, slurm.MultiNode, slurm.Options{MPI: "mpirun", TasksPerNode: 2, Args: args}))
	u.ends(t, id, "COMPLETED", 0)
	same(t, readReport(t, u.file("reports", id, "report.json")), u.reference(t, "4", args...))
}

func byPMI2(t *testing.T, s *site) {
	if s.mpich == "" {
		required.Skip(t, "mpich", "needs MPICH: apt-get install mpich libmpich-dev")
	}
	u := s.user(t, s.mpich)
	args := []string{"--params", u.small(t), "--steps", "3"}
	id := u.submit(t, nil, u.rendered(t, slurm.MultiNode, slurm.Options{MPI: "pmi2", TasksPerNode: 2, Args: args}))
	u.ends(t, id, "COMPLETED", 0)
	same(t, readReport(t, u.file("reports", id, "report.json")), u.reference(t, "4", args...))
}

// matrix runs six cells of a matrix of the user's own, and one of the
// committed script's as it is.
func matrix(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	reducers, caps := []string{"fixed", "mpi"}, []string{"25", "1", "0.05"}
	id := u.submit(t, nil, u.rendered(t, slurm.Matrix, slurm.Options{
		TasksPerNode: 2, Reducers: reducers, BucketCaps: caps, Models: []string{u.small(t)}, Args: []string{"--world", "4", "--steps", "2"},
	}))
	states := u.Wait(t, id, patience)
	if len(states) != 6 {
		t.Fatalf("%d array tasks, want 6", len(states))
	}
	want := u.reference(t, "4", "--params", "list.json", "--steps", "2")
	for i, state := range states {
		u.gone(t, state.ID)
		if state.State != "COMPLETED" || state.ExitCode != 0 || state.ArrayTask != fmt.Sprint(i) {
			t.Errorf("cell %d: task %s, %v; it wrote\n%s", i, state.ArrayTask, state, u.output(t, state))
			continue
		}
		r := readReport(t, u.file("reports", fmt.Sprintf("%s_%d", id, i), "report.json"))
		if mib, _ := strconv.ParseFloat(caps[i/2], 64); r.Reducer.Name != reducers[i%2] || r.Plan.CapsBytes[1] != int64(mib*(1<<20)) {
			t.Errorf("cell %d: reducer %s, caps %v; want %s, %s MiB", i, r.Reducer.Name, r.Plan.CapsBytes, reducers[i%2], caps[i/2])
		}
		if r.Reducer.Name == "fixed" {
			same(t, r, want)
		}
	}

	id = u.submit(t, nil, "--array=0", u.committed(slurm.Matrix), "--steps", "1", "--check", "sample")
	state := u.Wait(t, id, patience)[0]
	if state.State != "COMPLETED" {
		t.Errorf("committed matrix: %v; it wrote\n%s", state, u.output(t, state))
	}
	if r := readReport(t, u.file("reports", id+"_0", "report.json")); r.Inputs.Parameters != "resnet50" || r.Status != "ok" {
		t.Errorf("committed matrix: %s, status %s", r.Inputs.Parameters, r.Status)
	}
}

// nightly runs four nights: one that records the baseline, one that passes,
// one that differs, and one whose run fails.
func nightly(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	mail := u.file("mail")
	sendmail := filepath.Join(u.dir, "sendmail")
	if err := os.WriteFile(sendmail, []byte("#!/bin/sh\ncat >"+mail+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	list := u.small(t)
	for _, night := range []struct {
		name            string
		args            []string
		run, compare    string // state and exit code
		summary         string
		subject, detail string
	}{
		{"records", nil, "COMPLETED 0", "COMPLETED 0", "COMPLETED 0", "passed", "have the same bits"},
		{"passes", nil, "COMPLETED 0", "COMPLETED 0", "COMPLETED 0", "passed", "have the same bits"},
		{"differs", nil, "COMPLETED 0", "FAILED 4", "FAILED 4", "FAILED: compare ended with exit code 4", "differs from the baseline"},
		{"fails", []string{"--values", "nan"}, "FAILED 5", "CANCELLED 0", "FAILED 5", "FAILED: run ended with exit code 5", "is NaN"},
	} {
		if night.name == "differs" {
			u.spoil(t, "baseline.json")
		}
		args := append([]string{u.committed(slurm.Nightly), "--params", list, "--steps", "2"}, night.args...)
		env := []string{"PATH=" + u.dir + ":" + os.Getenv("PATH"), "DDPSTEP_MAIL_TO=ops@example.org"}
		id := u.submit(t, env, args...)
		run := u.Wait(t, id, patience)[0]
		// The chain is the two jobs that this one submitted.
		var chain [2]string
		text := u.read(t, "reports", id, "chain")
		if n, err := fmt.Sscan(text, &chain[0], &chain[1]); n != 2 {
			t.Fatalf("%s: chain %q: %v; the job wrote\n%s", night.name, text, err, u.output(t, run))
		}
		compare, summary := u.Wait(t, chain[0], patience)[0], u.Wait(t, chain[1], patience)[0]
		for _, job := range []struct{ name, got, want string }{
			{"run", fmt.Sprint(run.State, " ", run.ExitCode), night.run},
			{"compare", fmt.Sprint(compare.State, " ", compare.ExitCode), night.compare},
			{"summary", fmt.Sprint(summary.State, " ", summary.ExitCode), night.summary},
		} {
			if job.got != job.want {
				t.Errorf("night that %s: %s: %s, want %s", night.name, job.name, job.got, job.want)
			}
		}
		text = u.read(t, "reports", id, "summary.txt")
		head, body, _ := strings.Cut(text, "\n\n")
		if !strings.HasPrefix(head, "Subject: ddpstep nightly ") || !strings.HasSuffix(head, ": "+night.subject+"\nTo: ops@example.org") ||
			!strings.Contains(body, night.detail) {
			t.Errorf("night that %s: summary\n%s", night.name, text)
		}
		if sent, err := os.ReadFile(mail); err != nil || string(sent) != text {
			t.Errorf("night that %s: mailed %q, %v", night.name, sent, err)
		}
		_ = os.Remove(mail)
	}
}

// spoil changes a digest in a baseline.
func (u *user) spoil(t *testing.T, name string) {
	t.Helper()
	text := u.read(t, name)
	i := strings.Index(text, `"digest": "`) + len(`"digest": "`)
	if i < len(`"digest": "`) {
		t.Fatalf("%s holds no digest:\n%s", name, text)
	}
	swap := map[byte]string{'0': "1"}[text[i]]
	if swap == "" {
		swap = "0"
	}
	if err := os.WriteFile(u.file(name), []byte(text[:i]+swap+text[i+1:]), 0o600); err != nil {
		t.Fatal(err)
	}
}

func qualify(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	args := []string{"--params", u.small(t), "--steps", "2"}
	env := []string{"DDPSTEP_MIN_BYTES=8M", "DDPSTEP_MAX_BYTES=8M", "DDPSTEP_REPEATS=1"}
	id := u.submit(t, env, append([]string{"--ntasks-per-node=2", u.committed(slurm.Qualify)}, args...)...)
	u.ends(t, id, "COMPLETED", 0)
	same(t, readReport(t, u.file("reports", id, "report.json")), u.reference(t, "4", args...))
	for file, want := range map[string]string{"doctor.json": `; this MPI needs --mpi=pmix"`, "bench.json": `"bytes": 8388608`} {
		if text := u.read(t, "reports", id, file); !strings.Contains(text, want) {
			t.Errorf("%s lacks %s:\n%s", file, want, text)
		}
	}
}

func wrongBaseline(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	list := u.small(t)
	id := u.submit(t, nil, u.committed(slurm.OneNode), "--params", list, "--save-baseline", "good.json")
	u.ends(t, id, "COMPLETED", 0)
	id = u.submit(t, nil, u.committed(slurm.OneNode), "--params", list, "--baseline", "good.json")
	u.ends(t, id, "COMPLETED", 0)
	u.spoil(t, "good.json")
	id = u.submit(t, nil, u.committed(slurm.OneNode), "--params", list, "--baseline", "good.json")
	u.ends(t, id, "FAILED", 4)
	r := readReport(t, u.file("reports", id, "report.json"))
	if r.ExitCode != 4 || r.Verdicts.BaselineEqual == nil || *r.Verdicts.BaselineEqual {
		t.Errorf("report: exit code %d, baseline_equal %v", r.ExitCode, r.Verdicts.BaselineEqual)
	}
}

// everyTaskAlone starts four tasks that cannot find each other, in the ways in
// which that happens. Open MPI under PMI2, which Debian's lacks, ends the
// tasks by itself in MPI_Init: exit code 1, and its own long words.
func everyTaskAlone(t *testing.T, s *site) {
	for name, test := range map[string]struct{ binary, mpi, hint string }{
		"srun without PMI":            {s.openmpi, "none", "use 'srun --mpi=pmix'"},
		"ddpstep built without MPI":   {s.alone, "pmix", "this build has no MPI"},
		"another library's interface": {s.mpich, "pmix", "the launcher do not match"},
	} {
		if test.binary == "" {
			t.Logf("%s: SKIPPED: needs MPICH: apt-get install mpich libmpich-dev", name)
			continue
		}
		u := s.user(t, test.binary)
		id := u.submit(t, []string{"DDPSTEP_MPI=" + test.mpi}, u.committed(slurm.OneNode), "--params", u.small(t))
		state := u.ends(t, id, "FAILED", 6)
		if text := u.output(t, state); !strings.Contains(text, test.hint) {
			t.Errorf("%s: no %q in\n%s", name, test.hint, text)
		}
		if files, _ := filepath.Glob(u.file("reports", id, "*")); len(files) != 0 {
			t.Errorf("%s: it left %v", name, files)
		}
	}
}

// noLauncher forgets srun in the script.
func noLauncher(t *testing.T, s *site) {
	u := s.user(t, s.openmpi)
	script := u.script(t, "#!/bin/bash\n#SBATCH --ntasks=4\nbin/ddpstep \"$@\"\n")
	for _, args := range [][]string{{"run", "--params", u.small(t)}, {"doctor"}} {
		state := u.ends(t, u.submit(t, nil, append([]string{script}, args...)...), "FAILED", 6)
		if text := u.output(t, state); !strings.Contains(text, "no launcher started ddpstep") {
			t.Errorf("%s says\n%s", args[0], text)
		}
	}
}

// interrupted holds a report to be complete as far as it goes.
func interrupted(t *testing.T, path string) *report.Report {
	t.Helper()
	r := readReport(t, path)
	if r.Status != "interrupted" || len(r.Steps) == 0 || r.ExitCode != 0 ||
		r.Verdicts.ReferenceEqual == nil || !*r.Verdicts.ReferenceEqual {
		t.Errorf("%s: status %q, %d steps, exit code %d", path, r.Status, len(r.Steps), r.ExitCode)
	}
	return r
}
