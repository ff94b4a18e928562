package kernels

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
)

// A hosts is processes that run host-compiled kernels on memory that they share with the test: the kernels' own
// test bed, with no driver in between.
type hosts struct {
	t      testing.TB
	mem    []byte // where the test sees it
	used   int
	runner []*runner
}

type runner struct {
	process *os.Process
	in      io.Writer
	out     *bufio.Reader
}

// hostBase is where every runner maps the memory.
const hostBase = 0x600000000000

// buildHost compiles the kernels for the host, and the runner beside them.
var buildHost = sync.OnceValues(func() (paths [2]string, err error) {
	files, err := filepath.Glob("*.cu")
	if err != nil {
		return paths, err
	}
	if paths[0], err = gpudouble.Kernels(files...); err != nil {
		return paths, err
	}
	paths[1] = filepath.Join(filepath.Dir(paths[0]), "runner")
	mine := fmt.Sprint(paths[1], os.Getpid()) // another test may be building it too
	out, err := exec.Command("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-o", mine, "testdata/runner.cc", "-ldl").CombinedOutput()
	if err != nil {
		return paths, fmt.Errorf("runner: %w\n%s", err, out)
	}
	return paths, os.Rename(mine, paths[1])
})

func newHosts(t testing.TB, processes, bytes int) *hosts {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("needs g++ to compile the kernels for the host")
	}
	if gpudouble.Need(t).Real {
		t.Skip("needs the kernels' sources, and no GPU")
	}
	paths, err := buildHost()
	if err != nil {
		t.Fatal(err)
	}
	shm := "/dev/shm" // memory, where there is such a folder
	if _, err := os.Stat(shm); err != nil {
		shm = t.TempDir()
	}
	f, err := os.CreateTemp(shm, "ddpstep-kernels")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
	if err := f.Truncate(int64(bytes)); err != nil {
		t.Fatal(err)
	}
	h := &hosts{t: t}
	if h.mem, err = syscall.Mmap(int(f.Fd()), 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(h.mem) })
	for range processes {
		cmd := exec.Command(paths[1], paths[0], f.Name(), strconv.Itoa(bytes))
		cmd.Stderr = os.Stderr
		in, errIn := cmd.StdinPipe()
		out, errOut := cmd.StdoutPipe()
		if err := firstError(errIn, errOut, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		h.runner = append(h.runner, &runner{cmd.Process, in, bufio.NewReader(out)})
	}
	return h
}

// alloc returns n zeroed bytes and their address for the kernels, skew bytes above a multiple of 256.
func (h *hosts) alloc(n, skew int) (at uint64, b []byte) {
	at, b = h.room(n, skew)
	clear(b)
	return at, b
}

// room is alloc of bytes as they are.
func (h *hosts) room(n, skew int) (at uint64, b []byte) {
	lo := (h.used+255)&^255 + skew
	h.used = lo + n
	return hostBase + uint64(lo), h.mem[lo:h.used:h.used]
}

// reset forgets all allocations.
func (h *hosts) reset() { h.used = 0 }

func (h *hosts) word(at uint64) *uint32 { return (*uint32)(unsafe.Pointer(&h.mem[at-hostBase])) }

// run has every process p run calls[p], all at the same time, each as fast as it can, and waits for all.
func (h *hosts) run(calls ...[]call) {
	h.t.Helper()
	for p := range calls {
		h.start(p, calls[p])
	}
	for p := range calls {
		h.finish(p, calls[p])
	}
}

func (h *hosts) start(p int, calls []call) {
	for _, c := range calls {
		fmt.Fprintf(h.runner[p].in, "%s %d %s\n", c.kernel, c.grid, hex.EncodeToString(c.args))
	}
}

func (h *hosts) finish(p int, calls []call) {
	h.t.Helper()
	hung := time.AfterFunc(time.Minute, func() { h.runner[p].process.Kill() })
	defer hung.Stop()
	for _, c := range calls {
		if line, err := h.runner[p].out.ReadString('\n'); err != nil {
			h.t.Fatalf("process %d, %s: %q %v", p, c.kernel, line, err)
		}
	}
}
