package gradsync

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
	"github.com/ddpstep/ddpstep/gradsync/shm"
)

// shared is the fixed order within one host. Every process maps the gradients
// of all others.
//
// Large buckets, in two shots: when all have arrived, process p folds slice p
// of every logical rank's gradients and writes the result to every process;
// when all have arrived again, everybody has everything. No scratch memory,
// and each addend is read once.
//
// Small buckets, in one shot: each process publishes its gradients in a slot,
// and when all have, folds the whole bucket for itself. The slots are used in
// turn, so that one wait is enough: a process that writes slot n+2 has seen
// every peer at n+1, hence done with n.
type shared struct {
	cfg      Config
	segments []*shm.Segment // by process
	at       []int64        // where each bucket starts in a rank's memory
	size     int64          // of one rank's memory
	gate     *gate
	stopwatch
	folders map[contract.DType]*contract.Folder
	shots   int      // one-shot reductions so far
	addends [][]byte // scratch, so that Reduce allocates nothing
	dsts    [][]byte
}

// Layout of a process's segment: the control page with its counter, two slots
// for each of its logical ranks, then each logical rank's buckets.
const (
	oneShotBytes = 32 << 10 // largest bucket, times logical world, that goes in one shot
	slotBytes    = oneShotBytes
)

// announcement is what processes tell each other about their segments.
type announcement struct {
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	PID   int    `json:"pid"`
	PIDNS string `json:"pidns"`
	Err   string `json:"err"`
}

// noSharedMemory says why processes share none. All of them get the same one.
type noSharedMemory string

func (e noSharedMemory) Error() string { return string(e) }

// newShared sets the shared memory up, collectively. When a process cannot
// take part, every process gets the same noSharedMemory.
func newShared(cfg Config, dir string) (*shared, error) {
	s := &shared{cfg: cfg, folders: folders(cfg), stopwatch: newStopwatch(cfg)}
	s.at, s.size = offsets(cfg.Plan)
	all, err := s.mapAll(dir)
	if err != nil {
		s.Close()
		return nil, err
	}
	var control [][]byte
	pids := make([]int, len(all))
	for p, seg := range s.segments {
		control = append(control, seg.Bytes()[:pageSize])
		if all[p].PIDNS != "" && all[p].PIDNS == all[cfg.Layout.Proc].PIDNS {
			pids[p] = all[p].PID
		}
	}
	s.gate = newGate(cfg.Layout.Proc, control, pids, cfg.Deadline)
	s.addends = make([][]byte, cfg.Layout.World)
	s.dsts = make([][]byte, cfg.Layout.Procs)
	return s, nil
}

// mapAll makes this process's segment and maps those of all others. No names
// are left, whether it succeeds or not.
func (s *shared) mapAll(dir string) ([]announcement, error) {
	l := s.cfg.Layout
	me := announcement{PID: os.Getpid(), Size: s.segmentSize(l.Proc)}
	me.PIDNS, _ = os.Readlink("/proc/self/ns/pid")
	own, err := shm.Create(dir, me.Size)
	if err != nil {
		me.Err = err.Error()
	} else {
		defer own.Unlink()
		me.Path = own.Path()
	}
	s.segments = make([]*shm.Segment, l.Procs)
	s.segments[l.Proc] = own
	all, err := announce(s.cfg.World, me)
	if err != nil {
		return nil, err
	}
	for p, a := range all {
		if p == l.Proc {
			continue
		}
		if s.segments[p], err = shm.Open(a.Path, a.Size); err != nil {
			me.Err = err.Error()
			break
		}
	}
	_, err = announce(s.cfg.World, me) // also: all have mapped what is about to lose its name
	return all, err
}

// announce tells all processes about this one, and returns what all said, or
// the failure that the first one met.
func announce(w World, a announcement) ([]announcement, error) {
	raw, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	texts, err := w.AllgatherBytes(raw)
	if err != nil {
		return nil, err
	}
	all := make([]announcement, len(texts))
	for p, t := range texts {
		if err := json.Unmarshal(t, &all[p]); err != nil {
			return nil, fmt.Errorf("shared memory: rank %d announced %q: %w", p, t, err)
		}
	}
	for p, a := range all {
		if a.Err != "" {
			return nil, noSharedMemory(fmt.Sprintf("rank %d: %s", p, a.Err))
		}
	}
	return all, nil
}

