//go:build mpich && !mpi

package mpiboot

// #cgo pkg-config: mpich
import "C"

// needsPMI: MPICH without PMI starts a world of one, which Init refuses later.
const needsPMI = false
