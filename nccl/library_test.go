package nccl_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

func TestVersionString(t *testing.T) {
	for v, want := range map[nccl.Version]string{2708: "2.7.8", 21005: "2.10.5", 22600: "2.26.0", 22803: "2.28.3"} {
		if v.String() != want {
			t.Errorf("%d is %v, want %s", int(v), v, want)
		}
	}
}

func TestOpen(t *testing.T) {
	l := gpudouble.Need(t)
	if l.Real {
		lib, err := nccl.Open(l.NCCL)
		if err != nil || lib.Version() < nccl.Floor {
			t.Errorf("%v, %v", lib, err)
		}
		t.Skip("the rest needs the double")
	}
	missing := filepath.Join(t.TempDir(), "libnccl.so.2")
	copied := func(symbol string) string {
		dir := t.TempDir()
		path, err := gpudouble.Without(l.NCCL, symbol, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(l.CUDA, filepath.Join(dir, "libcuda.so.1")); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lacking := copied("ncclCommAbort")
	for _, tt := range []struct {
		name, path, version string
		want                []string
	}{
		{"newest", l.NCCL, "23007", nil},
		{"floor", l.NCCL, "22600", nil},
		{"too old", l.NCCL, "22507", []string{"NCCL 2.25.7", l.NCCL, "2.26.0 or newer"}},
		{"very old and lacking a function", lacking, "2708", []string{"NCCL 2.7.8", lacking}},
		{"missing", missing, "", []string{"libnccl.so.2", missing, "No such file"}},
		{"lacking a function", lacking, "22803", []string{"libnccl.so.2", lacking, "no symbol ncclCommAbort"}},
		{"no NCCL at all", copied("ncclGetVersion"), "22803", []string{"no symbol ncclGetVersion"}},
	} {
		t.Setenv("DDPSTEP_DOUBLE_NCCL_VERSION", tt.version)
		lib, err := nccl.Open(tt.path)
		if tt.want == nil {
			if err != nil || lib.Path() != tt.path {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			continue
		}
		var old *nccl.VersionError
		var load *cuda.LoadError
		if !errors.As(err, &old) && !errors.As(err, &load) {
			t.Errorf("%s: %T", tt.name, err)
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", tt.name, err, w)
			}
		}
	}
}

// A program with this package in it must start where nothing is installed, whatever the loader is told.
func TestStartsUnderBindNow(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("under LD_BIND_NOW=1: %v\n%s", err, out)
	}
}
