package mpiboot

import (
	"os"
	"strconv"
	"strings"
)

// Announced returns what the launcher's environment variables say about this
// process. It needs no MPI and may be called before Init, for instance to let
// only one rank print a usage error. When no launcher speaks, ok is false and
// the answer is rank 0 of 1. A launcher that announces a rank without a size
// gives size 0.
func Announced() (rank, size int, launcher string, ok bool) {
	a := announced(os.LookupEnv)
	return a.rank, a.size, a.launcher, a.launcher != ""
}

// lookup is os.LookupEnv, or a table in tests.
type lookup func(name string) (string, bool)

type announcement struct {
	rank, size int
	launcher   string
}

// several reports whether the announcement proves that there is another rank.
func (a announcement) several() bool { return a.size > 1 || a.rank > 0 }

// announced reads the variables of the launcher closest to this process.
// mpirun inside an allocation, or inside a step of srun, sets its own beside
// Slurm's, whose step then counts mpirun's daemons: so mpirun's prevail.
func announced(env lookup) announcement {
	if rank, ok := number(env, "OMPI_COMM_WORLD_RANK"); ok {
		size, _ := number(env, "OMPI_COMM_WORLD_SIZE")
		return announcement{rank, size, "Open MPI's mpirun"}
	}
	step, inStep := slurmStep(env)
	if rank, ok := number(env, "PMI_RANK"); ok {
		size, _ := number(env, "PMI_SIZE")
		if inStep && step.rank == rank && step.size == size {
			return step // srun --mpi=pmi2
		}
		return announcement{rank, size, "mpiexec (PMI)"}
	}
	if rank, ok := number(env, "PMIX_RANK"); ok {
		if inStep && step.rank == rank {
			return step // srun --mpi=pmix
		}
		return announcement{rank, 0, "a PMIx launcher"}
	}
	if inStep {
		return step
	}
	return announcement{rank: 0, size: 1}
}

// firstSpecialStep is where Slurm's numbers of steps that srun did not start
// begin: batch scripts, interactive shells, external steps.
const firstSpecialStep = 0xfffffff0

// slurmStep reads the step that srun made us a task of. The script of sbatch
// and the shell of salloc are no such task, though they see SLURM_NTASKS and
// the script even a SLURM_PROCID; they have no SLURM_STEP_ID or a special one.
func slurmStep(env lookup) (announcement, bool) {
	id, ok := number(env, "SLURM_STEP_ID")
	if !ok {
		id, ok = number(env, "SLURM_STEPID") // its older name
	}
	if !ok || id >= firstSpecialStep {
		return announcement{}, false
	}
	rank, ok := number(env, "SLURM_PROCID")
	if !ok {
		return announcement{}, false
	}
	size, ok := number(env, "SLURM_STEP_NUM_TASKS")
	if !ok {
		size, _ = number(env, "SLURM_NTASKS")
	}
	return announcement{rank, size, "srun"}, true
}

// number reads a variable that must hold a count or a rank.
func number(env lookup, name string) (int, bool) {
	text, ok := env(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0
}

// refuseBefore finds launches in which MPI_Init would end the process before
// we could say why: Open MPI in a step of several tasks without any PMI.
func refuseBefore(env lookup, needsPMI bool) error {
	step, inStep := slurmStep(env)
	if !needsPMI || !inStep || !step.several() || announced(env) != step {
		return nil
	}
	for _, name := range []string{"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"} {
		if _, ok := env(name); ok {
			return nil
		}
	}
	return &RefusedError{Launcher: step.launcher, Tasks: step.size,
		Hint: "srun gave it no PMI, which Open MPI needs; use 'srun --mpi=pmix' ('srun --mpi=list' shows what this cluster has), or mpirun inside the allocation"}
}

// refuseAlone finds a world of one rank where the launcher announced more.
// library is the MPI in this binary, empty for none.
func refuseAlone(env lookup, library string) error {
	a := announced(env)
	if !a.several() {
		return nil
	}
	hint := "this build has no MPI; build with '-tags mpi' (Open MPI) or '-tags mpich'"
	if library != "" {
		short, _, _ := strings.Cut(library, ",")
		hint = "this build's " + short + " and the launcher do not match; use that library's own mpirun, or under Slurm an 'srun --mpi=' that it understands ('srun --mpi=list')"
	}
	return &RefusedError{Launcher: a.launcher, Tasks: a.size, Hint: hint}
}
