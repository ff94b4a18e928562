package main

import (
	"fmt"
	"io"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/slurm"
)

type slurmCmd struct {
	Kind         string   `default:"run" enum:"run,matrix,nightly,qualify" help:"What the job does: run (default), matrix (job array over reducers, bucket caps and models), nightly (run, compare, summary) or qualify (doctor, bench, run)."`
	Nodes        int      `placeholder:"N" help:"Nodes (default: 1; qualify 2)."`
	TasksPerNode int      `placeholder:"N" help:"Processes a node (default: one a GPU, or 4)."`
	GPUsPerNode  int      `name:"gpus-per-node" placeholder:"N" help:"GPUs a node (default: none)."`
	CPUsPerTask  int      `name:"cpus-per-task" placeholder:"N" help:"CPUs a process (default: Slurm's)."`
	Time         string   `placeholder:"LIMIT" help:"Time limit, as sbatch takes it (default: 00:30:00)."`
	Partition    string   `placeholder:"NAME" help:"Partition (default: the site's)."`
	Account      string   `placeholder:"NAME" help:"Account (default: yours)."`
	JobName      string   `placeholder:"NAME" help:"Name of the job (default: ddpstep)."`
	MPI          string   `name:"mpi" placeholder:"HOW" help:"pmix (default) or pmi2, both by srun, or mpirun; ddpstep doctor says which serves."`
	Bin          string   `placeholder:"PATH" help:"Where ddpstep is on the nodes (default: bin/ddpstep)."`
	Module       []string `placeholder:"NAME" help:"Environment modules to load."`

	Reducers   []string `placeholder:"R" help:"Reducers of the matrix." group:"Matrix"`
	BucketCaps []string `placeholder:"MB" help:"Bucket caps of the matrix." group:"Matrix"`
	Models     []string `placeholder:"M" help:"Models of the matrix, or parameter lists (*.json)." group:"Matrix"`
	Baseline   string   `placeholder:"FILE" help:"Baseline of the nightly chain (default: baseline.json)." group:"Nightly"`
	MailTo     string   `placeholder:"ADDRESS" help:"Whom the nightly summary is mailed to (default: nobody)." group:"Nightly"`

	Args []string `arg:"" optional:"" passthrough:"" help:"After --: arguments of ddpstep run."`
}

// Help is shown by ddpstep slurm --help.
func (*slurmCmd) Help() string {
	return `Every script starts with the few lines that a site changes; reports go to reports/JOB where it is submitted.

  ddpstep slurm --nodes 4 --gpus-per-node 8 -- --model gpt2 --steps 100 >job.sbatch
  sbatch job.sbatch`
}

// kind tells the script from the flags.
func (c *slurmCmd) kind() slurm.Kind {
	switch {
	case c.Kind != "run":
		return slurm.Kind(c.Kind)
	case c.Nodes > 1:
		return slurm.MultiNode
	}
	return slurm.OneNode
}

func (c *slurmCmd) main(stdout, stderr io.Writer) int {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	script, err := slurm.Render(c.kind(), slurm.Options{
		JobName: c.JobName, Nodes: c.Nodes, TasksPerNode: c.TasksPerNode, GPUsPerNode: c.GPUsPerNode,
		CPUsPerTask: c.CPUsPerTask, Time: c.Time, Partition: c.Partition, Account: c.Account,
		MPI: c.MPI, Binary: c.Bin, Modules: c.Module, Args: args,
		Reducers: c.Reducers, BucketCaps: c.BucketCaps, Models: c.Models,
		Baseline: c.Baseline, MailTo: c.MailTo,
	})
	if err == nil {
		_, err = io.WriteString(stdout, script)
	} else {
		err = usage(err)
	}
	if err != nil {
		fmt.Fprintln(stderr, "ddpstep:", err)
	}
	return gradsync.ExitCode(err)
}
