// Package mpiboot is the MPI world of a batch job: who am I, who else is
// there, and byte messages between us, all in host memory and none of them
// for ever.
//
// # Builds
//
// With the build tag mpi it binds Open MPI, with mpich it binds MPICH, both
// found through pkg-config (ompi, mpich); mpi wins when both are given. With
// neither tag there is no cgo at all: the world has one rank, the same methods
// work, and Init refuses to run when a launcher says that there should be
// more. Everything that can be decided without MPI (argument checks, messages
// to oneself, the one-rank case) is plain Go shared by the three builds, so
// that they behave alike.
//
// # Waiting
//
// Calls are made of MPI's non-blocking ones and a poll loop that spins at
// first, then yields, then naps, and looks at the clock. A call that overruns
// [Options.Deadline] returns a [*DeadlineError], which names the ranks that
// did not answer a roll call. MPI_Init, MPI_Finalize and the MPI_Allreduce of
// [World.AllreduceSum] cannot be polled; when one overruns, [Options.Stuck]
// is called on another goroutine, which should report it and end the process.
//
// # After a failure
//
// A request that missed its deadline can be neither completed nor freed: MPI
// may still write to its buffers. They stay pinned, their requests leak, and
// the world is spent: each later call returns the first failure, wrapped,
// except [World.RollCall], which still works, and [World.Abort], by which the
// process must end. The same holds after an error of MPI itself. An
// [*ArgumentError] and an expired [World.RecvTimeout] leave nothing pending
// and do no harm.
//
// # Threads
//
// Init locks the calling goroutine to its OS thread. Every method that
// communicates must be called there; from another thread it panics. Only Abort
// may be called from anywhere. MPI_THREAD_MULTIPLE is asked for, and at least
// MPI_THREAD_SERIALIZED is needed, because that thread need not be the main
// thread.
//
// # Memory
//
// Buffers are read and written in place, whether they are Go memory, which is
// pinned for the length of the call, or mapped memory. They must not be
// touched by others until the call returns. Messages may be larger than the
// 2 GiB that fit MPI's counts: they travel in pieces.
package mpiboot
