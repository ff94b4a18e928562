package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ReadDigests reads the digests of a report or of a baseline, whichever the
// file holds.
func ReadDigests(path string) (*Baseline, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, readError(path, err)
	}
	var head struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(raw, &head); err != nil || head.Format != Format {
		return ReadBaseline(path) // it says what is wrong
	}
	r := &Report{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("%s: no report: %w", path, err)
	}
	if len(r.Steps) == 0 || len(r.Parameters) == 0 || r.Contract.World < 1 {
		return nil, fmt.Errorf("%s: the report holds no steps or parameters", path)
	}
	return NewBaseline(r), nil
}

// readFile is os.ReadFile, but that it does not wait for the writer of a named
// pipe: without one, the file is empty.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
