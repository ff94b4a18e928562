// Package cuda is the part of the CUDA driver API that this module calls, found at run time.
//
// # Loading
//
// Nothing of CUDA is needed to build: [Open] loads libcuda.so.1 with dlopen and looks up every function that the
// package declares, so a program that holds this package starts on a machine without a GPU, also under LD_BIND_NOW=1.
// A library or a function that is missing is a [*LoadError], which names the library, what was tried and what the
// dynamic loader said. The prototypes are declared by hand in api.go, the only file with calls into the driver.
//
// # Threads
//
// A [Context] belongs to one OS thread: [Device.Attach] locks the calling goroutine to its thread and makes the
// device's primary context current there. Every method that reaches the driver through a context (streams, events,
// memory, modules, graphs) must be called on that thread, and answers [ErrThread] elsewhere instead of working on
// whatever context another thread happens to have. The exceptions say so: the words of pinned memory may be read and
// written from anywhere, which is how a watchdog ends a spinning kernel.
//
// # Memory
//
// A [Buffer] knows its type, length and context; a slice of it shares its fate. Use after Free (of the whole), a
// buffer of another context, a range outside the buffer and a buffer that was never allocated are errors found before
// the driver is called. Copies to and from the host take pinned memory ([HostMem]) only: they are asynchronous, and the
// driver keeps the address after the call returns, which Go memory does not allow.
//
// # Waiting
//
// Nothing here waits without bound except where the name says Synchronize. [Wait] polls an event together with a
// deadline and with whatever else the caller must watch.
package cuda
