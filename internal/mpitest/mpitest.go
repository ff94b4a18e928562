// Package mpitest runs tests under a real MPI.
//
// A test asks a [Library] to build a command or a test binary with its build
// tag and to launch it with a number of ranks. Where the library is not
// installed the test is skipped with the name of the Debian package to
// install, or fails when the environment variable DDPSTEP_REQUIRE lists the
// library's tag, as it does where every test must run.
//
// Builds are kept until the test process ends, so a package that builds calls
// [Main] from its TestMain.
package mpitest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ddpstep/ddpstep/internal/required"
)

// Library is an MPI library with its launcher.
type Library struct {
	Tag       string   // the build tag that binds it
	Name      string   // for people
	pkgConfig string   // its pkg-config package
	debian    string   // the Debian packages that bring it
	launchers []string // names to try, the most particular first
	banner    string   // what the right launcher's --version says
}

// OpenMPI and MPICH are the libraries that this module can be built for.
var (
	OpenMPI = &Library{Tag: "mpi", Name: "Open MPI", pkgConfig: "ompi",
		debian:    "openmpi-bin libopenmpi-dev",
		launchers: []string{"mpirun.openmpi", "mpirun"}, banner: "Open MPI"}
	MPICH = &Library{Tag: "mpich", Name: "MPICH", pkgConfig: "mpich",
		debian:    "mpich libmpich-dev",
		launchers: []string{"mpirun.mpich", "mpiexec.hydra", "mpirun"}, banner: "HYDRA"}
)

// Libraries returns both.
func Libraries() []*Library { return []*Library{OpenMPI, MPICH} }

// Need skips the test, or fails it where it is required, unless programs can
// be built for the library and launched.
func (l *Library) Need(t testing.TB) {
	t.Helper()
	problem := ""
	switch {
	case l.launcher() == "":
		problem = "no launcher (" + strings.Join(l.launchers, ", ") + ")"
	case exec.Command("pkg-config", "--exists", l.pkgConfig).Run() != nil:
		problem = "pkg-config finds no package " + l.pkgConfig
	default:
		return
	}
	required.Skip(t, l.Tag, "needs "+l.Name+": "+problem+"; on Debian: apt-get install "+l.debian+" pkg-config gcc")
}

// launcher returns the path of the library's own launcher. A plain mpirun may
// belong to either library, so each is asked who it is.
func (l *Library) launcher() string {
	for _, name := range l.launchers {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if text, _ := exec.Command(path, "--version").Output(); strings.Contains(string(text), l.banner) {
			return path
		}
	}
	return ""
}

// flags returns what the launcher needs to start more ranks than cores, here,
// as this user.
func (l *Library) flags() []string {
	if l != OpenMPI {
		return nil
	}
	flags := []string{"--oversubscribe"}
	if os.Geteuid() == 0 {
		flags = append(flags, "--allow-run-as-root")
	}
	return flags
}

var builds struct {
	sync.Mutex
	dir  string
	path map[string]func() (string, error)
}

// Main runs the tests and removes what they built. It returns the exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mpitest")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	builds.dir, builds.path = dir, map[string]func() (string, error){}
	return m.Run()
}

// Build builds the command in package pkg, such as "./cmd/tool" or ".", with
// the library's tag, and returns its path. It calls Need.
func (l *Library) Build(t testing.TB, pkg string) string {
	t.Helper()
	return l.build(t, "build", pkg)
}

// BuildTest builds the test binary of package pkg with the library's tag and
// returns its path. It calls Need.
func (l *Library) BuildTest(t testing.TB, pkg string) string {
	t.Helper()
	return l.build(t, "test", pkg)
}

func (l *Library) build(t testing.TB, verb, pkg string) string {
	t.Helper()
	l.Need(t)
	key := verb + " " + l.Tag + " " + pkg
	builds.Lock()
	if builds.dir == "" {
		t.Fatal("mpitest: call mpitest.Main from TestMain")
	}
	once, ok := builds.path[key]
	if !ok {
		out := filepath.Join(builds.dir, strings.Map(fileRune, key))
		once = sync.OnceValues(func() (string, error) {
			return out, errors.Join(noteSources(l.Tag, pkg), compile(verb, l.Tag, out, pkg))
		})
		builds.path[key] = once
	}
	builds.Unlock()
	path, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func compile(verb, tag, out, pkg string) error {
	args := []string{verb, "-tags", tag, "-o", out}
	if verb == "test" {
		args = append(args, "-c")
	}
	return goTool(append(args, pkg), nil)
}

// noteSources opens the folders of this module that pkg is built from. The go
// command sees that and runs the test again when a file in them has changed;
// otherwise it would repeat a cached result, as it knows only what the test
// itself is built from, which a tag leaves out.
func noteSources(tag, pkg string) error {
	var dirs strings.Builder
	err := goTool([]string{"list", "-deps", "-test", "-tags", tag, "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", pkg}, &dirs)
	for _, dir := range strings.Fields(dirs.String()) {
		if _, e := os.ReadDir(dir); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// goTool runs the go command; its errors carry what it printed.
func goTool(args []string, stdout io.Writer) error {
	cmd := exec.Command("go", args...)
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = stdout, &text
	if stdout == nil {
		cmd.Stdout = &text
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text.String())
	}
	return nil
}

func fileRune(r rune) rune {
	if strings.ContainsRune(" ./", r) {
		return '_'
	}
	return r
}
