package cuda

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static uintptr_t open_library(const char *path) { return (uintptr_t)dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static uintptr_t find_symbol(uintptr_t library, const char *name) { return (uintptr_t)dlsym((void *)library, name); }
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// A Loader opens shared libraries and finds symbols in them. [System] is the real one; a test has its own.
// Handles and addresses are not zero when the error is nil.
type Loader interface {
	Open(path string) (handle uintptr, err error)
	Symbol(handle uintptr, name string) (address uintptr, err error)
}

// System is the dynamic loader of the process.
var System Loader = systemLoader{}

// A LoadError says why a library cannot be used.
type LoadError struct {
	Library string   // what was wanted: "libcuda.so.1"
	Tried   []string // the paths or names given to the loader, in order
	Symbol  string   // the missing symbol, empty when the library itself could not be opened
	Message string   // the loader's own words
}

func (e *LoadError) Error() string {
	if e.Symbol != "" {
		return fmt.Sprintf("%s (%s) has no symbol %s: %s", e.Library, strings.Join(e.Tried, ", "), e.Symbol, e.Message)
	}
	return fmt.Sprintf("cannot load %s: tried %s: %s", e.Library, strings.Join(e.Tried, ", "), e.Message)
}

// Load opens the first of the candidates that opens and looks up every name in it. It returns the addresses in the
// order of names, and the candidate that was taken. The library stays open for the life of the process: drivers start
// threads and do not survive being unloaded.
func Load(l Loader, library string, candidates, names []string) (addresses []uintptr, path string, err error) {
	var handle uintptr
	var messages []string
	for _, c := range candidates {
		h, err := l.Open(c)
		if err == nil {
			handle, path = h, c
			break
		}
		messages = append(messages, err.Error())
	}
	if handle == 0 {
		return nil, "", &LoadError{Library: library, Tried: candidates, Message: strings.Join(messages, "; ")}
	}
	addresses = make([]uintptr, len(names))
	for i, name := range names {
		if addresses[i], err = l.Symbol(handle, name); err != nil {
			return nil, "", &LoadError{Library: library, Tried: []string{path}, Symbol: name, Message: err.Error()}
		}
	}
	return addresses, path, nil
}

type systemLoader struct{}

func (systemLoader) Open(path string) (uintptr, error) {
	s := C.CString(path)
	defer C.free(unsafe.Pointer(s))
	return dl(func() uintptr { return uintptr(C.open_library(s)) })
}

func (systemLoader) Symbol(handle uintptr, name string) (uintptr, error) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return dl(func() uintptr { return uintptr(C.find_symbol(C.uintptr_t(handle), s)) })
}

// dl makes one call of the loader. dlerror is kept per thread, so the thread is held from clearing it to reading it.
func dl(call func() uintptr) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.dlerror()
	if p := call(); p != 0 {
		return p, nil
	}
	if m := C.dlerror(); m != nil {
		return 0, fmt.Errorf("%s", C.GoString(m))
	}
	return 0, fmt.Errorf("the loader gave a null address")
}
