/* SPDX-License-Identifier: MIT */
/*
 * Parameters of all kinds in units: frozen, thawed, empty, of whole numbers, cut along any dimension; and how their
 * values come in and out. What a rank reads between pre_forward and post_forward must be what was put in, whatever
 * happened before.
 */
#include <stdlib.h>

#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_kinds.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

static void count_up(float *values, size_t count, float first)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = first + (float)i;
    }
}

/* A unit's forward, in which a parameter has the values first, first + 1, ... */
static void check_forward(shoal_fsdp *fsdp, int unit, int id, size_t count, float first)
{
    float wanted[256];
    count_up(wanted, count, first);
    REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
    const void *actual = shoal_fsdp_full_param(fsdp, id);
    CHECK(actual != NULL);
    CHECK(!actual || CHECK_BYTES(actual, wanted, count * sizeof(float)));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
}

/* A backward pass in which every element of a gradient gets `value`; id -1: none does. */
static void run_backward(shoal_fsdp *fsdp, int unit, int id, size_t count, float value)
{
    REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, unit));
    float *grad = id >= 0 ? shoal_fsdp_grad(fsdp, id) : NULL;
    CHECK(id < 0 || grad != NULL);
    for (size_t i = 0; grad && i < count; i++) {
        grad[i] += value;
    }
    CHECK_OK(shoal_fsdp_post_backward(fsdp, unit));
}

static void check_gradient(shoal_fsdp *fsdp, int id, float value)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
    REQUIRE(shard.grad != NULL);
    for (size_t i = 0; i < shard.count; i++) {
        CHECK_DOUBLE((double)((const float *)shard.grad)[i], (double)value);
    }
}

static void check_no_gradient(shoal_fsdp *fsdp, int id)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
    CHECK(shard.grad == NULL);
}

/* Values in and out ---------------------------------------------------------------------------------------- */

/* All in one unit. */
static void check_values(struct rank *self, enum model_mode mode)
{
    struct setting s;
    unsigned char bytes[256];
    REQUIRE(setting_open(self, &s, mode, NULL));
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        int id = -1;
        fill(kind, bytes, 0);
        CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "w", kinds[kind].dtype, kinds[kind].n_dims,
                                            kinds[kind].shape, kinds[kind].dim, bytes, &id));
        CHECK_INT(id, kind);
        CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, id, false)); /* of several dtypes */
    }
    CHECK_INT(shoal_fsdp_n_params(s.fsdp), LENGTH(kinds));
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        check_gathered(&s, kind, 0);
    }
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        const void *whole = shoal_fsdp_full_param(s.fsdp, kind);
        fill(kind, bytes, 0);
        CHECK(bytes_of(kind) == 0 || (whole && CHECK_BYTES(whole, bytes, bytes_of(kind))));
    }
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        fill(kind, bytes, 1);
        CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, kind), bytes_of(kind) > 0 ? bytes : NULL));
        check_gathered(&s, kind, 1);
    }
    int n_shards = mode == MODEL_FSDP ? s.n_ranks : mode == MODEL_HSDP ? s.n_ranks / 2 : 1;
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        int root = kind % n_shards;
        fill(kind, bytes, s.rank == root ? 2 : 90 + s.rank); /* only the root's count */
        CHECK_OK(
            shoal_fsdp_broadcast(shoal_fsdp_param_of(s.fsdp, kind), s.rank == root ? bytes : NULL, root));
        check_gathered(&s, kind, 2);
    }
    setting_close(&s);
}

TEST_RANKS(values_alone, 1)
{
    check_values(self, MODEL_FSDP);
}

TEST_RANKS(values_of_two_shards, 2)
{
    check_values(self, MODEL_FSDP);
}

TEST_RANKS(values_of_four_shards, 4)
{
    check_values(self, MODEL_FSDP);
}

TEST_RANKS(values_of_two_by_two, 4)
{
    check_values(self, MODEL_HSDP);
}

TEST_RANKS(values_of_replicas, 3)
{
    check_values(self, MODEL_DDP);
}

