/* SPDX-License-Identifier: MIT */
/* Picking algorithms: every call finds one, ranks that may differ choose what can be settled, overrides parse. */
#include "transport/algorithm.h"

#include <stdint.h>

#include "harness/test.h"

static const size_t sizes[] = {0, 1, 1024, 4096, 4097, 16384, 16385, 65536, (size_t)1 << 20, (size_t)1 << 33};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

static struct algorithm_query make_query(enum collective_kind kind, int n_ranks, size_t bytes)
{
    return (struct algorithm_query){
        .kind = kind,
        .n_ranks = n_ranks,
        .slot_bytes = kind == COLLECTIVE_BARRIER         ? 0
                      : kind == COLLECTIVE_WINDOW_GATHER ? SIZE_MAX
                                                         : bytes,
    };
}

TEST(every_call_finds_one)
{
    for (int kind = 0; kind < COLLECTIVE_COUNT; kind++) {
        for (int n_ranks = 1; n_ranks <= 64; n_ranks += n_ranks < 9 ? 1 : 11) {
            for (size_t i = 0; i < N_SIZES; i++) {
                struct algorithm_query query = make_query((enum collective_kind)kind, n_ranks, sizes[i]);
                const char *why = NULL;
                enum algorithm_id picked = algorithm_pick(&query, &why);
                CHECK(picked < ALGORITHM_COUNT);
                CHECK(algorithm_can(picked, &query));
                CHECK(why != NULL);
                CHECK_INT(picked == ALGORITHM_LOCAL, n_ranks == 1);
            }
        }
    }
}

/* Ranks do not know whether the others' buffers are symmetric: only direct and staged may depend on it. */
TEST(symmetric_memory_changes_nothing_else)
{
    for (int override = -1; override < ALGORITHM_COUNT; override++) {
        algorithm_override_all(override < 0 ? ALGORITHM_COUNT : (enum algorithm_id) override);
        for (int kind = 0; kind < COLLECTIVE_COUNT; kind++) {
            for (size_t i = 0; i < N_SIZES; i++) {
                struct algorithm_query query = make_query((enum collective_kind)kind, 4, sizes[i]);
                enum algorithm_id plain = algorithm_pick(&query, NULL);
                query.is_symmetric = kind != COLLECTIVE_BARRIER && kind != COLLECTIVE_WINDOW_GATHER;
                enum algorithm_id symmetric = algorithm_pick(&query, NULL);
                CHECK(plain == symmetric || (plain == ALGORITHM_STAGED && symmetric == ALGORITHM_DIRECT));
            }
        }
    }
    algorithm_override_all(ALGORITHM_COUNT);
}

TEST(overrides_are_taken_where_they_can)
{
    struct algorithm_query small = make_query(COLLECTIVE_ALL_REDUCE, 4, 64);
    struct algorithm_query large = make_query(COLLECTIVE_ALL_REDUCE, 4, 1 << 20);
    CHECK_OK(algorithm_override_parse("all_reduce=staged"));
    CHECK_INT(algorithm_pick(&small, NULL), ALGORITHM_STAGED);
    CHECK_OK(algorithm_override_parse("oneshot"));
    CHECK_INT(algorithm_pick(&small, NULL), ALGORITHM_ONESHOT);
    CHECK_INT(algorithm_pick(&large, NULL), ALGORITHM_STAGED);
    CHECK_OK(algorithm_override_parse("broadcast=oneshot,all_reduce=staged"));
    CHECK_INT(algorithm_pick(&small, NULL), ALGORITHM_STAGED);
    algorithm_override_all(ALGORITHM_COUNT);
    CHECK_INT(algorithm_pick(&small, NULL), ALGORITHM_ONESHOT);
}

TEST(bad_overrides_are_named)
{
    CHECK_STATUS(algorithm_override_parse("all_reduce=rign"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rign");
    CHECK_STATUS(algorithm_override_parse("allreduce=staged"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("allreduce");
    CHECK_STATUS(algorithm_override_parse("staged,"), SHOAL_ERR_INVALID);
    CHECK_STATUS(algorithm_override_parse("staged,barrier="), SHOAL_ERR_INVALID);
    struct algorithm_query small = make_query(COLLECTIVE_ALL_REDUCE, 4, 64);
    CHECK_INT(algorithm_pick(&small, NULL), ALGORITHM_ONESHOT);
}
