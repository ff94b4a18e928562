package mpiboot

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Tags of the internal channel: one for each method, so that ranks that
// disagree on the next call wait for the deadline instead of taking another
// method's bytes.
const (
	tagExchange = iota
	tagGather
	tagAllgather
	tagAlltoallv
	tagBytes
)

// pieceBytes is the longest message, and pieceElems the most elements of a
// sum, handed to MPI at once, 1 GiB both: its counts are ints, and so are the
// byte counts within some libraries. Ranks must agree on them; tests lower
// them.
var (
	pieceBytes = 1 << 30
	pieceElems = 1 << 27
)

// Barrier returns when every rank has called it.
func (w *World) Barrier() error {
	if err := w.ready("Barrier"); err != nil || w.size == 1 {
		return err
	}
	return w.wait("Barrier", w.link.barrier())
}

// Bcast copies root's buf into every rank's. All give the same length.
func (w *World) Bcast(buf []byte, root int) error {
	if err := w.ready("Bcast"); err != nil {
		return err
	}
	if err := w.checkRank("Bcast", "root", root); err != nil {
		return err
	}
	if w.size == 1 || len(buf) == 0 {
		return nil
	}
	return w.wait("Bcast", w.link.bcast(buf, root))
}

// Allgather puts every rank's send, in rank order, into every rank's recv,
// which is Size times as long. All give the same length.
func (w *World) Allgather(send, recv []byte) error {
	if err := w.ready("Allgather"); err != nil {
		return err
	}
	if len(recv) != w.size*len(send) {
		return &ArgumentError{"Allgather", fmt.Sprintf("recv has %d bytes, want %d ranks times %d", len(recv), w.size, len(send))}
	}
	copy(w.part(recv, w.rank), send)
	if w.size == 1 || len(send) == 0 {
		return nil
	}
	if len(recv) <= pieceBytes {
		return w.wait("Allgather", w.link.allgather(send, recv))
	}
	peers, parts, same := w.everyone(recv, send)
	return w.wait("Allgather", w.link.exchange(internal, tagAllgather, peers, same, peers, parts))
}

// AllgatherBytes returns every rank's send, by rank. Lengths may differ.
func (w *World) AllgatherBytes(send []byte) ([][]byte, error) {
	lengths := make([]byte, 8*w.size)
	if err := w.Allgather(binary.LittleEndian.AppendUint64(nil, uint64(len(send))), lengths); err != nil {
		return nil, err
	}
	peers, parts, same := w.everyone(nil, send)
	for r := range parts {
		parts[r] = make([]byte, binary.LittleEndian.Uint64(lengths[8*r:]))
	}
	copy(parts[w.rank], send)
	if w.size == 1 {
		return parts, nil
	}
	if err := w.wait("AllgatherBytes", w.link.exchange(internal, tagBytes, peers, same, peers, parts)); err != nil {
		return nil, err
	}
	return parts, nil
}

// Gather puts every rank's send, in rank order, into root's recv, which is
// Size times as long. All give the same length; recv matters at root only.
func (w *World) Gather(send, recv []byte, root int) error {
	if err := w.ready("Gather"); err != nil {
		return err
	}
	if err := w.checkRank("Gather", "root", root); err != nil {
		return err
	}
	if w.rank != root {
		return w.wait("Gather", w.link.exchange(internal, tagGather, []int{root}, [][]byte{send}, nil, nil))
	}
	if len(recv) != w.size*len(send) {
		return &ArgumentError{"Gather", fmt.Sprintf("recv has %d bytes, want %d ranks times %d", len(recv), w.size, len(send))}
	}
	copy(w.part(recv, root), send)
	if w.size == 1 {
		return nil
	}
	peers, parts, _ := w.everyone(recv, nil)
	return w.wait("Gather", w.link.exchange(internal, tagGather, nil, nil, peers, parts))
}

// Alltoallv sends the next sendCounts[r] bytes of send to each rank r, in
// order, and fills recv with recvCounts[r] bytes from each rank r, in order.
// Counts are bytes, one for each rank, and add up to the buffers' lengths.
func (w *World) Alltoallv(send []byte, sendCounts []int, recv []byte, recvCounts []int) error {
	const op = "Alltoallv"
	if err := w.ready(op); err != nil {
		return err
	}
	out, err := w.cut(op, "send", send, sendCounts)
	if err != nil {
		return err
	}
	in, err := w.cut(op, "recv", recv, recvCounts)
	if err != nil {
		return err
	}
	peers, _, _ := w.everyone(nil, nil)
	return w.exchange(op, tagAlltoallv, peers, out, peers, in)
}

// Exchange sends send[i] to rank sendTo[i] and fills recv[i] from rank
// recvFrom[i], all at once. Between two ranks messages match in the order of
// the lists, and both sides give the same length. Messages to oneself are
// allowed. Buffers of one call must not overlap.
func (w *World) Exchange(sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error {
	return w.exchange("Exchange", tagExchange, sendTo, send, recvFrom, recv)
}

func (w *World) exchange(op string, tag int, sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error {
	if err := w.ready(op); err != nil {
		return err
	}
	if err := w.checkPeers(op, "send", sendTo, send); err != nil {
		return err
	}
	if err := w.checkPeers(op, "recv", recvFrom, recv); err != nil {
		return err
	}
	if err := w.copySelf(op, sendTo, send, recvFrom, recv); err != nil {
		return err
	}
	if w.size == 1 {
		return nil
	}
	return w.wait(op, w.link.exchange(internal, tag, sendTo, send, recvFrom, recv))
}

// AllreduceSum replaces every rank's buf by the sum over ranks, in whatever
// order the library likes. dtype is "float16", "bfloat16", "float32" or
// "float64"; the two 16-bit types are widened to float32, added, and rounded
// to nearest even at each step. It is the library's blocking MPI_Allreduce at
// its full speed, so a lost rank shows only through Options.Stuck.
func (w *World) AllreduceSum(buf []byte, dtype string) error {
	const op = "AllreduceSum"
	if err := w.ready(op); err != nil {
		return err
	}
	t, err := checkElems(op, buf, dtype)
	if err != nil {
		return err
	}
	if w.size == 1 || len(buf) == 0 {
		return nil
	}
	if w.opts.Deadline > 0 && w.opts.Stuck != nil {
		if w.watch == nil {
			w.watch = time.AfterFunc(w.opts.Deadline, func() { w.opts.Stuck("MPI_Allreduce") })
		} else {
			w.watch.Reset(w.opts.Deadline)
		}
		defer w.watch.Stop()
	}
	if err := w.link.allreduce(buf, t); err != nil {
		return w.fail(err)
	}
	return nil
}
