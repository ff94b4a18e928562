package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync"
)

// Every command's help fits a screen, and its examples are whole lines that the
// command takes.
func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	parser, err := newParser(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	commands := [][]string{nil}
	for _, c := range parser.Model.Children {
		commands = append(commands, []string{c.Name})
	}
	for _, c := range commands {
		var stdout, stderr bytes.Buffer
		if code := run(append(slices.Clone(c), "--help"), &stdout, &stderr); code != gradsync.ExitOK || stderr.Len() > 0 {
			t.Fatalf("%v --help: exit code %d, %s", c, code, &stderr)
		}
		lines := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
		if len(lines) > 50 {
			t.Errorf("%v --help has %d lines:\n%s", c, len(lines), &stdout)
		}
		examples := 0
		for _, l := range lines {
			if len([]rune(l)) > 100 {
				t.Errorf("%v --help: longer than 100 columns: %s", c, l)
			}
			_, args, ok := strings.Cut(l, "ddpstep ")
			if !ok || !strings.HasPrefix(l, "    ") || strings.HasPrefix(l, "     ") {
				continue
			}
			examples++
			parser, err := newParser(&stdout, &stderr, func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.Parse(strings.Fields(strings.ReplaceAll(args, "'", ""))); err != nil {
				t.Errorf("%v --help: example %q: %v", c, l, err)
			}
		}
		if examples == 0 {
			t.Errorf("%v --help shows no example:\n%s", c, &stdout)
		}
	}
}

// A panic is an internal error, not bad usage, which is what Go's own exit code
// would say.
func TestPanic(t *testing.T) {
	var stderr bytes.Buffer
	if code := run([]string{"plan", "--model", "gpt2"}, nil, &stderr); code != gradsync.ExitInternal {
		t.Errorf("exit code %d", code)
	}
	if !strings.HasPrefix(stderr.String(), "ddpstep: internal error: ") {
		t.Error(stderr.String())
	}
}
