package kernels

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What no run on a host can show: its compiler neither fuses nor flushes, and its processor keeps the order of stores.
func TestPTX(t *testing.T) {
	files, err := ptx.ReadDir(".")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	loose := regexp.MustCompile(`\b(fma|mad)\.[a-z.]*f(32|64)|\.ftz\b|\.approx\b|\b(add|sub|mul)\.f(16|32|64)|\b(div|sqrt)\.f`)
	for _, f := range files {
		text, err := ptx.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if s := loose.Find(text); s != nil {
			t.Errorf("%s: %s", f.Name(), s)
		}
		for _, entry := range strings.Split(string(text), ".entry")[1:] {
			name, _, _ := strings.Cut(entry, "(")
			switch file := strings.TrimSuffix(f.Name(), filepath.Ext(f.Name())); file {
			case "twoshot", "barrier":
				meets := map[string]int{"twoshot": 2, "barrier": 1}[file]
				if out, in := strings.Count(entry, "st.release.sys"), strings.Count(entry, "ld.acquire.sys"); out != meets || in != meets {
					t.Errorf("%s: %d stores that release and %d loads that acquire, not %d", name, out, in, meets)
				}
			case "oneshot":
				if strings.Count(entry, "st.relaxed.sys.global.v4") == 0 || strings.Count(entry, "ld.relaxed.sys.global.v4") == 0 {
					t.Errorf("%s: lines do not travel whole", name)
				}
			}
		}
	}
}
