package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func readLines(t *testing.T, path string) (lines []string, valid int64) {
	t.Helper()
	valid, err := ReadLog(path, func(line []byte) error {
		lines = append(lines, string(line))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, valid
}

func write(t *testing.T, path string, fresh bool, values ...any) {
	t.Helper()
	l, err := OpenLog(path, fresh)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, v := range values {
		if err := l.Append(v); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.jsonl")
	if lines, valid := readLines(t, path); lines != nil || valid != 0 {
		t.Errorf("no log has lines %q, %d bytes", lines, valid)
	}
	write(t, path, false, 1, "two\nlines")
	write(t, path, false, []int{3})
	want := []string{"1", `"two\nlines"`, "[3]"}
	if lines, valid := readLines(t, path); !slices.Equal(lines, want) || valid != 19 {
		t.Errorf("%q, %d bytes", lines, valid)
	}
	write(t, path, true, 4)
	if lines, _ := readLines(t, path); !slices.Equal(lines, []string{"4"}) {
		t.Errorf("a fresh log has %q", lines)
	}
}

// A job that is killed while it writes leaves a torn last line.
func TestLogWithTornLine(t *testing.T) {
	whole := "{\"step\":0}\n{\"step\":1}\n"
	for cut := range len(whole) + 1 {
		path := filepath.Join(t.TempDir(), "report.jsonl")
		if err := os.WriteFile(path, []byte(whole[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		lines, valid := readLines(t, path)
		kept := strings.LastIndex(whole[:cut], "\n") + 1
		if valid != int64(kept) || len(lines) != strings.Count(whole[:cut], "\n") {
			t.Fatalf("cut at %d: %q, %d bytes", cut, lines, valid)
		}
		// Cut off at valid, it takes further lines.
		if err := os.Truncate(path, valid); err != nil {
			t.Fatal(err)
		}
		write(t, path, false, "more")
		if more, _ := readLines(t, path); len(more) != len(lines)+1 || more[len(lines)] != `"more"` {
			t.Fatalf("cut at %d and continued: %q", cut, more)
		}
	}
}

func TestLogErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.jsonl")
	write(t, path, true, 1, 2, 3)
	refuse := errors.New("no such step")
	valid, err := ReadLog(path, func(line []byte) error {
		if string(line) == "2" {
			return refuse
		}
		return nil
	})
	if !errors.Is(err, refuse) || !strings.HasPrefix(err.Error(), path+": line 2: ") || valid != 2 {
		t.Errorf("%v, %d bytes", err, valid)
	}
	if _, err := ReadLog(dir, nil); err == nil || !strings.Contains(err.Error(), "cannot be read: is a directory") {
		t.Errorf("a folder as log: %v", err)
	}
	if _, err := OpenLog(filepath.Join(dir, "none", "x"), true); err == nil || !strings.Contains(err.Error(), "cannot be written: no such file") {
		t.Errorf("a log in no folder: %v", err)
	}
	l, err := OpenLog(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(func() {}); err == nil {
		t.Error("a function is written")
	}
	l.Close()
	if err := l.Append(4); err == nil || !strings.HasPrefix(err.Error(), path) {
		t.Errorf("a closed log takes lines: %v", err)
	}
}

func FuzzLog(f *testing.F) {
	for _, s := range []string{"", "\n", "a\nb", "{}\n\n{}", "\r\n\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		lines, valid := readLines(t, path)
		var whole bytes.Buffer
		for _, l := range lines {
			fmt.Fprintln(&whole, l)
		}
		if int(valid) != whole.Len() || !bytes.HasPrefix(raw, whole.Bytes()) || bytes.ContainsRune(raw[valid:], '\n') {
			t.Errorf("%q gives %q, %d bytes", raw, lines, valid)
		}
	})
}
