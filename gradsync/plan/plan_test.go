package plan_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/params"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// indices are the buckets as PyTorch's assignment lists them: in the order of
// their first parameters, before DDP reverses the list.
func indices(p *plan.Plan) (list [][]int) {
	for _, b := range slices.Backward(p.Buckets) {
		var slots []int
		for _, s := range b.Slots {
			slots = append(slots, s.Param)
		}
		list = append(list, slots)
	}
	return list
}

func TestPyTorchBuckets(t *testing.T) {
	f, err := os.Open("testdata/pytorch_buckets.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	rows := 0
	for ; lines.Scan(); rows++ {
		var row struct {
			Model   string
			DType   contract.DType
			Caps    []int64 `json:"caps_bytes"`
			Buckets [][]int
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		list, err := params.Model(row.Model)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.New(list.WithDType(row.DType), row.Caps...)
		if err != nil {
			t.Fatal(err)
		}
		if got := indices(p); fmt.Sprint(got) != fmt.Sprint(row.Buckets) {
			t.Errorf("%s, %v, caps %v: %v, PyTorch has %v", row.Model, row.DType, row.Caps, got, row.Buckets)
		}
		checkShape(t, p)
	}
	if err := lines.Err(); err != nil || rows < 40 {
		t.Fatalf("%d rows, %v", rows, err)
	}
}

func TestPyTorchBucketsOfMixedDTypes(t *testing.T) {
	raw, err := os.ReadFile("testdata/pytorch_buckets_mixed.json")
	if err != nil {
		t.Fatal(err)
	}
	var row struct {
		Sizes   [][2]any
		Caps    []int64 `json:"caps_bytes"`
		Buckets [][]int
	}
	if err := json.Unmarshal(raw, &row); err != nil {
		t.Fatal(err)
	}
	var list []plan.Param
	for i, s := range row.Sizes {
		d, err := contract.ParseDType(s[1].(string))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, plan.Param{Name: fmt.Sprint(i), DType: d, Shape: []int64{int64(s[0].(float64))}})
	}
	p, err := plan.New(list, row.Caps...)
	if err != nil {
		t.Fatal(err)
	}
	if got := indices(p); fmt.Sprint(got) != fmt.Sprint(row.Buckets) || len(got) == 0 {
		t.Errorf("%v, PyTorch has %v", got, row.Buckets)
	}
	checkShape(t, p)
}

// checkShape holds a plan against what every plan promises.
func checkShape(t *testing.T, p *plan.Plan) {
	t.Helper()
	seen := make([]bool, len(p.Params))
	var bytes, largest int64
	for _, b := range p.Buckets {
		at := int64(0)
		for i, s := range b.Slots {
			it := p.Params[s.Param]
			if seen[s.Param] || it.DType != b.DType || s.Offset != at || i > 0 && s.Param <= b.Slots[i-1].Param {
				t.Fatalf("slot %+v of a bucket of %v at %d", s, b.DType, at)
			}
			seen[s.Param] = true
			at += it.Elements()
		}
		if at != b.Elements || len(b.Slots) == 0 {
			t.Fatalf("a bucket of %d slots says %d elements, not %d", len(b.Slots), b.Elements, at)
		}
		bytes += b.Bytes()
		largest = max(largest, b.Bytes())
	}
	if slices.Contains(seen, false) {
		t.Fatal("a parameter is in no bucket")
	}
	if p.Bytes() != bytes || p.MaxBytes() != largest {
		t.Fatalf("%d bytes, largest %d, not %d and %d", p.Bytes(), p.MaxBytes(), bytes, largest)
	}
}

// random has scalars, empty parameters and all dtypes.
func random(rng *rand.Rand) []plan.Param {
	var list []plan.Param
	for i := range 1 + rng.IntN(30) {
		shape := []int64{rng.Int64N(40), 1 + rng.Int64N(3)}[:rng.IntN(3)]
		list = append(list, plan.Param{Name: fmt.Sprint("p", i), DType: contract.DTypes[rng.IntN(4)], Shape: shape})
	}
	return list
}

// Spans of any cut of a bucket, put together, are the bucket: each element once,
// with its parameter and index.
func TestSpansCoverTheBucket(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		p, err := plan.New(random(rng), 1+rng.Int64N(200), 1+rng.Int64N(1000))
		if err != nil {
			t.Fatal(err)
		}
		checkShape(t, p)
		for _, b := range p.Buckets {
			type place struct {
				param int
				index int64
			}
			var want, got []place
			for _, s := range b.Slots {
				for i := range p.Params[s.Param].Elements() {
					want = append(want, place{s.Param, i})
				}
			}
			for lo := int64(0); lo < b.Elements; {
				hi := min(lo+1+rng.Int64N(50), b.Elements)
				at := lo
				for _, s := range p.Spans(b, lo, hi) {
					if s.Offset != at || s.Elements < 1 {
						t.Fatalf("span %+v of [%d, %d) at %d", s, lo, hi, at)
					}
					for i := range s.Elements {
						got = append(got, place{s.Param, s.First + i})
					}
					at += s.Elements
				}
				if at != hi {
					t.Fatalf("the spans of [%d, %d) end at %d", lo, hi, at)
				}
				lo = hi
			}
			if !slices.Equal(got, want) {
				t.Fatalf("spans give %v, not %v", got, want)
			}
			if s := p.Spans(b, b.Elements, b.Elements); len(s) != 0 {
				t.Fatalf("no elements have spans %v", s)
			}
		}
	}
}

