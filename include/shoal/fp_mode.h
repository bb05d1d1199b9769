/* SPDX-License-Identifier: MIT */
/*
 * The floating-point mode of a thread: how results are rounded, whether subnormal numbers are flushed to zero, which
 * exceptions trap. The bits of a result depend on it. A program changes it with fesetround or feenableexcept, by
 * writing MXCSR (x86) or FPCR (Arm), or unknowingly by being linked with -ffast-math.
 *
 * Shoal itself needs no such call: it computes in the default mode (round to nearest even, keep subnormals, no traps)
 * whatever the caller's mode is, and each call puts the caller's mode back. Functions of the program that it calls
 * (hooks, kernels and gradients of registered ops, forward functions, custom gathers and reductions, functions at the
 * end of works, allocators, log functions) run in the mode of their thread: the program's own on threads of the
 * program, the default on threads of the library. Threads of other libraries, a BLAS for example, have the mode in
 * which they were started.
 *
 * Use these calls in a kernel of your own that should give the same bits in every mode. What stands between them must
 * be a call that the compiler cannot inline, because it may move arithmetic across them otherwise:
 *
 *     uint64_t mode = shoal_fp_mode_enter();
 *     compute(data, count);
 *     shoal_fp_mode_leave(mode);
 *
 * Ownership: a mode is a number; nothing has to be freed.
 * Threads: any; the mode belongs to the calling thread.
 * Errors: none.
 */
#ifndef SHOAL_FP_MODE_H
#define SHOAL_FP_MODE_H

#include <stdint.h>

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

/* Sets the default mode on the calling thread. Returns the mode before it, to be given to shoal_fp_mode_leave. */
SHOAL_API uint64_t shoal_fp_mode_enter(void);

/* Restores the mode that shoal_fp_mode_enter returned on this thread. Exception flags that were raised in between
   (fetestexcept) stay raised. */
SHOAL_API void shoal_fp_mode_leave(uint64_t mode);

SHOAL_END_DECLS

#endif
