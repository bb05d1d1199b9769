/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic element by element. Dimensions are merged as on the CPU. Contiguous floats go to a kernel that takes
 * vectors, everything else to one that takes any strides.
 */
#include "cuda/kernels/elements.h"

#include <string.h>

#include "cuda/divisor.h"
#include "cuda/failure.h"
#include "cuda/launch.h"
#include "cuda/parts.h"
#include "cuda/table.h"
#include "kernel/iterate.h"
#include "tensor/dtype.h"

_Static_assert(ELEMENTS_DIMS == SHOAL_MAX_DIMS, "all dimensions of a tensor");

static const int64_t no_elements[] = {0};
static const struct kernel_operand nothing = {.strides = no_elements};

/* Shapes ------------------------------------------------------------------------------------------------- */

/* Except in quotients, a signed integer has the bits of the unsigned one of its size. */
static shoal_dtype computed_dtype(uint32_t op, shoal_dtype dtype)
{
    static const shoal_dtype unsigned_dtypes[DTYPE_COUNT] = {
        [SHOAL_I8] = SHOAL_U8, [SHOAL_I16] = SHOAL_U16, [SHOAL_I32] = SHOAL_U32, [SHOAL_I64] = SHOAL_U64};
    return op != KERNEL_DIV && dtype_kind(dtype) == DTYPE_KIND_SIGNED ? unsigned_dtypes[dtype] : dtype;
}

static bool has_vectors(uint32_t dtype)
{
    return dtype == SHOAL_F64 || dtype == SHOAL_F32 || dtype == SHOAL_F16 || dtype == SHOAL_BF16;
}

/* Chooses elements_dense if it can do the part, and sets what only that needs. */
static bool make_dense(struct elements_arguments *arguments, const struct iterate_space *part)
{
    const int64_t bytes = arguments->bytes;
    const bool is_single =
        arguments->second == ELEMENTS_ARRAY && part->n_dims == 1 && part->operands[2].strides[0] == 0;
    const bool has_array = arguments->second == ELEMENTS_ARRAY && !is_single;
    const uint64_t addresses[] = {arguments->dst, arguments->a, arguments->b};
    if (!has_vectors(arguments->dtype) || part->n_dims != 1 || !arguments->is_aligned) {
        return false;
    }
    for (int k = 0; k < (has_array ? 3 : 2); k++) {
        if (part->operands[k].strides[0] != bytes) {
            return false;
        }
    }
    if (!parts_find_shift(addresses, has_array ? 3 : 2, (uint64_t)bytes, &arguments->shift)) {
        return false;
    }
    arguments->second = is_single ? ELEMENTS_SINGLE : arguments->second;
    return true;
}

static void set_dims(struct elements_arguments *arguments, const struct iterate_space *part)
{
    arguments->n_dims = part->n_dims;
    for (int i = 0; i < part->n_dims; i++) {
        struct divisor divisor = divisor_of((uint32_t)part->shape[i]);
        struct elements_dim *dim = &arguments->dims[i];
        *dim = (struct elements_dim){
            .size = (uint32_t)part->shape[i], .magic = divisor.magic, .shift = divisor.shift};
        for (int k = 0; k < part->n_operands; k++) {
            dim->strides[k] = part->operands[k].strides[i];
        }
    }
}

static void launch_part(void *context, const struct iterate_space *part)
{
    struct elements_arguments arguments = *(const struct elements_arguments *)context;
    const int last = part->n_operands - 1;
    const uint64_t addresses[] = {(uint64_t)(uintptr_t)part->operands[0].data,
                                  (uint64_t)(uintptr_t)part->operands[1].data,
                                  (uint64_t)(uintptr_t)part->operands[last].data};
    arguments.dst = addresses[0];
    arguments.a = addresses[1];
    arguments.b = addresses[2];
    arguments.count = (uint32_t)iterate_count(part->n_dims, part->shape);
    arguments.is_aligned = parts_are_aligned(addresses, 3, arguments.bytes);
    if (make_dense(&arguments, part)) {
        const uint64_t n_lanes = 16 / arguments.bytes;
        uint32_t n_vectors = parts_divide_up((uint64_t)arguments.count + arguments.shift, n_lanes);
        cuda_launch(CUDA_KERNEL_elements_dense, &arguments,
                    (struct cuda_grid){.n_blocks = parts_divide_up(n_vectors, ELEMENTS_THREADS),
                                       .n_threads = ELEMENTS_THREADS});
        return;
    }
    set_dims(&arguments, part);
    cuda_launch(
        CUDA_KERNEL_elements_any, &arguments,
        (struct cuda_grid){.n_blocks = parts_divide_up(arguments.count, ELEMENTS_THREADS * ELEMENTS_EACH),
                           .n_threads = ELEMENTS_THREADS});
}

