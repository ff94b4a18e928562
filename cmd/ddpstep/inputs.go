package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/params"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/values"
)

// paramFlags say which parameters there are.
type paramFlags struct {
	Model      string `placeholder:"NAME" help:"Built-in list: resnet50, vit_b_16, gpt2, bert-base, llama-2-7b, llama-3-8b."`
	Params     string `placeholder:"FILE" help:"Parameter list as JSON."`
	Checkpoint string `placeholder:"FILE" help:"Parameter list from the header of a safetensors file."`
	DType      string `name:"dtype" placeholder:"T" help:"float16, bfloat16, float32 or float64, not the list's own."`
}

// bucketFlags say how parameters are cut into buckets.
type bucketFlags struct {
	BucketCapMB   capacity `name:"bucket-cap-mb" default:"25" placeholder:"MIB" help:"Close a bucket at this size (${default}); 'all': one a dtype."`
	FirstBucketMB capacity `name:"first-bucket-mb" default:"1" placeholder:"MIB" help:"The same for the first bucket of each dtype (${default})."`
}

// capacity is a bucket cap in bytes, written in MiB.
type capacity int64

// UnmarshalText reads a number of MiB or "all".
func (c *capacity) UnmarshalText(b []byte) error {
	if string(b) == "all" {
		*c = capacity(plan.All)
		return nil
	}
	mb, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(mb > 0) || mb > 1<<40 {
		return fmt.Errorf("%q is no bucket size; give MiB above 0, such as 25 or 0.05, or 'all'", b)
	}
	*c = capacity(max(math.Floor(mb*(1<<20)), 1))
	return nil
}

func (f *bucketFlags) caps() []int64 {
	if f.BucketCapMB == capacity(plan.All) {
		return []int64{plan.All} // one bucket per dtype: the first is no smaller
	}
	return []int64{int64(f.FirstBucketMB), int64(f.BucketCapMB)}
}

func (f *paramFlags) validate() error {
	if countSet(f.Model, f.Params, f.Checkpoint) > 1 {
		return errors.New("--model, --params and --checkpoint exclude each other: give one")
	}
	if f.DType != "" {
		if _, err := contract.ParseDType(f.DType); err != nil {
			return fmt.Errorf("--dtype: %w", err)
		}
	}
	return nil
}

// name is the list's origin, for the report; empty when none was asked for.
func (f *paramFlags) name() string { return f.Model + f.Params + f.Checkpoint }

// list reads the parameters asked for.
func (f *paramFlags) list() (params.List, error) {
	var list params.List
	var err error
	switch {
	case f.Model != "":
		list, err = params.Model(f.Model)
	case f.Params != "":
		list, err = params.ReadList(f.Params)
	default:
		list, _, err = params.ReadCheckpoint(f.Checkpoint)
	}
	if err != nil {
		return nil, usage(err)
	}
	if f.DType != "" {
		t, err := contract.ParseDType(f.DType)
		if err != nil {
			return nil, usage(err)
		}
		list = list.WithDType(t)
	}
	return list, nil
}

// gradFlags say where gradients come from.
type gradFlags struct {
	Grads string `placeholder:"PATTERN" help:"Files by logical rank, as 'dir/rank{rank}.safetensors'."`
	paramFlags
	Values string `default:"wide" placeholder:"SET" help:"Generated: wide (default), exact, cancel, subnormal, zero, huge, inf, nan."`
	Seed   uint64 `default:"1" placeholder:"N" help:"Seed of generated values (${default})."`
	World  int    `placeholder:"W" help:"Logical ranks; if not given, the files or the processes."`
}

func (f *gradFlags) validate() error {
	if f.Grads == "" && f.name() == "" {
		return errors.New("no gradients: give --grads, --model, --params or --checkpoint")
	}
	if f.Grads != "" && (f.Model != "" || f.Checkpoint != "") {
		return errors.New("--grads names its own parameters: drop --model or --checkpoint (--params may give their order)")
	}
	if f.Grads != "" && f.DType != "" {
		return errors.New("--dtype changes generated values only: drop it, or --grads")
	}
	if f.Grads != "" && f.Values != values.Wide.String() {
		return fmt.Errorf("--values %s is about generated values only: drop it, or --grads", f.Values)
	}
	if f.World < 0 {
		return fmt.Errorf("--world %d: must be at least 1", f.World)
	}
	if f.World > 1<<20 {
		return fmt.Errorf("--world %d: must be at most 2^20", f.World)
	}
	if _, err := values.Parse(f.Values); err != nil {
		return fmt.Errorf("--values: %w", err)
	}
	return f.paramFlags.validate()
}

// inputs is what gradFlags come to.
type inputs struct {
	params params.List
	source gradsync.Source
	world  int
	close  func() error
}

// inputFiles lists the files that are read.
func (f *gradFlags) inputFiles(world int) (files []string) {
	for _, name := range []string{f.Params, f.Checkpoint} {
		if name != "" {
			files = append(files, name)
		}
	}
	for r := 0; f.Grads != "" && r < world; r++ {
		files = append(files, params.RankPath(f.Grads, r))
	}
	return files
}

// openInputs reads headers or lists. procs is the world when nothing else says so.
func (f *gradFlags) openInputs(procs int) (*inputs, error) {
	if f.Grads == "" {
		list, err := f.list()
		if err != nil {
			return nil, err
		}
		set, err := values.Parse(f.Values)
		if err != nil {
			return nil, usage(err)
		}
		in := &inputs{params: list, world: f.World, close: func() error { return nil }}
		if in.world == 0 {
			in.world = procs
		}
		in.source = &gradsync.Generated{Params: list, Seed: f.Seed, Set: set}
		return in, nil
	}
	set, err := params.OpenSet(f.Grads, f.World)
	if err != nil {
		return nil, usage(err)
	}
	if f.Params != "" {
		order, err := f.list()
		if err == nil {
			err = set.OrderAs(order)
		}
		if err != nil {
			set.Close()
			return nil, usage(err)
		}
	}
	return &inputs{
		params: set.Params(), world: set.World(), close: set.Close,
		source: &gradsync.Files{Params: set.Params(), Set: gradSet{set}},
	}, nil
}

// gradSet is a set of gradient files whose failures are bad input.
type gradSet struct{ *params.Set }

func (s gradSet) Read(dst []byte, rank, param int, lo, hi int64) error {
	if err := s.Set.Read(dst, rank, param, lo, hi); err != nil {
		return usage(err)
	}
	return nil
}

// usage marks an error as the user's to mend: exit code 2.
func usage(err error) error { return &usageError{err} }

type usageError struct{ err error }

func (e *usageError) Error() string        { return e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == gradsync.ErrUsage }

func countSet(flags ...string) (n int) {
	for _, f := range flags {
		if f != "" {
			n++
		}
	}
	return n
}
