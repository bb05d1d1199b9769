/* SPDX-License-Identifier: MIT */
/*
 * FSDP and ZeRO refuse parameters that come after their module was sharded: their gradients would stay on each rank.
 * Freezing and thawing shards between steps is followed.
 */
#include "fixtures/late_net.h"

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
