package kernels

import "testing"

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		bytes, world, procs int
		want                Algorithm
	}{
		{0, 1, 1, AlgorithmFold},
		{1 << 30, 8, 1, AlgorithmFold},
		{4, 2, 2, AlgorithmOneShot},
		{512 << 10, 2, 2, AlgorithmOneShot},
		{512<<10 + 4, 2, 2, AlgorithmTwoShot},
		{128 << 10, 8, 2, AlgorithmOneShot},
		{128<<10 + 4, 8, 2, AlgorithmTwoShot},
		{512 << 10, 4, 4, AlgorithmOneShot},
		{256 << 10, 8, 8, AlgorithmOneShot},
		{256<<10 + 4, 8, 8, AlgorithmTwoShot},
		{256<<20 - 4, 2, 2, AlgorithmTwoShot},
		{256 << 20, 2, 2, AlgorithmCopyIn},
		{256 << 20, 4, 2, AlgorithmTwoShot},
		{1 << 30, 8, 8, AlgorithmTwoShot},
	} {
		if got := Choose(tt.bytes, tt.world, tt.procs); got != tt.want {
			t.Errorf("%d bytes, world %d, %d processes: %v, not %v", tt.bytes, tt.world, tt.procs, got, tt.want)
		}
	}
}

func TestShapes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want Shape
	}{
		{"one-shot of nothing", oneShotShape(0), Shape{1, 32}},
		{"one-shot of a line", oneShotShape(8), Shape{1, 32}},
		{"one-shot of 33 lines", oneShotShape(257), Shape{1, 64}},
		{"one-shot of 8 Ki", oneShotShape(8 << 10), Shape{2, 512}},
		{"largest one-shot", oneShotShape(OneShotBytes), Shape{128, 512}},
		{"two-shot slice of nothing", twoShotShape(0), Shape{1, 512}},
		{"two-shot slice of 1 Mi", twoShotShape(1 << 20), Shape{128, 512}},
		{"two-shot slice of 1 Gi", twoShotShape(1 << 30), Shape{132, 512}},
		{"fold of 1 Gi", foldShape(1 << 30), Shape{264, 512}},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, not %v", tt.name, tt.got, tt.want)
		}
	}
}

// Slices cover the message, each whole lines but the last.
func TestSliceElements(t *testing.T) {
	for _, size := range []int{2, 4, 8} {
		for procs := 1; procs <= MaxProcs; procs++ {
			for _, n := range append(lengths, 1<<20, 1<<20+1) {
				s := SliceElements(n, size, procs)
				if s*procs < n || s*size%128 != 0 || s*size >= (n*size+procs-1)/procs+256 {
					t.Errorf("%d elements of %d bytes, %d processes: slices of %d", n, size, procs, s)
				}
			}
		}
	}
}

func TestSpansKeepTheUpperHalf(t *testing.T) {
	const index, n = 1<<32 - 5, 1<<33 + 9
	at, offset := uint64(index), 0
	spans(index, n, func(i uint64, off, n int) {
		if i != at || off != offset || n == 0 || i>>32 != (i+uint64(n)-1)>>32 {
			t.Errorf("a span of %d from %#x at %d", n, i, off)
		}
		at, offset = at+uint64(n), offset+n
	})
	if offset != n {
		t.Errorf("spans end at %d of %d", offset, n)
	}
}
