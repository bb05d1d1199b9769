/* SPDX-License-Identifier: MIT */
/*
 * Copies, casts and fills over any strides. Dimensions are merged as on the CPU. What is then contiguous, or has rows
 * on one side, is a table of items (items.h). Otherwise threads take units: elements that are cast, or as many bytes as
 * lie together on both sides.
 */
#include <string.h>

#include "cuda/divisor.h"
#include "cuda/items.h"
#include "cuda/kernels/copy.h"
#include "cuda/launch.h"
#include "cuda/table.h"
#include "kernel/iterate.h"
#include "tensor/dtype.h"

enum {
    DST,
    SRC
};

/* A dimension is split at multiples of so many units, where a fill begins anew. */
#define SPLIT_UNITS 16

/* A matrix is transposed in tiles if it has so many rows and columns. */
#define TRANSPOSE_LEAST 8

/* What is left after merging. Without a source, dst is filled. */
struct copy {
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    unsigned char fill[16];
    struct iterate_space space;
};

static int64_t stride_of(const struct copy *copy, int operand, int dim)
{
    return operand < copy->space.n_operands ? copy->space.operands[operand].strides[dim] : 0;
}

static uint64_t address_in(const struct copy *copy, int operand)
{
    return operand < copy->space.n_operands ? (uint64_t)(uintptr_t)copy->space.operands[operand].data : 0;
}

/* Of bits: a bool becomes 0 or 1, which is more. */
static bool is_of_bits(const struct copy *copy)
{
    return copy->dst_dtype == copy->src_dtype && copy->dst_dtype != SHOAL_BOOL;
}

/* The elements of the last dimension follow each other. */
static bool has_run(const struct copy *copy, int operand)
{
    int last = copy->space.n_dims - 1;
    shoal_dtype dtype = operand == DST ? copy->dst_dtype : copy->src_dtype;
    return copy->space.shape[last] == 1 || operand >= copy->space.n_operands ||
           stride_of(copy, operand, last) == (int64_t)dtype_bytes(dtype);
}

/* Rows -------------------------------------------------------------------------------------------------- */

/* Rows that follow each other without gaps. */
static bool is_flat(const struct copy *copy, int operand)
{
    shoal_dtype dtype = operand == DST ? copy->dst_dtype : copy->src_dtype;
    return operand >= copy->space.n_operands || copy->space.n_dims == 1 ||
           stride_of(copy, operand, 0) == copy->space.shape[1] * (int64_t)dtype_bytes(dtype);
}

static bool are_rows(const struct copy *copy)
{
    return copy->space.n_dims <= 2 && has_run(copy, DST) && has_run(copy, SRC) &&
           (is_flat(copy, DST) || is_flat(copy, SRC));
}

static void copy_rows(const struct copy *copy)
{
    const struct iterate_space *space = &copy->space;
    uint64_t count = (uint64_t)iterate_count(space->n_dims, space->shape);
    struct items items;
    items_begin(&items);
    items.is_src_in_rows = is_flat(copy, DST);
    items.row_bytes = space->n_dims == 1 ? 0 : (uint64_t)stride_of(copy, items.is_src_in_rows ? SRC : DST, 0);
    memcpy(items.fill, copy->fill, sizeof items.fill);
    items_add(&items, copy->dst_dtype, copy->src_dtype,
              (struct items_part){.dst = address_in(copy, DST),
                                  .src = address_in(copy, SRC),
                                  .n_filled = address_in(copy, SRC) ? count : 0,
                                  .n_elems = count,
                                  .row_elems = (uint64_t)space->shape[space->n_dims - 1]});
    items_end(&items);
}

/* Units ------------------------------------------------------------------------------------------------- */

/* The arguments of a kernel without what depends on the sizes, which may not fit into 32 bits yet. */
struct units {
    enum cuda_kernel kernel;
    struct copy_arguments arguments;
    int64_t sizes[COPY_DIMS];
};

static void set_size(struct copy_dim *dim, int64_t size)
{
    struct divisor divisor = divisor_of((uint32_t)size);
    dim->size = (uint32_t)size;
    dim->magic = divisor.magic;
    dim->shift = divisor.shift;
}

static uint32_t divide_up(int64_t n, int64_t divisor)
{
    return (uint32_t)((n + divisor - 1) / divisor);
}

