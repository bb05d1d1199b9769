/* SPDX-License-Identifier: MIT */
/* Kernels over lists of pieces: as many pieces in a launch as its arguments have room for. */
#include "cuda/kernels/lists.h"

#include <string.h>

#include "base/error.h"
#include "cuda/failure.h"
#include "cuda/launch.h"
#include "cuda/parts.h"
#include "cuda/services.h"
#include "cuda/table.h"
#include "kernel/squares.h"
#include "tensor/dtype.h"

_Static_assert(sizeof(struct lists_arguments) <= CUDA_ARGUMENT_BYTES, "what a kernel takes");

/* The kernel of an op. One that steps over tiles needs no more blocks than keep the GPU busy. */
static const struct kernel_row {
    enum cuda_kernel kernel;
    bool has_steps;
    uint32_t shared_bytes;
} rows[] = {
    [LISTS_SCALE] = {.kernel = CUDA_KERNEL_lists_change},
    [LISTS_CLAMP] = {.kernel = CUDA_KERNEL_lists_change},
    [LISTS_LARGEST] = {.kernel = CUDA_KERNEL_lists_largest,
                       .has_steps = true,
                       .shared_bytes = LISTS_LARGEST_BYTES},
    [LISTS_MAGNITUDES] = {.kernel = CUDA_KERNEL_lists_powers,
                          .has_steps = true,
                          .shared_bytes = LISTS_BINS_BYTES},
    [LISTS_SQUARES] = {.kernel = CUDA_KERNEL_lists_powers,
                       .has_steps = true,
                       .shared_bytes = LISTS_BINS_BYTES},
};

static void launch(struct lists_arguments *arguments)
{
    const struct kernel_row *row = &rows[arguments->op];
    const uint32_t most = row->has_steps ? cuda_blocks_most() : arguments->n_tiles;
    cuda_launch(row->kernel, arguments,
                (struct cuda_grid){.n_blocks = arguments->n_tiles < most ? arguments->n_tiles : most,
                                   .n_threads = LISTS_THREADS,
                                   .shared_bytes = row->shared_bytes});
    arguments->n_pieces = 0;
    arguments->n_tiles = 0;
}

static void add_piece(struct lists_arguments *arguments, const struct kernel_piece *piece)
{
    const bool is_complex = dtype_kind(piece->dtype) == DTYPE_KIND_COMPLEX;
    const shoal_dtype dtype = !is_complex ? piece->dtype : piece->dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    const uint64_t bytes = dtype_bytes(dtype);
    const uint64_t data = address_number(piece->data);
    uint32_t shift;
    const bool is_aligned = parts_find_shift(&data, 1, bytes, &shift);
    shift = is_aligned ? shift : 0;
    const uint64_t count = is_complex ? 2 * piece->count : piece->count;
    const uint32_t n_tiles = parts_divide_up((count + shift) * bytes, LISTS_TILE_BYTES);
    if (arguments->n_pieces == LISTS_PIECES || n_tiles > LISTS_TILES_MOST - arguments->n_tiles) {
        launch(arguments);
    }
    arguments->pieces[arguments->n_pieces++] = (struct lists_piece){.data = data,
                                                                    .count = count,
                                                                    .first_tile = arguments->n_tiles,
                                                                    .dtype = (uint8_t)dtype,
                                                                    .bytes = (uint8_t)bytes,
                                                                    .shift = (uint8_t)shift,
                                                                    .is_aligned = is_aligned};
    arguments->n_tiles += n_tiles;
}

/* The other members are set. */
static void run(struct lists_arguments *arguments, const struct kernel_piece *pieces, size_t n_pieces)
{
    for (size_t i = 0; i < n_pieces && !cuda_has_failed(); i++) {
        if (pieces[i].count > 0) {
            add_piece(arguments, &pieces[i]);
        }
    }
    if (arguments->n_pieces > 0) {
        launch(arguments);
    }
}

/* Changing elements -------------------------------------------------------------------------------------- */

/* That the CPU's kernel takes the dtypes: calls it without elements. */
static shoal_status check(shoal_status (*call)(const struct kernel_piece *pieces, size_t n_pieces,
                                               double number),
                          const struct kernel_piece *pieces, size_t n_pieces, double number)
{
    for (size_t i = 0; i < n_pieces; i++) {
        const struct kernel_piece empty = {.data = ADDRESS_NONE, .dtype = pieces[i].dtype};
        shoal_status status = call(&empty, 1, number);
        if (status != SHOAL_OK) {
            return cuda_pass_on(status);
        }
    }
    return SHOAL_OK;
}

