/* SPDX-License-Identifier: MIT */
/* The arithmetic of sharding: how parameters are cut, by what gradients are divided, how they lie in a reduction. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "harness/test.h"
#include "parallel/fsdp/engine/state/factors.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/dtype.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Cutting ------------------------------------------------------------------------------------------------ */

static const struct {
    int64_t size;
    int n_shards;
    int64_t pieces[9];
    int64_t chunk;
} chunks[] = {
    {17, 4, {5, 5, 5, 2}, 5},
    {5, 4, {2, 2, 1, 0}, 2},
    {6, 4, {2, 2, 2, 0}, 2},
    {9, 8, {2, 2, 2, 2, 1, 0, 0, 0}, 2},
    {17, 8, {3, 3, 3, 3, 3, 2, 0, 0}, 3},
    {3, 4, {1, 1, 1, 0}, 1},
    {1, 2, {1, 0}, 1},
    {0, 3, {0, 0, 0}, 0},
    {8, 1, {8}, 8},
};

TEST(every_rank_has_its_chunk)
{
    for (int k = 0; k < LENGTH(chunks); k++) {
        int64_t offset = 0;
        for (int shard = 0; shard < chunks[k].n_shards; shard++) {
            struct fsdp_param param;
            const int64_t shape[] = {chunks[k].size, 7};
            REQUIRE_OK(fsdp_param_init(&param, "w", SHOAL_F32, 2, shape, 0, shard, chunks[k].n_shards));
            CHECK_INT(param.length, chunks[k].pieces[shard]);
            CHECK_INT(param.chunk, chunks[k].chunk);
            CHECK_INT(param.begin, offset);
            CHECK_INT(param.shard_count, chunks[k].pieces[shard] * 7);
            CHECK_INT(param.padded_count, chunks[k].chunk * 7);
            offset += param.length;
            fsdp_param_free(&param);
        }
        CHECK_INT(offset, chunks[k].size);
    }
}

/* Divide factors ----------------------------------------------------------------------------------------- */

static const struct {
    double factor;
    double before;
    double after;
} befores[] = {{1, 1, 1},     {2, 2, 1},      {3, 2, 1.5},   {4, 2, 2},      {5, 2, 2.5},
               {6, 4, 1.5},   {7, 2, 3.5},    {8, 4, 2},     {12, 4, 3},     {16, 4, 4},
               {24, 8, 3},    {32, 8, 4},     {64, 8, 8},    {100, 8, 12.5}, {128, 16, 8},
               {256, 16, 16}, {1024, 32, 32}, {0.5, 1, 0.5}, {2.5, 1, 2.5}};

TEST(risky_dtypes_are_divided_before_and_after)
{
    static const shoal_dtype dtypes[] = {SHOAL_F16, SHOAL_F64};
    for (int k = 0; k < LENGTH(befores); k++) {
        double factor = befores[k].factor;
        CHECK_DOUBLE(fsdp_factors_before(factor), befores[k].before);
        for (int d = 0; d < LENGTH(dtypes); d++) {
            struct fsdp_factors given = fsdp_factors_choose(3, 2, dtypes[d], factor, false);
            CHECK_DOUBLE(given.before, befores[k].before);
            CHECK_DOUBLE(given.after, befores[k].after);
            CHECK_INT(given.scatter, SHOAL_SUM);
            CHECK_INT(given.all_reduce, SHOAL_SUM);
            bool is_whole = factor == floor(factor);
            struct fsdp_factors counted =
                fsdp_factors_choose(is_whole ? (int)factor : 1, 1, dtypes[d], 0.0, false);
            CHECK(!is_whole || (counted.before == befores[k].before && counted.after == befores[k].after));
        }
    }
}

