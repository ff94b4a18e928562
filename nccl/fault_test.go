package nccl_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

func mustFind(t *testing.T) gpudouble.Libraries {
	t.Helper()
	return gpudouble.Need(t)
}

// afterwards checks what an aborted communicator answers, to everything, and reports the error that was first.
func (r *rank) afterwards(first error) error {
	b, err := r.ctx.Alloc(cuda.Float32, r.world)
	if err != nil {
		return err
	}
	e, err := r.ctx.NewEvent(false)
	if err != nil {
		return err
	}
	_, flagErr := r.comm.AnyFlag(true)
	for call, err := range map[string]error{
		"all-reduce": r.comm.AllReduce(b, b, nccl.Sum, r.stream), "wait": r.comm.Wait(e), "flag": flagErr,
		"group": r.comm.Group(func() error { return nil }), "close": r.comm.Close(), "close again": r.comm.Close(),
	} {
		if !errors.Is(err, nccl.ErrAborted) {
			return fmt.Errorf("%s after the abort: %v", call, err)
		}
	}
	if err := r.comm.Abort(nil); err != nil { // once is enough
		return err
	}
	// The stream is free again.
	if err := cuda.WaitFor(r.stream.Done, time.Now().Add(10*time.Second), nil); err != nil {
		return fmt.Errorf("the stream after the abort: %w", err)
	}
	return first
}

// stepsRole does all-reduces until one fails.
func stepsRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	b, err := r.ctx.Alloc(cuda.Float32, 1000)
	if err != nil {
		return err
	}
	for range 6 {
		err := r.comm.AllReduce(b, b, nccl.Sum, r.stream)
		if err == nil {
			err = r.wait()
		}
		if err != nil {
			return r.afterwards(err)
		}
	}
	if err := r.comm.Close(); err != nil {
		return r.afterwards(err)
	}
	return nil
}

// silentRole joins and then never calls, until its parent is done with the others.
func silentRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(r.dir, "done")); err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// aborterRole is beside a silent rank, and another goroutine aborts while it waits.
func aborterRole(r *rank) error {
	defer func() { _ = os.WriteFile(filepath.Join(r.dir, "done"), nil, 0o600) }()
	if err := r.join(); err != nil {
		return err
	}
	b, err := r.ctx.Alloc(cuda.Float32, 1000)
	if err != nil {
		return err
	}
	if err := r.comm.AllReduce(b, b, nccl.Sum, r.stream); err != nil {
		return err
	}
	cause := errors.New("the watchdog bit")
	for range 4 {
		go func() {
			time.Sleep(20 * time.Millisecond)
			if err := r.comm.Abort(cause); err != nil {
				fmt.Println(err)
			}
		}()
	}
	err = r.wait()
	if !errors.Is(err, nccl.ErrAborted) || !errors.Is(err, cause) {
		return fmt.Errorf("waiting while another goroutine aborts: %v", err)
	}
	if err := r.comm.Abort(errors.New("too late")); err != nil {
		return err
	}
	if err := r.comm.Close(); !errors.Is(err, cause) {
		return fmt.Errorf("close after two aborts: %v, want the first cause", err)
	}
	return r.afterwards(nil)
}

// An abort from another goroutine, in the middle of a wait, ends the wait; four of them are one.
func TestAbortFromAnywhere(t *testing.T) {
	results, log := launch(t, 2, "", "aborter", "silent")
	for i, r := range results {
		if r.err != nil {
			t.Errorf("rank %d: %v\n%s", i, r.err, r.out)
		}
	}
	if !mustFind(t).Real {
		count(t, log, "rank=0 call=ncclCommAbort", 1)
		clean(t, log)
	}
}

// groupRole has its second operation in a group fail.
func groupRole(r *rank) error {
	if err := r.join(); err != nil {
		return err
	}
	b, err := r.ctx.Alloc(cuda.Float32, 1000)
	if err != nil {
		return err
	}
	err = r.comm.Group(func() error {
		_ = r.comm.AllReduce(b, b, nccl.Sum, r.stream)
		_ = r.comm.AllReduce(b, b, nccl.Sum, r.stream)
		return nil // swallowed, and still told by the group
	})
	if err == nil {
		err = r.wait()
	}
	return r.afterwards(err)
}

