/* SPDX-License-Identifier: MIT */
/* shoal_group_check_equal: what is equal, what all ranks are told where it is not, and that the group goes on. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

struct session {
    shoal_world *world;
    shoal_group *group;
    int64_t begin_ns;
};

static bool open_session(struct rank *self, struct session *session)
{
    session->world = rank_world_open(self, 0);
    session->group = session->world ? shoal_world_group(session->world) : NULL;
    session->begin_ns = clock_now_ns();
    return session->world != NULL;
}

/* The group can be used, and nobody has waited for a deadline. */
static void close_session(struct rank *self, struct session *session)
{
    int32_t sum = 1;
    CHECK_OK(shoal_group_all_reduce(session->group, &sum, &sum, 1, SHOAL_I32, SHOAL_SUM));
    CHECK_INT(sum, self->n_ranks);
    CHECK((double)(clock_now_ns() - session->begin_ns) * 1e-9 < 10 * test_time_scale());
    CHECK_OK(shoal_world_close(session->world));
}

/* Equal ------------------------------------------------------------------------------------------------ */

static void compare_equal(struct rank *self)
{
    struct session session;
    unsigned char bytes[1024];
    char name[65];
    REQUIRE(open_session(self, &session));
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i * 7);
    }
    memset(name, 'n', 64);
    name[64] = '\0';
    uint64_t sequence = shoal_group_sequence(session.group);
    CHECK_OK(shoal_group_check_equal_real(session.group, "learning rate", 0.1));
    CHECK_INT(shoal_group_sequence(session.group), sequence + 1);
    CHECK_OK(shoal_group_check_equal_real(session.group, "nothing", (double)NAN));
    CHECK_OK(shoal_group_check_equal_integer(session.group, "seed", INT64_MIN));
    CHECK_OK(shoal_group_check_equal(session.group, "n", bytes, 1));
    CHECK_OK(shoal_group_check_equal(session.group, name, bytes, sizeof bytes));
    CHECK_STRING(shoal_error_text(), "");
    close_session(self, &session);
}

TEST_RANKS(equal_on_1, 1)
{
    compare_equal(self);
}

TEST_RANKS(equal_on_2, 2)
{
    compare_equal(self);
}

TEST_RANKS(equal_on_3, 3)
{
    compare_equal(self);
}

/* Other values ----------------------------------------------------------------------------------------- */

