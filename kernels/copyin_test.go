package kernels

import (
	"fmt"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// copyIns is what every process of a deviceGroup needs to copy in.
type copyIns struct {
	*deviceGroup
	chunk   int
	copies  []*cuda.Stream
	scratch []cuda.Buffer
}

func newCopyIns(t *testing.T, chunk int, local ...int) *copyIns {
	d := &copyIns{deviceGroup: newDeviceGroup(t, local...), chunk: chunk}
	for range local {
		s := get[*cuda.Stream](t)(d.ctx.NewStream())
		b := get[cuda.Buffer](t)(d.ctx.Alloc(cuda.Uint8, CopyInScratch(d.world-1, chunk)))
		t.Cleanup(func() { must(t, firstError(s.Close(), b.Free())) })
		d.copies, d.scratch = append(d.copies, s), append(d.scratch, b)
	}
	return d
}

// pipe prepares process p's part.
func (d *copyIns) pipe(p int, addends, results []cuda.Buffer, first int, scale Scale) *Pipeline {
	d.t.Helper()
	return get[*Pipeline](d.t)(d.m.CopyIn(d.groups[p], CopyIn{
		Addends: addends, Results: results, First: first, Own: d.local[p], Scale: scale,
		Scratch: d.scratch[p], Copies: d.copies[p], ChunkBytes: d.chunk,
	}))
}

func TestCopyInOnDevice(t *testing.T) {
	for _, local := range [][]int{{1, 1}, {1, 2, 1}} {
		t.Run(fmt.Sprint(local), func(t *testing.T) {
			d := newCopyIns(t, 256, local...)
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
						pipes = append(pipes, d.pipe(p, all, firsts, f, scaleOf(contract.Mean, gradients[g].c, d.world)))
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

// All algorithms in turn on the same memory, with nothing in between, plainly and as a graph that is replayed: none may
// begin on a peer's memory before the one ahead has ended there, nor meet its epochs. Each process in turn queues first.
// The shorter message leaves slices without an element.
func TestAlgorithmsInTurnOnDevice(t *testing.T) {
	type queued interface{ Queue(*cuda.Stream) error }
	const g = 2
	dt, c := gradients[g].t, gradients[g].c
	for _, local := range [][]int{{1, 1}, {1, 2, 1}} {
		for _, n := range []int{3001, 30} {
			t.Run(fmt.Sprintf("%v/%d", local, n), func(t *testing.T) {
				d := newCopyIns(t, 256, local...)
				var all, firsts []cuda.Buffer
				var hosts [][]byte
				for range d.world {
					b, host := d.take(dt, n, 4)
					all, hosts = append(all, b), append(hosts, host)
				}
				var first []int
				for p := range local {
					f := 0
					for _, k := range local[:p] {
						f += k
					}
					first, firsts = append(first, f), append(firsts, all[f])
				}
				scale := scaleOf(contract.Mean, c, d.world)
				order := []int{0, 1, 2, 0, 2, 1, 1, 0, 0, 2, 2}
				turns := make([][3]queued, len(local))
				var graphs []*cuda.Graph
				for p, f := range first {
					one := get[*Launch](t)(d.m.OneShot(d.groups[p], OneShot{Addends: all[f : f+local[p]], Result: all[f], Scale: scale, World: d.world, First: f}))
					two := get[*Launch](t)(d.m.TwoShot(d.groups[p], TwoShot{Addends: all, Results: firsts, Scale: scale, Shape: Shape{3, 64}}))
					pipe := d.pipe(p, all, firsts, f, scale)
					defer func() { one.Free(); two.Free(); must(t, pipe.Free()) }()
					turns[p] = [3]queued{one, two, pipe}
				}
				queue := func(p int) error {
					for _, k := range order {
						if err := turns[p][k].Queue(d.streams[p]); err != nil {
							return err
						}
					}
					return nil
				}
				for p, s := range d.streams {
					graph := get[*cuda.Graph](t)(s.Capture(func() error { return queue(p) }))
					defer func() { must(t, graph.Close()) }()
					graphs = append(graphs, graph)
				}
				for round := range 12 {
					var want [][]byte
					for r, host := range hosts {
						copy(host, addend(c, n, r, uint64(9*round)))
						want = append(want, append(make([]byte, 0, len(host)+8), host...))
					}
					for range order {
						sum := answer(c, contract.Mean, want)
						for _, f := range first {
							want[f] = sum
						}
					}
					d.upload()
					d.drain(d.s)
					for k := range local {
						p := (round + k) % len(local)
						if round%4 < 2 {
							must(t, queue(p))
						} else {
							must(t, d.streams[p].LaunchGraph(graphs[p]))
						}
						time.Sleep(time.Millisecond)
					}
					for _, s := range d.streams {
						d.drain(s)
					}
					d.download()
					for r := range hosts {
						if s := differ(c, hosts[r], want[r]); s != "" {
							t.Fatalf("round %d, rank %d: %s", round, r, s)
						}
					}
				}
			})
		}
	}
}
