package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const goodNVML = `{"format":"ddpstep-nvml/1","driver":"570.1","gpus":[{"index":0,"uuid":"GPU-a","nvlinks":[0,1],"active":2},{"index":1,"uuid":"GPU-b"}],"notes":["x: y"]}`

// script writes an executable shell script.
func script(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNVMLAnswers(t *testing.T) {
	for _, c := range []struct {
		name, script string
		gpus         int
		reason       string // contained in it
	}{
		{"good", "echo '" + goodNVML + "'", 2, "x: y"},
		{"good and chatty", "echo '" + goodNVML + "'; head -c 100000 /dev/zero >&2", 2, "x: y"},
		{"no stdin to wait for", "read line; echo '" + goodNVML + "'", 2, ""},
		{"no NVML", "echo 'ddpstep-nvml: libnvidia-ml.so.1: cannot open' >&2; exit 3", 0, "exit status 3: ddpstep-nvml: libnvidia-ml.so.1: cannot open"},
		{"loader error", "echo 'x: symbol lookup error: undefined symbol: nvmlFoo' >&2; exit 127", 0, "exit status 127: x: symbol lookup error"},
		{"fails without a word", "exit 1", 0, "exit status 1"},
		{"fails after a good answer", "echo '" + goodNVML + "'; exit 1", 0, "exit status 1"},
		{"crashes", "kill -SEGV $$", 0, "signal: segmentation fault"},
		{"says nothing", "true", 0, "no JSON of ours"},
		{"not JSON", "echo hello", 0, "no JSON of ours"},
		{"two answers", "echo '" + goodNVML + goodNVML + "'", 0, "no JSON of ours"},
		{"another format", `echo '{"format":"ddpstep-nvml/2"}'`, 0, `format "ddpstep-nvml/2"`},
		{"a GPU twice", `echo '{"format":"ddpstep-nvml/1","gpus":[{"uuid":"GPU-a"},{"uuid":"GPU-a"}]}'`, 0, `"GPU-a" twice`},
		{"a GPU without UUID", `echo '{"format":"ddpstep-nvml/1","gpus":[{}]}'`, 0, "or with none"},
		{"without end", "yes", 0, "wrote more than 1048576 bytes"},
		{"without end, deaf", "trap '' TERM PIPE; while :; do cat /dev/zero; done", 0, "wrote more than 1048576 bytes"},
		{"several lines on stderr", `printf 'one\033[2J\ntwo\n' >&2; exit 4`, 0, "exit status 4: one [2J"},
		{"LD_BIND_NOW kept away", `[ -z "$LD_BIND_NOW" ] && [ -n "$LD_LIBRARY_PATH" ] && echo '` + goodNVML + "'", 2, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(nvmlVar, script(t, t.TempDir(), "fake", c.script))
			t.Setenv("LD_BIND_NOW", "1")
			t.Setenv("LD_LIBRARY_PATH", "/nonexistent")
			gpus, driver, reason := startNVML().wait()
			if len(gpus) != c.gpus || (gpus == nil) != (c.gpus == 0) || !strings.Contains(reason, c.reason) {
				t.Errorf("%d GPUs, reason %q; want %d, %q", len(gpus), reason, c.gpus, c.reason)
			}
			if strings.ContainsAny(reason, "\n\033") {
				t.Errorf("reason %q is not one clean line", reason)
			}
			switch {
			case c.gpus > 0 && (driver != "570.1" || *gpus["GPU-a"].Active != 2 || gpus["GPU-b"].Active != nil):
				t.Errorf("driver %q, %+v", driver, gpus)
			case c.gpus == 0 && driver != "":
				t.Errorf("driver %q without NVML", driver)
			}
		})
	}
}

