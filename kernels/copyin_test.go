package kernels

import (
	"fmt"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

func TestCopyInOnDevice(t *testing.T) {
	const chunk = 256
	for _, local := range [][]int{{1, 1}, {1, 2, 1}} {
		t.Run(fmt.Sprint(local), func(t *testing.T) {
			d := newDeviceGroup(t, local...)
			var copies []*cuda.Stream
			var scratch []cuda.Buffer
			for range local {
				s := get[*cuda.Stream](t)(d.ctx.NewStream())
				b := get[cuda.Buffer](t)(d.ctx.Alloc(cuda.Uint8, CopyInScratch(d.world-1, chunk)))
				t.Cleanup(func() { must(t, firstError(s.Close(), b.Free())) })
				copies, scratch = append(copies, s), append(scratch, b)
			}
			for g := range gradients {
				for i, n := range lengths {
					if n == 0 {
						continue
					}
					r := d.prepare(g, contract.Mean, n, uint64(i), false, Shape{})
					var all, firsts []cuda.Buffer
					d.used = 0
					for range d.world {
						b, _ := d.take(gradients[g].t, n, i*gradients[g].t.Size()%16) // where prepare has put them
						all = append(all, b)
					}
					for _, f := range r.firsts {
						firsts = append(firsts, all[f])
					}
					var pipes []*Pipeline
					for p, f := range r.firsts {
						pipes = append(pipes, get[*Pipeline](t)(d.m.CopyIn(d.groups[p], CopyIn{
							Addends: all, Results: firsts, First: f, Own: local[p], Scale: scaleOf(contract.Mean, gradients[g].c, d.world),
							Scratch: scratch[p], Copies: copies[p], ChunkBytes: chunk,
						})))
					}
					r.name += " copied in"
					d.run(r, func(p int) error { return pipes[p].Queue(d.streams[p]) })
					for p := range pipes {
						r.launches[p].Free()
						must(t, pipes[p].Free())
					}
				}
			}
		})
	}
}
