package gradsync

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// Exit codes. When ranks fail in different ways, the first of priority decides.
const (
	ExitOK          = 0
	ExitInternal    = 1
	ExitUsage       = 2
	ExitNumbers     = 3
	ExitBaseline    = 4
	ExitNonFinite   = 5
	ExitEnvironment = 6
	ExitLost        = 7
	ExitSlow        = 8
)

var priority = []int{ExitInternal, ExitLost, ExitUsage, ExitEnvironment, ExitNonFinite, ExitNumbers, ExitBaseline, ExitSlow}

var sentinels = map[int]error{
	ExitUsage:       ErrUsage,
	ExitNumbers:     ErrNumbers,
	ExitBaseline:    ErrBaseline,
	ExitNonFinite:   ErrNonFinite,
	ExitEnvironment: ErrEnvironment,
	ExitLost:        ErrLost,
	ExitSlow:        ErrSlow,
}

// ExitCode is the exit code that an error stands for: 0 for nil, 1 for an
// error of no known kind.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	for _, code := range priority {
		if s := sentinels[code]; s != nil && errors.Is(err, s) {
			return code
		}
	}
	return ExitInternal
}

// AgreedError is what all ranks agreed on: the failure of highest priority,
// of the lowest rank that has it.
type AgreedError struct {
	Code int
	Rank int // -1 when every rank failed in the same words
	Text string
}

func (e *AgreedError) Error() string {
	if e.Rank < 0 {
		return e.Text
	}
	return fmt.Sprintf("rank %d: %s", e.Rank, e.Text)
}

// Agreed reports whether err is the same on all ranks: nil, or an AgreedError.
func Agreed(err error) bool {
	var agreed *AgreedError
	return err == nil || errors.As(err, &agreed)
}

// Is makes the error of the kind that its code stands for.
func (e *AgreedError) Is(target error) bool {
	return target != nil && target == sentinels[e.Code]
}

// Agree is collective: it returns nil on every rank when err is nil on every
// rank, and otherwise the same error on every rank. A job that calls it after
// each phase never leaves a rank behind in the next one.
func Agree(w World, err error) error { return agree(w, err, false) }

// AgreeRoot is Agree for work that rank 0 did alone for all: its failure is
// reported without naming the rank.
func AgreeRoot(w World, err error) error { return agree(w, err, true) }

func agree(w World, err error, root bool) error {
	type outcome struct {
		Code int    `json:"code"`
		Text string `json:"text"`
	}
	me := outcome{Code: ExitCode(err)}
	if err != nil {
		me.Text = err.Error()
	}
	raw, err := json.Marshal(me)
	if err != nil {
		return err
	}
	texts, err := w.AllgatherBytes(raw)
	if err != nil {
		return err
	}
	all := make([]outcome, len(texts))
	same := true
	for r, t := range texts {
		if err := json.Unmarshal(t, &all[r]); err != nil {
			return fmt.Errorf("rank %d answered %q: %w", r, t, err)
		}
		same = same && all[r] == all[0]
	}
	r := worst(len(all), func(r int) int { return all[r].Code })
	if r < 0 {
		return nil
	}
	failure := &AgreedError{all[r].Code, r, all[r].Text}
	if same || root {
		failure.Rank = -1
	}
	return failure
}

// worst is the first of n ranks whose code has the highest priority of all, -1
// when every code is ExitOK.
func worst(n int, code func(r int) int) int {
	for _, c := range priority {
		for r := range n {
			if code(r) == c {
				return r
			}
		}
	}
	return -1
}

// AgreePlan is collective: it refuses ranks that planned other messages than
// rank 0, and names the first parameter that differs. NCCL and MPI would hang
// on such a difference, or return a wrong tail.
func AgreePlan(w World, p *plan.Plan) error {
	digests, err := w.AllgatherBytes([]byte(p.Digest()))
	if err != nil {
		return err
	}
	odd := -1
	for r := range digests {
		if odd < 0 && string(digests[r]) != string(digests[0]) {
			odd = r
		}
	}
	if odd < 0 {
		return nil
	}
	mine, err := json.Marshal(p.Params)
	if err != nil {
		return err
	}
	lists, err := w.AllgatherBytes(mine)
	if err != nil {
		return err
	}
	var first, other []plan.Param
	if err := errors.Join(json.Unmarshal(lists[0], &first), json.Unmarshal(lists[odd], &other)); err != nil {
		return err
	}
	return &AgreedError{ExitUsage, odd, firstDifference(first, other)}
}

func firstDifference(zero, other []plan.Param) string {
	for i := range min(len(zero), len(other)) {
		a, b := zero[i], other[i]
		if a.Name != b.Name || a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
			return fmt.Sprintf("parameter %d is %q %v %v, on rank 0 it is %q %v %v; give every rank the same parameters", i, b.Name, b.DType, b.Shape, a.Name, a.DType, a.Shape)
		}
	}
	if len(zero) != len(other) {
		return fmt.Sprintf("has %d parameters, rank 0 has %d; give every rank the same parameters", len(other), len(zero))
	}
	return "cuts the same parameters into other buckets than rank 0; give every rank the same bucket caps"
}

// AgreeSame is collective: it refuses a world in which a named property does
// not have one value everywhere, and names the rank that stands out.
func AgreeSame(w World, mine map[string]string) error {
	raw, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	texts, err := w.AllgatherBytes(raw)
	if err != nil {
		return err
	}
	all := make([]map[string]string, len(texts))
	names := map[string]bool{}
	for r, t := range texts {
		if err := json.Unmarshal(t, &all[r]); err != nil {
			return fmt.Errorf("rank %d described itself as %q: %w", r, t, err)
		}
		for name := range all[r] {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		votes := map[string]int{}
		for _, m := range all {
			votes[m[name]]++
		}
		if len(votes) == 1 {
			continue
		}
		most := all[0][name]
		for _, m := range all {
			if votes[m[name]] > votes[most] {
				most = m[name]
			}
		}
		for r, m := range all {
			if m[name] != most {
				return &AgreedError{ExitEnvironment, r, fmt.Sprintf("%s is %q here and %q on most ranks; make all ranks alike", name, m[name], most)}
			}
		}
	}
	return nil
}
