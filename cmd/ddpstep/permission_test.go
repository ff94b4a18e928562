package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestPermission runs as a user who may not read an input or write an output.
func TestPermission(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	command := filepath.Join(dir, "ddpstep")
	if err := os.WriteFile(command, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir, "list.json", mixed)
	secret := writeFile(t, dir, "secret.json", mixed)
	for path, mode := range map[string]os.FileMode{secret: 0, dir: 0o555, filepath.Dir(dir): 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Chmod(dir, 0o755)
	for _, tt := range []struct{ args, want string }{
		{"secret.json", "secret.json: permission denied; make it readable for this user"},
		{"list.json", "out.json: cannot be written: permission denied; choose another place"},
	} {
		cmd := exec.Command(command, "run", "--params", tt.args, "--out", "out.json")
		cmd.Dir = dir
		if os.Geteuid() == 0 { // root may do everything
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != 2 || stderr.String() != "ddpstep: "+tt.want+"\n" {
			t.Errorf("exit code %d, %q, want %q", code, &stderr, tt.want)
		}
	}
}