/* For each dtype of elements: the number rounded to `targets`, as f64. */
static void round_numbers(double *numbers, const shoal_dtype *targets, double number)
{
    for (int dtype = 0; dtype < LISTS_DTYPES; dtype++) {
        unsigned char rounded[sizeof number];
        if (targets[dtype] != 0) {
            kernel_cast(targets[dtype], rounded, SHOAL_F64, &number, 1);
            kernel_cast(SHOAL_F64, &numbers[dtype], targets[dtype], rounded, 1);
        }
    }
}

shoal_status cuda_scale_list(const struct kernel_piece *pieces, size_t n_pieces, double factor)
{
    static const shoal_dtype targets[LISTS_DTYPES] = {
        [SHOAL_F64] = SHOAL_F64, [SHOAL_F32] = SHOAL_F32, [SHOAL_F16] = SHOAL_F32, [SHOAL_BF16] = SHOAL_F32};
    struct lists_arguments arguments = {.op = LISTS_SCALE};
    shoal_status status = check(kernel_scale_list, pieces, n_pieces, factor);
    if (status == SHOAL_OK) {
        round_numbers(arguments.numbers, targets, factor);
        run(&arguments, pieces, n_pieces);
    }
    return status;
}

shoal_status cuda_clamp_list(const struct kernel_piece *pieces, size_t n_pieces, double limit)
{
    static const shoal_dtype targets[LISTS_DTYPES] = {
        [SHOAL_F64] = SHOAL_F64, [SHOAL_F32] = SHOAL_F32, [SHOAL_F16] = SHOAL_F16, [SHOAL_BF16] = SHOAL_BF16};
    struct lists_arguments arguments = {.op = LISTS_CLAMP};
    shoal_status status = check(kernel_clamp_list, pieces, n_pieces, limit);
    if (status == SHOAL_OK) {
        round_numbers(arguments.numbers, targets, limit);
        run(&arguments, pieces, n_pieces);
    }
    return status;
}

/* What is found out ---------------------------------------------------------------------------------------- */

static shoal_status check_largest(const struct kernel_piece *pieces, size_t n_pieces, double number)
{
    (void)number;
    double largest = 0.0;
    return kernel_largest_list(pieces, n_pieces, address_of(&largest));
}

shoal_status cuda_largest_list(const struct kernel_piece *pieces, size_t n_pieces, struct address largest)
{
    struct lists_arguments arguments = {.result = address_number(largest), .op = LISTS_LARGEST};
    shoal_status status = check(check_largest, pieces, n_pieces, 0.0);
    if (status == SHOAL_OK) {
        run(&arguments, pieces, n_pieces);
    }
    return status;
}

static shoal_status check_powers(const struct kernel_piece *pieces, size_t n_pieces, double power)
{
    struct kernel_squares sums;
    kernel_squares_init(&sums);
    return kernel_powers_list(pieces, n_pieces, power, address_of(&sums));
}

/* Other powers are computed by the C library, whose bits a GPU does not have. */
shoal_status cuda_powers_list(const struct kernel_piece *pieces, size_t n_pieces, double power,
                              struct address bins)
{
    struct lists_arguments arguments = {.result = address_number(bins),
                                        .op = power == 2.0 ? LISTS_SQUARES : LISTS_MAGNITUDES};
    const struct lists_carry_arguments carry = {.bins = address_number(bins)};
    shoal_status status = check(check_powers, pieces, n_pieces, power);
    if (status != SHOAL_OK) {
        return status;
    }
    if (power != 1.0 && power != 2.0) {
        return cuda_pass_on(
            error_set(SHOAL_ERR_UNSUPPORTED,
                      "the sum of powers %g is not supported on device %s, only those of 1 and 2", power,
                      cuda_row->name));
    }
    run(&arguments, pieces, n_pieces);
    cuda_launch(
        CUDA_KERNEL_lists_carry, &carry,
        (struct cuda_grid){.n_blocks = 1, .n_threads = LISTS_THREADS, .shared_bytes = LISTS_BINS_BYTES});
    return SHOAL_OK;
}
