package shm

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// folder is a folder in a memory file system, where there is one.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(Dir, "ddpstep-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		t.Errorf("%s is left in %s", f.Name(), dir)
	}
}

func TestTwoMappingsOfOneSegment(t *testing.T) {
	dir := folder(t)
	a, err := Create(dir, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(a.Path(), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(a.Path()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may read gradients", st.Mode(), err)
	}
	if b.Path() != "" {
		t.Errorf("an opened segment has the name %q and may remove it", b.Path())
	}
	a.Unlink()
	empty(t, dir)
	for i, x := range a.Bytes() {
		if x != 0 {
			t.Fatalf("byte %d of a new segment is %d", i, x)
		}
	}
	a.Bytes()[9_999] = 7
	if len(b.Bytes()) != 10_000 || b.Bytes()[9_999] != 7 {
		t.Error("what one mapping writes the other does not see")
	}
	for _, s := range []*Segment{a, b, a} { // twice is fine
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if s.Bytes() != nil {
			t.Error("a closed segment has memory")
		}
	}
}

func TestCloseRemovesTheName(t *testing.T) {
	dir := folder(t)
	s, err := Create(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	empty(t, dir)
}

func TestOpenRefuses(t *testing.T) {
	dir := folder(t)
	s, err := Create(dir, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		path, want string
		size       int64
	}{
		{filepath.Join(dir, "none"), "no such file", 4096},
		{s.Path(), "does not have the 8192 bytes announced", 8192}, // mapping it would end in SIGBUS
	} {
		if p, err := Open(c.path, c.size); err == nil {
			p.Close()
			t.Errorf("%s of %d bytes is opened", c.path, c.size)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, expected %q", err, c.want)
		}
	}
}

func TestCreateInNoFolder(t *testing.T) {
	if s, err := Create(filepath.Join(t.TempDir(), "none"), 4096); err == nil {
		s.Close()
		t.Error("a segment in a folder that is not there")
	}
}

// A file system without room must be an error when the segment is made: a page
// that cannot be had later is a SIGBUS.
func TestFileSystemTooSmall(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	defer syscall.Unmount(dir, 0)
	s, err := Create(dir, 2<<20)
	if err == nil {
		s.Close()
		t.Fatal("2 MiB fit 1 MiB")
	}
	if want := dir + " has no room for 2 MiB"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, expected %q", err, want)
	}
	empty(t, dir)
	s, err = Create(dir, 1<<19)
	if err != nil {
		t.Fatalf("half a MiB in 1 MiB: %v", err)
	}
	s.Close()
}

// A limit on the size of files sends a signal that ends the process, unless it
// is seen before. It holds for a whole process, so another one takes it.
func TestFileSizeLimit(t *testing.T) {
	if dir := os.Getenv("SHM_TEST_LIMITED"); dir != "" {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		s, err := Create(dir, 2<<20)
		if err == nil {
			s.Close()
			t.Fatal("2 MiB within a limit of 1 MiB")
		}
		if want := "a limit on file sizes"; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
		if s, err = Create(dir, 1<<20); err != nil {
			t.Fatal(err)
		}
		s.Close()
		return
	}
	dir := folder(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestFileSizeLimit$")
	cmd.Env = append(os.Environ(), "SHM_TEST_LIMITED="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	empty(t, dir)
}

func TestPrivate(t *testing.T) {
	s, err := Private(5000)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if len(s.Bytes()) != 5000 || s.Bytes()[4999] != 0 {
		t.Error("not 5000 zeros")
	}
	s.Bytes()[4999] = 1
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	none, err := Private(0)
	if err != nil || len(none.Bytes()) != 0 || none.Close() != nil {
		t.Errorf("no memory: %v", err)
	}
	if huge, err := Private(1 << 60); err == nil {
		huge.Close()
		t.Error("an exbibyte of memory")
	}
}
