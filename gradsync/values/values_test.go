package values

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/digest"
)

func words(t contract.DType, n int) []byte {
	mem := make([]uint64, n*t.Size()/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), n*t.Size())
}

func world(t contract.DType, set Set, w, n int, seed uint64) [][]byte {
	addends := make([][]byte, w)
	for r := range addends {
		addends[r] = words(t, n)
		Fill(addends[r], t, set, KeyFor(seed, 3, r, "layer.weight"), 0)
	}
	return addends
}

// golden are digests of 1000 elements of rank 2, seed 1, step 3, parameter
// "layer.weight", from index 2^32-500 on, so that both halves of the index
// count. A change of any of them is a change of what every recorded run with
// generated values meant.
var golden = map[string]string{
	"wide/float16":       "652118669da89456547ef2665b1a1a24",
	"wide/bfloat16":      "98ce172dde25dd3d3b622ee8b04bcfb7",
	"wide/float32":       "93dd3d5ffcedacfad0ee70382d10888f",
	"wide/float64":       "6f343ede514bdd9f9c8f9473fedeb775",
	"exact/float16":      "13ff4598080e54f2592678da4f968f5b",
	"exact/bfloat16":     "ac88c7934f718042aca3920d1f471c1b",
	"exact/float32":      "18cf6831fe1e1672c94ea46debf8da5b",
	"exact/float64":      "c0ea5161a34e1672caccbd064caada5b",
	"cancel/float16":     "983de020b1ab6e3b3f9e244ae20590d9",
	"cancel/bfloat16":    "79771eeda029d2a1dcc056141045eadc",
	"cancel/float32":     "156410576d3862301a2c84058e0469cd",
	"cancel/float64":     "b6d01e8ab3e3d5f76eac470b3e7cf69b",
	"subnormal/float16":  "adf50147be8a644d6d6ecb8323eb673b",
	"subnormal/bfloat16": "16dcf4228e270e14147b650eecfba325",
	"subnormal/float32":  "220f4bbb129547c1ee8308d6303f2545",
	"subnormal/float64":  "5ed1ffa2e360baa396b86449ad03bffa",
	"zero/float16":       "d1ce31c3c43d9672bd25228e373a5a5b",
	"zero/bfloat16":      "d1ce31c3c43d9672bd25228e373a5a5b",
	"zero/float32":       "66c6c0c2eace16724a3a963d3b18da5b",
	"zero/float64":       "2db496616ace16726c2010973b18da5b",
	"huge/float16":       "de995494dba8044deadcb9221fd56f3b",
	"huge/bfloat16":      "dbbd4ec26afcb414bf7f0ac864462825",
	"huge/float32":       "96a03aa8269547c100938986773f2545",
	"huge/float64":       "82134a41b4a0baa3e5013d6f3243bffa",
	"inf/float16":        "51e5088bcca39fbd5fb72044ca6a9192",
	"inf/bfloat16":       "2fdc5afde1783fe40f3d50ba4cc7f318",
	"inf/float32":        "e43adff2f814b09cd832b713471ca33b",
	"inf/float64":        "904e3992d0e160210fa57b370cb28d4f",
	"nan/float16":        "992797db1e53549084d8d6442f72b0df",
	"nan/bfloat16":       "80380728bfa9c0ef970bced76ebd2d03",
	"nan/float32":        "f668bd38e5bbd32cb680a09509924886",
	"nan/float64":        "61f01017c20b9a7f8e96dbd8136c9575",
}

func TestGolden(t *testing.T) {
	for s := range numSets {
		for _, d := range contract.DTypes {
			b := words(d, 1000)
			Fill(b, d, s, KeyFor(1, 3, 2, "layer.weight"), 1<<32-500)
			name := fmt.Sprintf("%v/%v", s, d)
			if got := digest.Of(d, 0, b).String(); got != golden[name] {
				t.Errorf("%q: %q, golden %q", name, got, golden[name])
			}
		}
	}
	if k, want := KeyFor(1, 3, 2, "layer.weight"), (Key{Param: 0x3a8430eb, Pair: 0x5600e721, Rank: 0xaafab105, Odd: 0x0, First: 0x0}); k != want {
		t.Errorf("key %#v, golden %#v", k, want)
	}
}

