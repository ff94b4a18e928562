// Package nccl is the part of NCCL that this module calls, found at run time, with deadlines and one way down.
//
// # Loading
//
// [Open] loads libnccl.so.2 with dlopen, after the CUDA driver. A library older than [Floor] is refused, because older
// ones hang on new GPUs; the error names the version that was found and the file.
//
// # Deadlines
//
// A communicator is made in NCCL's non-blocking mode, where every call returns at once and is polled until it is done.
// No wait here is without bound: [Library.Init], each collective's hand-over to the device, [Comm.Wait] and
// [Comm.Close] end by the communicator's timeout, which runs from the first operation that is enqueued after the last
// finished wait. NCCL itself reports nothing when a peer on the same host is killed or stopped: only the deadline
// finds it. [Config] has a faster mode, Direct, that gives up some of this.
//
// # The one way down
//
// A deadline that passes, an error that NCCL reports and [Comm.Abort] all abort the communicator, exactly once,
// whoever comes first. The abort waits for a call under way on another thread to return, and runs on a thread of its
// own with a grace period, since it may itself hang. From then on every method, Close included, answers [ErrAborted]
// with the cause, and NCCL is not called again: an abort frees the communicator. What the buffers hold then is unknown.
//
// # Threads
//
// All methods but Abort belong to the thread of the CUDA context, like those of package cuda.
//
// # Buffers
//
// The element type and the count are the buffer's, so they cannot disagree with the memory; cuda.Buffer.View gives
// another type to the same bytes. Types and lengths that do not fit each other, ranks outside the world, and buffers
// or streams of another context are found before NCCL sees them. NCCL compares nothing between ranks: that all ranks
// make the same calls in the same order is for the caller to see to.
package nccl