/* Any rank of the group may be the root. */
TEST_RANKS(any_replica_may_be_the_root, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_DDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(4), NULL, NULL));
    for (int root = 0; root < s.n_ranks; root++) {
        float values[4];
        float actual[4];
        float wanted[4];
        count_up(values, 4, (float)(10 * s.rank));
        count_up(wanted, 4, (float)(10 * root));
        CHECK_OK(shoal_fsdp_broadcast(shoal_fsdp_param_of(s.fsdp, 0), s.rank == root ? values : NULL, root));
        CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 0), actual, SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(actual, wanted, sizeof wanted);
    }
    setting_close(&s);
}

TEST_RANKS(any_rank_of_a_mesh_may_be_the_root, 4)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_HSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(5), NULL, NULL));
    for (int root = 0; root < s.n_ranks; root++) {
        float values[5];
        float actual[5];
        float wanted[5];
        count_up(values, 5, (float)(10 * s.rank));
        count_up(wanted, 5, (float)(10 * root));
        CHECK_OK(shoal_fsdp_broadcast(shoal_fsdp_param_of(s.fsdp, 0), s.rank == root ? values : NULL, root));
        CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 0), actual, SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(actual, wanted, sizeof wanted);
    }
    setting_close(&s);
}

TEST_RANKS(shards_say_where_they_are, 4)
{
    static const int64_t begins[] = {0, 2, 4, 5};
    static const int64_t lengths[] = {2, 2, 1, 0};
    struct setting s;
    float values[40];
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    count_up(values, 40, 0.0F);
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "rows", SHOAL_F32, 2, SHAPE(5, 3), values, NULL));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "columns", SHOAL_F32, 2, SHAPE(2, 12), 1, values, NULL));
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 0, &shard));
    CHECK_INT(shard.offset, begins[s.rank]);
    CHECK_INT(shard.length, lengths[s.rank]);
    CHECK_INT(shard.count, lengths[s.rank] * 3);
    CHECK(shard.data != NULL);
    CHECK(shard.grad == NULL);
    CHECK_BYTES(shard.data, values + begins[s.rank] * 3, shard.count * sizeof(float));
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 1, &shard));
    CHECK_INT(shard.offset, 3 * s.rank);
    CHECK_INT(shard.length, 3);
    CHECK_INT(shard.count, 6);
    CHECK_BYTES(shard.data, values + 3 * s.rank, 3 * sizeof(float));
    CHECK_BYTES((const float *)shard.data + 3, values + 12 + 3 * s.rank, 3 * sizeof(float));
    CHECK_STRING(shoal_fsdp_param_name(shoal_fsdp_param_of(s.fsdp, 0)), "rows");
    CHECK_STRING(shoal_fsdp_param_name(shoal_fsdp_param_of(s.fsdp, 1)), "columns");
    setting_close(&s);
}

/* The address is the optimizer's to keep. */
TEST_RANKS(shards_stay_where_they_are, 3)
{
    struct setting s;
    float values[7];
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    count_up(values, 7, 1.0F);
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(7), values, NULL));
    shoal_fsdp_shard first = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 0, &first));
    for (int step = 0; step < 3; step++) {
        check_forward(s.fsdp, 0, 0, 7, 1.0F);
        run_backward(s.fsdp, 0, 0, 7, 1.0F);
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, 0), values));
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 0, &shard));
        CHECK(shard.data == first.data);
    }
    setting_close(&s);
}

/* Old values ----------------------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    shoal_reshard reshard;
    shoal_dtype param_dtype;
} ways[] = {{"always", SHOAL_RESHARD_ALWAYS, 0},
            {"never", SHOAL_RESHARD_NEVER, 0},
            {"partly", SHOAL_RESHARD_PARTLY, 0},
            {"always, cast", SHOAL_RESHARD_ALWAYS, SHOAL_F64},
            {"never, cast", SHOAL_RESHARD_NEVER, SHOAL_F64},
            {"partly, cast", SHOAL_RESHARD_PARTLY, SHOAL_F64}};

/* The backward pass of a forward that saw other values is refused; another forward makes it good. */
TEST_RANKS(values_loaded_before_the_backward, 2)
{
    struct setting s;
    const float values[9] = {1.0F};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(9), NULL, NULL));
    for (int way = 0; way < 3; way++) {
        shoal_fsdp_param *param = shoal_fsdp_param_of(s.fsdp, 0);
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        CHECK_OK(way == 0   ? shoal_fsdp_load(param, values)
                 : way == 1 ? shoal_fsdp_load_slice(param, 0, 1, values)
                            : shoal_fsdp_broadcast(param, values, 0));
        CHECK_STATUS(shoal_fsdp_pre_backward(s.fsdp, 0), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("pre_backward: values of unit 0 were loaded after its forward pass");
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    }
    setting_close(&s);
}

