package nccl

/*
// Polled all the time: its result need not be on Go's heap.
#cgo noescape call_ncclCommGetAsyncError
#cgo nocallback call_ncclCommGetAsyncError

#include <stdlib.h>

#include "api.h"

typedef struct {
#define FIELD(name, params, args) nccl_result(*name) params;
	DDPSTEP_NCCL_CALLS(FIELD)
	nccl_result (*ncclGroupStart)(void);
	nccl_result (*ncclGroupEnd)(void);
	const char *(*ncclGetErrorString)(nccl_result);
	const char *(*ncclGetLastError)(nccl_comm);
} nccl_table;

static const char *const nccl_names[] = {
#define NAME(name, params, args) #name,
	DDPSTEP_NCCL_CALLS(NAME)
	"ncclGroupStart", "ncclGroupEnd", "ncclGetErrorString", "ncclGetLastError",
};

enum { nccl_count = sizeof nccl_names / sizeof *nccl_names };

static const char *nccl_name(int i) { return nccl_names[i]; }
static void nccl_fill(nccl_table *t, int i, uintptr_t address) { ((uintptr_t *)t)[i] = address; }

#define LIST(...) __VA_ARGS__
#define WRAP(name, params, args) static inline nccl_result call_##name(const nccl_table *t, LIST params) { return t->name args; }
DDPSTEP_NCCL_CALLS(WRAP)
static inline nccl_result group_start(const nccl_table *t) { return t->ncclGroupStart(); }
static inline nccl_result group_end(const nccl_table *t) { return t->ncclGroupEnd(); }
static inline const char *error_string(const nccl_table *t, int code) { return t->ncclGetErrorString(code); }
static inline const char *last_error(const nccl_table *t, nccl_comm comm) { return t->ncclGetLastError(comm); }

static nccl_result version_at(uintptr_t get, int *version) { return ((nccl_result(*)(int *))get)(version); }

static nccl_result init_rank(const nccl_table *t, nccl_comm *comm, int world, const nccl_id *id, int rank) {
	nccl_config config = NCCL_CONFIG_OF_2_26(0, 1);
	return t->ncclCommInitRankConfig(comm, world, *id, rank, &config);
}

// A blocking communicator of the same ranks, which shares what it can with its parent.
static nccl_result split(const nccl_table *t, nccl_comm parent, int rank, nccl_comm *child) {
	nccl_config config = NCCL_CONFIG_OF_2_26(1, 1);
	return t->ncclCommSplit(parent, 0, rank, child, &config);
}
*/
import "C"

import (
	"strings"
	"unsafe"
)

// The result codes that are told apart here.
const (
	success    = 0
	inProgress = 7
)

// api is the table of one loaded library: Go types in, NCCL's code out. Communicators and streams are the libraries'
// pointers, never dereferenced here.
type api struct{ t *C.nccl_table }

func apiNames() []string {
	names := make([]string, C.nccl_count)
	for i := range names {
		names[i] = C.GoString(C.nccl_name(C.int(i)))
	}
	return names
}

// newAPI fills a table that lives as long as the process, as the library does.
func newAPI(addresses []uintptr) api {
	t := (*C.nccl_table)(C.calloc(1, C.sizeof_nccl_table))
	for i, a := range addresses {
		C.nccl_fill(t, C.int(i), C.uintptr_t(a))
	}
	return api{t}
}

// versionAt calls ncclGetVersion at its address, before there is a table.
func versionAt(address uintptr) (version, code int) {
	var v C.int
	c := C.version_at(C.uintptr_t(address), &v)
	return int(v), int(c)
}

func (a api) text(code int) string { return C.GoString(C.error_string(a.t, C.int(code))) }

// last is on one line: NCCL ends some messages with line breaks.
func (a api) last(comm uintptr) string {
	return strings.Join(strings.Fields(C.GoString(C.last_error(a.t, C.nccl_comm(comm)))), " ")
}

func (a api) uniqueID() (id ID, code int) {
	var i C.nccl_id
	c := C.call_ncclGetUniqueId(a.t, &i)
	return *(*ID)(unsafe.Pointer(&i.bytes)), int(c)
}

// initRank starts a non-blocking initialisation. The communicator may be there although the code is an error.
func (a api) initRank(world int, id *ID, rank int) (uintptr, int) {
	var comm C.nccl_comm
	code := C.init_rank(a.t, &comm, C.int(world), (*C.nccl_id)(unsafe.Pointer(id)), C.int(rank))
	return uintptr(comm), int(code)
}

// split starts to make a child, whose handle is at the address it returns once the parent is done.
func (a api) split(parent uintptr, rank int) (child func() uintptr, code int) {
	at := (*C.nccl_comm)(C.calloc(1, C.sizeof_nccl_comm)) // NCCL writes there later, so it is never freed
	c := C.split(a.t, C.nccl_comm(parent), C.int(rank), at)
	return func() uintptr { return uintptr(*at) }, int(c)
}

// asyncError returns the communicator's state, and apart from it the code of the question.
func (a api) asyncError(comm uintptr) (state, code int) {
	var s C.nccl_result
	c := C.call_ncclCommGetAsyncError(a.t, C.nccl_comm(comm), &s)
	return int(s), int(c)
}

func (a api) finalize(comm uintptr) int { return int(C.call_ncclCommFinalize(a.t, C.nccl_comm(comm))) }
func (a api) destroy(comm uintptr) int  { return int(C.call_ncclCommDestroy(a.t, C.nccl_comm(comm))) }
func (a api) abort(comm uintptr) int    { return int(C.call_ncclCommAbort(a.t, C.nccl_comm(comm))) }
func (a api) groupStart() int           { return int(C.group_start(a.t)) }
func (a api) groupEnd() int             { return int(C.group_end(a.t)) }

func (a api) allReduce(o operation, comm uintptr) int {
	return int(C.call_ncclAllReduce(a.t, C.nccl_ptr(o.send), C.nccl_ptr(o.recv), C.size_t(o.count), C.int(o.dtype), C.int(o.op), C.nccl_comm(comm), C.nccl_stream(o.stream)))
}

func (a api) reduceScatter(o operation, comm uintptr) int {
	return int(C.call_ncclReduceScatter(a.t, C.nccl_ptr(o.send), C.nccl_ptr(o.recv), C.size_t(o.count), C.int(o.dtype), C.int(o.op), C.nccl_comm(comm), C.nccl_stream(o.stream)))
}

func (a api) broadcast(o operation, comm uintptr) int {
	return int(C.call_ncclBroadcast(a.t, C.nccl_ptr(o.send), C.nccl_ptr(o.recv), C.size_t(o.count), C.int(o.dtype), C.int(o.peer), C.nccl_comm(comm), C.nccl_stream(o.stream)))
}

func (a api) allGather(o operation, comm uintptr) int {
	return int(C.call_ncclAllGather(a.t, C.nccl_ptr(o.send), C.nccl_ptr(o.recv), C.size_t(o.count), C.int(o.dtype), C.nccl_comm(comm), C.nccl_stream(o.stream)))
}

func (a api) send(o operation, comm uintptr) int {
	return int(C.call_ncclSend(a.t, C.nccl_ptr(o.send), C.size_t(o.count), C.int(o.dtype), C.int(o.peer), C.nccl_comm(comm), C.nccl_stream(o.stream)))
}

func (a api) recv(o operation, comm uintptr) int {
	return int(C.call_ncclRecv(a.t, C.nccl_ptr(o.recv), C.size_t(o.count), C.int(o.dtype), C.int(o.peer), C.nccl_comm(comm), C.nccl_stream(o.stream)))
}
