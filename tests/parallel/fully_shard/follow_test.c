/* SPDX-License-Identifier: MIT */
/*
 * FSDP and ZeRO refuse parameters that come after their module was sharded: their gradients would stay on each rank.
 * Freezing and thawing shards between steps is followed.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/late_net.h"
#include "shoal/mesh.h"

typedef void (*changer)(struct late *late);

static void add_parameter(struct late *late)
{
    (void)CHECK_OK(shoal_module_add_parameter(late->net, "late", late_tensor(1.0, true)));
}

static void add_to_layer(struct late *late)
{
    (void)CHECK_OK(shoal_module_add_parameter(late->layer, "late", late_tensor(1.0, true)));
}

static void add_child(struct late *late)
{
    (void)late_add_layer(late->net, "late");
}

static void add_child_to_layer(struct late *late)
{
    (void)late_add_layer(late->layer, "late");
}

static void replace(struct late *late)
{
    (void)CHECK_OK(shoal_module_set_parameter(late->net, "layer.w", late_tensor(3.0, true)));
}

static void tie(struct late *late)
{
    (void)CHECK_OK(shoal_module_set_parameter(late->net, "layer.w", shoal_module_parameter(late->net, "w")));
}

static const struct {
    changer change;
    const char *text;
} changes[] = {
    {add_parameter, "parameter late requires a gradient and was added after its module was sharded"},
    {add_to_layer, "late requires a gradient and was added after its module was sharded"},
    {add_child, "parameter late.w requires a gradient and was added after its module was sharded"},
    {add_child_to_layer, "late.w requires a gradient and was added after its module was sharded"},
    {replace, "was replaced after its module was sharded"},
    {tie, "was replaced after its module was sharded"},
};

enum {
    N_CHANGES = sizeof changes / sizeof changes[0]
};

static void refuse(struct rank *self, size_t index, bool is_compiled, shoal_sharded sharded, bool is_alone)
{
    struct late late;
    REQUIRE(late_open(&late, self, is_compiled));
    if (late_shard(&late, sharded) && CHECK_OK(late_step(&late)) && CHECK_OK(late_step(&late))) {
        bool is_mine = !is_alone || self->rank == 1;
        late_check_means(&late);
        if (is_mine) {
            changes[index].change(&late);
        }
        shoal_status status = late_step(&late);
        if (is_mine) {
            (void)CHECK_STATUS(status, SHOAL_ERR_STATE);
            (void)CHECK_ERROR_TEXT(changes[index].text);
        } else {
            CHECK(status == SHOAL_ERR_STATE || status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_PEER);
        }
        test_barrier(self); /* a rank that leaves would be another reason */
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "change %zu, compiled %d, sharded %d, alone %d", index, is_compiled,
                    (int)sharded, is_alone);
    }
    late_close(&late);
}

TEST_RANKS(parameters_that_come_late_are_refused, 2)
{
    for (size_t i = 0; i < N_CHANGES; i++) {
        for (int k = 0; k < 6 && !test_has_failed(); k++) {
            refuse(self, i, k % 2 == 1, (shoal_sharded)(k / 2), false);
        }
    }
}

TEST_RANKS(ranks_whose_tree_is_right_are_told, 2)
{
    for (size_t i = 0; i < N_CHANGES; i++) {
        for (int k = 0; k < 6 && !test_has_failed(); k++) {
            refuse(self, i, k % 2 == 1, (shoal_sharded)(k / 2), true);
        }
    }
}

TEST_RANKS(freezing_and_thawing_is_followed, 2)
{
    for (int k = 0; k < 6 && !test_has_failed(); k++) {
        struct late late;
        REQUIRE(late_open(&late, self, k % 2 == 1));
        REQUIRE(late_shard(&late, (shoal_sharded)(k / 2)));
        CHECK_OK(late_step(&late));
        shoal_tensor *shard = shoal_module_parameter(late.net, "layer.w");
        CHECK_OK(shoal_set_requires_grad(shard, false));
        CHECK_OK(late_step(&late));
        CHECK(!shoal_grad(shard));
        late_check_means(&late);
        CHECK_OK(shoal_set_requires_grad(shard, true));
        CHECK_OK(late_step(&late));
        CHECK(shoal_grad(shard) != NULL);
        late_check_means(&late);
        late_close(&late);
    }
}