static const struct {
    const char *what;
    int n_shards;
    int n_replicas;
    double factor;
    bool forces_sum;
    struct fsdp_factors wanted;
} safe_rows[] = {
    {"alone", 1, 1, 0, false, {1, 1, SHOAL_SUM, 1, SHOAL_SUM}},
    {"shards", 4, 1, 0, false, {1, 1, SHOAL_AVG, 1, SHOAL_AVG}},
    {"replicas", 1, 3, 0, false, {1, 1, SHOAL_AVG, 1, SHOAL_AVG}},
    {"both", 2, 3, 0, false, {1, 1, SHOAL_AVG, 1, SHOAL_AVG}},
    {"as many as shards", 4, 1, 4, false, {1, 1, SHOAL_AVG, 1, SHOAL_SUM}},
    {"as many as shards, with replicas", 4, 2, 4, false, {1, 1, SHOAL_AVG, 1, SHOAL_SUM}},
    {"another", 4, 1, 8, false, {1, 1, SHOAL_PREMUL_SUM, 0.125, SHOAL_SUM}},
    {"another, with replicas", 4, 2, 8, false, {1, 1, SHOAL_PREMUL_SUM, 0.125, SHOAL_SUM}},
    {"1, shards", 4, 1, 1, false, {1, 1, SHOAL_PREMUL_SUM, 1, SHOAL_SUM}},
    {"sum", 4, 1, 0, true, {1, 4, SHOAL_SUM, 1, SHOAL_SUM}},
    {"sum, with replicas", 4, 3, 0, true, {1, 12, SHOAL_SUM, 1, SHOAL_SUM}},
    {"sum, given", 4, 3, 5, true, {1, 5, SHOAL_SUM, 1, SHOAL_SUM}},
};

TEST(safe_dtypes_are_divided_on_the_way)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16};
    for (int k = 0; k < LENGTH(safe_rows); k++) {
        for (int d = 0; d < LENGTH(dtypes); d++) {
            struct fsdp_factors f =
                fsdp_factors_choose(safe_rows[k].n_shards, safe_rows[k].n_replicas, dtypes[d],
                                    safe_rows[k].factor, safe_rows[k].forces_sum);
            const struct fsdp_factors *wanted = &safe_rows[k].wanted;
            bool is_right = f.before == wanted->before && f.after == wanted->after &&
                            f.scatter == wanted->scatter && f.all_reduce == wanted->all_reduce &&
                            (f.scatter != SHOAL_PREMUL_SUM || f.premul == wanted->premul);
            if (!is_right) {
                test_failed(__FILE__, __LINE__, "%s: before %g after %g scatter %d premul %g all_reduce %d",
                            safe_rows[k].what, f.before, f.after, (int)f.scatter, f.premul,
                            (int)f.all_reduce);
            }
        }
    }
}

/* By what the sum over all ranks is divided in the end: a reduce-scatter happens only among shards, an all-reduce only
   among replicas. */
static double net_divisor(const struct fsdp_factors *f, int n_shards, int n_replicas)
{
    double divisor = f->before * f->after;
    if (n_shards > 1) {
        divisor *= f->scatter == SHOAL_AVG ? n_shards : 1;
        divisor /= f->scatter == SHOAL_PREMUL_SUM ? f->premul : 1;
    }
    return n_replicas > 1 && f->all_reduce == SHOAL_AVG ? divisor * n_replicas : divisor;
}

TEST(gradients_are_divided_exactly_once)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F16, SHOAL_F64};
    static const double factors[] = {0, 0.5, 1, 2, 3, 4, 6, 100};
    for (int n_shards = 1; n_shards <= 9; n_shards++) {
        for (int n_replicas = 1; n_replicas <= 4; n_replicas++) {
            for (int k = 0; k < LENGTH(dtypes) * LENGTH(factors) * 2; k++) {
                double factor = factors[k / 2 % LENGTH(factors)];
                struct fsdp_factors f = fsdp_factors_choose(
                    n_shards, n_replicas, dtypes[k / 2 / LENGTH(factors)], factor, k % 2 == 1);
                double wanted = factor > 0 ? factor : n_shards * n_replicas;
                CHECK(fabs(net_divisor(&f, n_shards, n_replicas) / wanted - 1.0) < 1e-12);
            }
        }
    }
}

