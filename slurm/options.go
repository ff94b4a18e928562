package slurm

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// withDefaults fills what o leaves open.
func (o Options) withDefaults(kind Kind) Options {
	d := Defaults(kind)
	if o.TasksPerNode == 0 && o.GPUsPerNode > 0 {
		o.TasksPerNode = o.GPUsPerNode // one process a GPU
	}
	o.JobName = cmp.Or(o.JobName, d.JobName)
	o.Nodes = cmp.Or(o.Nodes, d.Nodes)
	o.TasksPerNode = cmp.Or(o.TasksPerNode, d.TasksPerNode)
	o.Time = cmp.Or(o.Time, d.Time)
	o.MPI = cmp.Or(o.MPI, d.MPI)
	o.Binary = cmp.Or(o.Binary, d.Binary)
	o.Baseline = cmp.Or(o.Baseline, d.Baseline)
	for _, list := range []struct {
		own *[]string
		def []string
	}{{&o.Args, d.Args}, {&o.Reducers, d.Reducers}, {&o.BucketCaps, d.BucketCaps}, {&o.Models, d.Models}} {
		if len(*list.own) == 0 {
			*list.own = list.def
		}
	}
	return o
}

var (
	name    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`)
	names   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(,[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$`)
	path    = regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_.+/-]*$`)
	number  = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?|all)$`)
	address = regexp.MustCompile(`^[A-Za-z0-9_.+-]+(@[A-Za-z0-9_.-]+)?$`)
)

// validate is called with the defaults filled in.
func (o Options) validate(kind Kind) error {
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"--nodes", o.Nodes, 1},
		{"--tasks-per-node", o.TasksPerNode, 1},
		{"--gpus-per-node", o.GPUsPerNode, 0},
		{"--cpus-per-task", o.CPUsPerTask, 0},
	} {
		if n.value < n.min {
			return fmt.Errorf("%s %d: must be %d or more", n.flag, n.value, n.min)
		}
	}
	if kind == OneNode && o.Nodes != 1 {
		return fmt.Errorf("--nodes %d: the kind %s has one node; take %s", o.Nodes, kind, MultiNode)
	}
	if o.GPUsPerNode > 0 && o.TasksPerNode > o.GPUsPerNode {
		return fmt.Errorf("--tasks-per-node %d with --gpus-per-node %d: two processes would share a GPU; ask for as many tasks as GPUs", o.TasksPerNode, o.GPUsPerNode)
	}

	seconds, err := limit(o.Time)
	if err != nil {
		return err
	}
	// The warning USR1@60 may come a minute early.
	if seconds <= 120 {
		return fmt.Errorf("--time %s: the warning before the limit comes up to 2 minutes ahead; ask for more", o.Time)
	}

	type check struct {
		flag, value string
		form        *regexp.Regexp
		what        string
	}
	checks := []check{
		{"--job-name", o.JobName, name, "a name (letters, digits, _ . + -)"},
		{"--partition", o.Partition, names, "a name or names with commas"},
		{"--account", o.Account, name, "a name (letters, digits, _ . + -)"},
		{"--mail-to", o.MailTo, address, "an address"},
	}
	for _, list := range []struct {
		flag   string
		values []string
		form   *regexp.Regexp
		what   string
	}{
		{"--module", o.Modules, path, "a module's name"},
		{"--reducers", o.Reducers, name, "a reducer"},
		{"--bucket-caps", o.BucketCaps, number, "a number of MiB or all"},
		{"--models", o.Models, path, "a model's name or a path of a parameter list"},
	} {
		for _, v := range list.values {
			if v == "" {
				return fmt.Errorf("%s: an empty word is not %s", list.flag, list.what)
			}
			checks = append(checks, check{list.flag, v, list.form, list.what})
		}
	}
	for _, c := range checks {
		if c.value != "" && !c.form.MatchString(c.value) {
			return fmt.Errorf("%s %q: not %s", c.flag, c.value, c.what)
		}
	}

	if !slices.Contains([]string{"pmix", "pmi2", "mpirun"}, o.MPI) {
		return fmt.Errorf("--mpi %q: it is pmix, pmi2 (both by srun; `srun --mpi=list` says what there is) or mpirun", o.MPI)
	}
	return o.validateText(kind)
}

// validateText checks what is quoted, and which options go with which kind.
func (o Options) validateText(kind Kind) error {
	for _, text := range append([]string{o.Binary, o.Baseline}, o.Args...) {
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
			return fmt.Errorf("%q: a control character cannot go into a script", text)
		}
	}
	for _, arg := range o.Args {
		flag, _, _ := strings.Cut(arg, "=")
		if flag == "--out" || flag == "--resume" {
			return fmt.Errorf("%s: the script sets it, by job and restart", flag)
		}
		if kind == Matrix && (flag == "--reducer" || flag == "--bucket-cap-mb" || flag == "--model" || flag == "--params") {
			return fmt.Errorf("%s: the matrix sets it; use --reducers, --bucket-caps, --models", flag)
		}
		if kind == Nightly && (flag == "--baseline" || flag == "--save-baseline") {
			return fmt.Errorf("%s: the chain sets it; use --baseline of ddpstep slurm", flag)
		}
	}
	if kind != Matrix && (o.Reducers != nil || o.BucketCaps != nil || o.Models != nil) {
		return fmt.Errorf("--reducers, --bucket-caps, --models: only the kind %s has them", Matrix)
	}
	if kind != Nightly && (o.Baseline != "" || o.MailTo != "") {
		return fmt.Errorf("--baseline, --mail-to: only the kind %s has them", Nightly)
	}
	return nil
}

// limit reads a time limit as sbatch does and returns it in seconds: M, M:S,
// H:M:S, D-H, D-H:M or D-H:M:S.
func limit(text string) (seconds int, err error) {
	const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
	digit := func(r rune) bool { return '0' <= r && r <= '9' }
	shape := strings.Map(func(r rune) rune {
		if digit(r) {
			return -1
		}
		return r
	}, text)
	units := map[string][]int{
		"":    {minute},
		":":   {minute, 1},
		"::":  {hour, minute, 1},
		"-":   {day, hour},
		"-:":  {day, hour, minute},
		"-::": {day, hour, minute, 1},
	}[shape]
	fields := strings.FieldsFunc(text, func(r rune) bool { return !digit(r) })
	if len(fields) == 0 || len(fields) != len(units) {
		return 0, fmt.Errorf("--time %q: write minutes, hours:minutes:seconds or days-hours:minutes:seconds", text)
	}
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 20)
		if err != nil {
			return 0, fmt.Errorf("--time %q: %s is too large", text, f)
		}
		seconds += int(n) * units[i]
	}
	return seconds, nil
}
