package mpiboot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"
)

// bigBytes is more than 2 GiB and not a multiple of the piece.
const bigBytes = 1<<31 + 40

// big moves messages above 2 GiB between two ranks, in mapped memory.
func big(w *World) error {
	mem, err := syscall.Mmap(-1, 0, bigBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return err
	}
	stamp(mem, uint64(1+w.Rank())) // also by the receiver, so that its pages are there
	if w.Rank() == 0 {
		err = w.Exchange([]int{1}, [][]byte{mem}, nil, nil)
	} else {
		err = errors.Join(w.Exchange(nil, nil, []int{0}, [][]byte{mem}), stamped("Exchange", mem, 1))
	}
	if err != nil {
		return err
	}
	if w.Rank() == 1 {
		stamp(mem, 2)
	}
	if err := errors.Join(w.Bcast(mem, 1), stamped("Bcast", mem, 2)); err != nil {
		return err
	}
	// Each rank's half passes 1 GiB, and the whole 2 GiB: over the limit of
	// one MPI_Iallgather.
	half := mem[w.Rank()*bigBytes/2:][:bigBytes/2]
	clear(mem[(1-w.Rank())*bigBytes/2:][:bigBytes/2])
	stamp(half, uint64(10+w.Rank()))
	err = w.Allgather(half, mem)
	err = errors.Join(err, stamped("Allgather", mem[:bigBytes/2], 10), stamped("Allgather", mem[bigBytes/2:], 11))
	if err != nil {
		return err
	}
	eachStamp(mem, 3, func(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, math.Float64bits(float64(v))) })
	err = w.AllreduceSum(mem, "float64")
	eachStamp(mem, 3, func(b []byte, v uint64) {
		if got := math.Float64frombits(binary.LittleEndian.Uint64(b)); got != 2*float64(v) && err == nil {
			err = fmt.Errorf("AllreduceSum: %v, want %v", got, 2*float64(v))
		}
	})
	return err
}

// stamp writes a number at regular places of mem and at its very end.
func stamp(mem []byte, seed uint64) { eachStamp(mem, seed, binary.LittleEndian.PutUint64) }

func stamped(what string, mem []byte, seed uint64) (err error) {
	eachStamp(mem, seed, func(b []byte, want uint64) {
		if got := binary.LittleEndian.Uint64(b); got != want && err == nil {
			err = fmt.Errorf("%s: %#x where %#x was sent", what, got, want)
		}
	})
	return err
}

func eachStamp(mem []byte, seed uint64, f func([]byte, uint64)) {
	for at := 0; at+8 <= len(mem); at += 4096 {
		f(mem[at:], seed<<40+uint64(at))
	}
	f(mem[len(mem)-8:], seed<<40+uint64(len(mem)))
}
