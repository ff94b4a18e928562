package cuda

/*
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api.h"

typedef struct {
#define FIELD(name, params, args) cu_result(*name) params;
	DDPSTEP_CUDA_CALLS(FIELD)
} cu_table;

static const char *const cu_names[] = {
#define NAME(name, params, args) #name,
	DDPSTEP_CUDA_CALLS(NAME)
};

enum { cu_count = sizeof cu_names / sizeof *cu_names };

static const char *cu_name(int i) { return cu_names[i]; }
static void cu_fill(cu_table *t, int i, uintptr_t address) { ((uintptr_t *)t)[i] = address; }

#define LIST(...) __VA_ARGS__
#define WRAP(name, params, args) static inline cu_result call_##name(const cu_table *t, LIST params) { return t->name args; }
DDPSTEP_CUDA_CALLS(WRAP)

// One entry for launches: blocks and threads in one dimension, arguments as an array of addresses.
static inline cu_result launch(const cu_table *t, cu_handle function, unsigned grid, unsigned block, unsigned shared, cu_handle stream, void **params) {
	return t->cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, params, NULL);
}

// The error log of the driver's compiler is option 5, its size option 6; sizes are passed in the pointer itself.
static cu_result load_module(const cu_table *t, cu_handle *module, const void *image, char *log, size_t size) {
	int options[] = {5, 6};
	void *values[] = {log, (void *)size};
	return t->cuModuleLoadDataEx(module, image, 2, options, values);
}

// The kernel's number of the calling thread, asked for once a thread.
static int thread_id(void) {
	static __thread int id;
	if (id == 0) id = (int)syscall(SYS_gettid);
	return id;
}
*/
import "C"

import "unsafe"

// api is the table of one loaded library. Its methods are the calls themselves: Go types in, Go types and the
// driver's code out. Handles are the driver's pointers, never dereferenced here.
type api struct{ t *C.cu_table }

func apiNames() []string {
	names := make([]string, C.cu_count)
	for i := range names {
		names[i] = C.GoString(C.cu_name(C.int(i)))
	}
	return names
}

// newAPI fills a table that lives as long as the process, as the library does.
func newAPI(addresses []uintptr) api {
	t := (*C.cu_table)(C.calloc(1, C.sizeof_cu_table))
	for i, a := range addresses {
		C.cu_fill(t, C.int(i), C.uintptr_t(a))
	}
	return api{t}
}

func threadID() int { return int(C.thread_id()) }
func yield()        { C.sched_yield() }

func (a api) describe(code int) (name, text string) {
	var s *C.char
	if C.call_cuGetErrorName(a.t, C.cu_result(code), &s) == 0 && s != nil {
		name = C.GoString(s)
	}
	s = nil
	if C.call_cuGetErrorString(a.t, C.cu_result(code), &s) == 0 && s != nil {
		text = C.GoString(s)
	}
	return name, text
}

func (a api) init() int { return int(C.call_cuInit(a.t, 0)) }

func (a api) driverVersion() (int, int) {
	var v C.int
	code := C.call_cuDriverGetVersion(a.t, &v)
	return int(v), int(code)
}

func (a api) deviceCount() (int, int) {
	var n C.int
	code := C.call_cuDeviceGetCount(a.t, &n)
	return int(n), int(code)
}

func (a api) device(ordinal int) (int32, int) {
	var d C.cu_device
	code := C.call_cuDeviceGet(a.t, &d, C.int(ordinal))
	return int32(d), int(code)
}

func (a api) deviceName(device int32) (string, int) {
	var b [256]C.char
	code := C.call_cuDeviceGetName(a.t, &b[0], C.int(len(b)), C.cu_device(device))
	return C.GoString(&b[0]), int(code)
}

func (a api) deviceBus(device int32) (string, int) {
	var b [64]C.char
	code := C.call_cuDeviceGetPCIBusId(a.t, &b[0], C.int(len(b)), C.cu_device(device))
	return C.GoString(&b[0]), int(code)
}

func (a api) deviceUUID(device int32) ([16]byte, int) {
	var u C.cu_uuid
	code := C.call_cuDeviceGetUuid_v2(a.t, &u, C.cu_device(device))
	return *(*[16]byte)(unsafe.Pointer(&u.bytes)), int(code)
}

func (a api) deviceAttribute(device int32, attribute int) (int, int) {
	var v C.int
	code := C.call_cuDeviceGetAttribute(a.t, &v, C.int(attribute), C.cu_device(device))
	return int(v), int(code)
}

