package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// TestMain lets this test binary stand for the ddpstep command in scripts, and
// for a rank that makes several runs in one world (launch_test.go) or mixes MPI
// with NCCL (hybrid_test.go).
func TestMain(m *testing.M) {
	if lines := os.Getenv(runsVar); lines != "" {
		os.Exit(makeRuns(lines, os.Stdout, os.Stderr))
	}
	if os.Getenv(hybridVar) != "" {
		os.Exit(hybrid(os.Stderr))
	}
	testscript.Main(builds{m}, map[string]func(){"ddpstep": main})
}

// builds removes what the tests built when they end.
type builds struct{ *testing.M }

func (b builds) Run() int { return mpitest.Main(b.M) }

// gradients is the folder of real gradients and of the answers to them.
func gradients(t testing.TB) string {
	dir, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestScripts runs the command in a world of one rank.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("DATA", gradients(t))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"stcmp":  stcmp,
			"schema": schema,
			"mkst":   mkst,
			"json":   jsonField,
			"lines":  lines,
			"empty":  empty,
		},
		RequireExplicitExec: true,
	})
}
