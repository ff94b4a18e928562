package params

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// bounded fails if f allocates more than a constant and so many bytes for each
// byte of its input.
func bounded(t *testing.T, input int, f func()) {
	t.Helper()
	const constant, each = 1 << 20, 400
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > constant+each*uint64(input) {
		t.Errorf("%d bytes allocated for %d bytes of input", n, input)
	}
}

// FuzzOpen opens a file of any header, of any number of data bytes, and with a
// header length that may lie. What opens must agree with what
// encoding/json reads from the same header, and must be the same after it was
// written and opened again.
func FuzzOpen(f *testing.F) {
	for _, path := range realFiles(f)[:3] {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		n := 8 + binary.LittleEndian.Uint64(b)
		f.Add(string(b[8:n]), uint16(512), int64(0)) // truncated
	}
	for _, c := range []struct {
		header string
		data   uint16
	}{
		{`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8},
		{`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 9},
		{`{"__metadata__":{"a":"1"},"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"BF16","shape":[0,3],"data_offsets":[8,8]}}  `, 8},
		{`{"a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]},"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 4},
		{`{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 2},
		{`{"w":{"dtype":"F32","shape":[6148914691236517206,3],"data_offsets":[0,8]}}`, 8},
		{`{"\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8},
	} {
		f.Add(c.header, c.data, int64(0))
	}
	f.Add("{}", uint16(0), int64(math.MaxInt64))
	f.Add("{}", uint16(0), int64(-1))
	f.Fuzz(func(t *testing.T, head string, data uint16, lie int64) {
		b := raw(head, int(data))
		for i := range int(data) {
			b[8+len(head)+i] = byte(i*i + 3*i)
		}
		binary.LittleEndian.PutUint64(b, uint64(len(head))+uint64(lie))
		var (
			file *File
			err  error
		)
		bounded(t, len(b), func() { file, err = newFile(bytes.NewReader(b), int64(len(b))) })
		if err != nil {
			if _, ok := err.(*Error); !ok || err.Error() == "" || bytes.ContainsAny([]byte(err.Error()), "\r\n") {
				t.Errorf("not a one-line *Error: %T %q", err, err)
			}
			return
		}
		agrees(t, b, file)

		again, err := encode(file.Params(), file.Metadata(), copyOf(file, file.Params()))
		if err != nil {
			t.Fatal("what opens cannot be written:", err)
		}
		second, err := newFile(bytes.NewReader(again), int64(len(again)))
		if err != nil {
			t.Fatal("what was written does not open:", err)
		}
		if err := second.OrderAs(file.Params()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(file.Params(), second.Params()) + cmp.Diff(file.Metadata(), second.Metadata(), cmpopts.EquateEmpty()); d != "" {
			t.Error("written and opened again, it differs:", d)
		}
		for i, p := range file.Params() {
			a, c := make([]byte, p.Bytes()), make([]byte, p.Bytes())
			if e1, e2 := file.ReadAt(a, i, 0), second.ReadAt(c, i, 0); e1 != nil || e2 != nil || !bytes.Equal(a, c) {
				t.Errorf("%q: data differ after a round trip (%v, %v)", p.Name, e1, e2)
			}
		}
	})
}

// agrees reads the header with encoding/json and checks every tensor, and that
// the data are used up.
func agrees(t *testing.T, b []byte, file *File) {
	t.Helper()
	n := binary.LittleEndian.Uint64(b)
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &entries); err != nil {
		t.Fatal("accepted a header that encoding/json refuses:", err)
	}
	metadata := map[string]string(nil)
	if m, ok := entries[metadataKey]; ok {
		if err := json.Unmarshal(m, &metadata); err != nil {
			t.Fatal(err)
		}
		delete(entries, metadataKey)
	}
	if d := cmp.Diff(metadata, file.Metadata()); d != "" {
		t.Error("metadata:", d)
	}
	if len(entries) != len(file.Params()) {
		t.Errorf("%d tensors, encoding/json finds %d", len(file.Params()), len(entries))
	}
	data := b[8+n:]
	for i, p := range file.Params() {
		var e struct {
			DType       string    `json:"dtype"`
			Shape       []int64   `json:"shape"`
			DataOffsets [2]uint64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(entries[p.Name], &e); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, p.Bytes())
		if err := file.ReadAt(got, i, 0); err != nil {
			t.Fatal(err)
		}
		if want := data[e.DataOffsets[0]:e.DataOffsets[1]]; gradientDTypes[p.DType] != e.DType || !cmp.Equal(e.Shape, p.Shape) || !bytes.Equal(got, want) {
			t.Errorf("tensor %q: %v, encoding/json reads %v", p.Name, p, e)
		}
	}
	if got := file.Params().Bytes(); got != int64(len(data)) {
		t.Errorf("tensors hold %d of %d bytes", got, len(data))
	}
}

// FuzzList reads any bytes as a list. What is read must be valid, must agree
// with encoding/json, and must survive the header of a safetensors file.
func FuzzList(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","dtype":"float32","parameters":[{"name":"a","shape":[3,4]},{"name":"b","shape":[],"dtype":"bfloat16"}]}`,
		`{"parameters":[{"dtype":"float64","shape":[0],"name":"e"},{"name":"x","shape":[1]}],"dtype":"float16"}`,
		`{"parameters":[{"name":"x","shape":[4294967296,4294967296]}],"dtype":"float16"}`,
		`{"dtype":"float32","parameters":[{"name":"a","name":"b","shape":[1]}]}`,
		`{"dtype":"float32","Dtype":"float64","parameters":[]} x`,
		`{"dtype":"float32","parameters":[{"name":"\u2028\ud83d\ude00<","shape":[1e2,-1,0.5]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var (
			l   List
			err error
		)
		bounded(t, len(b), func() { l, err = parseList(b) })
		if err != nil {
			if _, ok := err.(*Error); !ok || err.Error() == "" || bytes.ContainsAny([]byte(err.Error()), "\r\n") {
				t.Errorf("not a one-line *Error: %T %q", err, err)
			}
			return
		}
		if err := l.Validate(); err != nil {
			t.Fatal("returned an invalid list:", err)
		}
		type parameter struct {
			Name  string  `json:"name"`
			Shape []int64 `json:"shape"`
			DType string  `json:"dtype"`
		}
		var whole struct {
			DType      string      `json:"dtype"`
			Parameters []parameter `json:"parameters"`
		}
		if err := json.Unmarshal(b, &whole); err != nil {
			t.Fatal("accepted what encoding/json refuses:", err)
		}
		got := make([]parameter, len(l))
		for i, p := range l {
			got[i] = parameter{p.Name, p.Shape, p.DType.String()}
			if whole.Parameters[i].DType == "" {
				whole.Parameters[i].DType = whole.DType
			}
		}
		if d := cmp.Diff(whole.Parameters, got); d != "" {
			t.Error("encoding/json reads otherwise:", d)
		}

		head, err := encodeHeader(l, nil)
		if err != nil {
			t.Fatal("the list cannot be written:", err)
		}
		h, err := parseHeader(head[8:], l.Bytes())
		if err != nil {
			t.Fatal("the header does not open:", err)
		}
		back, err := h.gradients(nil)
		if err != nil {
			t.Fatal(err)
		}
		perm, err := back.orderAs(l)
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range perm {
			if !cmp.Equal(back[k], l[i]) {
				t.Errorf("came back as %v, was %v", back[k], l[i])
			}
		}
	})
}
