// Package required keeps tests from being skipped where they must run.
package required

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Var lists, separated by commas, what must be there: mpi, mpich, double,
// slurm, clang.
const Var = "DDPSTEP_REQUIRE"

// Skip skips a test that lacks something, or fails it where Var lists what is
// lacking.
func Skip(t testing.TB, what, message string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(Var), ","), what) {
		t.Fatalf("%s (%s requires it)", message, Var)
	}
	t.Skip("SKIPPED: " + message)
}
