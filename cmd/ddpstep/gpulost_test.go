package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// launches starts jobs, a few at a time as they mostly wait, and returns where
// each result will be.
func launches(t *testing.T, jobs []mpitest.Job) []chan mpitest.Result {
	results, turn := make([]chan mpitest.Result, len(jobs)), make(chan bool, 6)
	for i, job := range jobs {
		results[i] = make(chan mpitest.Result, 1)
		go func() {
			turn <- true
			defer func() { <-turn }()
			defer close(results[i])
			results[i] <- mpitest.OpenMPI.Run(t, job)
		}()
	}
	return results
}

// TestGPULost plants faults into one of three ranks with GPUs, under a launcher
// that leaves the others alone. All ranks end, with the right codes; some line
// names the rank at fault and its host; no process is left, and no communicator
// is aborted twice or touched afterwards.
func TestGPULost(t *testing.T) {
	d := needDoubles(t)
	binary := mpitest.OpenMPI.Build(t, ".")
	list := writeFile(t, t.TempDir(), "list.json", mixed)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	named := `: waiting for rank 1: .*; rank 1 is on ` + regexp.QuoteMeta(host)
	gone := `(` + named + `|no answer from rank 1; rank 1 is on ` + regexp.QuoteMeta(host) + `)`
	reduce, exchange, peer := []string{"--reducer", "nccl"}, []string{"--transport", "nccl"}, []string{"--transport", "peer"}
	tests := []struct {
		name, fault string // of rank 1
		args        []string
		codes       [3]string // by rank; "" for any
		want        string    // what ranks 0 and 2 must say, each
		self        string    // what rank 1 must say
		aborts      int       // at least
	}{
		{"killed before NCCL", "call=cuMemAlloc_v2,do=kill", reduce, [3]string{"7", "137", "7"}, gone, "", 0},
		{"killed in init", "call=ncclCommInitRankConfig,do=kill", reduce, [3]string{"7", "137", "7"}, gone, "", 2},
		{"stopped in init", "call=ncclCommInitRankConfig,do=stop", reduce, [3]string{"7", "", "7"}, gone, "", 2},
		{"hang in init", "call=ncclCommInitRankConfig,do=hang", reduce, [3]string{"7", "7", "7"}, "", "NCCL initialisation: .*not done after", 3},
		{"failing init", "call=ncclCommInitRankConfig,do=code:3", reduce, [3]string{"7", "1", "7"}, "", "ncclCommInitRankConfig: NCCL error 3", 2},
		{"killed in a collective", "call=ncclAllReduce,nth=2,do=kill", reduce, [3]string{"7", "137", "7"}, gone, "", 2},
		{"killed in an exchange", "call=ncclSend,nth=5,do=kill", exchange, [3]string{"7", "137", "7"}, gone, "", 2},
		{"stopped in a collective", "call=ncclAllReduce,nth=2,do=stop", reduce, [3]string{"7", "", "7"}, gone, "", 2},
		{"hang in a collective", "call=ncclAllReduce,nth=2,do=hang", reduce, [3]string{"7", "7", "7"}, "ncclAllReduce: .*not done after", "ncclAllReduce: .*not done after", 3},
		{"blocked in a collective", "call=ncclAllReduce,nth=2,do=block", reduce, [3]string{"7", "7", "7"}, gone, "ncclAllReduce did not return within the deadline", 2},
		{"asynchronous error", "call=ncclAllReduce,nth=2,do=async:6", reduce, [3]string{"7", "7", "7"}, "", "ncclAllReduce: .*NCCL error 6: remote process exited", 3},
		{"failing collective", "call=ncclAllReduce,nth=2,do=code:1", reduce, [3]string{"7", "1", "7"}, gone, "ncclAllReduce: NCCL error 1", 3},
		{"blocked abort", "call=ncclCommAbort,do=block;call=ncclAllReduce,nth=2,do=hang", reduce, [3]string{"7", "7", "7"}, "", "did not return within", 2},
		{"hang in finalize", "call=ncclCommFinalize,do=hang", reduce, [3]string{"7", "7", "7"}, "", "ncclCommFinalize: .*not done after", 3},
		{"killed at a kernel", "call=cuLaunchKernel,nth=4,do=kill", peer, [3]string{"7", "137", "7"}, named, "", 0},
		{"stopped at a kernel", "call=cuLaunchKernel,nth=4,do=stop", peer, [3]string{"7", "", "7"}, named, "", 0},
		{"hang of a kernel", "call=cuLaunchKernel,nth=4,do=hang", peer, [3]string{"7", "7", "7"}, "", "all-reduce on the GPU: .*not there after", 0},
		{"blocked launch", "call=cuLaunchKernel,nth=4,do=block", peer, [3]string{"7", "7", "7"}, named, "did not return within the deadline", 0},
		{"failing launch", "call=cuLaunchKernel,nth=4,do=code:700", peer, [3]string{"7", "1", "7"}, named, "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS", 0},
		{"hang of a copy", "call=cuMemcpyHtoDAsync_v2,nth=4,do=hang", append(peer, "--values", "nan", "--allow-nonfinite"), [3]string{"7", "7", "7"}, "", "copy to the GPU: |not there after", 0},
		{"killed while closing", "call=cuIpcCloseMemHandle,nth=2,do=kill", peer, [3]string{"7", "137", "7"}, gone, "", 0},
	}
	var jobs []mpitest.Job
	var codes, logs []string
	for _, tt := range tests {
		dir := t.TempDir()
		codes, logs = append(codes, filepath.Join(dir, "codes")), append(logs, filepath.Join(dir, "log"))
		command := append([]string{"--enable-recovery", "--mca", "odls_base_sigkill_timeout", "5", "sh", "-c", `trap : TERM; codes=$1; shift; "$@"; echo $OMPI_COMM_WORLD_RANK $? >>"$codes"`, "sh", codes[len(jobs)],
			binary, "run", "--params", list, "--device", "gpu", "--deadline", "4s", "--check", "off"}, tt.args...)
		fault := "rank=1," + strings.ReplaceAll(tt.fault, ";", ";rank=1,")
		jobs = append(jobs, mpitest.Job{Ranks: 3, Command: command, Timeout: 2 * time.Minute,
			Env: d.with("DDPSTEP_DOUBLE_LOG="+logs[len(jobs)], "DDPSTEP_DOUBLE_FAULT="+fault)})
	}
	results := launches(t, jobs)
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := <-results[i]
			if r.TimedOut || r.Left > 0 {
				t.Error("did not end, or left processes")
			}
			text, _ := os.ReadFile(codes[i])
			for rank, want := range tt.codes {
				if end := string(rune('0'+rank)) + " " + want + "\n"; want != "" && !strings.Contains(string(text), end) {
					t.Errorf("rank %d did not exit with %s; exit codes\n%s", rank, want, text)
				}
			}
			lines := strings.Join(said(r), "\n")
			for rank, want := range map[string]string{"0": tt.want, "1": tt.self, "2": tt.want} {
				if want != "" && !regexp.MustCompile(`(?m)^ddpstep: rank `+rank+` on .*(`+want+`)`).MatchString(lines) {
					t.Errorf("rank %s does not say %s", rank, want)
				}
			}
			calls, _ := os.ReadFile(logs[i])
			aborts := regexp.MustCompile(`(?m)^pid=\d+ rank=\d+ call=ncclCommAbort$`).FindAllString(string(calls), -1)
			seen := map[string]bool{}
			for _, a := range aborts {
				if seen[a] {
					t.Errorf("%s a second time", a)
				}
				seen[a] = true
			}
			if len(aborts) < tt.aborts || regexp.MustCompile(`use after free|race|guard`).Match(calls) {
				t.Errorf("%d aborts, want %d; the libraries noted\n%s", len(aborts), tt.aborts, calls)
			}
			if t.Failed() {
				t.Log(r)
			}
		})
	}
}
