/* SPDX-License-Identifier: MIT */
/*
 * The gradient of every collective against finite differences, in f64, on 1 to 4 ranks. A collective of ops.def
 * that has a gradient and no case fails the suite.
 *
 * The loss is the sum, over all ranks, of each rank's result times weights of its own. Each rank walks back from
 * its own part. The other side of the comparison moves one element of one rank at a time, runs the op on all
 * ranks, and adds up what all of them have: so a gradient that stays on its rank, or counts on two, is seen.
 */
#include <stdio.h>
#include <string.h>

#include "autograd/gradients.h"
#include "fixtures/groups.h"
#include "fixtures/rank_world.h"
#include "op/op.h"
#include "unit/autograd/fixture.h"

#define MAX_RANKS 4
#define MAX_INPUTS 3
#define MAX_ELEMS 32
#define STEP 1e-5
#define SYMMETRIC_PART_BYTES 4096

struct place {
    int rank;
    int n_ranks;
    shoal_group *group;
    shoal_symmetric *symmetric;
};

/* Sizes that are not known when the table is written. */
enum size {
    SENT_UNEVEN = -101, /* what the rank sends, by rows_sent */
    SENT_SPARSE = -102,
};

#define OF_RANKS(k) (-(k)) /* k times the number of ranks */

/* Some send each other nothing; with SENT_SPARSE the first sends nothing at all and the last gets nothing. */
static int64_t rows_sent(enum size kind, int n_ranks, int from, int to)
{
    if (kind == SENT_UNEVEN) {
        return (from + 2 * to) % 3;
    }
    return from == 0 || to == n_ranks - 1 ? 0 : 1 + (from + to) % 2;
}

struct shape {
    int n_dims;
    int64_t sizes[SHOAL_MAX_DIMS];
};

struct gradient_case {
    const char *op;
    const char *text;
    shoal_tensor *(*run)(const struct place *at, shoal_tensor *const *x);
    size_t n_inputs;
    struct shape shapes[MAX_INPUTS];
};

#include "conformance/functional/gradient_cases.h"

static const struct gradient_case cases[] = {
#define CASE(op, label, body, n, ...) {#op, #op ": " #label, run_##op##_##label, n, {__VA_ARGS__}},
    GRADIENT_CASES
#undef CASE
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

/* Inputs ----------------------------------------------------------------------------------------------- */

enum strides {
    CONTIGUOUS,
    TRANSPOSED, /* the last two dimensions lie the other way round in memory */
    SPACED,     /* every second element of a larger tensor */
    N_STRIDES
};

/* What rank `rank` gives. */
static struct shape shape_at(const struct shape *shape, int n_ranks, int rank)
{
    struct shape actual = *shape;
    for (int i = 0; i < shape->n_dims; i++) {
        int64_t size = shape->sizes[i];
        if (size == SENT_UNEVEN || size == SENT_SPARSE) {
            actual.sizes[i] = 0;
            for (int to = 0; to < n_ranks; to++) {
                actual.sizes[i] += rows_sent((enum size)size, n_ranks, rank, to);
            }
        } else if (size < 0) {
            actual.sizes[i] = -size * n_ranks;
        }
    }
    return actual;
}

static size_t count_elems(const struct shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->n_dims; i++) {
        count *= shape->sizes[i];
    }
    return (size_t)count;
}

/* No two ranks have the same number at the same place, nor numbers near to each other or to zero. */
static double choose_value(struct test_random *random, int rank)
{
    double sign = test_random_below(random, 2) != 0 ? 1 : -1;
    return sign * (0.5 + (double)test_random_below(random, 64) / 64 + (double)rank / 512);
}

static shoal_tensor *make_empty(struct shape shape, enum strides strides)
{
    int last = shape.n_dims - 1;
    if (strides == TRANSPOSED && last >= 1) {
        int64_t size = shape.sizes[last];
        shape.sizes[last] = shape.sizes[last - 1];
        shape.sizes[last - 1] = size;
        return shoal_transpose(shoal_empty(shape.sizes, shape.n_dims, SHOAL_F64), last, last - 1);
    }
    if (strides == SPACED && last >= 0) {
        shape.sizes[last] *= 2;
        return shoal_slice(shoal_zeros(shape.sizes, shape.n_dims, SHOAL_F64), last, 0, INT64_MAX, 2);
    }
    return shoal_empty(shape.sizes, shape.n_dims, SHOAL_F64);
}

/* The order of `values` is row-major, whatever the strides. */
static shoal_tensor *make_input(const struct shape *shape, double *values, enum strides strides)
{
    shoal_tensor *source =
        shoal_from_memory(values, shape->sizes, shape->n_dims, SHOAL_F64, NULL, NULL, NULL);
    return shoal_copy_(make_empty(*shape, strides), source);
}