/* The first element of what a forward reads. */
static double read_first(shoal_fsdp *fsdp, bool is_cast)
{
    double value = (double)NAN;
    if (CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0))) {
        const void *whole = shoal_fsdp_full_param(fsdp, 0);
        CHECK(whole != NULL);
        value = !whole ? (double)NAN : is_cast ? *(const double *)whole : (double)*(const float *)whole;
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    }
    return value;
}

static void check_fresh(struct rank *self, int way, bool is_replicated,
                        void (*body)(struct setting *s, bool is_cast))
{
    struct setting s;
    int n_neighbours = is_replicated || self->n_ranks < 4 ? 1 : 2;
    shoal_fsdp_options options = {
        .reshard = ways[way].reshard, .reshard_ranks = n_neighbours, .param_dtype = ways[way].param_dtype};
    REQUIRE(setting_open(self, &s, is_replicated ? MODEL_DDP : MODEL_FSDP, &options));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(9), NULL, NULL));
    body(&s, ways[way].param_dtype != 0);
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "%s%s", ways[way].what, is_replicated ? ", replicated" : "");
    }
    setting_close(&s);
}

static void check_all_fresh(struct rank *self, void (*body)(struct setting *s, bool is_cast))
{
    for (int way = 0; way < LENGTH(ways) && !test_has_failed(); way++) {
        check_fresh(self, way, false, body);
        check_fresh(self, way, true, body);
    }
}

/* Forwards only, as in an evaluation; then values are loaded. */
static void load_after_forward(struct setting *s, bool is_cast)
{
    float values[9];
    for (int k = 1; k <= 3; k++) {
        count_up(values, 9, (float)k);
        CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(s->fsdp, 0), values));
        CHECK_DOUBLE(read_first(s->fsdp, is_cast), k);
        CHECK_DOUBLE(read_first(s->fsdp, is_cast), k);
    }
}

TEST_RANKS(values_loaded_after_a_forward_are_seen, 1)
{
    check_all_fresh(self, load_after_forward);
}

TEST_RANKS(values_loaded_after_a_forward_are_seen_by_all, 4)
{
    check_all_fresh(self, load_after_forward);
}

static void broadcast_after_forward(struct setting *s, bool is_cast)
{
    float values[9];
    for (int k = 1; k <= 3; k++) {
        count_up(values, 9, (float)k);
        CHECK_OK(shoal_fsdp_broadcast(shoal_fsdp_param_of(s->fsdp, 0), s->rank == 0 ? values : NULL, 0));
        CHECK_DOUBLE(read_first(s->fsdp, is_cast), k);
    }
}

TEST_RANKS(values_broadcast_after_a_forward_are_seen, 4)
{
    check_all_fresh(self, broadcast_after_forward);
}

/* The unit had a forward and no backward pass (its loss was not wanted); then an optimizer wrote to its shard. */
static void update_without_backward(struct setting *s, bool is_cast)
{
    for (int k = 1; k <= 3; k++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, 0, &shard));
        for (size_t i = 0; i < shard.count; i++) {
            ((float *)shard.data)[i] = (float)k;
        }
        CHECK_DOUBLE(read_first(s->fsdp, is_cast), k);
        CHECK_OK(shoal_fsdp_end_backward(s->fsdp));
    }
}

TEST_RANKS(a_step_without_backward_leaves_nothing, 4)
{
    check_all_fresh(self, update_without_backward);
}

static void update_after_backward(struct setting *s, bool is_cast)
{
    for (int k = 1; k <= 3; k++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, 0, &shard));
        for (size_t i = 0; i < shard.count; i++) {
            ((float *)shard.data)[i] = (float)k;
        }
        CHECK_DOUBLE(read_first(s->fsdp, is_cast), k);
        run_backward(s->fsdp, 0, -1, 0, 0.0F);
        CHECK_OK(shoal_fsdp_end_backward(s->fsdp));
    }
}

TEST_RANKS(what_an_optimizer_writes_is_seen, 4)
{
    check_all_fresh(self, update_after_backward);
}

/* Frozen and thawed ---------------------------------------------------------------------------------------- */

