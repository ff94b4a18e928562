package params

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// param is a parameter; without dimensions it is a scalar.
func param(name string, d contract.DType, shape ...int64) Param {
	return Param{Name: name, DType: d, Shape: append([]int64{}, shape...)}
}

// raw is a safetensors file with the given header and data bytes.
func raw(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, data)...)
}

// put writes a file into the test's directory and returns its path.
func put(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantError checks the whole line, with the path or pattern in front of it cut off.
func wantError(t *testing.T, err error, path, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %s", want)
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("a %T, not a *params.Error: %v", err, err)
	}
	if path != "" {
		path += ": "
	}
	if got := err.Error(); got != path+want {
		t.Errorf("got  %s\nwant %s", got, path+want)
	}
}

// encode writes a whole file into memory.
func encode(l List, metadata map[string]string, next func(i int, dst io.Writer) error) ([]byte, error) {
	head, err := encodeHeader(l, metadata)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = writeTo(&b, head, l, next)
	return b.Bytes(), err
}

// copyOf copies the tensors of f, which must have the parameters of l in any order.
func copyOf(f *File, l List) func(i int, dst io.Writer) error {
	return func(i int, dst io.Writer) error {
		k, ok := f.Tensor(l[i].Name)
		if !ok {
			return errors.New("not in the source: " + l[i].Name)
		}
		p := make([]byte, l[i].Bytes())
		if err := f.ReadAt(p, k, 0); err != nil {
			return err
		}
		_, err := dst.Write(p)
		return err
	}
}
