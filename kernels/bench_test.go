package kernels

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/gradsync/values"
	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// Benchmarks of single kernels, by events on the device: each repeat is a train of launches between two events, and the
// median over b.N repeats is reported, as time a launch and as bytes moved over it. They say nothing on the double.
//
//	DDPSTEP_TEST_GPU=real kernels.test -test.run '^$' -test.bench . -test.benchtime 50x

func benchmarkDevice(b *testing.B, bytes int) *device {
	needGPU(b)
	return newBareDevice(b, bytes)
}

func needGPU(b *testing.B) {
	if l, err := gpudouble.Find(); err != nil || !l.Real {
		b.Skip("needs a GPU: set DDPSTEP_TEST_GPU=real")
	}
}

// measure reports on launches that move bytes through memory each.
func (d *device) measure(b *testing.B, s *cuda.Stream, train int, bytes int, launches ...*Launch) {
	begin, end := get[*cuda.Event](b)(d.ctx.NewEvent(true)), get[*cuda.Event](b)(d.ctx.NewEvent(true))
	times := make([]time.Duration, b.N)
	for i := -3; i < b.N; i++ { // three to warm up
		must(b, begin.Record(s))
		for k := range train {
			must(b, launches[k%len(launches)].Queue(s))
		}
		must(b, end.Record(s))
		must(b, end.Synchronize())
		if i >= 0 {
			times[i] = get[time.Duration](b)(end.Since(begin))
		}
	}
	must(b, firstError(begin.Close(), end.Close()))
	slices.Sort(times)
	each := float64(times[len(times)/2]) / float64(train)
	b.ReportMetric(each/1e3, "us/launch")
	b.ReportMetric(float64(bytes)/each, "GB/s")
	b.ReportMetric(0, "ns/op")
	for _, l := range launches {
		l.Free()
	}
}

const benchBytes = 512 << 20

// filled takes a buffer and gives it generated values, as zeros would be kinder than real data.
func (d *device) filled(t cuda.DType, bytes, rank int) cuda.Buffer {
	x, _ := d.take(t, bytes/t.Size(), 0)
	d.queue(d.m.Fill(x, 0, valuesOf(values.Wide, values.KeyFor(1, 1, rank, "bench")), Shape{}))
	return x
}

func BenchmarkFill(b *testing.B) {
	for _, g := range gradients {
		for _, blocks := range []int{132, 264, 528} {
			b.Run(fmt.Sprintf("%v/blocks=%d", g.t, blocks), func(b *testing.B) {
				d := benchmarkDevice(b, benchBytes)
				x, _ := d.take(g.t, benchBytes/g.t.Size(), 0)
				v := valuesOf(values.Wide, values.KeyFor(1, 1, 1, "bench"))
				d.measure(b, d.s, 4, benchBytes, get[*Launch](b)(d.m.Fill(x, 0, v, Shape{blocks, 512})))
			})
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	for _, g := range gradients[1:] {
		for _, blocks := range []int{132, 264, 528} {
			b.Run(fmt.Sprintf("%v/blocks=%d", g.t, blocks), func(b *testing.B) {
				d := benchmarkDevice(b, benchBytes+256)
				sums, _ := d.take(cuda.Uint64, 2, 0)
				x := d.filled(g.t, benchBytes, 0)
				d.measure(b, d.s, 4, benchBytes, get[*Launch](b)(d.m.Digest(x, 0, sums, Shape{blocks, 512})))
			})
		}
	}
}

func BenchmarkFold(b *testing.B) {
	for _, g := range gradients {
		for _, world := range []int{2, 3, 4, 8} {
			for _, blocks := range []int{132, 264} {
				b.Run(fmt.Sprintf("%v/world=%d/blocks=%d", g.t, world, blocks), func(b *testing.B) {
					each := benchBytes / 4
					d := benchmarkDevice(b, world*each)
					q := Fold{Scale: Scale{Factor: 1 / float64(world)}, Shape: Shape{blocks, 512}}
					for r := range world {
						q.Addends = append(q.Addends, d.filled(g.t, each, r))
					}
					q.Results = q.Addends[:1]
					d.measure(b, d.s, 4, (world+1)*each, get[*Launch](b)(d.m.Fold(q)))
				})
			}
		}
	}
}

// A group of one: what the kernels cost beside the link, launches included.
func BenchmarkOneProcess(b *testing.B) {
	for _, size := range []int{512, 8 << 10, 128 << 10, 512 << 10, 2 << 20} {
		for _, oneShot := range []bool{true, false} {
			if oneShot && size > OneShotBytes {
				continue
			}
			b.Run(fmt.Sprintf("bytes=%d/oneshot=%v", size, oneShot), func(b *testing.B) {
				needGPU(b)
				d := newDeviceGroup(b, 1)
				x := d.filled(cuda.Float32, size, 0)
				of := []cuda.Buffer{x}
				var l *Launch
				if oneShot {
					l = get[*Launch](b)(d.m.OneShot(d.groups[0], OneShot{Addends: of, Result: x, Scale: Scale{Factor: 1}, World: 1}))
				} else {
					l = get[*Launch](b)(d.m.TwoShot(d.groups[0], TwoShot{Addends: of, Results: of, Scale: Scale{Factor: 1}}))
				}
				d.measure(b, d.s, 200, size, l)
			})
		}
	}
}
