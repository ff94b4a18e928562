package check

import (
	"math"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// Every 16-bit pattern stands for a value whose nearest number is itself.
func TestNearestOfExactValues(t *testing.T) {
	for _, dt := range []contract.DType{contract.Float16, contract.BFloat16} {
		for bits := range uint64(1 << 16) {
			v := value(dt, bits)
			want := bits
			if math.IsNaN(v) {
				want = dt.NaN()
			}
			if got := nearest(dt, v); got != want {
				t.Fatalf("%v: nearest(%g) = %#04x, want %#04x", dt, v, got, want)
			}
		}
	}
}
