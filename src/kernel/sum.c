/* SPDX-License-Identifier: MIT */
/*
 * kernel_sum_nd. The source is seen as panels: columns are the innermost kept dimension, rows the innermost
 * reduced one. Every column has an accumulator on the stack that starts at +0; panels are added in the
 * row-major order of the reduced dimensions, so that each sum has one order of additions, whatever the
 * layout. Within a panel the loops run along the memory: several rows into a block of accumulators where
 * columns are neighbours, several columns side by side where they are not.
 */
#include "kernel/kernel.h"

#include <string.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "kernel/iterate.h"
#include "kernel/simd.h"
#include "kernel/sums.h"
#include "tensor/dtype.h"

enum {
    BLOCK_COLUMNS = 2048, /* whole rows of most matrices: memory is read as it lies */
    LANES = 8,            /* columns that are added side by side */
    HALF_LINE_ELEMS = 128,
    HALF_MIN_ELEMS = 32, /* shorter lines do not pay the detour */
    MIN_ROW_COLUMNS = 8  /* fewer columns do not pay a loop per row */
};

/* Strides in bytes. */
struct panel {
    const char *src;
    int64_t n_columns;
    int64_t column_stride;
    int64_t n_rows;
    int64_t row_stride;
};

/* Accumulators of a block. */
union sums {
    double real[BLOCK_COLUMNS];
    uint64_t integer[BLOCK_COLUMNS];
    struct dtype_c128 complex_[BLOCK_COLUMNS];
};

/* Adding a panel --------------------------------------------------------------------------------------- */

