package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/mpiboot"
)

// grace is how long a rank that gives up may take to clean up before it ends
// whatever its libraries are doing.
const grace = 8 * time.Second

// job is a started world and how to leave it.
type job struct {
	*mpiboot.World
	signals
	stderr io.Writer
}

// start joins the world. On failure it has said why and returns the exit code.
func start(deadline time.Duration, stderr io.Writer) (*job, int) {
	j := &job{stderr: stderr}
	j.watch()
	w, err := mpiboot.Init(mpiboot.Options{Deadline: deadline, Stuck: j.stuck})
	if err != nil {
		j.leaving.Store(true)
		letFirstSpeak()
		if rank, _, _, _ := mpiboot.Announced(); rank == 0 {
			fmt.Fprintln(stderr, "ddpstep:", err)
		}
		return nil, exitCode(err)
	}
	j.World = w
	return j, gradsync.ExitOK
}

// letFirstSpeak delays the ranks that end in silence because rank 0 says why:
// a launcher ends the others as soon as one has ended, and rank 0 may have been
// started last.
func letFirstSpeak() {
	if rank, _, _, _ := mpiboot.Announced(); rank > 0 {
		time.Sleep(courtesy)
	}
}

// stuck is called on another thread when a call that cannot be polled has
// passed the deadline: nothing can be cleaned up.
func (j *job) stuck(op string) {
	fmt.Fprintf(j.stderr, "ddpstep: %s: %s did not return within the deadline; a peer is lost or stopped\n", j.place(), op)
	os.Exit(gradsync.ExitLost)
}

func (j *job) place() string {
	if j.World == nil {
		rank, _, _, _ := mpiboot.Announced()
		host, _ := os.Hostname()
		return fmt.Sprintf("rank %d on %s", rank, host)
	}
	return fmt.Sprintf("rank %d on %s", j.Rank(), j.Host())
}

// finish leaves the world after err, which Agree has made the same on every
// rank unless a peer was lost, and returns the exit code.
func (j *job) finish(err error) int {
	j.leaving.Store(true)
	err = j.blame(err)
	code := exitCode(err)
	var agreed *gradsync.AgreedError
	switch {
	case err == nil:
	case errors.As(err, &agreed) || j.Size() == 1:
		if j.Rank() == 0 {
			fmt.Fprintln(j.stderr, "ddpstep:", oneLine(err))
		}
	default:
		// The others may not know: end them too.
		fmt.Fprintf(j.stderr, "ddpstep: %s: %s\n", j.place(), oneLine(err))
		time.AfterFunc(grace, func() { os.Exit(code) })
		j.Abort(code)
		return code
	}
	if err := j.Finalize(); err != nil {
		fmt.Fprintf(j.stderr, "ddpstep: %s: %v\n", j.place(), err)
		if code == gradsync.ExitOK {
			code = exitCode(err)
		}
	}
	return code
}

// blame finds out whether an error of MPI itself means that a peer is gone:
// some libraries report that as a failed send, of no kind and naming nobody.
func (j *job) blame(err error) error {
	var mpi *mpiboot.Error
	if !errors.As(err, &mpi) {
		return err
	}
	missing := j.RollCall(2 * time.Second)
	if len(missing) == 0 {
		return err
	}
	return fmt.Errorf("%w; %w", &gradsync.LostError{Op: "roll call", Ranks: missing, Cause: "no answer"}, err)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }

// exitCode extends gradsync's codes to the errors of the world.
func exitCode(err error) int {
	var deadline *mpiboot.DeadlineError
	var refused *mpiboot.RefusedError
	switch {
	case errors.As(err, &deadline):
		return gradsync.ExitLost
	case errors.As(err, &refused):
		return gradsync.ExitEnvironment
	}
	return gradsync.ExitCode(err)
}
