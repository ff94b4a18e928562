package mpiboot

import "time"

// RollCall finds out, after a failure, which ranks are missing: it tells every
// rank that this one is here and collects the same from them, for wait at
// most. A rank answers when it calls RollCall itself, or when it is waiting in
// another call of this package; a rank that died, hangs, or is busy elsewhere
// does not. Messages of a roll call use a communicator of their own, so the
// calls that failed do not disturb it.
//
// A rank says "here" once in the life of a world. A second RollCall gives late
// ranks more time; it does not notice that one was lost since it answered.
func (w *World) RollCall(wait time.Duration) (missing []int) {
	if w.size == 1 {
		return nil
	}
	w.link.callHere()
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		missing = missing[:0]
		for rank, here := range w.link.heard() {
			if !here && rank != w.rank {
				missing = append(missing, rank)
			}
		}
		if len(missing) == 0 || time.Now().After(end) {
			return missing
		}
	}
}

// answer says "here" too when another rank has called the roll.
func (w *World) answer() {
	for _, here := range w.link.heard() {
		if here {
			w.link.callHere()
			return
		}
	}
}
