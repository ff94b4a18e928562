package params

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// maxHeader is the longest header that the format's own library reads, in bytes.
const maxHeader = 100_000_000

// tensor is one entry of a header, of any dtype that the format knows.
type tensor struct {
	name, dtype string
	shape       []int64
	begin, end  int64 // byte range in the data, which starts where the header ends
}

// header is a parsed safetensors header.
type header struct {
	tensors  []tensor // in the order of their data
	metadata map[string]string
}

// gradientDTypes are the format's names for the dtypes that a reduction adds.
var gradientDTypes = [...]string{
	contract.Float16: "F16", contract.BFloat16: "BF16", contract.Float32: "F32", contract.Float64: "F64",
}

// gradientDType returns the dtype of the format's name.
func gradientDType(name string) (d contract.DType, ok bool) {
	i := slices.Index(gradientDTypes[:], name)
	return contract.DType(max(i, 0)), i > 0
}

// otherDTypes are the dtypes that the format knows beside those, with their
// size in bits: checkpoints have them, gradients do not.
var otherDTypes = map[string]int64{
	"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"C64": 64,
}

const useGradientDTypes = "gradients are F16, BF16, F32 or F64"

// parseHeader reads a header's JSON and checks that its tensors cover the
// dataBytes bytes that follow it, each byte once.
func parseHeader(b []byte, dataBytes int64) (*header, error) {
	if !bytes.HasPrefix(b, []byte("{")) {
		return nil, &Error{Problem: "the header does not begin with {", Hint: "is it a safetensors file?"}
	}
	s, err := newStrict(b, "header")
	if err != nil {
		return nil, err
	}
	var h header
	err = s.object("the header", func(key string) error {
		if key == metadataKey {
			h.metadata = make(map[string]string)
			return s.object(metadataKey, func(key string) (err error) {
				h.metadata[key], err = s.text(metadataKey + " " + quote(key))
				return err
			})
		}
		t, err := s.tensor(key)
		h.tensors = append(h.tensors, t)
		return in(key, err)
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	// An empty tensor lies at the beginning of the next one; names settle the
	// order of several, so that it does not depend on the header's.
	slices.SortFunc(h.tensors, func(a, b tensor) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	return &h, h.layout(dataBytes)
}

// tensor reads the entry called name and checks it by itself.
func (s *strict) tensor(name string) (tensor, error) {
	t := tensor{name: name}
	var offsets []int64
	err := s.object("the entry", func(key string) (err error) {
		switch key {
		case "dtype":
			t.dtype, err = s.text("dtype")
		case "shape":
			t.shape, err = s.naturals("shape")
		case "data_offsets":
			offsets, err = s.naturals("data_offsets")
		default:
			err = &Error{Problem: "unknown key " + quote(key), Hint: "an entry has dtype, shape and data_offsets"}
		}
		return err
	})
	if err != nil {
		return t, err
	}
	switch {
	case t.dtype == "":
		return t, &Error{Problem: "no dtype", Hint: useGradientDTypes}
	case t.shape == nil:
		return t, &Error{Problem: "no shape", Hint: "an entry has dtype, shape and data_offsets"}
	case offsets == nil:
		return t, &Error{Problem: "no data_offsets", Hint: "an entry has dtype, shape and data_offsets"}
	case len(offsets) != 2:
		return t, &Error{Problem: fmt.Sprintf("data_offsets holds %d numbers, not 2", len(offsets))}
	}
	t.begin, t.end = offsets[0], offsets[1]
	if t.begin > t.end {
		return t, &Error{Problem: fmt.Sprintf("data_offsets [%d %d] end before they begin", t.begin, t.end)}
	}
	return t, t.checkSize()
}

// checkSize holds shape times dtype against the byte range.
func (t *tensor) checkSize() error {
	bits, known := otherDTypes[t.dtype]
	if d, ok := gradientDType(t.dtype); ok {
		bits, known = 8*int64(d.Size()), true
	}
	if !known {
		return &Error{Problem: "unknown dtype " + quote(t.dtype), Hint: useGradientDTypes}
	}
	n, err := elements(t.shape)
	if err != nil {
		return err
	}
	part := n % 8 * bits // bits of the elements beyond whole groups of eight
	if part%8 != 0 {
		return &Error{Problem: fmt.Sprintf("shape %s of %s fills no whole number of bytes", dims(t.shape), t.dtype)}
	}
	want := n/8*bits + part/8
	if got := t.end - t.begin; got != want {
		return &Error{
			Problem: fmt.Sprintf("shape %s of %s takes %d bytes but data_offsets [%d %d] hold %d", dims(t.shape), t.dtype, want, t.begin, t.end, got),
			Hint:    "write the file again",
		}
	}
	return nil
}

// layout checks that the sorted tensors cover the data without gap or overlap.
func (h *header) layout(dataBytes int64) error {
	var pos int64
	for i, t := range h.tensors {
		var problem string
		switch {
		case t.begin == pos:
		case t.end > dataBytes:
			problem = fmt.Sprintf("data_offsets [%d %d] reach beyond the %d bytes of data", t.begin, t.end, dataBytes)
		case t.begin < pos:
			problem = fmt.Sprintf("data_offsets [%d %d] overlap those of %s, which end at %d", t.begin, t.end, quote(h.tensors[i-1].name), pos)
		default:
			problem = fmt.Sprintf("data_offsets [%d %d] leave a gap of %d bytes before them", t.begin, t.end, t.begin-pos)
		}
		if problem != "" {
			return &Error{Tensor: t.name, Problem: problem, Hint: "write the file again"}
		}
		pos = t.end
	}
	switch {
	case pos > dataBytes:
		return &Error{Problem: fmt.Sprintf("truncated: %d bytes of data, but the header describes %d", dataBytes, pos), Hint: "write or copy the file again"}
	case pos < dataBytes:
		return &Error{Problem: fmt.Sprintf("%d bytes follow the last tensor", dataBytes-pos), Hint: "write or copy the file again"}
	}
	return nil
}

// gradients returns the tensors as parameters. A tensor of another dtype is an
// error when skip is nil, and is otherwise left out and its name given to skip.
func (h *header) gradients(skip func(name string)) (List, error) {
	l := make(List, 0, len(h.tensors))
	for _, t := range h.tensors {
		d, ok := gradientDType(t.dtype)
		if ok {
			l = append(l, Param{Name: t.name, DType: d, Shape: t.shape})
		} else if skip != nil {
			skip(t.name)
		} else {
			return nil, &Error{Tensor: t.name, Problem: t.dtype + " is no gradient's dtype", Hint: useGradientDTypes}
		}
	}
	return l, l.Validate()
}
