package gradsync

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/check"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/params"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// readAll reads every tensor of a file, by name.
func readAll(path string) (map[string][]byte, error) {
	f, err := params.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := map[string][]byte{}
	for i, p := range f.Params() {
		m[p.Name] = aligned(p.Bytes())
		if err := f.ReadAt(m[p.Name], i, 0); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Real gradients of four ranks, whose mean NumPy computed by the contract and
// PyTorch with its own all-reduce: the first is met bit for bit, the second
// within the bound.
func TestRealGradients(t *testing.T) {
	shm := folder(t)
	for _, dir := range []string{"digits_cnn_w4_f32", "bytes_gpt_w4_f32", "bytes_gpt_w4_bf16"} {
		dir = filepath.Join("..", "testdata", dir)
		set, err := params.OpenSet(filepath.Join(dir, "rank{rank}.safetensors"), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		list := set.Params()
		want, err := readMean(dir, "numpy_fixed_order_mean", list)
		if err != nil {
			t.Fatal(err)
		}
		torch, err := readMean(dir, "torch_gloo_mean", list)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			procs     int
			mib       float64
			transport string
		}{{4, 25, "shm"}, {4, 0.05, "mpi"}, {2, 1, "mpi"}, {2, 0.05, "shm"}, {1, 25, "auto"}, {3, 0.05, "shm"}} {
			p, err := plan.New(list, plan.DefaultFirstCap, int64(c.mib*(1<<20)))
			if err != nil {
				t.Fatal(err)
			}
			launch(t, c.procs, false, func(w World) error {
				job, err := open(w, Job{
					Config: Config{Layout: Layout{World: set.World()}, Plan: p, Average: contract.Mean},
					Source: &Files{set, list}, Check: Sample,
				}, "fixed", c.transport, shm)
				if err != nil {
					return err
				}
				defer job.Reducer.Close()
				s, err := job.Run(0)
				if err != nil {
					return err
				}
				if !s.RanksEqual || !*s.ReferenceEqual || !*s.WithinBound {
					return fmt.Errorf("%s, %+v: %+v", dir, c, s.Found)
				}
				return job.results(func(_ int, s plan.Span, got []byte) error {
					p := list[s.Param]
					from := s.First * int64(p.DType.Size())
					if !bytes.Equal(got, want[p.Name][from:from+int64(len(got))]) {
						return fmt.Errorf("%s, %+v: tensor %q is not NumPy's", dir, c, p.Name)
					}
					return nil
				})
			})
		}
		for i, p := range list {
			r, err := compareWith(set, i, torch[p.Name])
			if err != nil {
				t.Fatal(err)
			}
			if r.Beyond != 0 {
				t.Errorf("%s, tensor %q: PyTorch's mean is beyond the bound in %d elements, first %+v", dir, p.Name, r.Beyond, *r.FirstBeyond)
			}
		}
	}
}

// readMean reads the tensors of list from a file of means, rounded to their
// dtypes where the file has them wider.
func readMean(dir, name string, list []plan.Param) (map[string][]byte, error) {
	m, err := readAll(filepath.Join(dir, name+".safetensors"))
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		wide, ok := m[p.Name]
		switch {
		case !ok:
			return nil, fmt.Errorf("%s has no tensor %q", name, p.Name)
		case int64(len(wide)) == p.Bytes():
			continue
		case int64(len(wide)) != 4*p.Elements():
			return nil, fmt.Errorf("%s: tensor %q has %d bytes", name, p.Name, len(wide))
		}
		narrow := aligned(p.Bytes())
		for i := range int(p.Elements()) {
			v := contract.Float32.Widen(contract.Float32.Bits(wide, i))
			p.DType.PutBits(narrow, i, p.DType.Narrow(v))
		}
		m[p.Name] = narrow
	}
	return m, nil
}

// compareWith holds a library's mean of a parameter against the bound.
//
// PyTorch's mean beside the bfloat16 gradients is that of the float32 gradients
// from which they were rounded, so each addend is off by a unit roundoff of
// bfloat16: no more than the bound has for a library that adds in bfloat16.
func compareWith(set *params.Set, param int, mean []byte) (r check.Result, err error) {
	p := set.Params()[param]
	c := check.New(p.DType, contract.Mean, set.World(), p.DType)
	size := int64(p.DType.Size())
	for lo := int64(0); lo < p.Elements(); lo += check.Block {
		hi := min(lo+check.Block, p.Elements())
		addends := make([][]byte, set.World())
		for rank := range addends {
			addends[rank] = aligned((hi - lo) * size)
			if err := set.Read(addends[rank], rank, param, lo, hi); err != nil {
				return r, err
			}
		}
		r.Merge(c.Check(mean[lo*size:hi*size], addends, lo))
	}
	return r, nil
}
