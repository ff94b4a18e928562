package preflight

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fleet makes the facts of a healthy job of several hosts.
func fleet(hosts, perHost int, change func(f *Facts)) []Facts {
	var all []Facts
	for h := range hosts {
		var local []int
		for i := range perHost {
			local = append(local, h*perHost+i)
		}
		for i := range perHost {
			f := Facts{
				Rank: h*perHost + i, Size: hosts * perHost, Host: fmt.Sprintf("n%d", h+1), Local: local,
				Launcher: "srun", Announced: hosts * perHost, Version: "v1", Library: "Open MPI v4.1.4",
				Env: map[string]string{
					"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0",
					"SLURM_NTASKS": fmt.Sprint(hosts * perHost),
				},
				CPUs: fmt.Sprintf("%d", i), ShmSize: 8 << 30, ShmFree: 8 << 30,
				MemLock: Unlimited, AddressSize: Unlimited, OpenFiles: 4096,
				GPUDevices: perHost,
			}
			if change != nil {
				change(&f)
			}
			all = append(all, f)
		}
	}
	return all
}

// unseen has ranks see no GPU, from the first one given.
func unseen(first int, all []Facts) []Facts {
	for i := range all[first:] {
		all[first+i].GPUDevices = 0
	}
	return all
}

func TestJudge(t *testing.T) {
	set := func(pairs ...string) func(*Facts) {
		return func(f *Facts) {
			for i := 0; i < len(pairs); i += 2 {
				f.Env[pairs[i]] = pairs[i+1]
			}
		}
	}
	for _, test := range []struct {
		name   string
		all    []Facts
		device string
		want   []string // lines other than ok, by a part of each
	}{
		{"healthy", fleet(2, 4, nil), "auto", nil},
		{"healthy with GPUs", fleet(2, 4, set("SLURM_GPUS_ON_NODE", "4", "CUDA_VISIBLE_DEVICES", "0,1,2,3")), "gpu", nil},
		{"no driver", unseen(0, fleet(1, 4, set("SLURM_GPUS_ON_NODE", "4"))), "gpu",
			[]string{"refuse  GPUs             host n1: 4 ranks, 4 GPUs (SLURM_GPUS_ON_NODE), not seen by ranks 0-3. "}},
		{"no driver, auto", unseen(3, fleet(1, 4, set("CUDA_VISIBLE_DEVICES", "0,1,2,3"))), "auto",
			[]string{"warn    GPUs             host n1: 4 ranks, 4 GPUs (CUDA_VISIBLE_DEVICES), not seen by rank 3. "}},
		{"no driver, on the CPU", unseen(0, fleet(1, 4, set("SLURM_GPUS_ON_NODE", "4"))), "cpu", nil},
		{"one process", fleet(1, 1, func(f *Facts) { f.Launcher, f.Announced, f.Env = "", 0, map[string]string{} }), "auto", nil},

		{"each task alone", fleet(4, 1, func(f *Facts) { f.Size = 1 }), "auto",
			[]string{"refuse  world            all 4 ranks: MPI world of 1, srun announced 4, SLURM_NTASKS is 4. The MPI library and the launcher do not match"}},
		{"no launcher", fleet(1, 1, func(f *Facts) { f.Launcher, f.Announced = "", 0; f.Env["SLURM_NTASKS"] = "4" }), "auto",
			[]string{"refuse  world            rank 0 on n1: MPI world of 1, SLURM_NTASKS is 4. The job has several tasks but no launcher"}},
		{"part of the job", fleet(1, 2, set("SLURM_NTASKS", "4")), "auto", []string{"warn    world"}},
		{"two launchers", fleet(1, 2, func(f *Facts) {
			if f.Rank == 1 {
				f.Launcher = "mpiexec (PMI)"
			}
		}), "auto", []string{"warn    launcher         rank 0 on n1: srun with PMIx, Slurm job 7; rank 1 on n1: mpiexec (PMI) with PMIx"}},
		{"odd version", fleet(2, 2, func(f *Facts) {
			if f.Rank == 3 {
				f.Version = "v0"
			}
		}), "auto", []string{"refuse  versions         ranks 0-1 on n1: ddpstep v1, Open MPI v4.1.4; rank 2 on n2: ddpstep v1, Open MPI v4.1.4; rank 3 on n2: ddpstep v0"}},
		{"uneven hosts", append(fleet(1, 3, nil), func() []Facts {
			more := fleet(1, 1, nil)
			more[0].Rank, more[0].Size, more[0].Host, more[0].Local = 3, 4, "n2", []int{3}
			return more
		}()...), "auto", []string{"refuse  world", "warn    placement        host n1: ranks 0-2; host n2: rank 3"}},
		{"round robin", fleet(2, 2, func(f *Facts) {
			f.Local = []int{f.Rank % 2, f.Rank%2 + 2}
			f.Host, f.CPUs = fmt.Sprintf("n%d", f.Rank%2), fmt.Sprint(f.Rank)
		}), "auto", []string{"warn    placement        host n0: ranks 0, 2; host n1: ranks 1, 3. Number ranks host by host"}},

		{"too few GPUs, asked for", fleet(1, 4, set("SLURM_GPUS_ON_NODE", "2")), "gpu",
			[]string{"refuse  GPUs             host n1: 4 ranks, 2 GPUs (SLURM_GPUS_ON_NODE)"}},
		{"too few GPUs", fleet(1, 4, set("SLURM_GPUS_ON_NODE", "2")), "auto", []string{"warn    GPUs"}},
		{"too few GPUs, on the CPU", fleet(1, 4, set("SLURM_GPUS_ON_NODE", "2")), "cpu", nil},
		{"no GPU, asked for", unseen(0, fleet(1, 4, nil)), "gpu", []string{"refuse  GPUs             host n1: 4 ranks, 0 GPUs (seen on the host)"}},
		{"idle GPUs", fleet(1, 2, set("SLURM_GPUS_ON_NODE", "4")), "gpu", []string{"warn    GPUs"}},
		{"all on device 0", fleet(1, 2, set("CUDA_VISIBLE_DEVICES", "0", "SLURM_GPUS_ON_NODE", "2")), "gpu",
			[]string{"refuse  visible devices  all 2 ranks: CUDA_VISIBLE_DEVICES=0. Ranks 0 and 1 of n1 would share device 0"}},
		{"all on device 0, auto", fleet(1, 2, set("CUDA_VISIBLE_DEVICES", "0", "SLURM_GPUS_ON_NODE", "2")), "auto", []string{"warn    visible devices"}},
		{"a device a task", fleet(1, 2, func(f *Facts) {
			f.Env["CUDA_VISIBLE_DEVICES"], f.Env["SLURM_GPUS_ON_NODE"] = fmt.Sprint(f.Rank), "2"
		}), "gpu", nil},
		{"a device a task, without Slurm", fleet(1, 2, func(f *Facts) { f.Env["CUDA_VISIBLE_DEVICES"] = fmt.Sprint(f.Rank) }), "gpu", nil},
		{"all named 0, none the same", fleet(1, 2, func(f *Facts) {
			f.Env["CUDA_VISIBLE_DEVICES"], f.Env["SLURM_GPUS_ON_NODE"], f.GPUs = "0", "2", []string{fmt.Sprint("GPU-", f.Rank)}
		}), "gpu", nil},
		{"bound to the same", fleet(1, 2, func(f *Facts) {
			f.Env["CUDA_VISIBLE_DEVICES"], f.Env["SLURM_GPUS_ON_NODE"], f.Env["SLURM_GPU_BIND"], f.GPUs = "0", "2", "map_gpu:0,0", []string{"GPU-a"}
		}), "gpu", []string{"refuse  visible devices  all 2 ranks: CUDA_VISIBLE_DEVICES=0. Ranks 0 and 1 of n1 would share device GPU-a"}},
		{"not bound", fleet(1, 2, func(f *Facts) { f.GPUs = []string{"GPU-a", "GPU-b"} }), "gpu", nil},
		{"Slurm binds, and hides", fleet(1, 2, set("CUDA_VISIBLE_DEVICES", "0", "SLURM_GPUS_ON_NODE", "2", "SLURM_GPUS_PER_TASK", "1")), "gpu", nil},

		{"CPUs shared", fleet(1, 4, func(f *Facts) { f.CPUs = "0-1" }), "auto", []string{"warn    CPUs             host n1: 4 ranks on 2 CPUs"}},
		{"CPUs by socket", fleet(1, 4, func(f *Facts) { f.CPUs = []string{"0-1", "2-3"}[f.Rank%2] }), "auto", nil},
		{"CPUs unknown", fleet(1, 4, func(f *Facts) { f.CPUs = "" }), "auto", nil},
		{"small shm", fleet(1, 2, func(f *Facts) { f.ShmSize, f.ShmFree = 64<<20, 60<<20 }), "auto",
			[]string{"warn    shared memory    host n1: /dev/shm has 64.0 MiB, 60.0 MiB free"}},
		{"small shm, not used", fleet(2, 1, func(f *Facts) { f.ShmFree = 0 }), "auto", nil},
		{"address space", fleet(1, 2, func(f *Facts) { f.AddressSize = 1 << 32 }), "auto",
			[]string{"warn    limits           all 2 ranks: locked memory unlimited, address space 4.0 GiB"}},
		{"locked memory", fleet(1, 2, func(f *Facts) { f.MemLock = 8 << 20 }), "auto", nil},
		{"locked memory for InfiniBand", fleet(1, 2, func(f *Facts) { f.MemLock, f.InfiniBand = 8<<20, true }), "auto", []string{"warn    limits"}},
		{"open files", fleet(1, 2, func(f *Facts) { f.OpenFiles = 256 }), "auto", []string{"warn    limits"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			checks := Judge(test.all, test.device)
			var got []string
			worst := OK
			for _, c := range checks {
				if len(c.Found) == 0 {
					t.Errorf("%s found nothing", c.Name)
				}
				if (c.Advice == "") != (c.Verdict == OK) {
					t.Errorf("verdict %s with advice %q", c.Verdict, c.Advice)
				}
				if c.Verdict == OK {
					continue
				}
				got = append(got, c.String())
				if worst != Refuse {
					worst = c.Verdict
				}
			}
			ok := len(got) == len(test.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i], test.want[i])
			}
			if !ok {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if Worst(checks) != worst {
				t.Errorf("worst verdict %s, want %s", Worst(checks), worst)
			}
			var refused *RefusedError
			if err := Refused(checks); errors.As(err, &refused) != (worst == Refuse) {
				t.Errorf("Refused: %v, worst verdict %s", err, worst)
			} else if err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), refused.Check.Advice)) {
				t.Errorf("not one line with advice: %v", err)
			}
		})
	}
}

