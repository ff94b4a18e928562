//go:build linux

package slurmtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// keeperDir, set in the environment, turns the test binary into the keeper of
// that folder.
const keeperDir = "DDPSTEP_SLURMTEST_KEEPER"

func init() {
	if dir := os.Getenv(keeperDir); dir != "" {
		os.Unsetenv(keeperDir)
		os.Exit(keep(dir, os.Stdin, os.Stdout))
	}
}

// order asks the keeper to start one program. Its output goes to the file
// Name+".out" in the folder's log folder.
type order struct {
	Name string
	Args []string
	Env  []string
}

// keep runs the keeper: it answers each order with a line, "ok" or an error,
// and at the end of orders kills all it started and removes dir.
func keep(dir string, orders io.Reader, answers io.Writer) int {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		fmt.Fprintf(answers, "keeper cannot become a subreaper: %v\n", errno)
		return 1
	}
	// The end of the pipe is the only reason to stop: an interrupt from the
	// terminal reaches the test too, and closes it.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	go reap()

	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		var o order
		err := json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			err = launch(dir, o)
		}
		if err != nil {
			fmt.Fprintln(answers, err)
			continue
		}
		fmt.Fprintln(answers, "ok")
	}

	killDescendants(os.Getpid())
	if err := os.RemoveAll(dir); err != nil {
		return 1
	}
	return 0
}

func launch(dir string, o order) error {
	out, err := os.OpenFile(filepath.Join(dir, "log", o.Name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	path, err := exec.LookPath(o.Args[0])
	if err != nil {
		return err
	}
	p, err := os.StartProcess(path, o.Args, &os.ProcAttr{
		Dir:   dir,
		Env:   o.Env,
		Files: []*os.File{null, out, out},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	return p.Release()
}

// reap waits for every child, adopted ones too, so that none stays a zombie.
func reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}

// killDescendants kills until none is left: a process may start another
// between the listing and the signal.
func killDescendants(root int) {
	for {
		list := descendants(root)
		if len(list) == 0 {
			return
		}
		for _, p := range list {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