TEST_RANKS(frozen_parameters_get_no_gradient, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 2, SHAPE(5, 2), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "b", SHOAL_F32, 1, SHAPE(4), NULL, NULL));
    CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, 0, false));
    check_forward(s.fsdp, 0, 0, 0, 0.0F);
    REQUIRE_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    CHECK(shoal_fsdp_grad(s.fsdp, 0) == NULL);
    CHECK_ERROR_TEXT("w");
    CHECK_ERROR_TEXT("no gradient");
    CHECK(shoal_fsdp_grad(s.fsdp, 1) != NULL);
    CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    check_no_gradient(s.fsdp, 0);
    check_gradient(s.fsdp, 1, 0.0F);
    setting_close(&s);
}

/* Every set of trainable parameters after every other; with casts, several dimensions, and replicas. */
static void check_toggling(struct rank *self, enum model_mode mode, const shoal_fsdp_options *options)
{
    static const struct {
        int n_dims;
        int64_t shape[2];
        int dim;
    } params[] = {{1, {5}, 0}, {2, {3, 12}, 1}, {2, {7, 20}, 0}};
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, options));
    for (int id = 0; id < LENGTH(params); id++) {
        CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "w", SHOAL_F32, params[id].n_dims, params[id].shape,
                                            params[id].dim, NULL, NULL));
    }
    for (int round = 0; round < 64 && !test_has_failed(); round++) {
        int set = (round * 37 + 1) % 8;
        for (int id = 0; id < LENGTH(params); id++) {
            CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, id, (set >> id) % 2 == 1));
        }
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
        for (int id = 0; id < LENGTH(params); id++) {
            size_t count = (size_t)(params[id].shape[0] * (params[id].n_dims > 1 ? params[id].shape[1] : 1));
            void *grad = shoal_fsdp_grad(s.fsdp, id);
            CHECK_INT(grad != NULL, (set >> id) % 2);
            for (size_t i = 0; grad && i < count; i++) {
                if (options->param_dtype == SHOAL_F64) {
                    ((double *)grad)[i] += id + 1;
                } else {
                    ((float *)grad)[i] += (float)(id + 1);
                }
            }
        }
        CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        for (int id = 0; id < LENGTH(params); id++) {
            if ((set >> id) % 2 == 1) {
                check_gradient(s.fsdp, id, (float)(id + 1));
            } else {
                check_no_gradient(s.fsdp, id);
            }
        }
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    }
    setting_close(&s);
}

TEST_RANKS(any_set_may_be_frozen, 2)
{
    check_toggling(self, MODEL_FSDP, &(shoal_fsdp_options){.param_dtype = 0});
}

TEST_RANKS(any_set_may_be_frozen_with_casts, 4)
{
    check_toggling(self, MODEL_FSDP,
                   &(shoal_fsdp_options){.param_dtype = SHOAL_F64, .reduce_dtype = SHOAL_F32});
    check_toggling(self, MODEL_HSDP,
                   &(shoal_fsdp_options){.param_dtype = SHOAL_F64, .reduce_dtype = SHOAL_F32});
}

TEST_RANKS(any_set_may_be_frozen_on_replicas, 3)
{
    check_toggling(self, MODEL_DDP, &(shoal_fsdp_options){.param_dtype = 0});
}

/* Replicas have not added up yet what a step with fewer parameters left: another set would be mixed up with it. */
TEST_RANKS(no_thawing_while_replicas_keep_gradients, 4)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_HSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "small", SHOAL_F32, 1, SHAPE(4), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "large", SHOAL_F32, 1, SHAPE(4000), NULL, NULL));
    CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, 1, false));
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    check_forward(s.fsdp, 0, 0, 0, 0.0F);
    run_backward(s.fsdp, 0, 0, 4, 1.0F);
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    check_no_gradient(s.fsdp, 0);
    CHECK_STATUS(shoal_fsdp_set_requires_grad(s.fsdp, 1, true), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("unit 0");
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    run_backward(s.fsdp, 0, 0, 4, 1.0F);
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    check_gradient(s.fsdp, 0, 2.0F);
    /* Now there is nothing, and partial sums of another size may come. */
    CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, 1, true));
    for (int k = 0; k < 2; k++) {
        CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), k == 1));
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        run_backward(s.fsdp, 0, 1, 4000, 1.0F);
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    }
    check_gradient(s.fsdp, 1, 2.0F);
    setting_close(&s);
}

