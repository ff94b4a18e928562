package params

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
)

// metadataKey is the header key that holds no tensor.
const metadataKey = "__metadata__"

// maxElements bounds a list: its bytes fit an int64 in every dtype.
const maxElements = math.MaxInt64 / 8

// Param is one parameter, or its gradient: a scalar has no dimensions, a zero
// among them makes it empty.
type Param = plan.Param

// List is a list of parameters, in registration order where that is known.
type List []Param

// Validate reports the first fault of the list: a missing, reserved or repeated
// name, a name that is not UTF-8, no dtype, a negative dimension, more elements
// than an int64 counts the bytes of, or no element at all. Empty parameters and
// scalars are fine.
func (l List) Validate() error {
	seen := make(map[string]int, len(l))
	var total int64
	for i, p := range l {
		switch first, twice := seen[p.Name]; {
		case p.Name == "":
			return &Error{Problem: fmt.Sprintf("parameter %d has an empty name", i), Hint: "name it"}
		case p.Name == metadataKey:
			return &Error{Tensor: p.Name, Problem: "the name is reserved by the safetensors format", Hint: "rename the parameter"}
		case !utf8.ValidString(p.Name):
			return &Error{Tensor: p.Name, Problem: "the name is not valid UTF-8", Hint: "rename the parameter"}
		case twice:
			return &Error{Tensor: p.Name, Problem: fmt.Sprintf("listed twice, as parameter %d and %d", first, i), Hint: "names must be unique"}
		case !p.DType.Valid():
			return &Error{Tensor: p.Name, Problem: "no dtype", Hint: "use float16, bfloat16, float32 or float64"}
		}
		seen[p.Name] = i
		n, err := elements(p.Shape)
		if err != nil {
			err.Tensor = p.Name
			return err
		}
		if total += n; total > maxElements {
			return &Error{Tensor: p.Name, Problem: "more than 2^60 elements up to this parameter", Hint: "check the shapes"}
		}
	}
	if total == 0 {
		return &Error{Problem: fmt.Sprintf("%d parameters with no element", len(l)), Hint: "give at least one parameter that is not empty"}
	}
	return nil
}

// elements multiplies in the order of the dimensions, as the format's own
// library does, so that [2^40, 2^40, 0] overflows here and there alike.
func elements(shape []int64) (int64, *Error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, &Error{Problem: fmt.Sprintf("shape %s has a negative dimension", dims(shape)), Hint: "dimensions count elements"}
		}
		if d > 0 && n > maxElements/d {
			return 0, &Error{Problem: fmt.Sprintf("shape %s has more than 2^60 elements", dims(shape)), Hint: "check the shape"}
		}
		n *= d
	}
	return n, nil
}

// WithDType returns a copy of the list with every parameter in dtype d.
func (l List) WithDType(d contract.DType) List {
	l = slices.Clone(l)
	for i := range l {
		l[i].DType = d
	}
	return l
}

// Elements is the number of elements of all parameters.
func (l List) Elements() (n int64) {
	for _, p := range l {
		n += p.Elements()
	}
	return n
}

// Bytes is the size of all parameters in bytes.
func (l List) Bytes() (n int64) {
	for _, p := range l {
		n += p.Bytes()
	}
	return n
}

// index maps names to positions.
func (l List) index() map[string]int {
	m := make(map[string]int, len(l))
	for i, p := range l {
		m[p.Name] = i
	}
	return m
}

// orderAs returns, for each parameter of order, its position in l. Both must
// hold the same names and shapes. Dtypes are not compared: a list of an order
// commonly states the model's dtype, not that of its gradients.
func (l List) orderAs(order List) ([]int, error) {
	if err := order.Validate(); err != nil {
		return nil, err
	}
	have := l.index()
	perm := make([]int, len(order))
	for i, p := range order {
		j, ok := have[p.Name]
		if !ok {
			return nil, &Error{Tensor: p.Name, Problem: "in the parameter list but not in the file", Hint: "use the list of the same model"}
		}
		if !slices.Equal(p.Shape, l[j].Shape) {
			return nil, &Error{Tensor: p.Name, Problem: fmt.Sprintf("shape %s but the parameter list has %s", dims(l[j].Shape), dims(p.Shape)), Hint: "use the list of the same model"}
		}
		perm[i] = j
	}
	want := order.index()
	for _, p := range l {
		if _, ok := want[p.Name]; !ok {
			return nil, &Error{Tensor: p.Name, Problem: "in the file but not in the parameter list", Hint: "use the list of the same model"}
		}
	}
	return perm, nil
}
