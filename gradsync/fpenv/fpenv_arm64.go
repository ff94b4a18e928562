package fpenv

// FPCR: zero is the default. Bit 24 flushes to zero, bits 23..22 choose the
// rounding, bit 19 flushes half-precision values.
const fpcrMode = 1<<24 | 3<<22 | 1<<19

func getFPCR() uint64
func setFPCR(v uint64)

func set() bool {
	v := getFPCR()
	if v&fpcrMode == 0 {
		return false
	}
	setFPCR(v &^ fpcrMode)
	return true
}
