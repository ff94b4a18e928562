package mpiboot

import (
	"errors"
	"fmt"
)

// arguments makes every call with every kind of wrong argument. Each must be
// refused on the spot, leaving the world as it was.
func arguments(w *World) error {
	size, b := w.Size(), make([]byte, 16)
	counts := make([]int, size)
	negative := make([]int, size)
	negative[0] = -1
	overflow := make([]int, size)
	overflow[0] = 17
	self := []int{w.Rank()}
	one := [][]byte{b}
	wrong := map[string]error{
		"Bcast root below":         w.Bcast(b, -1),
		"Bcast root above":         w.Bcast(b, size),
		"Gather root":              w.Gather(b, make([]byte, 16*size), size),
		"Gather length":            w.Gather(b, make([]byte, 16*size+1), w.Rank()),
		"Allgather short":          w.Allgather(b, make([]byte, 16*size-1)),
		"Allgather long":           w.Allgather(nil, b),
		"Alltoallv few counts":     w.Alltoallv(nil, counts[1:], nil, counts),
		"Alltoallv many counts":    w.Alltoallv(nil, counts, nil, append([]int{0}, counts...)),
		"Alltoallv negative":       w.Alltoallv(b, negative, nil, counts),
		"Alltoallv beyond":         w.Alltoallv(b, overflow, nil, counts),
		"Alltoallv rest":           w.Alltoallv(nil, counts, b, counts),
		"Exchange lists":           w.Exchange(self, nil, nil, nil),
		"Exchange receive lists":   w.Exchange(nil, nil, nil, one),
		"Exchange to nobody":       w.Exchange([]int{size}, one, nil, nil),
		"Exchange from nobody":     w.Exchange(nil, nil, []int{-1}, one),
		"Exchange self unreceived": w.Exchange(self, one, nil, nil),
		"Exchange self unsent":     w.Exchange(nil, nil, self, one),
		"AllreduceSum dtype":       w.AllreduceSum(b, "int8"),
		"AllreduceSum length":      w.AllreduceSum(b[:6], "float32"),
		"AllreduceSum alignment":   w.AllreduceSum(b[1:9], "float64"),
		"Send peer":                w.Send(b, size, 0),
		"Send tag":                 w.Send(b, w.Rank(), -1),
		"Recv peer":                w.Recv(b, -1, 0),
		"Recv tag":                 w.Recv(b, w.Rank(), 32768),
		"Recv self unsent":         w.Recv(b, w.Rank(), 9),
		"RecvTimeout peer":         w.RecvTimeout(b, size, 0, 0),
		"RecvTimeout self unsent":  w.RecvTimeout(b, w.Rank(), 9, 0),
	}
	if size == 1 {
		delete(wrong, "Alltoallv few counts") // refused too, but for the other list
		wrong["Alltoallv no counts"] = w.Alltoallv(nil, nil, nil, nil)
	}
	for name, err := range wrong {
		var argument *ArgumentError
		if !errors.As(err, &argument) {
			return fmt.Errorf("%s: got %v, want an *ArgumentError", name, err)
		}
	}
	var length *SizeError
	if err := w.Exchange(self, one, self, [][]byte{b[:8]}); !errors.As(err, &length) || length.Got != 16 || length.Want != 8 {
		return fmt.Errorf("Exchange with oneself of two lengths: %v", err)
	}
	kept := make([]byte, 4)
	two := []int{w.Rank(), w.Rank()}
	err := w.Exchange(two, [][]byte{{1, 2, 3, 4}, {5}}, two, [][]byte{kept, nil})
	if !errors.As(err, &length) || kept[0] != 0 {
		return fmt.Errorf("Exchange with oneself, the second of two lengths wrong: %v, and the first arrived as %v", err, kept)
	}
	if _, err := Init(Options{}); err == nil {
		return errors.New("a second Init succeeded")
	}
	return collectivesOf(w, 10)
}
