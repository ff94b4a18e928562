package kernels

import "fmt"

// Algorithm is a way to all-reduce a message between processes that share memory. All give the same bits.
type Algorithm uint8

// The algorithms, from small messages to large ones.
const (
	AlgorithmFold    Algorithm = iota + 1 // one process: nobody to talk to
	AlgorithmOneShot                      // OneShot
	AlgorithmTwoShot                      // TwoShot
	AlgorithmCopyIn                       // peers' slices by copy engine, Fold to all results, Barrier around
)

func (a Algorithm) String() string {
	switch a {
	case AlgorithmFold:
		return "fold"
	case AlgorithmOneShot:
		return "oneshot"
	case AlgorithmTwoShot:
		return "twoshot"
	case AlgorithmCopyIn:
		return "copyin"
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// Choose picks the algorithm for a message of so many bytes (one addend) of a world of logical ranks on so many
// processes. It is a function of what all processes know, and all of them must follow it.
//
// The thresholds were measured on two GPUs joined by NVLink, and are published figures for more. A one-shot moves every
// addend to every process, so the limit falls with their number. Copying in pays where chunks of 32 MiB leave enough
// of them to overlap, and needs one addend a process.
func Choose(bytes, world, procs int) Algorithm {
	limit := OneShotBytes
	if procs > 4 {
		limit /= 2
	}
	perProc := (world + procs - 1) / procs
	switch {
	case procs == 1:
		return AlgorithmFold
	case bytes*perProc <= limit:
		return AlgorithmOneShot
	case procs == 2 && world == 2 && bytes >= 256<<20:
		return AlgorithmCopyIn
	}
	return AlgorithmTwoShot
}

// Shape is the blocks of a launch and the threads of each. The zero Shape of a request asks for the usual one. Where
// processes wait for one another the blocks must be equal on all of them.
type Shape struct{ Blocks, Threads int }

const (
	usualThreads = 512
	waitBlocks   = 132 // of kernels that wait
	freeBlocks   = 264 // of kernels that do not
)

// accesses is the shape for n independent accesses of 16 bytes, with at most so many blocks.
func accesses(n, most int) Shape {
	return Shape{min(max(ceil(n, usualThreads), 1), most), usualThreads}
}

// foldShape, fillShape and digestShape serve one process; any shape gives the same bits.
func foldShape(bytes int) Shape { return accesses(ceil(bytes, 16), freeBlocks) }

// twoShotShape has a thread for every 16 bytes of a slice, as far as that goes.
func twoShotShape(sliceBytes int) Shape { return accesses(ceil(sliceBytes, 16), waitBlocks) }

// oneShotShape has a block for every blockLines lines, always: a line belongs to a block for good.
func oneShotShape(bytes int) Shape {
	lines := ceil(bytes, 8)
	return Shape{max(ceil(lines, blockLines), 1), min(max(ceil(lines, 32), 1)*32, blockLines)}
}

// SliceElements is how many elements of a message of count each process adds in a two-shot: process p those from p
// times this on, as far as they exist. Slices end at whole lines of 128 bytes, counted from the start, so that two
// processes seldom write into one.
func SliceElements(count, size, procs int) int {
	line := 128 / size
	return ceil(ceil(count, procs), line) * line
}

func ceil(n, d int) int { return (n + d - 1) / d }
