package kernels

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

//go:embed *.ptx
var ptx embed.FS

// A Module is the kernels on one context. Like the context it belongs to one thread.
type Module struct {
	ctx    *cuda.Context
	native string
	files  map[string]*cuda.Module
	found  map[string]*cuda.Function
}

// New returns the kernels for a context. Each file is compiled by the driver, or found in the driver's cache, when a
// kernel of it is first prepared. Where native is not empty it is a folder of NAME.fatbin, as build.sh makes them, to
// use instead of the embedded PTX.
func New(ctx *cuda.Context, native string) *Module {
	return &Module{ctx, native, map[string]*cuda.Module{}, map[string]*cuda.Function{}}
}

// Close unloads everything. Launches prepared from it end with it.
func (m *Module) Close() error {
	var first error
	for name, f := range m.files {
		first = firstError(first, f.Close())
		delete(m.files, name)
	}
	clear(m.found)
	return first
}

func (m *Module) function(kernel string) (*cuda.Function, error) {
	if f := m.found[kernel]; f != nil {
		return f, nil
	}
	name, _, _ := strings.Cut(kernel, "_")
	file := m.files[name]
	if file == nil {
		code, err := m.code(name)
		if err != nil {
			return nil, fmt.Errorf("kernels: %w", err)
		}
		if file, err = m.ctx.LoadPTX(code); err != nil {
			return nil, fmt.Errorf("kernels: load %s: %w", name, err)
		}
		m.files[name] = file
	}
	f, err := file.Function(kernel)
	if err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	m.found[kernel] = f
	return f, nil
}

func (m *Module) code(name string) ([]byte, error) {
	if m.native != "" {
		return os.ReadFile(filepath.Join(m.native, name+".fatbin"))
	}
	return ptx.ReadFile(name + ".ptx")
}

// A Launch is kernels with their arguments, ready to be queued. It holds memory outside Go's: Free it.
type Launch struct{ steps []step }

type step struct {
	f             *cuda.Function
	grid, threads int
	args          *cuda.Args
}

func (m *Module) prepare(calls []call, err error) (*Launch, error) {
	if err != nil {
		return nil, err
	}
	l := &Launch{}
	for _, c := range calls {
		f, err := m.function(c.kernel)
		if err != nil {
			l.Free()
			return nil, err
		}
		args := cuda.NewArgs(len(c.args))
		copy(args.Bytes(0), c.args)
		l.steps = append(l.steps, step{f, c.grid, c.threads, args})
	}
	return l, nil
}

// Queue puts the launch on a stream, behind what is there. The buffers must live until it has run.
func (l *Launch) Queue(s *cuda.Stream) error {
	for _, k := range l.steps {
		if err := s.Launch(k.f, k.grid, k.threads, 0, k.args); err != nil {
			return err
		}
	}
	return nil
}

// Free gives the arguments' memory back. What is queued runs all the same.
func (l *Launch) Free() {
	for _, k := range l.steps {
		k.args.Free()
	}
	l.steps = nil
}
