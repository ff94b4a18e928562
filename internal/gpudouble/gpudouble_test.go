package gpudouble

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuild(t *testing.T) {
	l := Need(t)
	if l.Real {
		t.Skip("needs the double")
	}
	again := Need(t)
	if again != l {
		t.Errorf("built twice: %v, then %v", l, again)
	}
	nm, err := exec.LookPath("nm")
	if err != nil {
		t.Skip("needs nm")
	}
	for path, prefix := range map[string]string{l.CUDA: "cu", l.NCCL: "nccl"} {
		out, err := exec.Command(nm, "-D", "--defined-only", path).CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), " T "+prefix) {
			t.Errorf("%s exports nothing that begins with %s:\n%s", path, prefix, out)
		}
	}
}

func TestWithout(t *testing.T) {
	l := Need(t)
	if l.Real {
		t.Skip("needs the double")
	}
	dir := t.TempDir()
	path, err := Without(l.NCCL, "ncclCommAbort", dir)
	if err != nil || path != filepath.Join(dir, "libnccl.so.2") {
		t.Fatal(path, err)
	}
	if _, err := Without(l.NCCL, "ncclNoSuchThing", dir); err == nil {
		t.Error("a symbol that is not there was hidden")
	}
}