/* Layouts ------------------------------------------------------------------------------------------------ */

/* Every shard of a unit, in one process: no groups, no world. */
struct paper {
    struct fsdp_context context;
    struct fsdp_domain domain;
    struct fsdp_unit *unit;
};

static bool paper_open(struct paper *paper, int n_shards)
{
    memset(paper, 0, sizeof *paper);
    paper->domain.mesh = (struct fsdp_mesh){.n_shards = n_shards, .n_replicas = 1};
    fsdp_pool_init(&paper->domain.pools.buffers, FSDP_BUFFERS, NULL, &paper->context.memory);
    return CHECK_OK(fsdp_unit_create_alone("paper", &paper->unit)) &&
           CHECK_OK(fsdp_context_adopt(&paper->context, &paper->domain, paper->unit));
}

static void paper_close(struct paper *paper)
{
    fsdp_unit_drop_grads(paper->unit);
    fsdp_unit_free(paper->unit);
    fsdp_pool_free(&paper->domain.pools.buffers);
    mem_free(paper->context.units);
}

static bool paper_add(struct paper *paper, int n_dims, const int64_t *shape, int dim)
{
    struct fsdp_param param;
    return CHECK_OK(
               fsdp_param_init(&param, "w", SHOAL_F32, n_dims, shape, dim, 0, paper->domain.mesh.n_shards)) &&
           CHECK_OK(fsdp_unit_add_param(paper->unit, &param));
}

static const float *block_of(const struct paper *paper, size_t param, size_t shard)
{
    const struct fsdp_param *p = &paper->unit->params[param];
    return (const float *)address_pointer(fsdp_region_of(paper->unit, p)) + shard * p->padded_count;
}

/* G0 = [3, 2]: 0 ... 5; G1 = [2]: 10, 11; G2 = [1]: 20. Rows of two ranks: 0 1 2 3 10 20, and 4 5 0 0 11 0. */
TEST(gradients_lie_as_in_the_example)
{
    struct paper paper;
    static const float g0[] = {0, 1, 2, 3, 4, 5};
    static const float g1[] = {10, 11};
    static const float g2[] = {20};
    static const float rows[2][6] = {{0, 1, 2, 3, 10, 20}, {4, 5, 0, 0, 11, 0}};
    REQUIRE(paper_open(&paper, 2));
    REQUIRE(paper_add(&paper, 2, (const int64_t[]){3, 2}, 0));
    REQUIRE(paper_add(&paper, 1, (const int64_t[]){2}, 0));
    REQUIRE(paper_add(&paper, 1, (const int64_t[]){1}, 0));
    paper.unit->grads.dtype = SHOAL_F32;
    REQUIRE_OK(fsdp_unit_begin_grads(paper.unit));
    memcpy(address_pointer(fsdp_unit_grad(paper.unit, &paper.unit->params[0])), g0, sizeof g0);
    memcpy(address_pointer(fsdp_unit_grad(paper.unit, &paper.unit->params[1])), g1, sizeof g1);
    fsdp_unit_put_grad(paper.unit, &paper.unit->params[2], SHOAL_F32, address_of(g2)); /* the other way in */
    for (size_t shard = 0; shard < 2; shard++) {
        size_t at = 0;
        for (size_t param = 0; param < 3; param++) {
            size_t bytes = paper.unit->params[param].padded_count * sizeof(float);
            CHECK_BYTES(block_of(&paper, param, shard), &rows[shard][at], bytes);
            at += paper.unit->params[param].padded_count;
        }
        CHECK_INT(at, 6);
    }
    paper_close(&paper);
}