/* The rank's part of the loss. Weights differ between elements and between ranks. */
static shoal_tensor *weigh(const struct place *at, shoal_tensor *result)
{
    if (!result) {
        return NULL;
    }
    shoal_tensor *weights = shoal_empty(shoal_tensor_shape(result), shoal_tensor_n_dims(result), SHOAL_F64);
    double *data = shoal_mutable_data(weights);
    for (int64_t i = 0; data && i < shoal_tensor_count(weights); i++) {
        data[i] = 0.5 + 0.125 * (double)((i * 5 + (int64_t)at->rank * 3) % 11);
    }
    return sum_all(shoal_mul(result, weights));
}

/* Finite differences ----------------------------------------------------------------------------------- */

/* A case on one rank: its inputs, and what the losses of all ranks say that its gradients are. */
struct trial {
    const struct gradient_case *tested;
    const struct place *at;
    struct shape shapes[MAX_INPUTS];
    double values[MAX_INPUTS][MAX_ELEMS];
    double expected[MAX_RANKS][MAX_INPUTS][MAX_ELEMS];
};

static double evaluate(struct trial *trial)
{
    shoal_tensor *inputs[MAX_INPUTS] = {NULL};
    double loss = (double)NAN;
    if (!CHECK_OK(shoal_scope_begin())) {
        return loss;
    }
    CHECK_OK(shoal_scope_set_grad(false));
    for (size_t i = 0; i < trial->tested->n_inputs; i++) {
        inputs[i] = make_input(&trial->shapes[i], trial->values[i], CONTIGUOUS);
    }
    loss = value_at(weigh(trial->at, trial->tested->run(trial->at, inputs)), 0);
    CHECK_OK(shoal_scope_end());
    return loss;
}

/* The derivative of this rank's loss when one element of `rank` moves; all ranks come here together. */
static double differentiate(struct trial *trial, int rank, size_t input, size_t element)
{
    double *value = &trial->values[input][element];
    double kept = *value;
    double losses[2];
    for (int i = 0; i < 2; i++) {
        if (rank == trial->at->rank) {
            *value = kept + (i == 0 ? STEP : -STEP);
        }
        losses[i] = evaluate(trial);
        *value = kept;
    }
    return (losses[0] - losses[1]) / (2 * STEP);
}

static void differentiate_all(struct trial *trial)
{
    const struct place *at = trial->at;
    memset(trial->expected, 0, sizeof trial->expected);
    for (int rank = 0; rank < at->n_ranks; rank++) {
        for (size_t i = 0; i < trial->tested->n_inputs; i++) {
            struct shape shape = shape_at(&trial->tested->shapes[i], at->n_ranks, rank);
            for (size_t k = 0; k < count_elems(&shape); k++) {
                trial->expected[rank][i][k] = differentiate(trial, rank, i, k);
            }
        }
    }
    CHECK_OK(shoal_group_all_reduce(at->group, trial->expected, trial->expected,
                                    sizeof trial->expected / sizeof(double), SHOAL_F64, SHOAL_SUM));
}

/* Walking back ----------------------------------------------------------------------------------------- */

static void compare(const struct trial *trial, enum strides strides, size_t input,
                    const shoal_tensor *gradient)
{
    for (size_t i = 0; i < count_elems(&trial->shapes[input]); i++) {
        double expected = trial->expected[trial->at->rank][input][i];
        /* Nothing flows where all is overwritten. */
        double actual = gradient ? value_at(gradient, (int64_t)i) : 0;
        if (!(fabs(actual - expected) <= 1e-6 * (1 + fabs(expected))) && !test_has_failed()) {
            test_failed(__FILE__, __LINE__, "%s: strides %d, input %zu, element %zu: %.12g, expected %.12g",
                        trial->tested->text, (int)strides, input, i, actual, expected);
        }
    }
}

/* needs: a bit for each input that requires a gradient. */
static void walk_back(struct trial *trial, enum strides strides, unsigned needs)
{
    const struct gradient_case *tested = trial->tested;
    shoal_tensor *inputs[MAX_INPUTS] = {NULL};
    REQUIRE_OK(shoal_scope_begin());
    for (size_t i = 0; i < tested->n_inputs; i++) {
        inputs[i] = make_input(&trial->shapes[i], trial->values[i], strides);
        if ((needs >> i & 1) != 0) {
            (void)require_grad(inputs[i]);
        }
    }
    shoal_tensor *loss = weigh(trial->at, tested->run(trial->at, inputs));
    if (shoal_scope_error() == SHOAL_OK && !shoal_requires_grad(loss)) {
        /* Of several inputs only one was asked for, and nothing comes of that. */
        CHECK(needs + 1 != 1u << tested->n_inputs);
    } else if (!CHECK_OK(shoal_scope_error()) || !CHECK_OK(shoal_backward(loss, NULL))) {
        (void)fprintf(stderr, "  in %s, strides %d, needs %u\n", tested->text, (int)strides, needs);
    }
    for (size_t i = 0; i < tested->n_inputs; i++) {
        if ((needs >> i & 1) != 0) {
            compare(trial, strides, i, shoal_grad(inputs[i]));
        } else {
            CHECK(!shoal_grad(inputs[i]));
        }
    }
    CHECK_OK(shoal_scope_end());
}