func TestDigestSeesEveryChange(t *testing.T) {
	base := func() []plan.Param {
		return []plan.Param{
			{Name: "a", DType: contract.Float32, Shape: []int64{2, 3}},
			{Name: "b", DType: contract.Float32, Shape: []int64{5}},
			{Name: "c", DType: contract.BFloat16, Shape: []int64{7}},
			{Name: "d", DType: contract.Float32, Shape: nil},
		}
	}
	caps := []int64{24, 1000}
	digest := func(list []plan.Param, caps ...int64) string {
		p, err := plan.New(list, caps...)
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest()
	}
	seen := map[string]string{digest(base(), caps...): "nothing"}
	if again := digest(base(), caps...); seen[again] == "" {
		t.Fatal("equal plans have different digests")
	}
	for name, change := range map[string]func(l []plan.Param) []plan.Param{
		"a name":           func(l []plan.Param) []plan.Param { l[1].Name = "B"; return l },
		"a dtype":          func(l []plan.Param) []plan.Param { l[1].DType = contract.Float16; return l },
		"a shape":          func(l []plan.Param) []plan.Param { l[0].Shape = []int64{3, 2}; return l },
		"a flat shape":     func(l []plan.Param) []plan.Param { l[0].Shape = []int64{6}; return l },
		"a scalar's shape": func(l []plan.Param) []plan.Param { l[3].Shape = []int64{1}; return l },
		"the order":        func(l []plan.Param) []plan.Param { l[0], l[1] = l[1], l[0]; return l },
		"one less":         func(l []plan.Param) []plan.Param { return l[:3] },
		"an empty one": func(l []plan.Param) []plan.Param {
			return append(l, plan.Param{Name: "e", DType: contract.Float32, Shape: []int64{0}})
		},
	} {
		d := digest(change(base()), caps...)
		if was, twice := seen[d]; twice {
			t.Errorf("%s has the digest of %s", name, was)
		}
		seen[d] = name
	}
	if d := digest(base(), 1000); seen[d] != "" {
		t.Errorf("other buckets have the digest of %s", seen[d])
	}
	if digest(base(), 500, 600) != digest(base(), 1000) {
		t.Error("caps that change no bucket change the digest")
	}
}

func TestCaps(t *testing.T) {
	list := []plan.Param{
		{Name: "a", DType: contract.Float32, Shape: []int64{2}},
		{Name: "b", DType: contract.Float32, Shape: []int64{2}},
		{Name: "c", DType: contract.Float32, Shape: []int64{2}},
	}
	for _, c := range []struct {
		caps []int64
		want string
	}{
		{[]int64{plan.All}, "[[0 1 2]]"},
		{[]int64{1}, "[[0] [1] [2]]"},
		{[]int64{8, 16}, "[[0] [1 2]]"},
		{[]int64{9}, "[[0 1] [2]]"},
		{[]int64{24}, "[[0 1 2]]"},
	} {
		p, err := plan.New(list, c.caps...)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(indices(p)); got != c.want {
			t.Errorf("caps %v: %s, not %s", c.caps, got, c.want)
		}
	}
	for _, caps := range [][]int64{nil, {0}, {1, -1}} {
		if _, err := plan.New(list, caps...); err == nil {
			t.Errorf("caps %v are accepted", caps)
		}
	}
	if p, err := plan.New(nil, 1); err != nil || len(p.Buckets) != 0 {
		t.Errorf("no parameters make %v, %v", p, err)
	}
}
