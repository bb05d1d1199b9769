/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic element by element. Each operator and dtype has one function over a run, with separate loops
 * for the layouts that vectorize; the n-dimensional calls cut their shape into runs.
 */
/*
 * clang warns where vectorizing a loop does not pay, although ELEMENT_LOOP only permits it. With -g it attributes the
 * loops to the first inclusion of dtypes.def, so this must stand before all of them.
 */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

#include "kernel/kernel.h"
#include "kernel/simd.h"

#include <string.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "kernel/arithmetic.h"
#include "kernel/iterate.h"

/* Runs ------------------------------------------------------------------------------------------------- */

/* Strides in bytes: of dst, a, and b where there is one. */
struct run {
    char *dst;
    const char *a;
    const char *b;
    int64_t strides[ITERATE_MAX_OPERANDS];
    int64_t count;
};

typedef void run_function(const struct run *run);

/* f16 has none: its conversions are so long that all of them would take 40 KB. See below. */
#define HAS_DENSE_LOOPS(NAME) (SHOAL_##NAME != SHOAL_F16)

#define BINARY_RUN(verb, NAME)                                                                    \
    static void verb##_run_##NAME(const struct run *run)                                          \
    {                                                                                             \
        const int64_t bytes = sizeof(element_##NAME);                                             \
        const int64_t count = run->count;                                                         \
        element_##NAME *dst = (void *)run->dst;                                                   \
        const element_##NAME *a = (const void *)run->a;                                           \
        const element_##NAME *b = (const void *)run->b;                                           \
        bool is_dense = HAS_DENSE_LOOPS(NAME) && run->strides[0] == bytes;                        \
        if (is_dense && run->strides[1] == bytes && run->strides[2] == bytes) {                   \
            ELEMENT_LOOP                                                                          \
            for (int64_t i = 0; i < count; i++) {                                                 \
                dst[i] = element_store_##NAME(                                                    \
                    verb##_value_##NAME(element_load_##NAME(a[i]), element_load_##NAME(b[i])));   \
            }                                                                                     \
        } else if (is_dense && run->strides[1] == bytes && run->strides[2] == 0) {                \
            compute_##NAME y = element_load_##NAME(*b);                                           \
            ELEMENT_LOOP                                                                          \
            for (int64_t i = 0; i < count; i++) {                                                 \
                dst[i] = element_store_##NAME(verb##_value_##NAME(element_load_##NAME(a[i]), y)); \
            }                                                                                     \
        } else if (is_dense && run->strides[1] == 0 && run->strides[2] == bytes) {                \
            compute_##NAME x = element_load_##NAME(*a);                                           \
            ELEMENT_LOOP                                                                          \
            for (int64_t i = 0; i < count; i++) {                                                 \
                dst[i] = element_store_##NAME(verb##_value_##NAME(x, element_load_##NAME(b[i]))); \
            }                                                                                     \
        } else {                                                                                  \
            for (int64_t i = 0; i < count; i++) {                                                 \
                dst = (void *)(run->dst + i * run->strides[0]);                                   \
                a = (const void *)(run->a + i * run->strides[1]);                                 \
                b = (const void *)(run->b + i * run->strides[2]);                                 \
                *dst = element_store_##NAME(                                                      \
                    verb##_value_##NAME(element_load_##NAME(*a), element_load_##NAME(*b)));       \
            }                                                                                     \
        }                                                                                         \
    }

#define NEGATE_RUN(NAME)                                                                       \
    static void negate_run_##NAME(const struct run *run)                                       \
    {                                                                                          \
        const int64_t bytes = sizeof(element_##NAME);                                          \
        const int64_t count = run->count;                                                      \
        element_##NAME *dst = (void *)run->dst;                                                \
        const element_##NAME *a = (const void *)run->a;                                        \
        if (HAS_DENSE_LOOPS(NAME) && run->strides[0] == bytes && run->strides[1] == bytes) {   \
            ELEMENT_LOOP                                                                       \
            for (int64_t i = 0; i < count; i++) {                                              \
                dst[i] = element_store_##NAME(negate_value_##NAME(element_load_##NAME(a[i]))); \
            }                                                                                  \
        } else {                                                                               \
            for (int64_t i = 0; i < count; i++) {                                              \
                dst = (void *)(run->dst + i * run->strides[0]);                                \
                a = (const void *)(run->a + i * run->strides[1]);                              \
                *dst = element_store_##NAME(negate_value_##NAME(element_load_##NAME(*a)));     \
            }                                                                                  \
        }                                                                                      \
    }

#define RUNS_BOOLEAN(NAME) BINARY_RUN(add, NAME) BINARY_RUN(mul, NAME)
#define RUNS_FLOAT(NAME) RUNS_BOOLEAN(NAME) BINARY_RUN(sub, NAME) BINARY_RUN(div, NAME) NEGATE_RUN(NAME)
#define RUNS_FLOAT8(NAME)
#define RUNS_SIGNED(NAME) BINARY_RUN(div, NAME)
#define RUNS_UNSIGNED(NAME) RUNS_FLOAT(NAME)
#define RUNS_COMPLEX(NAME) RUNS_FLOAT(NAME)

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) RUNS_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

/* A missing function is an operator that the dtype does not have. */
struct run_set {
    run_function *binary[KERNEL_BINARY_COUNT];
    run_function *negate;
};

#define SET_OF(NAME, DIV_NAME)                         \
    {                                                  \
        .binary = {[KERNEL_ADD] = add_run_##NAME,      \
                   [KERNEL_SUB] = sub_run_##NAME,      \
                   [KERNEL_MUL] = mul_run_##NAME,      \
                   [KERNEL_DIV] = div_run_##DIV_NAME}, \
        .negate = negate_run_##NAME                    \
    }
#define SET_FLOAT(NAME) SET_OF(NAME, NAME)
#define SET_FLOAT8(NAME) \
    {                    \
        .negate = NULL   \
    }
#define SET_UNSIGNED(NAME) SET_OF(NAME, NAME)
#define SET_COMPLEX(NAME) SET_OF(NAME, NAME)
/* The bits are those of the unsigned integer of that size, except in quotients. */
#define SET_SIGNED(NAME) SET_SIGNED_##NAME
#define SET_SIGNED_I8 SET_OF(U8, I8)
#define SET_SIGNED_I16 SET_OF(U16, I16)
#define SET_SIGNED_I32 SET_OF(U32, I32)
#define SET_SIGNED_I64 SET_OF(U64, I64)
#define SET_BOOLEAN(NAME)                                                          \
    {                                                                              \
        .binary = { [KERNEL_ADD] = add_run_##NAME, [KERNEL_MUL] = mul_run_##NAME } \
    }

static const struct run_set run_sets[DTYPE_COUNT] = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) [SHOAL_##NAME] = SET_##kind(NAME),
#include "tensor/dtypes.def"
#undef DTYPE
};

static const char *const binary_names[KERNEL_BINARY_COUNT] = {
    [KERNEL_ADD] = "add",
    [KERNEL_SUB] = "sub",
    [KERNEL_MUL] = "mul",
    [KERNEL_DIV] = "div",
};

/* f16 and bf16 ----------------------------------------------------------------------------------------- */

enum {
    HALF_BLOCK_ELEMS = 512,
    /* shorter runs do not pay the detour */
    F16_MIN_ELEMS = 6,
    BF16_MIN_ELEMS = 32
};

/* What to do with a run: `wide` is the f32 function of an f16 or bf16 operator, for runs of n_wide_min or more;
   NULL for other dtypes. */
struct work {
    shoal_dtype dtype;
    run_function *function;
    run_function *wide;
    int64_t n_wide_min;
    simd_reduce_function *sum; /* of bf16 elements next to each other; NULL for other dtypes and operators */
};

static struct work make_work(shoal_dtype dtype, run_function *function, run_function *f32_function)
{
    bool is_half = dtype == SHOAL_F16 || dtype == SHOAL_BF16;
    return (struct work){.dtype = dtype,
                         .function = function,
                         .wide = is_half ? f32_function : NULL,
                         .n_wide_min = dtype == SHOAL_F16 ? F16_MIN_ELEMS : BF16_MIN_ELEMS};
}

static void copy_halves(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + i * to_stride, from + i * from_stride, sizeof(uint16_t));
    }
}

