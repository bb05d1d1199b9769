/* SPDX-License-Identifier: MIT */
/*
 * What errors say of the call that failed when another one notices: a later call on the group, or an op that is given the
 * failed tensor, names itself, says that it is not the one, and then which calls of which ranks did not fit, on which
 * group.
 */
#include <stdio.h>

#include "fixtures/groups.h"
#include "fixtures/functional.h"
#include "shoal_compat/torch.h"

/* A lane of its own, which fails: rank 0 has called all_reduce, rank 1 broadcast. Gives what they got. */
static shoal_tensor *fail_lane(const struct functional *self, const char *tag, shoal_group **group_out)
{
    shoal_group *group = group_of_ranks(self->world, (const int[]){0, 1}, 2, tag);
    shoal_tensor *ones = shoal_full(INTS64(8), 1, 1, SHOAL_F32);
    shoal_tensor *result =
        self->rank == 0 ? shoal_all_reduce(ones, SHOAL_SUM, group) : shoal_broadcast(ones, 0, group);
    CHECK_STATUS(shoal_wait(result), SHOAL_ERR_MISMATCH);
    *group_out = group;
    return result;
}

/* The text begins so, and goes on with who called what, and where. */
static void check_text(int line, shoal_group *group, const char *beginning)
{
    char expected[512];
    (void)snprintf(
        expected, sizeof expected,
        "%srank 0 called all_reduce f32 sum count 8 #0, rank 1 called broadcast f32 count 8 root 0 #0, "
        "on group [0,1] tag \"%s\"",
        beginning, strchr(shoal_group_name(group), '/') + 1);
    if (strcmp(shoal_error_text(), expected) != 0) {
        test_failed(__FILE__, line, "\"%s\", expected \"%s\"", shoal_error_text(), expected);
    }
}

#define CHECK_TEXT(group, beginning) check_text(__LINE__, (group), (beginning))

/* A call in a scope of its own. */
#define CHECK_CALL(call, group, beginning)                   \
    do {                                                     \
        REQUIRE_OK(shoal_scope_begin());                     \
        CHECK((call) == NULL);                               \
        CHECK_TEXT(group, beginning);                        \
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH); \
    } while (0)

FUNCTIONAL(the_call_that_failed, 2)
{
    shoal_group *group;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *failed = fail_lane(self, "failed", &group);
    CHECK_TEXT(group, "");
    CHECK(!shoal_data(failed));
    CHECK_TEXT(group, "");
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_MISMATCH);
    CHECK_TEXT(group, "");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
}

/* They were never made: the group is unusable. */
FUNCTIONAL(calls_after_it, 2)
{
    shoal_group *group;
    float value = 1;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_full(INTS64(8), 1, 1, SHOAL_F32);
    (void)fail_lane(self, "after", &group);
    CHECK_CALL(shoal_all_gather_tensor(tensor, 0, group), group,
               "all_gather_tensor: the group has failed before: ");
    CHECK_CALL(shoal_all_reduce_(tensor, SHOAL_SUM, group), group,
               "all_reduce_: the group has failed before: ");
    CHECK_CALL(shoal_isend(tensor, 1 - self->rank, 0, group), group, "isend: the group has failed before: ");
    CHECK_STATUS(shoal_group_all_reduce(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_MISMATCH);
    CHECK_TEXT(group, "the group has failed before: ");
    CHECK_STATUS(shoal_group_send(group, &value, 1, SHOAL_F32, 1 - self->rank, 0), SHOAL_ERR_MISMATCH);
    CHECK_TEXT(group, "the group has failed before: ");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
}

/* They were never begun: what they are given did not come. */
FUNCTIONAL(ops_on_what_did_not_arrive, 2)
{
    shoal_group *group;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *there = shoal_full(INTS64(8), 1, 1, SHOAL_F32);
    shoal_tensor *failed = fail_lane(self, "given", &group);
    CHECK_CALL(shoal_neg(failed), group, "neg: self did not arrive: ");
    CHECK_CALL(shoal_add(there, failed), group, "add: other did not arrive: ");
    CHECK_CALL(shoal_neg_(failed), group, "neg_: self did not arrive: ");
    CHECK_CALL(shoal_wait_tensor(failed), group, "wait_tensor: self did not arrive: ");
    CHECK_CALL(shoal_cat(((shoal_tensor *const[]){there, there, failed}), 3, 0), group,
               "cat: tensors[2] did not arrive: ");
    /* Collectives too, whatever their group. */
    CHECK_CALL(shoal_all_gather_tensor(failed, 0, self->group), group,
               "all_gather_tensor: self did not arrive: ");
    CHECK_CALL(
        shoal_all_reduce_coalesced(((shoal_tensor *const[]){there, failed}), 2, SHOAL_SUM, self->group),
        group, "all_reduce_coalesced: tensors[1] did not arrive: ");
    CHECK_CALL(shoal_isend(failed, 1 - self->rank, 0, self->group), group, "isend: self did not arrive: ");
    /* And those that know best themselves what they wait for. */
    const shoal_p2p_op ops[] = {{SHOAL_SEND, there, 1 - self->rank, 0},
                                {SHOAL_SEND, failed, 1 - self->rank, 0}};
    CHECK_CALL(shoal_batch_p2p_ops(ops, 2, self->group), group, "batch_p2p_ops: tensors[1] did not arrive: ");
    shoal_symmetric *memory = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, 64, &memory));
    shoal_tensor *symmetric = shoal_symmetric_tensor(memory, 0, INTS64(8), 1, SHOAL_F32);
    CHECK_CALL(shoal_one_shot_all_reduce_copy(symmetric, failed, SHOAL_SUM, self->group), group,
               "one_shot_all_reduce_copy: source did not arrive: ");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    shoal_symmetric_free(memory);
    /* The group goes on as if they had not been made. */
    CHECK_FULL(shoal_all_reduce(shoal_full(INTS64(2), 1, 1, SHOAL_F32), SHOAL_SUM, self->group), SHAPE(2), 2);
}
