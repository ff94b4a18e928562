package gradsync

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// Ranks that wait for shared memory hold their processor, as processes may.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(64)
	m.Run()
}

// hub joins the ranks of a world that are goroutines of this process. A rank
// that fails breaks it, so that no other waits for ever.
type hub struct {
	size   int
	apart  bool // each rank is on a host of its own
	boxes  [][]chan []byte
	broken chan struct{}

	mu  sync.Mutex
	now *round
}

// round is one collective call.
type round struct {
	sent [][]byte
	n    int
	done chan struct{}
}

// rank is a World.
type rank struct {
	*hub
	rank int
}

var errBroken = errors.New("another rank failed")

func newHub(size int, apart bool) *hub {
	h := &hub{size: size, apart: apart, broken: make(chan struct{}), now: newRound(size)}
	for range size {
		row := make([]chan []byte, size)
		for i := range row {
			row[i] = make(chan []byte, 1024)
		}
		h.boxes = append(h.boxes, row)
	}
	return h
}

func newRound(size int) *round { return &round{sent: make([][]byte, size), done: make(chan struct{})} }

// launch runs f as each rank of a world, on a locked thread of its own, and
// fails the test with the first error.
func launch(t testing.TB, size int, apart bool, f func(w World) error) {
	t.Helper()
	h := newHub(size, apart)
	errs := make([]error, size)
	var all sync.WaitGroup
	for r := range size {
		all.Go(func() {
			runtime.LockOSThread() // and never unlock: the thread ends with its environment
			if errs[r] = f(&rank{h, r}); errs[r] != nil {
				h.mu.Lock()
				defer h.mu.Unlock()
				select {
				case <-h.broken:
				default:
					close(h.broken)
				}
			}
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil && !errors.Is(err, errBroken) {
			t.Fatalf("rank %d of %d: %v", r, size, err)
		}
	}
}

func (w *rank) Rank() int { return w.rank }
func (w *rank) Size() int { return w.size }

func (w *rank) LocalRanks() (all []int) {
	if w.apart {
		return []int{w.rank}
	}
	for r := range w.size {
		all = append(all, r)
	}
	return all
}

func (w *rank) Barrier() error {
	_, err := w.AllgatherBytes(nil)
	return err
}

func (w *rank) Bcast(buf []byte, root int) error {
	all, err := w.AllgatherBytes(buf)
	if err == nil {
		copy(buf, all[root])
	}
	return err
}

func (w *rank) AllgatherBytes(send []byte) ([][]byte, error) {
	w.mu.Lock()
	r := w.now
	r.sent[w.rank] = slices.Clone(send)
	if r.n++; r.n == w.size {
		w.now = newRound(w.size)
		close(r.done)
	}
	w.mu.Unlock()
	select {
	case <-r.done:
		return r.sent, nil
	case <-w.broken:
		return nil, errBroken
	}
}

// Exchange refuses what a library that copies nothing could not do: memory
// that is sent and received into at once, or received into twice.
func (w *rank) Exchange(sendTo []int, send [][]byte, recvFrom []int, recv [][]byte) error {
	for i, r := range recv {
		for k, s := range append(slices.Clone(send), recv...) {
			if k != len(send)+i && overlap(r, s) {
				return fmt.Errorf("Exchange: buffers %d and %d overlap", i, k)
			}
		}
	}
	for i, to := range sendTo {
		select {
		case w.boxes[w.rank][to] <- slices.Clone(send[i]):
		case <-w.broken:
			return errBroken
		}
	}
	for i, from := range recvFrom {
		select {
		case b := <-w.boxes[from][w.rank]:
			if len(b) != len(recv[i]) {
				return fmt.Errorf("Exchange: rank %d sent %d bytes to rank %d, which expects %d", from, len(b), w.rank, len(recv[i]))
			}
			copy(recv[i], b)
		case <-w.broken:
			return errBroken
		}
	}
	return nil
}

func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	p, q := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return p < q+uintptr(len(b)) && q < p+uintptr(len(a))
}

// AllreduceSum adds in descending order and rounds after each addition, as a
// library may.
func (w *rank) AllreduceSum(buf []byte, dtype string) error {
	t, err := contract.ParseDType(dtype)
	if err != nil {
		return err
	}
	all, err := w.AllgatherBytes(buf)
	if err != nil {
		return err
	}
	for i := range len(buf) / t.Size() {
		s := t.Widen(t.Bits(all[w.size-1], i))
		for r := w.size - 2; r >= 0; r-- {
			s = t.Widen(t.Narrow(s + t.Widen(t.Bits(all[r], i))))
		}
		t.PutBits(buf, i, t.Narrow(s))
	}
	return nil
}

// open makes a job's reducer in a world of goroutines.
func open(w World, job Job, reducer, transport, dir string) (*Job, error) {
	var err error
	job.World = w
	if job.Layout, err = NewLayout(job.Layout.World, w.Size(), w.Rank()); err != nil {
		return nil, err
	}
	job.Deadline = time.Minute
	job.Reducer, _, err = OpenCPU(job.Config, reducer, transport, dir)
	return &job, err
}

func TestLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for procs := 1; procs <= 17; procs++ {
		for world := procs; world <= 40; world++ {
			l, err := NewLayout(world, procs, 0)
			if err != nil {
				t.Fatal(err)
			}
			next := 0
			for p := range procs {
				lo, hi := l.Ranks(p)
				if lo != next || hi <= lo || l.Local(p) != hi-lo || hi-lo > world/procs+1 {
					t.Fatalf("%d ranks on %d processes: process %d has [%d, %d) after %d", world, procs, p, lo, hi, next)
				}
				next = hi
			}
			if next != world {
				t.Fatalf("%d ranks on %d processes: %d are held", world, procs, next)
			}
			n := rng.Int64N(1000)
			at := int64(0)
			for p := range procs {
				lo, hi := l.Slice(n, p)
				if lo != at || hi < lo || lo%sliceAlign != 0 && lo != n {
					t.Fatalf("%d elements on %d processes: process %d folds [%d, %d) after %d", n, procs, p, lo, hi, at)
				}
				at = hi
			}
			if at != n {
				t.Fatalf("%d elements on %d processes: %d are folded", n, procs, at)
			}
		}
	}
	if _, err := NewLayout(3, 4, 0); !errors.Is(err, ErrUsage) {
		t.Errorf("3 ranks on 4 processes: %v", err)
	}
}