/* The next elements of a source as f32. A stride of 0 means one value, which is there from the start. */
static void widen(shoal_dtype dtype, float *to, const char **from, int64_t stride, int64_t count)
{
    const int64_t bytes = sizeof(uint16_t);
    uint16_t halves[HALF_BLOCK_ELEMS];
    if (stride == 0) {
        return;
    }
    if (stride != bytes) {
        copy_halves((char *)halves, bytes, *from, stride, count);
    }
    kernel_cast(SHOAL_F32, to, dtype, stride == bytes ? *from : (const char *)halves, (size_t)count);
    *from += count * stride;
}

static void narrow(shoal_dtype dtype, char *to, int64_t stride, const float *from, int64_t count)
{
    const int64_t bytes = sizeof(uint16_t);
    uint16_t halves[HALF_BLOCK_ELEMS];
    kernel_cast(dtype, stride == bytes ? to : (char *)halves, SHOAL_F32, from, (size_t)count);
    if (stride != bytes) {
        copy_halves(to, stride, (const char *)halves, bytes, count);
    }
}

static int64_t begin_widened(shoal_dtype dtype, float *first, const char *from, int64_t stride)
{
    if (stride == 0) {
        kernel_cast(SHOAL_F32, first, dtype, from, 1);
    }
    return stride == 0 ? 0 : (int64_t)sizeof(float);
}

