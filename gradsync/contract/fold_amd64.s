#include "textflag.h"

// The contract's chain, 32 (float64: 16) elements at a time: the sums of four
// vectors stay in Y0..Y3 while every addend is read once, in ascending order;
// then one multiplication, NaN made canonical, one rounding, and a store to
// every destination. Each element keeps to its own lane and no instruction
// fuses, so the bits are those of the portable code.
//
// All four functions have the arguments
//
//	(dsts, addends [][]byte, lo, hi int, scale float)
//
// fold bytes lo to hi, a whole number of steps, and differ in four macros:
// LOAD and ADD of the four vectors at (AX)(SI*1), FINISH, and STORE to them.
//
// R8  first destination's slice header   R9  destinations
// R10 first addend's slice header        R11 addends
// SI, DI  bytes folded, bytes to fold    AX, BX, CX  the current header
// Y14 canonical NaN                      Y15 scale
#define SLICE 24 // bytes of a slice header, which begins with the pointer

#define FOLD(STEP, LOAD, ADD, FINISH, STORE) \
	MOVQ dsts_base+0(FP), R8; \
	MOVQ dsts_len+8(FP), R9; \
	MOVQ addends_base+24(FP), R10; \
	MOVQ addends_len+32(FP), R11; \
	MOVQ lo+48(FP), SI; \
	MOVQ hi+56(FP), DI; \
step: \
	CMPQ SI, DI; \
	JGE  done; \
	MOVQ R10, BX; \
	MOVQ R11, CX; \
	MOVQ (BX), AX; \
	LOAD; \
	JMP  more; \
add: \
	ADDQ $SLICE, BX; \
	MOVQ (BX), AX; \
	ADD; \
more: \
	DECQ CX; \
	JNZ  add; \
	FINISH; \
	MOVQ R8, BX; \
	MOVQ R9, CX; \
store: \
	MOVQ (BX), AX; \
	STORE; \
	ADDQ $SLICE, BX; \
	DECQ CX; \
	JNZ  store; \
	ADDQ $STEP, SI; \
	JMP  step; \
done: \
	VZEROUPPER; \
	RET

// The processor's own prefetchers stop at the end of a page of 4 KiB; past the
// end of a list nothing happens.
#define AHEAD \
	PREFETCHT0 1024(AX)(SI*1); \
	PREFETCHT0 1088(AX)(SI*1)

// Destinations were last read by other processors: PREFETCHW disp(AX)(SI*1),
// which the assembler lacks, takes them back before they are written. It does
// nothing where the processor lacks it.
#define OWN(DISP) BYTE $0x0f; BYTE $0x0d; BYTE $0x8c; BYTE $0x30; LONG $DISP

// Four vectors of 32 bytes.
#define LOAD_WIDE \
	AHEAD; \
	VMOVUPS (AX)(SI*1), Y0; \
	VMOVUPS 32(AX)(SI*1), Y1; \
	VMOVUPS 64(AX)(SI*1), Y2; \
	VMOVUPS 96(AX)(SI*1), Y3

#define STORE_WIDE \
	OWN(2048); \
	OWN(2112); \
	VMOVUPS Y0, (AX)(SI*1); \
	VMOVUPS Y1, 32(AX)(SI*1); \
	VMOVUPS Y2, 64(AX)(SI*1); \
	VMOVUPS Y3, 96(AX)(SI*1)

#define ADD_WIDE(VADD) \
	AHEAD; \
	VADD (AX)(SI*1), Y0, Y0; \
	VADD 32(AX)(SI*1), Y1, Y1; \
	VADD 64(AX)(SI*1), Y2, Y2; \
	VADD 96(AX)(SI*1), Y3, Y3

#define ADD_F32 ADD_WIDE(VADDPS)
#define ADD_F64 ADD_WIDE(VADDPD)

// A NaN is what does not compare with itself (predicate 3, unordered).
#define AVERAGE(VMUL, VCMP, VBLEND, Y, MASK) \
	VMUL   Y15, Y, Y; \
	VCMP   $3, Y, Y, MASK; \
	VBLEND MASK, Y14, Y, Y

#define FINISH_F32 \
	AVERAGE(VMULPS, VCMPPS, VBLENDVPS, Y0, Y4); \
	AVERAGE(VMULPS, VCMPPS, VBLENDVPS, Y1, Y5); \
	AVERAGE(VMULPS, VCMPPS, VBLENDVPS, Y2, Y6); \
	AVERAGE(VMULPS, VCMPPS, VBLENDVPS, Y3, Y7)

#define FINISH_F64 \
	AVERAGE(VMULPD, VCMPPD, VBLENDVPD, Y0, Y4); \
	AVERAGE(VMULPD, VCMPPD, VBLENDVPD, Y1, Y5); \
	AVERAGE(VMULPD, VCMPPD, VBLENDVPD, Y2, Y6); \
	AVERAGE(VMULPD, VCMPPD, VBLENDVPD, Y3, Y7)