// TestPlugin: where srun is, the launcher's line says by which plug-in, if any,
// it starts this build's MPI.
func TestPlugin(t *testing.T) {
	for _, test := range []struct {
		plugin, want string
		plugins      []string
	}{
		{"pmix", "; srun: takes --mpi=none|pmi2|pmix; this MPI needs --mpi=pmix", []string{"none", "pmi2", "pmix"}},
		{"pmix", "; srun: takes --mpi=none|pmi2; this MPI needs --mpi=pmix, so start it by mpirun inside the allocation (ddpstep slurm --mpi mpirun)", []string{"none", "pmi2"}},
		{"", "", []string{"none", "pmix"}},
		{"pmix", "", nil},
	} {
		all := fleet(1, 1, func(f *Facts) {
			f.Launcher, f.Env, f.Plugin, f.Plugins = "", map[string]string{}, test.plugin, test.plugins
		})
		want := "ok      launcher         rank 0 on n1: none" + test.want
		if got := Judge(all, "auto")[0].String(); got != want {
			t.Errorf("plug-ins %q of %q:\n%s, want\n%s", test.plugin, test.plugins, got, want)
		}
	}
}

func TestRankList(t *testing.T) {
	for want, ranks := range map[string][]int{
		"rank 3": {3}, "ranks 0-3": {0, 1, 2, 3}, "ranks 0, 2-3, 7": {0, 2, 3, 7}, "ranks 1, 3": {1, 3},
	} {
		if got := rankList(ranks); got != want {
			t.Errorf("rankList(%v) = %q, want %q", ranks, got, want)
		}
	}
}