// An element is the same however it is asked for.
func TestFillFromAnyIndex(t *testing.T) {
	for s := range numSets {
		for _, d := range contract.DTypes {
			k := KeyFor(7, 0, 1, "p")
			whole := words(d, 300)
			const first = 1<<32 - 50
			Fill(whole, d, s, k, first)
			for _, at := range []int{0, 1, 37, 299} {
				part := words(d, 300-at)
				Fill(part, d, s, k, first+int64(at))
				if string(part) != string(whole[at*d.Size():]) {
					t.Errorf("%v %v: from index %d on other values come", s, d, first+at)
				}
			}
		}
	}
}

// Whatever makes a contribution another one gives it other values.
func TestKeysDiffer(t *testing.T) {
	seen := map[Key]string{}
	for _, seed := range []uint64{0, 1, 2, 1 << 63} {
		for step := range 5 {
			for rank := range 40 {
				for _, p := range []string{"", "a", "b", "a.weight", "a.bias"} {
					k := KeyFor(seed, step, rank, p)
					name := fmt.Sprint(seed, step, rank, p)
					if was := seen[k]; was != "" {
						t.Fatalf("%s and %s have the same key", was, name)
					}
					seen[k] = name
				}
			}
		}
	}
}

func fold(d contract.DType, addends [][]byte) []byte {
	got := words(d, len(addends[0])/d.Size())
	contract.NewFolder(d, contract.Mean, len(addends)).Fold([][]byte{got}, addends)
	return got
}

// differing counts the elements whose bits differ.
func differing(d contract.DType, a, b []byte) (n int) {
	for i := range len(a) / d.Size() {
		if x, y := d.Bits(a, i), d.Bits(b, i); x != y {
			n++
		}
	}
	return n
}

// orders of W ranks: reversed, and rotated by each amount.
func orders(g [][]byte) map[string][][]byte {
	w := len(g)
	m := map[string][][]byte{"reversed": make([][]byte, w)}
	for r := range g {
		m["reversed"][w-1-r] = g[r]
	}
	for by := 1; by < w; by++ {
		m[fmt.Sprint("rotated by ", by)] = append(append([][]byte{}, g[by:]...), g[:by]...)
	}
	return m
}

func TestWideIsOrderSensitive(t *testing.T) {
	const n = 2000
	for _, d := range contract.DTypes {
		for w := 3; w <= 16; w++ {
			addends := world(d, Wide, w, n, 1)
			want := fold(d, addends)
			for name, g := range orders(addends) {
				if k := differing(d, want, fold(d, g)); k <= n/2 {
					t.Errorf("%v, %d ranks, %s: %d of %d elements differ", d, w, name, k, n)
				}
			}
		}
	}
}

func TestExactIsNot(t *testing.T) {
	const n = 2000
	for _, d := range contract.DTypes {
		for _, w := range []int{2, 3, 8, 16} {
			addends := world(d, Exact, w, n, 1)
			want := fold(d, addends)
			for name, g := range orders(addends) {
				if k := differing(d, want, fold(d, g)); k > 0 {
					t.Errorf("%v, %d ranks, %s: %d of %d elements differ", d, w, name, k, n)
				}
			}
			// A lost or doubled contribution changes all but its zeros.
			for r := range addends {
				lost := append(append([][]byte{}, addends[:r]...), addends[r+1:]...)
				got := words(d, n)
				contract.NewFolder(d, contract.Mean, w).Fold([][]byte{got}, lost)
				if k := differing(d, want, got); k < n*8/10 {
					t.Errorf("%v, %d ranks: without rank %d %d of %d elements differ", d, w, r, k, n)
				}
			}
		}
	}
}