// func foldFloat32(dsts, addends [][]byte, lo, hi int, scale float32)
TEXT ·foldFloat32(SB), NOSPLIT, $0-68
	VBROADCASTSS scale+64(FP), Y15
	VBROADCASTSS nan32<>(SB), Y14
	FOLD(128, LOAD_WIDE, ADD_F32, FINISH_F32, STORE_WIDE)

// func foldFloat64(dsts, addends [][]byte, lo, hi int, scale float64)
TEXT ·foldFloat64(SB), NOSPLIT, $0-72
	VBROADCASTSD scale+64(FP), Y15
	VBROADCASTSD nan64<>(SB), Y14
	FOLD(128, LOAD_WIDE, ADD_F64, FINISH_F64, STORE_WIDE)

// Four vectors of 8 values of 16 bits, added as float32.
#define STORE_NARROW \
	VMOVUPS Y0, (AX)(SI*1); \
	VMOVUPS Y2, 32(AX)(SI*1)

#define WIDEN_F16(A, B, C, D) \
	VCVTPH2PS (AX)(SI*1), A; \
	VCVTPH2PS 16(AX)(SI*1), B; \
	VCVTPH2PS 32(AX)(SI*1), C; \
	VCVTPH2PS 48(AX)(SI*1), D

// bfloat16 is the upper half of float32.
#define WIDEN_BF16(A, B, C, D) \
	VPMOVZXWD (AX)(SI*1), A; \
	VPMOVZXWD 16(AX)(SI*1), B; \
	VPMOVZXWD 32(AX)(SI*1), C; \
	VPMOVZXWD 48(AX)(SI*1), D; \
	VPSLLD    $16, A, A; \
	VPSLLD    $16, B, B; \
	VPSLLD    $16, C, C; \
	VPSLLD    $16, D, D

#define ADD_NARROW \
	VADDPS Y4, Y0, Y0; \
	VADDPS Y5, Y1, Y1; \
	VADDPS Y6, Y2, Y2; \
	VADDPS Y7, Y3, Y3

#define LOAD_F16 WIDEN_F16(Y0, Y1, Y2, Y3)
#define LOAD_BF16 WIDEN_BF16(Y0, Y1, Y2, Y3)

#define ADD_F16 \
	WIDEN_F16(Y4, Y5, Y6, Y7); \
	ADD_NARROW

#define ADD_BF16 \
	WIDEN_BF16(Y4, Y5, Y6, Y7); \
	ADD_NARROW

// Rounding control 0 in the instruction is nearest even, whatever MXCSR says.
#define FINISH_F16 \
	FINISH_F32; \
	VCVTPS2PH   $0, Y0, X0; \
	VCVTPS2PH   $0, Y1, X1; \
	VCVTPS2PH   $0, Y2, X2; \
	VCVTPS2PH   $0, Y3, X3; \
	VINSERTI128 $1, X1, Y0, Y0; \
	VINSERTI128 $1, X3, Y2, Y2

// Y = (Y + 0x7fff + (Y>>16 & 1)) >> 16: half a unit up, less the smallest bit
// where the kept part is even. The canonical NaN and infinities come through.
#define ROUND_BF16(Y, T) \
	VPSRLD $16, Y, T; \
	VPAND  Y13, T, T; \
	VPADDD Y12, Y, Y; \
	VPADDD T, Y, Y; \
	VPSRLD $16, Y, Y

// Packing works within halves of 128 bits; VPERMQ puts these in order.
#define FINISH_BF16 \
	FINISH_F32; \
	ROUND_BF16(Y0, Y4); \
	ROUND_BF16(Y1, Y5); \
	ROUND_BF16(Y2, Y6); \
	ROUND_BF16(Y3, Y7); \
	VPACKUSDW Y1, Y0, Y0; \
	VPACKUSDW Y3, Y2, Y2; \
	VPERMQ    $0xd8, Y0, Y0; \
	VPERMQ    $0xd8, Y2, Y2

// func foldFloat16(dsts, addends [][]byte, lo, hi int, scale float32)
TEXT ·foldFloat16(SB), NOSPLIT, $0-68
	VBROADCASTSS scale+64(FP), Y15
	VBROADCASTSS nan32<>(SB), Y14
	FOLD(64, LOAD_F16, ADD_F16, FINISH_F16, STORE_NARROW)

// func foldBFloat16(dsts, addends [][]byte, lo, hi int, scale float32)
TEXT ·foldBFloat16(SB), NOSPLIT, $0-68
	VBROADCASTSS scale+64(FP), Y15
	VBROADCASTSS nan32<>(SB), Y14
	VPCMPEQD     Y13, Y13, Y13
	VPSRLD       $17, Y13, Y12
	VPSRLD       $31, Y13, Y13
	FOLD(64, LOAD_BF16, ADD_BF16, FINISH_BF16, STORE_NARROW)

DATA nan32<>(SB)/4, $0x7fc00000
GLOBL nan32<>(SB), RODATA|NOPTR, $4

DATA nan64<>(SB)/8, $0x7ff8000000000000
GLOBL nan64<>(SB), RODATA|NOPTR, $8

// func hasF16C() bool
TEXT ·hasF16C(SB), NOSPLIT, $0-1
	MOVL $1, AX
	XORL CX, CX
	CPUID
	SHRL $29, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET
