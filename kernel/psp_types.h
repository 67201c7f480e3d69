/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the engine needs from its surroundings: fixed-width integers and 64-bit division, in the kernel or outside.
 */
#ifndef PSP_TYPES_H
#define PSP_TYPES_H

#ifdef __KERNEL__
#include <linux/math64.h>
#include <linux/types.h>
#define PSP_DIV(n, d) div64_u64((n), (d))
#define PSP_DIV_REM(n, d, rem) div64_u64_rem((n), (d), (rem))
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;
static inline u64 psp_div_rem(u64 n, u64 d, u64 *rem)
{
	*rem = n % d;
	return n / d;
}

#define PSP_DIV(n, d) ((n) / (d))
#define PSP_DIV_REM(n, d, rem) psp_div_rem((n), (d), (rem))
#endif

#define PSP_U64_MAX (~(u64)0)

#endif