func (a api) deviceMemory(device int32) (int64, int) {
	var n C.size_t
	code := C.call_cuDeviceTotalMem_v2(a.t, &n, C.cu_device(device))
	return int64(n), int(code)
}

func (a api) canAccessPeer(device, peer int32) (bool, int) {
	var can C.int
	code := C.call_cuDeviceCanAccessPeer(a.t, &can, C.cu_device(device), C.cu_device(peer))
	return can != 0, int(code)
}

func (a api) retainPrimary(device int32) (uintptr, int) {
	var h C.cu_handle
	code := C.call_cuDevicePrimaryCtxRetain(a.t, &h, C.cu_device(device))
	return uintptr(h), int(code)
}

func (a api) releasePrimary(device int32) int {
	return int(C.call_cuDevicePrimaryCtxRelease_v2(a.t, C.cu_device(device)))
}

func (a api) setCurrent(context uintptr) int {
	return int(C.call_cuCtxSetCurrent(a.t, C.cu_handle(context)))
}

func (a api) enablePeer(context uintptr) int {
	return int(C.call_cuCtxEnablePeerAccess(a.t, C.cu_handle(context), 0))
}

func (a api) memInfo() (free, total int64, code int) {
	var f, t C.size_t
	c := C.call_cuMemGetInfo_v2(a.t, &f, &t)
	return int64(f), int64(t), int(c)
}

func (a api) memAlloc(n int) (uint64, int) {
	var p C.cu_ptr
	code := C.call_cuMemAlloc_v2(a.t, &p, C.size_t(n))
	return uint64(p), int(code)
}

func (a api) memFree(p uint64) int { return int(C.call_cuMemFree_v2(a.t, C.cu_ptr(p))) }

// Host memory that all contexts may use (1) and that devices can address (2).
func (a api) hostAlloc(n int) ([]byte, int) {
	var p unsafe.Pointer
	code := C.call_cuMemHostAlloc(a.t, &p, C.size_t(n), 1|2)
	if code != 0 {
		return nil, int(code)
	}
	return unsafe.Slice((*byte)(p), n), 0
}

func (a api) hostFree(b []byte) int { return int(C.call_cuMemFreeHost(a.t, unsafe.Pointer(&b[0]))) }

func (a api) hostPointer(b []byte) (uint64, int) {
	var p C.cu_ptr
	code := C.call_cuMemHostGetDevicePointer_v2(a.t, &p, unsafe.Pointer(&b[0]), 0)
	return uint64(p), int(code)
}

func (a api) copyIn(to uint64, from []byte, stream uintptr) int {
	return int(C.call_cuMemcpyHtoDAsync_v2(a.t, C.cu_ptr(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from)), C.cu_handle(stream)))
}

func (a api) copyOut(to []byte, from uint64, stream uintptr) int {
	return int(C.call_cuMemcpyDtoHAsync_v2(a.t, unsafe.Pointer(unsafe.SliceData(to)), C.cu_ptr(from), C.size_t(len(to)), C.cu_handle(stream)))
}

func (a api) copyDevice(to, from uint64, n int, stream uintptr) int {
	return int(C.call_cuMemcpyAsync(a.t, C.cu_ptr(to), C.cu_ptr(from), C.size_t(n), C.cu_handle(stream)))
}

func (a api) memset(p uint64, value byte, n int, stream uintptr) int {
	return int(C.call_cuMemsetD8Async(a.t, C.cu_ptr(p), C.uchar(value), C.size_t(n), C.cu_handle(stream)))
}

func (a api) ipcGet(p uint64) (handle [64]byte, code int) {
	var h C.cu_ipc
	c := C.call_cuIpcGetMemHandle(a.t, &h, C.cu_ptr(p))
	return *(*[64]byte)(unsafe.Pointer(&h.bytes)), int(c)
}

// Flag 1 enables access between the two devices when it is first needed.
func (a api) ipcOpen(handle [64]byte) (uint64, int) {
	var p C.cu_ptr
	code := C.call_cuIpcOpenMemHandle_v2(a.t, &p, *(*C.cu_ipc)(unsafe.Pointer(&handle)), 1)
	return uint64(p), int(code)
}

func (a api) ipcClose(p uint64) int { return int(C.call_cuIpcCloseMemHandle(a.t, C.cu_ptr(p))) }

// Flag 1: a stream that never waits for the context's default stream.
func (a api) streamCreate() (uintptr, int) {
	var h C.cu_handle
	code := C.call_cuStreamCreate(a.t, &h, 1)
	return uintptr(h), int(code)
}

