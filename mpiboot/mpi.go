//go:build mpi || mpich

package mpiboot

// #include "bridge.h"
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
	"unsafe"
)

// mpi is the link over the bridge.
type mpi struct {
	rank     int
	pins     *runtime.Pinner
	messages []C.bridge_message // reused, so that an exchange allocates nothing
	done     C.int              // results of a poll; here for the same reason
	wrong    C.bridge_mismatch
	here     []C.uint8_t
	present  []bool
}

// pinned keeps the one pinner reachable: after a failure MPI may write to what
// it pins for as long as the process lives.
var pinned runtime.Pinner

// open starts MPI.
func open() (link, place, error) {
	var rank, size, level, locals C.int
	if err := check(C.bridge_init(&rank, &size, &level)); err != nil {
		return nil, place{}, err
	}
	m := &mpi{rank: int(rank), pins: &pinned, here: make([]C.uint8_t, size), present: make([]bool, size)}
	name := C.bridge_level_name(level)
	if name == nil {
		m.finalize()
		return nil, place{}, fmt.Errorf("mpiboot: MPI grants thread level %d only, MPI_THREAD_SERIALIZED is needed; use a build of MPI with thread support", level)
	}
	if err := check(C.bridge_join(&locals)); err != nil {
		return nil, place{}, err
	}
	ranks := make([]C.int, locals)
	if err := check(C.bridge_local_ranks(&ranks[0])); err != nil {
		return nil, place{}, err
	}
	var text [512]C.char
	C.bridge_library(&text[0], C.int(len(text)))
	library, _, _ := strings.Cut(C.GoString(&text[0]), "\n")
	p := place{rank: int(rank), size: int(size), library: strings.Join(strings.Fields(library), " "), level: C.GoString(name)}
	for _, r := range ranks {
		p.local = append(p.local, int(r))
	}
	return m, p, nil
}

// check turns a bridge result into an error.
func check(code C.int) error {
	switch code {
	case 0:
		return nil
	case C.BRIDGE_THREAD:
		panic("mpiboot: called from a thread other than Init's")
	}
	var class C.int
	var text [1024]C.char
	C.bridge_error(code, &class, &text[0], C.int(len(text)))
	call, _, _ := strings.Cut(C.GoString(C.bridge_failed_call), "(")
	return &Error{Call: call, Code: int(code), Class: int(class), Message: strings.Join(strings.Fields(C.GoString(&text[0])), " ")}
}

// pin keeps buf where it is until the call under way is done and returns its
// address. Mapped memory needs no pin, and Pin lets it be.
func (m *mpi) pin(buf []byte) C.uintptr_t {
	p := unsafe.SliceData(buf)
	if len(buf) > 0 {
		m.pins.Pin(p)
	}
	return C.uintptr_t(uintptr(unsafe.Pointer(p)))
}

func (m *mpi) barrier() error { return check(C.bridge_barrier()) }

func (m *mpi) bcast(buf []byte, root int) error {
	return check(C.bridge_bcast(m.pin(buf), C.int64_t(len(buf)), C.int(root), C.int64_t(pieceBytes)))
}

func (m *mpi) allgather(send, recv []byte) error {
	return check(C.bridge_allgather(m.pin(send), m.pin(recv), C.int(len(send))))
}

func (m *mpi) exchange(ch channel, tag int, sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error {
	m.messages = m.messages[:0]
	m.add(recvFrom, recv, 0) // receives first: a message that finds one needs no copy
	m.add(sendTo, send, 1)
	return check(C.bridge_exchange(unsafe.SliceData(m.messages), C.int(len(m.messages)), C.int(ch), C.int(tag), C.int64_t(pieceBytes)))
}

func (m *mpi) add(peers []int, bufs [][]byte, isSend C.int32_t) {
	for i, peer := range peers {
		if peer != m.rank {
			m.messages = append(m.messages, C.bridge_message{buf: m.pin(bufs[i]), len: C.int64_t(len(bufs[i])), peer: C.int32_t(peer), is_send: isSend})
		}
	}
}

func (m *mpi) poll(d time.Duration) (bool, error) {
	code := C.bridge_poll(C.int64_t(d), &m.done, &m.wrong)
	if code == C.BRIDGE_SIZE {
		return false, &SizeError{Peer: int(m.wrong.peer), Got: int64(m.wrong.got), Want: int64(m.wrong.want)}
	}
	if err := check(code); err != nil || m.done == 0 {
		return false, err
	}
	m.pins.Unpin()
	return true, nil
}

func (m *mpi) probe(peer, tag int, d time.Duration) (bool, error) {
	var found C.int
	err := check(C.bridge_probe(C.int(peer), C.int(tag), C.int64_t(d), &found))
	return found != 0, err
}

func (m *mpi) allreduce(buf []byte, t elem) error {
	defer m.pins.Unpin()
	return check(C.bridge_allreduce(m.pin(buf), C.int64_t(len(buf)/t.bytes()), C.int(t), C.int64_t(pieceElems)))
}

// callHere and heard leave out MPI's errors: a roll call is taken when
// something is broken, and who cannot be reached is missing. What check still
// finds is a call from a wrong thread.
func (m *mpi) callHere() { check(C.bridge_here()) }

func (m *mpi) heard() []bool {
	check(C.bridge_heard(&m.here[0]))
	for r, h := range m.here {
		m.present[r] = h != 0
	}
	return m.present
}

// abort calls MPI_Abort where the thread level allows it. Elsewhere leaving is
// enough: a rank that exits without MPI_Finalize makes the launcher end all.
func (m *mpi) abort(code int) {
	if C.bridge_may_abort() != 0 {
		C.bridge_abort(C.int(code))
	}
	os.Exit(code)
}

func (m *mpi) finalize() error { return check(C.bridge_finalize()) }
