package mpiboot

import (
	"bytes"
	"fmt"
	"time"
)

// maxTag is the largest tag that every MPI library takes.
const maxTag = 32767

// Send sends buf to rank peer under a tag of 0 to 32767 and returns when buf
// may be used again. Whether that is before the peer receives is up to MPI. A
// message to oneself is kept until it is received.
func (w *World) Send(buf []byte, peer, tag int) error {
	if err := w.checkDirect("Send", peer, tag); err != nil {
		return err
	}
	if peer == w.rank {
		w.inbox[tag] = append(w.inbox[tag], bytes.Clone(buf))
		return nil
	}
	return w.wait("Send", w.link.exchange(direct, tag, []int{peer}, [][]byte{buf}, nil, nil))
}

// Recv fills buf with the next message from rank peer under tag, which must
// have buf's length.
func (w *World) Recv(buf []byte, peer, tag int) error {
	if err := w.checkDirect("Recv", peer, tag); err != nil {
		return err
	}
	if peer == w.rank {
		return w.recvSelf("Recv", buf, tag)
	}
	return w.wait("Recv", w.link.exchange(direct, tag, nil, nil, []int{peer}, [][]byte{buf}))
}

// RecvTimeout is Recv, but returns a *DeadlineError that names the peer when
// no message has begun to arrive within d. That leaves the world as it was:
// the message, if it comes, can still be received. Once it has begun to
// arrive, the world's deadline applies.
func (w *World) RecvTimeout(buf []byte, peer, tag int, d time.Duration) error {
	const op = "RecvTimeout"
	if err := w.checkDirect(op, peer, tag); err != nil {
		return err
	}
	if peer == w.rank {
		return w.recvSelf(op, buf, tag)
	}
	start := time.Now()
	for {
		found, err := w.link.probe(peer, tag, max(0, min(pollSlice, d-time.Since(start))))
		if err != nil {
			return w.fail(err)
		}
		if found {
			return w.wait(op, w.link.exchange(direct, tag, nil, nil, []int{peer}, [][]byte{buf}))
		}
		if after := time.Since(start); after >= d {
			return &DeadlineError{Op: op, After: after, Missing: []int{peer}}
		}
		w.answer()
	}
}

// recvSelf takes a message to oneself. When there is none, waiting would not
// bring it: only this goroutine could send it.
func (w *World) recvSelf(op string, buf []byte, tag int) error {
	queue := w.inbox[tag]
	if len(queue) == 0 {
		return &ArgumentError{op, fmt.Sprintf("rank %d has sent itself no message under tag %d", w.rank, tag)}
	}
	if len(queue[0]) != len(buf) {
		return &SizeError{Op: op, Peer: w.rank, Got: int64(len(queue[0])), Want: int64(len(buf))}
	}
	copy(buf, queue[0])
	w.inbox[tag] = queue[1:]
	return nil
}
