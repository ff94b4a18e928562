// Package gpudouble builds the test doubles of libcuda.so.1 and libnccl.so.2, with which the GPU code runs, and fails
// on demand, on a machine without a GPU. Only tests import it.
//
// The doubles are C++17, embedded here and compiled once per version of the sources with the machine's own compiler.
// What they imitate, and the variables that tell them how many devices to have and what to do wrong, stands at the top
// of the files in src: cuda_device.cpp, cuda_memory.cpp, cuda_stream.cpp, nccl.h and fault.h. Kernels come from the same .cu files as the
// PTX, compiled for the host: see kernel_abi.h and [Kernels].
//
// With DDPSTEP_TEST_GPU=real the tests run on the real libraries instead, and need no compiler.
package gpudouble

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/required"
)

//go:embed kernel_abi.h src
var sources embed.FS

var flags = []string{"-std=c++17", "-O2", "-g1", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared", "-Wall", "-Wextra", "-pthread"}

// Libraries says which libraries a test uses.
type Libraries struct {
	Dir  string // holds both doubles under their real names, for LD_LIBRARY_PATH; empty for the real ones
	CUDA string // path of libcuda.so.1, empty for wherever the loader finds it
	NCCL string // path of libnccl.so.2, likewise
	Real bool
}

// Need returns the libraries to test with. Without a C++ compiler it skips the test, or fails it when the list
// DDPSTEP_REQUIRE holds "double".
func Need(t testing.TB) Libraries {
	t.Helper()
	l, err := Find()
	if err != nil {
		required.Skip(t, "double", fmt.Sprintf("needs the GPU double: %v", err))
	}
	return l
}

// Find is Need without a test.
func Find() (Libraries, error) {
	if os.Getenv("DDPSTEP_TEST_GPU") == "real" {
		return Libraries{Real: true, NCCL: os.Getenv("DDPSTEP_NCCL_LIB")}, nil
	}
	cxx, err := compiler()
	if err != nil {
		return Libraries{}, err
	}
	text := make(map[string][]byte)
	err = fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text[d.Name()], err = sources.ReadFile(path)
		return err
	})
	if err != nil {
		return Libraries{}, err
	}
	dir, err := cached("libraries", cxx, text, func(dir string) error {
		cuda := []string{"-o", "libcuda.so.1", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs"}
		nccl := []string{"-o", "libnccl.so.2", "-Wl,-soname,libnccl.so.2", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN"}
		for name := range text {
			switch {
			case strings.HasPrefix(name, "cuda_"):
				cuda = append(cuda, name)
			case strings.HasPrefix(name, "nccl_") && strings.HasSuffix(name, ".cpp"):
				nccl = append(nccl, name)
			}
		}
		if err := compile(cxx, dir, append(cuda, "-ldl")); err != nil {
			return err
		}
		return compile(cxx, dir, append(nccl, "libcuda.so.1"))
	})
	if err != nil {
		return Libraries{}, err
	}
	return Libraries{Dir: dir, CUDA: filepath.Join(dir, "libcuda.so.1"), NCCL: filepath.Join(dir, "libnccl.so.2")}, nil
}

// Kernels compiles .cu files for the host into one shared object, whose path is what DDPSTEP_DOUBLE_KERNELS takes.
func Kernels(files ...string) (string, error) {
	cxx, err := compiler()
	if err != nil {
		return "", err
	}
	text := make(map[string][]byte)
	include := make(map[string]bool)
	for _, f := range files {
		near, err := filepath.Glob(filepath.Join(filepath.Dir(f), "*.*h")) // what a kernel may include
		if err != nil {
			return "", err
		}
		for _, name := range append(near, f) {
			if text[name], err = os.ReadFile(name); err != nil {
				return "", err
			}
		}
		dir, err := filepath.Abs(filepath.Dir(f))
		if err != nil {
			return "", err
		}
		include[dir] = true
	}
	abi, err := sources.ReadFile("kernel_abi.h")
	if err != nil {
		return "", err
	}
	text["kernel_abi.h"] = abi
	dir, err := cached("kernels", cxx, text, func(dir string) error {
		args := []string{"-o", "kernels.so", "-DDDPSTEP_HOST", "-I."}
		for d := range include {
			args = append(args, "-I"+d)
		}
		args = append(args, "-x", "c++")
		for _, f := range files {
			abs, err := filepath.Abs(f)
			if err != nil {
				return err
			}
			args = append(args, abs)
		}
		return compile(cxx, dir, args)
	})
	return filepath.Join(dir, "kernels.so"), err
}

// Without copies a library to dir under its own name, with one exported symbol renamed, so that the loader does not
// find it there. It returns the path of the copy.
func Without(library, symbol, dir string) (string, error) {
	b, err := os.ReadFile(library)
	if err != nil {
		return "", err
	}
	name := []byte("\x00" + symbol + "\x00")
	hidden := slices.Clone(name)
	hidden[1] = '_'
	s := string(b)
	if !strings.Contains(s, string(name)) {
		return "", fmt.Errorf("%s has no symbol %s to hide", library, symbol)
	}
	path := filepath.Join(dir, filepath.Base(library))
	return path, os.WriteFile(path, []byte(strings.ReplaceAll(s, string(name), string(hidden))), 0o755)
}

func compiler() (string, error) {
	for _, name := range []string{os.Getenv("CXX"), "g++", "clang++", "clang++-19", "c++"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no C++ compiler was found (tried $CXX, g++, clang++, clang++-19, c++)")
}

func compile(cxx, dir string, args []string) error {
	cmd := exec.Command(cxx, append(slices.Clone(flags), args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// cached returns the folder in the user's cache for these files, this compiler and these flags, and has build fill it
// when it is new. Test processes may race: each builds in a folder of its own, and the first to rename it wins.
func cached(kind, cxx string, files map[string][]byte, build func(dir string) error) (string, error) {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	h := sha256.New()
	fmt.Fprintln(h, cxx, flags)
	for _, name := range names {
		fmt.Fprintf(h, "%s %d\n", filepath.Base(name), len(files[name]))
		h.Write(files[name])
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	base = filepath.Join(base, "ddpstep-test")
	dir := filepath.Join(base, kind+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(base, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	for name, b := range files {
		if filepath.Base(name) == name {
			if err := os.WriteFile(filepath.Join(work, name), b, 0o644); err != nil {
				return "", err
			}
		}
	}
	if err := build(work); err != nil {
		return "", err
	}
	if err := os.Rename(work, dir); err != nil {
		if _, missing := os.Stat(dir); missing != nil {
			return "", err
		}
	}
	return dir, nil
}
