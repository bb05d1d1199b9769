/* SPDX-License-Identifier: MIT */
/* Kernels over lists of pieces of device `cuda` against the CPU's: scaling, clamping, the largest magnitude, exact
   sums. */
#include "fixtures/device_shapes.h"

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

enum {
    ROUNDS = 300,
    PIECES_MOST = 220, /* more than one launch takes */
    RESULT_AT = SIDE_BYTES - GUARD_BYTES - (int)sizeof(struct kernel_squares)
};

enum call {
    SCALE,
    CLAMP,
    LARGEST,
    POWERS,
    CALL_COUNT
};

static struct {
    enum call call;
    double number;
    size_t n_pieces;
    struct kernel_piece pieces[PIECES_MOST];
    size_t at[PIECES_MOST];
    struct told told[2];
} drawn;

static void run(const struct side *side)
{
    const struct kernel_table *kernels = side->kernels;
    struct kernel_piece pieces[PIECES_MOST];
    struct address result = address_add(side->out, RESULT_AT);
    for (size_t i = 0; i < drawn.n_pieces; i++) {
        pieces[i] = drawn.pieces[i];
        pieces[i].data = address_add(side->out, (ptrdiff_t)drawn.at[i]);
    }
    shoal_status status = drawn.call == SCALE   ? kernels->scale_list(pieces, drawn.n_pieces, drawn.number)
                          : drawn.call == CLAMP ? kernels->clamp_list(pieces, drawn.n_pieces, drawn.number)
                          : drawn.call == LARGEST
                              ? kernels->largest_list(pieces, drawn.n_pieces, result)
                              : kernels->powers_list(pieces, drawn.n_pieces, drawn.number, result);
    drawn.told[side_number(side)] = told_of(status);
}

/* Numbers of about the same size, as gradients are. */
static void make_gradients(struct test_random *random, shoal_dtype dtype, unsigned char *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double number =
            (2 * test_random_unit(random) - 1) * ldexp(1, -(int)test_random_below(random, 5));
        kernel_scalar_store(dtype, values + i * dtype_bytes(dtype), (struct kernel_scalar){.real = number});
    }
}

/* Complex numbers where the call takes them; now and then something that it may refuse. */
static shoal_dtype draw_float(struct test_random *random)
{
    const bool takes_complex = drawn.call == SCALE || (drawn.call == POWERS && drawn.number == 2.0);
    if (takes_complex && test_random_below(random, 6) == 0) {
        return test_random_below(random, 2) ? SHOAL_C64 : SHOAL_C128;
    }
    return test_random_below(random, 200) == 0 ? draw_dtype(random)
                                               : (shoal_dtype)(1 + test_random_below(random, 4));
}

static void draw_pieces(struct test_random *random, bool are_many)
{
    const size_t wanted = test_random_below(random, are_many ? PIECES_MOST + 1 : 6);
    size_t end = GUARD_BYTES;
    begin(random);
    for (drawn.n_pieces = 0; drawn.n_pieces < wanted; drawn.n_pieces++) {
        const size_t i = drawn.n_pieces;
        const size_t count = are_many ? test_random_below(random, 60) : 3 * draw_count(random);
        drawn.pieces[i] = (struct kernel_piece){.count = count, .dtype = draw_float(random)};
        drawn.at[i] = draw_place(random, end, drawn.pieces[i].dtype);
        end = drawn.at[i] + count * dtype_bytes(drawn.pieces[i].dtype);
        if (end + GUARD_BYTES > RESULT_AT) {
            break;
        }
        if (test_random_below(random, 2) == 0) {
            make_gradients(random, drawn.pieces[i].dtype, out + drawn.at[i], count);
        } else {
            make_values(random, drawn.pieces[i].dtype, out + drawn.at[i], count);
        }
        mark(drawn.at[i], drawn.pieces[i].dtype, count);
    }
}

/* What an earlier call may have left. */
static void make_result(struct test_random *random)
{
    struct kernel_squares sums;
    const double largest = test_random_below(random, 2) ? test_random_unit(random) : 0.0;
    kernel_squares_init(&sums);
    for (int i = 0; test_random_below(random, 2) == 0 && i < KERNEL_SQUARES_BINS; i++) {
        sums.bins[i] = test_random_u64(random) & 0xffffffff;
    }
    memcpy(out + RESULT_AT, &sums, sizeof sums);
    if (drawn.call == LARGEST) {
        memcpy(out + RESULT_AT, &largest, sizeof largest);
        mark(RESULT_AT, SHOAL_F64, 1);
    }
}

TEST(random_lists)
{
    static const double numbers[] = {0.3, 1, 2, 1e-3, 65519, 1e300, 0};
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        drawn.call = (enum call)test_random_below(&random, CALL_COUNT);
        drawn.number = drawn.call == POWERS ? (double)(1 + test_random_below(&random, 2))
                                            : numbers[test_random_below(&random, 7)];
        draw_pieces(&random, test_random_below(&random, 5) == 0);
        make_result(&random);
        compare_sides(run);
        check_told(drawn.told);
        check_out("a list");
    }
}

/* Each pattern of the upper bits of an f32 is once in the list, with what lies beside it. */
TEST(squares_of_every_exponent)
{
    struct test_random random = test_random_begin(2);
    for (int power = 1; power <= 2; power++) {
        drawn.call = POWERS;
        drawn.number = power;
        drawn.n_pieces = 2;
        drawn.pieces[0] = (struct kernel_piece){.count = 4 * 512, .dtype = SHOAL_F32};
        drawn.pieces[1] = (struct kernel_piece){.count = 2 * 4096, .dtype = SHOAL_F64};
        drawn.at[0] = GUARD_BYTES;
        drawn.at[1] = GUARD_BYTES + 4 * 512 * sizeof(float);
        begin(&random);
        for (uint32_t i = 0; i < 4 * 512; i++) {
            const uint32_t bits =
                (i * 2654435761u >> 21) << 23 | (uint32_t)(test_random_u64(&random) & 0x7fffff);
            memcpy(out + drawn.at[0] + i * sizeof bits, &bits, sizeof bits);
        }
        for (uint64_t i = 0; i < 2 * 4096; i++) {
            const uint64_t bits = i << 52 | (test_random_u64(&random) & 0xfffffffffffff);
            memcpy(out + drawn.at[1] + i * sizeof bits, &bits, sizeof bits);
        }
        memset(out + RESULT_AT, 0, sizeof(struct kernel_squares));
        compare_sides(run);
        check_told(drawn.told);
        check_out("squares");
    }
}

TEST(other_powers_are_refused)
{
    const struct kernel_table *kernels = kernel_of(test_device());
    const struct kernel_piece piece = {.dtype = SHOAL_F32};
    const struct kernel_piece integers = {.dtype = SHOAL_I32};
    if (strcmp(shoal_device_name(test_device()), "cuda") != 0) {
        return;
    }
    CHECK_STATUS(kernels->powers_list(&piece, 1, 3.0, ADDRESS_NONE), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("the sum of powers 3 is not supported on device cuda, only those of 1 and 2");
    CHECK_STATUS(kernels->powers_list(&integers, 1, 3.0, ADDRESS_NONE), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("the sum of powers is not supported for i32");
}
