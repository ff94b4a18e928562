package gradsync

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/values"
)

// faulty is a Reducer that is right but for what plant does. It brings all
// contributions of a bucket together, and plant makes the result of them.
type faulty struct {
	*private
	cfg   Config
	name  string
	last  map[int][][]byte // contributions of the step before, by bucket
	plant plant
}

// plant makes a bucket's result on process proc. old are the contributions of
// the step before.
type plant func(proc int, t contract.DType, addends, old [][]byte) []byte

func (f *faulty) Name() string      { return f.name }
func (f *faulty) Transport() string { return "none" }

func (f *faulty) Accumulator(t contract.DType) contract.DType { return t.Accumulator() }

func (f *faulty) Reduce(b int) error {
	all, err := f.cfg.World.AllgatherBytes(f.bucket(0, b))
	if err != nil {
		return err
	}
	old := f.last[b]
	f.last[b] = all
	if old == nil {
		old = all
	}
	addends := make([][]byte, len(all))
	for r := range all {
		addends[r] = aligned(int64(len(all[r])))
		copy(addends[r], all[r])
	}
	t := f.cfg.Plan.Buckets[b].DType
	copy(f.bucket(0, b), f.plant(f.cfg.Layout.Proc, t, addends, old))
	return nil
}

func sum(t contract.DType, a contract.Average, world int, addends [][]byte) []byte {
	got := aligned(int64(len(addends[0])))
	contract.NewFolder(t, a, world).Fold([][]byte{got}, addends)
	return got
}

// at changes element 100 of the right result.
func at(where func(proc int) bool, change func(t contract.DType, bits uint64) uint64) plant {
	return func(proc int, t contract.DType, g, _ [][]byte) []byte {
		got := sum(t, contract.Mean, len(g), g)
		if where(proc) {
			t.PutBits(got, 100, change(t, t.Bits(got, 100)))
		}
		return got
	}
}

// nextUnit changes the last bit, where the bound leaves room for that: a unit
// of a 16-bit dtype is more than its accumulator's errors.
func nextUnit(t contract.DType, bits uint64) uint64 {
	if t.Size() == 2 {
		return bits
	}
	return bits ^ 1
}

func everywhere(int) bool      { return true }
func onProcess2(proc int) bool { return proc == 2 }

func TestFaultsFailTheRightVerdict(t *testing.T) {
	const world, n = 4, 3000
	var list []plan.Param
	for _, d := range contract.DTypes {
		list = append(list, plan.Param{Name: d.String(), DType: d, Shape: []int64{n}})
	}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                 string
		set                  values.Set
		ranks, equal, within bool // verdicts
		plant                plant
	}{
		{"none", values.Wide, true, true, true, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, g)
		}},
		{"reversed", values.Wide, true, false, true, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			slices.Reverse(g)
			return sum(t, contract.Mean, world, g)
		}},
		{"rotated", values.Wide, true, false, true, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, append(g[1:], g[0]))
		}},
		{"rotated by rank", values.Wide, false, false, true, func(proc int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, append(g[proc:], g[:proc]...))
		}},
		{"reversed, of integers", values.Exact, true, true, true, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			slices.Reverse(g)
			return sum(t, contract.Mean, world, g)
		}},
		{"lost", values.Exact, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, g[:world-1])
		}},
		{"lost, of wide values", values.Wide, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, g[:world-1])
		}},
		{"doubled", values.Exact, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, append(g, g[0]))
		}},
		{"stale", values.Exact, true, false, false, func(_ int, t contract.DType, g, old [][]byte) []byte {
			copy(g[1], old[1])
			return sum(t, contract.Mean, world, g)
		}},
		{"own contribution only", values.Exact, false, false, false, func(proc int, _ contract.DType, g, _ [][]byte) []byte {
			return g[proc]
		}},
		{"no average", values.Exact, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.None, world, g)
		}},
		{"averaged twice", values.Exact, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			once := sum(t, contract.Mean, world, g)
			return sum(t, contract.Mean, world, [][]byte{once})
		}},
		{"chain from zero", values.Zero, true, false, true, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			return sum(t, contract.Mean, world, append([][]byte{aligned(int64(len(g[0])))}, g...))
		}},
		{"flushed to zero", values.Subnormal, true, false, false, func(_ int, _ contract.DType, g, _ [][]byte) []byte {
			return aligned(int64(len(g[0])))
		}},
		{"NaN", values.Wide, true, false, false, at(everywhere, func(t contract.DType, _ uint64) uint64 { return t.NaN() })},
		{"NaN on one process", values.Wide, false, false, false, at(onProcess2, func(t contract.DType, _ uint64) uint64 { return t.NaN() })},
		{"one unit", values.Wide, true, false, true, at(everywhere, nextUnit)},
		{"one unit on one process", values.Wide, false, false, true, at(onProcess2, nextUnit)},
		{"sign", values.Exact, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			got := sum(t, contract.Mean, world, g)
			for i := range len(got) / t.Size() {
				t.PutBits(got, i, t.Bits(got, i)^1<<(8*t.Size()-1))
			}
			return got
		}},
		{"shifted", values.Exact, true, false, false, func(_ int, t contract.DType, g, _ [][]byte) []byte {
			got := sum(t, contract.Mean, world, g)
			return append(got[t.Size():], got[:t.Size()]...)
		}},
	} {
		for _, reducer := range []string{"fixed", "mpi"} { // the second promises no bits
			t.Run(c.name+"/"+reducer, func(t *testing.T) {
				launch(t, world, false, func(w World) error {
					job := &Job{
						Config: Config{World: w, Layout: Layout{world, world, w.Rank()}, Plan: p, Average: contract.Mean},
						Source: &Generated{list, 1, c.set},
					}
					mem, err := newPrivate(job.Config)
					if err != nil {
						return err
					}
					defer mem.Close()
					job.Reducer = &faulty{mem, job.Config, reducer, map[int][][]byte{}, c.plant}
					if err := job.Warm(0); err != nil {
						return err
					}
					s, err := job.Run(1)
					if err != nil {
						return err
					}
					if s.RanksEqual != c.ranks || *s.WithinBound != c.within {
						return fmt.Errorf("ranks equal %v, within bound %v: %+v", s.RanksEqual, *s.WithinBound, s.Found)
					}
					if (s.ReferenceEqual == nil) == (reducer == "fixed") || reducer == "fixed" && *s.ReferenceEqual != c.equal {
						return fmt.Errorf("equal to the reference %v: %+v", s.ReferenceEqual, s.Found)
					}
					return foundIsNamed(s, c.ranks, c.equal, c.within)
				})
			})
		}
	}
}

