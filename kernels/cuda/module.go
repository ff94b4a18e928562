package cuda

import (
	"fmt"
	"strings"
)

// A Module is compiled kernels, loaded into a context.
type Module struct {
	ctx    *Context
	handle uintptr
	closed bool
}

// A Function is one kernel of a module.
type Function struct {
	module *Module
	handle uintptr
	name   string
}

// LoadPTX has the driver compile PTX text for the context's device. The error holds the compiler's log.
func (c *Context) LoadPTX(ptx []byte) (*Module, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	h, log, code := c.drv.api.moduleLoad(ptx)
	if err := c.drv.fail("cuModuleLoadDataEx", code, "%s", strings.Join(strings.Fields(log), " ")); err != nil {
		return nil, err
	}
	return &Module{ctx: c, handle: h}, nil
}

// Close unloads the module; its functions end with it.
func (m *Module) Close() error {
	if err := m.check(); err != nil {
		return err
	}
	m.closed = true
	return m.ctx.drv.fail("cuModuleUnload", m.ctx.drv.api.moduleUnload(m.handle), "")
}

func (m *Module) check() error {
	if m == nil {
		return fmt.Errorf("cuda: module: %w", ErrNull)
	}
	if m.closed {
		return fmt.Errorf("cuda: module: %w", ErrFreed)
	}
	return m.ctx.Check()
}

// Function finds a kernel by its name in the PTX.
func (m *Module) Function(name string) (*Function, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	h, code := m.ctx.drv.api.moduleFunction(m.handle, name)
	if err := m.ctx.drv.fail("cuModuleGetFunction", code, "kernel %s", name); err != nil {
		return nil, err
	}
	return &Function{module: m, handle: h, name: name}, nil
}

// Name returns the kernel's name.
func (f *Function) Name() string { return f.name }

// Launch queues a kernel: grid blocks of block threads, with shared bytes of dynamic shared memory. The arguments are
// copied before it returns and may be changed for the next launch. It allocates nothing.
func (s *Stream) Launch(f *Function, grid, block, shared int, args *Args) error {
	if err := s.check(); err != nil {
		return err
	}
	if f == nil {
		return fmt.Errorf("cuda: launch: kernel: %w", ErrNull)
	}
	if err := f.module.check(); err != nil {
		return err
	}
	if f.module.ctx != s.ctx {
		return fmt.Errorf("cuda: launch of %s: its module %w", f.name, ErrContext)
	}
	if grid < 1 || block < 1 || block > s.ctx.device.MaxThreads || shared < 0 {
		return fmt.Errorf("cuda: launch of %s with %d blocks of %d threads and %d shared bytes: %w", f.name, grid, block, shared, ErrRange)
	}
	params, err := args.params()
	if err != nil {
		return fmt.Errorf("cuda: launch of %s: %w", f.name, err)
	}
	code := s.ctx.drv.api.launch(f.handle, grid, block, shared, s.handle, params)
	if code == 0 {
		return nil
	}
	return s.ctx.drv.fail("cuLaunchKernel", code, "%s with %d blocks of %d threads", f.name, grid, block)
}
