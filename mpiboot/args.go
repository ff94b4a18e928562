package mpiboot

import (
	"fmt"
	"unsafe"
)

// elem is an element type of AllreduceSum, in the order that the C side knows.
type elem int

const (
	float16 elem = iota
	bfloat16
	float32Elem
	float64Elem
)

// bytes returns the size of one element.
func (t elem) bytes() int { return [...]int{2, 2, 4, 8}[t] }

// checkElems finds the element type and makes sure that buf holds whole,
// aligned elements of it.
func checkElems(op string, buf []byte, dtype string) (elem, error) {
	t, ok := map[string]elem{"float16": float16, "bfloat16": bfloat16, "float32": float32Elem, "float64": float64Elem}[dtype]
	if !ok {
		return 0, &ArgumentError{op, fmt.Sprintf("unknown dtype %q; want float16, bfloat16, float32 or float64", dtype)}
	}
	if len(buf)%t.bytes() != 0 {
		return 0, &ArgumentError{op, fmt.Sprintf("%d bytes are no whole number of %s", len(buf), dtype)}
	}
	if uintptr(unsafe.Pointer(unsafe.SliceData(buf)))%uintptr(t.bytes()) != 0 {
		return 0, &ArgumentError{op, fmt.Sprintf("buf is not aligned to the %d bytes of %s", t.bytes(), dtype)}
	}
	return t, nil
}

func (w *World) checkRank(op, name string, rank int) error {
	if rank < 0 || rank >= w.size {
		return &ArgumentError{op, fmt.Sprintf("%s %d is no rank of a world of %d", name, rank, w.size)}
	}
	return nil
}

func (w *World) checkDirect(op string, peer, tag int) error {
	if err := w.ready(op); err != nil {
		return err
	}
	if tag < 0 || tag > maxTag {
		return &ArgumentError{op, fmt.Sprintf("tag %d is not in 0..%d", tag, maxTag)}
	}
	return w.checkRank(op, "peer", peer)
}

func (w *World) checkPeers(op, name string, peers []int, bufs [][]byte) error {
	if len(peers) != len(bufs) {
		return &ArgumentError{op, fmt.Sprintf("%s has %d ranks for %d buffers", name, len(peers), len(bufs))}
	}
	for _, peer := range peers {
		if err := w.checkRank(op, name, peer); err != nil {
			return err
		}
	}
	return nil
}

// copySelf delivers the messages of an exchange that go to oneself. It copies
// nothing unless all of them match.
func (w *World) copySelf(op string, sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error {
	for _, deliver := range []bool{false, true} {
		next := 0
		for i, to := range sendTo {
			if to != w.rank {
				continue
			}
			for next < len(recvFrom) && recvFrom[next] != w.rank {
				next++
			}
			if next == len(recvFrom) {
				return &ArgumentError{op, "more messages go to oneself than come from oneself"}
			}
			if len(recv[next]) != len(send[i]) {
				return &SizeError{Op: op, Peer: w.rank, Got: int64(len(send[i])), Want: int64(len(recv[next]))}
			}
			if deliver {
				copy(recv[next], send[i])
			}
			next++
		}
		for ; next < len(recvFrom); next++ {
			if recvFrom[next] == w.rank {
				return &ArgumentError{op, "more messages come from oneself than go to oneself"}
			}
		}
	}
	return nil
}

// cut divides buf among the ranks by counts.
func (w *World) cut(op, name string, buf []byte, counts []int) ([][]byte, error) {
	if len(counts) != w.size {
		return nil, &ArgumentError{op, fmt.Sprintf("%sCounts has %d entries for %d ranks", name, len(counts), w.size)}
	}
	parts, at := make([][]byte, w.size), 0
	for r, n := range counts {
		if n < 0 || n > len(buf)-at {
			return nil, &ArgumentError{op, fmt.Sprintf("%sCounts[%d] is %d with %d bytes of %s left", name, r, n, len(buf)-at, name)}
		}
		parts[r] = buf[at : at+n]
		at += n
	}
	if at != len(buf) {
		return nil, &ArgumentError{op, fmt.Sprintf("%sCounts add up to %d, but %s has %d bytes", name, at, name, len(buf))}
	}
	return parts, nil
}

// part returns rank r's share of a buffer that has one for each rank.
func (w *World) part(buf []byte, r int) []byte {
	n := len(buf) / w.size
	return buf[r*n : (r+1)*n]
}

// everyone lists all ranks, with buf's share for each, and same for each.
func (w *World) everyone(buf, same []byte) (ranks []int, parts, sames [][]byte) {
	for r := range w.size {
		ranks = append(ranks, r)
		parts = append(parts, w.part(buf, r))
		sames = append(sames, same)
	}
	return ranks, parts, sames
}
