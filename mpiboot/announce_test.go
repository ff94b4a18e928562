package mpiboot

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// vars reads "NAME=value NAME=value".
func vars(text string) lookup {
	table := map[string]string{}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		table[name] = value
	}
	return func(name string) (string, bool) {
		value, ok := table[name]
		return value, ok
	}
}

const (
	// The script of "sbatch -n4": a plain process in it is alone.
	batchScript = "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASK_PID=99"
	// Task 2 of "srun -n4", and the same in a step of one task.
	srunNone = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_PROCID=2"
	srunOne  = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 SLURM_PROCID=0"
)

func TestAnnouncements(t *testing.T) {
	for _, tt := range []struct {
		name, env  string
		rank, size int
		launcher   string
		// Whether Init refuses: before MPI_Init with Open MPI, and when the
		// world turns out to have one rank.
		before, alone bool
	}{
		{"plain process", "", 0, 1, "", false, false},
		{"Open MPI", "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=3", 3, 4, "Open MPI's mpirun", false, true},
		{"Open MPI, one rank", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", 0, 1, "Open MPI's mpirun", false, false},
		{"Hydra", "PMI_RANK=1 PMI_SIZE=2 PMI_FD=5", 1, 2, "mpiexec (PMI)", false, true},
		{"Hydra, one rank", "PMI_RANK=0 PMI_SIZE=1", 0, 1, "mpiexec (PMI)", false, false},
		{"PMIx without size, rank 0", "PMIX_RANK=0", 0, 0, "a PMIx launcher", false, false},
		{"PMIx without size, rank 1", "PMIX_RANK=1", 1, 0, "a PMIx launcher", false, true},
		{"srun --mpi=none", srunNone, 2, 4, "srun", true, true},
		{"srun, older names only", "SLURM_STEPID=0 SLURM_PROCID=0 SLURM_NTASKS=4", 0, 4, "srun", true, true},
		{"srun --mpi=pmix", srunNone + " PMIX_RANK=2 PMIX_NAMESPACE=slurm.7.0", 2, 4, "srun", false, true},
		{"srun --mpi=pmi2", srunNone + " PMI_RANK=2 PMI_SIZE=4 PMI_FD=5", 2, 4, "srun", false, true},
		{"srun, one task", srunOne, 0, 1, "srun", false, false},
		{"srun, one task of PMIx", srunOne + " PMIX_RANK=0", 0, 1, "srun", false, false},
		{"batch script", batchScript, 0, 1, "", false, false},
		{"batch script with its step", batchScript + " SLURM_STEP_ID=4294967291", 0, 1, "", false, false},
		{"interactive step", batchScript + " SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=2", 0, 1, "", false, false},
		{"mpirun in a batch script", batchScript + " OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", 1, 2, "Open MPI's mpirun", false, true},
		{"mpirun -n1 in a batch script", batchScript + " OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", 0, 1, "Open MPI's mpirun", false, false},
		{"under mpirun's daemon, itself a task of a step", srunNone + " OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0", 0, 1, "Open MPI's mpirun", false, false},
		{"under Hydra's proxy, itself a task of a step", srunNone + " PMI_RANK=5 PMI_SIZE=16", 5, 16, "mpiexec (PMI)", false, true},
		{"malformed", "OMPI_COMM_WORLD_RANK=x PMI_RANK=-1 SLURM_STEP_ID=0 SLURM_PROCID=", 0, 1, "", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := vars(tt.env)
			want := announcement{tt.rank, tt.size, tt.launcher}
			if got := announced(env); got != want {
				t.Errorf("announced %+v, want %+v", got, want)
			}
			for what, check := range map[string]struct {
				err  error
				want bool
			}{
				"before MPI_Init":                 {refuseBefore(env, true), tt.before},
				"before MPI_Init, needing no PMI": {refuseBefore(env, false), false},
				"alone":                           {refuseAlone(env, "MPICH Version: 4"), tt.alone},
				"alone without MPI":               {refuseAlone(env, ""), tt.alone},
			} {
				var refused *RefusedError
				if got := errors.As(check.err, &refused); got != check.want {
					t.Errorf("%s: refused %v (%v), want %v", what, got, check.err, check.want)
				}
				if refused != nil && (refused.Tasks != tt.size || refused.Launcher != tt.launcher || !strings.Contains(refused.Hint, "-tags") && !strings.Contains(refused.Hint, "mpirun")) {
					t.Errorf("%s: %+v does not say enough", what, refused)
				}
			}
		})
	}
}

func TestErrorLines(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&Error{"MPI_Isend", 6, 6, "invalid rank"}, "mpiboot: MPI_Isend failed: invalid rank (code 6, class 6)"},
		{&DeadlineError{"Recv", 2e9, []int{3}}, "mpiboot: Recv gave up after 2s: no answer from rank 3"},
		{&DeadlineError{"Recv", 2e9, []int{3, 5}}, "mpiboot: Recv gave up after 2s: no answer from ranks 3, 5"},
		{&DeadlineError{"Recv", 2e9, nil}, "mpiboot: Recv gave up after 2s: every rank answers, so ranks disagree on which call comes next, or the deadline is too short"},
		{&RefusedError{"srun", 4, "do that"}, "mpiboot: srun started 4 tasks, but this process would be alone: do that"},
		{&RefusedError{"srun", 0, "do that"}, "mpiboot: srun started several tasks, but this process would be alone: do that"},
		{&ArgumentError{"Bcast", "root 9 is wrong"}, "mpiboot: Bcast: root 9 is wrong"},
	} {
		if got := fmt.Sprint(tt.err); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
