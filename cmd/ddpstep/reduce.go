package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/gradsync/shm"
)

// reduceFlags say what sums the buckets.
type reduceFlags struct {
	Reducer string `default:"fixed" enum:"fixed,mpi,nccl" placeholder:"R" help:"What adds them: fixed (rank order, the default), mpi or nccl."`
	Average string `default:"mean" enum:"mean,pre,none" placeholder:"A" help:"mean (default), pre (scale before the sum) or none."`
	deviceFlags
}

// deviceFlags say where gradients live and what carries them.
type deviceFlags struct {
	Device    string        `default:"auto" enum:"auto,cpu,gpu" placeholder:"D" help:"auto (default: the GPU where every rank has one), cpu or gpu."`
	GPU       int           `name:"gpu" json:"-" default:"-1" placeholder:"N" help:"This rank's GPU, where it is not its place on the host."`
	Transport string        `default:"auto" enum:"auto,shm,mpi,peer,nccl" placeholder:"T" help:"Over what: auto (default); on the CPU shm or mpi, on GPUs peer or nccl."`
	Algorithm string        `default:"auto" enum:"auto,oneshot,twoshot,copyin" placeholder:"A" help:"Of the peer transport, not by size: oneshot, twoshot or copyin." hidden:""`
	Deadline  time.Duration `default:"5m" placeholder:"T" help:"Longest wait for a peer (${default}), then exit code 7."`
	ShmDir    string        `default:"/dev/shm" placeholder:"DIR" help:"Memory file system for shared buckets (${default})."`
	NCCLLib   string        `name:"nccl-lib" placeholder:"FILE" help:"NCCL library (libnccl.so.2, where the loader finds it)."`
	CUDALib   string        `name:"cuda-lib" placeholder:"FILE" help:"CUDA driver library (libcuda.so.1, likewise)." hidden:""`
	Kernels   string        `placeholder:"DIR" help:"Kernels made by nvcc in place of the built-in PTX." hidden:""`
	direct    bool
	ShareGPU  bool `name:"share-gpu" help:"Let ranks share a GPU: to try things out, not to measure." hidden:""`
}

func (f *reduceFlags) validate() error {
	switch {
	case f.Device == "gpu" && f.Reducer == "mpi":
		return errors.New("--reducer mpi sums host memory: drop --device gpu")
	case f.Device == "cpu" && f.Reducer == "nccl":
		return errors.New("--reducer nccl sums GPU memory: drop --device cpu")
	case f.Reducer != "fixed" && f.Transport != "auto":
		return fmt.Errorf("--reducer %s has a transport of its own: drop --transport %s", f.Reducer, f.Transport)
	}
	if _, err := contract.ParseAverage(f.Average); err != nil {
		return err
	}
	return f.deviceFlags.validate()
}

func (f *deviceFlags) validate() error {
	onCPU := f.Transport == "shm" || f.Transport == "mpi"
	onGPU := f.Transport == "peer" || f.Transport == "nccl"
	switch {
	case f.Device == "gpu" && onCPU:
		return fmt.Errorf("--transport %s carries host memory: drop --device gpu", f.Transport)
	case f.Device == "cpu" && onGPU:
		return fmt.Errorf("--transport %s carries GPU memory: drop --device cpu", f.Transport)
	case f.Deadline <= 0:
		return fmt.Errorf("--deadline %v: must be positive, such as 5m", f.Deadline)
	}
	return nil
}

// preflightDevice is what the preflight checks are asked about. They judge by
// variables; whether each rank has a GPU of its own the driver will say, with
// ranks and UUIDs.
func (f *deviceFlags) preflightDevice() string {
	if f.Device == "gpu" {
		return "auto"
	}
	return f.Device
}

// device is where a job's gradients live: a GPU, or the CPU when that is nil.
type device struct {
	*gradsync.GPU
	flags *deviceFlags
	note  string // why it is not a GPU
	nvml  *nvmlQuery
}

