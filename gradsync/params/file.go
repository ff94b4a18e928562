package params

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// File is an open safetensors file of gradients. Its methods may be called from
// several goroutines at once, OrderAs and Close excepted.
type File struct {
	path     string
	src      io.ReaderAt
	close    func() error
	params   List
	offsets  []int64 // of each parameter's first byte in the file
	metadata map[string]string
	index    map[string]int
}

// Open opens a safetensors file and checks its header against the format, the
// file's length, and what gradients can be. The data stay on disk.
func Open(path string) (*File, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	file, err := newFile(f, size)
	if err != nil {
		f.Close()
		return nil, at(path, err)
	}
	file.path, file.close = path, f.Close
	return file, nil
}

// ReadCheckpoint reads the header of a safetensors checkpoint as a parameter
// list, in the order of the data. Tensors of dtypes that gradients do not have
// (counters, masks, quantised weights) are left out; skipped names them.
func ReadCheckpoint(path string) (l List, skipped []string, err error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	h, _, err := readHeader(f, size)
	if err != nil {
		return nil, nil, at(path, err)
	}
	l, err = h.gradients(func(name string) { skipped = append(skipped, name) })
	if err != nil {
		return nil, nil, at(path, err)
	}
	return l, skipped, nil
}

// openRegular opens a regular file and returns its size. Opening does not wait
// for the writer of a named pipe, which is refused.
func openRegular(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, readError(path, err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		return f, info.Size(), nil
	}
	f.Close()
	if err != nil {
		return nil, 0, readError(path, err)
	}
	return nil, 0, &Error{Path: path, Problem: "not a regular file", Hint: "name a safetensors file"}
}

// readHeader reads and checks the header of the size bytes in src, and returns
// it with the offset at which the data start.
func readHeader(src io.ReaderAt, size int64) (*header, int64, error) {
	if size < 8 {
		return nil, 0, &Error{Problem: fmt.Sprintf("%d bytes long, too short for a safetensors file", size), Hint: "write or copy the file again"}
	}
	var length [8]byte
	if err := readFull(src, length[:], 0); err != nil {
		return nil, 0, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader {
		return nil, 0, &Error{Problem: fmt.Sprintf("a header of %d bytes is over the format's limit of %d", n, maxHeader), Hint: "is it a safetensors file?"}
	}
	if int64(n) > size-8 {
		return nil, 0, &Error{Problem: fmt.Sprintf("a header of %d bytes reaches beyond the file's %d bytes", n, size), Hint: "write or copy the file again"}
	}
	b := make([]byte, n)
	if err := readFull(src, b, 8); err != nil {
		return nil, 0, err
	}
	data := 8 + int64(n)
	h, err := parseHeader(b, size-data)
	return h, data, err
}

func newFile(src io.ReaderAt, size int64) (*File, error) {
	h, data, err := readHeader(src, size)
	if err != nil {
		return nil, err
	}
	l, err := h.gradients(nil)
	if err != nil {
		return nil, err
	}
	f := &File{src: src, params: l, offsets: make([]int64, len(l)), metadata: h.metadata, index: l.index()}
	for i, t := range h.tensors {
		f.offsets[i] = data + t.begin
	}
	return f, nil
}

// Params returns the tensors in the order of their data, or as OrderAs put
// them. The list is the file's own: do not change it.
func (f *File) Params() List { return f.params }

// Tensor returns the position in Params of the tensor called name.
func (f *File) Tensor(name string) (i int, ok bool) {
	i, ok = f.index[name]
	return i, ok
}

// Metadata returns the strings under the header's __metadata__; nil when it has
// none. The map is the file's own: do not change it.
func (f *File) Metadata() map[string]string { return f.metadata }

// ReadAt fills p with the bytes of a tensor, given by its position in Params,
// from byteOffset on. A range outside the tensor panics. A file that has become
// shorter since Open is an error, never a short read.
func (f *File) ReadAt(p []byte, tensor int, byteOffset int64) error {
	if size := f.params[tensor].Bytes(); byteOffset < 0 || byteOffset > size-int64(len(p)) {
		panic(fmt.Sprintf("params: ReadAt of %d bytes at %d of a tensor of %d", len(p), byteOffset, size))
	}
	return at(f.path, in(f.params[tensor].Name, readFull(f.src, p, f.offsets[tensor]+byteOffset)))
}

// OrderAs reorders Params as the names in order, which must be the same names
// with the same shapes.
func (f *File) OrderAs(order List) error {
	perm, err := f.params.orderAs(order)
	if err != nil {
		return at(f.path, err)
	}
	l, offsets := make(List, len(perm)), make([]int64, len(perm))
	for i, j := range perm {
		l[i], offsets[i] = f.params[j], f.offsets[j]
	}
	f.params, f.offsets, f.index = l, offsets, l.index()
	return nil
}

// Close closes the file.
func (f *File) Close() error {
	if err := f.close(); err != nil {
		return osError(f.path, "", err)
	}
	return nil
}

// readFull reads all of p or says why not.
func readFull(src io.ReaderAt, p []byte, offset int64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := src.ReadAt(p, offset)
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, io.EOF):
		return &Error{Problem: "the file became shorter while it was read", Hint: "leave it alone during the run", Err: io.ErrUnexpectedEOF}
	}
	return readError("", err)
}
