//go:build !race && !purego

#include "textflag.h"

// Everything works on float32, eight to a register, four registers (fastStep numbers) a turn.

#define BROADCAST(bits, x, y) \
	MOVL         $bits, AX; \
	VMOVD        AX, x; \
	VPBROADCASTD x, y

// LOAD_* read eight numbers.
#define LOAD_F32(i, y)  VMOVUPS (32*i)(SI), y
#define LOAD_F16(i, y)  VCVTPH2PS (16*i)(SI), y
#define LOAD_BF16(i, y) VPMOVZXWD (16*i)(SI), y; VPSLLD $16, y, y

// STORE_* write the sixteen numbers of two registers and spoil them and Y4, Y5.
#define STORE_F32(i, y, z) \
	VMOVUPS y, (64*i)(DI); \
	VMOVUPS z, (64*i+32)(DI)

#define STORE_F16(i, y, z) \
	VCVTPS2PH $0, y, (32*i)(DI); \
	VCVTPS2PH $0, z, (32*i+16)(DI)

#define STORE_BF16(i, y, z) \
	ROUND_BF16(y); \
	ROUND_BF16(z); \
	VPACKUSDW z, y, y; \
	VPERMQ    $0xd8, y, y; \
	VMOVDQU   y, (32*i)(DI)

// ROUND_BF16 leaves the bits of bf16 in the lower halves, as BF16 does. Y11: abs, Y12: infinity, Y13: 1, Y14: 0x7fff, Y15: 0x40.
#define ROUND_BF16(y) \
	VPAND     Y11, y, Y4; \
	VPCMPGTD  Y12, Y4, Y4; \
	VPSRLD    $16, y, Y5; \
	VPAND     Y13, Y5, Y6; \
	VPADDD    y, Y6, Y6; \
	VPADDD    Y14, Y6, Y6; \
	VPSRLD    $16, Y6, Y6; \
	VPOR      Y15, Y5, Y5; \
	VPBLENDVB Y4, Y5, Y6, y

#define CONSTANTS_BF16 \
	BROADCAST(0x7fffffff, X11, Y11); \
	BROADCAST(0x7f800000, X12, Y12); \
	BROADCAST(1, X13, Y13); \
	BROADCAST(0x7fff, X14, Y14); \
	BROADCAST(0x40, X15, Y15)

#define NO_CONSTANTS

#define CONVERT(constants, LOAD, STORE, from, to) \
	MOVQ dst+0(FP), DI; \
	MOVQ src+8(FP), SI; \
	MOVQ n+16(FP), CX; \
	constants; \
loop: \
	LOAD(0, Y0); \
	LOAD(1, Y1); \
	LOAD(2, Y2); \
	LOAD(3, Y3); \
	STORE(0, Y0, Y1); \
	STORE(1, Y2, Y3); \
	ADDQ $(32*from), SI; \
	ADDQ $(32*to), DI; \
	SUBQ $32, CX; \
	JNE  loop; \
	VZEROUPPER; \
	RET

// CONSTANTS_E4M3 are those of ENCODE and of the packing, and the scale, in Y7.
#define CONSTANTS_E4M3 \
	BROADCAST(0x80000000, X15, Y15); \
	BROADCAST(0x7fffffff, X14, Y14); \
	BROADCAST(0x7f800000, X13, Y13); /* infinity */ \
	BROADCAST(0x43e00000, X12, Y12); /* 448 */ \
	BROADCAST(0x46800000, X11, Y11); /* 2^14, whose steps are those of the subnormals */ \
	BROADCAST(1, X10, Y10); \
	BROADCAST(0xc407ffff, X9, Y9);   /* half a step less one bit, and the exponent's bias */ \
	BROADCAST(0x3c800000, X8, Y8);   /* 2^-6, the least normal number */ \
	VBROADCASTSS s+24(FP), Y7

