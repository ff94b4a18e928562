package params

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// value is the byte at an offset of a rank's tensor in the files of writeSet.
func value(rank int, name string, offset int) byte {
	return byte(rank*31 + int(name[0])*7 + offset)
}

// writeRank writes a file of value bytes.
func writeRank(t testing.TB, path string, rank int, l List) {
	t.Helper()
	err := Write(path, l, map[string]string{"rank": fmt.Sprint(rank)}, func(i int, dst io.Writer) error {
		p := make([]byte, l[i].Bytes())
		for k := range p {
			p[k] = value(rank, l[i].Name, k)
		}
		_, err := dst.Write(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var setList = List{
	param("w", contract.Float32, 3, 5),
	param("b", contract.Float64, 7),
	param("e", contract.Float32, 0),
	param("h", contract.BFloat16),
}

// writeSet writes world files and returns their pattern.
func writeSet(t testing.TB, world int) string {
	t.Helper()
	pattern := filepath.Join(t.TempDir(), "rank{rank}.safetensors")
	for rank := range world {
		writeRank(t, rankPath(pattern, rank), rank, setList)
	}
	return pattern
}

func rankPath(pattern string, rank int) string {
	return strings.ReplaceAll(pattern, "{rank}", fmt.Sprint(rank))
}

// checkRead reads some ranges of every tensor of a rank.
func checkRead(s *Set, rank int) error {
	for i, p := range s.Params() {
		n, size := p.Elements(), int64(p.DType.Size())
		for _, r := range [][2]int64{{0, n}, {0, n / 2}, {n / 2, n}, {n, n}} {
			got, want := make([]byte, (r[1]-r[0])*size), make([]byte, (r[1]-r[0])*size)
			for k := range want {
				want[k] = value(rank, p.Name, int(r[0]*size)+k)
			}
			if err := s.Read(got, rank, i, r[0], r[1]); err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("rank %d %s %v: got %v, want %v", rank, p.Name, r, got, want)
			}
		}
	}
	return nil
}

// TestSet reads more files than may be open, from several goroutines at once.
// The data of ranks 3 and 4 lie in another order than those of the rest.
func TestSet(t *testing.T) {
	const world = 9
	pattern := writeSet(t, world)
	for _, rank := range []int{3, 4} {
		b := raw(`{"h":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"w":{"dtype":"F32","shape":[3,5],"data_offsets":[2,62]},`+
			`"e":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},"b":{"dtype":"F64","shape":[7],"data_offsets":[62,118]}}`, 0)
		for _, p := range []Param{setList[3], setList[0], setList[1]} {
			for k := range int(p.Bytes()) {
				b = append(b, value(rank, p.Name, k))
			}
		}
		if err := os.WriteFile(rankPath(pattern, rank), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}

	s, err := OpenSet(pattern, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.World() != world {
		t.Fatalf("world %d, want %d", s.World(), world)
	}
	if d := cmp.Diff(List{setList[1], setList[2], setList[0], setList[3]}, s.Params()); d != "" {
		t.Error(d)
	}
	s.files.max = 2
	read := func() {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for k := range 3 * world {
					if err := checkRead(s, (k*(g+1)+g)%world); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	read()
	if n := len(s.files.open); n > 4 {
		t.Errorf("%d files open after four readers", n)
	}
	if err := s.OrderAs(setList); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(setList, s.Params()); d != "" {
		t.Error(d)
	}
	read()
	// Once more: an order that is no cycle of its own inverse.
	if err := s.OrderAs(List{setList[2], setList[3], setList[0], setList[1]}); err != nil {
		t.Fatal(err)
	}
	read()
	if err := s.Close(); err != nil || len(s.files.open) != 0 {
		t.Errorf("Close: %v, %d open", err, len(s.files.open))
	}

	s, err = OpenSet(pattern, 4) // files beyond the world are fine
	if err != nil || s.World() != 4 {
		t.Errorf("a world of 4: %v", err)
	}
}

// TestSetKeepsFewFilesOpen counts this process's descriptors.
func TestSetKeepsFewFilesOpen(t *testing.T) {
	const world = 2 * maxOpen
	s, err := OpenSet(writeSet(t, world), world)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("needs /proc")
		}
		return len(fds)
	}
	before := count()
	for rank := range world {
		if err := checkRead(s, rank); err != nil {
			t.Fatal(err)
		}
	}
	if n := count() - before; n > maxOpen {
		t.Errorf("%d more descriptors, want at most %d", n, maxOpen)
	}
}

func TestSetDifferences(t *testing.T) {
	const same = "; write the same parameters on every rank"
	with := func(i int, p Param) List {
		l := append(List(nil), setList...)
		l[i] = p
		return l
	}
	for _, c := range []struct {
		name string
		list List
		want string
	}{
		{"shape", with(0, param("w", contract.Float32, 5, 3)), `tensor "w": shape [5 3] but rank 0 has [3 5]` + same},
		{"rank of the shape", with(0, param("w", contract.Float32, 15)), `tensor "w": shape [15] but rank 0 has [3 5]` + same},
		{"scalar", with(3, param("h", contract.BFloat16, 1)), `tensor "h": shape [1] but rank 0 has []` + same},
		{"dtype", with(3, param("h", contract.Float16)), `tensor "h": dtype float16 but rank 0 has bfloat16` + same},
		{"missing", setList[:3], `tensor "h": missing, but rank 0 has it` + same},
		{"renamed", with(1, param("c", contract.Float64, 7)), `tensor "b": missing, but rank 0 has it` + same},
		{"more", append(with(0, setList[0]), param("x", contract.Float32, 1)), `tensor "x": rank 0 does not have it` + same},
		// Both differ: the first in the order of rank 0's data is named.
		{"first", List{param("w", contract.Float16, 3, 5), param("b", contract.Float32, 7), setList[2], setList[3]}, `tensor "b": dtype float32 but rank 0 has float64` + same},
	} {
		t.Run(c.name, func(t *testing.T) {
			pattern := writeSet(t, 4)
			path := rankPath(pattern, 2)
			writeRank(t, path, 2, c.list)
			for _, world := range []int{0, 3, 4} {
				_, err := OpenSet(pattern, world)
				wantError(t, err, path, c.want)
			}
			s, err := OpenSet(pattern, 2)
			if err != nil {
				t.Fatal(err) // the file at fault is beyond the world
			}
			s.Close()
		})
	}
}

func TestSetFiles(t *testing.T) {
	pattern := writeSet(t, 3)
	_, err := OpenSet("grads/rank.safetensors", 0)
	wantError(t, err, "grads/rank.safetensors", "no {rank} in the pattern; name one file per rank, such as grads/rank{rank}.safetensors")
	_, err = OpenSet(pattern, -1)
	wantError(t, err, pattern, "a world of -1 ranks; give at least 1, or 0 to count the files")
	_, err = OpenSet(pattern, 5)
	wantError(t, err, rankPath(pattern, 3), "no such file, but a world of 5 needs ranks 0 to 4; write it, or lower the world to 3")
	for _, world := range []int{0, 4} {
		none := filepath.Join(t.TempDir(), "{rank}")
		_, err = OpenSet(none, world)
		wantError(t, err, rankPath(none, 0), "no such file; check the path")
		if !errors.Is(err, os.ErrNotExist) {
			t.Error("the error hides os.ErrNotExist")
		}
	}

	// One bad file among good ones.
	if err := os.WriteFile(rankPath(pattern, 1), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = OpenSet(pattern, 0)
	wantError(t, err, rankPath(pattern, 1), "0 bytes long, too short for a safetensors file; write or copy the file again")

	// A hole must not make the world smaller in silence; other files may lie about.
	pattern = filepath.Join(t.TempDir(), "s[t]e*p{rank}", "r{rank}.x")
	for _, rank := range []int{0, 1} {
		if err := os.MkdirAll(filepath.Dir(rankPath(pattern, rank)), 0o777); err != nil {
			t.Fatal(err)
		}
		writeRank(t, rankPath(pattern, rank), rank, setList)
	}
	for _, name := range []string{"s[t]e*p7/r8.x", "s[t]e*p07/r07.x", "s[t]e*p7/r7.xx", "s[t]e*pa/ra.x", "s[t]e*p0/r5.x"} {
		path := filepath.Join(filepath.Dir(filepath.Dir(pattern)), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	s, err := OpenSet(pattern, 0)
	if err != nil || s.World() != 2 {
		t.Fatal("files that are not of the set stop it:", err)
	}
	if err := os.WriteFile(rankPath(pattern, 7), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = OpenSet(pattern, 0)
	wantError(t, err, rankPath(pattern, 2), "no such file, but rank 7 has one; write it, or say that the world is 2")
	if _, err = OpenSet(pattern, 2); err != nil {
		t.Error("a world that is given needs no more files:", err)
	}
}

func TestSetFileChanges(t *testing.T) {
	pattern := writeSet(t, 2)
	s, err := OpenSet(pattern, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	path := rankPath(pattern, 1)
	dst := make([]byte, 56)
	if err := s.Read(dst, 1, 0, 0, 7); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 200); err != nil { // while it is open
		t.Fatal(err)
	}
	wantError(t, s.Read(dst, 1, 0, 0, 7), path, `tensor "b": the file became shorter while it was read; leave it alone during the run`)
	s.Close()
	const changed = "the file changed after its header was read; leave it alone during the run"
	wantError(t, s.Read(dst, 1, 0, 0, 7), path, changed)
	// The same bytes and times, but another file.
	writeRank(t, path, 1, setList)
	if err := os.Chtimes(path, time.Time{}, s.files.infos[1].ModTime()); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Read(dst, 1, 0, 0, 7), path, changed)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Read(dst, 1, 0, 0, 7), path, "no such file or directory; check the path")
	for _, r := range [][2]int64{{-1, 6}, {1, 8}, {7, 0}, {0, 6}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Read of %v into 56 bytes did not panic", r)
				}
			}()
			s.Read(dst, 0, 0, r[0], r[1])
		}()
	}
}

func TestOrderAs(t *testing.T) {
	pattern := writeSet(t, 1)
	path := rankPath(pattern, 0)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := OpenSet(pattern, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := append(List(nil), f.Params()...)
	const use = "; use the list of the same model"
	for _, c := range []struct {
		order List
		want  string
	}{
		{setList[:3], `tensor "h": in the file but not in the parameter list` + use},
		{append(List{param("x", contract.Float32)}, setList...), `tensor "x": in the parameter list but not in the file` + use},
		{append(List{param("w", contract.Float32, 15)}, setList[1:]...), `tensor "w": shape [3 5] but the parameter list has [15]` + use},
		{append(setList[:4:4], setList[0]), `tensor "w": listed twice, as parameter 0 and 4; names must be unique`},
	} {
		wantError(t, f.OrderAs(c.order), path, c.want)
		wantError(t, s.OrderAs(c.order), pattern, c.want)
		if d := cmp.Diff(before, f.Params()) + cmp.Diff(before, s.Params()); d != "" {
			t.Error("an error reordered the parameters:", d)
		}
	}
	// The list's dtypes are those of the model, not of the gradients.
	for _, order := range []List{setList.WithDType(contract.Float16), {setList[2], setList[3], setList[0], setList[1]}} {
		if err := f.OrderAs(order); err != nil {
			t.Fatal(err)
		}
		for i, p := range order {
			if k, ok := f.Tensor(p.Name); !ok || k != i || f.Params()[i].Name != p.Name {
				t.Errorf("%s is at %d, want %d", p.Name, k, i)
			}
			got, want := make([]byte, f.Params()[i].Bytes()), make([]byte, f.Params()[i].Bytes())
			for k := range want {
				want[k] = value(0, p.Name, k)
			}
			if err := f.ReadAt(got, i, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v, got %v, want %v", p.Name, err, got, want)
			}
		}
	}
}

func TestReadCheckpoint(t *testing.T) {
	path := put(t, "model.safetensors", raw(`{"count":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},`+
		`"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]},"four":{"dtype":"F4","shape":[3,2],"data_offsets":[19,22]},`+
		`"z":{"dtype":"C64","shape":[2],"data_offsets":[22,38]},"b":{"dtype":"F16","shape":[1],"data_offsets":[38,40]}}`, 40))
	l, skipped, err := ReadCheckpoint(path)
	if err != nil {
		t.Fatal(err)
	}
	want := List{param("w", contract.Float32, 2), param("b", contract.Float16, 1)}
	if d := cmp.Diff(want, l) + cmp.Diff([]string{"count", "mask", "four", "z"}, skipped); d != "" {
		t.Error(d)
	}
	path = put(t, "none.safetensors", raw(`{"count":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}`, 8))
	_, _, err = ReadCheckpoint(path)
	wantError(t, err, path, "0 parameters with no element; give at least one parameter that is not empty")
}
