// Package kernels holds the CUDA kernels of the fixed order and the typed way to launch them.
//
// # The kernels
//
//	fold      W addends, one result in one or more places          nothing waits
//	oneshot   small messages: data beside flags into peers' slots  waits for the data itself
//	twoshot   large messages: slice p of every rank, in place      a barrier before and after
//	barrier   every process's stream has come this far
//	fill      the values of gradsync/values
//	digest    the lanes of gradsync/digest
//
// Each is one file, NAME.cu, with NAME.ptx beside it: text that clang made for compute capability 7.0 and that the
// driver compiles for the GPU at hand when a kernel of the file is first used. build.sh makes it; it also makes native
// code with nvcc, and host functions for the driver double that tests use. All three give the same bits.
//
// # Launching
//
// A [Module] turns a typed request ([Fold], [OneShot], [TwoShot], ...) into a [Launch], once; a Launch is queued on a
// stream as often as wanted, allocates nothing then, and may be captured in a graph: what changes from call to call
// (epochs) is in device memory. Requests are checked when they are prepared: types, lengths, alignment to the element,
// sizes of the world.
//
// Addends and results are aligned to their element and otherwise as they please. Where all of them lie alike within 16
// bytes they are read and written 16 bytes at a time, else element by element, several times slower.
//
// # Processes that share memory
//
// One-shot, two-shot and barrier work among the processes of a [Group], each of which gives the others one block of
// device memory ([SharedBytes], zeroed before any of them launches), and maps theirs. All of them launch the same
// kernels with the same lengths in the same order on one stream each. The grid follows from the length alone (see
// [Choose]): unequal grids would wait for ever.
//
// A kernel that waits also watches [Group.Abort]. When that is set the kernel ends, its result is worthless, and
// [Group.Waited] says for whom it waited. The shared memory is then in no known state: the group must be made anew.
//
// # Shapes
//
// Blocks have 512 threads, so that each may use 128 registers, which hold eight loads of 16 bytes on their way.
// Kernels that wait use at most 132 blocks, one for each multiprocessor of an H100 or H200: all of them run at once
// even there, though none needs it, as a block waits only for the block of its own index elsewhere. (On a GPU with fewer
// multiprocessors the rest start as others end; blocks start in order.) Every kernel is right with any number of
// blocks and threads, one included.
package kernels
