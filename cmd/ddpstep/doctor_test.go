package main

import (
	"slices"
	"strings"
	"testing"
)

// TestSrunPlugins has Slurm's own words of several versions, and no Slurm.
func TestSrunPlugins(t *testing.T) {
	for _, tt := range []struct{ name, srun, want string }{
		{"22.05", `printf 'MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n'`, "none pmi2 pmix"},
		{"20.11", `printf 'srun: MPI types are...\nsrun: pmi2\nsrun: none\n' >&2`, "none pmi2"},
		{"not set up", `echo 'srun: fatal: Could not establish a configuration source' >&2; exit 1`, ""},
		{"absent", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.srun != "" {
				script(t, dir, "srun", tt.srun)
			}
			t.Setenv("PATH", dir)
			if got := srunPlugins(); !slices.Equal(got, strings.Fields(tt.want)) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
