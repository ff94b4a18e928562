package preflight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// launcher says what started the ranks and by which interface they find each
// other, and under Slurm by which they can. It never refuses: the world check
// tells whether it worked.
func launcher(all []Facts) Check {
	c := Check{Name: "launcher", Verdict: OK}
	c.Found = find(all, func(f Facts) string {
		what := f.Launcher
		if what == "" {
			what = "none"
		}
		switch {
		case f.Env["OMPI_COMM_WORLD_SIZE"] != "" && f.Launcher != "srun":
		case f.Env["PMIX_NAMESPACE"] != "":
			what += " with PMIx"
		case f.Env["PMI_FD"] != "" || f.Env["PMI_RANK"] != "":
			what += " with PMI"
		case f.Launcher == "srun":
			what += " without PMI"
		}
		if job := f.Env["SLURM_JOB_ID"]; job != "" {
			what += ", Slurm job " + job
		}
		return what
	})
	if len(c.Found) > 1 {
		c.Verdict = Warn
		c.Advice = "Start all ranks by one launcher"
	}
	if f := all[0]; len(f.Plugins) > 0 && f.Plugin != "" {
		how := "this MPI needs --mpi=" + f.Plugin
		if !slices.Contains(f.Plugins, f.Plugin) {
			how += ", so start it by mpirun inside the allocation (ddpstep slurm --mpi mpirun)"
		}
		c.Found = append(c.Found, Finding{"srun", "takes --mpi=" + strings.Join(f.Plugins, "|") + "; " + how})
	}
	return c
}

// world holds the MPI world against what was announced and asked for.
func world(all []Facts) Check {
	c := Check{Name: "world", Verdict: OK}
	asked := func(f Facts) int {
		if f.Launcher != "srun" && f.Launcher != "" {
			return 0 // below mpirun, it may count mpirun's daemons
		}
		return number(f.Env["SLURM_NTASKS"])
	}
	c.Found = find(all, func(f Facts) string {
		what := fmt.Sprintf("MPI world of %d", f.Size)
		if f.Announced > 0 && f.Announced != f.Size {
			what += fmt.Sprintf(", %s announced %d", f.Launcher, f.Announced)
		}
		if n := asked(f); n > 0 && n != f.Size {
			what += fmt.Sprintf(", SLURM_NTASKS is %d", n)
		}
		return what
	})
	for _, f := range all {
		switch {
		case f.Announced > 0 && f.Announced != f.Size:
			c.Verdict = Refuse
			c.Advice = "The MPI library and the launcher do not match: use 'srun --mpi=pmix' ('srun --mpi=list' shows what there is) or this MPI's own mpirun inside the allocation"
			return c
		case f.Size == 1 && f.Launcher == "" && asked(f) > 1:
			c.Verdict = Refuse
			c.Advice = "The job has several tasks but no launcher started ddpstep: write 'srun --mpi=pmix ddpstep ...', or 'srun -n 1 ...' if one process is meant"
			return c
		case asked(f) > f.Size:
			c.Verdict = Warn
			c.Advice = "Tasks that the job asked for are not used"
		}
	}
	return c
}

// placement tells which ranks share a host.
func placement(all []Facts) Check {
	c := Check{Name: "placement", Verdict: OK}
	groups := hosts(all)
	for _, g := range groups {
		ranks := make([]int, len(g))
		for i, f := range g {
			ranks[i] = f.Rank
		}
		c.Found = append(c.Found, Finding{"host " + g[0].Host, rankList(ranks)})
		if len(g) != len(groups[0]) {
			c.Verdict = Warn
			c.Advice = "Give every host the same number of ranks: the fullest one sets the pace"
		}
		if ranks[len(ranks)-1]-ranks[0] != len(ranks)-1 {
			c.Verdict = Warn
			c.Advice = "Number ranks host by host (srun --distribution=block): neighbours in the fixed order should share a host"
		}
	}
	return c
}

