package main

import (
	"bytes"
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
	nvml *nvmlQuery // under way, nil when nobody asked
	*mpiboot.World
	signals
	stderr io.Writer
	hosts  []string // by rank
}

// start joins the world, in which all ranks must have the same flags. On
// failure it has said why, left the world, and returns the exit code.
func start(flags map[string]string, deadline time.Duration, stderr io.Writer) (*job, int) {
	return join(flags, "", deadline, stderr)
}

// refuseUsage ends a launch in which this rank's command line is wrong. The
// others may have understood theirs, so they are told; one rank speaks for all.
func refuseUsage(usage string, stderr io.Writer) int {
	const patience = time.Minute // --deadline cannot be known
	_, code := join(nil, usage, patience, stderr)
	return code
}

func join(flags map[string]string, usage string, deadline time.Duration, stderr io.Writer) (*job, int) {
	j := &job{stderr: stderr}
	j.watch()
	w, err := mpiboot.Init(mpiboot.Options{Deadline: deadline, Stuck: j.stuck})
	if err != nil {
		j.leaving.Store(true)
		var refused *mpiboot.RefusedError
		if rank, _, _, _ := mpiboot.Announced(); rank > 0 && errors.As(err, &refused) {
			letFirstSpeak()
		} else {
			fmt.Fprintf(stderr, "ddpstep: %s: %s\n", j.place(), oneLine(err))
		}
		return nil, gradsync.ExitEnvironment
	}
	j.World = w
	if err := j.greet(flags, usage); err != nil {
		return nil, j.finish(err)
	}
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
	code := exitCode(err)
	if !gradsync.Agreed(err) {
		time.AfterFunc(grace, func() { os.Exit(code) })
		err = j.blame(err)
		code = exitCode(err)
	}
	var agreed *gradsync.AgreedError
	switch {
	case err == nil:
	case errors.As(err, &agreed) || j.Size() == 1:
		if j.Rank() == 0 {
			fmt.Fprintln(j.stderr, "ddpstep:", j.explain(err))
		}
	default:
		// The others may not know: end them too.
		fmt.Fprintf(j.stderr, "ddpstep: %s: %s%s\n", j.place(), oneLine(err), j.whereabouts(err))
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

// blame finds out who is missing where an error does not say. An error of MPI
// itself may mean that a peer is gone: some libraries report that as a failed
// send, of no kind and naming nobody. And a GPU only knows that it waited.
func (j *job) blame(err error) error {
	var mpi *mpiboot.Error
	var lost *gradsync.LostError
	if !errors.As(err, &mpi) && !(errors.As(err, &lost) && len(lost.Ranks) == 0) {
		return err
	}
	missing := j.RollCall(2 * time.Second)
	if len(missing) == 0 {
		return err
	}
	return fmt.Errorf("%w; %w", &gradsync.LostError{Op: "roll call", Ranks: missing, Cause: "no answer"}, err)
}

// whereabouts names the hosts of the ranks that an error misses.
func (j *job) whereabouts(err error) string {
	var ranks []int
	var lost *gradsync.LostError
	var deadline *mpiboot.DeadlineError
	switch {
	case errors.As(err, &lost):
		ranks = lost.Ranks
	case errors.As(err, &deadline):
		ranks = deadline.Missing
	}
	var b strings.Builder
	for i, r := range ranks {
		if r >= len(j.hosts) || i == 8 { // enough to see what they have in common
			break
		}
		fmt.Fprintf(&b, "; rank %d is on %s", r, j.hosts[r])
	}
	return b.String()
}

// explain writes an error on one line. The rank of an agreed one is given with
// its host.
func (j *job) explain(err error) string {
	var e *gradsync.AgreedError
	if errors.As(err, &e) && e.Rank >= 0 && e.Rank < len(j.hosts) {
		return fmt.Sprintf("rank %d on %s: %s", e.Rank, j.hosts[e.Rank], oneLine(errors.New(e.Text)))
	}
	return oneLine(err)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

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

// stopping reports whether any rank was asked to stop, collectively.
func (j *job) stopping() (bool, error) {
	mine, all := []byte{0}, make([]byte, j.Size())
	if j.interrupted.Load() {
		mine[0] = 1
	}
	err := j.Allgather(mine, all)
	return bytes.IndexByte(all, 1) >= 0, err
}