// openDevice chooses, collectively. needGPU and needCPU say what the reducers
// can use; auto takes the GPU when every rank has one and its kernels can add
// so many logical ranks.
func (f *deviceFlags) openDevice(w *job, world int, needGPU, needCPU bool) (*device, error) {
	needCPU = needCPU || f.Device == "cpu" || f.Transport == "shm" || f.Transport == "mpi"
	needGPU = needGPU || f.Device == "gpu" || f.Transport == "peer" || f.Transport == "nccl"
	if needCPU && !needGPU {
		return &device{flags: f}, nil
	}
	if world > gradsync.MaxGPUWorld && !needGPU {
		return &device{flags: f, note: gradsync.TooManyForGPU(world)}, nil
	}
	g, err := gradsync.OpenGPU(w, w.Host(), gradsync.GPUOptions{
		CUDALib: f.CUDALib, NCCLLib: f.NCCLLib, Ordinal: f.GPU, Shared: f.ShareGPU, Native: f.Kernels, Direct: f.direct})
	var none *gradsync.NoGPU
	switch {
	case errors.As(err, &none) && needGPU:
		return nil, &gradsync.AgreedError{Code: gradsync.ExitEnvironment, Rank: -1, Text: none.Error() + "; without GPUs, use --device cpu"}
	case errors.As(err, &none):
		return &device{flags: f, note: none.Error()}, nil
	case err != nil:
		return nil, err
	}
	return &device{GPU: g, flags: f, nvml: w.nvml}, nil
}

// reducer makes a reducer on the device, collectively. Its errors are agreed on,
// but for those that OpenGPUReducer excepts.
func (d *device) reducer(cfg gradsync.Config, name, transport string) (gradsync.Reducer, string, error) {
	if d.GPU != nil && name != "mpi" {
		return gradsync.OpenGPUReducer(cfg, d.GPU, name, transport, d.flags.Algorithm)
	}
	dir := d.flags.ShmDir
	if dir == "" {
		dir = shm.Dir
	}
	r, note, err := gradsync.OpenCPU(cfg, name, transport, dir)
	if errors.Is(err, syscall.ENOMEM) {
		err = fmt.Errorf("%w: %w; spread the ranks over more hosts, or lower --world", gradsync.ErrEnvironment, err)
	}
	return r, note, gradsync.Agree(cfg.World, err)
}

// leave is done with the device and the reducers on it after err, and returns
// err or what went wrong in leaving. Where the ranks do not agree the device
// stays as it is until the process ends: freeing waits for what may never end.
func (d *device) leave(err error, reducers ...gradsync.Reducer) error {
	for _, r := range reducers {
		if e := gradsync.Leave(r, err); err == nil {
			err = e
		}
	}
	if d.GPU != nil && gradsync.Agreed(err) {
		if e := d.GPU.Close(); err == nil {
			err = e
		}
	}
	return err
}

// kind is cpu or gpu.
func (d *device) kind() string {
	if d.GPU == nil {
		return "cpu"
	}
	return "gpu"
}

// describe is the device for the report, nil for the CPU. What NVML knows is
// left out where it does not answer.
func (d *device) describe() *report.GPU {
	if d.GPU == nil {
		return nil
	}
	g := &report.GPU{Ordinal: d.Device.Ordinal, Name: d.Device.Name, UUID: d.Device.UUID, Bus: d.Device.Bus, Driver: d.driver()}
	if d.nvml == nil {
		return g
	}
	known, driver, _ := d.nvml.wait()
	if driver != "" {
		g.Driver = driver + ", " + g.Driver
	}
	if n, ok := known[g.UUID]; ok {
		g.NVLinks = n.Active
		if n.ECC != nil {
			g.ECCCorrected, g.ECCUncorrected = n.ECC.Volatile.Corrected, n.ECC.Volatile.Uncorrected
		}
	}
	return g
}

// driver is the CUDA version that the driver supports.
func (d *device) driver() string {
	v := d.GPU.Driver
	return fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10)
}

// settings are the variables that change what NCCL and CUDA do, and so must be
// the same on every rank. Which devices a task sees may differ.
func settings(environ []string) map[string]string {
	m := map[string]string{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if (strings.HasPrefix(name, "NCCL_") || strings.HasPrefix(name, "CUDA_")) && name != "CUDA_VISIBLE_DEVICES" {
			m["the variable "+name] = value
		}
	}
	return m
}

// agreeVersions refuses ranks that run other versions or settings than most,
// and adds what it learns to the report's versions.
func agreeVersions(w *job, d *device, versions map[string]string) error {
	same := map[string]string{}
	if d.GPU != nil {
		same = settings(os.Environ())
		versions["cuda driver"] = d.driver()
		l, err := d.NCCL()
		if err != nil { // on some ranks only; else whoever needs it says so
			same["the version of nccl"] = strings.TrimPrefix(err.Error(), gradsync.ErrEnvironment.Error()+": ")
		} else {
			versions["nccl"] = l.Version().String()
		}
	}
	for name, v := range versions {
		same["the version of "+name] = v
	}
	return gradsync.AgreeSame(w, same)
}
