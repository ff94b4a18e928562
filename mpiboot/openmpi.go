//go:build mpi

package mpiboot

// #cgo pkg-config: ompi
import "C"

// SrunPlugin names the plug-in of srun that starts this build's MPI.
const SrunPlugin = "pmix"

// needsPMI: Open MPI's MPI_Init aborts in a step of srun without PMI.
const needsPMI = true
