package gradsync

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Is makes the error of the kind that its code stands for.
func (e *AgreedError) Is(target error) bool {
	return target != nil && target == sentinels[e.Code]
}

// Agree is collective: it returns nil on every rank when err is nil on every
// rank, and otherwise the same error on every rank. A job that calls it after
// each phase never leaves a rank behind in the next one.
func Agree(w World, err error) error {
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
	for _, code := range priority {
		for r, o := range all {
			if o.Code != code {
				continue
			}
			if same {
				r = -1
			}
			return &AgreedError{code, r, o.Text}
		}
	}
	return nil
}
