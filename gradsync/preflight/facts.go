package preflight

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// Facts is what one process knows of its environment.
type Facts struct {
	Rank      int    `json:"rank"`
	Size      int    `json:"size"` // of the MPI world
	Host      string `json:"host"`
	Local     []int  `json:"local"`     // ranks that share this host's memory, own included
	Launcher  string `json:"launcher"`  // who announced this process, "" for nobody
	Announced int    `json:"announced"` // the size it announced, 0 where it told none
	Version   string `json:"version"`   // of ddpstep
	Library   string `json:"library"`   // of MPI, "" for a build without

	Plugins []string `json:"plugins"` // what srun --mpi= takes here, nil where nobody asked or there is no srun
	Plugin  string   `json:"plugin"`  // which of them this build's MPI needs, "" for a build without

	// Env has the variables of observed that are set.
	Env map[string]string `json:"env"`

	CPUs        string   `json:"cpus"`         // that this process may run on, as a list: 0-7,16; "" if unknown
	GPUDevices  int      `json:"gpu_devices"`  // that the CUDA driver shows, or else NVIDIA device files
	GPUs        []string `json:"gpus"`         // UUIDs of those that the CUDA driver shows, nil where it does not speak
	InfiniBand  bool     `json:"infiniband"`   // there is an adapter
	ShmSize     uint64   `json:"shm_size"`     // bytes of /dev/shm, 0 where there is none
	ShmFree     uint64   `json:"shm_free"`     //
	MemLock     uint64   `json:"memlock"`      // limit in bytes, Unlimited for none
	AddressSize uint64   `json:"address_size"` // limit in bytes, Unlimited for none
	OpenFiles   uint64   `json:"open_files"`   // limit
}

// Unlimited is the value of a limit that is not set.
const Unlimited = ^uint64(0)

// observed are the variables that the checks read. No other variable is
// looked at, and so none can end in a report.
var observed = []string{
	"CUDA_VISIBLE_DEVICES",
	"OMPI_COMM_WORLD_SIZE",
	"PMIX_NAMESPACE",
	"PMI_FD",
	"PMI_RANK",
	"SLURM_GPUS_ON_NODE",
	"SLURM_GPUS_PER_TASK",
	"SLURM_GPU_BIND",
	"SLURM_JOB_ID",
	"SLURM_NTASKS",
	"SLURM_STEP_ID",
	"SLURM_TRES_PER_TASK",
}

// Observe looks at this process and its machine. The fields that describe the
// MPI world, and Version, are the caller's to fill.
func Observe(lookup func(string) (string, bool)) Facts {
	f := Facts{Env: map[string]string{}, CPUs: allowedCPUs("/proc/self/status")}
	for _, name := range observed {
		if value, ok := lookup(name); ok {
			f.Env[name] = value
		}
	}
	f.GPUDevices = gpuDevices("/dev")
	adapters, _ := filepath.Glob("/sys/class/infiniband/*")
	f.InfiniBand = len(adapters) > 0
	var fs syscall.Statfs_t
	if syscall.Statfs("/dev/shm", &fs) == nil {
		f.ShmSize = fs.Blocks * uint64(fs.Bsize)
		f.ShmFree = fs.Bavail * uint64(fs.Bsize)
	}
	f.MemLock = softLimit(rlimitMemLock)
	f.AddressSize = softLimit(syscall.RLIMIT_AS)
	f.OpenFiles = softLimit(syscall.RLIMIT_NOFILE)
	return f
}

const rlimitMemLock = 8 // RLIMIT_MEMLOCK of Linux, which package syscall lacks

// softLimit returns Unlimited also where the limit cannot be read.
func softLimit(resource int) uint64 {
	var l syscall.Rlimit
	if syscall.Getrlimit(resource, &l) != nil {
		return Unlimited
	}
	return l.Cur
}

// allowedCPUs reads the list from the status file of a process.
func allowedCPUs(status string) string {
	text, err := os.ReadFile(status)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(list)
		}
	}
	return ""
}

var gpuDevice = regexp.MustCompile(`^nvidia[0-9]+$`)

func gpuDevices(dev string) (n int) {
	paths, _ := filepath.Glob(filepath.Join(dev, "nvidia*"))
	for _, p := range paths {
		if gpuDevice.MatchString(filepath.Base(p)) {
			n++
		}
	}
	return n
}
