package gradsync

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

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
// and each addend is read once and each result written once.
//
// Small buckets, in one shot: when all have arrived, each process folds the
// whole bucket for itself. The result goes to the bucket's twin, because peers
// may still be reading the addends, and twin and bucket change places. So one
// wait is enough and nothing is copied: memory that a process writes next was
// last read by its peers before they arrived.
type shared struct {
	cfg      Config
	segments []*shm.Segment // by process
	at       [2][]int64     // where each bucket, and its twin, starts in a rank's memory
	size     int64          // of one rank's memory
	gate     *gate
	stopwatch
	work []work // by bucket
}

// work is what this process does to one bucket, laid out beforehand so that
// Reduce only waits and folds.
type work struct {
	folder  *contract.Folder
	oneShot bool
	turn    int         // which of bucket and twin holds the gradients
	addends [2][][]byte // by turn; none when this process has nothing to fold
	dsts    [2][][]byte
}

// oneShotBytes is the largest bucket, times logical world, that goes in one
// shot. It spares a wait but makes everybody read everything, which in cache
// lines fetched from another core soon costs more.
const oneShotBytes = 2 << 10

// announcement is what processes tell each other about their segments.
type announcement struct {
	Path  string      `json:"path"`
	Size  int64       `json:"size"`
	PID   int         `json:"pid"`
	PIDNS string      `json:"pidns"`
	CPUs  unix.CPUSet `json:"cpus"` // processors that it may run on
	Err   string      `json:"err"`
}

// noSharedMemory says why processes share none. All of them get the same one.
type noSharedMemory string

func (e noSharedMemory) Error() string { return string(e) }

// newShared sets the shared memory up, collectively. When a process cannot
// take part, every process gets the same noSharedMemory.
func newShared(cfg Config, dir string) (*shared, error) {
	s := &shared{cfg: cfg, stopwatch: newStopwatch(cfg)}
	s.place()
	all, err := s.mapAll(dir)
	if err != nil {
		s.Close()
		return nil, err
	}
	var control [][]byte
	var cpus unix.CPUSet
	pids := make([]int, len(all))
	for p, seg := range s.segments {
		control = append(control, seg.Bytes()[:pageSize])
		if all[p].PIDNS != "" && all[p].PIDNS == all[cfg.Layout.Proc].PIDNS {
			pids[p] = all[p].PID
		}
		for i, word := range all[p].CPUs {
			cpus[i] |= word
		}
	}
	s.gate = newGate(cfg.Layout.Proc, control, pids, cfg.Deadline)
	if cpus.Count() < len(all) {
		s.gate.spins = 1 // a peer that is waited for needs this processor
	}
	s.prepare()
	return s, nil
}

// mapAll makes this process's segment and maps those of all others. No names
// are left, whether it succeeds or not.
func (s *shared) mapAll(dir string) ([]announcement, error) {
	l := s.cfg.Layout
	me := announcement{PID: os.Getpid(), Size: s.segmentSize(l.Proc)}
	me.PIDNS, _ = os.Readlink("/proc/self/ns/pid")
	_ = unix.SchedGetaffinity(0, &me.CPUs) // left empty, it says that processors are short
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

// place decides where buckets and twins lie: a process's segment is the control
// page with its counter, then the memory of each of its logical ranks.
func (s *shared) place() {
	at, size := offsets(s.cfg.Plan)
	s.at = [2][]int64{at, slices.Clone(at)}
	s.work = make([]work, len(at))
	for b, bucket := range s.cfg.Plan.Buckets {
		if bucket.Bytes()*int64(s.cfg.Layout.World) <= oneShotBytes {
			s.work[b].oneShot = true
			s.at[1][b] = size
			size += pages(bucket.Bytes())
		}
	}
	s.size = size
}

// prepare makes every bucket's lists.
func (s *shared) prepare() {
	l, folders := s.cfg.Layout, folders(s.cfg)
	for b, bucket := range s.cfg.Plan.Buckets {
		w := &s.work[b]
		w.folder = folders[bucket.DType]
		lo, hi := l.Slice(bucket.Elements, l.Proc)
		if w.oneShot {
			lo, hi = 0, bucket.Elements
		}
		if hi == lo {
			continue
		}
		size := int64(bucket.DType.Size())
		for turn := range 2 {
			for p := range l.Procs {
				for i := range l.Local(p) {
					w.addends[turn] = append(w.addends[turn], s.memory(p, i, b, turn)[lo*size:hi*size])
				}
			}
			if w.oneShot {
				w.dsts[turn] = [][]byte{s.memory(l.Proc, 0, b, 1-turn)}
				continue
			}
			// Each process begins with its own, so that no two write to the
			// same one.
			for i := range l.Procs {
				w.dsts[turn] = append(w.dsts[turn], s.memory((l.Proc+i)%l.Procs, 0, b, turn)[lo*size:hi*size])
			}
		}
	}
}

func (s *shared) segmentSize(proc int) int64 {
	return pageSize + int64(s.cfg.Layout.Local(proc))*s.size
}

// memory is a bucket (turn 0) or its twin (turn 1) of a process's local'th
// logical rank.
func (s *shared) memory(proc, local, b, turn int) []byte {
	at := pageSize + int64(local)*s.size + s.at[turn][b]
	return s.segments[proc].Bytes()[at : at+s.cfg.Plan.Buckets[b].Bytes()]
}

func (s *shared) Name() string      { return "fixed" }
func (s *shared) Device() string    { return "cpu" }
func (s *shared) Transport() string { return "shm" }

func (s *shared) Accumulator(t contract.DType) contract.DType { return t.Accumulator() }

func (s *shared) Put(local, bucket int, fill func([]byte, int64) error) error {
	return fill(s.memory(s.cfg.Layout.Proc, local, bucket, s.work[bucket].turn), 0)
}

func (s *shared) Get(bucket int, lo, hi int64) ([]byte, error) {
	size := int64(s.cfg.Plan.Buckets[bucket].DType.Size())
	return s.memory(s.cfg.Layout.Proc, 0, bucket, s.work[bucket].turn)[lo*size : hi*size], nil
}

func (s *shared) Reduce(b int) error {
	defer s.measure(b)()
	fpenv.Set()
	w := &s.work[b]
	s.gate.arrive()
	if err := s.gate.wait("bucket all-reduce"); err != nil {
		return err
	}
	if len(w.addends[w.turn]) > 0 {
		w.folder.Fold(w.dsts[w.turn], w.addends[w.turn])
	}
	if w.oneShot {
		w.turn = 1 - w.turn
		return nil
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
