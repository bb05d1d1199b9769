/* SPDX-License-Identifier: MIT */
/*
 * What the sources of kernels (*.cu) are written with. Each is compiled twice: by clang to PTX for a GPU
 * (scripts/make_ptx.sh), and by the C compiler to functions of the host, which a driver for tests calls
 * (tests/fakecuda). So a source uses only what C and CUDA's C++ have in common: no templates, no designated members out of
 * order, no conversion from void * without a cast.
 *
 * The functions of the CPU's kernels on single elements (kernel/element.h, kernel/convert.h, ...) are compiled for the GPU
 * as they are. That is why both give the same bits: division and square root are rounded to nearest, nothing is contracted
 * to fma, subnormals stay.
 *
 *     CUDA_KERNEL(scale, struct scale_arguments, 1)
 *     {
 *         ... a->count, self->thread, PHASE ...
 *     }
 *
 * is a kernel with one struct as its argument, of at most CUDA_ARGUMENT_BYTES. The body is run once per phase by every
 * thread; between two phases all threads of a block meet. What goes from one phase to the next lies in the shared memory
 * of the block, self->shared, whose size is given at the launch and which is not zero at first.
 *
 * Memory of the device is given as numbers, struct members of type uint64_t. DEVICE_POINTER makes a pointer of one.
 */
#ifndef CUDA_KERNELS_TARGET_H
#define CUDA_KERNELS_TARGET_H

#define CUDA_ARGUMENT_BYTES 4000

#ifdef __CUDA__
#define CUDA_SHARED_CODE_BEGIN _Pragma("clang force_cuda_host_device begin")
#define CUDA_SHARED_CODE_END _Pragma("clang force_cuda_host_device end")
#else
#define CUDA_SHARED_CODE_BEGIN
#define CUDA_SHARED_CODE_END
#endif

CUDA_SHARED_CODE_BEGIN
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
CUDA_SHARED_CODE_END

/* A thread of a kernel. */
struct cuda_thread {
    uint32_t thread; /* in its block */
    uint32_t n_threads;
    uint32_t block;
    uint32_t n_blocks;
    unsigned char *shared;
};

#ifdef __CUDA__

#define DEVICE_FUNCTION static inline __attribute__((device, always_inline))
#define DEVICE_POINTER(type, address) ((type *)(address))
#define UNROLLED _Pragma("unroll")
#define NOT_UNROLLED _Pragma("unroll 1")

extern __attribute__((shared)) __attribute__((aligned(16))) unsigned char cuda_shared_bytes[];

#define CUDA_KERNEL(name, type, n_phases)                                                       \
    DEVICE_FUNCTION void body_##name(const type *a, const struct cuda_thread *self, int PHASE); \
    extern "C" __attribute__((global)) void name(const type a)                                  \
    {                                                                                           \
        struct cuda_thread self;                                                                \
        self.thread = (uint32_t)__nvvm_read_ptx_sreg_tid_x();                                   \
        self.n_threads = (uint32_t)__nvvm_read_ptx_sreg_ntid_x();                               \
        self.block = (uint32_t)__nvvm_read_ptx_sreg_ctaid_x();                                  \
        self.n_blocks = (uint32_t)__nvvm_read_ptx_sreg_nctaid_x();                              \
        self.shared = cuda_shared_bytes;                                                        \
        body_##name(&a, &self, 0);                                                              \
        UNROLLED                                                                                \
        for (int phase = 1; phase < (n_phases); phase++) {                                      \
            __nvvm_bar_sync(0);                                                                 \
            body_##name(&a, &self, phase);                                                      \
        }                                                                                       \
    }                                                                                           \
    DEVICE_FUNCTION void body_##name(const type *a, const struct cuda_thread *self, int PHASE)

DEVICE_FUNCTION float device_sqrt_f32(float value)
{
    return __nvvm_sqrt_rn_f(value);
}

DEVICE_FUNCTION double device_sqrt_f64(double value)
{
    return __nvvm_sqrt_rn_d(value);
}

#else

#include <math.h>

#define DEVICE_FUNCTION static inline
/* Where the host reaches memory of the device: at a constant distance. */
extern uint64_t cuda_host_distance;
#define DEVICE_POINTER(type, address) ((type *)(uintptr_t)((address) + cuda_host_distance))
#define UNROLLED
#define NOT_UNROLLED

#define CUDA_KERNEL(name, type, n_phases)                                                    \
    static void body_##name(const type *a, const struct cuda_thread *self, int PHASE);       \
    void cuda_host_##name(const void *arguments, const struct cuda_thread *self, int phase); \
    void cuda_host_##name(const void *arguments, const struct cuda_thread *self, int phase)  \
    {                                                                                        \
        body_##name((const type *)arguments, self, phase);                                   \
    }                                                                                        \
    static void body_##name(const type *a, const struct cuda_thread *self, int PHASE)

DEVICE_FUNCTION float device_sqrt_f32(float value)
{
    return sqrtf(value);
}

DEVICE_FUNCTION double device_sqrt_f64(double value)
{
    return sqrt(value);
}

#endif

/* By many threads at once, in any order. */
DEVICE_FUNCTION void device_add_u64(uint64_t *to, uint64_t value)
{
    (void)__atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

DEVICE_FUNCTION void device_max_u64(uint64_t *to, uint64_t value)
{
    uint64_t known = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (known < value &&
           !__atomic_compare_exchange_n(to, &known, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* The first of the elements that a thread of a grid takes, and the distance to its next one. */
DEVICE_FUNCTION uint64_t device_first(const struct cuda_thread *self)
{
    return (uint64_t)self->block * self->n_threads + self->thread;
}

DEVICE_FUNCTION uint64_t device_step(const struct cuda_thread *self)
{
    return (uint64_t)self->n_blocks * self->n_threads;
}

#endif
