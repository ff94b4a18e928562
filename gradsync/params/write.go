package params

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/google/renameio/v2"
)

// Write writes a safetensors file of the parameters in list, byte for byte as
// the format's own library writes it. It calls next once for each of them, in
// the order that FileOrder gives, to write the bytes of list[i], all of them and
// no more, to dst.
//
// The file appears at path when it is complete and on disk; until then, and
// after any error, path is as it was. An error of next is returned as it is;
// every other one is an *Error.
func Write(path string, list List, metadata map[string]string, next func(i int, dst io.Writer) error) error {
	head, err := encodeHeader(list, metadata)
	if err != nil {
		return at(path, err)
	}
	// A rename would put the file in the place of a symbolic link, or of a
	// device such as /dev/null, instead of behind it.
	target := path
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		target = resolved
	}
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		return &Error{Path: path, Problem: "not a regular file", Hint: "choose another name"}
	}
	f, err := renameio.NewPendingFile(target, renameio.WithTempDir(filepath.Dir(target)),
		renameio.WithPermissions(0o666), renameio.WithExistingPermissions())
	if err != nil {
		return writeError(path, err)
	}
	defer f.Cleanup() // does nothing once the file is in place
	if err := writeTo(f, head, list, next); err != nil {
		return at(path, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return writeError(path, err)
	}
	return nil
}

// FileOrder returns the positions in list in the order in which Write stores
// them: by dtype, wide ones first so that each is aligned, then by name. Every
// rank that sends its part of a file to the writer can know the order by it.
func FileOrder(list List) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := list[i], list[j]
		return cmp.Or(cmp.Compare(b.DType, a.DType), cmp.Compare(a.Name, b.Name))
	})
	return order
}

// encodeHeader returns the header with its length before it, padded with spaces
// to a multiple of eight so that the data are aligned in the file.
func encodeHeader(list List, metadata map[string]string) ([]byte, error) {
	if err := list.Validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if len(metadata) > 0 {
		fmt.Fprintf(&b, "%q:{", metadataKey)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, &Error{Problem: "metadata " + quote(key) + " is not valid UTF-8"}
			}
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%s:%s", jsonString(key), jsonString(metadata[key]))
		}
		b.WriteString("},")
	}
	var pos int64
	for n, i := range FileOrder(list) {
		p := list[i]
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `%s:{"dtype":%q,"shape":[`, jsonString(p.Name), gradientDTypes[p.DType])
		for k, d := range p.Shape {
			if k > 0 {
				b.WriteByte(',')
			}
			fmt.Fprint(&b, d)
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, pos, pos+p.Bytes())
		pos += p.Bytes()
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	head := b.Bytes()
	if len(head)-8 > maxHeader {
		return nil, &Error{Problem: fmt.Sprintf("the header would take %d bytes, over the format's limit of %d", len(head)-8, maxHeader), Hint: "shorten the names or the metadata"}
	}
	binary.LittleEndian.PutUint64(head, uint64(len(head)-8))
	return head, nil
}

// jsonString encodes s, which is valid UTF-8, without escaping it for HTML.
func jsonString(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic("params: " + err.Error()) // a string always encodes
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// writeTo writes the header and then each tensor as next gives it.
func writeTo(w io.Writer, head []byte, list List, next func(i int, dst io.Writer) error) error {
	buf := bufio.NewWriterSize(w, 1<<20)
	if _, err := buf.Write(head); err != nil {
		return writeError("", err)
	}
	for _, i := range FileOrder(list) {
		dst := &exact{w: buf, left: list[i].Bytes()}
		err := next(i, dst)
		switch {
		case dst.err != nil: // the cause, whatever next made of it
			return writeError("", dst.err)
		case err != nil && dst.left >= 0:
			return err
		case dst.left != 0:
			size := list[i].Bytes()
			return &Error{Tensor: list[i].Name, Problem: fmt.Sprintf("%d bytes given, but it has %d", size-dst.left, size)}
		}
	}
	if err := buf.Flush(); err != nil {
		return writeError("", err)
	}
	return nil
}

// exact passes on what is written to it and counts it. A write that goes beyond
// the tensor is counted and refused.
type exact struct {
	w    io.Writer
	left int64 // bytes still to come; negative after too many
	err  error // the first error of w
}

func (e *exact) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	e.left -= int64(len(p))
	if e.left < 0 {
		return 0, errors.New("params: more bytes than the tensor has")
	}
	n, err := e.w.Write(p)
	e.err = err
	return n, err
}

func writeError(path string, err error) *Error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return osError(path, "make its directory first", err)
	case errors.Is(err, fs.ErrPermission):
		return osError(path, "choose a place that this user may write", err)
	}
	return osError(path, "nothing was written", err)
}
