package gradsync

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/kernels"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

// GPUOptions say how a rank finds its GPU.
type GPUOptions struct {
	CUDALib string // libcuda.so.1, empty for wherever the loader finds it
	NCCLLib string // libnccl.so.2, likewise
	Ordinal int    // among the visible devices; -1: by the rank's place on its host
	Shared  bool   // ranks of a host may share a GPU, for tests on one
	Native  string // folder of native kernels, empty for the embedded PTX
	Direct  bool   // call NCCL without its helper threads, as it is fastest: for benchmarks
}

// GPU is one rank's device, with what runs on it.
type GPU struct {
	Device  *cuda.Device
	Driver  int // CUDA version of the driver, 13000 for 13.0
	ctx     *cuda.Context
	kernels *kernels.Module
	options GPUOptions
	nccl    *nccl.Library
}

// NoGPU says why a job cannot run on GPUs: the reason of the lowest rank that
// has one. All ranks get the same.
type NoGPU struct {
	Rank   int
	Host   string
	Reason string
}

func (e *NoGPU) Error() string {
	return fmt.Sprintf("rank %d on %s has no GPU: %s", e.Rank, e.Host, e.Reason)
}

// Is makes a NoGPU an environment that was refused.
func (e *NoGPU) Is(target error) bool { return target == ErrEnvironment }

// OpenGPU binds every rank to a GPU, collectively, before any communicator is
// made. It fails with NoGPU when a rank finds none, and when two ranks of one
// host would have the same, which NCCL would refuse late or never. The calling
// goroutine holds the context's thread from here on.
func OpenGPU(w World, host string, o GPUOptions) (*GPU, error) {
	g, reason := attach(w, o)
	type place struct{ Host, UUID, Reason string }
	me := place{Host: host, Reason: reason}
	if g != nil {
		me.UUID = g.Device.UUID
	}
	raw, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	texts, err := w.AllgatherBytes(raw)
	if err != nil {
		return nil, err
	}
	all := make([]place, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal(t, &all[r]); err != nil {
			return nil, fmt.Errorf("rank %d described its GPU as %q: %w", r, t, err)
		}
	}
	owner := map[string]int{}
	for r, p := range all {
		if p.Reason == "" && !o.Shared {
			// A UUID is unique in the world; host names of containers may not be.
			if first, taken := owner[p.UUID]; taken {
				p.Reason = fmt.Sprintf("ranks %d and %d are both bound to %s; start one rank for each GPU, or bind them with --gpu or the launcher", first, r, p.UUID)
			}
			owner[p.UUID] = r
		}
		if p.Reason != "" {
			if g != nil {
				g.Close()
			}
			return nil, &NoGPU{r, p.Host, p.Reason}
		}
	}
	return g, nil
}

// attach finds this rank's device.
func attach(w World, o GPUOptions) (*GPU, string) {
	drv, err := cuda.Open(o.CUDALib)
	if err == nil {
		err = drv.Init()
	}
	if err != nil {
		return nil, err.Error()
	}
	n, err := drv.Count()
	if err != nil {
		return nil, err.Error()
	}
	ordinal := o.Ordinal
	if ordinal < 0 {
		// A launcher that shows each task only its own GPU makes it device 0:
		// the place on the host is an ordinal only where several are visible.
		for i, r := range w.LocalRanks() {
			if r == w.Rank() && n > 1 && !o.Shared {
				ordinal = i
			}
		}
		ordinal = max(ordinal, 0)
	}
	if ordinal >= n {
		return nil, fmt.Sprintf("it would use device %d, and %d are visible; start fewer ranks on the host, or look at CUDA_VISIBLE_DEVICES", ordinal, n)
	}
	g := &GPU{options: o}
	if g.Device, err = drv.Device(ordinal); err == nil {
		if g.Driver, err = drv.Version(); err == nil {
			g.ctx, err = g.Device.Attach()
		}
	}
	if err != nil {
		return nil, err.Error()
	}
	g.kernels = kernels.New(g.ctx, o.Native)
	return g, ""
}

// NCCL loads the library, once.
func (g *GPU) NCCL() (*nccl.Library, error) {
	if g.nccl == nil {
		l, err := nccl.Open(g.options.NCCLLib)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrEnvironment, err)
		}
		g.nccl = l
	}
	return g.nccl, nil
}

