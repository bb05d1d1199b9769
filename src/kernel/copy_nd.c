/* SPDX-License-Identifier: MIT */
/*
 * kernel_copy_nd: copies and casts between any two layouts. Equal dtypes are moved by the size of an element
 * alone; a short inner run that both sides hold in one piece counts as one larger element. Where the two
 * sides disagree about the innermost dimension the move is a transpose, done tile by tile so that every
 * cache line is read and written once. Casts gather a run, cast it in one piece, and scatter it.
 */
#include "kernel/element.h"
#include "kernel/iterate.h"
#include "kernel/kernel.h"

#include <string.h>

enum {
    RUN_ELEMS = 256,
    MAX_ELEMENT_BYTES = 16
};

/* What one move of so many bytes carries, at any alignment, whatever the memory holds. */
typedef uint8_t move_1 __attribute__((aligned(1), may_alias));
typedef uint16_t move_2 __attribute__((aligned(1), may_alias));
typedef uint32_t move_4 __attribute__((aligned(1), may_alias));
typedef uint64_t move_8 __attribute__((aligned(1), may_alias));
typedef struct {
    uint64_t low;
    uint64_t high;
} __attribute__((packed, may_alias)) move_16;

/* A run of elements on both sides, strides in bytes. */
struct line {
    char *dst;
    const char *src;
    int64_t dst_stride;
    int64_t src_stride;
    int64_t count;
};

/* Rows are one element apart in src, columns one element apart in dst. */
struct plane {
    char *dst;
    const char *src;
    int64_t dst_row_bytes;
    int64_t src_column_bytes;
    int64_t n_rows;
    int64_t n_columns;
};

/* Moves: one set per element size ---------------------------------------------------------------------- */

/*
 * A tile has a cache line of columns, at least eight, so that every line of dst is written whole; and several
 * lines of rows, because the places it reads in src are far from each other.
 */
#define TILE_COLUMNS(bytes) (64 / (bytes) > 8 ? 64 / (bytes) : 8)
#define TILE_ROWS(bytes) (4 * TILE_COLUMNS(bytes))