/* Operands: dst, a and, if that is an array, b. */
static void run(uint32_t op, shoal_dtype dtype, const struct kernel_operand *operands, int n_operands,
                int n_dims, const int64_t *shape, const uint32_t *number)
{
    struct elements_arguments arguments = {.op = op,
                                           .dtype = (uint32_t)computed_dtype(op, dtype),
                                           .bytes = (uint32_t)dtype_bytes(dtype),
                                           .second = n_operands == 3 ? ELEMENTS_ARRAY : ELEMENTS_NUMBER};
    struct iterate_space space;
    if (iterate_is_empty(n_dims, shape) || cuda_has_failed()) {
        return;
    }
    if (number) {
        memcpy(arguments.number, number, sizeof arguments.number);
    }
    iterate_begin(&space, n_dims, shape);
    for (int k = 0; k < n_operands; k++) {
        iterate_add(&space, operands[k], arguments.bytes);
    }
    iterate_arrange(&space);
    parts_split(&space, ELEMENTS_MOST, launch_part, &arguments);
}

/* The calls ---------------------------------------------------------------------------------------------- */

shoal_status cuda_binary_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                            struct kernel_operand a, struct kernel_operand b, int n_dims,
                            const int64_t *shape)
{
    const struct kernel_operand operands[] = {dst, a, b};
    shoal_status status = kernel_binary_nd(op, dtype, nothing, nothing, nothing, 1, no_elements);
    if (status != SHOAL_OK) {
        return cuda_pass_on(status);
    }
    run(op, dtype, operands, 3, n_dims, shape, NULL);
    return SHOAL_OK;
}

/* A number as the kernels take it: of a dtype, in the type that is computed in. */
static void widen_number(shoal_dtype dtype, struct kernel_scalar number, uint32_t *words)
{
    unsigned char element[16] = {0};
    memset(words, 0, 4 * sizeof words[0]);
    kernel_scalar_store(dtype, element, number);
    kernel_cast(dtype_rows[dtype].accumulation, words, dtype, element, 1);
}

shoal_status cuda_number_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                            struct kernel_operand a, struct kernel_scalar number, int n_dims,
                            const int64_t *shape)
{
    const struct kernel_operand operands[] = {dst, a};
    uint32_t words[4];
    shoal_status status = kernel_binary_nd(op, dtype, nothing, nothing, nothing, 1, no_elements);
    if (status != SHOAL_OK) {
        return cuda_pass_on(status);
    }
    widen_number(dtype, number, words);
    run(op, dtype, operands, 2, n_dims, shape, words);
    return SHOAL_OK;
}

shoal_status cuda_negate_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand a, int n_dims,
                            const int64_t *shape)
{
    const struct kernel_operand operands[] = {dst, a};
    shoal_status status = kernel_negate_nd(dtype, nothing, nothing, 1, no_elements);
    if (status != SHOAL_OK) {
        return cuda_pass_on(status);
    }
    run(ELEMENTS_NEGATE, dtype, operands, 2, n_dims, shape, NULL);
    return SHOAL_OK;
}

/* f16 and bf16 are divided in f32, by a number of f32. */
void cuda_divide(shoal_dtype dtype, struct address data, size_t count, double divisor)
{
    const int64_t shape[] = {(int64_t)count};
    const int64_t strides[] = {1};
    const struct kernel_operand operand = {.data = data, .strides = strides};
    const struct kernel_operand operands[] = {operand, operand};
    uint32_t words[4];
    if (divisor == 1.0 || count == 0) {
        return;
    }
    widen_number(dtype == SHOAL_F16 || dtype == SHOAL_BF16 ? SHOAL_F32 : dtype,
                 (struct kernel_scalar){.real = divisor}, words);
    run(KERNEL_DIV, dtype, operands, 2, 1, shape, words);
}

void cuda_where_equal(shoal_dtype dtype, struct address dst, struct address src, struct address a,
                      struct address b, size_t count)
{
    const uint64_t bytes = dtype_bytes(dtype);
    const uint64_t addresses[] = {address_number(dst), address_number(src), address_number(a),
                                  address_number(b)};
    const bool is_aligned = parts_are_aligned(addresses, 4, bytes);
    for (size_t done = 0; done < count; done += ELEMENTS_MOST) {
        uint64_t left = count - done;
        struct elements_where_arguments arguments = {
            .dst = addresses[0] + done * bytes,
            .src = addresses[1] + done * bytes,
            .a = addresses[2] + done * bytes,
            .b = addresses[3] + done * bytes,
            .count = (uint32_t)(left < ELEMENTS_MOST ? left : ELEMENTS_MOST),
            .dtype = (uint32_t)dtype,
            .bytes = (uint32_t)bytes,
            .is_aligned = is_aligned};
        uint32_t n_blocks = parts_divide_up(arguments.count, ELEMENTS_THREADS * ELEMENTS_EACH);
        cuda_launch(CUDA_KERNEL_elements_where, &arguments,
                    (struct cuda_grid){.n_blocks = n_blocks, .n_threads = ELEMENTS_THREADS});
    }
}