static void launch_units(const struct units *units, uint32_t n_units)
{
    struct copy_arguments arguments = units->arguments;
    arguments.n_units = n_units;
    for (uint32_t i = 0; i < arguments.n_dims; i++) {
        set_size(&arguments.dims[i], units->sizes[i]);
    }
    cuda_launch(
        units->kernel, &arguments,
        (struct cuda_grid){.n_blocks = divide_up(n_units, COPY_BLOCK_UNITS), .n_threads = COPY_THREADS});
}

/* The dimension along which src has units next to each other, where dst has them so along the last one. -1: there is
   none, or a tile would be mostly empty. */
static int find_rows(const struct units *units)
{
    const struct copy_arguments *arguments = &units->arguments;
    int last = (int)arguments->n_dims - 1;
    if (units->kernel != CUDA_KERNEL_copy_bits || !arguments->src || units->sizes[last] < TRANSPOSE_LEAST ||
        arguments->dims[last].dst_stride != arguments->unit_bytes) {
        return -1;
    }
    for (int i = 0; i < last; i++) {
        if (arguments->dims[i].src_stride == arguments->unit_bytes && units->sizes[i] >= TRANSPOSE_LEAST) {
            return i;
        }
    }
    return -1;
}

static void launch_transposed(const struct units *units, uint32_t rows)
{
    uint32_t columns = units->arguments.n_dims - 1;
    struct transpose_arguments arguments = {.outer = units->arguments};
    uint32_t n_matrices = 1;
    arguments.outer.n_dims = 0;
    for (uint32_t i = 0; i < columns; i++) {
        if (i != rows) {
            struct copy_dim *dim = &arguments.outer.dims[arguments.outer.n_dims++];
            *dim = units->arguments.dims[i];
            set_size(dim, units->sizes[i]);
            n_matrices *= dim->size;
        }
    }
    arguments.dst_row_stride = units->arguments.dims[rows].dst_stride;
    arguments.src_column_stride = units->arguments.dims[columns].src_stride;
    arguments.n_rows = (uint32_t)units->sizes[rows];
    arguments.n_columns = (uint32_t)units->sizes[columns];
    set_size(&arguments.row_tiles, divide_up(units->sizes[rows], TRANSPOSE_SIDE));
    set_size(&arguments.column_tiles, divide_up(units->sizes[columns], TRANSPOSE_SIDE));
    uint32_t tile_bytes = TRANSPOSE_SIDE * TRANSPOSE_ROW_UNITS * units->arguments.unit_bytes;
    cuda_launch(
        CUDA_KERNEL_copy_transposed, &arguments,
        (struct cuda_grid){.n_blocks = n_matrices * arguments.row_tiles.size * arguments.column_tiles.size,
                           .n_threads = COPY_THREADS,
                           .shared_bytes = tile_bytes});
}

static void launch(const struct units *units, uint32_t n_units)
{
    int rows = find_rows(units);
    if (rows >= 0) {
        launch_transposed(units, (uint32_t)rows);
    } else {
        launch_units(units, n_units);
    }
}

/* The largest dimension. A short last one is not split: a fill may put an element together there. */
static uint32_t find_split(const struct units *units)
{
    uint32_t largest = 0;
    for (uint32_t i = 1; i < units->arguments.n_dims; i++) {
        bool is_short = i + 1 == units->arguments.n_dims && units->sizes[i] < 2 * SPLIT_UNITS;
        largest = !is_short && units->sizes[i] > units->sizes[largest] ? i : largest;
    }
    return largest;
}

/* Splits until the units can be counted in 32 bits. */
static void launch_parts(const struct units *units)
{
    int64_t count = iterate_count((int)units->arguments.n_dims, units->sizes);
    if (count <= (int64_t)COPY_UNITS_MOST) {
        launch(units, (uint32_t)count);
        return;
    }
    uint32_t split = find_split(units);
    const struct copy_dim *dim = &units->arguments.dims[split];
    struct units part = *units;
    part.sizes[split] /= 2;
    if (part.sizes[split] >= SPLIT_UNITS) {
        part.sizes[split] -= part.sizes[split] % SPLIT_UNITS;
    }
    launch_parts(&part);
    part.arguments.dst += (uint64_t)(dim->dst_stride * part.sizes[split]);
    part.arguments.src += (uint64_t)(dim->src_stride * part.sizes[split]);
    part.sizes[split] = units->sizes[split] - part.sizes[split];
    launch_parts(&part);
}