#define ADD(NAME, kind)                                                                              \
    static inline sum_##kind add_element_##NAME(sum_##kind sum, const char *element)                 \
    {                                                                                                \
        return sum_plus_##NAME(sum, *(const element_##NAME *)(const void *)element);                 \
    }                                                                                                \
                                                                                                     \
    static void add_rows_##NAME(sum_##kind *sums, const struct panel *panel)                         \
    {                                                                                                \
        const int64_t bytes = sizeof(element_##NAME);                                                \
        const int64_t step = panel->row_stride;                                                      \
        const char *src = panel->src;                                                                \
        int64_t row = 0;                                                                             \
        for (; row + 4 <= panel->n_rows; row += 4) {                                                 \
            for (int64_t i = 0; i < panel->n_columns; i++) {                                         \
                const char *first = src + i * bytes;                                                 \
                sum_##kind sum = add_element_##NAME(sums[i], first);                                 \
                sum = add_element_##NAME(sum, first + step);                                         \
                sum = add_element_##NAME(sum, first + 2 * step);                                     \
                sums[i] = add_element_##NAME(sum, first + 3 * step);                                 \
            }                                                                                        \
            src += 4 * step;                                                                         \
        }                                                                                            \
        for (; row < panel->n_rows; row++) {                                                         \
            for (int64_t i = 0; i < panel->n_columns; i++) {                                         \
                sums[i] = add_element_##NAME(sums[i], src + i * bytes);                              \
            }                                                                                        \
            src += step;                                                                             \
        }                                                                                            \
    }                                                                                                \
                                                                                                     \
    static void add_columns_##NAME(sum_##kind *sums, const struct panel *panel)                      \
    {                                                                                                \
        int64_t column = 0;                                                                          \
        for (; column + LANES <= panel->n_columns; column += LANES) {                                \
            sum_##kind lanes[LANES];                                                                 \
            memcpy(lanes, sums + column, sizeof(lanes));                                             \
            const char *src = panel->src + column * panel->column_stride;                            \
            for (int64_t row = 0; row < panel->n_rows; row++) {                                      \
                for (int64_t i = 0; i < LANES; i++) {                                                \
                    lanes[i] = add_element_##NAME(lanes[i], src + i * panel->column_stride);         \
                }                                                                                    \
                src += panel->row_stride;                                                            \
            }                                                                                        \
            memcpy(sums + column, lanes, sizeof(lanes));                                             \
        }                                                                                            \
        for (; column < panel->n_columns; column++) {                                                \
            const char *src = panel->src + column * panel->column_stride;                            \
            sum_##kind sum = sums[column];                                                           \
            for (int64_t row = 0; row < panel->n_rows; row++) {                                      \
                sum = add_element_##NAME(sum, src + row * panel->row_stride);                        \
            }                                                                                        \
            sums[column] = sum;                                                                      \
        }                                                                                            \
    }                                                                                                \
                                                                                                     \
    static void add_##NAME(void *sums, const struct panel *panel)                                    \
    {                                                                                                \
        if (panel->column_stride == sizeof(element_##NAME) && panel->n_columns >= MIN_ROW_COLUMNS) { \
            add_rows_##NAME(sums, panel);                                                            \
        } else {                                                                                     \
            add_columns_##NAME(sums, panel);                                                         \
        }                                                                                            \
    }

/* 8-bit floats have no sums. */
#define ADD_FLOAT(NAME) ADD(NAME, FLOAT)
#define ADD_FLOAT8(NAME)
#define ADD_SIGNED(NAME) ADD(NAME, SIGNED)
#define ADD_UNSIGNED(NAME) ADD(NAME, UNSIGNED)
#define ADD_BOOLEAN(NAME) ADD(NAME, BOOLEAN)
#define ADD_COMPLEX(NAME) ADD(NAME, COMPLEX)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) ADD_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

/* f16 lines are widened by vector instructions first; what lies apart is left to the plain loops. */
static void add_widened(void *sums, const struct panel *panel)
{
    float block[LANES * HALF_LINE_ELEMS];
    const int64_t bytes = sizeof(uint16_t);
    bool is_by_rows = panel->column_stride == bytes;
    int64_t n_lines = is_by_rows ? panel->n_rows : panel->n_columns;
    int64_t n_elems = is_by_rows ? panel->n_columns : panel->n_rows;
    int64_t line_stride = is_by_rows ? panel->row_stride : panel->column_stride;
    const int64_t line_bytes = HALF_LINE_ELEMS * (int64_t)sizeof(float);
    struct panel part = {.column_stride = is_by_rows ? (int64_t)sizeof(float) : line_bytes,
                         .row_stride = is_by_rows ? line_bytes : (int64_t)sizeof(float)};
    part.src = (const char *)block;
    for (int64_t line = 0; line < n_lines; line += LANES) {
        int64_t lines = n_lines - line < LANES ? n_lines - line : LANES;
        for (int64_t first = 0; first < n_elems; first += HALF_LINE_ELEMS) {
            int64_t elems = n_elems - first < HALF_LINE_ELEMS ? n_elems - first : HALF_LINE_ELEMS;
            const char *src = panel->src + line * line_stride + first * bytes;
            for (int64_t i = 0; i < lines; i++) {
                kernel_cast(SHOAL_F32, block + i * HALF_LINE_ELEMS, SHOAL_F16, src + i * line_stride,
                            (size_t)elems);
            }
            part.n_rows = is_by_rows ? lines : elems;
            part.n_columns = is_by_rows ? elems : lines;
            add_F32((double *)sums + (is_by_rows ? first : line), &part);
        }
    }
}

static bool can_widen(const struct panel *panel)
{
    const int64_t bytes = sizeof(uint16_t);
    return (panel->column_stride == bytes && panel->n_columns >= HALF_MIN_ELEMS) ||
           (panel->row_stride == bytes && panel->n_rows >= HALF_MIN_ELEMS && panel->column_stride != bytes);
}

/* Writing the sums ------------------------------------------------------------------------------------- */

#define FINISH(NAME, kind)                                                                                 \
    static void finish_##NAME(char *dst, int64_t stride, const void *sums, int64_t count, int64_t divisor) \
    {                                                                                                      \
        const sum_##kind *from = sums;                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                              \
            *(element_##NAME *)(void *)(dst + i * stride) = sum_finish_##NAME(from[i], divisor);           \
        }                                                                                                  \
    }

#define STORE_FLOAT(NAME) FINISH(NAME, FLOAT)
#define STORE_FLOAT8(NAME)
#define STORE_SIGNED(NAME) FINISH(NAME, SIGNED)
#define STORE_UNSIGNED(NAME) FINISH(NAME, UNSIGNED)
#define STORE_BOOLEAN(NAME) FINISH(NAME, BOOLEAN)
#define STORE_COMPLEX(NAME) FINISH(NAME, COMPLEX)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) STORE_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

static const struct sum_row {
    void (*add)(void *sums, const struct panel *panel);
    void (*finish)(char *dst, int64_t stride, const void *sums, int64_t count, int64_t divisor);
} sum_rows[DTYPE_COUNT] = {
#define SUMS(NAME)                                 \
    {                                              \
        .add = add_##NAME, .finish = finish_##NAME \
    }
#define SUMS_FLOAT(NAME) SUMS(NAME)
#define SUMS_FLOAT8(NAME)           \
    {                               \
        .add = NULL, .finish = NULL \
    }
#define SUMS_SIGNED(NAME) SUMS(NAME)
#define SUMS_UNSIGNED(NAME) SUMS(NAME)
#define SUMS_BOOLEAN(NAME) SUMS(NAME)
#define SUMS_COMPLEX(NAME) SUMS(NAME)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) [SHOAL_##NAME] = SUMS_##kind(NAME),
#include "tensor/dtypes.def"
#undef DTYPE
};

/* Shapes ----------------------------------------------------------------------------------------------- */

/* The dimensions whose is_reduced equals `wanted`: their number, sizes, and strides of one operand. */
static int select_dims(int n_dims, const int64_t *values, const bool *is_reduced, bool wanted, int64_t *out)
{
    int n_selected = 0;
    for (int i = 0; i < n_dims; i++) {
        if (is_reduced[i] == wanted) {
            out[n_selected++] = values[i];
        }
    }
    return n_selected;
}

/* The source over the reduced dimensions, in row-major order. */
static void begin_reduced(struct iterate_space *reduced, struct kernel_operand src, size_t bytes, int n_dims,
                          const int64_t *shape, const bool *is_reduced)
{
    int64_t sizes[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
    int n_reduced = select_dims(n_dims, shape, is_reduced, true, sizes);
    select_dims(n_dims, src.strides, is_reduced, true, strides);
    iterate_begin(reduced, n_reduced, sizes);
    iterate_add(reduced, (struct kernel_operand){.data = src.data, .strides = strides}, bytes);
    iterate_merge(reduced);
}

/* Source and destination over the kept dimensions. */
static void begin_kept(struct iterate_space *kept, const struct kernel_operand operands[2], size_t bytes,
                       int n_dims, const int64_t *shape, const bool *is_reduced)
{
    int64_t sizes[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
    int n_kept = select_dims(n_dims, shape, is_reduced, false, sizes);
    iterate_begin(kept, n_kept, sizes);
    for (int k = 0; k < 2; k++) {
        select_dims(n_dims, operands[k].strides, is_reduced, false, strides);
        iterate_add(kept, (struct kernel_operand){.data = operands[k].data, .strides = strides}, bytes);
    }
    iterate_arrange(kept);
}

/* Nothing was added anywhere: zeros, unless there are no sums either. */
static void store_empty_sums(shoal_dtype dtype, struct kernel_operand dst, int n_dims, const int64_t *shape,
                             const bool *is_reduced)
{
    int64_t kept_shape[SHOAL_MAX_DIMS];
    for (int i = 0; i < n_dims; i++) {
        kept_shape[i] = is_reduced[i] ? 1 : shape[i];
    }
    kernel_fill_nd(dtype, dst, n_dims, kept_shape, (struct kernel_scalar){.is_integer = true, .integer = 0});
}

/* What adds rows of neighbours by vector instructions; NULL if the plain loops do it. */
static simd_sum_rows_function *find_rows(shoal_dtype dtype, const struct panel *panel)
{
    if (panel->n_columns < MIN_ROW_COLUMNS || panel->column_stride != (int64_t)dtype_bytes(dtype)) {
        return NULL;
    }
    return dtype == SHOAL_F32    ? simd_table()->sum_rows_f32
           : dtype == SHOAL_BF16 ? simd_table()->sum_rows_bf16
                                 : NULL;
}

/* One block of columns, over all reduced dimensions. `panel` has its src, columns and strides. */
static void sum_block(shoal_dtype dtype, struct panel panel, struct iterate_space *reduced, union sums *sums)
{
    bool is_widened = dtype == SHOAL_F16 && can_widen(&panel);
    simd_sum_rows_function *rows = find_rows(dtype, &panel);
    memset(sums, 0, (size_t)panel.n_columns * sizeof(sums->complex_[0]));
    reduced->operands[0].data = (char *)(uintptr_t)panel.src;
    do {
        panel.src = reduced->operands[0].data;
        if (is_widened) {
            add_widened(sums, &panel);
        } else if (rows) {
            rows(sums->real, panel.src, panel.row_stride, (size_t)panel.n_rows, (size_t)panel.n_columns);
        } else {
            sum_rows[dtype].add(sums, &panel);
        }
    } while (iterate_next(reduced, 1));
}

shoal_status kernel_sum_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand src,
                           int n_dims, const int64_t *shape, const bool *is_reduced, int64_t divisor)
{
    if (dtype == SHOAL_BOOL && divisor != 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the mean is not supported for bool");
    }
    if (!sum_rows[dtype].add) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the sum is not supported for %s", shoal_dtype_name(dtype));
    }
    if (iterate_is_empty(n_dims, shape)) {
        store_empty_sums(dtype, dst, n_dims, shape, is_reduced);
        return SHOAL_OK;
    }
    const struct kernel_operand operands[] = {src, dst};
    struct iterate_space kept;
    struct iterate_space reduced;
    union sums sums;
    begin_kept(&kept, operands, dtype_bytes(dtype), n_dims, shape, is_reduced);
    begin_reduced(&reduced, src, dtype_bytes(dtype), n_dims, shape, is_reduced);
    int64_t n_columns = kept.shape[kept.n_dims - 1];
    int64_t dst_stride = kept.operands[1].strides[kept.n_dims - 1];
    struct panel panel = {.column_stride = kept.operands[0].strides[kept.n_dims - 1],
                          .n_rows = reduced.shape[reduced.n_dims - 1],
                          .row_stride = reduced.operands[0].strides[reduced.n_dims - 1]};
    uint64_t mode = fp_mode_enter();
    do {
        for (int64_t column = 0; column < n_columns; column += BLOCK_COLUMNS) {
            panel.src = kept.operands[0].data + column * panel.column_stride;
            panel.n_columns = n_columns - column < BLOCK_COLUMNS ? n_columns - column : BLOCK_COLUMNS;
            sum_block(dtype, panel, &reduced, &sums);
            sum_rows[dtype].finish(kept.operands[1].data + column * dst_stride, dst_stride, &sums,
                                   panel.n_columns, divisor);
        }
    } while (iterate_next(&kept, 1));
    fp_mode_leave(mode);
    return SHOAL_OK;
}
