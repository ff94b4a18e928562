package nccl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

// floats gives exponent and mantissa bits of the floating-point types.
var floats = map[cuda.DType][2]int{
	cuda.Float16: {5, 10}, cuda.Float32: {8, 23}, cuda.Float64: {11, 52}, cuda.BFloat16: {8, 7}, cuda.Float8E4M3: {4, 3}, cuda.Float8E5M2: {5, 2},
}

// encode writes n copies of v, which the type must hold exactly as a normal number; integers are truncated.
func encode(t cuda.DType, v float64, n int) []byte {
	x := uint64(int64(v))
	if f, ok := floats[t]; ok {
		frac, e := math.Frexp(v) // v = frac * 2^e, frac in [0.5, 1)
		x = uint64(e-1+1<<(f[0]-1)-1)<<f[1] | uint64(math.Ldexp(2*frac-1, f[1]))
	}
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], x)
	return bytes.Repeat(w[:t.Size()], n)
}

// combined is what n ranks with 1, 2, 1, 2... come to; every step is exact in every type.
func combined(op nccl.Op, n int) float64 {
	ones, twos := (n+1)/2, n/2
	return []float64{float64(ones + 2*twos), math.Ldexp(1, twos), float64(min(n, 2)), 1, float64(ones+2*twos) / float64(n)}[op]
}

// direct makes a world's communicators direct.
const direct = "DDPSTEP_TEST_DIRECT=1 "

// worlds runs a role that must end well, in worlds of two sizes and both kinds.
func worlds(t *testing.T, role string) {
	t.Run("2 ranks", func(t *testing.T) { passes(t, 2, "", role) })
	t.Run("2 ranks, direct", func(t *testing.T) { passes(t, 2, direct, role) })
	t.Run("4 ranks", func(t *testing.T) { passes(t, 4, "", role) })
}

func mine(rank int) float64 { return float64(rank%2 + 1) }

func (r *rank) expect(what string, d cuda.Buffer, want []byte) error {
	got, err := r.download(d)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: got %x..., want %x...", what, got[:min(16, len(got))], want[:min(16, len(want))])
	}
	return d.Free()
}

func collectivesRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	const n = 1003
	for t := cuda.Int8; t.Valid(); t++ {
		own := encode(t, mine(r.rank), n)
		var all []byte
		for i := range r.world {
			all = append(all, encode(t, mine(i), n)...)
		}
		garbage := bytes.Repeat([]byte{0x55}, n*t.Size())
		for op := nccl.Sum; op <= nccl.Avg; op++ {
			want := encode(t, combined(op, r.world), n)
			for _, inPlace := range []bool{false, true} {
				what := fmt.Sprintf("%v %v in place %v", t, op, inPlace)
				send, err := r.upload(t, own)
				if err != nil {
					return err
				}
				recv := send
				if !inPlace {
					if recv, err = r.upload(t, garbage); err != nil {
						return err
					}
				}
				if err := r.comm.AllReduce(send, recv, op, r.stream); err != nil {
					return err
				}
				if err := r.expect(what, recv, want); err != nil {
					return err
				}
				// The whole world's addends on every rank: part r of the result is the same for all.
				whole, err := r.upload(t, bytes.Repeat(own, r.world))
				if err != nil {
					return err
				}
				part, err := whole.Slice(r.rank*n, (r.rank+1)*n)
				if err != nil {
					return err
				}
				if !inPlace {
					if part, err = r.upload(t, garbage); err != nil {
						return err
					}
				}
				if err := r.comm.ReduceScatter(whole, part, op, r.stream); err != nil {
					return err
				}
				got, err := r.download(part)
				if err != nil || !bytes.Equal(got, want) {
					return fmt.Errorf("reduce-scatter %s: %v, got %x..., want %x...", what, err, got[:16], want[:16])
				}
			}
		}
		for root := range r.world {
			b, err := r.upload(t, own)
			if err != nil {
				return err
			}
			if err := r.comm.Broadcast(b, b, root, r.stream); err != nil {
				return err
			}
			if err := r.expect(fmt.Sprintf("%v broadcast from %d", t, root), b, encode(t, mine(root), n)); err != nil {
				return err
			}
		}
		b, err := r.upload(t, bytes.Repeat(garbage, r.world))
		if err != nil {
			return err
		}
		part, err := b.Slice(r.rank*n, (r.rank+1)*n)
		if err != nil {
			return err
		}
		from, err := r.upload(t, own)
		if err != nil {
			return err
		}
		if err := r.stream.Copy(part, from); err != nil {
			return err
		}
		if err := r.comm.AllGather(part, b, r.stream); err != nil {
			return err
		}
		if err := r.expect(fmt.Sprintf("%v all-gather in place", t), b, all); err != nil {
			return err
		}
		if b, err = r.upload(t, bytes.Repeat(garbage, r.world)); err != nil {
			return err
		}
		if err := r.comm.AllGather(from, b, r.stream); err != nil {
			return err
		}
		if err := r.expect(fmt.Sprintf("%v all-gather", t), b, all); err != nil {
			return err
		}
	}
	return r.comm.Close()
}

