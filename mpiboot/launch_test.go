package mpiboot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/mpitest"
)

// eachLibrary runs a test for Open MPI and for MPICH, with this package's
// test binary built for it.
func eachLibrary(t *testing.T, f func(t *testing.T, lib *mpitest.Library, binary string)) {
	for _, lib := range mpitest.Libraries() {
		t.Run(lib.Tag, func(t *testing.T) { f(t, lib, lib.BuildTest(t, ".")) })
	}
}

// launch runs a scenario and makes sure that nothing of it stays behind. What
// the ranks reported follows what they printed.
func launch(t *testing.T, lib *mpitest.Library, binary, scenario string, ranks int, env ...string) mpitest.Result {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	env = append(env, scenarioVar+"="+scenario, reportVar+"="+report)
	r := lib.Run(t, mpitest.Job{Ranks: ranks, Command: []string{binary}, Env: env, Timeout: 2 * time.Minute})
	text, _ := os.ReadFile(report) // most scenarios report nothing
	r.Stdout += string(text)
	if r.TimedOut || r.Left > 0 {
		t.Fatalf("%s on %d ranks: %v", scenario, ranks, r)
	}
	return r
}

func TestSoundCalls(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library, binary string) {
		for _, ranks := range []int{1, 2, 3, 4, 7} {
			for _, scenario := range []string{"place", "collectives", "pieces", "messages", "arguments", "wrong thread"} {
				if scenario == "wrong thread" && ranks == 1 {
					continue // no call reaches MPI
				}
				t.Run(fmt.Sprint(scenario, " on ", ranks), func(t *testing.T) {
					r := launch(t, lib, binary, scenario, ranks)
					if r.Code != 0 {
						t.Fatal(r)
					}
					if scenario == "place" {
						checkPlaces(t, r, lib, ranks)
					}
				})
			}
		}
		for _, scenario := range []string{"halves", "allocations"} {
			t.Run(scenario, func(t *testing.T) {
				if r := launch(t, lib, binary, scenario, 2); r.Code != 0 {
					t.Fatal(r)
				}
			})
		}
	})
}

// checkPlaces makes sure that the ranks form one world and know their library.
func checkPlaces(t *testing.T, r mpitest.Result, lib *mpitest.Library, ranks int) {
	t.Helper()
	for rank := range ranks {
		if !strings.Contains(r.Stdout, fmt.Sprintf("rank %d of %d\n", rank, ranks)) {
			t.Fatalf("no rank %d of %d: %v", rank, ranks, r)
		}
	}
	if !strings.Contains(r.Stdout, "\n"+lib.Name) || !strings.Contains(r.Stdout, "\nMPI_THREAD_") {
		t.Fatalf("no library or thread level: %v", r)
	}
}

func TestFaults(t *testing.T) {
	const names = "*mpiboot.DeadlineError: mpiboot: "
	for _, tt := range []struct {
		scenario, op string
		ranks, code  int
		stdout       string // what some rank must say
	}{
		{"sleeper", "Barrier", 4, 7, names + "Barrier gave up after 1"},
		{"sleeper", "Bcast", 2, 7, "no answer from rank 1"},
		{"sleeper", "Allgather", 3, 7, "no answer from rank 2"},
		{"sleeper", "Exchange", 2, 7, "no answer from rank 1"},
		{"sleeper", "Recv", 3, 7, "no answer from rank 2"},
		{"latecomer", "", 3, 7, "no answer from rank 2"},
		{"lost receiver", "", 3, 7, "no answer from rank 2"},
		{"stopped", "", 3, 7, "no answer from rank 2"},
		{"stuck sum", "", 3, 7, "stuck in MPI_Allreduce"},
		{"abort", "", 3, 42, ""},
		{"abort apart", "", 3, 43, ""},
		{"short", "", 2, 7, "*mpiboot.SizeError: mpiboot: Recv: rank 1 sent 10 bytes where 100 were expected"},
		{"piece mix", "", 2, 7, "*mpiboot.SizeError: mpiboot: Recv: rank 1 sent 7 bytes where 100 were expected"},
		{"long", "", 2, 7, "*mpiboot.Error: mpiboot: MPI_Testall failed: "},
		{"long", "", 2, 7, "runcate"}, // the library's own word for it
	} {
		t.Run(strings.TrimSpace(tt.scenario+" "+tt.op), func(t *testing.T) {
			eachLibrary(t, func(t *testing.T, lib *mpitest.Library, binary string) {
				t.Parallel()
				r := launch(t, lib, binary, tt.scenario, tt.ranks, deadlineVar+"=1s", "MPIBOOT_OP="+tt.op)
				if r.Code != tt.code || !strings.Contains(r.Stdout, tt.stdout) {
					t.Errorf("want code %d and %q: %v", tt.code, tt.stdout, r)
				}
			})
		})
	}
}

// A call that cannot be polled ends through Stuck.
func TestStuck(t *testing.T) {
	for scenario, op := range map[string]string{"stuck init": "MPI_Init", "stuck end": "MPI_Finalize"} {
		t.Run(scenario, func(t *testing.T) {
			eachLibrary(t, func(t *testing.T, lib *mpitest.Library, binary string) {
				r := launch(t, lib, binary, scenario, 3, deadlineVar+"=1s")
				if r.Code != 9 || !strings.Contains(r.Stderr, "stuck in "+op) {
					t.Errorf("want code 9 and stuck in %s: %v", op, r)
				}
			})
		})
	}
}

// A rank killed by a signal takes the world with it: the launcher's code is
// not 0 and, as launch checks, nobody is left.
func TestKilledRank(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library, binary string) {
		if r := launch(t, lib, binary, "killed", 3, deadlineVar+"=30s"); r.Code == 0 {
			t.Error(r)
		}
	})
}

// A binary under the other library's launcher would be as many worlds of one
// as there are tasks.
func TestMismatchRefused(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library, binary string) {
		other := mpitest.OpenMPI
		if lib == other {
			other = mpitest.MPICH
		}
		r := launch(t, other, binary, "place in turn", 2)
		if r.Code != 6 || strings.Contains(r.Stdout, "rank") || !strings.Contains(r.Stderr, "would be alone") {
			t.Errorf("want code 6 and a refusal: %v", r)
		}
		// In a step of srun without PMI, Open MPI must not get to abort.
		r = mpitest.RunAlone(t, mpitest.Job{Command: []string{binary}, Env: append(strings.Fields(srunNone), scenarioVar+"=place")})
		if r.Code != 6 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "--mpi=") {
			t.Errorf("want code 6 and one line about srun: %v", r)
		}
	})
}

// TestBigMessages needs 7 GiB of memory and, with cold pages, half a minute.
func TestBigMessages(t *testing.T) {
	if os.Getenv("DDPSTEP_TEST_BIG") != "1" {
		t.Skip("needs 7 GiB of memory; set DDPSTEP_TEST_BIG=1 to run it")
	}
	eachLibrary(t, func(t *testing.T, lib *mpitest.Library, binary string) {
		if r := launch(t, lib, binary, "big", 2); r.Code != 0 {
			t.Error(r)
		}
	})
}
