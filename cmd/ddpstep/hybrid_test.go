package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/mpitest"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

// hybridVar makes this test binary, started as a rank, mix MPI on the host with
// NCCL on the GPU.
const hybridVar = "CMD_TEST_HYBRID"

func hybrid(stderr io.Writer) int {
	j, code := start(nil, time.Minute, stderr)
	if j == nil {
		return code
	}
	return j.finish(mix(j))
}

// mix sends, receives, waits in vain and meets at a barrier over MPI while an
// all-reduce is under way on the GPU: rank 0 has started it, and rank 1 will
// only when MPI has brought it all that rank 0 sends meanwhile.
func mix(j *job) error {
	drv, err := cuda.Open("")
	if err == nil {
		err = drv.Init()
	}
	if err != nil {
		return err
	}
	dev, err := drv.Device(j.LocalRank())
	if err != nil {
		return err
	}
	ctx, err := dev.Attach()
	if err != nil {
		return err
	}
	lib, err := nccl.Open("")
	if err != nil {
		return err
	}
	var id nccl.ID
	if j.Rank() == 0 {
		if id, err = lib.UniqueID(); err != nil {
			return err
		}
	}
	if err := j.Bcast(id[:], 0); err != nil {
		return err
	}
	comm, err := lib.Init(ctx, id, j.Rank(), j.Size(), nccl.Config{Timeout: time.Minute})
	if err != nil {
		return err
	}
	const n = 1000
	host, err := ctx.AllocHost(4 * n)
	if err != nil {
		return err
	}
	buf, err := ctx.Alloc(cuda.Float32, n)
	if err != nil {
		return err
	}
	stream, err := ctx.NewStream()
	if err != nil {
		return err
	}
	done, err := ctx.NewEvent(false)
	if err != nil {
		return err
	}
	for round := range 20 {
		for i := range n {
			binary.NativeEndian.PutUint32(host.Bytes()[4*i:], math.Float32bits(float32(i+j.Rank())))
		}
		reduce := func() error {
			for _, f := range []func() error{
				func() error { return stream.CopyIn(buf, host, 0) },
				func() error { return comm.AllReduce(buf, buf, nccl.Sum, stream) },
				func() error { return stream.CopyOut(host, 0, buf) },
				func() error { return done.Record(stream) },
			} {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		}
		if err := talk(j, round, reduce, done); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := comm.Wait(done); err != nil {
			return err
		}
		for i := range n {
			if got := math.Float32frombits(binary.NativeEndian.Uint32(host.Bytes()[4*i:])); got != float32(2*i+1) {
				return fmt.Errorf("round %d: element %d is %v", round, i, got)
			}
		}
	}
	return comm.Close()
}

// talk is the MPI side of a round, with reduce at this rank's place in it.
func talk(j *job, round int, reduce func() error, done *cuda.Event) error {
	text := []byte(fmt.Sprint("round ", round))
	got := make([]byte, len(text))
	if j.Rank() == 1 {
		if err := j.Recv(got, 0, round); err != nil || string(got) != string(text) {
			return fmt.Errorf("received %q: %w", got, err)
		}
		if err := j.Send(text, 0, round); err != nil {
			return err
		}
		if err := j.Barrier(); err != nil {
			return err
		}
		return reduce()
	}
	if err := reduce(); err != nil {
		return err
	}
	if err := j.Send(text, 1, round); err != nil {
		return err
	}
	if err := j.RecvTimeout(got, 1, 1000, 10*time.Millisecond); exitCode(err) != 7 { // nobody sends that
		return fmt.Errorf("receive with timeout: %w", err)
	}
	if err := j.Recv(got, 1, round); err != nil || string(got) != string(text) {
		return fmt.Errorf("received %q: %w", got, err)
	}
	if early, err := done.Done(); early || err != nil {
		return fmt.Errorf("the all-reduce was over before rank 1 began: %w", err)
	}
	return j.Barrier()
}

// TestHybrid runs mix on two ranks.
func TestHybrid(t *testing.T) {
	d := needDoubles(t)
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
		r := launch(t, lib, mpitest.Job{Ranks: 2, Command: []string{lib.BuildTest(t, ".")}, Env: d.with(hybridVar + "=1")})
		if r.Code != 0 || len(said(r)) > 0 {
			t.Error(r)
		}
	})
}
