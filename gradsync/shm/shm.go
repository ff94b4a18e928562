// Package shm maps memory that several processes of one host share.
//
// A segment is a file in a memory file system, /dev/shm by default. Its space
// is reserved when it is created, so that a file system that is too small is an
// error here and not a SIGBUS later. Once every peer has mapped a segment its
// name is removed, so that nothing is left behind however the processes end.
package shm

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Dir is where segments are made.
const Dir = "/dev/shm"

// Segment is mapped shared memory.
type Segment struct {
	path string
	mem  []byte
}

// Create makes and maps a segment of size bytes, zeroed, in dir.
func Create(dir string, size int64) (*Segment, error) {
	// The kernel answers a file above the process's limit with a signal.
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err == nil && uint64(size) > limit.Cur {
		return nil, fmt.Errorf("shared memory: a limit on file sizes (ulimit -f) of %d KiB forbids %d MiB", limit.Cur>>10, mib(size))
	}
	var nonce [12]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	path := filepath.Join(dir, "ddpstep-"+hex.EncodeToString(nonce[:]))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		os.Remove(path)
		if errors.Is(err, syscall.ENOSPC) {
			return nil, fmt.Errorf("shared memory: %s has no room for %d MiB", dir, mib(size))
		}
		return nil, fmt.Errorf("shared memory: reserving %d bytes in %s: %w", size, dir, err)
	}
	s, err := mapFile(f, size)
	if err != nil {
		os.Remove(path)
		return nil, err
	}
	s.path = path
	return s, nil
}

// Private maps zeroed memory of this process alone, page-aligned and outside
// Go's heap, so that it can be handed to C without pinning.
func Private(size int64) (*Segment, error) {
	if size == 0 {
		return &Segment{}, nil
	}
	mem, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mapping %d MiB of memory: %w", mib(size), err)
	}
	// Large pages spare whoever copies or pins this memory most of the page
	// tables. The system may refuse; then pages are small.
	_ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE)
	return &Segment{mem: mem}, nil
}

// mib is size in MiB, rounded up.
func mib(size int64) int64 { return (size + 1<<20 - 1) >> 20 }

// Open maps a segment that another process created.
func Open(path string, size int64) (*Segment, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("shared memory of a peer: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != size {
		return nil, fmt.Errorf("shared memory of a peer: %s does not have the %d bytes announced", path, size)
	}
	return mapFile(f, size)
}

func mapFile(f *os.File, size int64) (*Segment, error) {
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of shared memory: %w", size, err)
	}
	return &Segment{mem: mem}, nil
}

// Path is the segment's name in the file system, empty for an opened one.
func (s *Segment) Path() string { return s.path }

// Bytes is the memory.
func (s *Segment) Bytes() []byte { return s.mem }

// Unlink removes the name; the memory stays until every process has unmapped it.
func (s *Segment) Unlink() {
	if s.path != "" {
		os.Remove(s.path)
		s.path = ""
	}
}

// Close removes the name and unmaps the memory.
func (s *Segment) Close() error {
	s.Unlink()
	if s.mem == nil {
		return nil
	}
	mem := s.mem
	s.mem = nil
	return syscall.Munmap(mem)
}
