/* SPDX-License-Identifier: MIT */
/* Picking algorithms: every call finds one, ranks that may differ choose what can be settled, overrides parse. */
#include "transport/shm/algorithm.h"

#include <stdint.h>

#include "harness/test.h"

static const size_t sizes[] = {0, 1, 1024, 4096, 4097, 16384, 16385, 65536, (size_t)1 << 20, (size_t)1 << 33};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

static struct shm_algorithm_query make_query(enum collective_kind kind, int n_ranks, size_t bytes)
{
    return (struct shm_algorithm_query){
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
                struct shm_algorithm_query query = make_query((enum collective_kind)kind, n_ranks, sizes[i]);
                const char *why = NULL;
                enum shm_algorithm picked = shm_algorithm_pick(&query, &why);
                CHECK(picked < SHM_ALGORITHM_COUNT);
                CHECK(shm_algorithm_can(picked, &query));
                CHECK(why != NULL);
                CHECK_INT(picked == SHM_ALGORITHM_LOCAL, n_ranks == 1);
            }
        }
    }
}

static bool is_settled(enum shm_algorithm algorithm)
{
    return algorithm == SHM_ALGORITHM_DIRECT || algorithm == SHM_ALGORITHM_SINGLE ||
           algorithm == SHM_ALGORITHM_STAGED;
}

/* Ranks do not know whether the others' buffers are symmetric, or can be read: only what they settle when they meet may
   depend on it. */
TEST(where_memory_lies_changes_nothing_else)
{
    for (int override = -1; override < SHM_ALGORITHM_COUNT; override++) {
        algorithm_override_all(&shm_algorithms, override < 0 ? (int)SHM_ALGORITHM_COUNT : override);
        for (int kind = 0; kind < COLLECTIVE_COUNT; kind++) {
            for (size_t i = 0; i < N_SIZES * 4; i++) {
                struct shm_algorithm_query query = make_query((enum collective_kind)kind, 4, sizes[i / 4]);
                enum shm_algorithm plain = shm_algorithm_pick(&query, NULL);
                query.is_symmetric = i % 2 && kind != COLLECTIVE_BARRIER && kind != COLLECTIVE_WINDOW_GATHER;
                query.is_readable = i / 2 % 2;
                query.bytes = query.is_readable ? sizes[i / 4] : 0;
                enum shm_algorithm other = shm_algorithm_pick(&query, NULL);
                CHECK(plain == other || (plain == SHM_ALGORITHM_STAGED && is_settled(other)));
            }
        }
    }
    algorithm_override_all(&shm_algorithms, SHM_ALGORITHM_COUNT);
}

TEST(overrides_are_taken_where_they_can)
{
    struct shm_algorithm_query small = make_query(COLLECTIVE_ALL_REDUCE, 4, 64);
    struct shm_algorithm_query large = make_query(COLLECTIVE_ALL_REDUCE, 4, 1 << 20);
    CHECK_OK(algorithm_override_parse(&shm_algorithms, "all_reduce=staged"));
    CHECK_INT(shm_algorithm_pick(&small, NULL), SHM_ALGORITHM_STAGED);
    CHECK_OK(algorithm_override_parse(&shm_algorithms, "oneshot"));
    CHECK_INT(shm_algorithm_pick(&small, NULL), SHM_ALGORITHM_ONESHOT);
    CHECK_INT(shm_algorithm_pick(&large, NULL), SHM_ALGORITHM_STAGED);
    CHECK_OK(algorithm_override_parse(&shm_algorithms, "broadcast=oneshot,all_reduce=staged"));
    CHECK_INT(shm_algorithm_pick(&small, NULL), SHM_ALGORITHM_STAGED);
    algorithm_override_all(&shm_algorithms, SHM_ALGORITHM_COUNT);
    CHECK_INT(shm_algorithm_pick(&small, NULL), SHM_ALGORITHM_ONESHOT);
}

TEST(bad_overrides_are_named)
{
    CHECK_STATUS(algorithm_override_parse(&shm_algorithms, "all_reduce=rign"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rign");
    CHECK_STATUS(algorithm_override_parse(&shm_algorithms, "allreduce=staged"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("allreduce");
    CHECK_STATUS(algorithm_override_parse(&shm_algorithms, "staged,"), SHOAL_ERR_INVALID);
    CHECK_STATUS(algorithm_override_parse(&shm_algorithms, "staged,barrier="), SHOAL_ERR_INVALID);
    struct shm_algorithm_query small = make_query(COLLECTIVE_ALL_REDUCE, 4, 64);
    CHECK_INT(shm_algorithm_pick(&small, NULL), SHM_ALGORITHM_ONESHOT);
}
