package cuda

import "fmt"

// A Buffer is elements of one type in device memory, the whole of an allocation or a part. It is a small value, to be
// copied freely; all copies and slices of one allocation end with it. The zero Buffer was never allocated, and every
// use of it answers [ErrNull].
type Buffer struct {
	mem   *memory
	off   int // bytes from the start of mem
	dtype DType
	n     int // elements
}

// memory is one allocation, or one opened IPC handle.
type memory struct {
	ctx   *Context
	ptr   uint64
	bytes int
	ipc   bool
	freed bool
}

// Alloc allocates n elements, uninitialised. n may be 0: such a buffer has a length and a type and no address to use.
func (c *Context) Alloc(t DType, n int) (Buffer, error) {
	if err := c.Check(); err != nil {
		return Buffer{}, err
	}
	if !t.Valid() || n < 0 {
		return Buffer{}, fmt.Errorf("cuda: alloc %d of %v: %w", n, t, ErrRange)
	}
	// The driver refuses 0 bytes, and an address is wanted for every buffer.
	p, code := c.drv.api.memAlloc(max(n*t.Size(), 1))
	if err := c.drv.fail("cuMemAlloc_v2", code, "%d bytes (%d of %v) on device %d", n*t.Size(), n, t, c.device.Ordinal); err != nil {
		return Buffer{}, err
	}
	return Buffer{mem: &memory{ctx: c, ptr: p, bytes: n * t.Size()}, dtype: t, n: n}, nil
}

// Free gives the memory back, and with it every slice of the buffer. Only the whole buffer can be freed, once. Memory
// that was opened from another process is closed instead.
func (b Buffer) Free() error {
	if err := b.check(); err != nil {
		return fmt.Errorf("cuda: free: %w", err)
	}
	ctx := b.mem.ctx
	if err := ctx.Check(); err != nil {
		return err
	}
	if b.off != 0 || b.Bytes() != b.mem.bytes {
		return fmt.Errorf("cuda: free of a part [%d, %d) of %d bytes: %w: free the whole buffer", b.off, b.off+b.Bytes(), b.mem.bytes, ErrRange)
	}
	b.mem.freed = true
	if b.mem.ipc {
		return ctx.drv.fail("cuIpcCloseMemHandle", ctx.drv.api.ipcClose(b.mem.ptr), "")
	}
	return ctx.drv.fail("cuMemFree_v2", ctx.drv.api.memFree(b.mem.ptr), "")
}

// Len returns the number of elements, and Bytes what they take.
func (b Buffer) Len() int   { return b.n }
func (b Buffer) Bytes() int { return b.n * b.dtype.Size() }

// DType returns the type of the elements.
func (b Buffer) DType() DType { return b.dtype }

// Context returns the context that holds the memory, nil for the zero Buffer.
func (b Buffer) Context() *Context {
	if b.mem == nil {
		return nil
	}
	return b.mem.ctx
}

// Slice returns the elements [lo, hi).
func (b Buffer) Slice(lo, hi int) (Buffer, error) {
	if err := b.check(); err != nil {
		return Buffer{}, fmt.Errorf("cuda: slice: %w", err)
	}
	if lo < 0 || hi < lo || hi > b.n {
		return Buffer{}, fmt.Errorf("cuda: slice [%d, %d) of %d elements: %w", lo, hi, b.n, ErrRange)
	}
	return Buffer{mem: b.mem, off: b.off + lo*b.dtype.Size(), dtype: b.dtype, n: hi - lo}, nil
}

// View returns the same bytes as elements of another type, whose size must divide them.
func (b Buffer) View(t DType) (Buffer, error) {
	if err := b.check(); err != nil {
		return Buffer{}, fmt.Errorf("cuda: view: %w", err)
	}
	if !t.Valid() || b.Bytes()%t.Size() != 0 {
		return Buffer{}, fmt.Errorf("cuda: view of %d bytes as %v: %w", b.Bytes(), t, ErrType)
	}
	return Buffer{mem: b.mem, off: b.off, dtype: t, n: b.Bytes() / t.Size()}, nil
}

// Ptr returns the device address of the first element.
func (b Buffer) Ptr() (uint64, error) {
	if err := b.check(); err != nil {
		return 0, err
	}
	return b.mem.ptr + uint64(b.off), nil
}

func (b Buffer) check() error {
	switch {
	case b.mem == nil:
		return fmt.Errorf("buffer: %w", ErrNull)
	case b.mem.freed || b.mem.ctx.closed.Load():
		return fmt.Errorf("buffer of %d %v: %w", b.n, b.dtype, ErrFreed)
	}
	return nil
}

// ptrFor returns the address for work of the context c.
func (b Buffer) ptrFor(c *Context) (uint64, error) {
	p, err := b.Ptr()
	if err != nil {
		return 0, err
	}
	if !c.reaches(b.mem.ctx) {
		return 0, fmt.Errorf("buffer of %d %v on device %d, used on device %d: %w", b.n, b.dtype, b.mem.ctx.device.Ordinal, c.device.Ordinal, ErrContext)
	}
	return p, nil
}
