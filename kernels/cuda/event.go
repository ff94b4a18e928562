package cuda

import (
	"fmt"
	"time"
)

// An Event marks a point in a stream's work.
type Event struct {
	ctx    *Context
	handle uintptr
	timing bool
	closed bool
}

// NewEvent makes an event. Only events with timing have a time to take a difference of; those without are cheaper.
func (c *Context) NewEvent(timing bool) (*Event, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	h, code := c.drv.api.eventCreate(timing)
	if err := c.drv.fail("cuEventCreate", code, ""); err != nil {
		return nil, err
	}
	return &Event{ctx: c, handle: h, timing: timing}, nil
}

func (e *Event) check() error {
	if e == nil {
		return fmt.Errorf("cuda: event: %w", ErrNull)
	}
	if e.closed {
		return fmt.Errorf("cuda: event: %w", ErrFreed)
	}
	return e.ctx.Check()
}

// Close destroys the event.
func (e *Event) Close() error {
	if err := e.check(); err != nil {
		return err
	}
	e.closed = true
	return e.ctx.drv.fail("cuEventDestroy_v2", e.ctx.drv.api.eventDestroy(e.handle), "")
}

// Record puts the event behind all work that is queued on the stream now.
func (e *Event) Record(s *Stream) error {
	if err := e.check(); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	if e.ctx != s.ctx {
		return fmt.Errorf("cuda: event of device %d on a stream of device %d: %w", e.ctx.device.Ordinal, s.ctx.device.Ordinal, ErrContext)
	}
	return e.ctx.drv.fail("cuEventRecord", e.ctx.drv.api.eventRecord(e.handle, s.handle), "")
}

// Done says whether the work before the last record is finished; an event never recorded is done.
func (e *Event) Done() (bool, error) {
	if err := e.check(); err != nil {
		return false, err
	}
	code := e.ctx.drv.api.eventQuery(e.handle)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, e.ctx.drv.fail("cuEventQuery", code, "")
}

// Synchronize blocks until the work before the last record is finished, without bound. Prefer [Wait].
func (e *Event) Synchronize() error {
	if err := e.check(); err != nil {
		return err
	}
	return e.ctx.drv.fail("cuEventSynchronize", e.ctx.drv.api.eventSync(e.handle), "")
}

// Since returns the time on the device between two finished events with timing, start before e, to about half a
// microsecond.
func (e *Event) Since(start *Event) (time.Duration, error) {
	if err := e.check(); err != nil {
		return 0, err
	}
	if err := start.check(); err != nil {
		return 0, err
	}
	if !e.timing || !start.timing {
		return 0, fmt.Errorf("cuda: time between events: one was made without timing: %w", ErrType)
	}
	ms, code := e.ctx.drv.api.eventElapsed(start.handle, e.handle)
	return time.Duration(float64(ms) * float64(time.Millisecond)), e.ctx.drv.fail("cuEventElapsedTime", code, "")
}

// Wait returns when the event is done, with poll's error as soon as poll returns one, or with [ErrDeadline] when the
// deadline passes first. The zero deadline never passes; a nil poll is not called. It is called at each look at the
// event: all the time for the first hundred microseconds, then at growing pauses of up to a tenth of a millisecond.
func Wait(e *Event, deadline time.Time, poll func() error) error {
	return WaitFor(e.Done, deadline, poll)
}

// WaitFor is [Wait] for any condition.
func WaitFor(done func() (bool, error), deadline time.Time, poll func() error) error {
	start := time.Now()
	pause := 10 * time.Microsecond
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if poll != nil {
			if err := poll(); err != nil {
				return err
			}
		}
		now := time.Now()
		if !deadline.IsZero() && now.After(deadline) {
			return fmt.Errorf("%w: not done after %v", ErrDeadline, now.Sub(start).Round(time.Millisecond))
		}
		if now.Sub(start) < 100*time.Microsecond {
			yield() // ranks may share a core
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Microsecond)
	}
}