// versions refuses ranks of different builds: they might not agree on a format.
func versions(all []Facts) Check {
	c := Check{Name: "versions", Verdict: OK}
	c.Found = find(all, func(f Facts) string {
		what := "ddpstep " + f.Version
		if f.Library != "" {
			what += ", " + f.Library
		}
		return what
	})
	if len(c.Found) > 1 {
		c.Verdict = Refuse
		c.Advice = "Install the same ddpstep and MPI on every host"
	}
	return c
}

// gpus holds the ranks of each host against its GPUs.
func gpus(all []Facts, device string) Check {
	c := Check{Name: "GPUs", Verdict: OK}
	for _, g := range hosts(all) {
		n, source := gpusOf(g)
		what := fmt.Sprintf("%d ranks, %d GPUs (%s)", len(g), n, source)
		var unseen []int
		for _, f := range g {
			if n > 0 && f.GPUDevices == 0 {
				unseen = append(unseen, f.Rank)
			}
		}
		if unseen != nil {
			what += ", not seen by " + rankList(unseen)
		}
		c.Found = append(c.Found, Finding{"host " + g[0].Host, what})
		switch {
		case device == "cpu" || n == 0 && device == "auto" || n == len(g) && unseen == nil:
		case unseen != nil:
			c.Verdict = Warn
			c.Advice = "GPUs are given to the job, which runs on the CPU for all that: see that the nodes have NVIDIA's driver, and libcuda.so.1 where the loader finds it"
			if device == "gpu" {
				c.Verdict = Refuse
				c.Advice = "See that the nodes have NVIDIA's driver, and libcuda.so.1 where the loader finds it, or run with --device cpu"
			}
		case len(g) < n:
			if c.Verdict == OK {
				c.Verdict = Warn
				c.Advice = "GPUs stay idle: start one rank a GPU (--ntasks-per-node)"
			}
		case device == "gpu":
			c.Verdict = Refuse
			c.Advice = "Each rank needs a GPU of its own: ask for as many as ranks (--gpus-per-node), or run with --device cpu"
		default:
			c.Verdict = Warn
			c.Advice = "Not every rank has a GPU, so the job runs on the CPU: ask for as many GPUs as ranks (--gpus-per-node)"
		}
	}
	return c
}

// gpusOf says how many GPUs the ranks of a host may use together, and how that
// is known.
func gpusOf(host []Facts) (n int, source string) {
	if text := host[0].Env["SLURM_GPUS_ON_NODE"]; text != "" {
		return number(text), "SLURM_GPUS_ON_NODE"
	}
	if _, ok := host[0].Env["CUDA_VISIBLE_DEVICES"]; ok {
		all := map[string]bool{} // each task may see its own
		for _, f := range host {
			for _, d := range devices(f.Env["CUDA_VISIBLE_DEVICES"]) {
				all[d] = true
			}
		}
		return len(all), "CUDA_VISIBLE_DEVICES"
	}
	return host[0].GPUDevices, "seen on the host"
}

// visible looks for two ranks of a host that would take the same device: by
// UUID, or by name where the driver does not speak. Devices that Slurm binds
// task by task are all called 0 where it also hides the others, so that names
// say nothing there.
func visible(all []Facts, device string) Check {
	c := Check{Name: "visible devices", Verdict: OK}
	c.Found = find(all, func(f Facts) string {
		if list, ok := f.Env["CUDA_VISIBLE_DEVICES"]; ok {
			return "CUDA_VISIBLE_DEVICES=" + list
		}
		return "CUDA_VISIBLE_DEVICES is not set"
	})
	for _, g := range hosts(all) {
		taken := make(map[string]int)
		for i, f := range g {
			list := f.GPUs
			if list == nil && !perTask(f) {
				list = devices(f.Env["CUDA_VISIBLE_DEVICES"])
			}
			if len(list) == 0 || device == "cpu" {
				continue
			}
			own := list[0] // a list of one is this task's own device
			if len(list) > 1 {
				if i >= len(list) {
					continue // the check of GPUs speaks of that
				}
				own = list[i]
			}
			other, twice := taken[own]
			taken[own] = f.Rank
			if !twice {
				continue
			}
			c.Verdict = Warn
			c.Advice = fmt.Sprintf("Ranks %d and %d of %s would share device %s: look at --gpu-bind, and export CUDA_VISIBLE_DEVICES in no job script, Slurm sets it", other, f.Rank, g[0].Host, own)
			if device == "gpu" {
				c.Verdict = Refuse
				return c
			}
		}
	}
	return c
}

