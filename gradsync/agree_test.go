package gradsync

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{fmt.Errorf("x: %w", ErrUsage), 2},
		{ErrNumbers, 3},
		{ErrBaseline, 4},
		{ErrNonFinite, 5},
		{ErrEnvironment, 6},
		{&LostError{Op: "x"}, 7},
		{fmt.Errorf("x: %w", &AgreedError{Code: 5}), 5},
		{errors.Join(ErrNumbers, ErrLost), 7},
		{errors.Join(ErrBaseline, ErrUsage), 2},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: %d, not %d", c.err, got, c.want)
		}
	}
}

func TestAgree(t *testing.T) {
	lost, usage, odd := &LostError{"x", []int{1}, "gone"}, fmt.Errorf("b: %w", ErrUsage), errors.New("odd")
	for _, c := range []struct {
		errs []error
		code int
		want string
	}{
		{[]error{nil, nil, nil}, 0, ""},
		{[]error{nil, usage, nil}, 2, "rank 1: b: bad usage or input"},
		{[]error{usage, usage, usage}, 2, "b: bad usage or input"},
		{[]error{usage, ErrNumbers, lost}, 7, "rank 2: x: waiting for rank 1: gone"},
		{[]error{usage, odd, lost}, 1, "rank 1: odd"},
		{[]error{ErrBaseline, ErrNumbers, ErrNonFinite}, 5, "rank 2: non-finite gradients"},
	} {
		launch(t, len(c.errs), false, func(w World) error {
			err := Agree(w, c.errs[w.Rank()])
			if ExitCode(err) != c.code || err != nil && err.Error() != c.want {
				return fmt.Errorf("%v: %v, expected %q and %d", c.errs, err, c.want, c.code)
			}
			return nil
		})
	}
	launch(t, 2, false, func(w World) error {
		var mine error
		if w.Rank() == 0 {
			mine = usage
		}
		if err := AgreeRoot(w, mine); err == nil || err.Error() != usage.Error() || !errors.Is(err, ErrUsage) {
			return fmt.Errorf("of rank 0 for all: %v", err)
		}
		return nil
	})
}

func TestAgreePlan(t *testing.T) {
	list := func() []plan.Param {
		return []plan.Param{{Name: "a", DType: contract.Float32, Shape: []int64{2, 3}}, {Name: "b", DType: contract.Float32, Shape: []int64{4}}}
	}
	for _, c := range []struct {
		change func(l []plan.Param) []plan.Param
		cap    int64
		want   string
	}{
		{func(l []plan.Param) []plan.Param { return l }, 100, ""},
		{func(l []plan.Param) []plan.Param { l[1].Name = "c"; return l }, 100, `rank 2: parameter 1 is "c" float32 [4], on rank 0 it is "b" float32 [4]; give every rank the same parameters`},
		{func(l []plan.Param) []plan.Param { l[0].DType = contract.BFloat16; return l }, 100, `rank 2: parameter 0 is "a" bfloat16 [2 3], on rank 0 it is "a" float32 [2 3]; give every rank the same parameters`},
		{func(l []plan.Param) []plan.Param { l[0].Shape = []int64{3, 2}; return l }, 100, `rank 2: parameter 0 is "a" float32 [3 2], on rank 0 it is "a" float32 [2 3]; give every rank the same parameters`},
		{func(l []plan.Param) []plan.Param { return l[:1] }, 100, "rank 2: has 1 parameters, rank 0 has 2; give every rank the same parameters"},
		{func(l []plan.Param) []plan.Param { return l }, 8, "rank 2: cuts the same parameters into other buckets than rank 0; give every rank the same bucket caps"},
	} {
		launch(t, 4, false, func(w World) error {
			l, limit := list(), int64(100)
			if w.Rank() == 2 {
				l, limit = c.change(l), c.cap
			}
			p, err := plan.New(l, limit)
			if err != nil {
				return err
			}
			err = AgreePlan(w, p)
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want || !errors.Is(err, ErrUsage)) {
				return fmt.Errorf("%v, expected %q", err, c.want)
			}
			return nil
		})
	}
}
