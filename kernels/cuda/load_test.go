package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// fakeLoader opens the paths it has, and finds every symbol but those that are missing.
type fakeLoader struct {
	has     []string
	missing string
}

func (l fakeLoader) Open(path string) (uintptr, error) {
	if !slices.Contains(l.has, path) {
		return 0, fmt.Errorf("%s: cannot open shared object file", path)
	}
	return 1, nil
}

func (l fakeLoader) Symbol(_ uintptr, name string) (uintptr, error) {
	if name == l.missing {
		return 0, fmt.Errorf("undefined symbol: %s", name)
	}
	return 1, nil
}

func TestOpenFailures(t *testing.T) {
	tests := []struct {
		name   string
		loader fakeLoader
		path   string
		opened string   // the path that must be taken, when there is no error
		want   []string // what the error must say
	}{
		{name: "nothing installed", want: []string{"libcuda.so.1, libcuda.so,", "libcuda.so.1: cannot open shared object file", "libcuda.so: cannot open"}},
		{name: "given path missing", loader: fakeLoader{has: []string{"libcuda.so.1"}}, path: "/opt/x.so", want: []string{"libcuda.so.1", "tried /opt/x.so:", "/opt/x.so: cannot open"}},
		{name: "symbol missing", loader: fakeLoader{has: []string{"libcuda.so.1"}, missing: "cuIpcOpenMemHandle_v2"}, want: []string{"libcuda.so.1", "no symbol cuIpcOpenMemHandle_v2", "undefined symbol"}},
		{name: "second name", loader: fakeLoader{has: []string{"libcuda.so"}}, opened: "libcuda.so"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := cuda.OpenWith(tt.loader, tt.path)
			if tt.want == nil {
				if err != nil || d.Path() != tt.opened {
					t.Fatalf("got %v, %v, want %s", d, err, tt.opened)
				}
				return
			}
			var load *cuda.LoadError
			if !errors.As(err, &load) {
				t.Fatalf("got %v, want a LoadError", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q is more than one line", err)
			}
		})
	}
}

func TestSystemLoader(t *testing.T) {
	if _, err := cuda.Open(filepath.Join(t.TempDir(), "libcuda.so.1")); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("a missing file: %v, want the loader's own message", err)
	}
	l := gpudouble.Need(t)
	if l.Real {
		t.Skip("needs the double: the real library lacks no symbol")
	}
	lacking, err := gpudouble.Without(l.CUDA, "cuGraphLaunch", t.TempDir())
	must(t, err)
	_, err = cuda.Open(lacking)
	if err == nil || !strings.Contains(err.Error(), "no symbol cuGraphLaunch") || !strings.Contains(err.Error(), lacking) {
		t.Errorf("a library without a symbol: %v, want the symbol and the library named", err)
	}
}

// Without a path the library is found by its name, as a job's LD_LIBRARY_PATH has it.
func TestOpenByName(t *testing.T) {
	l := gpudouble.Need(t)
	if l.Real {
		t.Skip("needs the double")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=name", "LD_LIBRARY_PATH="+l.Dir)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "libcuda.so.1 2\n" {
		t.Errorf("%v, %s", err, out)
	}
}

// nameRole opens the library by name and says which it was, and how many devices it has.
func nameRole() error {
	d, err := cuda.Open("")
	if err != nil {
		return err
	}
	if err := d.Init(); err != nil {
		return err
	}
	n, err := d.Count()
	fmt.Println(d.Path(), n)
	return err
}

// A program with this package in it must start where no CUDA is, whatever the loader is told. The test binary is one.
func TestStartsUnderBindNow(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1", role+"=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("under LD_BIND_NOW=1: %v\n%s", err, out)
	}
}

func TestStartsWithoutLazyBinding(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the Go tool, to link with -z now")
	}
	bin := filepath.Join(t.TempDir(), "now.test")
	build := exec.Command(tool, "test", "-c", "-ldflags=-extldflags=-Wl,-z,now", "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(bin, "-test.run=^$").CombinedOutput(); err != nil {
		t.Fatalf("linked with -z now: %v\n%s", err, out)
	}
}