// foundIsNamed holds the places that a step names against its verdicts.
func foundIsNamed(s *Step, ranks, equal, within bool) error {
	f := s.Found
	if (f.Unequal == nil) != ranks || (f.FirstDiffer == nil) != equal || (f.FirstBeyond == nil) != within {
		return fmt.Errorf("the first faults are not named: %+v", f)
	}
	if (f.Differ == 0) != equal || (f.Beyond == 0) != within {
		return fmt.Errorf("faults are not counted: %+v", f)
	}
	if d := f.FirstDiffer; d != nil && d.Got == d.Want {
		return fmt.Errorf("%+v differs from itself", *d)
	}
	return nil
}

// A fault of one process, where it is not the one to check: named with the
// process that has it, its parameter and its index.
func TestPlaceOfAFault(t *testing.T) {
	const world = 4
	list := []plan.Param{
		{Name: "a", DType: contract.Float32, Shape: []int64{90}},
		{Name: "b", DType: contract.Float32, Shape: []int64{1000}},
	}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	launch(t, world, false, func(w World) error {
		job := &Job{
			Config: Config{World: w, Layout: Layout{world, world, w.Rank()}, Plan: p, Average: contract.Mean},
			Source: &Generated{list, 1, values.Wide},
		}
		mem, err := newPrivate(job.Config)
		if err != nil {
			return err
		}
		defer mem.Close()
		flip := at(onProcess2, func(_ contract.DType, bits uint64) uint64 { return bits ^ 1<<31 })
		job.Reducer = &faulty{mem, job.Config, "fixed", map[int][][]byte{}, flip}
		s, err := job.Run(0)
		if err != nil {
			return err
		}
		d := s.Found.FirstDiffer
		if d == nil || d.Proc != 2 || d.Bucket != 0 || d.Param != 1 || d.Index != 10 || d.Got != d.Want^1<<31 {
			return fmt.Errorf("process 2, parameter 1, index 10 is named as %+v", d)
		}
		if u := s.Found.Unequal; u == nil || u.Param != 1 || u.Ranks != [2]int{0, 2} {
			return fmt.Errorf("ranks 0 and 2 differ in parameter 1: %+v", u)
		}
		if s.Found.Differ != 1 {
			return fmt.Errorf("%d elements differ", s.Found.Differ)
		}
		return nil
	})
}

// sourceFunc is a Source.
type sourceFunc func(dst []byte, step, rank, param int, first int64) error

func (f sourceFunc) Read(dst []byte, step, rank, param int, first int64) error {
	return f(dst, step, rank, param, first)
}

