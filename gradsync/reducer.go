package gradsync

import (
	"errors"
	"fmt"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/digest"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// Reducer sums buckets across the world. It owns the memory in which gradients
// live. All processes call Reduce, Wait and Close in the same order with the
// same buckets.
type Reducer interface {
	// Name is the reducer as the command line calls it.
	Name() string
	// Device is cpu or gpu.
	Device() string
	// Transport says what carries the bytes.
	Transport() string
	// Accumulator is the dtype in which gradients of dtype t are added.
	Accumulator(t contract.DType) contract.DType
	// Put takes the gradients of a bucket of the local'th logical rank of
	// this process: fill writes them, in one call or several, each for a run
	// of elements that starts at first within the bucket.
	Put(local, bucket int, fill func(dst []byte, first int64) error) error
	// Reduce sums the bucket over all logical ranks, and averages. On a GPU
	// it only starts that, behind what was put.
	Reduce(bucket int) error
	// Wait returns when every started reduction is done, with the seconds
	// that each bucket's last one took, by bucket.
	Wait() ([]float64, error)
	// Get returns the elements [lo, hi) of a reduced bucket's result, at most
	// getBytes, valid until the next Put or Get.
	Get(bucket int, lo, hi int64) ([]byte, error)
	// Close frees the memory. After a failure on which the processes did not
	// agree, call Leave instead.
	Close() error
}

// An abandoner is a Reducer whose Close waits for peers, or for work that
// never ends when one is lost.
type abandoner interface {
	// Abandon ends what runs, and leaves the memory to the end of the process.
	Abandon(cause error)
}

// Leave is done with a reducer after err. It closes it in order where all
// processes do so: when err is nil or an AgreedError. Else it only makes sure
// that nothing goes on.
func Leave(r Reducer, err error) error {
	if a, ok := r.(abandoner); ok && !Agreed(err) {
		a.Abandon(err)
		return nil
	}
	return r.Close()
}

// getBytes is the most that Get hands out at a time.
const getBytes = stageBytes

// A generator is a Reducer that makes generated values where gradients live.
type generator interface {
	Generate(local, bucket int, g *Generated, step, rank int) error
}

// A digester is a Reducer that digests results where they are, by parameter.
type digester interface {
	Digests() ([]digest.Digest, error)
}

// A clock is a Reducer that works behind the host's back and so must measure
// itself: after Wait it tells the seconds in which gradients were made, and
// those from there to the end of the last reduction.
type clock interface {
	StepTimes() (compute, exposed float64, err error)
}

// A Repeater reduces its buckets again and again on the device, for benchmarks.
type Repeater interface {
	// Repeat queues n rounds of all buckets back to back, as one CUDA graph,
	// and returns the seconds that one round took on the device. All processes
	// call it alike. It is warm from the second call with the same n.
	Repeat(n int) (float64, error)
}

// Config is what every reducer needs to know.
type Config struct {
	World    World
	Layout   Layout
	Plan     *plan.Plan
	Average  contract.Average
	Deadline time.Duration // longest wait for a peer; 0: no limit
	// Stuck is called, on another goroutine, when a library has not returned
	// within the deadline from a call that should not wait. It should end the
	// process. It may be nil.
	Stuck func(op string)
}

// OpenCPU makes a reducer on host memory, collectively. name is "fixed" or
// "mpi"; transport is "shm", "mpi" or "auto", which takes shared memory where
// all processes have it in dir. note says why auto did not.
func OpenCPU(cfg Config, name, transport, dir string) (r Reducer, note string, err error) {
	fpenv.Set() // a rounding mode that a library left would round the averages' factors
	switch {
	case name == "mpi" && transport != "shm":
		r, err = newLibrary(cfg)
		return r, "", err
	case name != "fixed":
		return nil, "", fmt.Errorf("%w: reducer %q does not run on the CPU over %s; use fixed, or mpi", ErrUsage, name, transport)
	}
	oneHost := len(cfg.World.LocalRanks()) == cfg.Layout.Procs
	if transport == "mpi" || transport == "auto" && (cfg.Layout.Procs == 1 || !oneHost) {
		r, err = newExchange(cfg)
		return r, "", err
	}
	err = noSharedMemory("the ranks are on several hosts")
	if oneHost {
		var s *shared
		if s, err = newShared(cfg, dir); err == nil {
			return s, "", nil
		}
	}
	var none noSharedMemory
	switch {
	case !errors.As(err, &none):
		return nil, "", err
	case transport == "shm":
		return nil, "", fmt.Errorf("%w: %v; choose another folder with --shm-dir, or use --transport mpi", ErrEnvironment, err)
	}
	r, err = newExchange(cfg)
	return r, string(none) + "; exchanging over MPI instead, which is slower (--shm-dir chooses another folder)", err
}

// offsets returns where each bucket starts in one logical rank's memory, in
// bytes, and the size of that memory. Buckets start on pages, so that they are
// aligned for every dtype and processor.
func offsets(p *plan.Plan) (at []int64, size int64) {
	for _, b := range p.Buckets {
		at = append(at, size)
		size += pages(b.Bytes())
	}
	return at, size
}

// pages rounds a number of bytes up to whole pages.
func pages(n int64) int64 { return (n + pageSize - 1) / pageSize * pageSize }

const pageSize = 4096

// folders makes one Folder for each dtype of the plan.
func folders(c Config) map[contract.DType]*contract.Folder {
	m := map[contract.DType]*contract.Folder{}
	for _, b := range c.Plan.Buckets {
		if m[b.DType] == nil {
			m[b.DType] = contract.NewFolder(b.DType, c.Average, c.Layout.World)
		}
	}
	return m
}
