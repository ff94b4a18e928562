#include "textflag.h"

// func Flush()
TEXT ·Flush(SB), NOSPLIT, $8-0
	STMXCSR mode-8(SP)
	ORL $0x8040, mode-8(SP) // flush to zero, denormals are zero
	LDMXCSR mode-8(SP)
	RET
