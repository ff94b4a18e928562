package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// trial is one run of the matrix: what it is made of, and its outputs.
type trial struct {
	what        string // the same for runs that must give the same bits
	args        []string
	grads       string // file of reduced gradients, for real ones
	want        string // their answer, computed in NumPy
	report      string
	libraryRuns bool // the MPI library chooses the order: no bits promised
}

// matrix lists the runs for a number of processes.
func matrix(t *testing.T, dir string, procs int, list string) (trials []trial) {
	add := func(what string, args ...string) *trial {
		name := filepath.Join(dir, fmt.Sprint(len(trials)))
		trials = append(trials, trial{what: what, report: name + ".json", args: append([]string{"run", "--out", name + ".json"}, args...)})
		return &trials[len(trials)-1]
	}
	transports := []string{"shm", "mpi"}
	if procs == 1 {
		transports = []string{"auto"}
	}
	for _, folder := range []string{"digits_cnn_w4_f32", "bytes_gpt_w4_f32", "bytes_gpt_w4_bf16"} {
		data := filepath.Join(gradients(t), folder)
		for _, mib := range []string{"25", "1", "0.05"} {
			for _, transport := range transports {
				if procs > 4 {
					break
				}
				n := add(folder, "--grads", data+"/rank{rank}.safetensors", "--bucket-cap-mb", mib, "--first-bucket-mb", "0.03", "--transport", transport)
				n.grads, n.want = n.report+".safetensors", data+"/numpy_fixed_order_mean.safetensors"
				n.args = append(n.args, "--grads-out", n.grads)
			}
		}
		if procs <= 4 {
			add(folder, "--grads", data+"/rank{rank}.safetensors", "--reducer", "mpi").libraryRuns = true
		}
	}
	for _, world := range []int{3, 5, 7, 8} {
		for _, values := range []string{"wide", "subnormal"} {
			for _, transport := range transports {
				if world < procs {
					break
				}
				add(fmt.Sprint(values, world), "--params", list, "--values", values, "--world", fmt.Sprint(world),
					"--bucket-cap-mb", "0.01", "--first-bucket-mb", "0.001", "--transport", transport, "--steps", "2")
			}
		}
	}
	return trials
}

// TestMatrix makes the same reductions on several numbers of processes, bucket
// caps, transports and MPI libraries: the bits are those of one process without
// MPI, and for real gradients those that NumPy gave.
func TestMatrix(t *testing.T) {
	list := writeFile(t, t.TempDir(), "list.json", mixed)
	want := map[string]string{}
	for _, n := range matrix(t, t.TempDir(), 1, list) {
		if n.libraryRuns || want[n.what] != "" {
			continue
		}
		alone(t, n.args...)
		want[n.what] = bits(t, n.report)
	}
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
		binary := lib.BuildTest(t, ".")
		for _, procs := range []int{1, 2, 3, 4, 7} {
			t.Run(fmt.Sprint(procs), func(t *testing.T) {
				trials := matrix(t, t.TempDir(), procs, list)
				var lines strings.Builder
				for _, n := range trials {
					fmt.Fprintln(&lines, strings.Join(n.args, " "))
				}
				r := launch(t, lib, mpitest.Job{Ranks: procs, Command: []string{binary}, Env: []string{runsVar + "=" + lines.String()}})
				if r.Code != 0 {
					t.Fatal(r)
				}
				for _, n := range trials {
					n.check(t, want[n.what], procs)
				}
			})
		}
	})
}

func (n *trial) check(t *testing.T, want string, procs int) {
	t.Helper()
	if len(field(t, n.report, "ranks").([]any)) != procs || field(t, n.report, "verdicts.within_bound") != true {
		t.Errorf("%v: not %d ranks, or outside the bound", n.args, procs)
	}
	if n.libraryRuns {
		if field(t, n.report, "verdicts.reference_equal") != nil {
			t.Errorf("%v: bits are promised", n.args)
		}
		return
	}
	if got := bits(t, n.report); got != want {
		t.Errorf("%v: other bits than in one process:\n%swant\n%s", n.args, got, want)
	}
	if n.grads != "" {
		if err := sameTensors(n.grads, n.want); err != nil {
			t.Errorf("%v: %v", n.args, err)
		}
	}
}
