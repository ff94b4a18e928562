package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Limits of the kernels, the same numbers as in ddpstep.cuh.
const (
	MaxWorld = 64 // logical ranks
	MaxProcs = 16 // processes of a Group

	maxBlocks  = 256
	blockLines = 512 // lines, of 8 bytes of data each, that a block of the one-shot kernel owns
	phases     = 3

	// OneShotBytes is the largest message, in bytes of one addend, that fits a one-shot slot.
	OneShotBytes = slotLines * 8
	slotLines    = 128 * blockLines
)

// The block of memory that a process shares: its flags, its own counters, its slots.
const (
	flagBytes     = phases * maxBlocks * MaxProcs * 4
	epochsAt      = flagBytes
	epochBytes    = maxBlocks * 4
	lineEpochsAt  = epochsAt + epochBytes
	slotsAt       = lineEpochsAt + epochBytes
	lineBytes     = 16
	slotBuffering = 2
)

// SharedBytes is the size of the memory that each process of a Group shares, for a world of logical ranks.
func SharedBytes(world int) int { return slotsAt + slotBuffering*world*slotLines*lineBytes }

// Arguments of the kernels, field by field as in the .cu files. Addresses are those of the device.
type (
	sumArgs struct {
		addends, results []uint64
		scale            Scale
		first            int
	}
	foldArgs struct {
		sum   sumArgs
		count int
	}
	peersArgs struct {
		shared  []uint64
		control uint64
		self    int
	}
	twoShotArgs struct {
		sum          sumArgs
		peers        peersArgs
		count, slice int
	}
	oneShotArgs struct {
		addends      []uint64
		result       uint64
		scale        Scale
		count        int
		world, first int
		peers        peersArgs
	}
	digestArgs struct {
		data, sums uint64
		count      int
		index      uint64
	}
	fillArgs struct {
		data  uint64
		count int
		index uint64
		value Values
	}
)

func (a sumArgs) put(b *encoder) {
	b.table(a.addends, MaxWorld)
	b.table(a.results, MaxProcs)
	b.f64(a.scale.Factor)
	b.u32(flag(a.scale.Pre), uint32(len(a.addends)), uint32(len(a.results)), uint32(a.first))
}

func (a foldArgs) put(b *encoder) {
	a.sum.put(b)
	b.u64(uint64(a.count))
}

func (a peersArgs) put(b *encoder) {
	b.table(a.shared, MaxProcs)
	b.u64(a.shared[a.self]+epochsAt, a.control)
	b.u32(uint32(len(a.shared)), uint32(a.self))
}

func (a twoShotArgs) put(b *encoder) {
	a.sum.put(b)
	a.peers.put(b)
	b.u64(uint64(a.count), uint64(a.slice))
}

func (a oneShotArgs) put(b *encoder) {
	slots := make([]uint64, len(a.peers.shared))
	for p, at := range a.peers.shared {
		slots[p] = at + slotsAt
	}
	b.table(a.addends, MaxWorld)
	b.table(slots, MaxProcs)
	b.u64(a.result, a.peers.shared[a.peers.self]+lineEpochsAt, a.peers.control)
	b.f64(a.scale.Factor)
	b.u64(uint64(a.count))
	b.u32(flag(a.scale.Pre), uint32(a.world), uint32(a.first), uint32(len(a.addends)))
	b.u32(uint32(len(a.peers.shared)), uint32(a.peers.self), slotLines, 0)
}

func (a digestArgs) put(b *encoder) {
	b.u64(a.data, uint64(a.count), a.sums)
	b.u32(uint32(a.index), uint32(a.index>>32))
}

func (a fillArgs) put(b *encoder) {
	v := a.value
	b.u64(a.data, uint64(a.count))
	b.u32(uint32(a.index), uint32(a.index>>32), v.Param, v.Pair, v.Rank, v.Odd, v.First, v.Set)
}

// A call is one launch in plain numbers.
type call struct {
	kernel        string
	grid, threads int
	args          []byte
}

func newCall(kernel string, shape Shape, args interface{ put(*encoder) }) call {
	var b encoder
	args.put(&b)
	return call{kernel, shape.Blocks, shape.Threads, b}
}

// encoder lays values out as C does: all fields here fall on their natural alignment by themselves.
type encoder []byte

func (b *encoder) u64(v ...uint64) {
	for _, x := range v {
		*b = binary.NativeEndian.AppendUint64(*b, x)
	}
}

func (b *encoder) u32(v ...uint32) {
	for _, x := range v {
		*b = binary.NativeEndian.AppendUint32(*b, x)
	}
}

func (b *encoder) f64(v float64) { b.u64(math.Float64bits(v)) }

func (b *encoder) table(v []uint64, room int) {
	if len(v) > room {
		panic(fmt.Sprintf("kernels: %d addresses in a table of %d", len(v), room))
	}
	b.u64(v...)
	b.u64(make([]uint64, room-len(v))...)
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
