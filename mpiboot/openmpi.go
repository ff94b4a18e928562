//go:build mpi

package mpiboot

// #cgo pkg-config: ompi
import "C"

// needsPMI: Open MPI's MPI_Init aborts in a step of srun without PMI.
const needsPMI = true
