package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tests of the program ddpstep-nvml itself, on a double of NVML, and of
// ddpstep where the loader binds everything at the start. The program's own
// package has none, since they would carry go-nvml in their binary.

// buildLinked builds a command of this module with an option of the linker.
func buildLinked(t *testing.T, name, option string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-ldflags=-linkmode=external -extldflags=-Wl,-z,"+option, "-o", out, "../"+name)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	return out
}

// nvmlDouble builds the double of NVML and returns its folder.
func nvmlDouble(t *testing.T, without ...string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	dir := t.TempDir()
	args := []string{"-shared", "-fPIC", "-Wall", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "testdata/nvml.c"}
	for _, w := range without {
		args = append(args, "-DWITHOUT_"+w)
	}
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, text)
	}
	return dir
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := err.(*exec.ExitError)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func TestNVMLProgram(t *testing.T) {
	program := buildLinked(t, nvmlProgram, "lazy")
	whole, old, bare := nvmlDouble(t), nvmlDouble(t, "ERROR_STRING", "MOST"), nvmlDouble(t, "ERROR_STRING", "COUNT")

	t.Run("output", func(t *testing.T) {
		var got, want any
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+whole)
		text, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(`{"format":"ddpstep-nvml/1","driver":"570.124.06","nvml":"12.570.124.06","gpus":[
			{"index":0,"uuid":"GPU-00000000-0000-0000-0000-000000000000","name":"NVIDIA H200","bus":"0000:0f:00.0","mig":false,
			 "nvlinks":[0,1,3],"active":3,"throttle":[],
			 "ecc":{"volatile":{"corrected":0,"uncorrected":1},"aggregate":{"corrected":10,"uncorrected":11}},
			 "peers":[{"index":1,"uuid":"GPU-00000000-0000-0000-0000-000000000001","nvlink":true,"read":true,"topology":"system"}]},
			{"index":1,"uuid":"GPU-00000000-0000-0000-0000-000000000001","name":"NVIDIA H200","bus":"0000:cb:00.0","mig":true,
			 "nvlinks":[0,1,3],"active":3,"throttle":["power cap","hardware thermal slowdown"],
			 "ecc":{"volatile":{"corrected":1000,"uncorrected":1001},"aggregate":{"corrected":1010,"uncorrected":1011}},
			 "peers":[{"index":0,"uuid":"GPU-00000000-0000-0000-0000-000000000000","nvlink":true,"read":true,"topology":"system"}]}],
			"notes":[]}`), &want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})

	for _, c := range []struct {
		name, library, fake string
		status              int
		stderr              string
	}{
		{"no NVML", "/nonexistent", "", 3, "ddpstep-nvml: libnvidia-ml.so.1: cannot open"},
		{"no driver", whole, "no-driver", 3, "nvmlInit: Driver Not Loaded (code 9)"},
		{"no driver, no text for it", old, "no-driver", 3, "nvmlInit: code 9"},
		{"without a function that it needs", bare, "", 3, "no function nvmlDeviceGetCount_v2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := exec.Command(program)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+c.library, "FAKE_NVML="+c.fake)
			cmd.Stderr = &stderr
			stdout, err := cmd.Output()
			if c.name == "no NVML" && err == nil {
				t.Skip("needs a machine without NVML")
			}
			if status := exitStatus(t, err); status != c.status || len(stdout) > 0 {
				t.Errorf("exit status %d, want %d; stdout %q", status, c.status, stdout)
			}
			if text := stderr.String(); !strings.Contains(text, c.stderr) || strings.Count(text, "\n") != 1 {
				t.Errorf("stderr %q, want one line with %q", text, c.stderr)
			}
		})
	}

	t.Run("arguments", func(t *testing.T) {
		if status := exitStatus(t, exec.Command(program, "--help").Run()); status != 2 {
			t.Errorf("exit status %d, want 2", status)
		}
	})

	// And as ddpstep sees it.
	const first, second = "GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001"
	for _, c := range []struct {
		name, library, fake string
		reason              string
		gpus                int
		check               func(g nvmlGPU) bool // of the first
	}{
		{"all", whole, "", "", 2, func(g nvmlGPU) bool {
			return g.Bus == "0000:0f:00.0" && *g.Active == 3 && *g.ECC.Aggregate.Uncorrected == 11 && !*g.MIG &&
				len(g.Peers) == 1 && g.Peers[0].UUID == second && *g.Peers[0].NVLink && *g.Peers[0].Topology == "system"
		}},
		{"PCIe", whole, "pcie", "", 2, func(g nvmlGPU) bool {
			return *g.Active == 0 && g.ECC == nil && !*g.Peers[0].NVLink && *g.Peers[0].Read
		}},
		{"a GPU is lost", whole, "lost", "GPU 1: nvmlDeviceGetHandleByIndex: GPU is lost (code 15)", 1, func(g nvmlGPU) bool { return len(g.Peers) == 0 }},
		{"a call fails", whole, "nvlink-error", "nvmlDeviceGetNvLinkState: ", 2, func(g nvmlGPU) bool { return g.NVLinks == nil && g.Active == nil && g.ECC != nil }},
		{"functions missing", old, "", "nvmlDeviceGetNvLinkState: not in this driver", 2, func(g nvmlGPU) bool {
			return g.UUID == first && g.Bus == "" && g.Active == nil && g.ECC == nil && g.MIG == nil && g.Peers[0].NVLink == nil
		}},
		{"crash", whole, "crash", "SIGABRT", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(nvmlVar, program)
			t.Setenv("LD_LIBRARY_PATH", c.library)
			t.Setenv("FAKE_NVML", c.fake)
			t.Setenv("LD_BIND_NOW", "1")
			gpus, driver, reason := startNVML().wait()
			if len(gpus) != c.gpus || !strings.Contains(reason, c.reason) || (c.reason == "") != (reason == "") {
				t.Fatalf("%d GPUs, reason %q; want %d, %q", len(gpus), reason, c.gpus, c.reason)
			}
			if c.gpus > 0 && (driver == "") != (c.library == old) {
				t.Errorf("driver %q", driver)
			}
			if c.check != nil && !c.check(gpus[first]) {
				t.Errorf("%+v", gpus[first])
			}
		})
	}
}

