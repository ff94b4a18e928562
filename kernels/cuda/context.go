package cuda

import (
	"fmt"
	"runtime"
	"sync/atomic"
)

// A Context is a device's primary context, held by one OS thread: the one that NCCL and every other library of the
// process uses for the device too.
type Context struct {
	drv    *Driver
	device *Device
	handle uintptr
	thread int
	closed atomic.Bool
	peers  map[*Context]bool // contexts whose memory this one may address
}

// Attach retains the device's primary context, makes it current on the calling goroutine's OS thread and locks the
// goroutine to it. All work with the context happens on this goroutine from here on. [Context.Close] undoes it.
func (d *Device) Attach() (*Context, error) {
	h, code := d.drv.api.retainPrimary(d.id)
	if err := d.drv.fail("cuDevicePrimaryCtxRetain", code, "device %d", d.Ordinal); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	if err := d.drv.fail("cuCtxSetCurrent", d.drv.api.setCurrent(h), "device %d", d.Ordinal); err != nil {
		d.drv.api.releasePrimary(d.id)
		runtime.UnlockOSThread()
		return nil, err
	}
	return &Context{drv: d.drv, device: d, handle: h, thread: threadID(), peers: map[*Context]bool{}}, nil
}

// Device returns the device the context belongs to.
func (c *Context) Device() *Device { return c.device }

// Check says whether the context can be used here and now: not nil, not closed, on its own thread.
func (c *Context) Check() error {
	switch {
	case c == nil:
		return fmt.Errorf("cuda: context: %w", ErrNull)
	case c.closed.Load():
		return fmt.Errorf("cuda: context of device %d: %w", c.device.Ordinal, ErrFreed)
	case c.thread != threadID():
		return fmt.Errorf("cuda: context of device %d: %w (it is thread %d, this is %d): lock the goroutine and use the context only there",
			c.device.Ordinal, ErrThread, c.thread, threadID())
	}
	return nil
}

// Close releases the context and unlocks the goroutine. Streams, buffers and the rest that were made in it, and were
// not freed before, answer ErrFreed from then on. The driver frees what they held when no one retains the context.
func (c *Context) Close() error {
	if err := c.Check(); err != nil {
		return err
	}
	c.closed.Store(true)
	c.drv.api.setCurrent(0)
	code := c.drv.api.releasePrimary(c.device.id)
	runtime.UnlockOSThread()
	return c.drv.fail("cuDevicePrimaryCtxRelease_v2", code, "device %d", c.device.Ordinal)
}

// Lend makes the context current on the calling OS thread, which the caller has locked, without giving it the right
// to use this package's methods. It is for a library whose teardown must run beside a stuck thread and looks at the
// current context. A closed context cannot be lent.
func (c *Context) Lend() error {
	if c == nil || c.closed.Load() {
		return fmt.Errorf("cuda: lend a context: %w", ErrFreed)
	}
	return c.drv.fail("cuCtxSetCurrent", c.drv.api.setCurrent(c.handle), "device %d", c.device.Ordinal)
}

// MemoryInfo returns the bytes free and in all on the device.
func (c *Context) MemoryInfo() (free, total int64, err error) {
	if err := c.Check(); err != nil {
		return 0, 0, err
	}
	free, total, code := c.drv.api.memInfo()
	return free, total, c.drv.fail("cuMemGetInfo_v2", code, "")
}

// EnablePeer lets this context address the memory of peer, a context of another device in the same process. Memory of
// other processes comes through [Context.OpenIPC], which enables what it needs.
func (c *Context) EnablePeer(peer *Context) error {
	if err := c.Check(); err != nil {
		return err
	}
	code := c.drv.api.enablePeer(peer.handle)
	if code == codePeerAccessEnabled {
		code = 0
	}
	if err := c.drv.fail("cuCtxEnablePeerAccess", code, "device %d to device %d", c.device.Ordinal, peer.device.Ordinal); err != nil {
		return err
	}
	c.peers[peer] = true
	return nil
}

// reaches says whether work of this context may touch memory of that one.
func (c *Context) reaches(owner *Context) bool { return c == owner || c.peers[owner] }