// TestNVMLEnded ends a program that does not answer, and what it has started.
func TestNVMLEnded(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "fake", `trap '' TERM INT
		sleep 600 & echo $! > child.tmp; mv child.tmp child
		while :; do sleep 600; done`)
	t.Chdir(dir)
	ctx, cancel := context.WithCancelCause(context.Background())
	q := queryNVML(ctx, func() {}, path)
	child := readPID(t, "child")
	cancel(errors.New("time is over"))
	if gpus, _, reason := q.wait(); gpus != nil || reason != path+": time is over" {
		t.Errorf("%v, %q", gpus, reason)
	}
	waitGone(t, child)
}

// TestNVMLLeavesNoChild ends what outlives a program that has answered.
func TestNVMLLeavesNoChild(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(nvmlVar, script(t, ".", "fake", "sleep 600 & echo $! > child; echo '"+goodNVML+"'"))
	gpus, _, reason := startNVML().wait()
	if gpus != nil || !strings.Contains(reason, "WaitDelay") {
		t.Errorf("%v, %q", gpus, reason)
	}
	waitGone(t, readPID(t, "child"))
}

func readPID(t *testing.T, file string) int {
	t.Helper()
	for range 6000 {
		if text, err := os.ReadFile(file); err == nil {
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the program wrote no %s", file)
	return 0
}

// waitGone waits until a process is gone, or dead and not yet reaped.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 6000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	t.Errorf("process %d was left", pid)
}

// TestNVMLStuck gives up on a program that even SIGKILL does not end.
func TestNVMLStuck(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("time is over"))
	q := &nvmlQuery{ctx: ctx, done: make(chan struct{})}
	if gpus, _, reason := q.wait(); gpus != nil || !strings.Contains(reason, "time is over, and it cannot be killed") {
		t.Errorf("%v, %q", gpus, reason)
	}
}

func TestFindNVML(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), nvmlProgram)
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("PATH", dir) // where it must not be looked for
	script(t, dir, nvmlProgram, "exit 9")
	absent := filepath.Join(dir, "absent")
	for _, c := range []struct {
		name, named string
		signs       []string
		install     bool
		program     string
		why         string
	}{
		{"no driver", "", []string{absent}, true, "", "no NVIDIA driver"},
		{"driver, not installed", "", []string{absent, dir}, false, "", beside},
		{"driver, installed", "", []string{absent, dir}, true, beside, ""},
		{"named", "some/program", []string{absent}, true, filepath.Join(dir, "some/program"), ""},
		{"named like one in PATH", nvmlProgram, nil, true, filepath.Join(dir, nvmlProgram), ""},
	} {
		if c.install {
			script(t, filepath.Dir(beside), nvmlProgram, "exit 9")
		}
		program, why := findNVML(c.named, c.signs...)
		if program != c.program || (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, program, why, c.program, c.why)
		}
		if c.install {
			os.Remove(beside)
		}
	}
	t.Setenv(nvmlVar, absent)
	if gpus, _, reason := startNVML().wait(); gpus != nil || !strings.Contains(reason, absent+": no such file") {
		t.Errorf("a program that is not there: %v, %q", gpus, reason)
	}
}

func FuzzParseNVML(f *testing.F) {
	f.Add([]byte(goodNVML))
	f.Add([]byte(`{"format":"ddpstep-nvml/1","gpus":[{"uuid":"GPU-a","ecc":{"volatile":{"corrected":18446744073709551615}},"peers":[{"uuid":"b","nvlink":true}]}]}`))
	f.Add([]byte(`{"format":"ddpstep-nvml/1","driver":"\u001b\n","gpus":null}`))
	f.Add([]byte(`{"format":"ddpstep-nvml/1","gpus":[{"uuid":""}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		gpus, driver, reason, err := parseNVML(text)
		if (gpus == nil) != (err != nil) {
			t.Fatalf("%v beside error %v", gpus, err)
		}
		if err != nil {
			return
		}
		if driver != clean(driver) || reason != clean(reason) {
			t.Errorf("driver %q, reason %q", driver, reason)
		}
		for uuid, g := range gpus {
			if uuid == "" || g.UUID != uuid {
				t.Errorf("%q holds %+v", uuid, g)
			}
		}
		if _, err := json.Marshal(gpus); err != nil { // as the report will
			t.Error(err)
		}
	})
}