/* A = [3, 2], b = [2] over two: row 0 is A00 A01 A10 A11 b0, row 1 is A20 A21 0 0 b1. */
TEST(shards_lie_as_in_the_example)
{
    static const float a[] = {1, 2, 3, 4, 5, 6};
    static const float b[] = {7, 8};
    static const float rows[2][5] = {{1, 2, 3, 4, 7}, {5, 6, 0, 0, 8}};
    for (int shard = 0; shard < 2; shard++) {
        struct fsdp_param first;
        struct fsdp_param second;
        REQUIRE_OK(fsdp_param_init(&first, "A", SHOAL_F32, 2, (const int64_t[]){3, 2}, 0, shard, 2));
        REQUIRE_OK(fsdp_param_init(&second, "b", SHOAL_F32, 1, (const int64_t[]){2}, 0, shard, 2));
        CHECK_OK(fsdp_param_allocate(&first));
        CHECK_OK(fsdp_param_allocate(&second));
        fsdp_param_cut(&first, address_of(a));
        fsdp_param_cut(&second, address_of(b));
        CHECK_INT(first.padded_count + second.padded_count, 5);
        CHECK_BYTES(address_pointer(first.shard), &rows[shard][0], 4 * sizeof(float));
        CHECK_BYTES(address_pointer(second.shard), &rows[shard][4], sizeof(float));
        fsdp_param_free(&first);
        fsdp_param_free(&second);
    }
}

/* Random shapes ------------------------------------------------------------------------------------------ */

struct drawn {
    int n_shards;
    int n_dims;
    int64_t shape[4];
    int dim;
    size_t count;
};

static struct drawn draw_shape(struct test_random *random)
{
    struct drawn drawn = {.n_shards = 1 + (int)test_random_below(random, 9), .count = 1};
    drawn.n_dims = 1 + (int)test_random_below(random, 4);
    drawn.dim = (int)test_random_below(random, (uint64_t)drawn.n_dims);
    for (int i = 0; i < drawn.n_dims; i++) {
        drawn.shape[i] = (int64_t)test_random_below(random, i == 0 ? 20 : 5) + (i > 0);
        if (i == drawn.dim && i > 0) {
            drawn.shape[i] = drawn.n_shards * (int64_t)test_random_below(random, 3);
        }
        drawn.count *= (size_t)drawn.shape[i];
    }
    return drawn;
}

/* Element `at` of the whole: whose it is, and where in that shard. By walking the indices. */
static void find_element(const struct drawn *drawn, size_t at, int *shard_out, size_t *place_out)
{
    int64_t index[4];
    size_t rest = at;
    for (int i = drawn->n_dims - 1; i >= 0; i--) {
        index[i] = (int64_t)(rest % (size_t)drawn->shape[i]);
        rest /= (size_t)drawn->shape[i];
    }
    int64_t size = drawn->shape[drawn->dim];
    int64_t chunk = (size + drawn->n_shards - 1) / drawn->n_shards;
    *shard_out = (int)(index[drawn->dim] / chunk);
    int64_t length = size - *shard_out * chunk < chunk ? size - *shard_out * chunk : chunk;
    index[drawn->dim] %= chunk;
    size_t place = 0;
    for (int i = 0; i < drawn->n_dims; i++) {
        place = place * (size_t)(i == drawn->dim ? length : drawn->shape[i]) + (size_t)index[i];
    }
    *place_out = place;
}

static void check_load(const struct drawn *drawn, const float *full)
{
    size_t total = 0;
    for (int shard = 0; shard < drawn->n_shards; shard++) {
        struct fsdp_param param;
        REQUIRE_OK(fsdp_param_init(&param, "w", SHOAL_F32, drawn->n_dims, drawn->shape, drawn->dim, shard,
                                   drawn->n_shards));
        REQUIRE_OK(fsdp_param_allocate(&param));
        const struct fsdp_array shard_values = fsdp_param_values(&param);
        CHECK_OK(fsdp_array_load(&shard_values, full));
        const float *values = address_pointer(param.shard);
        for (size_t at = 0; at < drawn->count; at++) {
            int owner;
            size_t place;
            find_element(drawn, at, &owner, &place);
            CHECK(owner != shard || (place < param.shard_count && values[place] == full[at]));
        }
        for (size_t i = param.shard_count; i < param.padded_count; i++) {
            CHECK(values[i] == 0.0F);
        }
        total += param.shard_count;
        fsdp_param_free(&param);
    }
    CHECK_INT(total, drawn->count);
}