func (a api) streamDestroy(s uintptr) int { return int(C.call_cuStreamDestroy_v2(a.t, C.cu_handle(s))) }
func (a api) streamQuery(s uintptr) int   { return int(C.call_cuStreamQuery(a.t, C.cu_handle(s))) }
func (a api) streamSync(s uintptr) int    { return int(C.call_cuStreamSynchronize(a.t, C.cu_handle(s))) }

func (a api) streamWait(stream, event uintptr) int {
	return int(C.call_cuStreamWaitEvent(a.t, C.cu_handle(stream), C.cu_handle(event), 0))
}

// Mode 1: only this thread is kept from calls that a capture forbids; a library's own threads are not.
func (a api) captureBegin(stream uintptr) int {
	return int(C.call_cuStreamBeginCapture_v2(a.t, C.cu_handle(stream), 1))
}

func (a api) captureEnd(stream uintptr) (uintptr, int) {
	var g C.cu_handle
	code := C.call_cuStreamEndCapture(a.t, C.cu_handle(stream), &g)
	return uintptr(g), int(code)
}

// Flag 2 makes an event without a time, which is cheaper to record.
func (a api) eventCreate(timing bool) (uintptr, int) {
	flags := C.uint(2)
	if timing {
		flags = 0
	}
	var h C.cu_handle
	code := C.call_cuEventCreate(a.t, &h, flags)
	return uintptr(h), int(code)
}

func (a api) eventDestroy(e uintptr) int { return int(C.call_cuEventDestroy_v2(a.t, C.cu_handle(e))) }
func (a api) eventQuery(e uintptr) int   { return int(C.call_cuEventQuery(a.t, C.cu_handle(e))) }
func (a api) eventSync(e uintptr) int    { return int(C.call_cuEventSynchronize(a.t, C.cu_handle(e))) }

func (a api) eventRecord(event, stream uintptr) int {
	return int(C.call_cuEventRecord(a.t, C.cu_handle(event), C.cu_handle(stream)))
}

func (a api) eventElapsed(start, end uintptr) (ms float32, code int) {
	var f C.float
	c := C.call_cuEventElapsedTime(a.t, &f, C.cu_handle(start), C.cu_handle(end))
	return float32(f), int(c)
}

func (a api) moduleLoad(ptx []byte) (module uintptr, log string, code int) {
	image := C.CBytes(append(ptx[:len(ptx):len(ptx)], 0)) // the driver wants text that ends in a zero
	defer C.free(image)
	const size = 8192
	text := (*C.char)(C.calloc(1, size))
	defer C.free(unsafe.Pointer(text))
	var h C.cu_handle
	c := C.load_module(a.t, &h, image, text, size-1)
	return uintptr(h), C.GoString(text), int(c)
}

func (a api) moduleUnload(m uintptr) int { return int(C.call_cuModuleUnload(a.t, C.cu_handle(m))) }

func (a api) moduleFunction(module uintptr, name string) (uintptr, int) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	var h C.cu_handle
	code := C.call_cuModuleGetFunction(a.t, &h, C.cu_handle(module), s)
	return uintptr(h), int(code)
}

func (a api) launch(function uintptr, grid, block, shared int, stream uintptr, params *unsafe.Pointer) int {
	return int(C.launch(a.t, C.cu_handle(function), C.uint(grid), C.uint(block), C.uint(shared), C.cu_handle(stream), params))
}

func (a api) graphInstantiate(graph uintptr) (uintptr, int) {
	var h C.cu_handle
	code := C.call_cuGraphInstantiateWithFlags(a.t, &h, C.cu_handle(graph), 0)
	return uintptr(h), int(code)
}

func (a api) graphLaunch(exec, stream uintptr) int {
	return int(C.call_cuGraphLaunch(a.t, C.cu_handle(exec), C.cu_handle(stream)))
}

func (a api) graphExecDestroy(e uintptr) int {
	return int(C.call_cuGraphExecDestroy(a.t, C.cu_handle(e)))
}
func (a api) graphDestroy(g uintptr) int { return int(C.call_cuGraphDestroy(a.t, C.cu_handle(g))) }

// cArray is zeroed memory outside Go's heap, where addresses of it may be stored. It is never nil.
func cArray(n int) []byte { return unsafe.Slice((*byte)(C.calloc(1, C.size_t(n))), n) }

func cFree(b []byte) { C.free(unsafe.Pointer(unsafe.SliceData(b))) }
