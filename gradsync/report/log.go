package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Log is the file to which the steps of a run are appended as they finish.
type Log struct {
	f *os.File
}

// OpenLog opens the log for appending; fresh empties it first.
func OpenLog(path string, fresh bool) (*Log, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if fresh {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, fileError(path, err)
	}
	return &Log{f}, nil
}

// Append writes v as one line, and waits until the disk has it.
func (l *Log) Append(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := l.f.Write(append(b, '\n')); err != nil {
		return fileError(l.f.Name(), err)
	}
	return l.f.Sync()
}

// Close closes the file.
func (l *Log) Close() error { return l.f.Close() }

// ReadLog calls add with each whole line of a log. A last line without its
// newline is what a killed job left of a write; it is passed over, and valid
// says how many bytes precede it. A log that is not there has no lines.
func ReadLog(path string, add func(line []byte) error) (valid int64, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s: cannot be read: %v", path, errors.Unwrap(err))
	}
	for n := 1; ; n++ {
		end := bytes.IndexByte(raw[valid:], '\n')
		if end < 0 {
			return valid, nil
		}
		if err := add(raw[valid : valid+int64(end)]); err != nil {
			return valid, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		valid += int64(end) + 1
	}
}
