//go:build linux

package slurm_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/preflight"
	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/slurm"
)

// gpuUser is a user whose ddpstep finds the doubles of libcuda and libnccl, with
// the four GPUs that Slurm believes each node to have: those of one node have
// other UUIDs than those of another. The environment of the job stays as it is,
// or the MPI library might take the double for a GPU too.
func (s *site) gpuUser(t *testing.T) *user {
	t.Helper()
	l := gpudouble.Need(t)
	if l.Real {
		t.Skip("needs the GPU double: unset DDPSTEP_TEST_GPU")
	}
	files, err := filepath.Glob(filepath.Join(s.source, "kernels", "*.cu"))
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := gpudouble.Kernels(files...)
	if err != nil {
		t.Fatal(err)
	}
	return s.user(t, s.wrapped(t, fmt.Sprintf(
		`env LD_LIBRARY_PATH='%s' DDPSTEP_DOUBLE_KERNELS='%s' DDPSTEP_DOUBLE_DEVICES=4 DDPSTEP_DOUBLE_HOST="$SLURMD_NODENAME"`, l.Dir, kernels)))
}

// onGPUs holds a report to say that each rank had a GPU of its own, as many on
// each node, and the bits to be those of the CPU.
func onGPUs(t *testing.T, r *report.Report, nodes, perNode int, want *report.Report) {
	t.Helper()
	same(t, r, want)
	if r.Reducer.Device != "gpu" || len(r.Ranks) != nodes*perNode {
		t.Errorf("ran on the %s (%s), %d ranks; want the gpu and %d", r.Reducer.Device, r.Reducer.Note, len(r.Ranks), nodes*perNode)
		return
	}
	gpus := map[string]bool{} // by UUID
	hosts := map[string]int{} // ranks by the part of the UUID that is the node's
	for _, rank := range r.Ranks {
		if rank.GPU == nil {
			t.Errorf("rank %d has no GPU", rank.Rank)
			continue
		}
		gpus[rank.GPU.UUID] = true
		hosts[rank.GPU.UUID[:strings.LastIndexByte(rank.GPU.UUID, '-')]]++
	}
	if len(gpus) != nodes*perNode || len(hosts) != nodes {
		t.Errorf("the ranks have %d GPUs on %d nodes, want %d on %d: %v", len(gpus), len(hosts), nodes*perNode, nodes, gpus)
	}
	for host, n := range hosts {
		if n != perNode {
			t.Errorf("%d ranks have a GPU %s..., want %d", n, host, perNode)
		}
	}
}

// onCPU is the reference with the bits that a job on GPUs must have.
func (u *user) onCPU(t *testing.T, world string, args ...string) *report.Report {
	t.Helper()
	return u.reference(t, world, append([]string{"--device", "cpu"}, args...)...)
}

// gpusOfOneNode binds GPUs in the ways in which jobs ask for them.
func gpusOfOneNode(t *testing.T, s *site) {
	u := s.gpuUser(t)
	args := []string{"--params", u.small(t), "--steps", "2"}
	want := u.onCPU(t, "2", args...)
	for _, how := range [][]string{
		{"--gpus-per-node=2"},
		{"--gpus-per-task=1"}, // each task sees its own, and calls it 0
	} {
		submit := append(slices.Clone(how), "--ntasks-per-node=2", u.committed(slurm.OneNode))
		id := u.submit(t, nil, append(submit, args...)...)
		u.ends(t, id, "COMPLETED", 0)
		r := readReport(t, u.file("reports", id, "report.json"))
		onGPUs(t, r, 1, 2, want)
		if r.Reducer.Transport != "peer" {
			t.Errorf("%v: over %s, want peer", how, r.Reducer.Transport)
		}
	}
}

// gpusOfSeveralNodes exchanges over NCCL.
func gpusOfSeveralNodes(t *testing.T, s *site) {
	u := s.gpuUser(t)
	args := []string{"--params", u.small(t), "--steps", "2"}
	want := u.onCPU(t, "4", args...)
	for _, mpi := range []string{"pmix", "mpirun"} {
		id := u.submit(t, nil, u.rendered(t, slurm.MultiNode, slurm.Options{MPI: mpi, GPUsPerNode: 2, Args: args}))
		u.ends(t, id, "COMPLETED", 0)
		r := readReport(t, u.file("reports", id, "report.json"))
		onGPUs(t, r, 2, 2, want)
		if r.Reducer.Transport != "nccl" {
			t.Errorf("by %s: over %s, want nccl", mpi, r.Reducer.Transport)
		}
	}
}

