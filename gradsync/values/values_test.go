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
	"wide/float16":       "16c0fe1c32bb42b58f3211e40dd05ed2",
	"wide/bfloat16":      "f739ccd8da0c4a14c4ce52c3677c0e5c",
	"wide/float32":       "da3b1855bf7d75a1f600d8a5f5cdc8ab",
	"wide/float64":       "31575b7a21547ea519debab837154d4e",
	"exact/float16":      "9bb3c37c3286bbde67e5e1006b9bc716",
	"exact/bfloat16":     "c21131d462fdf37ed2a9a3fe16fc5496",
	"exact/float32":      "6a997df08dfd43de87273f9cb6b2b116",
	"exact/float64":      "8db661a054bd43debdfdc10be9c2b116",
	"cancel/float16":     "8de66b87cf76460f5b065524733cf3a6",
	"cancel/bfloat16":    "9512827d61980eafe0dc682d6b73f2ae",
	"cancel/float32":     "c07d0def468be7d0e4a23e53b0f55bf4",
	"cancel/float64":     "7dd84479826ace923bec50a3684db330",
	"subnormal/float16":  "b730081a263efabb0f3dec1e8639c839",
	"subnormal/bfloat16": "cb0ae50e557e924cb209f5d8d2be46ad",
	"subnormal/float32":  "95f08be760282927995d8c0aa5a85947",
	"subnormal/float64":  "7a00be0bb3695ba9b30adcf39ff5f110",
	"zero/float16":       "c89774e4288dc3dee4c54e96eb3e3116",
	"zero/bfloat16":      "c89774e4288dc3dee4c54e96eb3e3116",
	"zero/float32":       "845893d49c3d43de470b865980b2b116",
	"zero/float64":       "c407f8601c3d43de3318db7a80b2b116",
	"huge/float16":       "0e4fe330bf2382bb374cb30fb67c8039",
	"huge/bfloat16":      "1fd70d25b6bb154c5be3405a769973ad",
	"huge/float32":       "9b1411e9f52829273f5e48e7e2a85947",
	"huge/float64":       "327ce1c784a95ba9bcc4ef0bd6d5f110",
	"inf/float16":        "cfa687b77b83f52dd5a242e25b5c1b8d",
	"inf/bfloat16":       "e873b9d0c62baae8dcf05da25d8ff21d",
	"inf/float32":        "2f62780de7c37e4159f7c1b7cd529e1c",
	"inf/float64":        "d9f867859e826e9bc2eae4cd9258a567",
	"nan/float16":        "be1b94cbfe9beb703f841595281572b0",
	"nan/bfloat16":       "caa34a229f4774c18033c01a5747fe76",
	"nan/float32":        "94d6203d9918402216031fdb310a8a85",
	"nan/float64":        "d1f8a9f192143b855e8a206346d0102e",
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
