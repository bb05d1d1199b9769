/* SPDX-License-Identifier: MIT */
/* Copies, casts and fills of device `cuda` over any strides against the CPU's: transposed, with gaps, backwards,
   repeated, at any alignment. */
#include "fixtures/device_sides.h"

#define ROUNDS 300

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

/* An operand whose lowest element is at `low_at` bytes of its side. */
struct place {
    int64_t strides[SHOAL_MAX_DIMS];
    size_t low_at;
    int64_t below; /* elements from the first one down to the lowest */
    int64_t count; /* elements from the lowest to the highest */
};

static struct {
    shoal_dtype dtype;
    shoal_dtype src_dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    struct place dst;
    struct place src;
    struct kernel_scalar value;
} strided;

static struct kernel_operand place_operand(struct address side, shoal_dtype dtype, const struct place *place)
{
    ptrdiff_t first = (ptrdiff_t)place->low_at + place->below * (ptrdiff_t)dtype_bytes(dtype);
    return (struct kernel_operand){.data = address_add(side, first), .strides = place->strides};
}

static void run_copy(const struct side *side)
{
    side->kernels->copy_nd(strided.dtype, place_operand(side->out, strided.dtype, &strided.dst),
                           strided.src_dtype, place_operand(side->in, strided.src_dtype, &strided.src),
                           strided.n_dims, strided.shape);
}

static void run_fill(const struct side *side)
{
    side->kernels->fill_nd(strided.dtype, place_operand(side->out, strided.dtype, &strided.dst),
                           strided.n_dims, strided.shape, strided.value);
}

static void draw_order(struct test_random *random, int *order, int n)
{
    bool is_shuffled = test_random_below(random, 2);
    for (int i = 0; i < n; i++) {
        int j = is_shuffled ? (int)test_random_below(random, (uint64_t)i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
}

/* Dimensions in some order, with gaps, and backwards; of a source, some have stride 0. */
static void draw_strides(struct test_random *random, struct place *place, shoal_dtype dtype, bool is_source)
{
    int order[SHOAL_MAX_DIMS];
    int64_t step = 1;
    draw_order(random, order, strided.n_dims);
    place->low_at = draw_place(random, GUARD_BYTES, dtype);
    place->below = 0;
    place->count = 1;
    for (int k = strided.n_dims - 1; k >= 0; k--) {
        int64_t size = strided.shape[order[k]];
        bool is_repeated = is_source && test_random_below(random, 6) == 0;
        bool is_backwards = test_random_below(random, 7) == 0;
        step += test_random_below(random, 6) == 0 ? (int64_t)test_random_below(random, 5) : 0;
        place->strides[order[k]] = is_repeated ? 0 : is_backwards ? -step : step;
        if (size > 0 && !is_repeated) {
            place->below += is_backwards ? step * (size - 1) : 0;
            place->count += step * (size - 1);
            step *= size;
        }
    }
}

/* False: there is no room for it. */
static bool draw_strided(struct test_random *random)
{
    const uint64_t sizes[] = {1, 150, 90, 12, 8, 5, 4, 4, 4};
    strided.dtype = draw_dtype(random);
    strided.src_dtype = test_random_below(random, 2) ? strided.dtype : draw_dtype(random);
    strided.n_dims = (int)test_random_below(random, SHOAL_MAX_DIMS + 1);
    for (int i = 0; i < strided.n_dims; i++) {
        int64_t size = 1 + (int64_t)test_random_below(random, sizes[strided.n_dims]);
        strided.shape[i] = test_random_below(random, 40) == 0 ? 0 : size;
    }
    draw_strides(random, &strided.dst, strided.dtype, false);
    draw_strides(random, &strided.src, strided.src_dtype, true);
    if (!has_room(strided.dst.low_at, strided.dtype, (size_t)strided.dst.count) ||
        !has_room(strided.src.low_at, strided.src_dtype, (size_t)strided.src.count)) {
        return false;
    }
    begin(random);
    mark(strided.dst.low_at, strided.dtype, (size_t)strided.dst.count);
    make_values(random, strided.src_dtype, in + strided.src.low_at, (size_t)strided.src.count);
    return true;
}

TEST(copies_over_any_strides)
{
    struct test_random random = test_random_begin(5);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        if (draw_strided(&random)) {
            compare_sides(run_copy);
            check_out("copy_nd");
        }
    }
}

TEST(fills_over_any_strides)
{
    struct test_random random = test_random_begin(6);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        if (draw_strided(&random)) {
            strided.value = (struct kernel_scalar){
                .is_integer = test_random_below(&random, 2),
                .integer = (int64_t)test_random_u64(&random),
                .real = ldexp(test_random_unit(&random), (int)test_random_below(&random, 90))};
            compare_sides(run_fill);
            check_out("fill_nd");
        }
    }
}