// What goes wrong on one process is what every process returns.
func TestFailuresAreAgreedOn(t *testing.T) {
	list := []plan.Param{{Name: "a", DType: contract.Float32, Shape: []int64{500}}, {Name: "b", DType: contract.Float16, Shape: []int64{30}}}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	good := &Generated{list, 1, values.Wide}
	broken := errors.New("disk on fire")
	put := func(rank, param int, index int64, bits uint64) sourceFunc {
		return func(dst []byte, step, r, q int, first int64) error {
			err := good.Read(dst, step, r, q, first)
			d := list[q].DType
			if at := index - first; r == rank && q == param && at >= 0 && at < int64(len(dst)/d.Size()) {
				d.PutBits(dst, int(at), bits)
			}
			return err
		}
	}
	for _, c := range []struct {
		name   string
		source Source
		allow  bool
		kind   error
		want   string
	}{
		{"file", sourceFunc(func(dst []byte, step, r, q int, first int64) error {
			if r == 2 {
				return fmt.Errorf("rank2.safetensors: cut short: %w", ErrUsage)
			}
			return good.Read(dst, step, r, q, first)
		}), false, ErrUsage, "rank 1: rank2.safetensors: cut short"},
		{"two failures", sourceFunc(func(dst []byte, step, r, q int, first int64) error {
			switch r {
			case 0:
				return fmt.Errorf("no such file: %w", ErrUsage)
			case 4:
				return broken // of no known kind: internal, which is worse
			}
			return good.Read(dst, step, r, q, first)
		}), false, nil, "rank 2: disk on fire"},
		{"NaN", put(3, 0, 77, 0x7fc00001), false, ErrNonFinite, `logical rank 3, parameter "a", index 77 is NaN (bits 0x7fc00001)`},
		{"infinity", put(4, 1, 29, 0xfc00), false, ErrNonFinite, `logical rank 4, parameter "b", index 29 is -Inf (bits 0xfc00)`},
		{"NaN, allowed", put(3, 0, 77, 0x7fc00001), true, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t)
			launch(t, 3, false, func(w World) error {
				job, err := open(w, Job{
					Config: Config{Layout: Layout{World: 5}, Plan: p, Average: contract.Mean},
					Source: c.source, AllowNonFinite: c.allow,
				}, "fixed", "shm", dir)
				if err != nil {
					return err
				}
				defer job.Reducer.Close()
				s, err := job.Run(0)
				if c.want == "" {
					if err != nil || !*s.ReferenceEqual || s.Found.NonFinite != 1 {
						return fmt.Errorf("%+v, %w", s, err)
					}
					return nil
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || c.kind != nil && !errors.Is(err, c.kind) {
					return fmt.Errorf("%v, expected %q", err, c.want)
				}
				if c.kind == nil && ExitCode(err) != ExitInternal {
					return fmt.Errorf("exit code %d", ExitCode(err))
				}
				return nil
			})
		})
	}
}

// A source that fails while results are checked leaves nobody behind either.
func TestSourceFailsInTheCheck(t *testing.T) {
	list := []plan.Param{{Name: "a", DType: contract.Float32, Shape: []int64{500}}}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	good := &Generated{list, 1, values.Wide}
	launch(t, 3, false, func(w World) error {
		job, err := open(w, Job{
			Config: Config{Layout: Layout{World: 3}, Plan: p, Average: contract.Mean},
			Source: sourceFunc(func(dst []byte, step, r, q int, first int64) error {
				if r == 2 && w.Rank() == 1 { // which rank 1 reads in order to check
					return fmt.Errorf("stale handle: %w", ErrUsage)
				}
				return good.Read(dst, step, r, q, first)
			}),
		}, "fixed", "mpi", "")
		if err != nil {
			return err
		}
		defer job.Reducer.Close()
		if _, err := job.Run(0); !errors.Is(err, ErrUsage) || err.Error() != "rank 1: stale handle: bad usage or input" {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
}

func TestInterruptionIsSeenByAll(t *testing.T) {
	list := []plan.Param{{Name: "a", DType: contract.Float32, Shape: []int64{5}}}
	p, err := plan.New(list, plan.All)
	if err != nil {
		t.Fatal(err)
	}
	launch(t, 3, false, func(w World) error {
		job, err := open(w, Job{
			Config: Config{Layout: Layout{World: 3}, Plan: p, Average: contract.Mean},
			Source: &Generated{list, 1, values.Wide}, Check: Off,
			Interrupted: func() bool { return w.Rank() == 1 },
		}, "fixed", "mpi", "")
		if err != nil {
			return err
		}
		defer job.Reducer.Close()
		s, err := job.Run(0)
		if err != nil || !s.Interrupted || s.WithinBound != nil || s.ReferenceEqual != nil {
			return fmt.Errorf("%+v, %w", s, err)
		}
		return nil
	})
}
