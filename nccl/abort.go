package nccl

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Abort ends the communicator at once, whatever is under way on the device, and makes every later call answer
// ErrAborted with this cause. It may be called from any thread, many times: the first decides, and all return when it
// is done, with what went wrong in it. After Close there is nothing left to free. Inside a group, on the thread of the
// group, it takes effect at the group's end.
func (c *Comm) Abort(cause error) error {
	c.once.Do(func() {
		if cause == nil {
			cause = errors.New("asked to")
		}
		c.cause.Store(&cause)
		c.abortErr = c.release("ncclCommAbort", c.lib.api.abort)
	})
	return c.abortErr
}

// down turns an error of NCCL, or a deadline, into the end of the communicator. A nil error is none, and one that only
// says that the end came before is returned as it is.
func (c *Comm) down(call string, err error) error {
	if err == nil || errors.Is(err, ErrAborted) {
		return err
	}
	err = fmt.Errorf("nccl: rank %d of %d: %s: %w", c.rank, c.world, call, err)
	if failed := c.Abort(err); failed != nil {
		return fmt.Errorf("%w; and its abort: %w", err, failed)
	}
	return err
}

// release gives what there is to a call that frees it, exactly once, on a thread of its own: the call may hang, and the
// caller may be the thread that has to end the process. The thread is never given back to other goroutines, as it holds
// the CUDA context.
func (c *Comm) release(call string, free func(handle uintptr) int) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		c.mu.Lock()
		defer c.mu.Unlock()
		handles := []uintptr{c.handle, c.parent} // the child before what it shares with
		c.handle, c.parent = 0, 0
		if handles[0] == 0 {
			done <- nil
			return
		}
		if err := c.ctx.Lend(); err != nil {
			done <- err
			return
		}
		for _, h := range handles {
			if h == 0 {
				continue
			}
			if code := free(h); code != success && code != inProgress {
				done <- &Error{Call: call, Code: code, Text: c.lib.api.text(code), Last: c.lib.api.last(0)}
				return
			}
		}
		done <- nil
	}()
	if c.ctx.Check() == nil && c.grouping {
		c.aborting = done // the lock is this thread's own, until the group ends
		return nil
	}
	return c.await(call, done)
}

// await waits for a call on another thread for as long as the grace period.
func (c *Comm) await(call string, done <-chan error) error {
	grace := time.NewTimer(c.config.Grace)
	defer grace.Stop()
	select {
	case err := <-done:
		return err
	case <-grace.C:
		return fmt.Errorf("nccl: rank %d of %d: %s did not return within %v", c.rank, c.world, call, c.config.Grace)
	}
}