func (s *shared) segmentSize(proc int) int64 {
	return pageSize + int64(s.cfg.Layout.Local(proc))*(2*slotBytes+s.size)
}

// slot is where the local'th logical rank of a process publishes small buckets.
func (s *shared) slot(proc, local, turn int, n int64) []byte {
	at := pageSize + (int64(local)*2+int64(turn))*slotBytes
	return s.segments[proc].Bytes()[at : at+n]
}

// bucket is where the gradients of a process's local'th logical rank live.
func (s *shared) bucket(proc, local, b int) []byte {
	at := pageSize + int64(s.cfg.Layout.Local(proc))*2*slotBytes + int64(local)*s.size + s.at[b]
	return s.segments[proc].Bytes()[at : at+s.cfg.Plan.Buckets[b].Bytes()]
}

func (s *shared) Name() string      { return "fixed" }
func (s *shared) Device() string    { return "cpu" }
func (s *shared) Transport() string { return "shm" }

func (s *shared) Accumulator(t contract.DType) contract.DType { return t.Accumulator() }

func (s *shared) Put(local, bucket int, fill func([]byte, int64) error) error {
	return fill(s.bucket(s.cfg.Layout.Proc, local, bucket), 0)
}

func (s *shared) Get(bucket int, lo, hi int64) ([]byte, error) {
	size := int64(s.cfg.Plan.Buckets[bucket].DType.Size())
	return s.bucket(s.cfg.Layout.Proc, 0, bucket)[lo*size : hi*size], nil
}

func (s *shared) Reduce(b int) error {
	defer s.measure(b)()
	fpenv.Set()
	if s.cfg.Plan.Buckets[b].Bytes()*int64(s.cfg.Layout.World) <= oneShotBytes {
		return s.oneShot(b)
	}
	return s.twoShot(b)
}

func (s *shared) oneShot(b int) error {
	l, n := s.cfg.Layout, s.cfg.Plan.Buckets[b].Bytes()
	turn := s.shots & 1
	s.shots++
	for i := 0; i < l.Local(l.Proc); i++ {
		copy(s.slot(l.Proc, i, turn, n), s.bucket(l.Proc, i, b))
	}
	s.gate.arrive()
	if err := s.gate.wait("bucket all-reduce"); err != nil {
		return err
	}
	addends := s.addends[:0]
	for p := 0; p < l.Procs; p++ {
		for i := 0; i < l.Local(p); i++ {
			addends = append(addends, s.slot(p, i, turn, n))
		}
	}
	dst := append(s.dsts[:0], s.bucket(l.Proc, 0, b))
	s.folders[s.cfg.Plan.Buckets[b].DType].Fold(dst, addends)
	return nil
}

func (s *shared) twoShot(b int) error {
	l, bucket := s.cfg.Layout, s.cfg.Plan.Buckets[b]
	s.gate.arrive()
	if err := s.gate.wait("bucket all-reduce"); err != nil {
		return err
	}
	lo, hi := l.Slice(bucket.Elements, l.Proc)
	if hi > lo {
		size := int64(bucket.DType.Size())
		addends, dsts := s.addends[:0], s.dsts[:0]
		for p := 0; p < l.Procs; p++ {
			for i := 0; i < l.Local(p); i++ {
				slice := s.bucket(p, i, b)[lo*size : hi*size]
				addends = append(addends, slice)
				if i == 0 {
					dsts = append(dsts, slice)
				}
			}
		}
		s.folders[bucket.DType].Fold(dsts, addends)
	}
	s.gate.arrive()
	return s.gate.wait("bucket all-reduce")
}

func (s *shared) Close() error {
	var first error
	for _, seg := range s.segments {
		if seg == nil { // never mapped
			continue
		}
		if err := seg.Close(); err != nil && first == nil {
			first = err
		}
	}
	s.segments = nil
	return first
}
