// Command ddpstep-nvml asks NVML about the GPUs of this host and prints the
// answer as one JSON object. ddpstep runs it before MPI_Init; it can be run by
// hand as well, without arguments.
//
// It is a program of its own because of how go-nvml binds NVML. That package
// leaves every NVML function undefined in the binary and counts on the dynamic
// loader to find each at its first call, after libnvidia-ml.so.1 has been
// opened. Where the loader binds all functions at the start, because of
// LD_BIND_NOW=1 or a link with -z now, the program dies with status 127 before
// main; and so it does, later, at the call of a function that an older driver
// lacks. A job must survive both. So this program is linked with -z lazy, which
// some compilers do not do by themselves:
//
//	go build -ldflags '-extldflags=-Wl,-z,lazy' ./cmd/ddpstep-nvml
//
// ddpstep starts it without LD_BIND_NOW, and every function is looked up before
// it is called. What cannot be asked is null in the answer and has a note.
//
// Exit codes: 0 the answer was printed, 1 it could not be written, 2 bad usage,
// 3 NVML is not there or does not work; one line on stderr says why.
//
// Its tests are those of cmd/ddpstep: a test binary of this package would itself
// need lazy binding.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

const (
	exitWrite  = 1
	exitUsage  = 2
	exitNoNVML = 3
)

// answer is what is printed. A null says that NVML does not know, or could not
// be asked.
type answer struct {
	Format string   `json:"format"` // "ddpstep-nvml/1"
	Driver string   `json:"driver"` // "570.124.06"
	NVML   string   `json:"nvml"`   // "12.570.124.06"
	GPUs   []gpu    `json:"gpus"`
	Notes  []string `json:"notes"` // what could not be asked, and why
}

// gpu is one GPU of the host, whether visible to CUDA or not.
type gpu struct {
	Index    int      `json:"index"` // NVML's, in PCI order
	UUID     string   `json:"uuid"`
	Name     string   `json:"name"`
	Bus      string   `json:"bus"`      // "0000:0f:00.0", as the CUDA driver writes it
	MIG      *bool    `json:"mig"`      // divided into MIG instances
	NVLinks  []int    `json:"nvlinks"`  // the active links; empty without NVLink
	Active   *int     `json:"active"`   // their number
	ECC      *ecc     `json:"ecc"`      // null without ECC memory
	Throttle []string `json:"throttle"` // what holds the clocks down now
	Peers    []peer   `json:"peers"`    // the other GPUs
}

// ecc counts memory errors.
type ecc struct {
	Volatile  eccCount `json:"volatile"`  // since the driver was loaded
	Aggregate eccCount `json:"aggregate"` // in the life of the GPU
}

type eccCount struct {
	Corrected   *uint64 `json:"corrected"`
	Uncorrected *uint64 `json:"uncorrected"`
}

// peer is how one GPU reaches another.
type peer struct {
	Index    int     `json:"index"`
	UUID     string  `json:"uuid"`
	NVLink   *bool   `json:"nvlink"`   // they reach each other over NVLink
	Read     *bool   `json:"read"`     // one can read the other's memory
	Topology *string `json:"topology"` // the nearest common point on PCIe: internal, single, multiple, hostbridge, node, system
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		fmt.Fprintln(stderr, "ddpstep-nvml: takes no arguments; prints what NVML says of the GPUs of this host, as JSON")
		return exitUsage
	}
	a, err := query()
	if err != nil {
		fmt.Fprintln(stderr, "ddpstep-nvml:", err)
		return exitNoNVML
	}
	if err := json.NewEncoder(stdout).Encode(a); err != nil {
		fmt.Fprintln(stderr, "ddpstep-nvml:", err)
		return exitWrite
	}
	return 0
}
