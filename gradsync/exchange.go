package gradsync

import (
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
	"github.com/ddpstep/ddpstep/gradsync/shm"
)

// exchange is the fixed order where processes share no memory. Process p owns
// slice p of each bucket: it receives that slice of every logical rank, folds
// it in ascending order, and sends the result to all. The bytes on the wire are
// those of a ring all-reduce.
//
// A bucket goes in chunks, so that scratch memory stays small and in cache: the
// results of one chunk travel together with the addends of the next.
type exchange struct {
	*private
	cfg     Config
	folders map[contract.DType]*contract.Folder
	scratch *shm.Segment // addends of the other processes' logical ranks, one chunk each
	failed  bool         // messages may be under way still

	// Message lists, reused.
	to, from     []int
	sends, recvs [][]byte
	addends      [][]byte
}

// scratchBytes bounds what is received at a time. Chunks are as large as it
// allows: every message costs a handshake, in which both sides wait.
const scratchBytes = 8 << 20

func newExchange(cfg Config) (*exchange, error) {
	mem, err := newPrivate(cfg)
	if err != nil {
		return nil, err
	}
	x := &exchange{private: mem, cfg: cfg, folders: folders(cfg), addends: make([][]byte, cfg.Layout.World)}
	if x.scratch, err = shm.Private(int64(x.foreign()) * x.chunk()); err != nil {
		mem.Close()
		return nil, err
	}
	return x, nil
}

// foreign is how many logical ranks other processes hold.
func (x *exchange) foreign() int { return x.cfg.Layout.World - x.cfg.Layout.Local(x.cfg.Layout.Proc) }

// chunk is the size of one message in bytes, a multiple of every dtype's size
// and equal on all processes.
func (x *exchange) chunk() int64 {
	return max(scratchBytes/int64(x.cfg.Layout.World), pageSize) / 64 * 64
}

func (x *exchange) Name() string { return "fixed" }

func (x *exchange) Transport() string {
	if x.cfg.Layout.Procs == 1 {
		return "none"
	}
	return "mpi"
}

func (x *exchange) Accumulator(t contract.DType) contract.DType { return t.Accumulator() }

func (x *exchange) Reduce(b int) error {
	defer x.measure(b)()
	l, bucket := x.cfg.Layout, x.cfg.Plan.Buckets[b]
	size := int64(bucket.DType.Size())
	longest := int64(0)
	for p := 0; p < l.Procs; p++ {
		lo, hi := l.Slice(bucket.Elements, p)
		longest = max(longest, (hi-lo)*size)
	}
	chunks := (longest + x.chunk() - 1) / x.chunk()
	for c := int64(0); c <= chunks; c++ {
		x.to, x.from, x.sends, x.recvs = x.to[:0], x.from[:0], x.sends[:0], x.recvs[:0]
		if c < chunks {
			x.postAddends(b, c)
		}
		if c > 0 {
			x.postResults(b, c-1)
		}
		if err := x.cfg.World.Exchange(x.to, x.sends, x.from, x.recvs); err != nil {
			x.failed = true
			return err
		}
		if c < chunks {
			x.fold(b, c)
		}
	}
	return nil
}

// part is chunk c of process p's slice of the bucket, in bytes.
func (x *exchange) part(b, p int, c int64) (lo, hi int64) {
	bucket := x.cfg.Plan.Buckets[b]
	size := int64(bucket.DType.Size())
	lo, hi = x.cfg.Layout.Slice(bucket.Elements, p)
	lo, hi = lo*size, hi*size
	return min(lo+c*x.chunk(), hi), min(lo+(c+1)*x.chunk(), hi)
}

func (x *exchange) send(p int, buf []byte) {
	if len(buf) > 0 {
		x.to, x.sends = append(x.to, p), append(x.sends, buf)
	}
}

func (x *exchange) recv(p int, buf []byte) {
	if len(buf) > 0 {
		x.from, x.recvs = append(x.from, p), append(x.recvs, buf)
	}
}

// postAddends sends every peer its part of our gradients and receives ours of
// theirs.
func (x *exchange) postAddends(b int, c int64) {
	l := x.cfg.Layout
	myLo, myHi := x.part(b, l.Proc, c)
	addends, at := x.addends[:0], int64(0)
	for p := 0; p < l.Procs; p++ {
		lo, hi := x.part(b, p, c)
		for i := 0; i < l.Local(p); i++ {
			if p == l.Proc {
				addends = append(addends, x.bucket(i, b)[lo:hi])
				continue
			}
			buf := x.scratch.Bytes()[at : at+myHi-myLo]
			at += x.chunk()
			addends = append(addends, buf)
			x.recv(p, buf)
		}
		for i := 0; i < l.Local(l.Proc) && p != l.Proc; i++ {
			x.send(p, x.bucket(i, b)[lo:hi])
		}
	}
}

// postResults sends our part of the result to every peer and receives theirs,
// where the addends that it replaces have been sent already.
func (x *exchange) postResults(b int, c int64) {
	l := x.cfg.Layout
	myLo, myHi := x.part(b, l.Proc, c)
	for p := 0; p < l.Procs; p++ {
		if p == l.Proc {
			continue
		}
		lo, hi := x.part(b, p, c)
		x.send(p, x.bucket(0, b)[myLo:myHi])
		x.recv(p, x.bucket(0, b)[lo:hi])
	}
}

func (x *exchange) fold(b int, c int64) {
	lo, hi := x.part(b, x.cfg.Layout.Proc, c)
	if hi == lo {
		return
	}
	fpenv.Set()
	x.folders[x.cfg.Plan.Buckets[b].DType].Fold([][]byte{x.bucket(0, b)[lo:hi]}, x.addends[:x.cfg.Layout.World])
}

// Close leaves the memory mapped after a failure: MPI may write to it, should a
// peer that was late send after all, until the process ends.
func (x *exchange) Close() error {
	if x.failed {
		return nil
	}
	err := x.private.Close()
	if e := x.scratch.Close(); err == nil {
		err = e
	}
	return err
}
