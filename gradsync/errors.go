package gradsync

import (
	"errors"
	"fmt"
)

// The ways in which a job ends other than well. Callers branch on them with
// errors.Is: each has its exit code.
var (
	ErrUsage       = errors.New("bad usage or input")
	ErrNumbers     = errors.New("wrong numbers")
	ErrBaseline    = errors.New("differs from the baseline")
	ErrNonFinite   = errors.New("non-finite gradients")
	ErrEnvironment = errors.New("environment refused")
	ErrSlow        = errors.New("slower than the floor")
	ErrLost        = errors.New("deadline passed or peer lost")
)

// LostError says which peers did not come.
type LostError struct {
	Op    string // what was waited for
	Ranks []int  // the process ranks that did not arrive
	Cause string // how it is known
}

func (e *LostError) Error() string {
	if len(e.Ranks) == 0 { // the cause says what is known
		return fmt.Sprintf("%s: %s", e.Op, e.Cause)
	}
	return fmt.Sprintf("%s: waiting for rank %s: %s", e.Op, ranksText(e.Ranks), e.Cause)
}

// Is makes a LostError an ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

func ranksText(ranks []int) string {
	s := ""
	for i, r := range ranks {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(r)
	}
	return s
}
