// Package plan assigns parameters to buckets as PyTorch's
// DistributedDataParallel does when it is constructed.
//
// Parameters are taken in registration order. Each dtype fills its own bucket;
// a bucket is closed as soon as its size reaches the cap (so it may exceed the
// cap by up to one parameter). The first bucket that a dtype closes has the
// first cap (1 MiB in PyTorch), later ones the second (25 MiB). Buckets are
// then sorted by their first parameter, and the list is reversed, because
// gradients become ready from the last layer to the first. The order of
// parameters within a bucket stays.
//
// The source of these rules is compute_bucket_assignment_by_size in PyTorch's
// reducer.cpp; the tests hold this package against its answers.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sort"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// All is a cap that is never reached: one bucket for each dtype.
const All = int64(1) << 62

// PyTorch's caps, in bytes.
const (
	DefaultFirstCap = int64(1) << 20
	DefaultCap      = int64(25) << 20
)

// Param is one parameter: a named tensor of gradients.
type Param struct {
	Name  string
	DType contract.DType
	Shape []int64
}

// Elements is the product of the shape, 1 for a scalar. Whoever reads shapes
// from outside has checked that the product does not overflow (package params).
func (p Param) Elements() int64 {
	n := int64(1)
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Bytes is the size of the parameter's gradient.
func (p Param) Bytes() int64 { return p.Elements() * int64(p.DType.Size()) }

// Bucket is one message: parameters of one dtype, laid one after the other
// without gaps.
type Bucket struct {
	DType    contract.DType
	Elements int64
	Slots    []Slot
}

// Slot is one parameter's place in its bucket.
type Slot struct {
	Param  int   // index in registration order
	Offset int64 // in elements
}

// Bytes is the bucket's size.
func (b Bucket) Bytes() int64 { return b.Elements * int64(b.DType.Size()) }

// Plan is the buckets in launch order.
type Plan struct {
	Params  []Param
	Buckets []Bucket
}

// New plans params. caps are in bytes, positive, the last repeats.
func New(params []Param, caps ...int64) (*Plan, error) {
	if len(caps) == 0 {
		return nil, fmt.Errorf("plan: no bucket cap")
	}
	for _, c := range caps {
		if c <= 0 {
			return nil, fmt.Errorf("bucket cap of %d bytes; caps must be positive", c)
		}
	}
	type open struct {
		bucket Bucket
		closed int // buckets of this dtype closed so far
	}
	opened := map[contract.DType]*open{}
	var done []Bucket
	for i, it := range params {
		o := opened[it.DType]
		if o == nil {
			o = &open{bucket: Bucket{DType: it.DType}}
			opened[it.DType] = o
		}
		b := &o.bucket
		b.Slots = append(b.Slots, Slot{i, b.Elements})
		b.Elements += it.Elements()
		if b.Bytes() >= caps[min(o.closed, len(caps)-1)] {
			done = append(done, *b)
			*b = Bucket{DType: it.DType}
			o.closed++
		}
	}
	for _, o := range opened {
		if len(o.bucket.Slots) > 0 {
			done = append(done, o.bucket)
		}
	}
	sort.Slice(done, func(i, j int) bool { return done[i].Slots[0].Param > done[j].Slots[0].Param })
	return &Plan{Params: params, Buckets: done}, nil
}

// Bytes is the size of all buckets.
func (p *Plan) Bytes() (n int64) {
	for _, b := range p.Buckets {
		n += b.Bytes()
	}
	return n
}

// MaxBytes is the size of the largest bucket.
func (p *Plan) MaxBytes() (n int64) {
	for _, b := range p.Buckets {
		n = max(n, b.Bytes())
	}
	return n
}

// Digest is a SHA-256 over names, dtypes, shapes and bucket boundaries: equal
// on two ranks exactly when they planned the same messages.
func (p *Plan) Digest() string {
	h := sha256.New()
	for _, it := range p.Params {
		fmt.Fprintf(h, "%q %v %v\n", it.Name, it.DType, it.Shape)
	}
	for i, b := range p.Buckets {
		fmt.Fprintf(h, "bucket %d %v", i, b.DType)
		for _, s := range b.Slots {
			fmt.Fprintf(h, " %d@%d", s.Param, s.Offset)
		}
		fmt.Fprintln(h)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A Span is a run of consecutive elements of one parameter.
type Span struct {
	Param    int
	First    int64 // index of the first element within the parameter
	Elements int64
	Offset   int64 // of the first element within the bucket, in elements
}

// Spans cuts the elements [lo, hi) of the bucket at parameter boundaries.
func (p *Plan) Spans(b Bucket, lo, hi int64) []Span {
	var spans []Span
	i := sort.Search(len(b.Slots), func(i int) bool {
		s := b.Slots[i]
		return s.Offset+p.Params[s.Param].Elements() > lo
	})
	for ; i < len(b.Slots) && b.Slots[i].Offset < hi; i++ {
		s := b.Slots[i]
		first := max(lo-s.Offset, 0)
		last := min(hi-s.Offset, p.Params[s.Param].Elements())
		if last > first {
			spans = append(spans, Span{s.Param, first, last - first, s.Offset + first})
		}
	}
	return spans
}
