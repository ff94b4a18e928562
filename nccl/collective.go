package nccl

import (
	"fmt"
	"time"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// Op is how elements are combined; the values are NCCL's.
type Op int

const (
	Sum Op = iota
	Prod
	Max
	Min
	Avg // NCCL scales floating-point addends in their own type, before it adds them
)

func (o Op) String() string {
	if o < Sum || o > Avg {
		return fmt.Sprintf("Op(%d)", int(o))
	}
	return [...]string{"sum", "prod", "max", "min", "avg"}[o]
}

// ncclDataType_t of each type.
var dtypes = map[cuda.DType]int{
	cuda.Int8: 0, cuda.Uint8: 1, cuda.Int32: 2, cuda.Uint32: 3, cuda.Int64: 4, cuda.Uint64: 5, cuda.Float16: 6,
	cuda.Float32: 7, cuda.Float64: 8, cuda.BFloat16: 9, cuda.Float8E4M3: 10, cuda.Float8E5M2: 11,
}

// An operation is a call's arguments, checked and in NCCL's terms.
type operation struct {
	send, recv uint64
	count      int // elements, as the call counts them
	dtype      int
	op, peer   int
	stream     uintptr
}

// AllReduce combines send of every rank, element by element, into recv of every rank. The two have one type and
// length, and may be the same buffer; NCCL chooses the order of the additions.
func (c *Comm) AllReduce(send, recv cuda.Buffer, op Op, s *cuda.Stream) error {
	const call = "ncclAllReduce"
	o, err := c.check(call, send, recv, s)
	if err != nil {
		return err
	}
	if err := c.checkPair(call, o, send, recv, send.Len(), recv.Len(), 0, op); err != nil {
		return err
	}
	o.count, o.op = send.Len(), int(op)
	return c.enqueue(call, func(h uintptr) int { return c.lib.api.allReduce(o, h) })
}

// Broadcast copies send of root into recv of every rank. Type and length are one on every rank; send is looked at on
// root only, and may be recv.
func (c *Comm) Broadcast(send, recv cuda.Buffer, root int, s *cuda.Stream) error {
	const call = "ncclBroadcast"
	o, err := c.check(call, send, recv, s)
	if err != nil {
		return err
	}
	if err := c.checkPair(call, o, send, recv, send.Len(), recv.Len(), 0, Sum); err != nil {
		return err
	}
	if root < 0 || root >= c.world {
		return fmt.Errorf("nccl: %s from root %d in a world of %d: %w", call, root, c.world, ErrArgument)
	}
	o.count, o.peer = send.Len(), root
	return c.enqueue(call, func(h uintptr) int { return c.lib.api.broadcast(o, h) })
}

// AllGather puts send of every rank one behind the other, by rank, into recv of every rank, which is World times as
// long. In place, send is recv's own part.
func (c *Comm) AllGather(send, recv cuda.Buffer, s *cuda.Stream) error {
	const call = "ncclAllGather"
	o, err := c.check(call, send, recv, s)
	if err != nil {
		return err
	}
	if err := c.checkPair(call, o, send, recv, send.Len()*c.world, recv.Len(), c.rank*send.Len(), Sum); err != nil {
		return err
	}
	o.count = send.Len()
	return c.enqueue(call, func(h uintptr) int { return c.lib.api.allGather(o, h) })
}

// ReduceScatter combines send of every rank, and puts the part of this rank, one of World equal ones, into recv. In
// place, recv is send's own part.
func (c *Comm) ReduceScatter(send, recv cuda.Buffer, op Op, s *cuda.Stream) error {
	const call = "ncclReduceScatter"
	o, err := c.check(call, send, recv, s)
	if err != nil {
		return err
	}
	if err := c.checkPair(call, o, send, recv, send.Len(), recv.Len()*c.world, c.rank*recv.Len(), op); err != nil {
		return err
	}
	o.count, o.op = recv.Len(), int(op)
	return c.enqueue(call, func(h uintptr) int { return c.lib.api.reduceScatter(o, h) })
}

// Send sends a buffer to peer, which receives it with [Comm.Recv] of the same type and length. Sends and receives that
// depend on each other belong in one [Comm.Group].
func (c *Comm) Send(b cuda.Buffer, peer int, s *cuda.Stream) error {
	const call = "ncclSend"
	o, err := c.checkPeer(call, b, peer, s)
	if err != nil {
		return err
	}
	return c.enqueue(call, func(h uintptr) int { return c.lib.api.send(o, h) })
}

// Recv fills a buffer with what peer sends.
func (c *Comm) Recv(b cuda.Buffer, peer int, s *cuda.Stream) error {
	const call = "ncclRecv"
	o, err := c.checkPeer(call, b, peer, s)
	if err != nil {
		return err
	}
	return c.enqueue(call, func(h uintptr) int { return c.lib.api.recv(o, h) })
}

// enqueue hands one operation to NCCL and, outside a group, sees it reach the stream: only then may an event be
// recorded behind it.
func (c *Comm) enqueue(call string, f func(handle uintptr) int) error {
	if c.since.IsZero() {
		c.since = time.Now()
	}
	if err := c.locked(call, f); err != nil {
		return c.down(call, err)
	}
	if c.grouping {
		return nil
	}
	return c.settle(call)
}