func TestCollectives(t *testing.T) { worlds(t, "collectives") }

// orderRole reduces values whose sum depends on the order: 2^24, 1, -2^24 and 1 give 1 in rank order.
func orderRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	const n = 200001 // several pieces of the double's, and no multiple of the world
	v := []float32{1 << 24, 1, -1 << 24, 1}[r.rank]
	b := make([]byte, 0, 4*n)
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	d, err := r.upload(cuda.Float32, b)
	if err != nil {
		return err
	}
	if err := r.comm.AllReduce(d, d, nccl.Sum, r.stream); err != nil {
		return err
	}
	got, err := r.download(d)
	if err != nil {
		return err
	}
	seen := map[float32]int{}
	for i := range n {
		seen[math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:]))]++
	}
	fmt.Println(seen)
	return r.comm.Close()
}

// The double adds in a ring's order, as NCCL does, so that a test which mistakes one for the fixed order fails.
func TestDoubleAddsInRingOrder(t *testing.T) {
	if mustFind(t).Real {
		t.Skip("needs the double")
	}
	results, log := launch(t, 4, "", "order")
	clean(t, log)
	for i, r := range results {
		if r.err != nil {
			t.Fatalf("rank %d: %v\n%s", i, r.err, r.out)
		}
		if r.out != results[0].out {
			t.Errorf("rank %d has %s, rank 0 %s", i, r.out, results[0].out)
		}
	}
	// Parts begin with ranks 1, 2, 3 and 0: 1-2^24+1+2^24, -2^24+1+2^24+1, 1+2^24+1-2^24, 2^24+1-2^24+1.
	if want := "map[0:50000 1:50000 2:100001]\n"; results[0].out != want {
		t.Errorf("the sums are %s, want %s", results[0].out, want)
	}
}

// exchangeRole passes data round the ring, and swaps large buffers with every rank at once.
func exchangeRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	const n = 300_000
	out, err := r.upload(cuda.Int32, encode(cuda.Int32, float64(100+r.rank), n))
	if err != nil {
		return err
	}
	in, err := r.upload(cuda.Int32, make([]byte, 4*n*r.world))
	if err != nil {
		return err
	}
	var want []byte
	err = r.comm.Group(func() error {
		for i := range r.world {
			want = append(want, encode(cuda.Int32, float64(100+i), n)...)
			part, err := in.Slice(i*n, (i+1)*n)
			if err != nil {
				return err
			}
			if err := errors.Join(r.comm.Send(out, i, r.stream), r.comm.Recv(part, i, r.stream)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.expect("all to all", in, want); err != nil {
		return err
	}
	// Without a group: down the line and no cycle.
	small, err := out.Slice(0, 7)
	if err != nil {
		return err
	}
	if r.rank > 0 {
		if err := r.comm.Recv(small, r.rank-1, r.stream); err != nil {
			return err
		}
	}
	if r.rank+1 < r.world {
		if err := r.comm.Send(small, r.rank+1, r.stream); err != nil {
			return err
		}
	}
	got, err := r.download(small)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, encode(cuda.Int32, 100, 7)) {
		return fmt.Errorf("down the line: %x", got)
	}
	return r.comm.Close()
}

func TestExchange(t *testing.T) { worlds(t, "exchange") }

func flagsRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	for raiser := -1; raiser < r.world; raiser++ {
		got, err := r.comm.AnyFlag(r.rank == raiser)
		if err != nil {
			return err
		}
		if got != (raiser >= 0) {
			return fmt.Errorf("flag of rank %d: %v", raiser, got)
		}
	}
	return r.comm.Close()
}

func TestAnyFlag(t *testing.T) { worlds(t, "flags") }

// graphRole captures an all-reduce once and replays it.
func graphRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	d, err := r.upload(cuda.Int64, encode(cuda.Int64, 1, 100))
	if err != nil {
		return err
	}
	// Connections are made by a first call outside the capture.
	if err := r.comm.AllReduce(d, d, nccl.Sum, r.stream); err != nil {
		return err
	}
	if err := r.wait(); err != nil {
		return err
	}
	g, err := r.stream.Capture(func() error { return r.comm.AllReduce(d, d, nccl.Sum, r.stream) })
	if err != nil {
		return err
	}
	for range 3 {
		if err := r.stream.LaunchGraph(g); err != nil {
			return err
		}
	}
	if err := r.wait(); err != nil {
		return err
	}
	if err := g.Close(); err != nil {
		return err
	}
	if err := r.expect("four all-reduces, three of them replayed", d, encode(cuda.Int64, math.Pow(float64(r.world), 4), 100)); err != nil {
		return err
	}
	return r.comm.Close()
}

func TestGraph(t *testing.T) { worlds(t, "graph") }
