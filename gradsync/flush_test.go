//go:build cgo && (amd64 || arm64)

package gradsync

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	_ "runtime/cgo" // a test binary without a C library ignores LD_PRELOAD
	"sync/atomic"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/fpenv"
	"github.com/ddpstep/ddpstep/gradsync/fpenv/fptest"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// A loaded library may flush subnormals to zero in the threads that add: the
// reducers must not. The library is preloaded into another run of this test.
func TestPreloadedFastMath(t *testing.T) {
	if os.Getenv("GRADSYNC_TEST_FLUSHED") != "" {
		runtime.LockOSThread()
		if fpenv.Check() == nil {
			t.Fatal("the preloaded library does not flush subnormals: nothing is shown here")
		}
		sumSubnormals(t, func() {}, Full)
		return
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc, to build a library with -ffast-math")
	}
	lib := filepath.Join(t.TempDir(), "libfastmath.so")
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-O2", "-ffast-math", "-o", lib, "testdata/fastmath.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPreloadedFastMath$", "-test.v")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+lib, "GRADSYNC_TEST_FLUSHED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A library may do that at any time: here, whenever gradients are read.
func TestFastMathLoadedLater(t *testing.T) {
	runtime.LockOSThread()
	sumSubnormals(t, fptest.Flush, Off) // the check reads gradients, too
}

// sumSubnormals adds numbers whose sums are subnormal, so that their bit
// patterns add like integers. spoil is called on the adding thread before.
func sumSubnormals(t *testing.T, spoil func(), mode CheckMode) {
	const world, n = 3, 20_000
	var list []plan.Param
	for _, d := range contract.DTypes {
		list = append(list, plan.Param{Name: d.String(), DType: d, Shape: []int64{n}}, plan.Param{Name: "small " + d.String(), DType: d, Shape: []int64{9}})
	}
	p, err := plan.New(list, 1)
	if err != nil {
		t.Fatal(err)
	}
	pattern := func(rank int, i int64) uint64 { return uint64(i)%13 + uint64(rank)*3 + 1 }
	src := sourceFunc(func(dst []byte, _, rank, param int, first int64) error {
		d := list[param].DType
		for i := range len(dst) / d.Size() {
			d.PutBits(dst, i, pattern(rank, first+int64(i)))
		}
		spoil()
		return nil
	})
	// right counts the elements of a result that are what they should be.
	right := func(d contract.DType, got []byte) (k int) {
		for i := range len(got) / d.Size() {
			want := uint64(0)
			for r := range world {
				want += pattern(r, int64(i))
			}
			if d.Bits(got, i) == want {
				k++
			}
		}
		return k
	}

	// Without fpenv, the fold does what the thread does: this is the fault.
	for i, q := range list {
		addends := make([][]byte, world)
		for r := range addends {
			addends[r] = aligned(q.Bytes())
			if err := src.Read(addends[r], 0, r, i, 0); err != nil {
				t.Fatal(err)
			}
		}
		flushes := q.DType != contract.Float16 // whose subnormals are normal in float32
		if k := right(q.DType, sum(q.DType, contract.None, world, addends)); (k == 0) != flushes {
			t.Errorf("%v on a thread that flushes: %d elements are right", q.DType, k)
		}
	}

	var broken atomic.Int64 // ranks that began on a thread that flushes
	for _, c := range []struct{ reducer, transport string }{{"fixed", "shm"}, {"fixed", "mpi"}, {"mpi", "auto"}} {
		dir := folder(t)
		for _, procs := range []int{1, 2, 3} {
			launch(t, procs, false, func(w World) error {
				spoil()
				if fpenv.Check() != nil {
					broken.Add(1)
				}
				job, err := open(w, Job{
					Config: Config{Layout: Layout{World: world}, Plan: p, Average: contract.None},
					Source: src, Check: mode,
				}, c.reducer, c.transport, dir)
				if err != nil {
					return err
				}
				defer job.Reducer.Close()
				s, err := job.Run(0)
				if err != nil {
					return err
				}
				if s.Found.Differ != 0 || mode != Off && !*s.WithinBound {
					return fmt.Errorf("%+v on %d: %+v", c, procs, s.Found)
				}
				return job.results(func(_ int, s plan.Span, got []byte) error {
					d := list[s.Param].DType
					if k := right(d, got); k != len(got)/d.Size() {
						return fmt.Errorf("%+v on %d: %d of %d elements of %q are right", c, procs, k, len(got)/d.Size(), list[s.Param].Name)
					}
					return nil
				})
			})
		}
	}
	if broken.Load() == 0 {
		t.Error("no rank started on a thread that flushes: nothing is shown here")
	}
}