// Close lets the device go.
func (g *GPU) Close() error { return errors.Join(g.kernels.Close(), g.ctx.Close()) }

// OpenGPUReducer makes a reducer on device memory, collectively. name is
// "fixed" or "nccl"; transport is "peer", "nccl" or "auto", which takes peer
// access where every rank can map every other's memory. algorithm forces one of
// package kernels' algorithms on the peer transport, "" chooses by size. note
// says why auto did not take peer access.
//
// An error is an AgreedError, the same on every rank, unless a peer was lost or
// NCCL failed on this rank while others go on waiting for it: they are best told
// by the end of the process, not by a further collective call.
func OpenGPUReducer(cfg Config, g *GPU, name, transport, algorithm string) (r Reducer, note string, err error) {
	refuse := func(code int, format string, args ...any) (Reducer, string, error) {
		return nil, "", &AgreedError{Code: code, Rank: -1, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case name == "nccl":
		return opened(newNCCLReducer(cfg, g))
	case name != "fixed":
		return refuse(ExitUsage, "reducer %q does not run on GPUs; use fixed or nccl", name)
	case transport != "auto" && transport != "peer" && transport != "nccl":
		return refuse(ExitUsage, "transport %q does not run on GPUs; use auto, peer or nccl", transport)
	case cfg.Layout.World > MaxGPUWorld:
		return refuse(ExitUsage, "%v; use --device cpu", TooManyForGPU(cfg.Layout.World))
	case transport == "nccl":
		return opened(newGPUExchange(cfg, g))
	}
	var none noSharedMemory
	p, err := newPeers(cfg, g, algorithm)
	switch {
	case !errors.As(err, &none):
		return opened(p, err)
	case transport == "peer":
		return refuse(ExitEnvironment, "no peer access: %v; use --transport nccl", none)
	}
	r, _, err = opened(newGPUExchange(cfg, g))
	return r, "no peer access: " + string(none) + "; exchanging over NCCL instead, which is slower", err
}

// opened keeps a nil pointer from becoming a Reducer that is not nil.
func opened[R Reducer](r R, err error) (Reducer, string, error) {
	if err != nil {
		return nil, "", err
	}
	return r, "", nil
}

// MaxGPUWorld is how many logical ranks the kernels add in fixed order.
const MaxGPUWorld = kernels.MaxWorld

// TooManyForGPU says that a world is larger than that.
func TooManyForGPU(world int) string {
	return fmt.Sprintf("the kernels add up to %d logical ranks in fixed order, and these are %d", MaxGPUWorld, world)
}

// deviceType is the buffer type of gradients of dtype t.
func deviceType(t contract.DType) cuda.DType {
	d, err := cuda.ParseDType(t.String())
	if err != nil {
		panic(err) // the names are the same in both packages
	}
	return d
}

// kernelScale is the contract's average, as kernels take it.
func kernelScale(t contract.DType, a contract.Average, world int) kernels.Scale {
	switch a {
	case contract.Mean:
		return kernels.Scale{Factor: contract.MeanScale(t, world)}
	case contract.Pre:
		return kernels.Scale{Factor: contract.PreScale(t, world), Pre: true}
	}
	return kernels.Scale{Factor: 1}
}

// refusedByGPU makes an error of setting up an ErrEnvironment, where it is one.
func refusedByGPU(err error) error {
	var e *cuda.Error
	if errors.As(err, &e) && e.Code == cuda.CodeOutOfMemory {
		return fmt.Errorf("%w: %w; use more GPUs, or lower --world", ErrEnvironment, err)
	}
	return err
}

// lostOnGPU turns the errors of waiting for peers into an ErrLost.
func lostOnGPU(op string, err error) error {
	var e *nccl.Error
	remote := errors.As(err, &e) && e.Code == nccl.CodeRemoteError
	if remote || errors.Is(err, cuda.ErrDeadline) || errors.Is(err, nccl.ErrAborted) {
		return &LostError{Op: op, Cause: strings.TrimPrefix(err.Error(), "nccl: ")}
	}
	return err
}
