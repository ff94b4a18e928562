package kernels

import (
	"fmt"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// CopyIn all-reduces a very large message in a group, in place. Each process adds its slice, as in a two-shot, but the
// other processes' addends come by the copy engines, chunk by chunk into scratch memory, while the chunk before is
// added and stored to every process. That keeps the link busier than loads by a kernel do. The bits are the same.
//
// Addends and Results are as in TwoShot, and the same in all processes but for the mapping. This process holds Own of
// the addends, from First on.
type CopyIn struct {
	Addends, Results []cuda.Buffer
	First, Own       int
	Scale            Scale
	Scratch          cuda.Buffer  // Uint8, CopyInScratch bytes, this process's own
	Copies           *cuda.Stream // for the copies, beside the stream of the kernels
	ChunkBytes       int          // of one addend; 0 is CopyInChunk
	Shape            Shape        // of the folds
}

// CopyInChunk is the usual chunk. Chunks below 8 MiB were measured to be slower than a two-shot.
const CopyInChunk = 32 << 20

const scratchHalves = 2 // one is filled while the other is added

// CopyInScratch is how much scratch memory a process needs for others addends of other processes.
func CopyInScratch(others, chunkBytes int) int { return scratchHalves * others * (chunkBytes + 16) }

// A Pipeline is a prepared CopyIn. Like a Launch it is queued as often as wanted, and holds memory: Free it.
type Pipeline struct {
	copies  *cuda.Stream
	barrier *Launch
	begin   *cuda.Event
	chunks  []chunk
}

type chunk struct {
	from, to      []cuda.Buffer
	fold          *Launch
	arrived, used *cuda.Event
}

// CopyIn prepares a copy-in all-reduce.
func (m *Module) CopyIn(g *Group, q CopyIn) (*Pipeline, error) {
	addends, errA := operands(q.Addends)
	results, errR := operands(q.Results)
	if err := firstError(errA, errR); err != nil {
		return nil, fmt.Errorf("kernels: copy-in: %w", err)
	}
	if _, err := twoShotCalls(g.args, addends, results, q.Scale, Shape{}); err != nil {
		return nil, err
	}
	if err := firstError(within("own addends", q.Own, 1, len(addends)), within("as the first rank", q.First, 0, len(addends)-q.Own)); err != nil {
		return nil, err
	}
	size := addends[0].t.Size()
	if q.ChunkBytes == 0 {
		q.ChunkBytes = CopyInChunk
	}
	if q.ChunkBytes < 16 || q.ChunkBytes%16 != 0 {
		return nil, fmt.Errorf("kernels: copy-in by chunks of %d bytes; use a multiple of 16", q.ChunkBytes)
	}
	if need := CopyInScratch(len(addends)-q.Own, q.ChunkBytes); q.Scratch.Bytes() < need {
		return nil, fmt.Errorf("kernels: copy-in with %d bytes of scratch; %d are needed", q.Scratch.Bytes(), need)
	}

	p := &Pipeline{copies: q.Copies}
	var err error
	if p.barrier, err = m.Barrier(g); err == nil {
		p.begin, err = m.ctx.NewEvent(false)
	}
	slice := SliceElements(addends[0].n, size, len(results))
	lo, hi := min(g.args.self*slice, addends[0].n), min((g.args.self+1)*slice, addends[0].n)
	for step := q.ChunkBytes / size; lo < hi && err == nil; lo += step {
		err = m.addChunk(p, q, g.args.self, lo, min(lo+step, hi), int(addends[0].at%16))
	}
	if err != nil {
		p.Free()
		return nil, err
	}
	return p, nil
}

// addChunk prepares the elements [lo, hi). In scratch they lie skew bytes above a multiple of 16, as in the buffers.
func (m *Module) addChunk(p *Pipeline, q CopyIn, self, lo, hi, skew int) error {
	var c chunk
	fold := Fold{Scale: q.Scale, First: self, Shape: q.Shape}
	half := len(p.chunks) % scratchHalves
	others := len(q.Addends) - q.Own
	for r, b := range q.Addends {
		part, err := b.Slice(lo, hi)
		if err != nil {
			return err
		}
		if r < q.First || r >= q.First+q.Own {
			at := (half*others+len(c.to))*(q.ChunkBytes+16) + skew
			raw, err := q.Scratch.Slice(at, at+part.Bytes())
			if err != nil {
				return err
			}
			room, err := raw.View(b.DType())
			if err != nil {
				return err
			}
			c.from, c.to = append(c.from, part), append(c.to, room)
			part = room
		}
		fold.Addends = append(fold.Addends, part)
	}
	for _, b := range q.Results {
		part, err := b.Slice(lo, hi)
		if err != nil {
			return err
		}
		fold.Results = append(fold.Results, part)
	}
	var err error
	if c.fold, err = m.Fold(fold); err != nil {
		return err
	}
	var errA, errU error
	c.arrived, errA = m.ctx.NewEvent(false)
	c.used, errU = m.ctx.NewEvent(false)
	p.chunks = append(p.chunks, c)
	return firstError(errA, errU)
}

// Queue puts the all-reduce on a stream, behind what is there. The copies are on their own stream, tied to this one
// by events at both ends.
func (p *Pipeline) Queue(s *cuda.Stream) error {
	if err := p.barrier.Queue(s); err != nil {
		return err
	}
	if len(p.chunks) > 0 { // else nothing would lead back from the other stream, as a capture demands
		if err := firstError(p.begin.Record(s), p.copies.WaitEvent(p.begin)); err != nil {
			return err
		}
	}
	for i, c := range p.chunks {
		if i >= scratchHalves {
			if err := p.copies.WaitEvent(p.chunks[i-scratchHalves].used); err != nil {
				return err
			}
		}
		for k := range c.to {
			if err := p.copies.Copy(c.to[k], c.from[k]); err != nil {
				return err
			}
		}
		if err := firstError(c.arrived.Record(p.copies), s.WaitEvent(c.arrived), c.fold.Queue(s), c.used.Record(s)); err != nil {
			return err
		}
	}
	return p.barrier.Queue(s)
}

// Free gives back what the pipeline holds. It must have run.
func (p *Pipeline) Free() error {
	var err error
	if p.barrier != nil {
		p.barrier.Free()
	}
	if p.begin != nil {
		err = p.begin.Close()
	}
	for _, c := range p.chunks {
		c.fold.Free()
		for _, e := range []*cuda.Event{c.arrived, c.used} {
			if e != nil {
				err = firstError(err, e.Close())
			}
		}
	}
	return err
}
