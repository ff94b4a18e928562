package gradsync

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/digest"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/shm"
	"github.com/ddpstep/ddpstep/gradsync/values"
)

// folder is a folder for shared memory; nothing may be left in it.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp(shm.Dir, "ddpstep-test-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%d names are left in %s, %v", len(left), dir, err)
		}
		os.RemoveAll(dir)
	})
	return dir
}

// someParams are scalars, empty ones, odd sizes, and one that is long enough
// for slices on many processes.
func someParams(rng *rand.Rand) []plan.Param {
	var list []plan.Param
	for i := range 3 + rng.IntN(12) {
		shape := []int64{1 + rng.Int64N(60), 1 + rng.Int64N(60)}[:rng.IntN(3)]
		switch rng.IntN(8) {
		case 0:
			shape = []int64{0, 5}
		case 1:
			shape = []int64{2000 + rng.Int64N(3000)}
		}
		list = append(list, plan.Param{Name: fmt.Sprint("p", i), DType: contract.DTypes[rng.IntN(4)], Shape: shape})
	}
	return append(list, plan.Param{Name: "last", DType: contract.Float32, Shape: []int64{7}})
}

func aligned(n int64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))), n)
}

// answer is the digest of each parameter's sum by the contract, computed
// without buckets, processes or transports.
func answer(src Source, list []plan.Param, a contract.Average, world, step int) (map[string]digest.Digest, error) {
	m := map[string]digest.Digest{}
	for i, p := range list {
		addends := make([][]byte, world)
		for r := range addends {
			addends[r] = aligned(p.Bytes())
			if err := src.Read(addends[r], step, r, i, 0); err != nil {
				return nil, err
			}
		}
		contract.NewFolder(p.DType, a, world).Fold(addends[:1], addends)
		m[p.Name] = digest.Of(p.DType, 0, addends[0])
	}
	return m, nil
}

// The promise: the same bits whatever the bucket caps, the order of parameters,
// the number of processes and the transport.
func TestSameBits(t *testing.T) {
	dir := folder(t)
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 1))
		list := someParams(rng)
		world := 1 + rng.IntN(16)
		average := []contract.Average{contract.Mean, contract.Pre, contract.None}[rng.IntN(3)]
		set := []values.Set{values.Wide, values.Wide, values.Subnormal, values.Zero, values.NaN, values.Huge}[rng.IntN(6)]
		const steps = 3
		var want [steps]map[string]digest.Digest
		var total [steps]string
		for step := range steps {
			var err error
			want[step], err = answer(&Generated{list, seed, set}, list, average, world, step)
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			procs := 1 + rng.IntN(min(world, 8))
			transport := []string{"shm", "mpi", "auto"}[rng.IntN(3)]
			order := slices.Clone(list)
			rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			caps := []int64{1 + rng.Int64N(20_000), 1 + rng.Int64N(200_000)}
			p, err := plan.New(order, caps...)
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("seed %d: %v %v of %d on %d by %s, caps %d", seed, average, set, world, procs, transport, caps)
			launch(t, procs, false, func(w World) error {
				job, err := open(w, Job{
					Config: Config{Layout: Layout{World: world}, Plan: p, Average: average},
					Source: &Generated{order, seed, set}, AllowNonFinite: true,
				}, "fixed", transport, dir)
				if err != nil {
					return err
				}
				defer job.Reducer.Close()
				if err := job.Warm(-1); err != nil {
					return err
				}
				for step := range steps {
					s, err := job.Run(step)
					if err != nil {
						return err
					}
					for i, d := range s.Digests {
						if d != want[step][order[i].Name] {
							return fmt.Errorf("%s: step %d, parameter %q %v %v has other bits", name, step, order[i].Name, order[i].DType, order[i].Shape)
						}
					}
					if !s.RanksEqual || !*s.ReferenceEqual || !*s.WithinBound {
						return fmt.Errorf("%s: step %d: %+v", name, step, s)
					}
					if s.Found.Elements != elements(order) {
						return fmt.Errorf("%s: %d elements checked", name, s.Found.Elements)
					}
					if w.Rank() == 0 {
						if total[step] == "" {
							total[step] = s.Digest
						}
						if s.Digest != total[step] {
							return fmt.Errorf("%s: the digest of step %d depends on the order of parameters", name, step)
						}
					}
				}
				return nil
			})
		}
	}
}

func elements(list []plan.Param) (n int64) {
	for _, p := range list {
		n += p.Elements()
	}
	return n
}