static void check_case(const struct place *at, const struct gradient_case *tested)
{
    struct trial trial = {.tested = tested, .at = at};
    struct test_random random = test_random_begin(strlen(tested->text));
    for (size_t i = 0; i < tested->n_inputs; i++) {
        trial.shapes[i] = shape_at(&tested->shapes[i], at->n_ranks, at->rank);
        REQUIRE(count_elems(&trial.shapes[i]) <= MAX_ELEMS);
        for (size_t k = 0; k < MAX_ELEMS; k++) {
            trial.values[i][k] = choose_value(&random, at->rank);
        }
    }
    differentiate_all(&trial);
    for (int strides = 0; strides < N_STRIDES; strides++) {
        walk_back(&trial, (enum strides)strides, (1u << tested->n_inputs) - 1);
    }
    /* A gradient function must not lean on the other inputs needing one too. */
    for (unsigned i = 0; i < tested->n_inputs && tested->n_inputs > 1; i++) {
        walk_back(&trial, CONTIGUOUS, 1u << i);
    }
}

static void check_all_in(shoal_group *group,
                         void (*check)(const struct place *at, const struct gradient_case *tested))
{
    REQUIRE(group);
    struct place at = {
        .rank = shoal_group_rank(group), .n_ranks = shoal_group_n_ranks(group), .group = group};
    REQUIRE_OK(shoal_symmetric_create(group, (size_t)2 * SYMMETRIC_PART_BYTES, &at.symmetric));
    for (size_t i = 0; i < N_CASES; i++) {
        check(&at, &cases[i]);
    }
    shoal_symmetric_free(at.symmetric);
}

static void check_all(const struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    check_all_in(shoal_world_group(world), check_case);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(finite_differences_on_2_ranks, 2)
{
    check_all(self);
}

TEST_RANKS(finite_differences_on_3_ranks, 3)
{
    check_all(self);
}

TEST_RANKS(finite_differences_on_4_ranks, 4)
{
    check_all(self);
}

/* Alone, a collective is its input. */
TEST_RANKS(finite_differences_on_1_rank, 1)
{
    check_all(self);
}

/* Ranks of the group are not those of the world, and one of these is not in it. */
TEST_RANKS(finite_differences_in_a_group, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    if (self->rank != 1) {
        check_all_in(group_of_ranks(world, (const int[]){3, 0, 2}, 3, NULL), check_case);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Memory ----------------------------------------------------------------------------------------------- */

/* There and back, once. */
static shoal_status run_in_scope(struct trial *trial)
{
    shoal_tensor *inputs[MAX_INPUTS] = {NULL};
    for (size_t i = 0; i < trial->tested->n_inputs; i++) {
        inputs[i] = make_input(&trial->shapes[i], trial->values[i], SPACED);
        if (inputs[i]) {
            shoal_status status = shoal_set_requires_grad(inputs[i], true);
            if (status != SHOAL_OK) {
                return status;
            }
        }
    }
    shoal_tensor *loss = weigh(trial->at, trial->tested->run(trial->at, inputs));
    return loss ? shoal_backward(loss, NULL) : shoal_scope_error();
}

static shoal_status run_once(void *context)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = run_in_scope(context);
    shoal_status end_status = shoal_scope_end();
    /* What was started before the failure keeps its memory until somebody has pushed the lane along. */
    CHECK_OK(shoal_group_barrier(((struct trial *)context)->at->group));
    return status == SHOAL_OK ? end_status : status;
}

static void sweep_case(const struct place *at, const struct gradient_case *tested)
{
    struct trial trial = {.tested = tested, .at = at};
    for (size_t i = 0; i < tested->n_inputs; i++) {
        trial.shapes[i] = shape_at(&tested->shapes[i], at->n_ranks, at->rank);
    }
    /* The first time connects the group, which keeps what that takes. */
    if (CHECK_OK(run_once(&trial))) {
        CHECK(test_sweep_allocations(run_once, &trial) > 1);
    }
}

/* Without peers, where nobody waits for a rank that gave up. */
TEST(no_memory_on_the_way_back)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 3, .rank = 1, .key = "memory", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    check_all_in(shoal_world_group(world), sweep_case);
    CHECK_OK(shoal_world_close(world));
}

/* The table -------------------------------------------------------------------------------------------- */

TEST(every_collective_with_a_gradient_has_a_case)
{
    const shoal_op *op;
    size_t n_collectives = 0;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        size_t n_found = 0;
        bool has_gradient = gradients_find(op) != NULL;
        for (size_t k = 0; k < N_CASES; k++) {
            n_found += strcmp(cases[k].op, op->name) == 0 ? 1 : 0;
        }
        if ((op->flags & SHOAL_OP_COLLECTIVE) == 0) {
            continue;
        }
        n_collectives++;
        if (has_gradient != (n_found > 0)) {
            test_failed(__FILE__, __LINE__, "op %s has %s gradient, but %zu cases", op->name,
                        has_gradient ? "a" : "no", n_found);
        }
    }
    CHECK(n_collectives > 0);
}