static bool is_dense_run(const struct run *run, int64_t bytes)
{
    return run->strides[0] == bytes && run->strides[1] == bytes && run->strides[2] == bytes;
}

/* Whole blocks are cast by vector instructions, which the loops over single elements are not. */
static void run_widened(const struct work *work, struct run run)
{
    float a[HALF_BLOCK_ELEMS];
    float b[HALF_BLOCK_ELEMS];
    float dst[HALF_BLOCK_ELEMS];
    struct run block = {.dst = (char *)dst,
                        .a = (const char *)a,
                        .b = (const char *)b,
                        .strides = {sizeof(float), begin_widened(work->dtype, a, run.a, run.strides[1]),
                                    begin_widened(work->dtype, b, run.b, run.strides[2])}};
    while (run.count > 0) {
        block.count = run.count < HALF_BLOCK_ELEMS ? run.count : HALF_BLOCK_ELEMS;
        widen(work->dtype, a, &run.a, run.strides[1], block.count);
        widen(work->dtype, b, &run.b, run.strides[2], block.count);
        work->wide(&block);
        narrow(work->dtype, run.dst, run.strides[0], dst, block.count);
        run.dst += block.count * run.strides[0];
        run.count -= block.count;
    }
}

static inline void do_run(const struct work *work, const struct run *run)
{
    if (work->sum && is_dense_run(run, sizeof(uint16_t))) {
        const void *const sources[] = {run->a, run->b};
        work->sum(run->dst, sources, 2, 0, (size_t)run->count);
    } else if (work->wide && run->count >= work->n_wide_min) {
        run_widened(work, *run);
    } else {
        work->function(run);
    }
}

/* Shapes ----------------------------------------------------------------------------------------------- */

/* One run is enough: no dimension, one dimension, or all operands row-major without gaps. There are elements. */
static bool find_single_run(struct run *run, const struct kernel_operand *operands, int n_operands,
                            int n_dims, const int64_t *shape)
{
    for (int k = 0; n_dims > 1 && k < n_operands; k++) {
        if (!iterate_is_dense(n_dims, shape, operands[k].strides)) {
            return false;
        }
    }
    for (int k = 0; k < n_operands; k++) {
        /* Of a single element, the stride means nothing and may be any number. */
        run->strides[k] = n_dims == 1 && shape[0] != 1 ? operands[k].strides[0] : 1;
    }
    run->count = iterate_count(n_dims, shape);
    return true;
}

/* Operands: dst, a and, for binary operators, b. */
static void run_over_shape(const struct work *work, const struct kernel_operand *operands, int n_operands,
                           int n_dims, const int64_t *shape)
{
    size_t bytes = dtype_bytes(work->dtype);
    struct run run = {.dst = address_pointer(operands[0].data),
                      .a = address_pointer(operands[1].data),
                      .b = address_pointer(operands[n_operands - 1].data)};
    if (iterate_is_empty(n_dims, shape)) {
        return;
    }
    if (find_single_run(&run, operands, n_operands, n_dims, shape)) {
        for (int k = 0; k < n_operands; k++) {
            run.strides[k] *= (int64_t)bytes;
        }
        do_run(work, &run);
        return;
    }
    struct iterate_space space;
    iterate_begin(&space, n_dims, shape);
    for (int k = 0; k < n_operands; k++) {
        iterate_add(&space, operands[k], bytes);
    }
    iterate_arrange(&space);
    int last = space.n_dims - 1;
    run.count = space.shape[last];
    for (int k = 0; k < n_operands; k++) {
        run.strides[k] = space.operands[k].strides[last];
    }
    do {
        run.dst = space.operands[0].data;
        run.a = space.operands[1].data;
        run.b = space.operands[n_operands - 1].data;
        do_run(work, &run);
    } while (iterate_next(&space, 1));
}

