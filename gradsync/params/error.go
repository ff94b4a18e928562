package params

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// Error says what is wrong with an input or output file, and what to do.
type Error struct {
	Path    string // the file; empty when the fault is in no file
	Tensor  string // the tensor or parameter at fault; empty when it is the file as a whole
	Problem string // what is wrong
	Hint    string // what to do; may be empty
	Err     error  // the operating system's error, if that is the cause
}

// Error returns one line: path: tensor "name": problem; hint.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		b.WriteString(oneLine(e.Path) + ": ")
	}
	if e.Tensor != "" {
		b.WriteString("tensor " + quote(e.Tensor) + ": ")
	}
	b.WriteString(e.Problem)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// at returns err, which must be an *Error or nil, with its path filled in.
func at(path string, err error) error {
	if e, ok := err.(*Error); ok {
		e.Path = path
	}
	return err
}

// osError makes an Error of what the operating system answered for path. The
// path that package os repeats in its text is left out.
func osError(path, hint string, err error) *Error {
	cause := err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	problem := cause.Error()
	if errno, ok := cause.(syscall.Errno); ok {
		problem = errno.Error()
	}
	return &Error{Path: path, Problem: problem, Hint: hint, Err: err}
}

// readError is osError with the hint that fits a file to be read.
func readError(path string, err error) *Error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return osError(path, "check the path", err)
	case errors.Is(err, fs.ErrPermission):
		return osError(path, "make it readable for this user", err)
	}
	return osError(path, "", err)
}

// quote is strconv.Quote with long names cut, so that an error about a hostile
// header stays a line that people can read.
func quote(s string) string {
	const most = 200
	if len(s) <= most {
		return strconv.Quote(s)
	}
	s = s[:most]
	for len(s) > 0 && !utf8.ValidString(s) && len(s) > most-utf8.UTFMax {
		s = s[:len(s)-1]
	}
	return strconv.Quote(s) + "..."
}

// dims writes a shape, cut for the same reason.
func dims(shape []int64) string {
	const most = 64 // PyTorch's tensors have no more
	if len(shape) <= most {
		return fmt.Sprint(shape)
	}
	return fmt.Sprintf("%v... (%d dimensions)", shape[:most], len(shape))
}

// oneLine leaves ordinary text alone and quotes what would break the line.
func oneLine(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return strconv.Quote(s)
	}
	return s
}
