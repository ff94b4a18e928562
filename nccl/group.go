package nccl

import (
	"fmt"
	"time"
)

// Group makes the operations that body enqueues start together, at the group's end: the only way to exchange between
// ranks without a deadlock. The group is closed also when body fails or panics; what body had enqueued before it
// failed is started then, since NCCL has no way to forget it, and the peers may not match it. A group may not hold
// another.
func (c *Comm) Group(body func() error) (err error) {
	const call = "ncclGroupEnd"
	if err := c.usable(call); err != nil {
		return err
	}
	if c.grouping {
		return fmt.Errorf("nccl: group inside a group: %w", ErrArgument)
	}
	if c.since.IsZero() {
		c.since = time.Now()
	}
	// The lock is held throughout: an abort between two calls would leave the group holding a freed communicator.
	c.mu.Lock()
	if code := c.lib.api.groupStart(); code != success {
		err := c.lib.fail("ncclGroupStart", code, c.handle)
		c.mu.Unlock()
		return c.down("ncclGroupStart", err)
	}
	c.grouping = true
	var ended error
	end := func() {
		ended = c.lib.fail(call, c.lib.api.groupEnd(), c.handle)
		c.grouping = false
		c.mu.Unlock()
	}
	returned := false
	defer func() {
		if !returned { // body panicked
			end()
		}
	}()
	bodyErr := body()
	returned = true
	end()
	if c.aborting != nil {
		if err := c.await("ncclCommAbort", c.aborting); err != nil {
			return fmt.Errorf("%w; and its abort: %w", *c.cause.Load(), err)
		}
		if bodyErr == nil {
			bodyErr = &abortedError{call, *c.cause.Load()}
		}
		return bodyErr
	}
	if ended == nil {
		ended = c.settle(call)
	} else {
		ended = c.down(call, ended)
	}
	if bodyErr != nil {
		return bodyErr
	}
	return ended
}
