package mpiboot

import (
	"fmt"
	"strings"
	"time"
)

// Error is a failure that MPI itself reported.
type Error struct {
	Call    string // the MPI function, such as "MPI_Ibcast"
	Code    int    // the code it returned, which only its library can read
	Class   int    // the code's class, one of the library's MPI_ERR_ constants
	Message string // the library's own words, on one line
}

func (e *Error) Error() string {
	return fmt.Sprintf("mpiboot: %s failed: %s (code %d, class %d)", e.Call, e.Message, e.Code, e.Class)
}

// DeadlineError says that a call waited longer than it may.
type DeadlineError struct {
	Op      string        // the method, such as "Barrier"
	After   time.Duration // how long it waited
	Missing []int         // ranks that did not answer; empty when all did
}

func (e *DeadlineError) Error() string {
	head := fmt.Sprintf("mpiboot: %s gave up after %v: ", e.Op, e.After.Round(time.Millisecond))
	if len(e.Missing) == 0 {
		return head + "every rank answers, so ranks disagree on which call comes next, or the deadline is too short"
	}
	return head + "no answer from " + rankList(e.Missing)
}

// SizeError says that a message arrived whose length is not the receiver's.
type SizeError struct {
	Op        string // the receiving method
	Peer      int    // the sender
	Got, Want int64  // bytes of the message, or of one piece of a large one
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("mpiboot: %s: rank %d sent %d bytes where %d were expected; both sides must give the same length",
		e.Op, e.Peer, e.Got, e.Want)
}

// ArgumentError is a call that was refused before MPI saw it.
type ArgumentError struct {
	Op      string // the method
	Problem string // what is wrong with which argument
}

func (e *ArgumentError) Error() string { return "mpiboot: " + e.Op + ": " + e.Problem }

// RefusedError says that the MPI world contradicts what the launcher
// announced: each task would be alone, and every check would pass.
type RefusedError struct {
	Launcher string // who announced, such as "srun"
	Tasks    int    // how many tasks it announced; 0 when only a rank above 0 is known
	Hint     string // what is wrong and what to do
}

func (e *RefusedError) Error() string {
	tasks := "several tasks"
	if e.Tasks > 0 {
		tasks = fmt.Sprintf("%d tasks", e.Tasks)
	}
	return fmt.Sprintf("mpiboot: %s started %s, but this process would be alone: %s", e.Launcher, tasks, e.Hint)
}

// rankList writes ranks as "rank 3" or "ranks 1, 2, 5".
func rankList(ranks []int) string {
	words := make([]string, len(ranks))
	for i, r := range ranks {
		words[i] = fmt.Sprint(r)
	}
	if len(ranks) == 1 {
		return "rank " + words[0]
	}
	return "ranks " + strings.Join(words, ", ")
}
