package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// TestGPURefused starts two ranks in surroundings that are not fit: the job is
// refused, by one line that says what and where, or runs on the CPU where it
// may.
func TestGPURefused(t *testing.T) {
	d := needDoubles(t)
	binary := mpitest.OpenMPI.Build(t, ".")
	dir := t.TempDir()
	list := writeFile(t, dir, "list.json", mixed)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host = regexp.QuoteMeta(host)
	without := func(library, symbol string) string {
		folder := filepath.Join(dir, symbol)
		if err := os.Mkdir(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		path, err := gpudouble.Without(library, symbol, folder)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	second := func(what string) string { return `test $OMPI_COMM_WORLD_RANK = 1 && export ` + what }
	gpu, reduce := []string{"--device", "gpu"}, []string{"--reducer", "nccl"}
	tests := []struct {
		name, prelude string
		env, args     []string
		code          int
		apart         bool   // a rank speaks for itself
		want          string // the line; where the code is 0, the note in the report
	}{
		{name: "one GPU for two", env: []string{"CUDA_VISIBLE_DEVICES=2"}, args: gpu, code: 6,
			want: `rank 1 on ` + host + ` has no GPU: ranks 0 and 1 are both bound to GPU-dd57e900-[0-9a-f-]+02; `},
		{name: "one GPU for two, by --gpu", args: append(gpu, "--gpu", "1"), code: 6, want: `ranks 0 and 1 are both bound to GPU-dd57e900-[0-9a-f-]+01; `},
		{name: "one GPU for two, chosen", env: []string{"CUDA_VISIBLE_DEVICES=2"}, want: `ranks 0 and 1 are both bound to GPU-`},
		{name: "one GPU for two, shared", env: []string{"CUDA_VISIBLE_DEVICES=2"}, args: append(reduce, "--share-gpu"), code: 6, apart: true, want: `NCCL error 5: .*Duplicate GPU`},
		{name: "too few", env: []string{"DDPSTEP_DOUBLE_DEVICES=3"}, args: append(gpu, "--gpu", "3"), code: 6,
			want: `rank 0 on ` + host + ` has no GPU: it would use device 3, and 3 are visible; .*CUDA_VISIBLE_DEVICES`},
		{name: "none", env: []string{"CUDA_VISIBLE_DEVICES="}, args: gpu, code: 6, want: `rank 0 on ` + host + ` has no GPU: cuInit: CUDA_ERROR_NO_DEVICE \(100\)`},
		{name: "none on one", prelude: second("CUDA_VISIBLE_DEVICES="), want: `rank 1 on ` + host + ` has no GPU: cuInit: CUDA_ERROR_NO_DEVICE`},
		{name: "no libcuda", args: append(gpu, "--cuda-lib", "/nowhere/libcuda.so.1"), code: 6,
			want: `has no GPU: cannot load libcuda\.so\.1: tried /nowhere/libcuda\.so\.1: .*No such file`},
		{name: "no libcuda on one", prelude: second("LD_LIBRARY_PATH="), args: nil, want: `rank 1 on ` + host + ` has no GPU: `},
		{name: "incomplete libcuda", args: append(gpu, "--cuda-lib", without(d.CUDA, "cuIpcCloseMemHandle")), code: 6,
			want: `libcuda\.so\.1 \(/.*/libcuda\.so\.1\) has no symbol cuIpcCloseMemHandle: `},
		{name: "no libnccl", args: append(reduce, "--nccl-lib", "/nowhere/libnccl.so.2"), code: 6,
			want: `cannot load libnccl\.so\.2: tried /nowhere/libnccl\.so\.2: .*No such file`},
		{name: "incomplete libnccl", args: append(reduce, "--nccl-lib", without(d.NCCL, "ncclCommAbort")), code: 6,
			want: `libnccl\.so\.2 \(/.*/libnccl\.so\.2\) has no symbol ncclCommAbort: `},
		{name: "old NCCL", env: []string{"DDPSTEP_DOUBLE_NCCL_VERSION=22506"}, args: reduce, code: 6,
			want: `NCCL 2\.25\.6 \(libnccl\.so\.2\) is too old: 2\.26\.0 or newer`},
		{name: "old NCCL on one", prelude: second("DDPSTEP_DOUBLE_NCCL_VERSION=22506"), args: reduce, code: 6,
			want: `rank 1 on ` + host + `: the version of nccl is "NCCL 2\.25\.6 \(libnccl\.so\.2\) is too old`},
		{name: "two versions of NCCL", prelude: second("DDPSTEP_DOUBLE_NCCL_VERSION=22803 DDPSTEP_DOUBLE_NCCL_VERSION=22809"), args: gpu, code: 6,
			want: `rank 1 on ` + host + `: the version of nccl is "2\.28\.9" here and "2\.28\.3" on most ranks`},
		{name: "two drivers", prelude: second("DDPSTEP_DOUBLE_DRIVER_VERSION=12080"), args: gpu, code: 6, want: `rank 1 .*: the version of cuda driver is "CUDA 12\.8" here`},
		{name: "two settings", prelude: second("NCCL_PROTO=LL"), args: gpu, code: 6, want: `rank 1 on ` + host + `: the variable NCCL_PROTO is "LL" here and "" on most`},
		{name: "no peer access", env: []string{"DDPSTEP_DOUBLE_PEERS=0"}, args: append(gpu, "--transport", "peer"), code: 6, want: `no peer access: rank 0: .*; use --transport nccl`},
		{name: "no peer access, chosen", env: []string{"DDPSTEP_DOUBLE_PEERS=0"}, args: gpu, want: `no peer access: rank 0: .*; exchanging over NCCL instead`},
		{name: "no peer access on one", prelude: second("DDPSTEP_DOUBLE_FAULT=call=cuIpcOpenMemHandle_v2,nth=2,do=code:217"), args: gpu, want: `no peer access: rank 1: .*PEER_ACCESS_UNSUPPORTED`},
		{name: "no kernels on one", prelude: second("DDPSTEP_DOUBLE_FAULT=call=cuModuleLoadDataEx,do=code:209"), args: gpu, code: 1, want: `rank 1 on ` + host + `: .*load .*cuModuleLoadDataEx: .*\(209\)`},
		{name: "no kernels for NCCL on one", prelude: second("DDPSTEP_DOUBLE_FAULT=call=cuModuleLoadDataEx,do=code:209"), args: reduce, code: 1, want: `rank 1 on ` + host + `: .*\(209\)`},
		{name: "a world too large", args: append(gpu, "--world", "65"), code: 2, want: `add up to 64 logical ranks in fixed order, and these are 65; use --device cpu`},
		{name: "a world too large, chosen", args: []string{"--world", "65"}, want: `add up to 64 logical ranks in fixed order, and these are 65$`},
		{name: "full", env: []string{"DDPSTEP_DOUBLE_FAULT=rank=1,call=cuMemAlloc_v2,do=oom"}, args: gpu, code: 6,
			want: `rank 1 on ` + host + `: .*cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\): out of memory: \d+ bytes .*; use more GPUs, or lower --world`},
		{name: "full after joining", env: []string{"DDPSTEP_DOUBLE_FAULT=rank=1,call=cuMemAlloc_v2,nth=3,do=oom"}, args: append(gpu, "--transport", "nccl"), code: 6, want: `rank 1 .*OUT_OF_MEMORY`},
	}
	var jobs []mpitest.Job
	var reports []string
	for _, tt := range tests {
		reports = append(reports, filepath.Join(t.TempDir(), "r.json"))
		command := []string{"sh", "-c", tt.prelude + "\n" + `exec "$@"`, "sh", binary, "run", "--params", list, "--out", reports[len(jobs)], "--check", "off", "--deadline", "20s"}
		jobs = append(jobs, mpitest.Job{Ranks: 2, Command: append(command, tt.args...), Env: d.with(tt.env...)})
	}
	results := launches(t, jobs)
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, report := <-results[i], reports[i]
			if r.Code != tt.code || r.TimedOut || r.Left > 0 {
				t.Fatal(r)
			}
			want := regexp.MustCompile(tt.want)
			if tt.code == 0 {
				if note, _ := field(t, report, "reducer.note").(string); !want.MatchString(note) {
					t.Errorf("the note is %q, want %s", note, tt.want)
				}
				return
			}
			if lines := said(r); len(lines) == 0 || len(lines) > 1 && !tt.apart || !want.MatchString(lines[0]) {
				t.Errorf("want one line with %s: %v", tt.want, r)
			}
			if _, err := os.Stat(report); err == nil {
				t.Error("wrote a report")
			}
		})
	}
}

// TestGPUDoctor has what run would refuse, and names of devices that say
// nothing.
func TestGPUDoctor(t *testing.T) {
	d := needDoubles(t)
	command := []string{mpitest.OpenMPI.Build(t, "."), "doctor", "--device", "gpu"}
	r := launch(t, mpitest.OpenMPI, mpitest.Job{Ranks: 2, Command: command, Env: d.with("CUDA_VISIBLE_DEVICES=2", "SLURM_GPUS_PER_TASK=1")})
	if want := "Ranks 0 and 1 of .* would share device GPU-dd57e900-"; r.Code != 6 || !regexp.MustCompile(want).MatchString(r.Stdout) {
		t.Errorf("want %s: %v", want, r)
	}
}