/* Between passes ----------------------------------------------------------------------------------------- */

/* A step in which the ranks of `mask` freeze a parameter between the forward and the backward pass. A compiled step does
   that while it is captured. */
struct between {
    struct late late;
    const char *path;
    int mask;
};

static shoal_status run_between(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct between *between = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_module_call_one(between->late.net, inputs[0]);
    if ((between->mask >> between->late.self->rank) & 1) {
        (void)CHECK_OK(
            shoal_set_requires_grad(shoal_module_parameter(between->late.net, between->path), false));
    }
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

static shoal_status step_between(struct between *between)
{
    shoal_tensor *loss = NULL;
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, between->late.self->rank + 1.0, SHOAL_F32);
    if (!between->late.is_compiled) {
        return run_between(between, &x, 1, &loss, 1);
    }
    shoal_compiled *compiled = NULL;
    (void)CHECK_OK(shoal_compile(between->late.world, run_between, between, 1, NULL, &compiled));
    shoal_status status = shoal_compiled_run(compiled, &x, 1, &loss, 1);
    shoal_tensor_unref(loss);
    shoal_compiled_free(compiled);
    return status;
}

static void freeze_between(struct rank *self, const char *path, int mask, int which)
{
    struct between between = {.path = path, .mask = mask};
    REQUIRE(late_open(&between.late, self, which % 2 == 1));
    REQUIRE(late_shard(&between.late, (shoal_sharded)(which / 2)));
    (void)CHECK_OK(late_step(&between.late));
    shoal_tensor *shard = shoal_module_parameter(between.late.net, path);
    (void)CHECK_OK(shoal_set_grad(shard, NULL));
    shoal_status status = step_between(&between);
    if (mask == 3 && status == SHOAL_OK) {
        CHECK(!shoal_grad(shard));
    } else if (mask == 3) {
        (void)CHECK_STATUS(status, SHOAL_ERR_STATE);
    } else {
        CHECK(status == SHOAL_ERR_STATE || status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_PEER);
        (void)CHECK_ERROR_TEXT("w");
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "rank %d: %s, ranks %d, variant %d: %s, %s", self->rank, path, mask,
                    which, shoal_status_name(status), shoal_error_text());
    }
    test_barrier(self); /* a rank that leaves would be another reason */
    late_close(&between.late);
}

TEST_RANKS(a_rank_that_freezes_between_passes_is_an_error_in_that_pass, 2)
{
    for (int mask = 1; mask <= 3; mask++) {
        for (int k = 0; k < 6 && !test_has_failed(); k++) {
            freeze_between(self, "w", mask, k);
            freeze_between(self, "layer.w", mask, k);
        }
    }
}

/* A hook that sees the gradient of "w" freezes "layer.w", whose gradient is collected already. */
static shoal_status freeze_layer(void *context, shoal_tensor *leaf)
{
    const struct late *late = context;
    (void)leaf;
    return shoal_set_requires_grad(shoal_module_parameter(late->net, "layer.w"), false);
}

TEST_RANKS(a_parameter_cannot_be_frozen_while_its_gradient_is_reduced, 2)
{
    for (int mask = 1; mask <= 3; mask++) {
        struct late late;
        bool is_mine = (mask >> self->rank) & 1;
        REQUIRE(late_open(&late, self, false));
        REQUIRE(late_shard(&late, SHOAL_SHARDED_PARAMETERS));
        CHECK_OK(late_step(&late));
        if (is_mine) {
            CHECK_OK(shoal_on_accumulated(shoal_module_parameter(late.net, "w"), freeze_layer, &late, NULL));
        }
        shoal_status status = late_step(&late);
        if (is_mine) {
            (void)CHECK_STATUS(status, SHOAL_ERR_STATE);
            (void)CHECK_ERROR_TEXT("parameter layer.w was frozen while its gradient was reduced");
        } else {
            (void)CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
            (void)CHECK_ERROR_TEXT("parameter layer.w was frozen");
        }
        test_barrier(self); /* a rank that leaves would be another reason */
        late_close(&late);
    }
}

