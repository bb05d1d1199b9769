/* SPDX-License-Identifier: MIT */
/*
 * Ranks whose kernels compute with different things are told so where they first agree: explicit FSDP, DDP, a compiled
 * step. Ranks are processes, because the statement is the process's. A rank that has stated nothing is not compared.
 */
#include "fixtures/compiled_pair.h"
#include "shoal/fsdp.h"

#define WORDS "ranks differ in what their kernels compute with (shoal_op_set_basis, SHOAL_PRODUCTS): "
#define BOTH WORDS "rank 0 has \"mine: blas 1 avx2\", rank 2 has \"mine: blas 1 avx512\""

/* Rank 2 differs, rank 1 has nothing to say. */
static void state(const struct rank *self)
{
    static const char *const all[] = {"blas 1 avx2", "", "blas 1 avx512"};
    CHECK_OK(shoal_op_set_basis("mine", all[self->rank]));
}

static void begin_fsdp(const struct rank *self, shoal_status wanted)
{
    const int64_t shape[] = {6};
    const float values[6] = {1, 2, 3, 4, 5, 6};
    shoal_fsdp *fsdp = NULL;
    int id = -1;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, shape, values, &id));
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), wanted);
    if (wanted != SHOAL_OK) {
        CHECK_ERROR_TEXT(BOTH);
    } else {
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(of_explicit_fsdp, 3)
{
    CHECK_OK(shoal_op_set_basis("mine", self->rank == 1 ? "" : "blas 1 avx2"));
    begin_fsdp(self, SHOAL_OK);
    state(self);
    begin_fsdp(self, SHOAL_ERR_MISMATCH);
}

/* A wrapper compares when it is wrapped or first called, so the statement changes between that and the compiled step. */
static void run_compiled(struct rank *self, enum wrapping wrapping)
{
    struct pair pair;
    CHECK_OK(shoal_op_set_basis("mine", ""));
    if (!pair_begin(&pair, self, wrapping, NULL)) {
        return;
    }
    state(self);
    shoal_tensor *x = net_numbers((uint32_t)self->rank, (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
    shoal_tensor *output = NULL;
    CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &output, 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(BOTH);
    CHECK(output == NULL);
    pair_end(&pair);
}

TEST_PROCESSES(of_a_compiled_step, 3)
{
    run_compiled(self, WRAP_DDP);
    run_compiled(self, WRAP_SHARDS);
}
