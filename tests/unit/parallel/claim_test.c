/* SPDX-License-Identifier: MIT */
/* Whose parameters a module's are. */
#include "harness/test.h"
#include "parallel/claim.h"

static shoal_module *create_module(void)
{
    const shoal_module_definition definition = {.struct_size = sizeof definition, .type = "net"};
    shoal_module *module = NULL;
    CHECK_OK(shoal_module_create(&definition, &module));
    return module;
}

static void count(void *value)
{
    ++*(int *)value;
}

TEST(claim_ends_when_dropped)
{
    shoal_module *module = create_module();
    int n_released = 0;
    CHECK(!claim_is_taken(module));
    REQUIRE_OK(claim_take(module, CLAIMANT_FSDP, &n_released, count));
    CHECK(claim_is_taken(module));
    CHECK(claim_value(module, CLAIMANT_FSDP) == &n_released);
    CHECK(!claim_value(module, CLAIMANT_DDP));
    claim_drop(module, CLAIMANT_FSDP);
    CHECK_INT(n_released, 1);
    CHECK(!claim_is_taken(module));
    shoal_module_unref(module);
}

TEST(claim_ends_with_the_module)
{
    shoal_module *module = create_module();
    int n_released = 0;
    REQUIRE_OK(claim_take(module, CLAIMANT_DDP, &n_released, count));
    shoal_module_unref(module);
    CHECK_INT(n_released, 1);
}

TEST(check_names_the_claimant)
{
    shoal_module *module = create_module();
    int outer;
    CHECK_OK(claim_check(module, "", CLAIMANT_FSDP));
    REQUIRE_OK(claim_take(module, CLAIMANT_FSDP, &outer, NULL));
    CHECK_OK(claim_check(module, "", CLAIMANT_DDP));
    CHECK_STATUS(claim_check(module, "", CLAIMANT_FSDP), SHOAL_ERR_STATE);
    CHECK_STRING(shoal_error_text(), "module net is fully sharded already");
    CHECK_STATUS(claim_check(module, "layers.0", CLAIMANT_FSDP), SHOAL_ERR_STATE);
    CHECK_STRING(shoal_error_text(), "module net at layers.0 is fully sharded already");
    REQUIRE_OK(claim_take(module, CLAIMANT_DDP, &outer, NULL));
    CHECK_STATUS(claim_check(module, "", CLAIMANT_DDP), SHOAL_ERR_STATE);
    CHECK_STRING(shoal_error_text(),
                 "module net is wrapped by shoal_ddp already, which keeps whole parameters");
    shoal_module_unref(module);
}

TEST(check_finds_the_claim_around)
{
    shoal_module *module = create_module();
    int outer;
    REQUIRE_OK(claim_cover(module, CLAIMANT_DDP, &outer));
    CHECK(!claim_is_taken(module));
    CHECK_STATUS(claim_check(module, "head", CLAIMANT_DDP), SHOAL_ERR_STATE);
    CHECK_STRING(shoal_error_text(), "module net at head is inside of one that is wrapped by shoal_ddp "
                                     "already, which keeps whole parameters");
    CHECK_OK(claim_check(module, "head", CLAIMANT_FSDP));
    claim_uncover(module, CLAIMANT_DDP);
    CHECK_OK(claim_check(module, "head", CLAIMANT_DDP));
    shoal_module_unref(module);
}
