package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// HostMem is pinned host memory: the devices copy from and to it asynchronously, and kernels can address it. Its
// bytes, through [HostMem.Bytes] and [HostMem.Word], may be touched from any thread until Free.
type HostMem struct {
	ctx   *Context
	bytes []byte
	freed atomic.Bool
}

// AllocHost allocates n > 0 bytes of pinned memory, zeroed, that every context of the process may use.
func (c *Context) AllocHost(n int) (*HostMem, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, fmt.Errorf("cuda: pin %d bytes: %w", n, ErrRange)
	}
	b, code := c.drv.api.hostAlloc(n)
	if err := c.drv.fail("cuMemHostAlloc", code, "%d bytes", n); err != nil {
		return nil, err
	}
	clear(b)
	return &HostMem{ctx: c, bytes: b}, nil
}

// Free gives the memory back. No copy or kernel may still be using it, and no slice of it may be used afterwards.
func (h *HostMem) Free() error {
	if err := h.check(); err != nil {
		return fmt.Errorf("cuda: free: %w", err)
	}
	if err := h.ctx.Check(); err != nil {
		return err
	}
	h.freed.Store(true)
	return h.ctx.drv.fail("cuMemFreeHost", h.ctx.drv.api.hostFree(h.bytes), "")
}

// Len returns the number of bytes.
func (h *HostMem) Len() int { return len(h.bytes) }

// Bytes returns the memory itself, nil once it is freed.
func (h *HostMem) Bytes() []byte {
	if h.check() != nil {
		return nil
	}
	return h.bytes
}

// Word returns the address of the i-th 32-bit word, for sync/atomic: a kernel that polls the word sees what any thread
// stores there. The index is checked like a slice's.
func (h *HostMem) Word(i int) *uint32 {
	return (*uint32)(unsafe.Pointer(&h.bytes[4*i : 4*i+4][0]))
}

// DevicePtr returns the address under which kernels of the context find the memory.
func (h *HostMem) DevicePtr() (uint64, error) {
	if err := h.check(); err != nil {
		return 0, fmt.Errorf("cuda: %w", err)
	}
	if err := h.ctx.Check(); err != nil {
		return 0, err
	}
	p, code := h.ctx.drv.api.hostPointer(h.bytes)
	return p, h.ctx.drv.fail("cuMemHostGetDevicePointer_v2", code, "")
}

func (h *HostMem) check() error {
	switch {
	case h == nil:
		return fmt.Errorf("pinned memory: %w", ErrNull)
	case h.freed.Load() || h.ctx.closed.Load():
		return fmt.Errorf("pinned memory of %d bytes: %w", len(h.bytes), ErrFreed)
	}
	return nil
}

// part returns the n bytes from off, for a copy.
func (h *HostMem) part(off, n int) ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	if off < 0 || n < 0 || n > len(h.bytes)-off {
		return nil, fmt.Errorf("bytes [%d, %d) of %d of pinned memory: %w", off, off+n, len(h.bytes), ErrRange)
	}
	return h.bytes[off : off+n], nil
}