#define MOVE(bytes)                                                                                      \
    _Static_assert(sizeof(move_##bytes) == (bytes), "moves so many bytes");                              \
                                                                                                         \
    static void move_line_##bytes(struct line line)                                                      \
    {                                                                                                    \
        move_##bytes *to = (void *)line.dst;                                                             \
        if (line.dst_stride == (bytes) && line.src_stride == 0) {                                        \
            move_##bytes value = *(const move_##bytes *)line.src;                                        \
            for (int64_t i = 0; i < line.count; i++) {                                                   \
                to[i] = value;                                                                           \
            }                                                                                            \
            return;                                                                                      \
        }                                                                                                \
        for (int64_t i = 0; i < line.count; i++) {                                                       \
            *(move_##bytes *)line.dst = *(const move_##bytes *)line.src;                                 \
            line.dst += line.dst_stride;                                                                 \
            line.src += line.src_stride;                                                                 \
        }                                                                                                \
    }                                                                                                    \
                                                                                                         \
    static inline void transpose_tile_##bytes(struct plane plane, int64_t n_rows, int64_t n_columns)     \
    {                                                                                                    \
        move_##bytes tile[TILE_COLUMNS(bytes)][TILE_ROWS(bytes)];                                        \
        for (int64_t column = 0; column < n_columns; column++) {                                         \
            memcpy(tile[column], plane.src + column * plane.src_column_bytes, (size_t)n_rows * (bytes)); \
        }                                                                                                \
        for (int64_t row = 0; row < n_rows; row++) {                                                     \
            move_##bytes *to = (void *)(plane.dst + row * plane.dst_row_bytes);                          \
            for (int64_t column = 0; column < n_columns; column++) {                                     \
                to[column] = tile[column][row];                                                          \
            }                                                                                            \
        }                                                                                                \
    }                                                                                                    \
                                                                                                         \
    static void transpose_##bytes(struct plane plane)                                                    \
    {                                                                                                    \
        const int64_t max_rows = TILE_ROWS(bytes);                                                       \
        const int64_t max_columns = TILE_COLUMNS(bytes);                                                 \
        for (int64_t row = 0; row < plane.n_rows; row += max_rows) {                                     \
            for (int64_t column = 0; column < plane.n_columns; column += max_columns) {                  \
                struct plane tile = plane;                                                               \
                tile.dst += row * plane.dst_row_bytes + column * (bytes);                                \
                tile.src += row * (bytes) + column * plane.src_column_bytes;                             \
                int64_t n_rows = plane.n_rows - row;                                                     \
                int64_t n_columns = plane.n_columns - column;                                            \
                if (n_rows >= max_rows && n_columns >= max_columns) {                                    \
                    transpose_tile_##bytes(tile, max_rows, max_columns);                                 \
                } else {                                                                                 \
                    transpose_tile_##bytes(tile, n_rows < max_rows ? n_rows : max_rows,                  \
                                           n_columns < max_columns ? n_columns : max_columns);           \
                }                                                                                        \
            }                                                                                            \
        }                                                                                                \
    }
MOVE(1)
MOVE(2)
MOVE(4)
MOVE(8)
MOVE(16)

struct move_set {
    void (*move_line)(struct line line);
    void (*transpose)(struct plane plane);
};

/* By element size; the others have none. */
static const struct move_set move_sets[MAX_ELEMENT_BYTES + 1] = {
    [1] = {.move_line = move_line_1, .transpose = transpose_1},
    [2] = {.move_line = move_line_2, .transpose = transpose_2},
    [4] = {.move_line = move_line_4, .transpose = transpose_4},
    [8] = {.move_line = move_line_8, .transpose = transpose_8},
    [16] = {.move_line = move_line_16, .transpose = transpose_16},
};

/* Copying ---------------------------------------------------------------------------------------------- */

static int64_t last_stride(const struct iterate_space *space, int operand)
{
    return space->operands[operand].strides[space->n_dims - 1];
}

/* Both sides hold the last dimension in one piece. */
static bool has_runs(const struct iterate_space *space, int64_t dst_bytes, int64_t src_bytes)
{
    return last_stride(space, 0) == dst_bytes && last_stride(space, 1) == src_bytes;
}

static void copy_runs(struct iterate_space *space, int64_t run_bytes)
{
    do {
        kernel_copy(space->operands[0].data, space->operands[1].data, (size_t)run_bytes);
    } while (iterate_next(space, 1));
}

/* The dimension that src holds in one piece while dst holds the last one so; -1 when it is not like that. */
static int find_transposed_dim(const struct iterate_space *space, int64_t bytes)
{
    if (last_stride(space, 0) != bytes) {
        return -1;
    }
    for (int i = 0; i < space->n_dims - 1; i++) {
        if (space->operands[1].strides[i] == bytes) {
            return i;
        }
    }
    return -1;
}

static void move_transposed(struct iterate_space *space, int row_dim, const struct move_set *set)
{
    int column_dim = space->n_dims - 1;
    struct plane plane = {.dst_row_bytes = space->operands[0].strides[row_dim],
                          .src_column_bytes = space->operands[1].strides[column_dim],
                          .n_rows = space->shape[row_dim],
                          .n_columns = space->shape[column_dim]};
    /* The walk is over the other dimensions. */
    space->shape[row_dim] = 1;
    do {
        plane.dst = space->operands[0].data;
        plane.src = space->operands[1].data;
        set->transpose(plane);
    } while (iterate_next(space, 1));
}

static void move_lines(struct iterate_space *space, const struct move_set *set)
{
    struct line line = {.dst_stride = last_stride(space, 0),
                        .src_stride = last_stride(space, 1),
                        .count = space->shape[space->n_dims - 1]};
    do {
        line.dst = space->operands[0].data;
        line.src = space->operands[1].data;
        set->move_line(line);
    } while (iterate_next(space, 1));
}

static void move_space(struct iterate_space *space, int64_t bytes)
{
    if (has_runs(space, bytes, bytes)) {
        int64_t run_bytes = bytes * space->shape[space->n_dims - 1];
        bool is_element = run_bytes <= MAX_ELEMENT_BYTES && move_sets[run_bytes].move_line;
        if (!is_element || space->n_dims == 1) {
            copy_runs(space, run_bytes);
            return;
        }
        bytes = run_bytes;
        space->n_dims--;
    }
    const struct move_set *set = &move_sets[bytes];
    int row_dim = find_transposed_dim(space, bytes);
    if (row_dim >= 0) {
        move_transposed(space, row_dim, set);
    } else {
        move_lines(space, set);
    }
}

/* Casting ---------------------------------------------------------------------------------------------- */

/* The two dtypes of a cast. */
struct pair {
    shoal_dtype dst;
    shoal_dtype src;
};

static void cast_line(struct pair dtypes, struct line line)
{
    int64_t dst_bytes = (int64_t)dtype_bytes(dtypes.dst);
    int64_t src_bytes = (int64_t)dtype_bytes(dtypes.src);
    char gathered[RUN_ELEMS * MAX_ELEMENT_BYTES];
    char converted[RUN_ELEMS * MAX_ELEMENT_BYTES];
    while (line.count > 0) {
        struct line run = line;
        run.count = line.count < RUN_ELEMS ? line.count : RUN_ELEMS;
        if (line.src_stride != src_bytes) {
            run.dst = gathered;
            run.dst_stride = src_bytes;
            move_sets[src_bytes].move_line(run);
            run.src = gathered;
        }
        if (line.dst_stride == dst_bytes) {
            kernel_cast(dtypes.dst, line.dst, dtypes.src, run.src, (size_t)run.count);
        } else {
            kernel_cast(dtypes.dst, converted, dtypes.src, run.src, (size_t)run.count);
            run.src = converted;
            run.src_stride = dst_bytes;
            run.dst = line.dst;
            run.dst_stride = line.dst_stride;
            move_sets[dst_bytes].move_line(run);
        }
        line.dst += run.count * line.dst_stride;
        line.src += run.count * line.src_stride;
        line.count -= run.count;
    }
}

static void cast_space(struct iterate_space *space, struct pair dtypes)
{
    int64_t count = space->shape[space->n_dims - 1];
    if (has_runs(space, (int64_t)dtype_bytes(dtypes.dst), (int64_t)dtype_bytes(dtypes.src))) {
        do {
            kernel_cast(dtypes.dst, space->operands[0].data, dtypes.src, space->operands[1].data,
                        (size_t)count);
        } while (iterate_next(space, 1));
        return;
    }
    do {
        cast_line(dtypes, (struct line){.dst = space->operands[0].data,
                                        .src = space->operands[1].data,
                                        .dst_stride = last_stride(space, 0),
                                        .src_stride = last_stride(space, 1),
                                        .count = count});
    } while (iterate_next(space, 1));
}

void kernel_copy_nd(shoal_dtype dst_dtype, struct kernel_operand dst, shoal_dtype src_dtype,
                    struct kernel_operand src, int n_dims, const int64_t *shape)
{
    if (iterate_is_empty(n_dims, shape)) {
        return;
    }
    if (iterate_is_dense(n_dims, shape, dst.strides) && iterate_is_dense(n_dims, shape, src.strides)) {
        kernel_cast(dst_dtype, address_pointer(dst.data), src_dtype, address_pointer(src.data),
                    (size_t)iterate_count(n_dims, shape));
        return;
    }
    struct iterate_space space;
    iterate_begin(&space, n_dims, shape);
    iterate_add(&space, dst, dtype_bytes(dst_dtype));
    iterate_add(&space, src, dtype_bytes(src_dtype));
    iterate_arrange(&space);
    if (dst_dtype == src_dtype && dst_dtype != SHOAL_BOOL) {
        move_space(&space, (int64_t)dtype_bytes(dst_dtype));
    } else {
        cast_space(&space, (struct pair){.dst = dst_dtype, .src = src_dtype});
    }
}
