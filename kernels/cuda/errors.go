package cuda

import (
	"errors"
	"fmt"
	"strings"
)

// Misuse that is found before the driver is called.
var (
	ErrFreed    = errors.New("used after it was freed")
	ErrNull     = errors.New("never allocated")
	ErrRange    = errors.New("out of range")
	ErrType     = errors.New("wrong element type")
	ErrContext  = errors.New("belongs to another context")
	ErrThread   = errors.New("called on another thread than the context's")
	ErrDeadline = errors.New("deadline passed") // returned by Wait: the work was not finished in time
)

// The driver's codes that a caller branches on.
const (
	CodeOutOfMemory = 2
	CodeNoDevice    = 100

	codeNotReady          = 600
	codePeerAccessEnabled = 704
)

// An Error is what a call of the driver answered.
type Error struct {
	Call string // the function, as the library exports it
	Code int    // CUresult
	Name string // the driver's name of the code: CUDA_ERROR_OUT_OF_MEMORY
	Text string // the driver's own description
	Note string // what the call was about: a size, a device, a compiler log; may be empty
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (%d)", e.Call, e.Name, e.Code)
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Note != "" {
		b.WriteString(": " + e.Note)
	}
	return b.String()
}

// fail makes the error of a call, nil for success. The note is formatted only when there is an error.
func (d *Driver) fail(call string, code int, note string, args ...any) error {
	if code == 0 {
		return nil
	}
	e := &Error{Call: call, Code: code}
	e.Name, e.Text = d.api.describe(code)
	if e.Name == "" {
		e.Name = "unknown error"
	}
	if note != "" {
		e.Note = fmt.Sprintf(note, args...)
	}
	return e
}
