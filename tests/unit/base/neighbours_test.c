/* SPDX-License-Identifier: MIT */
/* Ranks that share a processor: how they find out, and that one of them can move. */
#include "base/neighbours.h"

#include <string.h>

#include "base/cores.h"
#include "base/os/os.h"
#include "harness/test.h"

#define N_WORDS (sizeof((struct cores_set *)NULL)->words / sizeof(uint64_t))

struct words {
    _Alignas(64) _Atomic uint32_t word;
};

static struct neighbours look_from(struct words *words, int n_ranks, int rank, int peer)
{
    return (struct neighbours){
        .first = &words[0].word, .stride = sizeof words[0], .n_ranks = n_ranks, .rank = rank, .peer = peer};
}

/* The first processor that the thread may use, or the last. */
static int find_processor(const struct cores_set *allowed, bool is_last)
{
    int found = -1;
    for (int i = 0; i < CORES_MAX_PROCESSORS && (is_last || found < 0); i++) {
        found = cores_set_has(allowed, i) ? i : found;
    }
    return found;
}

static void bind_to(int processor)
{
    struct cores_set one = {{0}};
    cores_set_add(&one, processor);
    REQUIRE(os_set_processors(0, one.words, N_WORDS) == 0);
}

TEST(a_peer_on_the_same_processor_is_noticed)
{
    struct words words[3] = {{0}};
    struct cores_set allowed;
    struct neighbours neighbours = look_from(words, 3, 1, 2);
    REQUIRE(os_get_processors(0, allowed.words, N_WORDS) == 0);
    int here = find_processor(&allowed, false);
    bind_to(here);
    CHECK(!neighbours_meet(&neighbours)); /* it has not waited yet */
    CHECK_INT(atomic_load(&words[1].word), here + 1);
    CHECK_INT(atomic_load(&words[0].word), 0);
    atomic_store(&words[2].word, (uint32_t)here + 2);
    CHECK(!neighbours_meet(&neighbours));
    atomic_store(&words[2].word, (uint32_t)here + 1);
    CHECK(neighbours_meet(&neighbours));
    REQUIRE(os_set_processors(0, allowed.words, N_WORDS) == 0);
}

/* A rank that moves is not on a processor of the others right afterwards, and may use all of them as before. */
TEST(a_rank_moves_to_a_free_processor)
{
    struct words words[2] = {{0}};
    struct cores_set allowed;
    struct cores_set after;
    struct neighbours neighbours = look_from(words, 2, 1, 0);
    REQUIRE(os_get_processors(0, allowed.words, N_WORDS) == 0);
    int here = find_processor(&allowed, false);
    atomic_store(&words[0].word, (uint32_t)here + 1);
    atomic_store(&words[1].word, (uint32_t)here + 1);
    bool has_moved = neighbours_move_apart(&neighbours);
    CHECK(has_moved == (cores_set_count(&allowed) > 1));
    REQUIRE(os_get_processors(0, after.words, N_WORDS) == 0);
    CHECK(memcmp(&allowed, &after, sizeof after) == 0);
    /* The word is written before anybody else can have moved the thread again, or says where it is since then. */
    CHECK(atomic_load(&words[1].word) != 0);
}

TEST(a_rank_stays_where_all_processors_are_taken)
{
    struct words words[2] = {{0}};
    struct cores_set allowed;
    struct cores_set after;
    struct neighbours neighbours = look_from(words, 2, 1, 0);
    REQUIRE(os_get_processors(0, allowed.words, N_WORDS) == 0);
    int here = find_processor(&allowed, true);
    bind_to(here);
    atomic_store(&words[0].word, (uint32_t)here + 1);
    CHECK(!neighbours_move_apart(&neighbours));
    REQUIRE(os_get_processors(0, after.words, N_WORDS) == 0);
    CHECK_INT(cores_set_count(&after), 1);
    REQUIRE(os_set_processors(0, allowed.words, N_WORDS) == 0);
}