// What each set says of its values.
func TestSets(t *testing.T) {
	const n = 4000
	for _, d := range contract.DTypes {
		count := func(set Set, is func(bits uint64, v float64) bool) (k int) {
			for _, g := range world(d, set, 2, n/2, 1) {
				for i := range n / 2 {
					if bits := d.Bits(g, i); is(bits, d.Widen(bits)) {
						k++
					}
				}
			}
			return k
		}
		sign := uint64(1) << (8*d.Size() - 1)
		smallest, largest := math.Ldexp(1, d.MinExp()), math.Ldexp(1, d.MaxExp())
		isNaN := func(_ uint64, v float64) bool { return v != v }
		isInf := func(_ uint64, v float64) bool { return math.IsInf(v, 0) }
		negative := func(bits uint64, _ float64) bool { return bits&sign != 0 }
		for _, c := range []struct {
			name     string
			got      int
			low, top int
		}{
			{"wide: finite and normal", count(Wide, func(_ uint64, v float64) bool { return math.Abs(v) >= smallest && v-v == 0 }), n, n},
			{"wide: negative", count(Wide, negative), n / 3, n * 2 / 3},
			{"exact: integers to 15", count(Exact, func(_ uint64, v float64) bool { return v == math.Trunc(v) && math.Abs(v) <= 15 }), n, n},
			{"exact: 15", count(Exact, func(_ uint64, v float64) bool { return v == 15 }), n / 64, n / 16},
			{"exact: -15", count(Exact, func(_ uint64, v float64) bool { return v == -15 }), n / 64, n / 16},
			{"exact: negative zero", count(Exact, func(bits uint64, _ float64) bool { return bits == sign }), 0, 0},
			{"subnormal", count(Subnormal, func(_ uint64, v float64) bool { return math.Abs(v) < smallest }), n, n},
			{"subnormal: not zero", count(Subnormal, func(_ uint64, v float64) bool { return v != 0 }), n * 9 / 10, n},
			{"subnormal: negative", count(Subnormal, negative), n / 3, n * 2 / 3},
			{"zero", count(Zero, func(_ uint64, v float64) bool { return v == 0 }), n, n},
			{"zero: negative", count(Zero, negative), n * 9 / 10, n * 97 / 100},
			{"huge", count(Huge, func(_ uint64, v float64) bool { return math.Abs(v) >= largest && v-v == 0 }), n, n},
			{"inf: infinite", count(Inf, isInf), n / 128, n / 32},
			{"inf: NaN", count(Inf, isNaN), 0, 0},
			{"nan: NaN", count(NaN, isNaN), n / 128, n / 32},
			{"nan: infinite", count(NaN, isInf), 0, 0},
			{"nan: quiet", count(NaN, func(bits uint64, v float64) bool { return v != v && bits>>(d.MantissaBits()-1)&1 == 1 }), n / 128, n / 32},
		} {
			if c.got < c.low || c.got > c.top {
				t.Errorf("%v, %s: %d of %d, expected %d to %d", d, c.name, c.got, n, c.low, c.top)
			}
		}
	}
}

func TestCancelCancels(t *testing.T) {
	for _, d := range contract.DTypes {
		for _, w := range []int{2, 4, 5} {
			addends := world(d, Cancel, w, 500, 1)
			got, last := words(d, 500), addends[w-1]
			contract.NewFolder(d, contract.None, w).Fold([][]byte{got}, addends)
			for i := range 500 {
				want := uint64(0)
				if w%2 == 1 {
					want = d.Bits(last, i)
				}
				if bits := d.Bits(got, i); bits != want {
					t.Fatalf("%v, %d ranks: element %d sums to %#x, not %#x", d, w, i, bits, want)
				}
			}
		}
	}
}

func TestHugeOverflows(t *testing.T) {
	for _, d := range contract.DTypes {
		addends := world(d, Huge, 8, 500, 1)
		got := words(d, 500)
		contract.NewFolder(d, contract.None, 8).Fold([][]byte{got}, addends)
		infinite := 0
		for i := range 500 {
			if !d.Finite(d.Bits(got, i)) {
				infinite++
			}
		}
		if infinite < 50 {
			t.Errorf("%v: %d of 500 sums overflow", d, infinite)
		}
	}
}

func TestNames(t *testing.T) {
	for i, n := range Names() {
		if s, err := Parse(n); err != nil || s != Set(i) || s.String() != n {
			t.Errorf("%q is %v, %v", n, s, err)
		}
	}
	if s, err := Parse("Wide"); err == nil {
		t.Errorf("Wide is %v", s)
	}
}

func BenchmarkFill(b *testing.B) {
	for _, d := range contract.DTypes {
		b.Run(d.String(), func(b *testing.B) {
			mem, k := words(d, 1<<16), KeyFor(1, 0, 0, "p")
			b.SetBytes(int64(len(mem)))
			for b.Loop() {
				Fill(mem, d, Wide, k, 0)
			}
		})
	}
}
