package fpenv

// MXCSR: all exceptions masked, round to nearest; bits 15 (flush to zero),
// 14..13 (rounding) and 6 (denormals are zero) clear. The low six bits are
// sticky status flags and mean nothing here.
const (
	mxcsrDefault = 0x1f80
	mxcsrStatus  = 0x3f
)

func getMXCSR() uint32
func setMXCSR(v uint32)

func set() bool {
	if getMXCSR()&^mxcsrStatus == mxcsrDefault {
		return false
	}
	setMXCSR(mxcsrDefault)
	return true
}
