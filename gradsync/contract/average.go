package contract

import "fmt"

// Average says what becomes of the sum.
type Average uint8

// The averages.
const (
	// Mean multiplies the sum by A(1/W), once, after the chain.
	Mean Average = iota + 1
	// Pre scales each addend by T(1/W), rounded to T, before the chain, as
	// PyTorch DDP does.
	Pre
	// None leaves the sum.
	None
)

var averageNames = [...]string{Mean: "mean", Pre: "pre", None: "none"}

// ParseAverage reads an average by its name: mean, pre or none.
func ParseAverage(s string) (Average, error) {
	for a := Mean; a <= None; a++ {
		if averageNames[a] == s {
			return a, nil
		}
	}
	return 0, fmt.Errorf("unknown average %q; use mean, pre or none", s)
}

func (a Average) String() string {
	if a < Mean || a > None {
		return fmt.Sprintf("Average(%d)", uint8(a))
	}
	return averageNames[a]
}

// MarshalText writes the average's name.
func (a Average) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (a *Average) UnmarshalText(b []byte) (err error) {
	*a, err = ParseAverage(string(b))
	return err
}

// PreScale returns T(1/W), widened.
func PreScale(t DType, world int) float64 { return t.Widen(t.Narrow(1 / float64(world))) }

// MeanScale returns A(1/W), widened.
func MeanScale(t DType, world int) float64 { return PreScale(t.Accumulator(), world) }
