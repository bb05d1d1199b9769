/* SPDX-License-Identifier: MIT */
/*
 * The floating-point mode of a thread: rounding, flushing of subnormals to zero, traps. A program changes it with
 * fesetround or feenableexcept, by writing MXCSR (x86) or FPCR (Arm), or without knowing, by linking with -ffast-math.
 * Results depend on it, bit by bit.
 *
 * Shoal computes in the default mode, the one that every thread has when a program starts, whatever the caller's mode
 * is: to nearest even, subnormals kept, no traps. Each call puts the caller's mode back. Callbacks (hooks, kernels,
 * gradient and meta functions of registered ops, forward functions, recomputed functions, custom gathers and
 * reductions, functions at the end of works, allocators, log functions) run in the mode of the thread that calls them:
 * the application's mode on the application's threads, the default one on threads of the library. Other libraries'
 * threads, those of a BLAS for example, have the mode that they were started in.
 *
 * A kernel of one's own that should give the same bits in every mode computes between these calls, in a function that
 * the compiler cannot inline:
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

/* Sets the default mode. Returns the mode before it, which must be given to shoal_fp_mode_leave. */
SHOAL_API uint64_t shoal_fp_mode_enter(void);

/* Puts back what shoal_fp_mode_enter returned on this thread. Exception flags (fetestexcept) stay raised. */
SHOAL_API void shoal_fp_mode_leave(uint64_t mode);

SHOAL_END_DECLS

#endif
