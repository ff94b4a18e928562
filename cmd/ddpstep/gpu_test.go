package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// doubles are the libraries of a machine with GPUs, imitated; see package
// gpudouble for what can be asked of them.
type doubles struct {
	gpudouble.Libraries
	env []string // with which a process finds them
}

func needDoubles(t *testing.T) doubles {
	t.Helper()
	l := gpudouble.Need(t)
	if l.Real {
		t.Skip("needs the GPU double: unset DDPSTEP_TEST_GPU")
	}
	files, err := filepath.Glob("../../kernels/*.cu")
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := gpudouble.Kernels(files...)
	if err != nil {
		t.Fatal(err)
	}
	return doubles{l, []string{"LD_LIBRARY_PATH=" + l.Dir + ":" + os.Getenv("LD_LIBRARY_PATH"),
		"DDPSTEP_DOUBLE_KERNELS=" + kernels, "DDPSTEP_DOUBLE_DEVICES=4"}}
}

// with adds variables to the environment.
func (d doubles) with(env ...string) []string { return append(slices.Clone(d.env), env...) }

// series are runs in one world of processes with GPUs, and what each must give.
type series struct {
	dir    string
	trials []trial
}

func (s *series) add(what string, args ...string) *trial {
	report := filepath.Join(s.dir, fmt.Sprint(len(s.trials), ".json"))
	s.trials = append(s.trials, trial{what: what, report: report, args: append([]string{"run", "--out", report}, args...)})
	return &s.trials[len(s.trials)-1]
}

func (s *series) lines() string {
	var b strings.Builder
	for _, n := range s.trials {
		fmt.Fprintln(&b, strings.Join(n.args, " "))
	}
	return b.String()
}

// onCPU makes the runs of a series on the CPU in one process, and returns the
// bits by what the runs are of.
func (s *series) onCPU(t *testing.T) map[string]string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := mpitest.RunAlone(t, mpitest.Job{Command: []string{self}, Env: []string{runsVar + "=" + s.lines()}})
	if r.Code != 0 {
		t.Fatal(r)
	}
	want := map[string]string{}
	for _, n := range s.trials {
		want[n.what] = bits(t, n.report)
	}
	return want
}

// onGPUs makes the runs of a series on so many ranks, each with a GPU.
func (s *series) onGPUs(t *testing.T, lib *mpitest.Library, ranks int, env []string, want map[string]string) {
	t.Helper()
	command := []string{lib.BuildTest(t, ".")}
	r := launch(t, lib, mpitest.Job{Ranks: ranks, Command: command, Env: append(env, runsVar+"="+s.lines())})
	if r.Code != 0 {
		t.Fatal(r)
	}
	for _, n := range s.trials {
		n.check(t, want[n.what], ranks)
		if got := field(t, n.report, "reducer.device"); got != "gpu" {
			t.Errorf("%v: ran on the %v", n.args, got)
		}
	}
}

var realGradients = []string{"digits_cnn_w4_f32", "bytes_gpt_w4_f32", "bytes_gpt_w4_bf16"}

// onTransports lists the ways to carry and to add.
func onTransports(ranks int) [][]string {
	if ranks == 1 {
		return [][]string{{}, {"--transport", "nccl"}}
	}
	return [][]string{{}, {"--transport", "nccl"}, {"--transport", "peer", "--algorithm", "oneshot"},
		{"--transport", "peer", "--algorithm", "twoshot"}, {"--transport", "peer", "--algorithm", "copyin"}}
}

// TestGPUMatrix reduces real gradients on GPUs: over every transport, with every
// algorithm, on one to four ranks, the bits are those of the CPU and of NumPy.
func TestGPUMatrix(t *testing.T) {
	d := needDoubles(t)
	base := series{dir: t.TempDir()}
	for _, folder := range realGradients {
		base.add(folder, "--device", "cpu", "--check", "off", "--grads", filepath.Join(gradients(t), folder, "rank{rank}.safetensors"))
	}
	want := base.onCPU(t)
	for ranks := 1; ranks <= 4; ranks++ {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			s := series{dir: t.TempDir()}
			for _, folder := range realGradients {
				data := filepath.Join(gradients(t), folder)
				for i, how := range onTransports(ranks) {
					for _, mib := range []string{"25", "0.05"} {
						n := s.add(folder, append([]string{"--device", "gpu", "--grads", data + "/rank{rank}.safetensors", "--bucket-cap-mb", mib, "--first-bucket-mb", "0.03"}, how...)...)
						if i < 2 {
							n.grads, n.want = n.report+".safetensors", data+"/numpy_fixed_order_mean.safetensors"
							n.args = append(n.args, "--grads-out", n.grads)
						}
					}
				}
				s.add(folder, "--grads", data+"/rank{rank}.safetensors", "--reducer", "nccl").libraryRuns = true
			}
			s.onGPUs(t, mpitest.OpenMPI, ranks, d.with("LD_BIND_NOW=1"), want)
		})
	}
}