shoal_status kernel_binary_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                              struct kernel_operand a, struct kernel_operand b, int n_dims,
                              const int64_t *shape)
{
    run_function *function = run_sets[dtype].binary[op];
    if (!function) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s is not supported for %s", binary_names[op],
                         shoal_dtype_name(dtype));
    }
    struct kernel_operand operands[] = {dst, a, b};
    struct work work = make_work(dtype, function, run_sets[SHOAL_F32].binary[op]);
    work.sum = op == KERNEL_ADD && dtype == SHOAL_BF16 ? simd_table()->reduce[SIMD_BF16][SIMD_SUM] : NULL;
    uint64_t mode = fp_mode_enter();
    run_over_shape(&work, operands, 3, n_dims, shape);
    fp_mode_leave(mode);
    return SHOAL_OK;
}

shoal_status kernel_number_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                              struct kernel_operand a, struct kernel_scalar number, int n_dims,
                              const int64_t *shape)
{
    static const int64_t no_strides[SHOAL_MAX_DIMS];
    _Alignas(16) char element[16];
    kernel_scalar_store(dtype, element, number);
    struct kernel_operand b = {.data = address_of(element), .strides = no_strides};
    return kernel_binary_nd(op, dtype, dst, a, b, n_dims, shape);
}

shoal_status kernel_negate_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand a,
                              int n_dims, const int64_t *shape)
{
    run_function *function = run_sets[dtype].negate;
    if (!function) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "negate is not supported for %s", shoal_dtype_name(dtype));
    }
    struct kernel_operand operands[] = {dst, a};
    struct work work = make_work(dtype, function, run_sets[SHOAL_F32].negate);
    uint64_t mode = fp_mode_enter();
    run_over_shape(&work, operands, 2, n_dims, shape);
    fp_mode_leave(mode);
    return SHOAL_OK;
}

/* Scaling ---------------------------------------------------------------------------------------------- */

#define SCALE(NAME)                                                                          \
    static void scale_##NAME(void *dst, const void *src, size_t count, double factor)        \
    {                                                                                        \
        element_##NAME *to = dst;                                                            \
        const element_##NAME *from = src;                                                    \
        const compute_##NAME y = (compute_##NAME)factor;                                     \
        ELEMENT_LOOP                                                                         \
        for (size_t i = 0; i < count; i++) {                                                 \
            to[i] = element_store_##NAME(mul_value_##NAME(element_load_##NAME(from[i]), y)); \
        }                                                                                    \
    }
SCALE(F64)
SCALE(F32)

static void scale_halves(shoal_dtype dtype, char *dst, const char *src, size_t count, double factor)
{
    float block[HALF_BLOCK_ELEMS];
    while (count > 0) {
        size_t part = count < HALF_BLOCK_ELEMS ? count : HALF_BLOCK_ELEMS;
        kernel_cast(SHOAL_F32, block, dtype, src, part);
        scale_F32(block, block, part, factor);
        kernel_cast(dtype, dst, SHOAL_F32, block, part);
        src += part * sizeof(uint16_t);
        dst += part * sizeof(uint16_t);
        count -= part;
    }
}

static void scale_F16(void *dst, const void *src, size_t count, double factor)
{
    scale_halves(SHOAL_F16, dst, src, count, factor);
}

static void scale_BF16(void *dst, const void *src, size_t count, double factor)
{
    scale_halves(SHOAL_BF16, dst, src, count, factor);
}

/* A complex number is scaled as its two components. */
static const struct scale_row {
    void (*function)(void *dst, const void *src, size_t count, double factor);
    size_t n_components;
} scale_rows[DTYPE_COUNT] = {
    [SHOAL_F64] = {.function = scale_F64, .n_components = 1},
    [SHOAL_F32] = {.function = scale_F32, .n_components = 1},
    [SHOAL_F16] = {.function = scale_F16, .n_components = 1},
    [SHOAL_BF16] = {.function = scale_BF16, .n_components = 1},
    [SHOAL_C64] = {.function = scale_F32, .n_components = 2},
    [SHOAL_C128] = {.function = scale_F64, .n_components = 2},
};

shoal_status kernel_scale(shoal_dtype dtype, void *dst, const void *src, size_t count, double factor)
{
    const struct scale_row *row = &scale_rows[dtype];
    if (!row->function) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "scaling is not supported for %s", shoal_dtype_name(dtype));
    }
    uint64_t mode = fp_mode_enter();
    row->function(dst, src, count * row->n_components, factor);
    fp_mode_leave(mode);
    return SHOAL_OK;
}