/* Through the kernels' pointer and through the other way in: blocks are the chunks, padding is zero. */
static void check_blocks(const struct drawn *drawn, const float *full, bool is_put)
{
    struct paper paper;
    REQUIRE(paper_open(&paper, drawn->n_shards));
    REQUIRE(paper_add(&paper, drawn->n_dims, drawn->shape, drawn->dim));
    paper.unit->grads.dtype = SHOAL_F32;
    struct fsdp_param *param = &paper.unit->params[0];
    REQUIRE_OK(fsdp_unit_begin_grads(paper.unit));
    if (drawn->count > 0 && (is_put || !param->is_direct)) {
        fsdp_unit_put_grad(paper.unit, param, SHOAL_F32, address_of(full));
    } else if (drawn->count > 0) {
        memcpy(address_pointer(fsdp_unit_grad(paper.unit, param)), full, drawn->count * sizeof(float));
    }
    size_t n_filled = 0;
    for (size_t at = 0; at < drawn->count; at++) {
        int owner;
        size_t place;
        find_element(drawn, at, &owner, &place);
        CHECK(block_of(&paper, 0, (size_t)owner)[place] == full[at]);
    }
    for (size_t i = 0; drawn->count > 0 && i < (size_t)drawn->n_shards * param->padded_count; i++) {
        n_filled += block_of(&paper, 0, 0)[i] != 0.0F;
    }
    CHECK_INT(n_filled, drawn->count);
    paper_close(&paper);
}

TEST(random_shapes_are_cut_and_put_together)
{
    struct test_random random = test_random_begin(1);
    float *full = calloc(20 * 27 * 27 * 27, sizeof *full);
    REQUIRE(full != NULL);
    for (int round = 0; round < 1500 && !test_has_failed(); round++) {
        struct drawn drawn = draw_shape(&random);
        for (size_t i = 0; i < drawn.count; i++) {
            full[i] = (float)(1 + i);
        }
        check_load(&drawn, full);
        check_blocks(&drawn, full, round % 2 == 0);
    }
    free(full);
}

/* Many shards: more than there are rows, which most ranks have nothing of. */
TEST(a_hundred_and_twenty_eight_shards)
{
    static const int64_t shapes[][2] = {{17, 257}, {17, 1},   {64, 312}, {64, 1},
                                        {64, 64},  {512, 64}, {256, 1},  {64, 297}};
    float *full = calloc(512 * 64, sizeof *full);
    REQUIRE(full != NULL);
    for (size_t i = 0; i < 512 * 64; i++) {
        full[i] = (float)(1 + i);
    }
    for (int k = 0; k < LENGTH(shapes) && !test_has_failed(); k++) {
        struct drawn drawn = {.n_shards = 128, .n_dims = 2, .shape = {shapes[k][0], shapes[k][1]}};
        drawn.count = (size_t)(shapes[k][0] * shapes[k][1]);
        check_load(&drawn, full);
        check_blocks(&drawn, full, k % 2 == 0);
    }
    free(full);
}

/* Several dtypes ----------------------------------------------------------------------------------------- */

enum {
    N_MIXED = 3,
    MIXED_SHARDS = 4
};

static const struct {
    int n_dims;
    int64_t shape[3];
} mixed_shapes[N_MIXED] = {{2, {5, 3}}, {1, {7}}, {3, {2049, 2, 2}}};

static const shoal_dtype mixed_dtypes[][N_MIXED] = {{SHOAL_BF16, SHOAL_F32, SHOAL_BF16},
                                                    {SHOAL_F16, SHOAL_F32, SHOAL_F16}};

