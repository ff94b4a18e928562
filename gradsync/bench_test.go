package gradsync

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// oneBucket is a world's configuration for a bucket of n float32 elements.
func oneBucket(w World, world int, n int64) (Config, error) {
	p, err := plan.New([]plan.Param{{Name: "message", DType: contract.Float32, Shape: []int64{n}}}, plan.All)
	if err != nil {
		return Config{}, err
	}
	l, err := NewLayout(world, w.Size(), w.Rank())
	return Config{World: w, Layout: l, Plan: p, Average: contract.None}, err
}

// TestReduceAgainAndAgain runs ahead of slow peers as far as the reducer lets
// it: whoever writes into memory that a peer still reads spoils that peer's
// sum. Small buckets change places with their twins all the while.
func TestReduceAgainAndAgain(t *testing.T) {
	const procs, world, steps = 3, 5, 300
	for _, n := range []int64{1, 63, 100, oneShotBytes / 4 / world, oneShotBytes/4/world + 1, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := t.TempDir()
			launch(t, procs, false, func(w World) error {
				cfg, err := oneBucket(w, world, n)
				if err != nil {
					return err
				}
				r, _, err := OpenCPU(cfg, "fixed", "shm", dir)
				if err != nil {
					return err
				}
				defer r.Close()
				lo, hi := cfg.Layout.Ranks(w.Rank())
				for step := range steps {
					for rank := lo; rank < hi; rank++ {
						if err := r.Put(rank-lo, 0, func(dst []byte, _ int64) error {
							for i := range n {
								binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(float32(int(i)%97+step*(rank+1))))
							}
							return nil
						}); err != nil {
							return err
						}
					}
					if step%procs == w.Rank() {
						runtime.Gosched() // arrive late in turn
					}
					if err := r.Reduce(0); err != nil {
						return err
					}
					got, err := r.Get(0, 0, n)
					if err != nil {
						return err
					}
					for i := range n {
						v := math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:]))
						if want := float32(world*(int(i)%97) + step*world*(world+1)/2); v != want {
							return fmt.Errorf("step %d, element %d: %v, want %v", step, i, v, want)
						}
					}
				}
				return w.Barrier() // nobody unmaps what another reads
			})
		})
	}
}

// BenchmarkReduce is two ranks of one process, in place. It must not allocate.
func BenchmarkReduce(b *testing.B) {
	for _, bytes := range []int64{256, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(bytes)
			b.ReportAllocs()
			launch(b, 2, false, func(w World) error {
				cfg, err := oneBucket(w, 2, bytes/4)
				if err != nil {
					return err
				}
				r, _, err := OpenCPU(cfg, "fixed", "shm", dir)
				if err != nil {
					return err
				}
				defer r.Close()
				if err := w.Barrier(); err != nil {
					return err
				}
				if w.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N {
					if err := r.Reduce(0); err != nil {
						return err
					}
				}
				if w.Rank() == 0 {
					b.StopTimer()
				}
				return w.Barrier()
			})
		})
	}
}
