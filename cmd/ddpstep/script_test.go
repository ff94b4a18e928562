package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// The commands that scripts have beside testscript's own. The reader of
// safetensors here shares no code with the one under test.

// stcmp compares two safetensors files, bit for bit: stcmp got want.
func stcmp(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: stcmp got want")
	}
	err := sameTensors(ts.MkAbs(args[0]), ts.MkAbs(args[1]))
	if (err != nil) != neg {
		ts.Fatalf("stcmp: %v", err)
	}
}

// sameTensors returns the first difference between two safetensors files.
func sameTensors(got, want string) error {
	a, err := readTensors(got)
	if err != nil {
		return err
	}
	b, err := readTensors(want)
	if err != nil {
		return err
	}
	if len(a) != len(b) {
		return fmt.Errorf("%s has %d tensors, %s %d", got, len(a), want, len(b))
	}
	for name, w := range b {
		g, ok := a[name]
		switch {
		case !ok:
			return fmt.Errorf("%s has no tensor %s", got, name)
		case g.DType != w.DType || !reflect.DeepEqual(g.Shape, w.Shape):
			return fmt.Errorf("tensor %s is %s %v, want %s %v", name, g.DType, g.Shape, w.DType, w.Shape)
		case !bytes.Equal(g.data, w.data):
			return fmt.Errorf("tensor %s has other bits", name)
		}
	}
	return nil
}

type rawTensor struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
	data    []byte
}

func readTensors(path string) (map[string]rawTensor, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(raw)
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(raw[8:8+n], &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	tensors := map[string]rawTensor{}
	for name, text := range entries {
		if name == "__metadata__" {
			continue
		}
		var t rawTensor
		if err := json.Unmarshal(text, &t); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, name, err)
		}
		t.data = raw[8+n:][t.Offsets[0]:t.Offsets[1]]
		tensors[name] = t
	}
	return tensors, nil
}

// mkst writes a safetensors file, good or bad: mkst file header data [length].
// The data are hexadecimal; hex*n repeats them; length is what the file says of
// its header when that is not the truth.
func mkst(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || len(args) > 4 {
		ts.Fatalf("usage: mkst file header data [length]")
	}
	length := uint64(len(args[1]))
	if len(args) == 4 {
		n, err := strconv.ParseUint(args[3], 10, 64)
		ts.Check(err)
		length = n
	}
	digits, repeat, _ := strings.Cut(args[2], "*")
	data, err := hex.DecodeString(digits)
	ts.Check(err)
	if repeat != "" {
		n, err := strconv.Atoi(repeat)
		ts.Check(err)
		data = bytes.Repeat(data, n)
	}
	file := binary.LittleEndian.AppendUint64(nil, length)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), append(append(file, args[1]...), data...), 0o666))
}

// safetensors makes a file of a header and data.
func safetensors(header, data string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + data
}

// jsonField looks a value up: json file path value, such as
// json report.json verdicts.ranks_equal true. "stdout" names the last output.
func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json file path value")
	}
	got, err := lookUp([]byte(ts.ReadFile(args[0])), args[1])
	ts.Check(err)
	text, err := json.Marshal(got)
	ts.Check(err)
	if (string(text) == args[2]) == neg {
		ts.Fatalf("%s: %s is %s", args[0], args[1], text)
	}
}

// lookUp follows a path of keys and indices into a JSON document.
func lookUp(text []byte, path string) (any, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	for _, key := range strings.Split(path, ".") {
		switch c := v.(type) {
		case map[string]any:
			next, ok := c[key]
			if !ok {
				return nil, fmt.Errorf("no %s in %s", key, path)
			}
			v = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(c) {
				return nil, fmt.Errorf("no item %s in %s", key, path)
			}
			v = c[i]
		default:
			return nil, fmt.Errorf("%s ends before %s", path, key)
		}
	}
	return v, nil
}

// lines checks that a file has so many lines, at most: lines file n.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: lines file n")
	}
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	if got := strings.Count(ts.ReadFile(args[0]), "\n"); (got == want) == neg {
		ts.Fatalf("%s has %d lines, want %d", args[0], got, want)
	}
}

// empty checks that a folder has no files, hidden ones included.
func empty(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: empty folder")
	}
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	if (len(entries) == 0) == neg {
		ts.Fatalf("%s has %v", args[0], entries)
	}
}
