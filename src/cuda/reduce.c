/* SPDX-License-Identifier: MIT */
/* Reducing over sources. Sums and averages of floats go to a kernel that takes vectors, if all addresses begin
   alike. */
#include "cuda/kernels/reduce.h"

#include <string.h>

#include "base/try.h"
#include "cuda/failure.h"
#include "cuda/launch.h"
#include "cuda/parts.h"
#include "cuda/table.h"
#include "tensor/dtype.h"

_Static_assert(sizeof(struct reduce_arguments) <= CUDA_ARGUMENT_BYTES, "what a kernel takes");

/* The kernel, and what it needs to know of addresses. */
static enum cuda_kernel choose(struct reduce_arguments *arguments, const void *const *srcs)
{
    const uint64_t bytes = arguments->bytes;
    bool can_be_dense =
        (arguments->op == SHOAL_SUM || arguments->op == SHOAL_AVG) &&
        (arguments->dtype == SHOAL_F32 || arguments->dtype == SHOAL_F16 || arguments->dtype == SHOAL_BF16);
    arguments->is_aligned = arguments->dst % bytes == 0;
    for (uint32_t i = 0; i < arguments->n_srcs; i++) {
        const uint64_t pair[] = {arguments->dst, (uint64_t)(uintptr_t)srcs[i]};
        arguments->is_aligned = arguments->is_aligned && pair[1] % bytes == 0;
        can_be_dense = can_be_dense && parts_find_shift(pair, 2, bytes, &arguments->shift);
    }
    return can_be_dense ? CUDA_KERNEL_reduce_dense : CUDA_KERNEL_reduce_any;
}

static void launch_parts(struct reduce_arguments *arguments, enum cuda_kernel kernel, uint64_t count)
{
    const uint64_t dst = arguments->dst;
    const uint64_t n_lanes = kernel == CUDA_KERNEL_reduce_dense ? 16 / arguments->bytes : 1;
    for (uint64_t done = 0; done < count; done += REDUCE_MOST) {
        arguments->offset = done * arguments->bytes;
        arguments->dst = dst + arguments->offset;
        arguments->count = (uint32_t)(count - done < REDUCE_MOST ? count - done : REDUCE_MOST);
        uint32_t n_vectors = parts_divide_up((uint64_t)arguments->count + arguments->shift, n_lanes);
        cuda_launch(kernel, arguments,
                    (struct cuda_grid){.n_blocks = parts_divide_up(n_vectors, REDUCE_THREADS),
                                       .n_threads = REDUCE_THREADS});
    }
}

shoal_status cuda_reduce(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *const *srcs,
                         size_t n_srcs, size_t count, double factor)
{
    shoal_status status = kernel_reduce_check(op, dtype);
    if (status != SHOAL_OK) {
        return cuda_pass_on(status);
    }
    if (count == 0 || cuda_has_failed()) {
        return SHOAL_OK;
    }
    if (dtype_kind(dtype) == DTYPE_KIND_COMPLEX) {
        dtype = dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
        count *= 2;
    }
    if (dtype == SHOAL_BOOL && op == SHOAL_SUM) {
        op = SHOAL_BOR; /* 1 + 1 is 1 */
    }
    struct reduce_arguments arguments = {.dst = (uint64_t)(uintptr_t)dst,
                                         .factor = factor,
                                         .n_srcs = (uint32_t)n_srcs,
                                         .op = (uint32_t)op,
                                         .dtype = (uint32_t)dtype,
                                         .bytes = (uint32_t)dtype_bytes(dtype)};
    if (n_srcs > REDUCE_SOURCES) {
        arguments.table = cuda_stage(srcs, n_srcs * sizeof srcs[0]);
        if (arguments.table == 0) {
            TRY(cuda_failure());
            return SHOAL_ERR_NO_MEMORY;
        }
    } else {
        memcpy(arguments.srcs, srcs, n_srcs * sizeof srcs[0]);
    }
    enum cuda_kernel kernel = choose(&arguments, srcs);
    arguments.shift = kernel == CUDA_KERNEL_reduce_dense ? arguments.shift : 0;
    launch_parts(&arguments, kernel, count);
    if (arguments.table != 0) {
        cuda_unstage(arguments.table);
    }
    return SHOAL_OK;
}
