package mpiboot

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
)

// The scenarios of this file end by Abort, which the launcher's exit code
// shows, because a rank does something wrong or does nothing at all.

// report records what a rank found and ends the world with code 7, the
// innocent ranks waiting for that. It writes to a file, because a launcher may
// drop what it has not yet read from a rank that aborts.
func report(w *World, err error) error {
	file, failed := os.OpenFile(os.Getenv(reportVar), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if failed != nil {
		return failed
	}
	fmt.Fprintf(file, "rank %d: %T: %v\n", w.Rank(), err, err)
	file.Close()
	w.Abort(7)
	return nil
}

func lastRank(w *World) bool { return w.Rank() == w.Size()-1 }

// rest is what a rank does that plays dead.
func rest() { time.Sleep(time.Hour) }

// expect makes sure that err is a DeadlineError naming the last rank, and that
// the world is spent, before it reports.
func expect(w *World, op string, err error) error {
	var late *DeadlineError
	if !errors.As(err, &late) || late.Op != op || len(late.Missing) != 1 || late.Missing[0] != w.Size()-1 {
		return fmt.Errorf("got %v, want the last rank missing from %s", err, op)
	}
	if late.After < w.opts.Deadline || late.After > w.opts.Deadline+10*time.Second {
		return fmt.Errorf("gave up after %v with a deadline of %v", late.After, w.opts.Deadline)
	}
	for name, again := range map[string]error{
		"Barrier": w.Barrier(), "Bcast": w.Bcast(nil, 0), "Send": w.Send(nil, 0, 0), "Finalize": w.Finalize(),
		"AllreduceSum": w.AllreduceSum(nil, "float32"), "Exchange": w.Exchange(nil, nil, nil, nil),
	} {
		if !errors.As(again, &late) {
			return fmt.Errorf("%s in a spent world: %v", name, again)
		}
	}
	return report(w, err)
}

// sleeper: the last rank never comes to the call that the others wait in.
func sleeper(w *World) error {
	if lastRank(w) {
		rest()
	}
	switch op := os.Getenv("MPIBOOT_OP"); op {
	case "Barrier":
		return expect(w, op, w.Barrier())
	case "Bcast":
		return expect(w, op, w.Bcast(make([]byte, 100), w.Size()-1))
	case "Allgather":
		return expect(w, op, w.Allgather(make([]byte, 10), make([]byte, 10*w.Size())))
	case "Exchange":
		return expect(w, op, w.Exchange(nil, nil, []int{w.Size() - 1}, [][]byte{make([]byte, 100)}))
	case "Recv":
		return expect(w, op, w.Recv(make([]byte, 100), w.Size()-1, 3))
	default:
		return fmt.Errorf("no operation %q", op)
	}
}

// latecomer: rank 1 comes late enough that its own deadline is far off when
// rank 0 gives up, but it is in a call, so it answers; the last rank is not.
func latecomer(w *World) error {
	if lastRank(w) {
		rest()
	}
	if w.Rank() == 1 {
		w.SetDeadline(time.Hour)
		return w.Barrier()
	}
	return expect(w, "Barrier", w.Barrier())
}

// lostReceiver: a send too large to be buffered waits for a rank that sleeps.
func lostReceiver(w *World) error {
	if lastRank(w) {
		rest()
	}
	if w.Rank() == 0 {
		return expect(w, "Send", w.Send(make([]byte, 8<<20), w.Size()-1, 1))
	}
	w.SetDeadline(time.Hour)
	return w.Barrier()
}

// shortMessage, longMessage: rank 1 sends less or more than rank 0 expects.
func shortMessage(w *World) error { return mismatch(w, 10) }
func longMessage(w *World) error  { return mismatch(w, 1000) }

func mismatch(w *World, n int) error {
	if w.Rank() == 1 {
		if err := w.Send(make([]byte, n), 0, 1); err != nil {
			return err
		}
		return w.Barrier()
	}
	err := w.Recv(make([]byte, 100), 1, 1)
	if err == nil {
		return errors.New("a message of another length was received")
	}
	if again := w.Barrier(); again == nil {
		return errors.New("the world goes on after an error")
	}
	return report(w, err)
}

// pieceMix: only the sender cuts its message into pieces, so the receiver
// must see the first piece, which proves that there are pieces.
func pieceMix(w *World) error {
	if w.Rank() == 1 {
		pieceBytes = 7
	}
	return mismatch(w, 100)
}

// stuckSum: MPI_Allreduce cannot give up; the watchdog ends the world from
// its own goroutine.
func stuckSum(w *World) error {
	sum := make([]byte, 64)
	if err := w.AllreduceSum(sum, "float32"); err != nil { // the watchdog must survive being stopped
		return err
	}
	if lastRank(w) {
		rest()
	}
	w.opts.Stuck = func(op string) { report(w, errors.New("stuck in "+op)) }
	w.AllreduceSum(sum, "float32")
	return errors.New("MPI_Allreduce returned")
}

// stuckEnd: the last rank stays away from MPI_Finalize.
func stuckEnd(w *World) error {
	if !lastRank(w) {
		return nil
	}
	if err := w.Barrier(); err != nil { // the one in Finalize
		return err
	}
	rest()
	return nil
}

func abort(w *World) error {
	if lastRank(w) {
		w.Abort(42)
	}
	return w.Barrier()
}

// abortApart ends the world from a goroutine of another thread.
func abortApart(w *World) error {
	if lastRank(w) {
		go w.Abort(43)
		rest()
	}
	return w.Barrier()
}

// killed and stopped: the last rank is lost in the middle of an exchange.
func killed(w *World) error  { return lose(w, syscall.SIGKILL) }
func stopped(w *World) error { return lose(w, syscall.SIGSTOP) }

func lose(w *World, signal syscall.Signal) error {
	for range 3 {
		if err := tryExchange(w, 1000); err != nil {
			return err
		}
	}
	if lastRank(w) {
		syscall.Kill(os.Getpid(), signal)
		rest()
	}
	return expect(w, "Exchange", tryExchange(w, 100000))
}

// wrongThread: a call from another thread panics.
func wrongThread(w *World) error {
	found := make(chan any)
	go func() {
		runtime.LockOSThread()
		defer func() { found <- recover() }()
		w.Barrier()
	}()
	if p := <-found; p == nil {
		return errors.New("no panic")
	}
	return w.Barrier()
}
