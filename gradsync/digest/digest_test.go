package digest

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// defined is the mix as the package comment writes it, in integers of any size
// reduced where the comment says so.
func defined(i, p uint64) Digest {
	m32 := new(big.Int).Lsh(big.NewInt(1), 32)
	n := func(x uint64) *big.Int { return new(big.Int).SetUint64(x) }
	mod := func(x *big.Int) uint64 { return new(big.Int).Mod(x, m32).Uint64() }
	add := func(a, b uint64) uint64 { return mod(new(big.Int).Add(n(a), n(b))) }
	mul := func(a, b uint64) uint64 { return mod(new(big.Int).Mul(n(a), n(b))) }
	lo, hi := p%(1<<32), p>>32
	x := add(add(mul(i%(1<<32), 0x9e3779b1), mul(i>>32, 0x85ebca77)), 0x165667b1)
	j := mul(x^x>>15, 0x85ebca6b)
	k := j ^ j>>13
	lane := func(key, c, h, other uint64) uint64 {
		u, v := lo^key, add(add(mul(lo, c), mul(hi, h)), other)
		return new(big.Int).Mul(n(u), n(v)).Uint64()
	}
	return Digest{lane(k, 0xc2b2ae3d, 0x27d4eb2f, j), lane(add(j, k), 0x9e3779b1, 0x85ebca77, k)}
}

// vectors are those of the package comment.
var vectors = []struct {
	t     contract.DType
	index uint64
	bits  uint64
}{
	{contract.Float32, 0, 0x00000000},
	{contract.Float32, 0, 0x80000000},
	{contract.Float32, 1, 0x3f800000},
	{contract.Float16, 2, 0x3c00},
	{contract.BFloat16, 4_294_967_295, 0x7fc0},
	{contract.Float32, 4_294_967_296, 0x7f800000},
	{contract.Float64, 5, 0x3ff0000000000001},
	{contract.Float64, 1 << 40, 0xfff0000000000000},
}

func TestVectors(t *testing.T) {
	source, err := os.ReadFile("digest.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range vectors {
		b := words(c.t, 1)
		c.t.PutBits(b, 0, c.bits)
		got := Of(c.t, c.index, b)
		if want := defined(c.index, c.bits); got != want {
			t.Errorf("%v, index %d, %#x: %v, by definition %v", c.t, c.index, c.bits, got, want)
		}
		row := fmt.Sprintf("//\t%-9s %13d   %0*x%*s   %016x %016x\n", c.t, c.index, 2*c.t.Size(), c.bits, 16-2*c.t.Size(), "", got.A, got.B)
		if !strings.Contains(string(source), row) {
			t.Errorf("the package comment lacks the line\n%s", row)
		}
	}
	b := words(contract.Float32, 1000)
	for i := range 1000 {
		contract.Float32.PutBits(b, i, contract.Float32.Narrow(float64(i)))
	}
	if row := fmt.Sprintf("//\t%v\n", Of(contract.Float32, 0, b)); !strings.Contains(string(source), row) {
		t.Errorf("the package comment lacks the line\n%s", row)
	}
}

func words(t contract.DType, n int) []byte {
	mem := make([]uint64, n*t.Size()/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), n*t.Size())
}

func random(rng *rand.Rand, t contract.DType, n int) []byte {
	b := words(t, n)
	for i := range n {
		t.PutBits(b, i, rng.Uint64())
	}
	return b
}

func TestMixIsTheDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		i, p := rng.Uint64()>>rng.IntN(64), rng.Uint64()>>rng.IntN(64)
		var got Digest
		got.A, got.B = mix(i, p)
		if want := defined(i, p); got != want {
			t.Fatalf("index %d, %#x: %v, by definition %v", i, p, got, want)
		}
	}
}

func TestPartsAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	const n = 1000
	for _, d := range contract.DTypes {
		b := random(rng, d, n)
		for _, first := range []uint64{0, 1<<32 - 500} {
			whole := Of(d, first, b)
			for range 50 {
				var parts []Digest
				for at := 0; at < n; {
					to := min(at+1+rng.IntN(300), n)
					parts = append(parts, Of(d, first+uint64(at), b[at*d.Size():to*d.Size()]))
					at = to
				}
				rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
				var sum Digest
				for _, p := range parts {
					sum = sum.Add(p)
				}
				if sum != whole {
					t.Fatalf("%v: %d parts add up to %v, the whole is %v", d, len(parts), sum, whole)
				}
			}
		}
	}
	if (Of(contract.Float32, 7, nil) != Digest{}) {
		t.Error("the digest of no elements is not zero")
	}
}

