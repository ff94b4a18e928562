package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// TestGPURun runs the script of a machine with two GPUs where there is none, as
// far as it measures beside other programs: all_reduce_perf prints nccl-tests'
// table, with times that anything is faster than, and does not know -R.
func TestGPURun(t *testing.T) {
	d := needDoubles(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nvidia-smi": "echo 'GPU 0: double'; echo 'GPU 1: double'",
		"all_reduce_perf": `case "$*" in *-R*) exit 1 ;; esac
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exit 0
cat <<END
#  Rank  0 Group  0 Pid   1201 on       host device  0 [0000:01:00] NVIDIA H200
#  Rank  1 Group  0 Pid   1202 on       host device  1 [0000:02:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         512           128     float     sum      -1     0.09    0.00    0.00      0  9000000    0.00    0.00      0
        1024           256     float     sum      -1     0.09    0.00    0.00      0  9000000    0.00    0.00      0
END`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bin/ddpstep": mpitest.OpenMPI.Build(t, "."), "mpirun": "../../.ci/mpirun",
		"gpu-run": "../../.ci/gpu-run", "startup.c": "../../.ci/startup.c"} {
		target, err := filepath.Abs(target)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "gpu-run"), "perf", "startup")
	cmd.Env = append(os.Environ(), d.with("PATH="+dir+":"+os.Getenv("PATH"), "NCCLTESTS="+dir, "TO=1K", "LOGS="+filepath.Join(dir, "logs"))...)
	out, _ := cmd.CombinedOutput() // the exit code tells how fast this machine starts programs
	for _, want := range []string{
		`(?m)^bench of nccl-tests: every answer right +ok$`,
		`(?m)^ +512 +9000000\.00 +\d+\.\d\d +\d+\.\d\d \| +0\.000 +\d+\.\d\d$`,
		`(?m)^ +1024 +9000000\.00 `,
		`(?m)^ncclAllReduce within 3 % of all_reduce_perf, 1 µs below 1 MiB ok$`,
		`(?m)^all_reduce_perf -R 2 does not run here: `,
		`(?m)^# first all-reduce, medians of 7: ddpstep after \d+\.\d+ s, a C program after \d+\.\d+ s: \d+\.\d+ times$`,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}