// ENCODE is E4M3 of eight numbers after OP with the scale, each in the low byte of its lane. It spoils Y4, Y5, Y6. The sign is taken before:
// that of a NaN that OP makes of infinities differs between machines. A NaN saturates as 448 does, 0x7e, and gets one more.
#define ENCODE(OP, y) \
	VPAND     Y15, y, Y4; \
	VPSRLD    $24, Y4, Y4; \
	OP        Y7, y, y; \
	VPAND     Y14, y, y; \
	VPCMPGTD  Y13, y, Y5; \
	VPSUBD    Y5, Y4, Y4; \
	VPMINSD   Y12, y, y; \
	VPSRLD    $20, y, Y5; \
	VPAND     Y10, Y5, Y5; \
	VPADDD    y, Y5, Y5; \
	VPADDD    Y9, Y5, Y5; \
	VPSRLD    $20, Y5, Y5; \
	VADDPS    Y11, y, Y6; \
	VPSUBD    Y11, Y6, Y6; \
	VPCMPGTD  y, Y8, y; \
	VPBLENDVB y, Y6, Y5, y; \
	VPADDD    Y4, y, y

#define TO_E4M3(LOAD, OP, from) \
	MOVQ dst+0(FP), DI; \
	MOVQ src+8(FP), SI; \
	MOVQ n+16(FP), CX; \
	CONSTANTS_E4M3; \
loop: \
	LOAD(0, Y0); \
	LOAD(1, Y1); \
	LOAD(2, Y2); \
	LOAD(3, Y3); \
	ENCODE(OP, Y0); \
	ENCODE(OP, Y1); \
	ENCODE(OP, Y2); \
	ENCODE(OP, Y3); \
	VPACKUSDW Y1, Y0, Y0; \
	VPACKUSDW Y3, Y2, Y2; \
	VPACKUSWB Y2, Y0, Y0; \
	VMOVDQU order<>(SB), Y1; \
	VPERMD    Y0, Y1, Y0; \
	VMOVDQU   Y0, (DI); \
	ADDQ $(32*from), SI; \
	ADDQ $32, DI; \
	SUBQ $32, CX; \
	JNE  loop; \
	VZEROUPPER; \
	RET

// TERM_* read eight numbers of a row.
#define TERM_F32(i, y)  VMOVUPS (32*i)(DX), y
#define TERM_F16(i, y)  VCVTPH2PS (16*i)(DX), y
#define TERM_BF16(i, y) VPMOVZXWD (16*i)(DX), y; VPSLLD $16, y, y

// WEIGH keeps the sums of 32 columns in Y0 .. Y3 while it goes through the rows: each term is read once, each sum once for all rows.
#define WEIGH(TERM, size) \
	MOVQ acc+0(FP), DI; \
	MOVQ rows+8(FP), SI; \
	MOVQ at+16(FP), R8; \
	MOVQ w+24(FP), R9; \
	MOVQ k+32(FP), R10; \
	MOVQ n+40(FP), CX; \
columns: \
	VMOVUPS (DI), Y0; \
	VMOVUPS 32(DI), Y1; \
	VMOVUPS 64(DI), Y2; \
	VMOVUPS 96(DI), Y3; \
	XORQ BX, BX; \
row: \
	MOVQ (R8)(BX*8), DX; \
	VBROADCASTSS (R9)(BX*4), Y8; \
	ADDQ SI, DX; \
	TERM(0, Y4); \
	TERM(1, Y5); \
	TERM(2, Y6); \
	TERM(3, Y7); \
	VMULPS Y8, Y4, Y4; \
	VMULPS Y8, Y5, Y5; \
	VMULPS Y8, Y6, Y6; \
	VMULPS Y8, Y7, Y7; \
	VADDPS Y4, Y0, Y0; \
	VADDPS Y5, Y1, Y1; \
	VADDPS Y6, Y2, Y2; \
	VADDPS Y7, Y3, Y3; \
	INCQ BX; \
	CMPQ BX, R10; \
	JNE  row; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
	VMOVUPS Y2, 64(DI); \
	VMOVUPS Y3, 96(DI); \
	ADDQ $128, DI; \
	ADDQ $(32*size), SI; \
	SUBQ $32, CX; \
	JNE  columns; \
	VZEROUPPER; \
	RET

// LOAD_SUM reads eight sums and makes every NaN the one in Y10. It spoils Y4.
#define LOAD_SUM(i, y) \
	VMOVUPS   (32*i)(SI), y; \
	VCMPPS    $3, y, y, Y4; \
	VBLENDVPS Y4, Y10, y, y

#define CONSTANTS_SUM BROADCAST(0x7fc00000, X10, Y10)

#define CONSTANTS_SUM_BF16 \
	CONSTANTS_SUM; \
	CONSTANTS_BF16

// NUMBER leaves what is not NaN, and zero for what is: whatever is above infinity, in Y14.
#define NUMBER(greater, y, spoiled) \
	greater Y14, y, spoiled; \
	VPANDN  y, spoiled, y

