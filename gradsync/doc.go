// Package gradsync runs the gradient synchronisation of data-parallel training
// and checks it.
//
// # Who holds what
//
// A logical rank is one gradient contribution; a process holds one of them or,
// when the logical world is larger than the launch, a contiguous block (Layout).
// A Source gives each logical rank's gradients; package plan cuts parameters
// into buckets; a Reducer owns the memory in which the buckets of this
// process's logical ranks live, and sums them across the world.
//
// # A step
//
// For each bucket in launch order, the step puts the gradients of every local
// logical rank into the reducer's memory and reduces the bucket. Then it
// digests the result of every parameter, agrees with all ranks that the
// digests are equal, and holds the result against the reference (package
// check): each process checks its share of the elements, which covers all of
// them since the digests are equal, and where they are not, all of the
// parameter in question.
//
// # Reducers
//
// Fixed sums in the order of the contract, in shared memory where all
// processes share a host and by exchange over the world's transport otherwise.
// MPI sums with MPI_Allreduce, for comparison. They are collective: every
// process calls the same methods in the same order.
//
// # Threads
//
// Everything here runs on one goroutine, locked to one OS thread, because MPI
// and CUDA want that and because the floating-point environment belongs to a
// thread.
package gradsync
