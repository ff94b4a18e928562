package cuda

import "fmt"

// A Stream is a queue of work on a device; work of one stream runs in order. Streams here never wait for the device's
// default stream.
type Stream struct {
	ctx    *Context
	handle uintptr
	closed bool
}

// NewStream makes a stream.
func (c *Context) NewStream() (*Stream, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	h, code := c.drv.api.streamCreate()
	if err := c.drv.fail("cuStreamCreate", code, ""); err != nil {
		return nil, err
	}
	return &Stream{ctx: c, handle: h}, nil
}

// Context returns the context the stream belongs to.
func (s *Stream) Context() *Context { return s.ctx }

// Handle returns the driver's CUstream, for other libraries.
func (s *Stream) Handle() (uintptr, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	return s.handle, nil
}

func (s *Stream) check() error {
	if s == nil {
		return fmt.Errorf("cuda: stream: %w", ErrNull)
	}
	if s.closed {
		return fmt.Errorf("cuda: stream: %w", ErrFreed)
	}
	return s.ctx.Check()
}

// Close destroys the stream. Work still queued is finished first, in the background.
func (s *Stream) Close() error {
	if err := s.check(); err != nil {
		return err
	}
	s.closed = true
	return s.ctx.drv.fail("cuStreamDestroy_v2", s.ctx.drv.api.streamDestroy(s.handle), "")
}

// Done says whether all work queued so far is finished. An error is that of some earlier work.
func (s *Stream) Done() (bool, error) {
	if err := s.check(); err != nil {
		return false, err
	}
	code := s.ctx.drv.api.streamQuery(s.handle)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, s.ctx.drv.fail("cuStreamQuery", code, "")
}

// Synchronize blocks until all queued work is finished, however long that takes: forever, when a kernel waits for a
// rank that is gone. Prefer an event and [Wait].
func (s *Stream) Synchronize() error {
	if err := s.check(); err != nil {
		return err
	}
	return s.ctx.drv.fail("cuStreamSynchronize", s.ctx.drv.api.streamSync(s.handle), "")
}

// WaitEvent makes later work of the stream wait for the event's last record, on whatever stream that was.
func (s *Stream) WaitEvent(e *Event) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := e.check(); err != nil {
		return err
	}
	return s.ctx.drv.fail("cuStreamWaitEvent", s.ctx.drv.api.streamWait(s.handle, e.handle), "")
}

// CopyIn queues a copy of to.Bytes() bytes of pinned memory, from byte off on, to the device. The host bytes must stay
// as they are until the copy is done.
func (s *Stream) CopyIn(to Buffer, from *HostMem, off int) error {
	if err := s.check(); err != nil {
		return err
	}
	p, err := to.ptrFor(s.ctx)
	if err != nil {
		return fmt.Errorf("cuda: copy in: %w", err)
	}
	b, err := from.part(off, to.Bytes())
	if err != nil {
		return fmt.Errorf("cuda: copy in: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	return s.ctx.drv.fail("cuMemcpyHtoDAsync_v2", s.ctx.drv.api.copyIn(p, b, s.handle), "%d bytes", len(b))
}

// CopyOut queues a copy of from.Bytes() bytes from the device to pinned memory, from byte off on.
func (s *Stream) CopyOut(to *HostMem, off int, from Buffer) error {
	if err := s.check(); err != nil {
		return err
	}
	p, err := from.ptrFor(s.ctx)
	if err != nil {
		return fmt.Errorf("cuda: copy out: %w", err)
	}
	b, err := to.part(off, from.Bytes())
	if err != nil {
		return fmt.Errorf("cuda: copy out: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	return s.ctx.drv.fail("cuMemcpyDtoHAsync_v2", s.ctx.drv.api.copyOut(b, p, s.handle), "%d bytes", len(b))
}

// Copy queues a copy between buffers of one type and length, which must not overlap. One of them may be a peer's.
func (s *Stream) Copy(to, from Buffer) error {
	if err := s.check(); err != nil {
		return err
	}
	if to.dtype != from.dtype {
		return fmt.Errorf("cuda: copy %v to %v: %w", from.dtype, to.dtype, ErrType)
	}
	if to.n != from.n {
		return fmt.Errorf("cuda: copy %d elements to %d: %w", from.n, to.n, ErrRange)
	}
	p, err := to.ptrFor(s.ctx)
	if err != nil {
		return fmt.Errorf("cuda: copy: %w", err)
	}
	q, err := from.ptrFor(s.ctx)
	if err != nil {
		return fmt.Errorf("cuda: copy: %w", err)
	}
	if to.n == 0 {
		return nil
	}
	return s.ctx.drv.fail("cuMemcpyAsync", s.ctx.drv.api.copyDevice(p, q, to.Bytes(), s.handle), "%d bytes", to.Bytes())
}

// Fill queues setting every byte of the buffer to value.
func (s *Stream) Fill(b Buffer, value byte) error {
	if err := s.check(); err != nil {
		return err
	}
	p, err := b.ptrFor(s.ctx)
	if err != nil {
		return fmt.Errorf("cuda: fill: %w", err)
	}
	if b.n == 0 {
		return nil
	}
	return s.ctx.drv.fail("cuMemsetD8Async", s.ctx.drv.api.memset(p, value, b.Bytes(), s.handle), "%d bytes", b.Bytes())
}
