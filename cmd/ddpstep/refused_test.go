package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// apart starts each of several ranks with its own arguments. Every rank's own
// exit code is appended to a file, which a launcher would not show.
func apart(codes string, ranks ...[]string) []string {
	var command []string
	for i, args := range ranks {
		if i > 0 {
			command = append(command, ":", "-n", "1")
		}
		command = append(command, "sh", "-c", `codes=$1; cd "$2"; shift 2; "$@"; echo $? >>"$codes"`, "sh", codes)
		command = append(command, args...)
	}
	return command
}

// TestRefused starts ranks with bad input, or not alike: every rank ends with
// the same code, one of them says why in one line, and nothing is written.
func TestRefused(t *testing.T) {
	const (
		one   = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
		other = `{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}`
	)
	for _, tt := range []struct {
		name   string
		args   [2]string // of ranks 0 and 1, in addition to run and the outputs
		folder [2]string // where they run
		code   string
		want   string // after "ddpstep: "
	}{
		{"usage", [2]string{"--bogus", "--bogus"}, [2]string{"good", "good"}, "2", `unknown flag --bogus; see ddpstep run --help`},
		{"usage of one rank", [2]string{"--grads g{rank}", "--steps=0 --grads g{rank}"}, [2]string{"good", "good"}, "2",
			`rank 1 on \S+: run: --steps 0: must be at least 1; see ddpstep run --help`},
		{"other flags", [2]string{"--grads g{rank}", "--grads g{rank} --seed 7"}, [2]string{"good", "good"}, "2",
			`rank 1 on \S+: was started with --seed "7", rank 0 with "1"; give all ranks the same flags and DDPSTEP_ variables`},
		{"other files", [2]string{"--grads g{rank}", "--grads g{rank}"}, [2]string{"good", "other"}, "2",
			`rank 1 on \S+: parameter 0 is "a" float32 \[1 2\], on rank 0 it is "a" float32 \[2\]; give every rank the same parameters`},
		{"other number of files", [2]string{"--grads g{rank}", "--grads g{rank}"}, [2]string{"good", "more"}, "2",
			`rank 1 on \S+: sees the gradients of 3 logical ranks, rank 0 sees 2; give all ranks the same files, or --world`},
		{"missing on one rank", [2]string{"--grads g{rank}", "--grads g{rank}"}, [2]string{"good", "none"}, "2",
			`rank 1 on \S+: g0: no such file; check the path`},
		{"truncated", [2]string{"--grads t{rank}", "--grads t{rank}"}, [2]string{"good", "good"}, "2",
			`t1: truncated: 4 bytes of data, but the header describes 8; write or copy the file again`},
		{"small world", [2]string{"--grads g{rank} --world 1", "--grads g{rank} --world 1"}, [2]string{"good", "good"}, "2",
			`bad usage or input: a logical world of 1 cannot keep 2 processes busy; start at most 1 processes or raise --world`},
		{"unwritable", [2]string{"--grads g{rank} --save-baseline no/b.json", "--grads g{rank} --save-baseline no/b.json"}, [2]string{"good", "good"}, "2",
			`rank 0 on \S+: no/b.json: cannot be written: no such file or directory; make its folder first`},
		{"baseline", [2]string{"--grads g{rank} --baseline g0", "--grads g{rank} --baseline g0"}, [2]string{"good", "good"}, "2",
			`g0: no baseline: .*; make one with --save-baseline`},
		{"NaN", [2]string{"--grads n{rank}", "--grads n{rank}"}, [2]string{"good", "good"}, "5",
			`rank 1 on \S+: the gradient of logical rank 1, parameter "a", index 1 is NaN \(bits 0x7fc00000\); find out why, or pass --allow-nonfinite`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, header := range map[string]string{
				"good/g0": one, "good/g1": one, "other/g0": other, "other/g1": other, "more/g0": one, "more/g1": one, "more/g2": one,
			} {
				os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o777)
				writeFile(t, dir, name, safetensors(header, "\x00\x00\x80\x3f\x00\x00\x80\x3f"))
			}
			os.Mkdir(filepath.Join(dir, "none"), 0o777)
			writeFile(t, dir, "good/t0", safetensors(one, "\x00\x00\x80\x3f\x00\x00\x80\x3f"))
			writeFile(t, dir, "good/t1", safetensors(one, "\x00\x00\x80\x3f"))
			writeFile(t, dir, "good/n0", safetensors(one, "\x00\x00\x80\x3f\x00\x00\x80\x3f"))
			writeFile(t, dir, "good/n1", safetensors(one, "\x00\x00\x80\x3f\x00\x00\xc0\x7f"))
			eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
				binary := lib.Build(t, ".")
				out, codes := filepath.Join(t.TempDir()), filepath.Join(t.TempDir(), "codes")
				var ranks [][]string
				for i, args := range tt.args {
					ranks = append(ranks, append([]string{filepath.Join(dir, tt.folder[i]), binary, "run",
						"--out", out + "/r.json", "--grads-out", out + "/g.safetensors", "--save-baseline", out + "/b.json"}, strings.Fields(args)...))
				}
				r := launch(t, lib, mpitest.Job{Ranks: 1, Command: apart(codes, ranks...)})
				said := said(r)
				if len(said) != 1 || !regexp.MustCompile(`^ddpstep: `+tt.want+`$`).MatchString(said[0]) {
					t.Errorf("want one line %q: %v", tt.want, r)
				}
				if got, _ := os.ReadFile(codes); string(got) != tt.code+"\n"+tt.code+"\n" {
					t.Errorf("exit codes %q, want %s twice: %v", got, tt.code, r)
				}
				if left, _ := os.ReadDir(out); len(left) > 0 || r.Stdout != "" {
					t.Errorf("wrote %v: %v", left, r)
				}
			})
		})
	}
}

// TestExitCode makes sure that a launcher passes our code on.
func TestExitCode(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library) {
		r := launch(t, lib, mpitest.Job{Ranks: 3, Command: []string{lib.Build(t, "."), "run", "--model", "gpt3"}})
		if r.Code != 2 || len(said(r)) != 1 {
			t.Error(r)
		}
	})
}