static shoal_status thaw_other(void *context, shoal_tensor *leaf)
{
    (void)leaf;
    return shoal_set_requires_grad(context, true);
}

/* All ranks freeze "v" between forward and backward pass, so its gradient is dropped. A hook of one rank on the gradient
   of "w", of the same unit, thaws it: that must not bring this rank a gradient which the others do not have. */
TEST_RANKS(a_gradient_that_is_dropped_does_not_come_back, 2)
{
    for (int k = 0; k < 3 && !test_has_failed(); k++) {
        struct between between = {.path = "v", .mask = 3};
        REQUIRE(late_open(&between.late, self, false));
        CHECK_OK(shoal_module_add_parameter(between.late.net, "v", late_tensor(1.0, true)));
        REQUIRE(late_shard(&between.late, (shoal_sharded)k));
        CHECK_OK(late_step(&between.late));
        shoal_tensor *shard = shoal_module_parameter(between.late.net, "v");
        CHECK_OK(shoal_set_grad(shard, NULL));
        if (self->rank == 0) {
            CHECK_OK(
                shoal_on_accumulated(shoal_module_parameter(between.late.net, "w"), thaw_other, shard, NULL));
        }
        CHECK_OK(step_between(&between));
        CHECK(!shoal_grad(shard));
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "rank %d, variant %d", self->rank, k);
        }
        test_barrier(self);
        late_close(&between.late);
    }
}

/* Replicas ----------------------------------------------------------------------------------------------- */

/* Gradients wait for the replicas when the ranks of `mask` freeze a parameter. The next call is a step or
   shoal_fsdp_synchronize. Dropping the gradients is fine if all ranks do it; an error is fine if all get one. */
static void freeze_waiting(struct rank *self, int mask, bool steps)
{
    struct late late;
    shoal_mesh *mesh = NULL;
    REQUIRE(late_open(&late, self, false));
    CHECK_OK(shoal_mesh_create(late.world, "cpu", NULL, (const int[]){2, 1}, 2, (const char *[]){"r", "s"},
                               &mesh));
    const shoal_fully_shard_options options = {.struct_size = sizeof options, .mesh = mesh};
    CHECK_OK(shoal_fully_shard(late.layer, &options));
    CHECK_OK(shoal_fully_shard(late.net, &options));
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(late.net, true), false));
    CHECK_OK(late_step(&late));
    shoal_tensor *shard = shoal_module_parameter(late.net, "layer.w");
    bool is_mine = (mask >> self->rank) & 1;
    if (is_mine) {
        CHECK_OK(shoal_set_requires_grad(shard, false));
    }
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(late.net, true), true));
    shoal_status status = steps ? late_step(&late) : shoal_fsdp_synchronize(fsdp_of_module(late.net));
    if (steps && is_mine) {
        CHECK_STATUS(status, SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("parameter layer.w was frozen while a gradient of it waits to be reduced");
    } else if (mask == 3) {
        CHECK_OK(status);
        CHECK(!shoal_grad(shard));
    } else {
        CHECK(status == SHOAL_ERR_STATE || status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("layer.w");
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "rank %d, ranks %d, %s: %s, %s", self->rank, mask,
                    steps ? "a step" : "synchronize", shoal_status_name(status), shoal_error_text());
    }
    test_barrier(self); /* a rank that leaves would be another reason */
    shoal_mesh_free(mesh);
    late_close(&late);
}

TEST_RANKS(freezing_while_gradients_wait_for_the_replicas, 2)
{
    for (int mask = 1; mask <= 3 && !test_has_failed(); mask++) {
        freeze_waiting(self, mask, false);
        freeze_waiting(self, mask, true);
    }
}