// func f32ToF16(dst, src *byte, n int)
TEXT ·f32ToF16(SB), NOSPLIT, $0-24
	CONVERT(NO_CONSTANTS, LOAD_F32, STORE_F16, 4, 2)

// func f32ToBF16(dst, src *byte, n int)
TEXT ·f32ToBF16(SB), NOSPLIT, $0-24
	CONVERT(CONSTANTS_BF16, LOAD_F32, STORE_BF16, 4, 2)

// func f16ToF32(dst, src *byte, n int)
TEXT ·f16ToF32(SB), NOSPLIT, $0-24
	CONVERT(NO_CONSTANTS, LOAD_F16, STORE_F32, 2, 4)

// func f16ToBF16(dst, src *byte, n int)
TEXT ·f16ToBF16(SB), NOSPLIT, $0-24
	CONVERT(CONSTANTS_BF16, LOAD_F16, STORE_BF16, 2, 2)

// func bf16ToF32(dst, src *byte, n int)
TEXT ·bf16ToF32(SB), NOSPLIT, $0-24
	CONVERT(NO_CONSTANTS, LOAD_BF16, STORE_F32, 2, 4)

// func bf16ToF16(dst, src *byte, n int)
TEXT ·bf16ToF16(SB), NOSPLIT, $0-24
	CONVERT(NO_CONSTANTS, LOAD_BF16, STORE_F16, 2, 2)