// TestGPUValues reduces generated values of every set and dtype, with every
// average, for worlds that do not divide by the processes.
func TestGPUValues(t *testing.T) {
	d := needDoubles(t)
	list := writeFile(t, t.TempDir(), "list.json", mixed)
	base, s := series{dir: t.TempDir()}, series{dir: t.TempDir()}
	add := func(what string, args ...string) {
		args = append(args, "--params", list, "--allow-nonfinite", "--bucket-cap-mb", "0.02", "--first-bucket-mb", "0.001")
		base.add(what, append(args, "--device", "cpu", "--check", "off")...)
		for _, how := range onTransports(2)[:2] {
			s.add(what, append(append(args, "--device", "gpu"), how...)...)
		}
	}
	for i, values := range []string{"wide", "exact", "cancel", "subnormal", "zero", "huge", "inf", "nan"} {
		for _, world := range []int{3, 5, 8} {
			add(fmt.Sprint(values, world), "--values", values, "--world", fmt.Sprint(world), "--steps", fmt.Sprint(1+i%2))
		}
	}
	for _, average := range []string{"pre", "none"} {
		for _, world := range []string{"2", "5"} {
			add(average+world, "--average", average, "--world", world)
			n := s.add(average+world, "--average", average, "--world", world, "--params", list, "--reducer", "nccl")
			n.libraryRuns = true
		}
	}
	want := base.onCPU(t)
	s.onGPUs(t, mpitest.OpenMPI, 2, d.env, want)
	s = series{dir: t.TempDir(), trials: nil}
	s.add("wide3", "--values", "wide", "--world", "3", "--params", list)
	s.onGPUs(t, mpitest.MPICH, 3, d.env, want)
}

// TestGPUBench checks every answer that it times.
func TestGPUBench(t *testing.T) {
	d := needDoubles(t)
	binary := mpitest.OpenMPI.Build(t, ".")
	for ranks, reducers := range map[int]string{2: "fixed,fixed:nccl,nccl", 3: ""} {
		buckets := fmt.Sprint(2*ranks - 3) // 1 and 3
		command := []string{binary, "bench", "--device", "gpu", "-b", "4", "-e", "256K", "-f", "256", "-n", "1", "--json", "--dtype", "float32,float16", "--buckets", buckets}
		if reducers != "" {
			command = append(command, "--reducers", reducers)
		}
		r := launch(t, mpitest.OpenMPI, mpitest.Job{Ranks: ranks, Command: command, Env: d.env})
		var got struct{ Rows []benchRow }
		if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil || r.Code != 0 || len(got.Rows) != 2*3 {
			t.Fatalf("%v: %v", err, r)
		}
		for _, row := range got.Rows {
			if len(row.Results) != max(strings.Count(reducers, ",")+1, 2) {
				t.Errorf("%d bytes of %v: %d reducers", row.Bytes, row.DType, len(row.Results))
			}
			for _, res := range row.Results {
				algbw := float64(row.Bytes) * float64(row.Buckets) / res.Seconds.P50 / 1e9
				if fmt.Sprint(row.Buckets) != buckets || math.Abs(res.AlgBW/algbw-1) > 1e-9 {
					t.Errorf("%d buckets of %d bytes by %s: %g GB/s, not %g", row.Buckets, row.Bytes, res.Reducer, res.AlgBW, algbw)
				}
				if res.Wrong != 0 || res.Seconds.P50 <= 0 {
					t.Errorf("%d bytes of %v by %s: %+v", row.Bytes, row.DType, res.Reducer, res)
				}
			}
		}
	}
}

// TestGPUReport looks for the GPUs in the report, bound in each of the ways.
func TestGPUReport(t *testing.T) {
	d := needDoubles(t)
	binary := mpitest.OpenMPI.Build(t, ".")
	list := writeFile(t, t.TempDir(), "list.json", mixed)
	for _, tt := range []struct {
		name, prelude string
		env           []string
		ordinals      [2]float64
		buses         [2]string
	}{
		{name: "by local rank", ordinals: [2]float64{0, 1}, buses: [2]string{"0000:01:00.0", "0000:02:00.0"}},
		{name: "one visible to each task", prelude: `export CUDA_VISIBLE_DEVICES=$((OMPI_COMM_WORLD_RANK + 2))`, buses: [2]string{"0000:03:00.0", "0000:04:00.0"}},
		{name: "by --gpu", prelude: `export DDPSTEP_GPU=$((3 - OMPI_COMM_WORLD_RANK))`, ordinals: [2]float64{3, 2}, buses: [2]string{"0000:04:00.0", "0000:03:00.0"}},
		{name: "visible to all", env: []string{"CUDA_VISIBLE_DEVICES=3,1"}, ordinals: [2]float64{0, 1}, buses: [2]string{"0000:04:00.0", "0000:02:00.0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "r.json")
			command := []string{"sh", "-c", tt.prelude + "\n" + `exec "$@"`, "sh", binary, "run", "--params", list, "--out", report, "--device", "gpu"}
			r := launch(t, mpitest.OpenMPI, mpitest.Job{Ranks: 2, Command: command, Env: d.with(tt.env...)})
			if r.Code != 0 || len(said(r)) > 0 {
				t.Fatal(r)
			}
			uuids := map[any]bool{}
			for i, item := range field(t, report, "ranks").([]any) {
				gpu := item.(map[string]any)["gpu"].(map[string]any)
				uuids[gpu["uuid"]] = true
				if gpu["name"] != "ddpstep test double" || gpu["ordinal"] != tt.ordinals[i] || gpu["bus"] != tt.buses[i] ||
					!strings.HasSuffix(fmt.Sprint(gpu["driver"]), "CUDA 13.0") || !strings.HasPrefix(fmt.Sprint(gpu["uuid"]), "GPU-dd57e900-") {
					t.Errorf("rank %d: %v", i, gpu)
				}
			}
			if len(uuids) != 2 {
				t.Errorf("%d GPUs: %v", len(uuids), slices.Collect(maps.Keys(uuids)))
			}
			if v := field(t, report, "versions").(map[string]any); v["nccl"] != "2.28.3" || v["cuda driver"] != "CUDA 13.0" {
				t.Errorf("versions %v", v)
			}
			if transport := field(t, report, "reducer.transport"); transport != "peer" {
				t.Errorf("transport %v", transport)
			}
		})
	}
}

// TestGPUMemoryOutlivesMappings makes a rank slow to let go of its peers'
// memory: nobody may free his before it has.
func TestGPUMemoryOutlivesMappings(t *testing.T) {
	d := needDoubles(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	list := writeFile(t, dir, "list.json", mixed)
	r := launch(t, mpitest.OpenMPI, mpitest.Job{Ranks: 3, Command: []string{mpitest.OpenMPI.Build(t, "."), "run", "--device", "gpu", "--params", list},
		Env: d.with("DDPSTEP_DOUBLE_LOG="+log, "DDPSTEP_DOUBLE_FAULT=rank=1,call=cuIpcCloseMemHandle,do=delay:300")})
	if r.Code != 0 {
		t.Fatal(r)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	freed, closed := map[string]bool{}, 0
	for line := range strings.Lines(string(text)) {
		call, memory, ok := strings.Cut(strings.TrimSpace(line), " shared=")
		switch {
		case !ok:
		case strings.HasSuffix(call, "cuMemFree_v2"):
			freed[memory] = true
		default:
			closed++
			if freed[memory] {
				t.Errorf("%s after the memory was freed", line)
			}
		}
	}
	if len(freed) != 6 || closed != 12 { // gradients and flags of each of three; each mapped by two
		t.Errorf("%d freed and %d mappings closed:\n%s", len(freed), closed, text)
	}
}

// TestGPUSlowStep takes longer to make a step's gradients than the deadline of
// a wait is: no peer is lost.
func TestGPUSlowStep(t *testing.T) {
	d := needDoubles(t)
	list := writeFile(t, t.TempDir(), "list.json", mixed)
	for _, how := range [][]string{{"--reducer", "nccl"}, {"--transport", "nccl"}, {"--transport", "peer"}} {
		t.Run(how[1], func(t *testing.T) {
			t.Parallel()
			command := []string{mpitest.OpenMPI.Build(t, "."), "run", "--device", "gpu", "--params", list, "--values", "nan", "--allow-nonfinite", "--check", "off",
				"--bucket-cap-mb", "0.02", "--first-bucket-mb", "0.001", "--deadline", "3s"}
			r := launch(t, mpitest.OpenMPI, mpitest.Job{Ranks: 2, Command: append(command, how...),
				Env: d.with("DDPSTEP_DOUBLE_FAULT=call=cuMemcpyHtoDAsync_v2,do=delay:900")})
			if r.Code != 0 {
				t.Fatal(r)
			}
		})
	}
}
