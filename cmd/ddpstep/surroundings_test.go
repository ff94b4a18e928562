package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ddpstep/ddpstep/internal/mpitest"
	"github.com/ddpstep/ddpstep/internal/required"
)

// need skips a test that needs a tool, or fails it where DDPSTEP_REQUIRE says
// that everything must run.
func need(t *testing.T, met bool, what string) {
	t.Helper()
	if met {
		return
	}
	required.Skip(t, "mpi", "needs "+what)
}

// expected is the bits of the runs here, made alone.
func expected(t *testing.T, args []string) string {
	t.Helper()
	report := filepath.Join(t.TempDir(), "r.json")
	alone(t, append([]string{"run", "--world", "4", "--out", report}, args...)...)
	return bits(t, report)
}

// TestSmallSharedMemory gives the buckets a file system that is too small.
func TestSmallSharedMemory(t *testing.T) {
	need(t, os.Geteuid() == 0, "root, to mount a small tmpfs")
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		need(t, false, "the right to mount a tmpfs: "+err.Error())
	}
	defer syscall.Unmount(small, syscall.MNT_DETACH)
	args := []string{"--params", writeFile(t, t.TempDir(), "list.json", mixed)}
	want := expected(t, args)
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
		report := filepath.Join(t.TempDir(), "r.json")
		command := append([]string{lib.Build(t, "."), "run", "--out", report, "--shm-dir", small}, args...)
		r := launch(t, lib, mpitest.Job{Ranks: 4, Command: command})
		if lines := said(r); r.Code != 0 || len(lines) != 1 || !strings.Contains(lines[0], "ddpstep: note: rank ") ||
			!strings.Contains(lines[0], small+" has no room for ") || !strings.Contains(lines[0], "; exchanging over MPI instead") {
			t.Errorf("no note: %v", r)
		}
		if got := field(t, report, "reducer.transport"); got != "mpi" {
			t.Errorf("transport %v", got)
		}
		if bits(t, report) != want {
			t.Error("other bits than in one process")
		}
		// Asked for by name, it is refused instead.
		r = launch(t, lib, mpitest.Job{Ranks: 4, Command: append(command, "--transport", "shm")})
		if lines := said(r); r.Code != 6 || len(lines) != 1 || !strings.Contains(lines[0], " has no room for ") {
			t.Errorf("not refused: %v", r)
		}
		if left, _ := os.ReadDir(small); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
}

// fastMath is linked with -ffast-math, which makes the loader turn on
// flush-to-zero; where the compiler leaves that out of libraries, it does so
// itself.
const fastMath = `
#ifdef __SSE__
#include <xmmintrin.h>
__attribute__((constructor)) static void flush(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
#endif
`

// TestFastMath preloads a library that flushes subnormals to zero, and has the
// loader bind every symbol at once.
func TestFastMath(t *testing.T) {
	cc, err := exec.LookPath("cc")
	need(t, err == nil, "a C compiler; on Debian: apt-get install gcc")
	dir := t.TempDir()
	library := filepath.Join(dir, "libfast.so")
	if text, err := exec.Command(cc, "-shared", "-fPIC", "-ffast-math", "-o", library, writeFile(t, dir, "fast.c", fastMath)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	args := []string{"--params", writeFile(t, dir, "list.json", mixed), "--values", "subnormal", "--bucket-cap-mb", "0.02"}
	want := expected(t, args)
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
		for _, transport := range []string{"shm", "mpi"} {
			report := filepath.Join(t.TempDir(), "r.json")
			command := append([]string{"env", "LD_PRELOAD=" + library, "LD_BIND_NOW=1", lib.Build(t, "."), "run", "--out", report, "--transport", transport}, args...)
			r := launch(t, lib, mpitest.Job{Ranks: 4, Command: command})
			if r.Code != 0 || len(said(r)) > 0 {
				t.Fatal(r)
			}
			if bits(t, report) != want {
				t.Errorf("over %s, other bits than in one process", transport)
			}
		}
	})
}