// func maxAbs16(src *byte, n int) uint32
TEXT ·maxAbs16(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	BROADCAST(0x7fff7fff, X15, Y15)
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1

loop:
	VPAND   (SI), Y15, Y2
	VPAND   32(SI), Y15, Y3
	VPMAXUW Y2, Y0, Y0
	VPMAXUW Y3, Y1, Y1
	ADDQ $64, SI
	SUBQ $32, CX
	JNE  loop
	VPMAXUW      Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUW      X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPMAXUW      X1, X0, X0
	VPSRLDQ      $4, X0, X1
	VPMAXUW      X1, X0, X0
	VPSRLDQ      $2, X0, X1
	VPMAXUW      X1, X0, X0
	VMOVD        X0, AX
	MOVWLZX      AX, AX
	MOVL         AX, ret+16(FP)
	VZEROUPPER
	RET

// func maxAbs32(src *byte, n int) uint32
TEXT ·maxAbs32(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	BROADCAST(0x7fffffff, X15, Y15)
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1

loop:
	VPAND   (SI), Y15, Y2
	VPAND   32(SI), Y15, Y3
	VPAND   64(SI), Y15, Y4
	VPAND   96(SI), Y15, Y5
	VPMAXUD Y2, Y0, Y0
	VPMAXUD Y3, Y1, Y1
	VPMAXUD Y4, Y0, Y0
	VPMAXUD Y5, Y1, Y1
	ADDQ $128, SI
	SUBQ $32, CX
	JNE  loop
	VPMAXUD      Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD      X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPMAXUD      X1, X0, X0
	VPSRLDQ      $4, X0, X1
	VPMAXUD      X1, X0, X0
	VMOVD        X0, AX
	MOVL         AX, ret+16(FP)
	VZEROUPPER
	RET

// func maxNumber16(src *byte, n int, inf uint32) uint32
TEXT ·maxNumber16(SB), NOSPLIT, $0-28
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	BROADCAST(0x7fff7fff, X15, Y15)
	MOVL inf+16(FP), AX
	VMOVD AX, X14
	VPBROADCASTW X14, Y14
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1

loop:
	VPAND (SI), Y15, Y2
	VPAND 32(SI), Y15, Y3
	NUMBER(VPCMPGTW, Y2, Y4)
	NUMBER(VPCMPGTW, Y3, Y5)
	VPMAXUW Y2, Y0, Y0
	VPMAXUW Y3, Y1, Y1
	ADDQ $64, SI
	SUBQ $32, CX
	JNE  loop
	VPMAXUW      Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUW      X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPMAXUW      X1, X0, X0
	VPSRLDQ      $4, X0, X1
	VPMAXUW      X1, X0, X0
	VPSRLDQ      $2, X0, X1
	VPMAXUW      X1, X0, X0
	VMOVD        X0, AX
	MOVWLZX      AX, AX
	MOVL         AX, ret+24(FP)
	VZEROUPPER
	RET

// func maxNumber32(src *byte, n int) uint32
TEXT ·maxNumber32(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	BROADCAST(0x7fffffff, X15, Y15)
	BROADCAST(0x7f800000, X14, Y14)
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1

loop:
	VPAND (SI), Y15, Y2
	VPAND 32(SI), Y15, Y3
	VPAND 64(SI), Y15, Y4
	VPAND 96(SI), Y15, Y5
	NUMBER(VPCMPGTD, Y2, Y6)
	NUMBER(VPCMPGTD, Y3, Y7)
	NUMBER(VPCMPGTD, Y4, Y8)
	NUMBER(VPCMPGTD, Y5, Y9)
	VPMAXUD Y2, Y0, Y0
	VPMAXUD Y3, Y1, Y1
	VPMAXUD Y4, Y0, Y0
	VPMAXUD Y5, Y1, Y1
	ADDQ $128, SI
	SUBQ $32, CX
	JNE  loop
	VPMAXUD      Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD      X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPMAXUD      X1, X0, X0
	VPSRLDQ      $4, X0, X1
	VPMAXUD      X1, X0, X0
	VMOVD        X0, AX
	MOVL         AX, ret+16(FP)
	VZEROUPPER
	RET

// func weighF32(acc, rows *byte, at *int, w *float32, k, n int)
TEXT ·weighF32(SB), NOSPLIT, $0-48
	WEIGH(TERM_F32, 4)

// func weighF16(acc, rows *byte, at *int, w *float32, k, n int)
TEXT ·weighF16(SB), NOSPLIT, $0-48
	WEIGH(TERM_F16, 2)

// func weighBF16(acc, rows *byte, at *int, w *float32, k, n int)
TEXT ·weighBF16(SB), NOSPLIT, $0-48
	WEIGH(TERM_BF16, 2)

// func sumsToF32(dst, src *byte, n int)
TEXT ·sumsToF32(SB), NOSPLIT, $0-24
	CONVERT(CONSTANTS_SUM, LOAD_SUM, STORE_F32, 4, 4)

// func sumsToF16(dst, src *byte, n int)
TEXT ·sumsToF16(SB), NOSPLIT, $0-24
	CONVERT(CONSTANTS_SUM, LOAD_SUM, STORE_F16, 4, 2)

// func sumsToBF16(dst, src *byte, n int)
TEXT ·sumsToBF16(SB), NOSPLIT, $0-24
	CONVERT(CONSTANTS_SUM_BF16, LOAD_SUM, STORE_BF16, 4, 2)

// The packing works within halves of registers; this puts the groups of four numbers in order.
DATA order<>+0(SB)/4, $0
DATA order<>+4(SB)/4, $4
DATA order<>+8(SB)/4, $1
DATA order<>+12(SB)/4, $5
DATA order<>+16(SB)/4, $2
DATA order<>+20(SB)/4, $6
DATA order<>+24(SB)/4, $3
DATA order<>+28(SB)/4, $7
GLOBL order<>(SB), RODATA|NOPTR, $32

// func divF32(dst, src *byte, n int, s float32)
TEXT ·divF32(SB), NOSPLIT, $0-28
	TO_E4M3(LOAD_F32, VDIVPS, 4)

// func divF16(dst, src *byte, n int, s float32)
TEXT ·divF16(SB), NOSPLIT, $0-28
	TO_E4M3(LOAD_F16, VDIVPS, 2)

// func divBF16(dst, src *byte, n int, s float32)
TEXT ·divBF16(SB), NOSPLIT, $0-28
	TO_E4M3(LOAD_BF16, VDIVPS, 2)

// func mulF32(dst, src *byte, n int, s float32)
TEXT ·mulF32(SB), NOSPLIT, $0-28
	TO_E4M3(LOAD_F32, VMULPS, 4)

// func mulF16(dst, src *byte, n int, s float32)
TEXT ·mulF16(SB), NOSPLIT, $0-28
	TO_E4M3(LOAD_F16, VMULPS, 2)

// func mulBF16(dst, src *byte, n int, s float32)
TEXT ·mulBF16(SB), NOSPLIT, $0-28
	TO_E4M3(LOAD_BF16, VMULPS, 2)

// func hasF16C() bool
TEXT ·hasF16C(SB), NOSPLIT, $0-1
	MOVL $1, AX
	XORL CX, CX
	CPUID
	SHRL $29, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET
