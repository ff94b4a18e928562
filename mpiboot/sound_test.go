package mpiboot

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// The scenarios of this file end well at every size.

func wherePlaced(w *World) error {
	if w.Rank() < 0 || w.Rank() >= w.Size() || w.Host() == "" {
		return fmt.Errorf("rank %d of %d on host %q", w.Rank(), w.Size(), w.Host())
	}
	local := w.LocalRanks()
	if len(local) != w.Size() || !slices.IsSorted(local) || w.LocalSize() != w.Size() || w.LocalRank() != w.Rank() {
		return fmt.Errorf("local ranks %v, local rank %d of %d", local, w.LocalRank(), w.LocalSize())
	}
	fmt.Printf("rank %d of %d\n%s\n%s\n", w.Rank(), w.Size(), w.Library(), w.ThreadLevel())
	return nil
}

// pattern is the message number k from one rank to another.
func pattern(n, from, to, k int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + from*31 + to*101 + k*13 + 1)
	}
	return b
}

func same(what string, got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: got %d bytes % x, want %d bytes % x", what, len(got), head(got), len(want), head(want))
	}
	return nil
}

func head(b []byte) []byte { return b[:min(len(b), 16)] }

func collectives(w *World) error { return collectivesOf(w, 0, 1, 13, 100, 5000) }

func collectivesOf(w *World, lengths ...int) error {
	for _, n := range lengths {
		for _, f := range []func(*World, int) error{tryBcast, tryGather, tryAllgather, tryAllgatherBytes, tryAlltoallv, tryExchange, trySum} {
			if err := f(w, n); err != nil {
				return fmt.Errorf("n = %d: %w", n, err)
			}
		}
		if err := w.Barrier(); err != nil {
			return err
		}
	}
	return nil
}

func tryBcast(w *World, n int) error {
	for root := range w.Size() {
		buf, want := pattern(n, w.Rank(), 0, 0), pattern(n, root, 0, 0)
		if err := errors.Join(w.Bcast(buf, root), same("Bcast", buf, want)); err != nil {
			return err
		}
	}
	return nil
}

func tryGather(w *World, n int) error {
	for root := range w.Size() {
		var recv, want []byte
		if w.Rank() == root {
			recv = make([]byte, n*w.Size())
			for r := range w.Size() {
				want = append(want, pattern(n, r, root, 0)...)
			}
		}
		if err := errors.Join(w.Gather(pattern(n, w.Rank(), root, 0), recv, root), same("Gather", recv, want)); err != nil {
			return err
		}
	}
	return nil
}

func tryAllgather(w *World, n int) error {
	recv, want := make([]byte, n*w.Size()), []byte{}
	for r := range w.Size() {
		want = append(want, pattern(n, r, 0, 2)...)
	}
	return errors.Join(w.Allgather(pattern(n, w.Rank(), 0, 2), recv), same("Allgather", recv, want))
}

func tryAllgatherBytes(w *World, n int) error {
	got, err := w.AllgatherBytes(pattern(n*w.Rank(), w.Rank(), 0, 3))
	if err != nil {
		return err
	}
	for r := range w.Size() {
		if err := same("AllgatherBytes", got[r], pattern(n*r, r, 0, 3)); err != nil {
			return err
		}
	}
	return nil
}

func tryAlltoallv(w *World, n int) error {
	count := func(from, to int) int { return (from*w.Size() + to*3) * n % 1009 }
	var send, want []byte
	var sendCounts, recvCounts []int
	for r := range w.Size() {
		sendCounts = append(sendCounts, count(w.Rank(), r))
		send = append(send, pattern(count(w.Rank(), r), w.Rank(), r, 4)...)
		recvCounts = append(recvCounts, count(r, w.Rank()))
		want = append(want, pattern(count(r, w.Rank()), r, w.Rank(), 4)...)
	}
	recv := make([]byte, len(want))
	return errors.Join(w.Alltoallv(send, sendCounts, recv, recvCounts), same("Alltoallv", recv, want))
}

// tryExchange sends three messages of different lengths to every rank, oneself
// included, in an order of ranks that differs from that of the receives.
func tryExchange(w *World, n int) error {
	var to, from []int
	var send, recv, want [][]byte
	for k := range 3 {
		for r := range w.Size() {
			peer := (w.Rank() + r) % w.Size()
			to = append(to, peer)
			send = append(send, pattern(n*k/2, w.Rank(), peer, k))
			from = append(from, r)
			want = append(want, pattern(n*k/2, r, w.Rank(), k))
			recv = append(recv, make([]byte, n*k/2))
		}
	}
	if err := w.Exchange(to, send, from, recv); err != nil {
		return err
	}
	for i := range recv {
		if err := same(fmt.Sprintf("Exchange message %d from %d", i, from[i]), recv[i], want[i]); err != nil {
			return err
		}
	}
	return nil
}

// trySum sums small integers, which are exact in every type and order.
func trySum(w *World, n int) error {
	total := func(i int) (sum int) {
		for r := range w.Size() {
			sum += value(i, r)
		}
		return sum
	}
	f32, f64 := make([]float32, n), make([]float64, n)
	f16, b16 := make([]uint16, n), make([]uint16, n)
	for i := range n {
		v := value(i, w.Rank())
		f32[i], f64[i] = float32(v), float64(v)
		f16[i], b16[i] = float16Type.round(float64(v)), bfloat16Type.round(float64(v))
	}
	err := errors.Join(w.AllreduceSum(raw(f32), "float32"), w.AllreduceSum(raw(f64), "float64"),
		w.AllreduceSum(raw(f16), "float16"), w.AllreduceSum(raw(b16), "bfloat16"))
	if err != nil {
		return err
	}
	for i := range n {
		want := float64(total(i))
		if float64(f32[i]) != want || f64[i] != want || float16Type.value(f16[i]) != want || bfloat16Type.value(b16[i]) != want {
			return fmt.Errorf("sum %d: float32 %v, float64 %v, float16 %v, bfloat16 %v, want %v",
				i, f32[i], f64[i], float16Type.value(f16[i]), bfloat16Type.value(b16[i]), want)
		}
	}
	return nil
}

func value(i, rank int) int { return (i*5+rank*3)%17 - 8 }

// raw views numbers as bytes.
func raw[T any](s []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// pieces repeats the calls with messages cut into tiny pieces.
func pieces(w *World) error {
	pieceBytes, pieceElems = 7, 5
	if err := collectivesOf(w, 1, 7, 8, 60); err != nil {
		return err
	}
	return messages(w)
}

func messages(w *World) error {
	next, previous := (w.Rank()+1)%w.Size(), (w.Rank()+w.Size()-1)%w.Size()
	for k, n := range []int{0, 1, 40, 3000} {
		recv := make([]byte, n)
		// Eager or not, a ring of sends before receives must not be relied on.
		send := func() error { return w.Send(pattern(n, w.Rank(), next, k), next, k) }
		receive := func() error { return w.Recv(recv, previous, k) }
		steps := []func() error{send, receive}
		if w.Rank() != 0 {
			slices.Reverse(steps)
		}
		if w.Size() == 1 {
			steps = []func() error{send, receive}
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		if err := same("Recv", recv, pattern(n, previous, w.Rank(), k)); err != nil {
			return err
		}
	}
	return messagesLate(w)
}

// messagesLate receives in another order than was sent, by tag, and once
// before there is anything to receive.
func messagesLate(w *World) error {
	last := w.Size() - 1
	a, b := make([]byte, 20), make([]byte, 30)
	if w.Rank() == last && w.Size() > 1 {
		err := w.RecvTimeout(a, 0, 5, 150*time.Millisecond)
		var late *DeadlineError
		if !errors.As(err, &late) || late.Op != "RecvTimeout" || !slices.Equal(late.Missing, []int{0}) || late.After < 150*time.Millisecond {
			return fmt.Errorf("RecvTimeout before the message: %v", err)
		}
	}
	if err := w.Barrier(); err != nil {
		return err
	}
	if w.Rank() == 0 {
		if err := errors.Join(w.Send(pattern(20, 0, last, 5), last, 5), w.Send(pattern(30, 0, last, 6), last, 6)); err != nil {
			return err
		}
	}
	if w.Rank() != last {
		return nil
	}
	return errors.Join(w.RecvTimeout(b, 0, 6, time.Minute), w.RecvTimeout(a, 0, 5, time.Minute),
		same("tag 5", a, pattern(20, 0, last, 5)), same("tag 6", b, pattern(30, 0, last, 6)))
}

// halves compares the 16-bit sums of two ranks with rounding by search, for
// every bit pattern and offsets that meet ties, subnormals and overflow.
func halves(w *World) error {
	for _, h := range []*half{float16Type, bfloat16Type} {
		for _, step := range []uint16{0, 1, 0x3c00, 0x8001, 0x0bff, 0x8400} {
			buf := make([]uint16, 1<<16)
			for i := range buf {
				buf[i] = uint16(i) + step*uint16(w.Rank())
			}
			if err := w.AllreduceSum(raw(buf), h.name); err != nil {
				return err
			}
			for i, got := range buf {
				want := uint16(i)
				if w.Size() == 2 {
					want = h.add(uint16(i), uint16(i)+step)
				}
				if got != want {
					return fmt.Errorf("%s: %#04x + %#04x = %#04x, want %#04x", h.name, i, uint16(i)+step, got, want)
				}
			}
		}
	}
	return nil
}

// allocations shows that the calls of a step allocate nothing.
func allocations(w *World) error {
	next, previous := []int{(w.Rank() + 1) % w.Size()}, []int{(w.Rank() + w.Size() - 1) % w.Size()}
	send, recv := [][]byte{make([]byte, 4096)}, [][]byte{make([]byte, 4096)}
	sum, all := make([]byte, 4096), make([]byte, 8*w.Size())
	calls := map[string]func() error{
		"Exchange":     func() error { return w.Exchange(next, send, previous, recv) },
		"Barrier":      w.Barrier,
		"Allgather":    func() error { return w.Allgather(sum[:8], all) },
		"Bcast":        func() error { return w.Bcast(sum, 0) },
		"AllreduceSum": func() error { return w.AllreduceSum(sum, "float32") },
	}
	for _, name := range []string{"Exchange", "Barrier", "Allgather", "Bcast", "AllreduceSum"} {
		var failed error
		n := testing.AllocsPerRun(50, func() { failed = errors.Join(failed, calls[name]()) })
		if failed != nil {
			return failed
		}
		if n != 0 {
			return fmt.Errorf("%s makes %v allocations a call, want 0", name, n)
		}
	}
	return nil
}

// half is a 16-bit float type whose rounding searches a table of its values:
// slow, and nothing like the code under test.
type half struct {
	name         string
	fractionBits int
	nan          uint16
	table        []float64 // of the patterns from zero to infinity, ascending
}

var (
	float16Type  = newHalf("float16", 10, 0x7e00)
	bfloat16Type = newHalf("bfloat16", 7, 0x7fc0)
)

func newHalf(name string, fractionBits int, nan uint16) *half {
	h := &half{name: name, fractionBits: fractionBits, nan: nan}
	bias := 1<<(14-fractionBits) - 1
	for p := range (1<<(15-fractionBits) - 1) << fractionBits {
		exponent, fraction := p>>fractionBits, p&(1<<fractionBits-1)
		if exponent == 0 {
			exponent = 1
		} else {
			fraction += 1 << fractionBits
		}
		h.table = append(h.table, math.Ldexp(float64(fraction), exponent-bias-fractionBits))
	}
	// Rounding treats infinity as the value after the largest.
	h.table = append(h.table, math.Ldexp(1, bias+1))
	return h
}

func (h *half) value(p uint16) float64 {
	v := math.NaN()
	if m := int(p &^ 0x8000); m < len(h.table)-1 {
		v = h.table[m]
	} else if m == len(h.table)-1 {
		v = math.Inf(1)
	}
	return math.Copysign(v, 1-2*float64(p>>15))
}

func (h *half) round(v float64) uint16 {
	if math.IsNaN(v) {
		return h.nan
	}
	var sign uint16
	if math.Signbit(v) {
		sign = 0x8000
	}
	v = math.Abs(v)
	above, exact := slices.BinarySearch(h.table, v)
	if above == len(h.table) {
		return sign | uint16(len(h.table)-1)
	}
	if exact || above == 0 {
		return sign | uint16(above)
	}
	low, high := v-h.table[above-1], h.table[above]-v
	if low < high || low == high && (above-1)%2 == 0 {
		above--
	}
	return sign | uint16(above)
}

// add rounds through float32, as the contract of the sum says.
func (h *half) add(a, b uint16) uint16 {
	return h.round(float64(float32(h.value(a)) + float32(h.value(b))))
}
