package nccl

import (
	"fmt"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// check looks at what every operation on two buffers needs and fills in addresses, type and stream.
func (c *Comm) check(call string, send, recv cuda.Buffer, s *cuda.Stream) (operation, error) {
	if err := c.usable(call); err != nil {
		return operation{}, err
	}
	stream, err := s.Handle()
	if err != nil {
		return operation{}, fmt.Errorf("nccl: %s: %w", call, err)
	}
	if s.Context() != c.ctx {
		return operation{}, fmt.Errorf("nccl: %s: stream %w", call, cuda.ErrContext)
	}
	o := operation{stream: stream, dtype: dtypes[send.DType()]}
	if o.send, err = c.address(call, send); err != nil {
		return operation{}, err
	}
	if o.recv, err = c.address(call, recv); err != nil {
		return operation{}, err
	}
	return o, nil
}

func (c *Comm) address(call string, b cuda.Buffer) (uint64, error) {
	p, err := b.Ptr()
	if err != nil {
		return 0, fmt.Errorf("nccl: %s: %w", call, err)
	}
	if b.Context() != c.ctx {
		return 0, fmt.Errorf("nccl: %s: buffer on device %d, communicator on device %d: %w",
			call, b.Context().Device().Ordinal, c.ctx.Device().Ordinal, cuda.ErrContext)
	}
	return p, nil
}

// checkPair compares the buffers of one rank; have and want are lengths as the operation relates them, and place says
// how many elements into the longer buffer the shorter one lies when the operation is in place.
func (c *Comm) checkPair(call string, o operation, send, recv cuda.Buffer, have, want, place int, op Op) error {
	if send.DType() != recv.DType() {
		return fmt.Errorf("nccl: %s sends %v and receives %v: %w", call, send.DType(), recv.DType(), ErrArgument)
	}
	if have != want {
		return fmt.Errorf("nccl: %s sends %d and receives %d elements in a world of %d: %w", call, send.Len(), recv.Len(), c.world, ErrArgument)
	}
	if op < Sum || op > Avg {
		return fmt.Errorf("nccl: %s with %v: %w", call, op, ErrArgument)
	}
	apart := o.send+uint64(send.Bytes()) <= o.recv || o.recv+uint64(recv.Bytes()) <= o.send
	into := o.send - o.recv // of send in recv; wraps when recv is the later one, as its negation does
	if send.Len() > recv.Len() {
		into = o.recv - o.send
	}
	if !apart && into != uint64(place*send.DType().Size()) {
		return fmt.Errorf("nccl: %s: send and receive buffer overlap, and not as in place: %w", call, ErrArgument)
	}
	return nil
}

func (c *Comm) checkPeer(call string, b cuda.Buffer, peer int, s *cuda.Stream) (operation, error) {
	o, err := c.check(call, b, b, s)
	if err != nil {
		return operation{}, err
	}
	if peer < 0 || peer >= c.world {
		return operation{}, fmt.Errorf("nccl: %s with peer %d in a world of %d: %w", call, peer, c.world, ErrArgument)
	}
	o.count, o.peer = b.Len(), peer
	return o, nil
}
