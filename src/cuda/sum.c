/* SPDX-License-Identifier: MIT */
/*
 * Sums over dimensions. The dimensions that are kept are turned and merged so that neighbouring threads have
 * neighbouring elements; those that are reduced are merged in their order, which is the order of additions.
 */
#include "cuda/kernels/sum.h"

#include "cuda/divisor.h"
#include "cuda/failure.h"
#include "cuda/launch.h"
#include "cuda/parts.h"
#include "cuda/table.h"
#include "kernel/iterate.h"
#include "tensor/dtype.h"

_Static_assert(SUM_DIMS == SHOAL_MAX_DIMS, "all dimensions of a tensor");

/* A shape with what is reduced of it. */
struct reduction {
    int n_dims;
    const int64_t *shape;
    const bool *is_reduced;
};

/* The dimensions whose is_reduced equals `wanted`: their number, and what `values` has for them. */
static int select_dims(const struct reduction *reduction, const int64_t *values, bool wanted, int64_t *out)
{
    int n_selected = 0;
    for (int i = 0; i < reduction->n_dims; i++) {
        if (reduction->is_reduced[i] == wanted) {
            out[n_selected++] = values[i];
        }
    }
    return n_selected;
}

static void begin_space(struct iterate_space *space, const struct reduction *reduction, bool wanted,
                        const struct kernel_operand *operands, int n_operands, size_t bytes)
{
    int64_t sizes[SHOAL_MAX_DIMS] = {0};
    int64_t strides[SHOAL_MAX_DIMS];
    int n_selected = select_dims(reduction, reduction->shape, wanted, sizes);
    iterate_begin(space, n_selected, sizes);
    for (int k = 0; k < n_operands; k++) {
        (void)select_dims(reduction, operands[k].strides, wanted, strides);
        iterate_add(space, (struct kernel_operand){.data = operands[k].data, .strides = strides}, bytes);
    }
}

static void set_reduced(struct sum_arguments *arguments, const struct iterate_space *reduced)
{
    const int last = reduced->n_dims - 1;
    arguments->n_outer = last;
    arguments->outer_count = 1;
    for (int i = 0; i < last; i++) {
        arguments->outer[i].size = (uint64_t)reduced->shape[i];
        arguments->outer[i].stride = reduced->operands[0].strides[i];
        arguments->outer_count *= (uint64_t)reduced->shape[i];
    }
    arguments->n_rows = (uint64_t)reduced->shape[last];
    arguments->row_stride = reduced->operands[0].strides[last];
}

/* Launching ---------------------------------------------------------------------------------------------- */

static bool is_float(uint32_t dtype)
{
    return dtype == SHOAL_F64 || dtype == SHOAL_F32 || dtype == SHOAL_F16 || dtype == SHOAL_BF16;
}

/* Whether the rows of every sum are vectors one after the other, from a multiple of 16 on. */
static bool is_in_vectors(const struct sum_arguments *arguments)
{
    uint64_t steps = arguments->src;
    for (int i = 0; i < arguments->n_kept; i++) {
        steps |= (uint64_t)arguments->kept[i].src_stride;
    }
    for (int i = 0; i < arguments->n_outer; i++) {
        steps |= (uint64_t)arguments->outer[i].stride;
    }
    return steps % 16 == 0 && arguments->row_stride == (int64_t)arguments->bytes;
}

/* Few sums get small blocks, so that all multiprocessors have some. */
static uint32_t choose_threads(uint32_t count)
{
    uint32_t n_threads = SUM_THREADS;
    while (n_threads > 32 && count / n_threads < cuda_blocks_most()) {
        n_threads /= 2;
    }
    return n_threads;
}

static void launch_part(void *context, const struct iterate_space *part)
{
    struct sum_arguments arguments = *(const struct sum_arguments *)context;
    arguments.src = (uint64_t)(uintptr_t)part->operands[0].data;
    arguments.dst = (uint64_t)(uintptr_t)part->operands[1].data;
    arguments.count = (uint32_t)iterate_count(part->n_dims, part->shape);
    arguments.n_kept = part->n_dims;
    for (int i = 0; i < part->n_dims; i++) {
        struct divisor divisor = divisor_of((uint32_t)part->shape[i]);
        arguments.kept[i] = (struct sum_kept){.size = (uint32_t)part->shape[i],
                                              .magic = divisor.magic,
                                              .shift = divisor.shift,
                                              .src_stride = part->operands[0].strides[i],
                                              .dst_stride = part->operands[1].strides[i]};
    }
    const uint64_t addresses[] = {arguments.src, arguments.dst};
    arguments.is_aligned = parts_are_aligned(addresses, 2, arguments.bytes);
    arguments.is_in_vectors = is_in_vectors(&arguments);
    const bool is_fast = is_float(arguments.dtype) && arguments.is_aligned;
    const uint32_t n_threads = choose_threads(arguments.count);
    cuda_launch(
        is_fast ? CUDA_KERNEL_sum_floats : CUDA_KERNEL_sum_any, &arguments,
        (struct cuda_grid){.n_blocks = parts_divide_up(arguments.count, n_threads), .n_threads = n_threads});
}

/* Nothing was added anywhere: zeros, unless there are no sums either. */
static void store_empty_sums(shoal_dtype dtype, struct kernel_operand dst, const struct reduction *reduction)
{
    int64_t kept_shape[SHOAL_MAX_DIMS];
    for (int i = 0; i < reduction->n_dims; i++) {
        kept_shape[i] = reduction->is_reduced[i] ? 1 : reduction->shape[i];
    }
    cuda_fill_nd(dtype, dst, reduction->n_dims, kept_shape, (struct kernel_scalar){.is_integer = true});
}

shoal_status cuda_sum_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand src, int n_dims,
                         const int64_t *shape, const bool *is_reduced, int64_t divisor)
{
    static const int64_t no_elements[] = {0};
    static const bool none_reduced[] = {false};
    const struct kernel_operand nothing = {.strides = no_elements};
    const struct reduction reduction = {.n_dims = n_dims, .shape = shape, .is_reduced = is_reduced};
    const struct kernel_operand operands[] = {src, dst};
    struct sum_arguments arguments = {
        .divisor = divisor, .dtype = (uint32_t)dtype, .bytes = (uint32_t)dtype_bytes(dtype)};
    struct iterate_space kept;
    struct iterate_space reduced;
    shoal_status status = kernel_sum_nd(dtype, nothing, nothing, 1, no_elements, none_reduced, divisor);
    if (status != SHOAL_OK) {
        return cuda_pass_on(status);
    }
    if (iterate_is_empty(n_dims, shape)) {
        store_empty_sums(dtype, dst, &reduction);
        return SHOAL_OK;
    }
    begin_space(&kept, &reduction, false, operands, 2, arguments.bytes);
    iterate_arrange(&kept);
    begin_space(&reduced, &reduction, true, operands, 1, arguments.bytes);
    iterate_merge(&reduced);
    set_reduced(&arguments, &reduced);
    parts_split(&kept, SUM_MOST, launch_part, &arguments);
    return SHOAL_OK;
}
