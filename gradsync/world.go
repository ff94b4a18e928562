package gradsync

import "fmt"

// World is what a step needs of the world of processes. Package mpiboot's World
// is one. Calls are collective, except where they say otherwise, and return an
// error instead of waiting longer than the world's deadline.
type World interface {
	Rank() int
	Size() int
	// LocalRanks lists the ranks that share this host's memory, in ascending
	// order, the caller included. It is not collective.
	LocalRanks() []int
	Barrier() error
	Bcast(buf []byte, root int) error
	// AllgatherBytes returns every rank's bytes, of any length.
	AllgatherBytes(send []byte) ([][]byte, error)
	// Exchange sends send[i] to rank sendTo[i] and receives recv[i] from rank
	// recvFrom[i], all at once. Between two ranks messages match in order.
	Exchange(sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error
	// AllreduceSum adds buf, elements of the named dtype, over the ranks, in
	// place, in whatever order the library likes.
	AllreduceSum(buf []byte, dtype string) error
}

// Layout says which process holds which logical ranks.
type Layout struct {
	World int // logical ranks
	Procs int // processes
	Proc  int // this one
}

// NewLayout spreads world logical ranks over procs processes.
func NewLayout(world, procs, proc int) (Layout, error) {
	if world < procs {
		return Layout{}, fmt.Errorf("%w: a logical world of %d cannot keep %d processes busy; start at most %d processes or raise --world", ErrUsage, world, procs, world)
	}
	return Layout{world, procs, proc}, nil
}

// Ranks is the contiguous block [lo, hi) of logical ranks that process proc holds.
func (l Layout) Ranks(proc int) (lo, hi int) {
	return l.World * proc / l.Procs, l.World * (proc + 1) / l.Procs
}

// Local is how many logical ranks process proc holds.
func (l Layout) Local(proc int) int {
	lo, hi := l.Ranks(proc)
	return hi - lo
}

// sliceAlign keeps slices of a bucket on cache lines for every dtype, so that
// no two processes write one.
const sliceAlign = 64

// Slice is the run [lo, hi) of n elements that process proc folds. Slices are
// in ascending order and cover all elements; when there are more processes
// than elements, the last are empty.
func (l Layout) Slice(n int64, proc int) (lo, hi int64) {
	each := (n + int64(l.Procs) - 1) / int64(l.Procs)
	each = (each + sliceAlign - 1) / sliceAlign * sliceAlign
	return min(each*int64(proc), n), min(each*int64(proc+1), n)
}
