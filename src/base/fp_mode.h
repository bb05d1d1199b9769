/* SPDX-License-Identifier: MIT */
/*
 * The floating-point mode of the calling thread: rounding, flushing of subnormals, traps. Applications change it
 * (-ffast-math does at program start), and every bit of a result may depend on it, so code that computes does so
 * between fp_mode_enter and fp_mode_leave:
 *
 *     uint64_t mode = fp_mode_enter();
 *     function(dst, src, count);
 *     fp_mode_leave(mode);
 *
 * The compiler does not know that arithmetic depends on the mode and may move it across both calls. What stands between
 * them is therefore a call that cannot be inlined (through a pointer, or FP_MODE_APART) and that takes its operands
 * from memory or as arguments.
 *
 * In the default mode, which is nearly always, this reads one register twice and writes nothing
 * (docs/design/kernels.md). No callback of the application runs in between: callbacks see the application's mode.
 */
#ifndef BASE_FP_MODE_H
#define BASE_FP_MODE_H

#include <stdbool.h>
#include <stdint.h>

#define FP_MODE_APART __attribute__((noinline))

#if defined(__x86_64__)

/* MXCSR: exception flags below, then DAZ, masks of all exceptions, rounding, FTZ. */
#define FP_MODE_FLAGS 0x3fu
#define FP_MODE_DEFAULT 0x1f80u

static inline uint64_t fp_mode_read(void)
{
    uint32_t word;
    __asm__ volatile("stmxcsr %0" : "=m"(word));
    return word;
}

static inline void fp_mode_write(uint64_t mode)
{
    /* The exceptions that were raised meanwhile stay raised. */
    uint32_t word = (uint32_t)(mode | (fp_mode_read() & FP_MODE_FLAGS));
    __asm__ volatile("ldmxcsr %0" : : "m"(word) : "memory");
}

#elif defined(__aarch64__)

/* FPCR: zero is the default in every field. Exception flags lie elsewhere. */
#define FP_MODE_FLAGS 0u
#define FP_MODE_DEFAULT 0u

static inline uint64_t fp_mode_read(void)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}

static inline void fp_mode_write(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}

#else

/* What C knows of: rounding. */
#include <fenv.h>

#define FP_MODE_FLAGS 0u
#define FP_MODE_DEFAULT ((uint64_t)FE_TONEAREST)

static inline uint64_t fp_mode_read(void)
{
    return (uint64_t)fegetround();
}

static inline void fp_mode_write(uint64_t mode)
{
    (void)fesetround((int)mode);
}

#endif

static inline bool fp_mode_is_default(uint64_t mode)
{
    bool is_default = (mode & ~(uint64_t)FP_MODE_FLAGS) == FP_MODE_DEFAULT;
    return __builtin_expect(is_default, true) != 0;
}

/* The default mode from here on. Returns the mode before, for fp_mode_leave. */
static inline uint64_t fp_mode_enter(void)
{
    uint64_t before = fp_mode_read();
    if (!fp_mode_is_default(before)) {
        fp_mode_write(FP_MODE_DEFAULT);
    }
    return before;
}

static inline void fp_mode_leave(uint64_t before)
{
    if (!fp_mode_is_default(before)) {
        fp_mode_write(before);
    }
}

/* For threads of the library, at their beginning: they inherit the mode of the thread that starts them. */
static inline void fp_mode_set_default(void)
{
    (void)fp_mode_enter();
}

#endif