static void add_dim(struct units *units, int64_t size, int64_t dst_stride, int64_t src_stride)
{
    uint32_t index = units->arguments.n_dims++;
    units->sizes[index] = size;
    units->arguments.dims[index].dst_stride = dst_stride;
    units->arguments.dims[index].src_stride = src_stride;
}

/* The largest number of bytes, at most those of a vector, that divides all strides, addresses and the run. */
static uint32_t find_unit_bytes(const struct units *units, int64_t run_bytes)
{
    uint64_t together =
        units->arguments.dst | units->arguments.src | (uint64_t)run_bytes | sizeof units->arguments.fill;
    for (uint32_t i = 0; i < units->arguments.n_dims; i++) {
        together |=
            (uint64_t)units->arguments.dims[i].dst_stride | (uint64_t)units->arguments.dims[i].src_stride;
    }
    return (uint32_t)(together & -together);
}

/* A run of bytes that both sides have in one piece, one element at least, is the last dimension. */
static void copy_bits(struct units *units, const struct copy *copy)
{
    int64_t run_bytes = (int64_t)dtype_bytes(copy->dst_dtype);
    if (has_run(copy, DST) && has_run(copy, SRC)) {
        run_bytes *= units->sizes[--units->arguments.n_dims];
    }
    uint32_t unit_bytes = find_unit_bytes(units, run_bytes);
    bool is_filled = copy->space.n_operands == 1;
    if (run_bytes > unit_bytes || units->arguments.n_dims == 0) {
        add_dim(units, run_bytes / unit_bytes, unit_bytes, is_filled ? 0 : unit_bytes);
    }
    units->kernel = CUDA_KERNEL_copy_bits;
    units->arguments.unit_bytes = unit_bytes;
    memcpy(units->arguments.fill, copy->fill, sizeof copy->fill);
    launch_parts(units);
}

static void copy_units(const struct copy *copy)
{
    struct units units = {.kernel = CUDA_KERNEL_copy_elements};
    units.arguments.dst = address_in(copy, DST);
    units.arguments.src = address_in(copy, SRC);
    units.arguments.dst_dtype = (uint16_t)copy->dst_dtype;
    units.arguments.src_dtype = (uint16_t)copy->src_dtype;
    for (int i = 0; i < copy->space.n_dims; i++) {
        add_dim(&units, copy->space.shape[i], stride_of(copy, DST, i), stride_of(copy, SRC, i));
    }
    if (is_of_bits(copy)) {
        copy_bits(&units, copy);
    } else {
        launch_parts(&units);
    }
}

/* The kernels ------------------------------------------------------------------------------------------- */

static void copy_space(struct copy *copy)
{
    iterate_arrange(&copy->space);
    if (are_rows(copy)) {
        copy_rows(copy);
    } else {
        copy_units(copy);
    }
}

void cuda_copy_nd(shoal_dtype dst_dtype, struct kernel_operand dst, shoal_dtype src_dtype,
                  struct kernel_operand src, int n_dims, const int64_t *shape)
{
    struct copy copy = {.dst_dtype = dst_dtype, .src_dtype = src_dtype};
    if (iterate_is_empty(n_dims, shape)) {
        return;
    }
    iterate_begin(&copy.space, n_dims, shape);
    iterate_add(&copy.space, dst, dtype_bytes(dst_dtype));
    iterate_add(&copy.space, src, dtype_bytes(src_dtype));
    copy_space(&copy);
}

void cuda_fill_nd(shoal_dtype dtype, struct kernel_operand dst, int n_dims, const int64_t *shape,
                  struct kernel_scalar value)
{
    /* The element is 0 or 1 already: bool needs no normalizing, and is copied as a byte. */
    shoal_dtype moved = dtype == SHOAL_BOOL ? SHOAL_U8 : dtype;
    struct copy copy = {.dst_dtype = moved, .src_dtype = moved};
    size_t bytes = dtype_bytes(dtype);
    if (iterate_is_empty(n_dims, shape)) {
        return;
    }
    for (size_t i = 0; i < sizeof copy.fill; i += bytes) {
        kernel_scalar_store(dtype, copy.fill + i, value);
    }
    iterate_begin(&copy.space, n_dims, shape);
    iterate_add(&copy.space, dst, bytes);
    copy_space(&copy);
}