/* Of a unit that was frozen when the dtypes were chosen. */
TEST_RANKS(thawed_later_gradients_keep_their_dtype, 2)
{
    struct setting s;
    const double tiny = 1.0 + ldexp(1.0, -40); /* nothing that f32 could hold */
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F64, 1, SHAPE(6), NULL, NULL));
    CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, 0, false));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, 0, true));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    double *grad = shoal_fsdp_grad(s.fsdp, 0);
    REQUIRE(grad != NULL);
    for (int i = 0; i < 6; i++) {
        grad[i] += tiny;
    }
    CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 0, &shard));
    REQUIRE(shard.grad != NULL);
    CHECK_DOUBLE(((const double *)shard.grad)[0], tiny);
    setting_close(&s);
}

/* Odd units ------------------------------------------------------------------------------------------------ */

TEST_RANKS(whole_numbers_live_next_to_gradients, 2)
{
    struct setting s;
    const int64_t numbers[] = {1, -5, INT64_MAX};
    shoal_fsdp_options options = {.param_dtype = SHOAL_BF16};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &options));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "ids", SHOAL_I64, 1, SHAPE(3), numbers, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_STATUS(shoal_fsdp_set_requires_grad(s.fsdp, 0, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ids");
    CHECK_ERROR_TEXT("i64");
    for (int step = 0; step < 2; step++) {
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        const void *whole = shoal_fsdp_full_param(s.fsdp, 0);
        CHECK(whole && CHECK_BYTES(whole, numbers, sizeof numbers)); /* and not cast */
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        run_backward(s.fsdp, 0, -1, 0, 0.0F);
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        check_no_gradient(s.fsdp, 0);
        check_gradient(s.fsdp, 1, 0.0F);
    }
    setting_close(&s);
}

TEST_RANKS(a_unit_may_have_nothing_to_learn, 3)
{
    struct setting s;
    float values[6];
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    count_up(values, 6, 3.0F);
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "frozen", SHOAL_F32, 1, SHAPE(6), values, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 1, "w", SHOAL_F32, 1, SHAPE(2), NULL, NULL));
    CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, 0, false));
    for (int step = 0; step < 3; step++) {
        check_forward(s.fsdp, 0, 0, 6, 3.0F);
        check_forward(s.fsdp, 1, 1, 0, 0.0F);
        run_backward(s.fsdp, 1, 1, 2, (float)self->rank);
        run_backward(s.fsdp, 0, -1, 0, 0.0F);
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        check_no_gradient(s.fsdp, 0);
        check_gradient(s.fsdp, 1, 1.0F);
        double norm;
        CHECK_OK(shoal_fsdp_clip_grad_norm(s.fsdp, 100.0, 2.0, false, &norm));
        CHECK_DOUBLE(norm, sqrt(2.0));
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    }
    setting_close(&s);
}

/* Alone in its unit, and next to others; along its empty dimension and another. */
static void check_empty(struct rank *self, enum model_mode mode, const shoal_fsdp_options *options)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, options));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "empty", SHOAL_F32, 2, SHAPE(0, 3), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 1, "wide", SHOAL_F32, 2, SHAPE(0, 4), 1, NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 1, "flat", SHOAL_F32, 2, SHAPE(3, 0), 1, NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 2, "none", SHOAL_F32, 1, SHAPE(0), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 2, "w", SHOAL_F32, 1, SHAPE(4), NULL, NULL));
    for (int step = 0; step < 3; step++) {
        for (int unit = 0; unit < 3; unit++) {
            CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, unit));
            CHECK_OK(shoal_fsdp_post_forward(s.fsdp, unit));
        }
        for (int unit = 2; unit >= 0; unit--) {
            CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, unit));
            for (int id = 0; id < 5; id++) {
                (void)shoal_fsdp_grad(s.fsdp, id); /* whatever: there is nothing to write */
            }
            CHECK_OK(shoal_fsdp_post_backward(s.fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        check_gradient(s.fsdp, 4, 0.0F);
        double norm;
        CHECK_OK(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, 2.0, false, &norm));
        CHECK_DOUBLE(norm, 0.0);
        for (int id = 0; id < 4; id++) {
            shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
            REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, id, &shard));
            CHECK_INT(shard.count, 0);
            CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, id), NULL, SHOAL_FSDP_ALL_RANKS));
            CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, id), NULL));
            CHECK_OK(shoal_fsdp_broadcast(shoal_fsdp_param_of(s.fsdp, id), NULL, 0));
        }
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    }
    setting_close(&s);
}

