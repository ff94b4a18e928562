//go:build amd64 || arm64

// Package fptest breaks the floating-point environment, for tests of those who
// must bear it.
package fptest

// Flush turns flush-to-zero on in the calling thread, as a library that is
// linked with -ffast-math does. The caller holds the OS thread.
func Flush()