// TestBindNow starts ddpstep where the loader binds everything at the start,
// with and without ddpstep-nvml, which dies there.
func TestBindNow(t *testing.T) {
	helper := buildLinked(t, nvmlProgram, "now")
	if err := exec.Command(helper).Run(); exitStatus(t, err) != 127 {
		t.Errorf("ddpstep-nvml linked with -z now: %v, want exit status 127; is lazy binding still needed?", err)
	}
	for _, option := range []string{"lazy", "now"} {
		program := buildLinked(t, "ddpstep", option)
		for _, with := range []bool{false, true} {
			if with {
				if err := os.Link(helper, filepath.Join(filepath.Dir(program), nvmlProgram)); err != nil {
					t.Fatal(err)
				}
			}
			for _, args := range [][]string{{"--version"}, {"plan", "--model", "resnet50"}, {"run", "--grads", "../../testdata/bytes_gpt_w4_f32/rank{rank}.safetensors"}} {
				cmd := exec.Command(program, args...)
				cmd.Env = append(withoutLauncher(os.Environ()), "LD_BIND_NOW=1")
				if with {
					cmd.Env = append(cmd.Env, nvmlVar+"="+helper)
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("-z %s, ddpstep-nvml there %v, %v: %v\n%s", option, with, args, err, out)
				}
			}
		}
	}

	t.Setenv(nvmlVar, helper)
	if gpus, _, reason := startNVML().wait(); gpus != nil || !strings.Contains(reason, "exit status 127") || !strings.Contains(reason, "undefined symbol: nvml") {
		t.Errorf("%v, %q", gpus, reason)
	}
}

// withoutLauncher removes what would announce a larger world, for tests that
// run inside a job.
func withoutLauncher(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return slices.ContainsFunc([]string{"OMPI_", "PMI_", "PMIX_", "SLURM_"}, func(p string) bool { return strings.HasPrefix(v, p) })
	})
}
