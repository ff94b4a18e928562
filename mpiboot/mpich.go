//go:build mpich && !mpi

package mpiboot

// #cgo pkg-config: mpich
import "C"

// SrunPlugin names the plug-in of srun that starts this build's MPI.
const SrunPlugin = "pmi2"

// needsPMI: MPICH without PMI starts a world of one, which Init refuses later.
const needsPMI = false
