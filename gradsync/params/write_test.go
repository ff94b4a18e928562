package params

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// realFiles are gradients and means that PyTorch and NumPy wrote with the
// format's own library.
func realFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../testdata/*/*.safetensors")
	if err != nil || len(files) == 0 {
		t.Fatal("no gradient files in testdata", err)
	}
	return files
}

// TestRealFiles writes every real file again. Metadata aside, which that
// library writes in no fixed order, the bytes must be the same.
func TestRealFiles(t *testing.T) {
	for _, path := range realFiles(t) {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l := slices.Clone(f.Params())
		slices.Reverse(l) // Write has an order of its own
		out := filepath.Join(t.TempDir(), "out.safetensors")
		if err := Write(out, l, f.Metadata(), copyOf(f, l)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Metadata()) == 0 && !bytes.Equal(got, want) {
			t.Errorf("%s: written again, the bytes differ", path)
		}
		g, err := Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		if d := cmp.Diff(f.Params(), g.Params()) + cmp.Diff(f.Metadata(), g.Metadata()); d != "" {
			t.Errorf("%s: written again, the header differs:\n%s", path, d)
		}
		data := int(f.Params().Bytes())
		if !bytes.Equal(got[len(got)-data:], want[len(want)-data:]) {
			t.Errorf("%s: written again, the data differ", path)
		}
	}
}

func TestReadAt(t *testing.T) {
	path := "../../testdata/digits_cnn_w4_f32/rank2.safetensors"
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d := cmp.Diff(map[string]string{"rank": "2", "step": "19", "world": "4"}, f.Metadata()); d != "" {
		t.Error(d)
	}
	i, ok := f.Tensor("fc1.weight")
	if want := (param("fc1.weight", contract.Float32, 128, 512)); !ok || !cmp.Equal(f.Params()[i], want) {
		t.Fatalf("Tensor: %v %v, want %v", i, ok, want)
	}
	if _, ok := f.Tensor("fc3.weight"); ok {
		t.Error("found a tensor that is not there")
	}
	const header, begin = 8 + 888, 20096 // as a hex dump of the file shows
	for _, c := range []struct{ at, n int64 }{{0, 4}, {4, 1000}, {128*512*4 - 3, 3}, {0, 128 * 512 * 4}, {128 * 512 * 4, 0}} {
		p := make([]byte, c.n)
		if err := f.ReadAt(p, i, c.at); err != nil {
			t.Fatal(err)
		}
		if from := header + begin + c.at; !bytes.Equal(p, whole[from:from+c.n]) {
			t.Errorf("ReadAt(%d bytes, %d) differs from the file", c.n, c.at)
		}
	}
	for _, c := range []struct{ at, n int64 }{{-1, 1}, {128*512*4 - 3, 4}, {128*512*4 + 1, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("ReadAt(%d bytes, %d) did not panic", c.n, c.at)
				}
			}()
			f.ReadAt(make([]byte, c.n), i, c.at)
		}()
	}
}

func TestFileShrinks(t *testing.T) {
	path := put(t, "g.safetensors", raw(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 66); err != nil {
		t.Fatal(err)
	}
	err = f.ReadAt(make([]byte, 8), 0, 0)
	wantError(t, err, path, `tensor "w": the file became shorter while it was read; leave it alone during the run`)
}

// TestWriteLayout holds the header against what the format's library makes of
// the same tensors: wide dtypes first, then names, metadata in front, padding.
func TestWriteLayout(t *testing.T) {
	l := List{
		param("b", contract.Float16, 3),
		param("scalar", contract.Float64),
		param("a<&>\"\n", contract.Float16, 1, 1),
		param("empty", contract.Float32, 4, 0),
		param("c", contract.BFloat16, 2),
	}
	var order []int
	b, err := encode(l, map[string]string{"z": "1", "a": "é"}, func(i int, dst io.Writer) error {
		order = append(order, i)
		_, err := dst.Write(bytes.Repeat([]byte{byte(i + 1)}, int(l[i].Bytes())))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"__metadata__":{"a":"é","z":"1"},` +
		`"scalar":{"dtype":"F64","shape":[],"data_offsets":[0,8]},` +
		`"empty":{"dtype":"F32","shape":[4,0],"data_offsets":[8,8]},` +
		`"c":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},` +
		`"a<&>\"\n":{"dtype":"F16","shape":[1,1],"data_offsets":[12,14]},` +
		`"b":{"dtype":"F16","shape":[3],"data_offsets":[14,20]}}`
	want += strings.Repeat(" ", (8-len(want)%8)%8)
	if d := cmp.Diff(string(raw(want, 0))+"\x02\x02\x02\x02\x02\x02\x02\x02\x05\x05\x05\x05\x03\x03\x01\x01\x01\x01\x01\x01", string(b)); d != "" {
		t.Error(d)
	}
	if !slices.Equal(order, []int{1, 3, 4, 2, 0}) || !slices.Equal(order, FileOrder(l)) {
		t.Errorf("next was called for %v, FileOrder is %v", order, FileOrder(l))
	}
}

func TestWriteFaults(t *testing.T) {
	l := List{param("a", contract.Float32, 2), param("b", contract.Float32, 2)}
	give := func(n int) func(int, io.Writer) error {
		return func(i int, dst io.Writer) error {
			_, err := dst.Write(make([]byte, n))
			return err
		}
	}
	own := errors.New("the caller's own")
	for _, c := range []struct {
		name     string
		list     List
		metadata map[string]string
		next     func(int, io.Writer) error
		want     string
	}{
		{"no list", nil, nil, give(8), "0 parameters with no element; give at least one parameter that is not empty"},
		{"twice", List{l[0], l[0]}, nil, give(8), `tensor "a": listed twice, as parameter 0 and 1; names must be unique`},
		{"too few bytes", l, nil, give(7), `tensor "a": 7 bytes given, but it has 8`},
		{"no bytes", l, nil, give(0), `tensor "a": 0 bytes given, but it has 8`},
		{"too many bytes", l, nil, give(9), `tensor "a": 9 bytes given, but it has 8`},
		{"metadata", l, map[string]string{"k": "\xff"}, give(8), `metadata "k" is not valid UTF-8`},
		{"caller's error", l, nil, func(i int, _ io.Writer) error { return own }, ""},
		{"caller's panic", l, nil, func(i int, _ io.Writer) error { panic("planted") }, ""},
	} {
		for _, before := range []string{"", "what was there"} {
			t.Run(c.name+" "+before, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "out.safetensors")
				files := 0
				if before != "" {
					files = 1
					if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				err := func() (err error) {
					defer func() {
						if p := recover(); p != nil {
							err = own
						}
					}()
					return Write(path, c.list, c.metadata, c.next)
				}()
				if c.want == "" && err != own {
					t.Errorf("got %v, want the caller's error", err)
				} else if c.want != "" {
					wantError(t, err, path, c.want)
				}
				entries, _ := os.ReadDir(dir)
				if len(entries) != files {
					t.Errorf("left behind: %v", entries)
				}
				if got, _ := os.ReadFile(path); string(got) != before {
					t.Errorf("the file now holds %q", got)
				}
			})
		}
	}
}

func TestWriteLongHeader(t *testing.T) {
	_, err := encodeHeader(List{param("a", contract.Float32, 2)}, map[string]string{"k": strings.Repeat("x", maxHeader)})
	wantError(t, err, "", "the header would take 100000080 bytes, over the format's limit of 100000000; shorten the names or the metadata")
}

func TestWriteToBadPlaces(t *testing.T) {
	l := List{param("a", contract.Float32, 2)}
	next := func(_ int, dst io.Writer) error { _, err := dst.Write(make([]byte, 8)); return err }
	dir := t.TempDir()
	plain := put(t, "plain", nil)
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "no", "out"), "no such file or directory; make its directory first"},
		{filepath.Join(plain, "out"), "not a directory; nothing was written"},
		{dir, "not a regular file; choose another name"},
		{"/dev/full", "not a regular file; choose another name"},
	} {
		wantError(t, Write(c.path, l, nil, next), c.path, c.want)
	}

	// Behind a symbolic link the link stays and its target is replaced; the
	// target's permissions stay too.
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, l, nil, next); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(target)
	if err != nil || info.Size() == 0 || info.Mode() != 0o640 {
		t.Errorf("target: %v %v", info, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("link: %v %v", info, err)
	}
}

// failing accepts n bytes.
type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, &os.PathError{Op: "write", Path: "tmp", Err: errors.New("no space left on device")}
	}
	return len(p), nil
}

// TestWriteReportsTheDisk has next hide the disk's error behind its own.
func TestWriteReportsTheDisk(t *testing.T) {
	l := List{param("a", contract.Float64, 1<<20)}
	head, err := encodeHeader(l, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []int{0, 4 << 20, len(head) + 8<<20 - 1} {
		err := writeTo(&failing{room}, head, l, func(_ int, dst io.Writer) error {
			for range 8 {
				if _, err := dst.Write(make([]byte, 1<<20)); err != nil {
					return fmt.Errorf("hidden")
				}
			}
			return nil
		})
		wantError(t, err, "", "no space left on device; nothing was written")
	}
}

func TestMetadataIsKept(t *testing.T) {
	want := map[string]string{"": "", "a\"b\\\u2028<>\x00": "\n\t\u2029\U0001f600"}
	l := List{param("x\u2028<", contract.Float16, 1)}
	b, err := encode(l, want, func(_ int, dst io.Writer) error { _, err := dst.Write(make([]byte, 2)); return err })
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(f.Metadata(), want) || f.Params()[0].Name != l[0].Name {
		t.Errorf("%q %q", f.Metadata(), f.Params())
	}
}
