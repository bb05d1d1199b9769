/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory of a device: tensors over it, peers' blocks, memory that is freed while ops read it, and what fails.
 * That collectives on it have the right bits is shown by conformance/collectives_sweep and functional tests.
 */
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "fixtures/test_device.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/scope.h"
#include "shoal/window.h"
#include "shoal_compat/torch.h"

enum {
    COUNT = 1003
};

static const int64_t shape = COUNT;

static shoal_device apart(void)
{
    shoal_device device = SHOAL_CPU;
    CHECK_OK(shoal_device_find("apart", &device));
    return device;
}

static void fill(shoal_tensor *tensor, double value)
{
    CHECK(shoal_copy_(tensor, shoal_to_device(shoal_full(&shape, 1, value, SHOAL_F32), apart())));
}

static void check_all(const shoal_tensor *tensor, float wanted)
{
    const float *values = test_data(tensor);
    int i = 0;
    REQUIRE(values != NULL);
    while (i < COUNT && values[i] == wanted) {
        i++;
    }
    if (i < COUNT) {
        test_failed(__FILE__, __LINE__, "element %d: %g, expected %g", i, (double)values[i], (double)wanted);
    }
}

/* Failures, with ranks as processes, before there are threads of the device ------------------------------- */

TEST_PROCESSES(other_devices_are_refused_everywhere, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_symmetric *symmetric = NULL;
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_STATUS(shoal_symmetric_create_on(group, 64, self->rank == 1 ? SHOAL_CPU : apart(), &symmetric),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank 0 asked for memory of device apart, rank 1 for that of cpu");
    CHECK_STATUS(shoal_symmetric_create_on(group, self->rank == 1 ? 64 : 128, apart(), &symmetric),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("symmetric_create: rank 0 asked for 128 bytes, rank 1 for 64");
    CHECK_STATUS(shoal_symmetric_create_on(group, 64, SHOAL_META, &symmetric), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("symmetric_create: device meta has no data");
    CHECK_STATUS(shoal_symmetric_create_on(group, 64, (shoal_device)99, &symmetric), SHOAL_ERR_INVALID);
    CHECK(symmetric == NULL);
    for (size_t bytes = 0; bytes <= 64; bytes += 64) {
        REQUIRE_OK(shoal_symmetric_create_on(group, bytes, apart(), &symmetric));
        CHECK_STATUS(shoal_symmetric_grow(group, symmetric, bytes + 1), SHOAL_ERR_INVALID);
        CHECK_OK(shoal_symmetric_grow(group, symmetric, bytes));
        shoal_symmetric_free(symmetric);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Each call of the device that is made, on the rank that makes the memory and on one that maps it. */
TEST_PROCESSES(a_call_of_the_device_fails_while_it_is_made, 3)
{
    if (HARNESS_HAS_TSAN) {
        test_skip("nothing orders the work of a device that has failed");
        return;
    }
    for (int round = 0; round < 12; round++) {
        shoal_symmetric *symmetric = NULL;
        shoal_world *world = rank_world_open(self, round);
        REQUIRE(world);
        bool is_it = self->rank == round % 2;
        (void)apart();
        atomic_store(&test_apart()->fail_at, is_it ? 1 + round / 2 : 0);
        shoal_status status =
            shoal_symmetric_create_on(shoal_world_group(world), 100000, apart(), &symmetric);
        bool has_failed = atomic_exchange(&test_apart()->fail_at, 0) == 0 && is_it;
        if (status == SHOAL_OK) {
            CHECK(symmetric != NULL);
            shoal_symmetric_free(symmetric);
        } else {
            char words[64];
            (void)snprintf(words, sizeof words, "symmetric_create: rank %d: device apart", round % 2);
            CHECK_INT(status, SHOAL_ERR_SYSTEM);
            CHECK(symmetric == NULL);
            CHECK_ERROR_TEXT(words);
            CHECK(has_failed || !is_it);
        }
        test_forget_failure();
        CHECK_OK(shoal_group_barrier(shoal_world_group(world))); /* the group can be used */
        CHECK_OK(shoal_world_close(world));
    }
}

TEST_PROCESSES(transports_without_it, 2)
{
    if (!rank_hears_by_messages()) {
        test_skip("ranks share memory");
        return;
    }
    shoal_symmetric *symmetric = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_STATUS(shoal_symmetric_create_on(shoal_world_group(world), 64, apart(), &symmetric),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("which has no symmetric memory on device apart");
    CHECK_OK(shoal_world_close(world));
}

/* With ranks as threads, too ------------------------------------------------------------------------------- */

/* An op writes this rank's block, which need not be done when the sum begins; then each rank reads all blocks. */
static void sum_blocks(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_symmetric *symmetric = NULL;
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_symmetric_create_on(group, COUNT * sizeof(float), apart(), &symmetric));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *block = shoal_symmetric_tensor(symmetric, 0, &shape, 1, SHOAL_F32);
    REQUIRE(block != NULL);
    CHECK(shoal_tensor_device(block) == apart());
    check_all(block, 0.0F);
    for (int round = 1; round <= 10 && !test_has_failed(); round++) {
        fill(block, (double)(round * (self->rank + 1)));
        shoal_tensor *sum = shoal_one_shot_all_reduce(block, SHOAL_SUM, group);
        float wanted = (float)(round * self->n_ranks * (self->n_ranks + 1)) / 2;
        check_all(sum, wanted);
        fill(block, (double)wanted);
        test_finish(apart());
        CHECK_OK(shoal_group_barrier(group));
        for (int rank = 0; rank < self->n_ranks; rank++) {
            void *peer = shoal_symmetric_peer(symmetric, rank);
            check_all(shoal_from_device_memory(apart(), peer, &shape, 1, SHOAL_F32, NULL, NULL, NULL),
                      wanted);
        }
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_OK(shoal_scope_end());
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_sums_its_block, 1)
{
    sum_blocks(self);
}

TEST_RANKS(three_ranks_sum_their_blocks, 3)
{
    sum_blocks(self);
}

TEST_RANKS(a_block_is_freed_while_an_op_reads_it, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int round = 1; round <= 10 && !test_has_failed(); round++) {
        shoal_symmetric *symmetric = NULL;
        REQUIRE_OK(
            shoal_symmetric_create_on(shoal_world_group(world), COUNT * sizeof(float), apart(), &symmetric));
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *block = shoal_symmetric_tensor(symmetric, 0, &shape, 1, SHOAL_F32);
        fill(block, (double)round);
        shoal_tensor *copy = shoal_add_scalar(block, 0.5);
        shoal_symmetric_free(symmetric);
        check_all(copy, (float)round + 0.5F);
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_world_close(world));
}
