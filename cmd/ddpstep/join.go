package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/ddpstep/ddpstep/gradsync"
)

// flagValues is the command and its flags as this rank understood them, from
// its command line and its environment. Commands that use MPI embed it.
type flagValues struct{ flags map[string]string }

// AfterApply is called by kong once all flags have their values.
func (f *flagValues) AfterApply(ctx *kong.Context) error {
	f.flags = map[string]string{}
	for _, flag := range ctx.Flags() {
		if flag.Name == "gpu" { // each rank its own
			continue
		}
		f.flags["--"+flag.Name] = fmt.Sprint(ctx.FlagValue(flag))
	}
	f.flags["command"] = ctx.Command()
	return nil
}

// hello is what each rank tells the others before anything else.
type hello struct {
	Host  string            `json:"host"`
	Flags map[string]string `json:"flags"`
	Usage string            `json:"usage"` // what is wrong with its command line
}

// greet tells the others who we are, learns their hosts, and refuses ranks that
// were not started alike: their collectives would not match. usage is what is
// wrong with this rank's command line, if anything.
func (j *job) greet(flags map[string]string, usage string) error {
	me, err := json.Marshal(hello{j.Host(), flags, usage})
	if err != nil {
		return err
	}
	texts, err := j.AllgatherBytes(me)
	if err != nil {
		return err
	}
	all := make([]hello, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal(t, &all[r]); err != nil {
			return fmt.Errorf("rank %d greeted with %q: %w", r, t, err)
		}
		j.hosts = append(j.hosts, all[r].Host)
	}
	return compareHellos(all)
}

func compareHellos(all []hello) error {
	refuse := func(rank int, format string, args ...any) error {
		return &gradsync.AgreedError{Code: gradsync.ExitUsage, Rank: rank, Text: fmt.Sprintf(format, args...)}
	}
	if slices.ContainsFunc(all, func(h hello) bool { return h.Usage != "" }) {
		if !slices.ContainsFunc(all, func(h hello) bool { return h.Usage != all[0].Usage }) {
			return refuse(-1, "%s", all[0].Usage)
		}
		r := slices.IndexFunc(all, func(h hello) bool { return h.Usage != "" })
		return refuse(r, "%s", all[r].Usage)
	}
	for r, h := range all {
		for _, name := range slices.Sorted(maps.Keys(all[0].Flags)) {
			if here, zero := h.Flags[name], all[0].Flags[name]; here != zero {
				return refuse(r, "was started with %s %q, rank 0 with %q; give all ranks the same flags and DDPSTEP_ variables", name, here, zero)
			}
		}
	}
	return nil
}
