// Package fpenv puts the floating-point environment of the calling thread
// right: round to nearest even, subnormals neither flushed nor read as zero,
// no trapping exceptions.
//
// A shared library that was linked with -ffast-math turns flush-to-zero on for
// the thread that loads it, and threads started from that one inherit it. MPI,
// NCCL and their plug-ins are loaded libraries, so whoever adds numbers calls
// Set first, on a locked OS thread, after the libraries are there and again
// before each sum: it costs a few cycles.
package fpenv

import (
	"fmt"
	"math"
)

// Set makes the calling thread's environment the IEEE default and reports
// whether it had to change it. The caller must hold the OS thread
// (runtime.LockOSThread), or the goroutine may continue on another.
//
// On processors without a known control register it changes nothing; Check
// still finds a wrong environment there.
func Set() (changed bool) { return set() }

// Check adds, multiplies and rounds a few values whose results tell a wrong
// environment, and says which rule is broken.
func Check() error {
	tiny := math.Float32frombits(three) // 3 units of 2^-149
	if got := math.Float32bits(tiny + math.Float32frombits(five)); got != 8 {
		return fmt.Errorf("this thread flushes subnormals: 3 + 5 units gave %d; a loaded library was probably built with -ffast-math", got)
	}
	if one := math.Float32frombits(oneBits); one+one*0x1p-24 != one || one+one*0x1.8p-24 == one {
		return fmt.Errorf("this thread does not round to nearest even")
	}
	if x := math.Float64frombits(uint64(three)); math.Float64bits(x+x) != 6 {
		return fmt.Errorf("this thread flushes float64 subnormals")
	}
	return nil
}

// Variables, so that the compiler cannot add constants itself.
var three, five, oneBits uint32 = 3, 5, 0x3f800000