// sameRole puts every rank on device 0.
func sameRole(r *rank) error {
	if err := r.ctx.Close(); err != nil {
		return err
	}
	if err := r.open(0); err != nil {
		return err
	}
	return r.join()
}

func count(t *testing.T, log, what string, want int) {
	t.Helper()
	if n := strings.Count(log, what+"\n"); n != want {
		t.Errorf("%d times %q, want %d:\n%s", n, what, want, log)
	}
}

// Every fault ends every rank that is left, by its deadline, with one abort and no call on a freed communicator.
func TestFaults(t *testing.T) {
	if mustFind(t).Real {
		t.Skip("needs the double")
	}
	const short = timeoutVar + "=400 "
	deadline := "deadline passed"
	for _, tt := range []struct {
		name   string
		fault  string
		roles  []string
		says   [2]string // what each rank says; empty for a good end, "-" for anything
		aborts [2]int    // how often each calls ncclCommAbort; -1 where either of two ranks may be the faster one
	}{
		{"collective hangs", "rank=1,call=ncclAllReduce,nth=3,do=hang", []string{"steps"}, [2]string{deadline, deadline}, [2]int{1, 1}},
		{"collective refused", "rank=1,call=ncclAllReduce,nth=2,do=code:2", []string{"steps"}, [2]string{deadline, "ncclAllReduce: NCCL error 2: unhandled system error: ncclAllReduce was told to fail"}, [2]int{1, 1}},
		{"asynchronous error", "rank=0,call=ncclAllReduce,nth=2,do=async:6", []string{"steps"}, [2]string{"NCCL error 6: remote process exited", deadline}, [2]int{1, 1}},
		{"peer killed", "rank=1,call=ncclAllReduce,nth=4,do=kill", []string{"steps"}, [2]string{deadline, "signal: killed"}, [2]int{1, 0}},
		{"peer exits", "rank=0,call=ncclAllReduce,nth=1,do=exit:3", []string{"steps"}, [2]string{"exit status 3", deadline}, [2]int{0, 1}},
		{"peer killed in init", "rank=1,call=ncclCommInitRankConfig,do=kill", []string{"init"}, [2]string{"ncclCommInitRankConfig: " + deadline, "signal: killed"}, [2]int{1, 0}},
		{"peer never comes", "", []string{"init", "absent"}, [2]string{"ncclCommInitRankConfig: " + deadline, ""}, [2]int{1, 0}},
		{"init hangs", "rank=0,call=ncclCommInitRankConfig,do=hang", []string{"init"}, [2]string{deadline, deadline}, [2]int{1, 1}},
		{"init refused", "rank=0,call=ncclCommInitRankConfig,do=code:3", []string{"init"}, [2]string{"ncclCommInitRankConfig: NCCL error 3: internal error", deadline}, [2]int{0, 1}},
		{"init fails later", "rank=0,call=ncclCommInitRankConfig,do=async:2", []string{"init"}, [2]string{"NCCL error 2", deadline}, [2]int{1, 1}},
		{"no unique ID", "rank=0,call=ncclGetUniqueId,do=code:2", []string{"init", "absent"}, [2]string{"ncclGetUniqueId: NCCL error 2", ""}, [2]int{0, 0}},
		{"one GPU for two", "", []string{"same"}, [2]string{"Duplicate GPU detected", "Duplicate GPU detected"}, [2]int{1, 1}},
		{"the end hangs", "rank=1,call=ncclCommFinalize,do=hang", []string{"steps"}, [2]string{"ncclCommFinalize: " + deadline, "ncclCommFinalize: " + deadline}, [2]int{1, 1}},
		{"the end fails", "rank=1,call=ncclCommFinalize,do=async:6", []string{"steps"}, [2]string{"-", "ncclCommFinalize: NCCL error 6"}, [2]int{0, 1}},
		{"the abort hangs", "rank=0,call=ncclAllReduce,nth=1,do=hang;rank=0,call=ncclCommAbort,do=hang", []string{"steps"}, [2]string{"-", deadline}, [2]int{0, 1}},
		{"the state cannot be asked for", "rank=0,call=ncclCommGetAsyncError,nth=1,do=code:3", []string{"init"}, [2]string{"NCCL error 3", "-"}, [2]int{1, -1}},
		{"group refused", "call=ncclAllReduce,nth=2,do=code:5", []string{"group"}, [2]string{"NCCL error 5", "NCCL error 5"}, [2]int{1, 1}},
		{"group end refused", "call=ncclGroupEnd,do=code:3", []string{"group"}, [2]string{"ncclGroupEnd: NCCL error 3", "ncclGroupEnd: NCCL error 3"}, [2]int{1, 1}},
		{"slow, and in time", "rank=1,call=ncclAllReduce,do=delay:5", []string{"steps"}, [2]string{"", ""}, [2]int{0, 0}},
		{"direct: collective hangs", direct + "rank=1,call=ncclAllReduce,nth=3,do=hang", []string{"steps"}, [2]string{deadline, deadline}, [2]int{2, 2}},
		{"direct: collective refused", direct + "rank=1,call=ncclAllReduce,nth=2,do=code:2", []string{"steps"}, [2]string{deadline, "ncclAllReduce: NCCL error 2"}, [2]int{2, 2}},
		{"direct: split hangs", direct + "rank=1,call=ncclCommSplit,do=hang", []string{"init"}, [2]string{"ncclCommSplit: " + deadline, "ncclCommSplit: " + deadline}, [2]int{1, 1}},
		{"direct: split refused", direct + "rank=1,call=ncclCommSplit,do=code:3", []string{"init"}, [2]string{deadline, "ncclCommSplit: NCCL error 3"}, [2]int{1, 1}},
		{"direct: peer gone at the end", direct + "rank=1,call=ncclAllReduce,nth=7,do=exit:3", []string{"steps"}, [2]string{deadline, "exit status 3"}, [2]int{2, 0}},
		{"direct: all well", direct, []string{"steps"}, [2]string{"", ""}, [2]int{0, 0}},
		{"device out of memory", "rank=1,call=cuMemAlloc_v2,nth=1,do=oom", []string{"steps"}, [2]string{deadline, "CUDA_ERROR_OUT_OF_MEMORY"}, [2]int{1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env, fault := short, tt.fault
			if f, ok := strings.CutPrefix(fault, direct); ok {
				env, fault = short+direct, f
			}
			env += "DDPSTEP_DOUBLE_FAULT=" + fault
			results, log := launch(t, 2, env, tt.roles...)
			for i, r := range results {
				all := r.out
				if r.err != nil {
					all += r.err.Error()
				}
				switch says := tt.says[i]; {
				case says == "-":
				case says == "" && r.err != nil, says != "" && r.err == nil, !strings.Contains(all, says):
					t.Errorf("rank %d: %s, want %q", i, all, says)
				}
				if r.err != nil && strings.Count(strings.TrimSpace(r.out), "\n") > 0 {
					t.Errorf("rank %d says more than one line: %s", i, r.out)
				}
				if tt.aborts[i] >= 0 {
					count(t, log, fmt.Sprintf("rank=%d call=ncclCommAbort", i), tt.aborts[i])
				}
			}
			clean(t, log)
		})
	}
}

// A hung abort does not keep the rank: it goes on after the grace period, and says so.
func TestAbortHangs(t *testing.T) {
	if mustFind(t).Real {
		t.Skip("needs the double")
	}
	results, _ := launch(t, 2, timeoutVar+"=200 DDPSTEP_DOUBLE_FAULT=rank=0,call=ncclCommAbort,do=hang", "init", "absent")
	if r := results[0]; r.err == nil || !strings.Contains(r.out, "ncclCommAbort did not return within 2s") {
		t.Errorf("%v, %s", r.err, r.out)
	}
}

// A lie of one bit comes through: what checks numbers must find it.
func TestDoubleLies(t *testing.T) {
	if mustFind(t).Real {
		t.Skip("needs the double")
	}
	results, _ := launch(t, 2, timeoutVar+"=400 DDPSTEP_DOUBLE_FAULT=rank=1,call=ncclAllReduce,nth=1,do=lie", "collectives")
	if r := results[1]; r.err == nil || !strings.Contains(r.out, "int8 sum in place false: got 020303") {
		t.Errorf("%v, %s", r.err, r.out)
	}
}
