package cuda

import "fmt"

// An IPCHandle names an allocation of one process to the others of its host. It is bytes, to be sent as they are.
type IPCHandle [64]byte

// IPC returns the handle of a whole buffer: the driver shares allocations, not parts of them.
func (b Buffer) IPC() (IPCHandle, error) {
	if err := b.check(); err != nil {
		return IPCHandle{}, fmt.Errorf("cuda: share: %w", err)
	}
	ctx := b.mem.ctx
	if err := ctx.Check(); err != nil {
		return IPCHandle{}, err
	}
	if b.off != 0 || b.Bytes() != b.mem.bytes {
		return IPCHandle{}, fmt.Errorf("cuda: share a part [%d, %d) of %d bytes: %w: share the whole buffer and slice it over there", b.off, b.off+b.Bytes(), b.mem.bytes, ErrRange)
	}
	if b.mem.ipc {
		return IPCHandle{}, fmt.Errorf("cuda: share memory that belongs to another process: %w", ErrContext)
	}
	h, code := ctx.drv.api.ipcGet(b.mem.ptr)
	return h, ctx.drv.fail("cuIpcGetMemHandle", code, "")
}

// OpenIPC maps another process's buffer, of which the caller knows type and length, and enables access to its device.
// The memory stays the owner's: it must outlive this mapping, which Free closes. A process cannot open its own handle.
func (c *Context) OpenIPC(h IPCHandle, t DType, n int) (Buffer, error) {
	if err := c.Check(); err != nil {
		return Buffer{}, err
	}
	if !t.Valid() || n < 0 {
		return Buffer{}, fmt.Errorf("cuda: open %d of %v: %w", n, t, ErrRange)
	}
	p, code := c.drv.api.ipcOpen(h)
	if err := c.drv.fail("cuIpcOpenMemHandle_v2", code, "%d of %v on device %d", n, t, c.device.Ordinal); err != nil {
		return Buffer{}, err
	}
	return Buffer{mem: &memory{ctx: c, ptr: p, bytes: n * t.Size(), ipc: true}, dtype: t, n: n}, nil
}
