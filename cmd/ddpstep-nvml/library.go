package main

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const libraryName = "libnvidia-ml.so.1"

// required are the functions without which there is nothing to say. All of them
// are as old as NVLink.
var required = []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}

// A library is NVML, loaded and initialised. No function of go-nvml may be
// called but through ask: calling one that the library lacks ends the process.
type library struct {
	symbols *dl.DynamicLibrary
	notes   []string
}

func open() (*library, error) {
	// go-nvml opens the library and calls nvmlInit in one; to look before
	// that, it is opened here first, in the way that go-nvml needs.
	l := &library{symbols: dl.New(libraryName, dl.RTLD_LAZY|dl.RTLD_GLOBAL), notes: []string{}}
	if err := l.symbols.Open(); err != nil {
		return nil, err // the loader's text names the library
	}
	for _, name := range required {
		if !l.has(name) {
			return nil, fmt.Errorf("%s has no function %s: it is not NVML, or a driver too old for it", libraryName, name)
		}
	}
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlInit: %s", l.text(ret))
	}
	return l, nil
}

// close leaves NVML. The process ends soon after, so that nothing depends on it.
func (l *library) close() {
	if l.has("nvmlShutdown") {
		nvml.Shutdown()
	}
}

func (l *library) has(symbol string) bool { return l.symbols.Lookup(symbol) == nil }

// text is NVML's own word for a code.
func (l *library) text(ret nvml.Return) string {
	if l.has("nvmlErrorString") {
		return fmt.Sprintf("%s (code %d)", ret.Error(), int(ret))
	}
	return fmt.Sprintf("code %d", int(ret))
}

// note keeps one line of what could not be learnt, once.
func (l *library) note(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(l.notes, line) {
		l.notes = append(l.notes, line)
	}
}

// ask makes a call to one function, if the library has it. A code that means
// other than "this GPU has no such thing" leaves a note.
func (l *library) ask(symbol string, call func() nvml.Return) nvml.Return {
	if !l.has(symbol) {
		l.note("%s: not in this driver", symbol)
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	ret := call()
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED:
	default:
		l.note("%s: %s", symbol, l.text(ret))
	}
	return ret
}

// value is ask for a function that yields one value, nil without it.
func value[T any](l *library, symbol string, call func() (T, nvml.Return)) *T {
	var v T
	if l.ask(symbol, func() (ret nvml.Return) { v, ret = call(); return ret }) != nvml.SUCCESS {
		return nil
	}
	return &v
}

// or returns *v, or the zero value for nil.
func or[T any](v *T) (t T) {
	if v != nil {
		t = *v
	}
	return t
}