// Errors that leave the plain sum, or the set of values, as it was.
func TestErrorsAreSeen(t *testing.T) {
	const n = 512
	for _, d := range contract.DTypes {
		size := d.Size()
		for _, data := range []struct {
			name string
			bits func(rng *rand.Rand) uint64
		}{
			{"random", (*rand.Rand).Uint64},
			{"one value", func(*rand.Rand) uint64 { return d.Narrow(1) }},
			{"two values", func(rng *rand.Rand) uint64 { return rng.Uint64N(2) }},
		} {
			for name, plant := range map[string]func(rng *rand.Rand, b []byte){
				"one bit": func(rng *rand.Rand, b []byte) {
					i := rng.IntN(n)
					d.PutBits(b, i, d.Bits(b, i)^1<<rng.IntN(8*size))
				},
				"two signs": func(rng *rand.Rand, b []byte) {
					i := rng.IntN(n - 1)
					for _, j := range []int{i, i + 1 + rng.IntN(n-1-i)} {
						d.PutBits(b, j, d.Bits(b, j)^1<<(8*size-1))
					}
				},
				"swap": func(rng *rand.Rand, b []byte) {
					i, j := rng.IntN(n), rng.IntN(n)
					x, y := d.Bits(b, i), d.Bits(b, j)
					d.PutBits(b, i, y)
					d.PutBits(b, j, x)
				},
				"shift": func(rng *rand.Rand, b []byte) {
					at := rng.IntN(n-65) * size
					copy(b[at+size:at+64*size], b[at:at+63*size])
				},
				"block moved": func(rng *rand.Rand, b []byte) {
					i, j := rng.IntN(n/2-32)*size, (n/2+rng.IntN(n/2-32))*size
					for k := range 32 * size {
						b[i+k], b[j+k] = b[j+k], b[i+k]
					}
				},
				"plus and minus one": func(rng *rand.Rand, b []byte) {
					i := rng.IntN(n - 1)
					d.PutBits(b, i, d.Bits(b, i)+1)
					d.PutBits(b, i+1, d.Bits(b, i+1)-1)
				},
				"second difference": func(rng *rand.Rand, b []byte) {
					i, step := rng.IntN(n-200), 1+rng.IntN(99)
					delta := uint64(1) << rng.IntN(8*size)
					d.PutBits(b, i, d.Bits(b, i)+delta)
					d.PutBits(b, i+step, d.Bits(b, i+step)-2*delta)
					d.PutBits(b, i+2*step, d.Bits(b, i+2*step)+delta)
				},
			} {
				rng := rand.New(rand.NewPCG(3, uint64(d)))
				b := words(d, n)
				for i := range n {
					d.PutBits(b, i, data.bits(rng))
				}
				good := Of(d, 0, b)
				for range 200 {
					bad := words(d, n)
					copy(bad, b)
					plant(rng, bad)
					if string(bad) != string(b) && Of(d, 0, bad) == good {
						t.Errorf("%v, %s: %s is not seen", d, data.name, name)
					}
				}
			}
		}
	}
}

// Small changes of one or two elements are what accidents make, and what a weak
// mix would map onto few sums. Each lane alone should tell all of them apart:
// of m random 64-bit numbers, m²/2^65 pairs collide, here 0.001 expected.
func TestLanesSpreadSmallChanges(t *testing.T) {
	const n, m = 256, 200_000
	for _, d := range contract.DTypes {
		rng := rand.New(rand.NewPCG(4, uint64(d)))
		b := words(d, n)
		for i := range n {
			d.PutBits(b, i, d.Narrow(rng.NormFloat64()))
		}
		type change struct {
			i, j int
			x, y uint64
		}
		seen, sums := map[change]bool{}, [2]map[uint64]bool{{}, {}}
		var joint [1 << 24]uint8 // 12 bits of each lane
		pairs := 0
		for len(seen) < m {
			var c change
			c.i = rng.IntN(n - 1)
			c.j = c.i + 1 + rng.IntN(n-1-c.i)
			c.x = 1 << rng.IntN(8*d.Size()) * (1 + rng.Uint64N(3)) & (1<<(8*d.Size()-1)<<1 - 1)
			c.y = 1 << rng.IntN(8*d.Size()) * rng.Uint64N(4) & (1<<(8*d.Size()-1)<<1 - 1)
			if c.y == 0 {
				c.j = 0 // a change of one element
			}
			if c.x == 0 || seen[c] {
				continue
			}
			seen[c] = true
			delta := func(i int, x uint64) (dg Digest) {
				a1, b1 := mix(uint64(i), d.Bits(b, i))
				a2, b2 := mix(uint64(i), d.Bits(b, i)^x)
				return Digest{a2 - a1, b2 - b1}
			}
			sum := delta(c.i, c.x)
			if c.y != 0 {
				sum = sum.Add(delta(c.j, c.y))
			}
			if (sum == Digest{}) {
				t.Fatalf("%v: %+v is not seen", d, c)
			}
			sums[0][sum.A], sums[1][sum.B] = true, true
			at := sum.A>>40&0xfff<<12 | sum.B>>40&0xfff
			pairs += int(joint[at])
			joint[at]++
		}
		for lane, s := range sums {
			if lost := m - len(s); lost > 1 {
				t.Errorf("%v, lane %c: %d of %d changes collide", d, 'A'+lane, lost, m)
			}
		}
		// What one lane misses the other must not be likely to miss too.
		if want := m * m / 2 >> 24; pairs < want*8/10 || pairs > want*12/10 {
			t.Errorf("%v: %d pairs of changes agree in 12 bits of each lane, want about %d", d, pairs, want)
		}
	}
}

func TestText(t *testing.T) {
	d := Digest{0x0123456789abcdef, 0xfedcba9876543210}
	text, err := d.MarshalText()
	if err != nil || string(text) != "0123456789abcdeffedcba9876543210" {
		t.Fatalf("%s, %v", text, err)
	}
	var back Digest
	if err := back.UnmarshalText(text); err != nil || back != d {
		t.Errorf("comes back as %v, %v", back, err)
	}
	for _, bad := range []string{"", "0", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("g", 32)} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a digest", bad)
		}
	}
}

func BenchmarkOf(b *testing.B) {
	for _, d := range contract.DTypes {
		b.Run(d.String(), func(b *testing.B) {
			mem := words(d, 1<<16)
			b.SetBytes(int64(len(mem)))
			for b.Loop() {
				Of(d, 0, mem)
			}
		})
	}
}