// Buckets of several chunks, with slices that end within one.
func TestLargeBuckets(t *testing.T) {
	dir := folder(t)
	list := []plan.Param{
		{Name: "a", DType: contract.Float32, Shape: []int64{1_300_003}},
		{Name: "b", DType: contract.BFloat16, Shape: []int64{333_333}},
	}
	const world = 3
	src := &Generated{list, 1, values.Wide}
	want, err := answer(src, list, contract.Mean, world, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		procs     int
		transport string
	}{{1, "mpi"}, {2, "mpi"}, {3, "mpi"}, {2, "shm"}, {3, "shm"}} {
		launch(t, c.procs, false, func(w World) error {
			job, err := open(w, Job{
				Config: Config{Layout: Layout{World: world}, Plan: p, Average: contract.Mean},
				Source: src, Check: Sample,
			}, "fixed", c.transport, dir)
			if err != nil {
				return err
			}
			defer job.Reducer.Close()
			s, err := job.Run(0)
			if err != nil {
				return err
			}
			for i, d := range s.Digests {
				if d != want[list[i].Name] {
					return fmt.Errorf("%+v: parameter %q has other bits", c, list[i].Name)
				}
			}
			if n := s.Found.Elements; n < elements(list)/40 || n > elements(list)/4 {
				return fmt.Errorf("%+v: a sample of %d of %d elements", c, n, elements(list))
			}
			return nil
		})
	}
}

// A library's order gives other bits within the bound, for every average and
// with several logical ranks on a process.
func TestLibraryIsWithinTheBound(t *testing.T) {
	list := []plan.Param{}
	for _, d := range contract.DTypes {
		list = append(list, plan.Param{Name: d.String(), DType: d, Shape: []int64{1500}})
	}
	p, err := plan.New(list, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, average := range []contract.Average{contract.Mean, contract.Pre, contract.None} {
		for _, c := range []struct{ world, procs int }{{1, 1}, {3, 1}, {4, 4}, {5, 3}, {7, 2}} {
			for _, set := range []values.Set{values.Wide, values.Exact, values.Subnormal} {
				launch(t, c.procs, false, func(w World) error {
					job, err := open(w, Job{
						Config: Config{Layout: Layout{World: c.world}, Plan: p, Average: average},
						Source: &Generated{list, 1, set},
					}, "mpi", "auto", "")
					if err != nil {
						return err
					}
					defer job.Reducer.Close()
					s, err := job.Run(0)
					if err != nil {
						return err
					}
					if !s.RanksEqual || !*s.WithinBound || s.ReferenceEqual != nil {
						return fmt.Errorf("%v %v, %+v: %+v, first %+v", average, set, c, s, s.Found.FirstBeyond)
					}
					if set == values.Wide && c.procs > 2 && s.Found.Differ == 0 {
						return fmt.Errorf("%v, %+v: another order gives the same bits", average, c)
					}
					return nil
				})
			}
		}
	}
}

func TestOpenCPU(t *testing.T) {
	list := []plan.Param{{Name: "a", DType: contract.Float32, Shape: []int64{100}}}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	good := folder(t)
	for _, c := range []struct {
		name, transport string
		procs           int
		apart           bool
		dir             func(rank int) string
		want            string // transport
		note            string // or error
		err             error
	}{
		{"fixed", "auto", 1, false, nil, "none", "", nil},
		{"fixed", "auto", 3, false, nil, "shm", "", nil},
		{"fixed", "shm", 1, false, nil, "shm", "", nil},
		{"fixed", "mpi", 3, false, nil, "mpi", "", nil},
		{"fixed", "auto", 3, true, nil, "mpi", "", nil},
		{"mpi", "auto", 2, false, nil, "mpi", "", nil},
		{"fixed", "shm", 3, true, nil, "", "several hosts", ErrEnvironment},
		{"mpi", "shm", 2, false, nil, "", "use fixed, or mpi", ErrUsage},
		{"nccl", "auto", 2, false, nil, "", "use fixed, or mpi", ErrUsage},
		// One rank's folder is not there: all fall back, and name that rank.
		{"fixed", "auto", 4, false, noFolderFor(2, good), "mpi", "rank 2: shared memory: ", nil},
		{"fixed", "shm", 4, false, noFolderFor(3, good), "", "rank 3: shared memory: ", ErrEnvironment},
	} {
		dir := c.dir
		if dir == nil {
			dir = func(int) string { return good }
		}
		var mu sync.Mutex
		notes := map[string]bool{}
		launch(t, c.procs, c.apart, func(w World) error {
			l, err := NewLayout(c.procs, c.procs, w.Rank())
			if err != nil {
				return err
			}
			r, note, err := OpenCPU(Config{World: w, Layout: l, Plan: p, Average: contract.Mean}, c.name, c.transport, dir(w.Rank()))
			if !errors.Is(err, c.err) {
				return fmt.Errorf("%+v: %v", c, err)
			}
			if err != nil {
				note = err.Error()
			} else {
				if r.Transport() != c.want || r.Name() != c.name {
					return fmt.Errorf("%+v: %s over %s", c, r.Name(), r.Transport())
				}
				defer r.Close()
			}
			if !strings.Contains(note, c.note) || c.note == "" && note != "" || strings.Contains(note, "\n") {
				return fmt.Errorf("%+v: %q", c, note)
			}
			mu.Lock()
			defer mu.Unlock()
			notes[note] = true
			return nil
		})
		if len(notes) != 1 {
			t.Errorf("%s over %s: ranks disagree: %v", c.name, c.transport, notes)
		}
	}
}

func noFolderFor(odd int, good string) func(int) string {
	return func(rank int) string {
		if rank == odd {
			return good + "/none"
		}
		return good
	}
}
