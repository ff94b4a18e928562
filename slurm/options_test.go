package slurm

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		kind Kind
		o    Options
		want string // part of the error, "" for none
	}{
		{OneNode, Options{}, ""},
		{MultiNode, Options{Nodes: 4, GPUsPerNode: 8, Partition: "gpu,spare", Account: "p-1", Time: "2-0"}, ""},
		{"weekly", Options{}, `no script of kind "weekly": it is one of [one-node`},
		{OneNode, Options{Nodes: 2}, "--nodes 2: the kind one-node has one node; take multi-node"},
		{MultiNode, Options{Nodes: -1}, "--nodes -1: must be 1 or more"},
		{OneNode, Options{TasksPerNode: -1}, "--tasks-per-node -1: must be 1 or more"},
		{OneNode, Options{GPUsPerNode: -1}, "--gpus-per-node -1: must be 0 or more"},
		{OneNode, Options{CPUsPerTask: -1}, "--cpus-per-task -1: must be 0 or more"},
		{OneNode, Options{TasksPerNode: 4, GPUsPerNode: 2}, "two processes would share a GPU"},
		{OneNode, Options{TasksPerNode: 2, GPUsPerNode: 4}, ""},
		{OneNode, Options{Time: "2"}, "--time 2: the warning"},
		{OneNode, Options{Time: "2:01"}, ""},
		{OneNode, Options{Time: "0:02:00"}, "the warning"},
		{OneNode, Options{Time: "1:2:3:4"}, `--time "1:2:3:4": write`},
		{OneNode, Options{Time: "3x"}, `--time "3x": write`},
		{OneNode, Options{Time: ":"}, `--time ":": write`},
		{OneNode, Options{Time: "-5"}, `--time "-5": write`},
		{OneNode, Options{Time: "9999999999"}, "too large"},
		{OneNode, Options{JobName: "a b"}, `--job-name "a b": not a name`},
		{OneNode, Options{Partition: "gpu\n#SBATCH --uid=0"}, "--partition"},
		{OneNode, Options{Account: "-x"}, `--account "-x"`},
		{OneNode, Options{Modules: []string{"x; rm -r /"}}, `--module "x; rm -r /"`},
		{OneNode, Options{Modules: []string{""}}, "--module: an empty word"},
		{OneNode, Options{MPI: "pmi"}, `--mpi "pmi": it is pmix, pmi2`},
		{OneNode, Options{Binary: "a\nb"}, "control character"},
		{OneNode, Options{Args: []string{"--out", "x"}}, "--out: the script sets it"},
		{OneNode, Options{Args: []string{"--resume"}}, "--resume: the script sets it"},
		{OneNode, Options{Args: []string{"--grads", "a\x00"}}, "control character"},
		{OneNode, Options{Models: []string{"gpt2"}}, "only the kind matrix"},
		{OneNode, Options{Baseline: "b"}, "only the kind nightly"},
		{Matrix, Options{Args: []string{"--model=gpt2"}}, "--model: the matrix sets it"},
		{Matrix, Options{Reducers: []string{"fixed;"}}, `--reducers "fixed;"`},
		{Matrix, Options{BucketCaps: []string{"25", "x"}}, `--bucket-caps "x": not a number`},
		{Matrix, Options{BucketCaps: []string{"0.5", "all"}}, ""},
		{Nightly, Options{Args: []string{"--baseline", "b"}}, "--baseline: the chain sets it"},
		{Nightly, Options{MailTo: "me -oops"}, `--mail-to "me -oops": not an address`},
	} {
		script, err := Render(test.kind, test.o)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s %+v: %v", test.kind, test.o, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s %+v: error %v, want %q", test.kind, test.o, err, test.want)
		case err != nil && (script != "" || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s %+v: error of several lines, or with a script: %v", test.kind, test.o, err)
		}
	}
}

func TestLimit(t *testing.T) {
	for text, want := range map[string]int{
		"30": 1800, "30:15": 1815, "1:30:15": 5415, "2-12": 216000, "2-12:30": 217800, "1-0:0:1": 86401,
	} {
		if got, err := limit(text); err != nil || got != want {
			t.Errorf("limit(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestTasksFollowGPUs(t *testing.T) {
	script, err := Render(MultiNode, Options{Nodes: 4, GPUsPerNode: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-node=8"} {
		if !strings.Contains(script, "\n"+line+"\n") {
			t.Errorf("no line %q in\n%s", line, script)
		}
	}
}
