package kernels

import (
	"fmt"
	"sync/atomic"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// AllocShared allocates and zeroes the memory that this process shares with a group for a world of logical ranks.
// Every process must have done so before any launches a kernel of the group.
func AllocShared(s *cuda.Stream, world int) (cuda.Buffer, error) {
	if err := within("logical ranks", world, 1, MaxWorld); err != nil {
		return cuda.Buffer{}, err
	}
	b, err := s.Context().Alloc(cuda.Uint8, SharedBytes(world))
	if err != nil {
		return cuda.Buffer{}, err
	}
	if err := firstError(s.Fill(b, 0), s.Synchronize()); err != nil {
		return cuda.Buffer{}, firstError(err, b.Free())
	}
	return b, nil
}

// A Group is processes that map each other's memory, as one of them sees it.
type Group struct {
	world   int
	args    peersArgs
	control *cuda.HostMem // words: abort, status
}

// NewGroup makes the group of which this process is number self. shared holds each process's memory from AllocShared,
// its own as it is and the others as they are mapped here.
func NewGroup(ctx *cuda.Context, world, self int, shared []cuda.Buffer) (*Group, error) {
	err := firstError(within("processes", len(shared), 1, min(world, MaxProcs)), within("as this process", self, 0, len(shared)-1))
	if err != nil {
		return nil, err
	}
	at := make([]uint64, len(shared))
	for p, b := range shared {
		if b.Bytes() != SharedBytes(world) {
			return nil, fmt.Errorf("kernels: process %d shares %d bytes; a world of %d needs %d", p, b.Bytes(), world, SharedBytes(world))
		}
		if at[p], err = b.Ptr(); err != nil {
			return nil, fmt.Errorf("kernels: shared memory of process %d: %w", p, err)
		}
	}
	control, err := ctx.AllocHost(8)
	if err != nil {
		return nil, err
	}
	word, err := control.DevicePtr()
	if err != nil {
		return nil, firstError(err, control.Free())
	}
	return &Group{world, peersArgs{at, word, self}, control}, nil
}

// Abort makes every kernel of the group that waits in this process end soon, now and later. It may be called from any
// thread, until Close.
func (g *Group) Abort() { atomic.StoreUint32(g.control.Word(0), 1) }

// Waited says for whom a kernel waited when it was aborted, in words, and is empty when none was. It may be called from
// any thread, until Close.
func (g *Group) Waited() string { return waited(atomic.LoadUint32(g.control.Word(1))) }

// WaitedFor is the number behind Waited: of a logical rank, or of a process.
func (g *Group) WaitedFor() (peer int, logical bool) {
	status := atomic.LoadUint32(g.control.Word(1))
	return int(status & 0xffff), status>>16 > phases
}

func waited(status uint32) string {
	peer := status & 0xffff
	switch status >> 16 {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("process %d to begin a two-shot", peer)
	case 2:
		return fmt.Sprintf("process %d to end a two-shot", peer)
	case 3:
		return fmt.Sprintf("process %d at a barrier", peer)
	default:
		return fmt.Sprintf("logical rank %d in a one-shot", peer)
	}
}

// Close frees what the group holds. No kernel of it may be running. The shared memory is the caller's.
func (g *Group) Close() error { return g.control.Free() }
