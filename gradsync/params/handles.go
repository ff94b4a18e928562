package params

import (
	"io/fs"
	"os"
	"sync"
)

// maxOpen is the number of files that a set keeps open. A process commonly may
// open 1024, which MPI and CUDA need too.
const maxOpen = 64

// handles opens files as they are needed and closes the one unused for longest
// when there are too many.
type handles struct {
	max   int
	paths []string
	infos []fs.FileInfo // of each file when its header was read

	mu   sync.Mutex
	open map[int]*handle
	tick int64
}

type handle struct {
	file *os.File
	refs int   // readers at work; a file with any stays open
	used int64 // tick of the last use
}

func newHandles() *handles { return &handles{max: maxOpen, open: make(map[int]*handle)} }

// add takes note of the next file, which f has open.
func (h *handles) add(path string, f *File) error {
	info, err := f.src.(*os.File).Stat()
	if err != nil {
		return readError(path, err)
	}
	h.paths, h.infos = append(h.paths, path), append(h.infos, info)
	return nil
}

// acquire returns file i, open, until release. Files in use at one time may
// exceed the limit, by as many as there are readers.
func (h *handles) acquire(i int) (*handle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.open[i]
	if e == nil {
		for len(h.open) >= h.max && h.closeOldest() {
		}
		f, _, err := openRegular(h.paths[i])
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, readError(h.paths[i], err)
		}
		if was := h.infos[i]; !os.SameFile(info, was) || info.Size() != was.Size() || !info.ModTime().Equal(was.ModTime()) {
			f.Close()
			return nil, &Error{Path: h.paths[i], Problem: "the file changed after its header was read", Hint: "leave it alone during the run"}
		}
		e = &handle{file: f}
		h.open[i] = e
	}
	e.refs++
	h.tick++
	e.used = h.tick
	return e, nil
}

func (h *handles) release(e *handle) {
	h.mu.Lock()
	e.refs--
	h.mu.Unlock()
}

// closeOldest closes the idle file that was used least recently. It reports
// whether there was one.
func (h *handles) closeOldest() bool {
	oldest := -1
	for i, e := range h.open {
		if e.refs == 0 && (oldest < 0 || e.used < h.open[oldest].used) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	h.open[oldest].file.Close() // only read from: nothing to lose
	delete(h.open, oldest)
	return true
}

func (h *handles) closeAll() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var first error
	for i, e := range h.open {
		if err := e.file.Close(); err != nil && first == nil {
			first = osError(h.paths[i], "", err)
		}
		delete(h.open, i)
	}
	return first
}