TEST_RANKS(values_that_differ, 3)
{
    struct session session;
    unsigned char bytes[40] = {0};
    int rank = self->rank;
    REQUIRE(open_session(self, &session));

    CHECK_STATUS(shoal_group_check_equal_real(session.group, "lr", rank == 1 ? 0.3 : 0.1), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "lr is not the same on all ranks: 0.1 on ranks 0 and 2, 0.3 on rank 1");
    CHECK_STATUS(shoal_group_check_equal_real(session.group, "lr", rank == 0 ? 0.1 + 0.2 : 0.3),
                 SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(),
                 "lr is not the same on all ranks: 0.30000000000000004 on rank 0, 0.3 on ranks 1 and 2");
    CHECK_STATUS(shoal_group_check_equal_real(session.group, "zero", rank == 2 ? -0.0 : 0.0),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0 on ranks 0 and 1, -0 on rank 2");
    uint64_t bits = UINT64_C(0x7ff8000000000000) + (uint64_t)(rank == 2);
    double nan;
    memcpy(&nan, &bits, sizeof nan);
    CHECK_STATUS(shoal_group_check_equal_real(session.group, "nothing", nan), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nan (0x7ff8000000000000) on ranks 0 and 1, nan (0x7ff8000000000001) on rank 2");

    CHECK_STATUS(shoal_group_check_equal_integer(session.group, "seed", rank - 1), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(),
                 "seed is not the same on all ranks: -1 on rank 0, 0 on rank 1, 1 on rank 2");

    bytes[3] = rank == 2 ? 0xab : 0;
    CHECK_STATUS(shoal_group_check_equal(session.group, "shape", bytes, 4), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(),
                 "shape is not the same on all ranks: 0x00000000 on ranks 0 and 1, 0x000000ab on rank 2");
    CHECK_STATUS(shoal_group_check_equal(session.group, "shape", bytes, 17), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0x000000ab000000000000000000000000... on rank 2");
    /* What is shown begins where the first rank differs. */
    bytes[3] = 0;
    bytes[37] = rank == 1 ? 1 : 0;
    bytes[38] = rank == 2 ? 2 : 0;
    CHECK_STATUS(shoal_group_check_equal(session.group, "shape", bytes, sizeof bytes), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "shape is not the same on all ranks, from byte 37 on: 0x000000 on rank "
                                     "0, 0x010000 on rank 1, 0x000200 on rank 2");
    /* A text is shown as such. */
    char text[40] = "";
    (void)snprintf(text, sizeof text, "blas 0.3.21 %s", rank == 2 ? "avx512" : "avx2");
    CHECK_STATUS(shoal_group_check_equal(session.group, "kernels", text, sizeof text), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(),
                 "kernels is not the same on all ranks: \"blas 0.3.21 avx2\" on ranks 0 and "
                 "1, \"blas 0.3.21 avx512\" on rank 2");
    close_session(self, &session);
}

/* The ranks in the text are those of the world, and it names the group. */
TEST_RANKS(values_that_differ_in_a_group, 3)
{
    struct session session;
    static const int ranks[] = {2, 0};
    shoal_group *group = NULL;
    REQUIRE(open_session(self, &session));
    if (self->rank != 1) {
        REQUIRE_OK(shoal_group_create(session.world, ranks, 2, "pair", &group));
        CHECK_STATUS(shoal_group_check_equal_integer(group, "length", 128 + self->rank), SHOAL_ERR_INVALID);
        CHECK_STRING(shoal_error_text(), "length is not the same on all ranks: 130 on rank 2, 128 on rank 0, "
                                         "on group [2,0] tag \"pair\"");
        CHECK_OK(shoal_group_check_equal_integer(group, "length", 128));
    }
    close_session(self, &session);
}

/* Other settings --------------------------------------------------------------------------------------- */

TEST_RANKS(settings_that_differ, 2)
{
    struct session session;
    int64_t value = 5;
    bool is_odd = self->rank == 1;
    REQUIRE(open_session(self, &session));
    CHECK_STATUS(shoal_group_check_equal_integer(session.group, is_odd ? "length" : "seed", 5),
                 SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "check_equal: ranks compare different settings: seed (an integer) on "
                                     "rank 0, length (an integer) on rank 1");
    CHECK_STATUS(shoal_group_check_equal(session.group, "seed", &value, is_odd ? 4 : 8), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("seed (8 bytes) on rank 0, seed (4 bytes) on rank 1");
    CHECK_STATUS(is_odd ? shoal_group_check_equal_integer(session.group, "seed", value)
                        : shoal_group_check_equal(session.group, "seed", &value, sizeof value),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("seed (8 bytes) on rank 0, seed (an integer) on rank 1");
    CHECK_STATUS(is_odd ? shoal_group_check_equal_integer(session.group, "seed", 0)
                        : shoal_group_check_equal_real(session.group, "seed", 0.0),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("seed (a real number) on rank 0, seed (an integer) on rank 1");
    close_session(self, &session);
}

/* Wrong arguments -------------------------------------------------------------------------------------- */

/* What is wrong on the last rank is an error on all of them. */
static void compare_wrong(struct rank *self)
{
    static const char long_name[] = "a name of a setting that goes on, and on, and on, to 65 characters";
    struct session session;
    int last = self->n_ranks - 1;
    bool is_odd = self->rank == last;
    const unsigned char value[8] = {0};
    char text[128];
    REQUIRE(open_session(self, &session));
    CHECK_INT(sizeof long_name - 1, 66);

    CHECK_STATUS(shoal_group_check_equal(session.group, is_odd ? NULL : "seed", value, 8), SHOAL_ERR_INVALID);
    (void)snprintf(text, sizeof text, "check_equal: rank %d: name is NULL", last);
    CHECK_STRING(shoal_error_text(), text);
    CHECK_STATUS(shoal_group_check_equal_integer(session.group, is_odd ? "" : "seed", 8), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("name \"\" has 0 bytes, 1 to 64 expected");
    CHECK_STATUS(shoal_group_check_equal_real(session.group, is_odd ? long_name : "seed", 8),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("has more bytes, 1 to 64 expected");
    CHECK_STATUS(shoal_group_check_equal(session.group, "seed", is_odd ? NULL : value, 8), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("seed: value is NULL");
    CHECK_STATUS(shoal_group_check_equal(session.group, "seed", value, is_odd ? 0 : 8), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("seed: bytes is 0, 1 to 1024 expected");
    CHECK_STATUS(shoal_group_check_equal(session.group, "seed", value, is_odd ? 1025 : 8), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("seed: bytes is 1025, 1 to 1024 expected");
    CHECK_STATUS(shoal_group_check_equal(NULL, "seed", value, 8), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("check_equal: group is NULL");
    close_session(self, &session);
}

TEST_RANKS(wrong_arguments_on_1, 1)
{
    compare_wrong(self);
}

TEST_RANKS(wrong_arguments_on_one_of_3, 3)
{
    compare_wrong(self);
}

/* It is no all_gather of as many bytes, and no other call. */
TEST_RANKS(another_call_on_one_rank, 2)
{
    static unsigned char send[1104];
    static unsigned char recv[2][2 * sizeof send];
    struct session session;
    REQUIRE(open_session(self, &session));
    CHECK_STATUS(self->rank == 0
                     ? shoal_group_check_equal_integer(session.group, "seed", 1)
                     : shoal_group_all_gather(session.group, send, recv[self->rank], sizeof send, SHOAL_U8),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("shoal_group_check_equal of seed");
    CHECK_STATUS(shoal_group_check_equal_integer(session.group, "seed", 1), SHOAL_ERR_MISMATCH);
    (void)shoal_world_close(session.world);
}

/* Memory ----------------------------------------------------------------------------------------------- */

/* More ranks than the stack has room for: a rank without memory takes part, and all are told. */
TEST_RANKS(many_ranks, 17)
{
    struct session session;
    test_deadline(120);
    REQUIRE(open_session(self, &session));
    CHECK_OK(shoal_group_check_equal_integer(session.group, "seed", 3));
    CHECK_STATUS(shoal_group_check_equal_integer(session.group, "seed", self->rank == 16 ? 4 : 3),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("3 on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8 more of 17, 4 on rank 16");
    CHECK_STATUS(shoal_group_check_equal_integer(session.group, "seed", 1000000 + self->rank),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1000000 on rank 0, 1000001 on rank 1, ");
    if (self->is_process) { /* threads share the allocator */
        test_fail_allocation(self->rank == 5 ? 1 : 0, false);
        CHECK_STATUS(shoal_group_check_equal_integer(session.group, "seed", 3), SHOAL_ERR_NO_MEMORY);
        test_fail_allocation(0, false);
        CHECK_ERROR_TEXT("rank 5: no memory for 18768 bytes to compare");
        CHECK_OK(shoal_group_check_equal_integer(session.group, "seed", 3));
    }
    close_session(self, &session);
}

/* In a world without peers there is nobody to differ from. */
TEST(a_world_without_peers)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1000, .rank = 3, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_check_equal_integer(group, "seed", 3));
    CHECK_STATUS(shoal_group_check_equal_integer(group, NULL, 3), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "check_equal: name is NULL");
    CHECK_OK(shoal_world_close(world));
}
