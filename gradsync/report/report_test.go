package report

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    Times
	}{
		{nil, Times{}},
		{[]float64{3}, Times{3, 3, 3, 3}},
		{[]float64{2, 1}, Times{1, 1, 2, 2}},
		{[]float64{3, 1, 2}, Times{1, 2, 3, 3}},
	} {
		if got := Summarize(c.samples); got != c.want {
			t.Errorf("%v: %+v, not %+v", c.samples, got, c.want)
		}
	}
	// By the definition of nearest rank: the smallest sample that at least
	// that share of all does not exceed.
	for n := 1; n <= 300; n++ {
		samples := make([]float64, n)
		for i, v := range rand.New(rand.NewPCG(1, uint64(n))).Perm(n) {
			samples[i] = float64(v + 1)
		}
		first := samples[0]
		want := Times{1, float64((50*n + 99) / 100), float64((95*n + 99) / 100), float64(n)}
		if got := Summarize(samples); got != want {
			t.Fatalf("1 to %d: %+v, not %+v", n, got, want)
		}
		if samples[0] != first {
			t.Fatal("the samples were put in another order")
		}
	}
}

// The factors of nccl-tests' PERFORMANCE.md: algbw = bytes / time, and busbw =
// algbw × 2(n-1)/n.
func TestBandwidth(t *testing.T) {
	for _, c := range []struct {
		bytes    int64
		seconds  float64
		procs    int
		alg, bus float64
	}{
		{1e9, 1, 1, 1, 0},
		{1e9, 1, 2, 1, 1},
		{4e9, 2, 4, 2, 3},
		{4e9, 2, 8, 2, 3.5},
		{0, 1, 4, 0, 0},
		{1e9, 0, 4, 0, 0},
		{1e9, -1, 4, 0, 0},
	} {
		if alg, bus := Bandwidth(c.bytes, c.seconds, c.procs); math.Abs(alg-c.alg) > 1e-15 || math.Abs(bus-c.bus) > 1e-15 {
			t.Errorf("%d bytes in %v s on %d: %v and %v, not %v and %v", c.bytes, c.seconds, c.procs, alg, bus, c.alg, c.bus)
		}
	}
}

func TestEncode(t *testing.T) {
	b, err := Encode(map[string]string{"a": "x<y & z"})
	if err != nil || string(b) != "{\n  \"a\": \"x<y & z\"\n}\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Encode(math.NaN()); err == nil {
		t.Error("a NaN is written")
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	for _, text := range []string{"first", "second"} {
		if err := CheckWritable(path); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v are left, %v", files, err)
	}
	for _, c := range []struct{ path, want string }{
		{dir, "is a folder"},
		{filepath.Join(dir, "none", "x"), "cannot be written: no such file or directory"},
		{filepath.Join(path, "x"), "cannot be written: not a directory"},
	} {
		if err := CheckWritable(c.path); err == nil || !strings.HasPrefix(err.Error(), c.path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("CheckWritable: %v, expected %q", err, c.want)
		}
		if err := WriteFile(c.path, nil); err == nil || !strings.HasPrefix(err.Error(), c.path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("WriteFile(%s): %v", c.path, err)
		}
	}
}