func TestCPUList(t *testing.T) {
	for list, want := range map[string][]int{
		"0": {0}, "0-3": {0, 1, 2, 3}, "1,3-4": {1, 3, 4}, "": nil, "x": nil, "0-9999999": nil,
	} {
		if diff := cmp.Diff(want, cpuList(list)); diff != "" {
			t.Errorf("cpuList(%q) (-want +got):\n%s", list, diff)
		}
	}
}

// TestObserve holds the facts of this process against what else says so.
func TestObserve(t *testing.T) {
	secret := map[string]string{"SLURM_JOB_ID": "12", "AWS_SECRET_ACCESS_KEY": "x", "CUDA_VISIBLE_DEVICES": ""}
	f := Observe(func(name string) (string, bool) { v, ok := secret[name]; return v, ok })
	if diff := cmp.Diff(map[string]string{"SLURM_JOB_ID": "12", "CUDA_VISIBLE_DEVICES": ""}, f.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if _, err := os.Stat("/proc/self/status"); err == nil && len(cpuList(f.CPUs)) == 0 {
		t.Errorf("CPUs %q", f.CPUs)
	}
	if _, err := os.Stat("/dev/shm"); err == nil && (f.ShmSize == 0 || f.ShmFree > f.ShmSize) {
		t.Errorf("/dev/shm: %d bytes, %d free", f.ShmSize, f.ShmFree)
	}
	if f.OpenFiles == 0 {
		t.Error("no file may be open")
	}
}

func TestGPUDevices(t *testing.T) {
	dev := t.TempDir()
	for _, name := range []string{"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia"} {
		if err := os.WriteFile(dev+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := gpuDevices(dev); n != 3 {
		t.Errorf("%d GPUs, want 3", n)
	}
}