// matrixOnGPUs has a reducer that only GPUs have, and promises no bits.
func matrixOnGPUs(t *testing.T, s *site) {
	u := s.gpuUser(t)
	args := []string{"--world", "4", "--steps", "2"}
	id := u.submit(t, nil, u.rendered(t, slurm.Matrix, slurm.Options{
		GPUsPerNode: 2, Reducers: []string{"fixed", "nccl"}, BucketCaps: []string{"0.5"}, Models: []string{u.small(t)}, Args: args,
	}))
	want := u.onCPU(t, "4", "--params", "list.json", "--steps", "2")
	for i, state := range u.Wait(t, id, patience) {
		u.gone(t, state.ID)
		if state.State != "COMPLETED" || state.ExitCode != 0 {
			t.Errorf("cell %d: %v; it wrote\n%s", i, state, u.output(t, state))
			continue
		}
		r := readReport(t, u.file("reports", fmt.Sprintf("%s_%d", id, i), "report.json"))
		switch r.Reducer.Name {
		case "fixed":
			onGPUs(t, r, 1, 2, want)
		case "nccl":
			if r.Reducer.Device != "gpu" || r.Status != "ok" {
				t.Errorf("cell %d: nccl on the %s, status %s", i, r.Reducer.Device, r.Status)
			}
		}
	}
}

// nightlyOnGPUs: the jobs that compare and sum up ask for no GPU.
func nightlyOnGPUs(t *testing.T, s *site) {
	u := s.gpuUser(t)
	args := []string{"--params", u.small(t), "--steps", "2"}
	id := u.submit(t, nil, u.rendered(t, slurm.Nightly, slurm.Options{GPUsPerNode: 2, Args: args}))
	u.ends(t, id, "COMPLETED", 0)
	onGPUs(t, readReport(t, u.file("reports", id, "report.json")), 1, 2, u.onCPU(t, "2", args...))
	chain := strings.Fields(u.read(t, "reports", id, "chain"))
	if len(chain) != 2 {
		t.Fatalf("chain %q", chain)
	}
	for _, next := range chain {
		if gpus := u.ends(t, next, "COMPLETED", 0).Fields["TresPerNode"]; gpus != "gres:gpu:0" {
			t.Errorf("job %s of the chain asked for %q", next, gpus)
		}
	}
}

// qualifyOnGPUs holds doctor to find nothing odd about the GPUs.
func qualifyOnGPUs(t *testing.T, s *site) {
	u := s.gpuUser(t)
	args := []string{"--params", u.small(t), "--steps", "2"}
	env := []string{"DDPSTEP_MIN_BYTES=64K", "DDPSTEP_MAX_BYTES=64K", "DDPSTEP_REPEATS=1"}
	submit := []string{"--ntasks-per-node=2", "--gpus-per-node=2", u.committed(slurm.Qualify)}
	id := u.submit(t, env, append(submit, args...)...)
	u.ends(t, id, "COMPLETED", 0)
	onGPUs(t, readReport(t, u.file("reports", id, "report.json")), 2, 2, u.onCPU(t, "4", args...))
	var doctor struct{ Checks []preflight.Check }
	if err := json.Unmarshal([]byte(u.read(t, "reports", id, "doctor.json")), &doctor); err != nil {
		t.Fatal(err)
	}
	for name, found := range map[string]string{"GPUs": `^2 ranks, 2 GPUs \(SLURM_GPUS_ON_NODE\)$`, "visible devices": `^CUDA_VISIBLE_DEVICES=\d,\d$`} {
		if !slices.ContainsFunc(doctor.Checks, func(c preflight.Check) bool {
			return c.Name == name && c.Verdict == preflight.OK && regexp.MustCompile(found).MatchString(c.Found[0].What)
		}) {
			t.Errorf("doctor on %s: want %s in %v", name, found, doctor.Checks)
		}
	}
	if text := u.read(t, "reports", id, "bench.json"); !strings.Contains(text, `"reducer": "nccl"`) {
		t.Errorf("bench timed no nccl:\n%s", text)
	}
}

// tooFewGPUs has two tasks and one GPU.
func tooFewGPUs(t *testing.T, s *site) {
	u := s.gpuUser(t)
	id := u.submit(t, nil, "--ntasks-per-node=2", "--gpus-per-node=1", u.committed(slurm.OneNode), "--params", u.small(t), "--device", "gpu")
	state := u.ends(t, id, "FAILED", 6)
	if text := u.output(t, state); !strings.Contains(text, "ranks 0 and 1 are both bound to GPU-") {
		t.Errorf("it says\n%s", text)
	}
}

// requeuedOnGPUs goes on with the bits of a run on the CPU.
func requeuedOnGPUs(t *testing.T, s *site) {
	u := s.gpuUser(t)
	args := []string{"--params", u.list(t, 400000, 200001), "--world", "4", "--steps", "12"}
	id := u.submit(t, nil, append([]string{"--ntasks-per-node=2", "--gpus-per-node=2", u.committed(slurm.OneNode)}, args...)...)
	u.stepping(t, id, u.file("reports", id, "report.jsonl"), 2)
	u.Requeue(t, id)
	state := u.ends(t, id, "COMPLETED", 0)
	onGPUs(t, readReport(t, u.file("reports", id+"-restart1", "report.json")), 1, 2, u.onCPU(t, "4", args...))
	if text := u.output(t, state); !strings.Contains(text, "resuming after step ") {
		t.Errorf("the job did not resume:\n%s", text)
	}
}