/* Numbers that the dtype has; strided: every other one of a row that is twice as long. */
static shoal_tensor *draw_gradient(int which, shoal_dtype dtype, bool is_strided)
{
    int n_dims = mixed_shapes[which].n_dims;
    int64_t shape[3];
    memcpy(shape, mixed_shapes[which].shape, sizeof shape);
    shape[n_dims - 1] *= is_strided ? 2 : 1;
    shoal_tensor *numbers = shoal_empty(shape, n_dims, SHOAL_F32);
    float *data = shoal_mutable_data(numbers);
    for (int64_t i = 0; i < shoal_tensor_count(numbers); i++) {
        data[i] = (float)((i * 37 + which) % 1013) / 7.0F - 70.0F;
    }
    shoal_tensor *cast = shoal_to_dtype(numbers, dtype);
    return is_strided ? shoal_slice(cast, n_dims - 1, 0, shape[n_dims - 1], 2) : cast;
}

/* A unit packs them as they are; made f32 first, the operation gives the same bits. */
static void check_mixed(const shoal_dtype *dtypes, bool is_strided)
{
    struct paper paper;
    shoal_tensor *grads[N_MIXED];
    shoal_tensor *wide[N_MIXED];
    REQUIRE(paper_open(&paper, MIXED_SHARDS));
    for (int i = 0; i < N_MIXED; i++) {
        grads[i] = draw_gradient(i, dtypes[i], is_strided);
        wide[i] = shoal_to_dtype(grads[i], SHOAL_F32);
        REQUIRE(paper_add(&paper, mixed_shapes[i].n_dims, mixed_shapes[i].shape, 0));
    }
    const shoal_tensor *wanted = shoal_chunk_cat(wide, N_MIXED, 0, MIXED_SHARDS, SHOAL_F32);
    REQUIRE(wanted != NULL);
    size_t row = (size_t)shoal_tensor_shape(wanted)[1];
    paper.unit->grads.dtype = SHOAL_F32;
    REQUIRE_OK(fsdp_unit_begin_grads(paper.unit));
    size_t at = 0;
    for (size_t i = 0; i < N_MIXED; i++) {
        struct fsdp_param *param = &paper.unit->params[i];
        fsdp_unit_put_grad(paper.unit, param, dtypes[i], address_of(shoal_data(shoal_contiguous(grads[i]))));
        for (size_t shard = 0; shard < MIXED_SHARDS; shard++) {
            CHECK_BYTES(block_of(&paper, i, shard), (const float *)shoal_data(wanted) + shard * row + at,
                        param->padded_count * sizeof(float));
        }
        at += param->padded_count;
    }
    CHECK_INT(at, row);
    paper_close(&paper);
}

TEST(gradients_of_several_dtypes_are_packed)
{
    for (int k = 0; k < 4; k++) {
        REQUIRE_OK(shoal_scope_begin());
        check_mixed(mixed_dtypes[k % 2], k / 2 == 1);
        CHECK_OK(shoal_scope_end());
    }
}

/* Refusals ----------------------------------------------------------------------------------------------- */

TEST(what_can_not_be_cut_is_refused_with_values)
{
    struct fsdp_param param;
    const int64_t shape[] = {6, 10};
    CHECK_STATUS(fsdp_param_init(&param, "w", SHOAL_F32, 2, shape, 1, 0, 4), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("w");
    CHECK_ERROR_TEXT("dimension 1");
    CHECK_ERROR_TEXT("10");
    CHECK_ERROR_TEXT("4");
    fsdp_param_free(&param);
    CHECK_STATUS(fsdp_param_init(&param, "w", SHOAL_F32, 2, shape, 2, 0, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("2");
    fsdp_param_free(&param);
    CHECK_STATUS(fsdp_param_init(&param, "scale", SHOAL_F32, 0, NULL, 0, 0, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("scale");
    CHECK_ERROR_TEXT("[1]");
    fsdp_param_free(&param);
}

TEST(negative_dimensions_count_from_the_end)
{
    struct fsdp_param param;
    REQUIRE_OK(fsdp_param_init(&param, "w", SHOAL_F32, 2, (const int64_t[]){3, 8}, -1, 1, 4));
    CHECK_INT(param.dim, 1);
    CHECK_INT(param.begin, 2);
    CHECK_INT(param.length, 2);
    fsdp_param_free(&param);
}