TEST_RANKS(empty_parameters, 2)
{
    check_empty(self, MODEL_FSDP, NULL);
    check_empty(self, MODEL_DDP, NULL);
    check_empty(self, MODEL_FSDP, &(shoal_fsdp_options){.param_dtype = SHOAL_F64, .reduce_dtype = SHOAL_F32});
    check_empty(self, MODEL_DDP, &(shoal_fsdp_options){.param_dtype = SHOAL_F64, .reduce_dtype = SHOAL_F32});
    check_empty(self, MODEL_FSDP, &(shoal_fsdp_options){.reshard = SHOAL_RESHARD_NEVER});
}

TEST_RANKS(empty_parameters_alone, 1)
{
    check_empty(self, MODEL_FSDP, NULL);
    check_empty(self, MODEL_FSDP, &(shoal_fsdp_options){.param_dtype = SHOAL_F64});
}

TEST_RANKS(empty_parameters_over_neighbours, 4)
{
    check_empty(self, MODEL_FSDP, &(shoal_fsdp_options){.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2});
}

/* One that learns and one that is compared with: both on the same ranks. */
TEST_RANKS(two_models_at_once, 3)
{
    struct setting s;
    shoal_fsdp *second = NULL;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_create(shoal_world_group(s.world), NULL, &second));
    float values[8];
    count_up(values, 8, 1.0F);
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(8), values, NULL));
    count_up(values, 8, 21.0F);
    CHECK_OK(shoal_fsdp_add_param(second, 0, "w", SHOAL_F32, 1, SHAPE(8), values, NULL));
    for (int step = 0; step < 3; step++) {
        check_forward(s.fsdp, 0, 0, 8, 1.0F);
        check_forward(second, 0, 0, 8, 21.0F);
        CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
        run_backward(second, 0, 0, 8, 2.0F);
        CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(second));
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        check_gradient(second, 0, 2.0F * (float)(step + 1));
        check_gradient(s.fsdp, 0, 0.0F);
    }
    shoal_fsdp_free(second);
    setting_close(&s);
}

/* What a gradient was is not lost to the second pre_backward of a unit with two outputs. */
static void check_twice(struct rank *self, const shoal_fsdp_options *options, int dim)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, options));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "w", SHOAL_F32, 2, SHAPE(3, 4), dim, NULL, NULL));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    float *grad = shoal_fsdp_grad(s.fsdp, 0);
    REQUIRE(grad != NULL);
    for (int i = 0; i < 12; i++) {
        grad[i] += 1.0F;
    }
    run_backward(s.fsdp, 0, 0, 12, 1.0F);
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    check_gradient(s.fsdp, 0, 2.0F);
    setting_close(&s);
}

TEST_RANKS(pre_backward_twice_keeps_gradients, 2)
{
    check_twice(self, NULL, 0);
    check_twice(self, NULL, 1);
    check_twice(self, &(shoal_fsdp_options){.reduce_dtype = SHOAL_F64}, 0);
}

/* Used twice in a forward: each backward pass is reduced, and both are in the gradient; or waits for the second. */
TEST_RANKS(a_unit_that_is_used_twice_adds_up, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &(shoal_fsdp_options){.max_reduces = 2}));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(7), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "v", SHOAL_F32, 2, SHAPE(2, 3), 1, NULL, NULL));
    for (int step = 0; step < 4; step++) {
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
            CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        }
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS),
                                         step % 2 == 0 || k == 1));
            CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
            float *grad = shoal_fsdp_grad(s.fsdp, 1);
            CHECK(grad != NULL);
            for (int i = 0; grad && i < 6; i++) {
                grad[i] += (float)(10 + k);
            }
            run_backward(s.fsdp, 0, 0, 7, (float)(self->rank + k));
        }
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        check_gradient(s.fsdp, 0, 3.0F); /* the mean of 0, 1, 2, and of 1, 2, 3 */
        check_gradient(s.fsdp, 1, 21.0F);
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    }
    setting_close(&s);
}
