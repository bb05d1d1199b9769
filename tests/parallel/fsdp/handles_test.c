/* SPDX-License-Identifier: MIT */
/*
 * Handles of units, parameters and contexts that have ended. Where the last ones are kept (SHOAL_DEBUG_HANDLES), using one is
 * an error that says so.
 */
#include "base/error.h"
#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "parallel/fsdp/engine/state/handle.h"

#define CHECK_GONE(call, words)                \
    do {                                       \
        CHECK_STATUS((call), SHOAL_ERR_STATE); \
        CHECK_ERROR_TEXT(words);               \
    } while (0)

static void check_gone(shoal_fsdp_unit *unit, shoal_fsdp_param *param)
{
    float full[64];
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    CHECK_GONE(shoal_fsdp_set_sync(unit, true), "set_sync: unit is gone");
    CHECK_GONE(shoal_fsdp_unshard(unit), "unshard: unit is gone");
    CHECK_GONE(shoal_fsdp_set_forward_prefetch(unit, &unit, 1), "unit is gone");
    CHECK_GONE(shoal_fsdp_gather(param, full, SHOAL_FSDP_ALL_RANKS), "gather: param is gone");
    CHECK_GONE(shoal_fsdp_load(param, full), "load: param is gone");
    CHECK_GONE(shoal_fsdp_get_layout(param, &layout), "get_layout: param is gone");
    CHECK_STRING(shoal_fsdp_param_name(param), "");
}

TEST_RANKS(handles_of_a_context_that_was_freed, 1)
{
    const int64_t shape[] = {6};
    shoal_fsdp *fsdp;
    fsdp_handles_keep(100);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp)));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, shape, NULL, NULL));
    shoal_fsdp_unit *unit = shoal_fsdp_unit_of(fsdp, 0);
    shoal_fsdp_unit *all = shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS);
    shoal_fsdp_param *param = shoal_fsdp_param_of(fsdp, 0);
    CHECK_OK(shoal_fsdp_set_sync(all, true));
    CHECK_STRING(shoal_fsdp_param_name(param), "w");
    shoal_fsdp_free(fsdp);
    check_gone(unit, param);
    CHECK_GONE(shoal_fsdp_set_sync(all, true), "set_sync: unit is gone");
    CHECK_GONE(shoal_fsdp_end_backward(fsdp), "end_backward: fsdp is gone");
    CHECK_GONE(shoal_fsdp_zero_grad(fsdp), "zero_grad: fsdp is gone");
    CHECK(shoal_fsdp_unit_of(fsdp, 0) == NULL);
    CHECK_OK(shoal_world_close(world));
    fsdp_handles_keep(0);
}

TEST_RANKS(handles_of_modules_that_are_gone, 1)
{
    struct bench bench;
    fsdp_handles_keep(100);
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    shoal_fsdp *fsdp = fsdp_of_module(bench.sharded.root);
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(bench.sharded.layers[0], false);
    shoal_fsdp_unit *deep = shoal_fully_shard_unit(bench.sharded.root, true);
    shoal_fsdp_param *param = shoal_fully_shard_param(bench.sharded.root, "0.weight");
    CHECK_OK(shoal_fsdp_set_sync(deep, true));
    CHECK_OK(shoal_scope_end()); /* what was recorded keeps a root */
    CHECK_OK(shoal_scope_begin());
    net_free(&bench.sharded);
    check_gone(unit, param);
    CHECK_GONE(shoal_fsdp_set_sync(deep, true), "set_sync: unit is gone");
    CHECK_GONE(shoal_fsdp_synchronize(fsdp), "synchronize: fsdp is gone");
    bench_close(&bench);
    fsdp_handles_keep(0);
}

/* A NULL that was passed on has the reason of the call that gave it, as long as nothing else was said meanwhile. */
TEST_RANKS(handles_that_were_not_found, 1)
{
    shoal_fsdp *fsdp;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp)));
    static const struct {
        const char *text;
        bool is_param;
    } calls[] = {{"set_sync: there is no unit 7: there are 0", false},
                 {"load: there is no parameter 7: there are 0", true}};
    for (int k = 0; k < 2; k++) {
        bool is_param = calls[k].is_param;
        CHECK(is_param ? !shoal_fsdp_param_of(fsdp, 7) : !shoal_fsdp_unit_of(fsdp, 7));
        CHECK_STATUS(is_param ? shoal_fsdp_load(NULL, &k) : shoal_fsdp_set_sync(NULL, true),
                     SHOAL_ERR_INVALID);
        CHECK_STRING(shoal_error_text(), calls[k].text);
    }
    /* The reason was told; this NULL is another. */
    CHECK_STATUS(shoal_fsdp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "set_sync: unit is NULL");
    /* Another call has failed, or has not. */
    CHECK(!shoal_fsdp_unit_of(fsdp, 7));
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 3), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "set_sync: unit is NULL");
    CHECK(!shoal_fsdp_unit_of(fsdp, 7));
    CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    CHECK_STATUS(shoal_fsdp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "set_sync: unit is NULL");
    /* A text is no reason because it begins like one. */
    CHECK_STATUS(error_set(SHOAL_ERR_INVALID, "unit_of: a text of somebody else"), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "set_sync: unit is NULL");
    /* A chain of NULLs keeps the first reason. */
    CHECK(!shoal_fsdp_unit_of(NULL, 7));
    CHECK_STRING(shoal_error_text(), "unit_of: fsdp is NULL");
    CHECK_STATUS(shoal_fsdp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "set_sync: fsdp is NULL");
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(handles_of_modules_that_were_not_found, 1)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(!shoal_fully_shard_unit(bench.alone.root, false));
    CHECK_STATUS(shoal_fsdp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_sync: module ");
    CHECK_ERROR_TEXT("is not fully sharded");
    CHECK(!shoal_fully_shard_param(bench.sharded.root, "0.wieght"));
    CHECK_STATUS(shoal_fsdp_load(NULL, self), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("load: there is no parameter \"0.wieght\" that is sharded; the nearest");
    bench_close(&bench);
}
