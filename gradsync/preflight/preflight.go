// Package preflight looks at the environment of a job before it runs and says
// what is wrong with it: `ddpstep doctor` prints the checks, and `ddpstep run`
// refuses what they refuse.
//
// Every process observes its own Facts; they are gathered, and Judge turns the
// facts of all ranks into Checks. Judge is pure: it looks at nothing but its
// arguments, so that every rank comes to the same checks.
//
// A check refuses only what would make the result wrong, meaningless or hang;
// what merely costs speed is a warning.
package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is the outcome of a check.
type Verdict string

const (
	OK     Verdict = "ok"
	Warn   Verdict = "warn"
	Refuse Verdict = "refuse"
)

// Check is one thing looked at.
type Check struct {
	Name    string    `json:"name"`
	Verdict Verdict   `json:"verdict"`
	Found   []Finding `json:"found"`
	Advice  string    `json:"advice,omitempty"` // what to do, unless all is well
}

// Finding is what some ranks have in common.
type Finding struct {
	Where string `json:"where"` // "all 4 ranks", "rank 2 on node7", "ranks 4-7 on node8"
	What  string `json:"what"`
}

// String is the check on one line.
func (c Check) String() string {
	parts := make([]string, len(c.Found))
	for i, f := range c.Found {
		parts[i] = f.Where + ": " + f.What
	}
	line := fmt.Sprintf("%-6s  %-15s  %s", c.Verdict, c.Name, strings.Join(parts, "; "))
	if c.Advice != "" {
		line += ". " + c.Advice
	}
	return line
}

// Worst is the verdict over all checks.
func Worst(checks []Check) Verdict {
	worst := OK
	for _, c := range checks {
		if c.Verdict == Refuse {
			return Refuse
		}
		if c.Verdict == Warn {
			worst = Warn
		}
	}
	return worst
}

// RefusedError is a job that must not run here.
type RefusedError struct{ Check Check }

func (e *RefusedError) Error() string {
	var parts []string
	for _, f := range e.Check.Found {
		parts = append(parts, f.Where+": "+f.What)
	}
	return fmt.Sprintf("%s refused: %s. %s", e.Check.Name, strings.Join(parts, "; "), e.Check.Advice)
}

// Refused returns the first refusal of checks as an error, or nil.
func Refused(checks []Check) error {
	for _, c := range checks {
		if c.Verdict == Refuse {
			return &RefusedError{c}
		}
	}
	return nil
}

// Judge makes the checks from the facts of all ranks, in order of rank. device
// is what the job wants to run on: auto, cpu or gpu.
func Judge(all []Facts, device string) []Check {
	return []Check{
		launcher(all),
		world(all),
		placement(all),
		versions(all),
		gpus(all, device),
		visible(all, device),
		cpus(all),
		shared(all),
		limits(all),
	}
}

// find groups ranks by what describe says of them. Ranks of several hosts stay
// together as long as all ranks agree.
func find(all []Facts, describe func(Facts) string) []Finding {
	same := true
	for _, f := range all {
		same = same && describe(f) == describe(all[0])
	}
	if same {
		where := fmt.Sprintf("all %d ranks", len(all))
		if len(all) == 1 {
			where = "rank 0 on " + all[0].Host
		}
		return []Finding{{where, describe(all[0])}}
	}
	type key struct{ host, what string }
	var order []key
	ranks := make(map[key][]int)
	for _, f := range all {
		k := key{f.Host, describe(f)}
		if ranks[k] == nil {
			order = append(order, k)
		}
		ranks[k] = append(ranks[k], f.Rank)
	}
	found := make([]Finding, len(order))
	for i, k := range order {
		found[i] = Finding{rankList(ranks[k]) + " on " + k.host, k.what}
	}
	return found
}

// rankList writes ranks in ascending order as "rank 3" or "ranks 0-3, 8".
func rankList(ranks []int) string {
	var runs []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i == j {
			runs = append(runs, fmt.Sprint(ranks[i]))
		} else {
			runs = append(runs, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	word := "ranks "
	if len(ranks) == 1 {
		word = "rank "
	}
	return word + strings.Join(runs, ", ")
}

// hosts groups facts by the memory that they share, in order of lowest rank.
func hosts(all []Facts) [][]Facts {
	var groups [][]Facts
	for _, f := range all {
		i := slices.IndexFunc(groups, func(g []Facts) bool { return slices.Contains(g[0].Local, f.Rank) })
		if i < 0 {
			groups = append(groups, []Facts{f})
		} else {
			groups[i] = append(groups[i], f)
		}
	}
	return groups
}
