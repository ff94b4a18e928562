package nccl

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrAborted is answered by every call on a communicator that was aborted.
	ErrAborted = errors.New("communicator was aborted")
	// ErrClosed is answered by every call after Close.
	ErrClosed = errors.New("communicator was closed")
	// ErrArgument is what a call was given that NCCL would not have noticed, or only by hanging.
	ErrArgument = errors.New("bad argument")
)

// The codes that a caller branches on.
const (
	CodeInvalidUsage = 5 // two ranks on one GPU, for one
	CodeRemoteError  = 6 // a process of the communicator is gone, or the network to it
)

// An Error is what a call of NCCL answered, or what a communicator reported while it was polled.
type Error struct {
	Call string // the function, as the library exports it
	Code int    // ncclResult_t
	Text string // NCCL's description of the code
	Last string // NCCL's last error text, which may be of an earlier call; may be empty
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: NCCL error %d", e.Call, e.Code)
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Last != "" {
		b.WriteString(": " + e.Last)
	}
	return b.String()
}

// A VersionError is a library that is older than [Floor].
type VersionError struct {
	Found Version
	Path  string
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("NCCL %v (%s) is too old: %v or newer is needed, as older ones hang on new GPUs", e.Found, e.Path, Floor)
}

// fail makes the error of a call, nil for success and for in progress, which is polled.
func (l *Library) fail(call string, code int, comm uintptr) error {
	if code == success || code == inProgress {
		return nil
	}
	return &Error{Call: call, Code: code, Text: l.api.text(code), Last: l.api.last(comm)}
}

// abortedError answers a call after the abort, with why there was one.
type abortedError struct {
	call  string
	cause error
}

func (e *abortedError) Error() string   { return fmt.Sprintf("%s: %v: %v", e.call, ErrAborted, e.cause) }
func (e *abortedError) Unwrap() []error { return []error{ErrAborted, e.cause} }
