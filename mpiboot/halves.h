//go:build mpi || mpich

// MPI reduction operators for the two 16-bit float types: widen to float32,
// add, round to nearest even. NaN becomes the canonical quiet NaN. Integer
// conversions, so that they need no processor feature.

#ifndef MPIBOOT_HALVES_H
#define MPIBOOT_HALVES_H

#include <mpi.h>
#include <stdint.h>
#include <string.h>

static inline float as_float(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

static inline uint32_t as_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

static inline float from_bfloat16(uint16_t h) { return as_float((uint32_t)h << 16); }

static inline uint16_t to_bfloat16(float f)
{
	uint32_t u = as_bits(f);
	if (f != f)
		return 0x7fc0;
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float from_float16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
	if (exponent == 31)
		return as_float(sign | 0x7f800000 | fraction << 13);
	if (exponent == 0) {
		float f = (float)fraction * 0x1p-24f; // exact, and normal in float32
		return sign ? -f : f;
	}
	return as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

// to_float16 rounds a sum of two float16.
static inline uint16_t to_float16(float f)
{
	uint32_t u = as_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
	if (magnitude > 0x7f800000)
		return 0x7e00;
	if (magnitude >= 0x477ff000) // 65520 and above round to infinity
		return (uint16_t)(sign | 0x7c00);
	if (magnitude >= 0x38800000) // 2^-14 and above: a normal float16
		return (uint16_t)(sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
	// A subnormal counts units of 2^-24, and so does every sum of float16:
	// there is nothing to round.
	return (uint16_t)(sign | (uint32_t)(as_float(magnitude) * 0x1p24f));
}

static void add_bfloat16(void *in, void *inout, int *n, MPI_Datatype *type)
{
	const uint16_t *a = in;
	uint16_t *b = inout;
	(void)type;
	for (int i = 0; i < *n; i++)
		b[i] = to_bfloat16(from_bfloat16(a[i]) + from_bfloat16(b[i]));
}

static void add_float16(void *in, void *inout, int *n, MPI_Datatype *type)
{
	const uint16_t *a = in;
	uint16_t *b = inout;
	(void)type;
	for (int i = 0; i < *n; i++)
		b[i] = to_float16(from_float16(a[i]) + from_float16(b[i]));
}

#endif
