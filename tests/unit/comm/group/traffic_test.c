/* SPDX-License-Identifier: MIT */
/*
 * Bytes between hosts, counted where they are sent, against the least that there can be: partials once for each change of
 * the host along the order of the fold, in the type in which they are folded; results once for each host that needs them. Where
 * it is less that all ranks send what they have to whoever folds it, that is the least.
 * Placements come from SHOAL_PRETEND_HOSTS.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "kernel/kernel.h"
#include "shoal/shoal.h"

enum {
    BLOCK = 24001, /* elements of a rank's block; no multiple of a chunk */
    MAX_RANKS = 5,
    SLACK_PERCENT = 5
};

/* Before anything reads the environment. */
__attribute__((constructor)) static void set_environment(void)
{
    (void)setenv("SHOAL_MODULE_PATH", TEST_SOCKET_MODULE, 1);
    (void)setenv("SHOAL_PRETEND_HOSTS", "0,0,1,1,2", 0);
    (void)setenv("SHOAL_TRANSPORT_SOCKET_ADDRESS", "127.0.0.1", 1);
    (void)unsetenv("SHOAL_TRANSPORT");
}

/* What a rank has of the traffic, and the placement. */
struct scene {
    shoal_world *world;
    shoal_group *group;
    const struct transport_world *hosts;
    int n_ranks;
    char *send; /* MAX_RANKS blocks of the widest dtype each */
    char *recv;
    char *expected;
};

static bool scene_open(struct scene *scene, struct rank *self)
{
    size_t bytes = (size_t)MAX_RANKS * BLOCK * sizeof(double);
    *scene = (struct scene){.n_ranks = self->n_ranks, .world = rank_world_open(self, 0)};
    scene->send = malloc(bytes);
    scene->recv = malloc(bytes);
    scene->expected = malloc(bytes);
    if (!scene->world || !scene->send || !scene->recv || !scene->expected) {
        return false;
    }
    scene->group = shoal_world_group(scene->world);
    scene->hosts = scene->group->peers.world;
    return CHECK_STRING(scene->group->peers.transport->name, "two_level");
}

static void scene_close(struct scene *scene)
{
    CHECK_OK(shoal_world_close(scene->world));
    free(scene->send);
    free(scene->recv);
    free(scene->expected);
}

static uint64_t count_sent(const struct scene *scene)
{
    uint64_t bytes = 0;
    for (int host = 0; host < scene->hosts->n_hosts; host++) {
        bytes += atomic_load(&scene->hosts->sent_to_hosts[host]);
    }
    return bytes;
}

/* The sum over all ranks of what each has sent since then is the least, and at most 5 % more. */
static void check_sent(const struct scene *scene, uint64_t before, uint64_t least, int line)
{
    uint64_t sent = count_sent(scene) - before;
    CHECK_OK(shoal_group_all_reduce(scene->group, &sent, &sent, 1, SHOAL_U64, SHOAL_SUM));
    if (sent < least || sent > least + least * SLACK_PERCENT / 100) {
        test_failed(__FILE__, line, "%" PRIu64 " bytes were sent between hosts, the least is %" PRIu64, sent,
                    least);
    }
}

/* Changes of the host along the order of a fold. */
static uint64_t count_changes(const struct scene *scene, bool has_order)
{
    uint64_t n_changes = 0;
    for (int rank = 1; rank < scene->n_ranks; rank++) {
        n_changes += scene->hosts->hosts[rank] != scene->hosts->hosts[rank - 1];
    }
    bool is_ordered = has_order && option_choice(OPTION_REDUCE) == 0;
    return is_ordered ? n_changes : (uint64_t)scene->hosts->n_hosts - 1;
}

/* Numbers whose sum depends on the order of ranks. */
static void fill(char *data, shoal_dtype dtype, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value = (float)((i * 7 + (size_t)rank * 13) % 97 + 1) * (rank % 2 == 0 ? 1e3f : -1e-3f);
        kernel_cast(dtype, data + i * shoal_dtype_bytes(dtype), SHOAL_F32, &value, 1);
    }
}

/* Folds what fill gives to all ranks into `expected`. */
static void expect_fold(struct scene *scene, shoal_dtype dtype, shoal_reduce_op op, size_t count)
{
    const void *sources[MAX_RANKS];
    size_t bytes = count * shoal_dtype_bytes(dtype);
    char *all = malloc((size_t)scene->n_ranks * bytes);
    REQUIRE(all != NULL);
    for (int rank = 0; rank < scene->n_ranks; rank++) {
        fill(all + (size_t)rank * bytes, dtype, rank, count);
        sources[rank] = all + (size_t)rank * bytes;
    }
    CHECK_OK(kernel_reduce(op, dtype, scene->expected, sources, (size_t)scene->n_ranks, count, 0.0));
    free(all);
}

static void check_fold(const struct scene *scene, shoal_dtype dtype, size_t first, size_t count)
{
    size_t bytes = shoal_dtype_bytes(dtype);
    if (option_choice(OPTION_REDUCE) == 0) {
        CHECK(memcmp(scene->recv, scene->expected + first * bytes, count * bytes) == 0);
    }
}

/* For each rank, how many are on other hosts: what crosses, in blocks, when all send what they have to whoever folds it. */
static uint64_t count_apart(const struct scene *scene)
{
    uint64_t n_apart = 0;
    for (int i = 0; i < scene->n_ranks; i++) {
        for (int k = 0; k < scene->n_ranks; k++) {
            n_apart += scene->hosts->hosts[i] != scene->hosts->hosts[k];
        }
    }
    return n_apart;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void try_reductions(struct scene *scene, int rank, shoal_dtype dtype, shoal_reduce_op op)
{
    size_t n_ranks = (size_t)scene->n_ranks;
    size_t count = n_ranks * BLOCK;
    bool has_order = kernel_reduce_has_order(op, dtype);
    uint64_t partials = count_changes(scene, has_order) * count * kernel_partial_bytes(op, dtype);
    uint64_t block_bytes = BLOCK * shoal_dtype_bytes(dtype);
    uint64_t apart = count_apart(scene) * block_bytes;
    fill(scene->send, dtype, rank, count);
    expect_fold(scene, dtype, op, count);

    uint64_t before = count_sent(scene);
    CHECK_OK(shoal_group_all_reduce(scene->group, scene->send, scene->recv, count, dtype, op));
    check_fold(scene, dtype, 0, count);
    uint64_t chain = partials + ((uint64_t)scene->hosts->n_hosts - 1) * n_ranks * block_bytes;
    check_sent(scene, before, smaller(chain, 2 * apart), __LINE__);

    before = count_sent(scene);
    CHECK_OK(shoal_group_reduce_scatter(scene->group, scene->send, scene->recv, BLOCK, dtype, op));
    check_fold(scene, dtype, (size_t)rank * BLOCK, BLOCK);
    uint64_t n_elsewhere = 0;
    bool is_by_rank = has_order && option_choice(OPTION_REDUCE) == 0;
    int last = is_by_rank ? scene->hosts->hosts[scene->n_ranks - 1] : scene->hosts->n_hosts - 1;
    for (int i = 0; i < scene->n_ranks; i++) {
        n_elsewhere += scene->hosts->hosts[i] != last;
    }
    check_sent(scene, before, smaller(partials + n_elsewhere * block_bytes, apart), __LINE__);

    before = count_sent(scene);
    CHECK_OK(shoal_group_reduce(scene->group, scene->send, scene->recv, count, dtype, op, 0));
    uint64_t n_away = 0;
    for (int i = 0; i < scene->n_ranks; i++) {
        n_away += scene->hosts->hosts[i] != 0;
    }
    check_sent(scene, before,
               smaller(partials + (last != 0 ? n_ranks * block_bytes : 0), n_away * n_ranks * block_bytes),
               __LINE__);
    if (rank == 0) {
        check_fold(scene, dtype, 0, count);
    }
}

static void try_copies(struct scene *scene, int rank)
{
    uint64_t n_others = (uint64_t)scene->hosts->n_hosts - 1;
    uint64_t block_bytes = BLOCK * sizeof(float);
    fill(scene->send, SHOAL_F32, rank, BLOCK);
    uint64_t before = count_sent(scene);
    CHECK_OK(shoal_group_all_gather(scene->group, scene->send, scene->recv, BLOCK, SHOAL_F32));
    for (int i = 0; i < scene->n_ranks; i++) {
        fill(scene->expected, SHOAL_F32, i, BLOCK);
        CHECK(memcmp(scene->recv + (size_t)i * block_bytes, scene->expected, block_bytes) == 0);
    }
    check_sent(scene, before, n_others * (uint64_t)scene->n_ranks * block_bytes, __LINE__);
    for (int root = 0; root < scene->n_ranks; root++) {
        fill(scene->recv, SHOAL_F32, rank, BLOCK);
        fill(scene->expected, SHOAL_F32, root, BLOCK);
        before = count_sent(scene);
        CHECK_OK(shoal_group_broadcast(scene->group, scene->recv, BLOCK, SHOAL_F32, root));
        CHECK(memcmp(scene->recv, scene->expected, block_bytes) == 0);
        check_sent(scene, before, n_others * block_bytes, __LINE__);
    }
}

/* Gathers into a window, cast on the way: each byte comes to a host once. */
static void try_windows(struct scene *scene, int rank)
{
    size_t block_bytes = (size_t)BLOCK * 2;
    size_t whole_bytes = (size_t)scene->n_ranks * block_bytes;
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(scene->group, whole_bytes, &window));
    for (int round = 0; round < 3; round++) {
        fill(scene->send, SHOAL_F32, rank + round, BLOCK);
        const shoal_window_piece pieces[] = {
            {.offset = (size_t)rank * block_bytes,
             .data = scene->send,
             .count = BLOCK / 3,
             .data_dtype = SHOAL_F32,
             .window_dtype = SHOAL_BF16},
            {.offset = 0, .data = NULL, .count = 0, .data_dtype = SHOAL_F32, .window_dtype = SHOAL_F32},
            {.offset = (size_t)rank * block_bytes + (size_t)(BLOCK / 3) * 2,
             .data = scene->send + (size_t)(BLOCK / 3) * 4,
             .count = BLOCK - BLOCK / 3,
             .data_dtype = SHOAL_F32,
             .window_dtype = SHOAL_BF16}};
        uint64_t before = count_sent(scene);
        CHECK_OK(shoal_window_gather(window, pieces, 3, 7));
        for (int i = 0; i < scene->n_ranks; i++) {
            fill(scene->recv, SHOAL_F32, i + round, BLOCK);
            kernel_cast(SHOAL_BF16, scene->expected + (size_t)i * block_bytes, SHOAL_F32, scene->recv, BLOCK);
        }
        CHECK(memcmp(shoal_window_data(window), scene->expected, whole_bytes) == 0);
        check_sent(scene, before, ((uint64_t)scene->hosts->n_hosts - 1) * whole_bytes, __LINE__);
        CHECK_OK(shoal_window_release(window));
    }
    shoal_window_free(window);
}

static void try_all(struct rank *self)
{
    struct scene scene;
    REQUIRE(scene_open(&scene, self));
    try_reductions(&scene, self->rank, SHOAL_F32, SHOAL_SUM);
    try_reductions(&scene, self->rank, SHOAL_BF16, SHOAL_AVG);
    try_reductions(&scene, self->rank, SHOAL_I32, SHOAL_MAX);
    try_copies(&scene, self->rank);
    try_windows(&scene, self->rank);
    scene_close(&scene);
}

TEST_RANKS(four_ranks, 4)
{
    try_all(self);
}

TEST_RANKS(five_ranks, 5)
{
    try_all(self);
}