// perTask tells whether Slurm was asked to give each task its own GPU.
func perTask(f Facts) bool {
	return f.Env["SLURM_GPUS_PER_TASK"] != "" || f.Env["SLURM_GPU_BIND"] != "" ||
		strings.Contains(f.Env["SLURM_TRES_PER_TASK"], "gpu")
}

// cpus warns of ranks that must take turns.
func cpus(all []Facts) Check {
	c := Check{Name: "CPUs", Verdict: OK}
	for _, g := range hosts(all) {
		together := make(map[int]bool)
		for _, f := range g {
			for _, cpu := range cpuList(f.CPUs) {
				together[cpu] = true
			}
		}
		c.Found = append(c.Found, Finding{"host " + g[0].Host, fmt.Sprintf("%d ranks on %d CPUs", len(g), len(together))})
		if n := len(together); n > 0 && n < len(g) {
			c.Verdict = Warn
			c.Advice = "Ranks take turns on a CPU, so times say little: ask for a CPU a rank, and look at --cpu-bind or mpirun's --bind-to"
		}
	}
	return c
}

// shared looks at /dev/shm, through which ranks of a host reduce.
func shared(all []Facts) Check {
	const enough = 256 << 20
	c := Check{Name: "shared memory", Verdict: OK}
	for _, g := range hosts(all) {
		f := g[0]
		c.Found = append(c.Found, Finding{"host " + f.Host, fmt.Sprintf("/dev/shm has %s, %s free", size(f.ShmSize), size(f.ShmFree))})
		if len(g) > 1 && f.ShmFree < enough {
			c.Verdict = Warn
			c.Advice = "Buckets that do not fit go by slower messages: make /dev/shm larger (containers: --shm-size), or clear what others left there"
		}
	}
	return c
}

// limits looks at the limits that a batch system lowers.
func limits(all []Facts) Check {
	c := Check{Name: "limits", Verdict: OK}
	c.Found = find(all, func(f Facts) string {
		return fmt.Sprintf("locked memory %s, address space %s, open files %s",
			size(f.MemLock), size(f.AddressSize), count(f.OpenFiles))
	})
	for _, f := range all {
		switch {
		case f.AddressSize != Unlimited:
			c.Verdict = Warn
			c.Advice = "CUDA and MPI reserve more addresses than memory: set ulimit -v unlimited"
		case f.InfiniBand && f.MemLock != Unlimited:
			c.Verdict = Warn
			c.Advice = "InfiniBand locks its buffers: set ulimit -l unlimited for slurmd (LimitMEMLOCK=infinity)"
		case f.OpenFiles < 1024:
			c.Verdict = Warn
			c.Advice = "Each peer takes several files: set ulimit -n 4096"
		}
	}
	return c
}

// devices splits a list of CUDA devices, which may be empty.
func devices(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// cpuList expands a list such as "0-3,8", as Linux writes it.
func cpuList(list string) (cpus []int) {
	for _, r := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		lo, errLo := strconv.Atoi(first)
		hi, errHi := strconv.Atoi(last)
		if errLo != nil || errHi != nil || lo < 0 || hi >= 1<<16 {
			return nil
		}
		for cpu := lo; cpu <= hi; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// number reads a count that Slurm wrote; 0 for none or nonsense.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func size(bytes uint64) string {
	switch {
	case bytes == Unlimited:
		return "unlimited"
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

func count(n uint64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
