package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/shm"
)

// reduceFlags say what sums the buckets.
type reduceFlags struct {
	Device    string        `default:"auto" enum:"auto,cpu,gpu" help:"Where gradients live: auto (default), cpu or gpu."`
	Reducer   string        `default:"fixed" enum:"fixed,mpi,nccl" help:"What sums them: fixed (rank order, the default), mpi or nccl."`
	Transport string        `default:"auto" enum:"auto,shm,mpi" help:"What carries the bytes: auto (default), shm (shared memory) or mpi."`
	Average   string        `default:"mean" enum:"mean,pre,none" help:"mean (default), pre (scale before the sum) or none."`
	Deadline  time.Duration `default:"5m" placeholder:"T" help:"Longest wait for a peer (${default}); then exit code 7."`
	ShmDir    string        `default:"" placeholder:"DIR" help:"Memory file system for shared buckets (/dev/shm)."`
}

func (f *reduceFlags) validate() error {
	switch {
	case f.Device == "gpu" && f.Reducer == "mpi":
		return errors.New("--reducer mpi sums host memory: drop --device gpu")
	case f.Device == "cpu" && f.Reducer == "nccl":
		return errors.New("--reducer nccl sums GPU memory: drop --device cpu")
	case f.Reducer == "mpi" && f.Transport == "shm":
		return errors.New("--reducer mpi leaves the transport to MPI: drop --transport shm")
	case f.Deadline <= 0:
		return fmt.Errorf("--deadline %v: must be positive, such as 5m", f.Deadline)
	}
	_, err := contract.ParseAverage(f.Average)
	return err
}

// open makes the reducer, collectively.
func (f *reduceFlags) openReducer(cfg gradsync.Config) (gradsync.Reducer, string, error) {
	if f.Device == "gpu" || f.Reducer == "nccl" {
		return nil, "", fmt.Errorf("%w: this build has no GPU support", gradsync.ErrEnvironment)
	}
	dir := f.ShmDir
	if dir == "" {
		dir = shm.Dir
	}
	return gradsync.OpenCPU(cfg, f.Reducer, f.Transport, dir)
}
