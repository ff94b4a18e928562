package cuda

import "fmt"

// DType is the type of a buffer's elements: all those that NCCL has.
type DType uint8

// The zero DType is none of these, so that a buffer nobody made has no type.
const (
	Int8 DType = iota + 1
	Uint8
	Int32
	Uint32
	Int64
	Uint64
	Float16
	Float32
	Float64
	BFloat16
	Float8E4M3
	Float8E5M2
)

var dtypes = [...]struct {
	name string
	size int
}{
	Int8: {"int8", 1}, Uint8: {"uint8", 1}, Int32: {"int32", 4}, Uint32: {"uint32", 4}, Int64: {"int64", 8}, Uint64: {"uint64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8}, BFloat16: {"bfloat16", 2},
	Float8E4M3: {"float8e4m3", 1}, Float8E5M2: {"float8e5m2", 1},
}

// Valid says whether t is one of the declared types.
func (t DType) Valid() bool { return t > 0 && int(t) < len(dtypes) }

// Size returns the bytes of one element, 0 for an invalid type.
func (t DType) Size() int {
	if !t.Valid() {
		return 0
	}
	return dtypes[t].size
}

func (t DType) String() string {
	if !t.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(t))
	}
	return dtypes[t].name
}

// ParseDType finds a type by the name that String gives.
func ParseDType(name string) (DType, error) {
	for i, d := range dtypes {
		if i > 0 && d.name == name {
			return DType(i), nil
		}
	}
	return 0, fmt.Errorf("cuda: no element type is called %q", name)
}
