/* SPDX-License-Identifier: MIT */
/* What the tests of faults share: operations by name, and looking for what was left behind. */
#ifndef TESTS_FAULT_H
#define TESTS_FAULT_H

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fixtures/descriptor_calls.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/work.h"
#include "shoal/world.h"
#include "sharedmem/segment.h"
#include "transport/shm/algorithm.h"

enum {
    FAULT_RANKS = 3,
    FAULT_SMALL = 16,    /* elements per rank: goes through slots */
    FAULT_LARGE = 60000, /* does not */
    FAULT_TEXT_BYTES = 400
};

/* Buffers for every operation of ops.def. */
struct fault_memory {
    float *a;
    float *b;
};

/*
 * How much longer than promised an error may take. `make drill`, on a quiet machine, holds the library to what the
 * header promises; elsewhere the processors may be busy, and what ends a call must only not be its deadline.
 */
static inline double fault_patience(void)
{
    const char *kills = getenv("SHOAL_TEST_KILLS");
    bool is_drill = getenv("SHOAL_TEST_DRILL") || (kills && strcmp(kills, "whole") == 0);
    return (is_drill ? 1 : 5) * test_time_scale();
}

static inline double fault_seconds_since(int64_t then_ns)
{
    return (double)(clock_now_ns() - then_ns) * 1e-9;
}

static inline struct fault_memory fault_memory_create(void)
{
    size_t count = (size_t)FAULT_LARGE * FAULT_RANKS;
    return (struct fault_memory){.a = calloc(count, sizeof(float)), .b = calloc(count, sizeof(float))};
}

static inline void fault_memory_free(struct fault_memory *memory)
{
    free(memory->a);
    free(memory->b);
}

/* Operations ----------------------------------------------------------------------------------------------- */

static inline shoal_status fault_finish(shoal_work *work)
{
    shoal_status status = shoal_work_wait(work, /*timeout_s=*/-1);
    shoal_work_free(work);
    return status;
}

/* Several in flight. The first failure, but all of them are waited for. */
static inline shoal_status fault_started(shoal_group *g, struct fault_memory *w, size_t n)
{
    shoal_work *works[4] = {NULL, NULL, NULL, NULL};
    shoal_status first = SHOAL_OK;
    for (int i = 0; i < 4 && first == SHOAL_OK; i++) {
        first = shoal_group_all_reduce_start(g, w->a, w->b, n, SHOAL_F32, SHOAL_SUM, &works[i]);
    }
    for (int i = 0; i < 4 && works[i]; i++) {
        shoal_status status = fault_finish(works[i]);
        first = first == SHOAL_OK ? status : first;
    }
    return first;
}

static inline shoal_status fault_list(shoal_group *g, struct fault_memory *w, size_t n)
{
    shoal_part parts[2] = {{w->a, w->b, n, SHOAL_CPU}, {w->a + n, w->b + n, n, SHOAL_CPU}};
    return group_all_reduce_list(g, parts, 2, SHOAL_F32, SHOAL_SUM);
}

static inline shoal_status fault_gather_list(shoal_group *g, struct fault_memory *w, size_t n)
{
    size_t half = n / 2;
    shoal_part parts[2] = {{w->a, w->b, half, SHOAL_CPU},
                           {w->a + half, w->b + half * FAULT_RANKS, half, SHOAL_CPU}};
    return group_all_gather_list(g, parts, 2, SHOAL_F32);
}

static inline shoal_status fault_scatter_list(shoal_group *g, struct fault_memory *w, size_t n)
{
    size_t half = n / 2;
    shoal_part parts[2] = {{w->a, w->b, half, SHOAL_CPU},
                           {w->a + half * FAULT_RANKS, w->b + half, half, SHOAL_CPU}};
    return group_reduce_scatter_list(g, parts, 2, SHOAL_F32, SHOAL_SUM);
}

static inline shoal_status fault_broadcast_list(shoal_group *g, struct fault_memory *w, size_t n)
{
    shoal_part parts[2] = {{NULL, w->a, n, SHOAL_CPU}, {NULL, w->b, n, SHOAL_CPU}};
    return group_broadcast_list(g, parts, 2, SHOAL_F32, 1);
}

/* Out of the memory of the peers, whatever the tables prefer. Twice: in the first one ranks find out whether they can. */
static inline shoal_status fault_single(shoal_group *g, struct fault_memory *w, size_t n)
{
    algorithm_override_all(&shm_algorithms, SHM_ALGORITHM_SINGLE);
    shoal_status status = shoal_group_all_to_all(g, w->a, w->b, n, SHOAL_F32);
    if (status == SHOAL_OK) {
        status = shoal_group_all_to_all(g, w->a, w->b, n, SHOAL_F32);
    }
    algorithm_override_all(&shm_algorithms, SHM_ALGORITHM_COUNT);
    return status;
}

static inline shoal_status fault_ring(shoal_group *g, struct fault_memory *w, size_t n)
{
    int rank = shoal_group_rank(g);
    int n_ranks = shoal_group_n_ranks(g);
    shoal_transfer transfers[2] = {{SHOAL_SEND, w->a, n, SHOAL_F32, (rank + 1) % n_ranks, 0},
                                   {SHOAL_RECV, w->b, n, SHOAL_F32, (rank + n_ranks - 1) % n_ranks, 0}};
    return shoal_group_transfer(g, transfers, 2);
}

/* Each sends to the next, and receives from whoever sends. */
static inline shoal_status fault_recv_any(shoal_group *g, struct fault_memory *w, size_t n)
{
    int next = (shoal_group_rank(g) + 1) % shoal_group_n_ranks(g);
    shoal_transfer transfers[2] = {{SHOAL_SEND, w->a, n, SHOAL_F32, next, 0},
                                   {SHOAL_RECV, w->b, n, SHOAL_F32, SHOAL_ANY_RANK, 0}};
    return shoal_group_transfer(g, transfers, 2);
}

/* The ring by the call that has options. Not with a deadline of the call's own: past it the group goes on, and a rank
   that closes its world then is missed by the others, not the one that is stopped. */
static inline shoal_status fault_transfer_with(shoal_group *g, struct fault_memory *w, size_t n)
{
    int rank = shoal_group_rank(g);
    int n_ranks = shoal_group_n_ranks(g);
    int sources[2];
    shoal_transfer transfers[2] = {{SHOAL_SEND, w->a, n, SHOAL_F32, (rank + 1) % n_ranks, 0},
                                   {SHOAL_RECV, w->b, n, SHOAL_F32, (rank + n_ranks - 1) % n_ranks, 0}};
    shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
    options.sources = sources;
    return shoal_group_transfer_with(g, transfers, 2, &options);
}

static inline shoal_status fault_symmetric(shoal_group *g, size_t n)
{
    shoal_symmetric *symmetric;
    shoal_status status = shoal_symmetric_create(g, n * sizeof(float), &symmetric);
    if (status == SHOAL_OK) {
        float *data = shoal_symmetric_data(symmetric);
        status = shoal_group_all_reduce(g, data, data, n, SHOAL_F32, SHOAL_SUM);
        shoal_symmetric_free(symmetric);
    }
    return status;
}

static inline shoal_status fault_symmetric_grow(shoal_group *g, size_t n)
{
    shoal_symmetric *symmetric;
    size_t bytes = n * sizeof(float);
    shoal_status status = shoal_symmetric_reserve(g, bytes, 2 * bytes, &symmetric);
    if (status == SHOAL_OK) {
        status = shoal_symmetric_grow(g, symmetric, 2 * bytes);
        shoal_symmetric_free(symmetric);
    }
    return status;
}

static inline shoal_status fault_window(shoal_group *g, struct fault_memory *w, size_t n)
{
    size_t bytes = n * sizeof(float);
    shoal_window *window;
    shoal_status status = shoal_window_create(g, bytes * (size_t)shoal_group_n_ranks(g), &window);
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_window_piece piece = {w->a, n, SHOAL_F32, SHOAL_F32, (size_t)shoal_group_rank(g) * bytes};
    for (uint64_t label = 0; label < 3 && status == SHOAL_OK; label++) {
        status = shoal_window_gather(window, &piece, 1, label);
        if (status == SHOAL_OK) {
            status = shoal_window_release(window);
        }
    }
    shoal_window_free(window);
    return status;
}

static inline shoal_status fault_window_started(shoal_group *g, struct fault_memory *w, size_t n)
{
    size_t bytes = n * sizeof(float);
    shoal_window *window;
    shoal_status status = shoal_window_create(g, bytes * (size_t)shoal_group_n_ranks(g), &window);
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_window_piece piece = {w->a, n, SHOAL_F32, SHOAL_F32, (size_t)shoal_group_rank(g) * bytes};
    shoal_work *work;
    status = shoal_window_gather_start(window, &piece, 1, /*label=*/0, &work);
    if (status == SHOAL_OK) {
        status = fault_finish(work);
    }
    shoal_window_free(window);
    return status;
}

/* One that connects. */
static inline shoal_status fault_new_group(shoal_group *g, struct fault_memory *w, size_t n)
{
    static const int turned[FAULT_RANKS] = {2, 0, 1};
    shoal_group *group;
    shoal_status status = shoal_group_create(shoal_group_world(g), turned, FAULT_RANKS, "new", &group);
    if (status == SHOAL_OK) {
        status = shoal_group_all_reduce(group, w->a, w->b, n, SHOAL_F32, SHOAL_SUM);
    }
    return status;
}

/* One that is closed, again and again under one name. */
static inline shoal_status fault_close_group(shoal_group *g, struct fault_memory *w, size_t n)
{
    static const int turned[FAULT_RANKS] = {1, 2, 0};
    shoal_group *group;
    shoal_status status = shoal_group_create(shoal_group_world(g), turned, FAULT_RANKS, "closed", &group);
    if (status == SHOAL_OK) {
        status = shoal_group_all_reduce(group, w->a, w->b, n, SHOAL_F32, SHOAL_SUM);
    }
    return status == SHOAL_OK ? shoal_group_close(group) : status;
}

/* One that all abandon, each when it has ended its part. */
static inline shoal_status fault_abandon(shoal_group *g, struct fault_memory *w, size_t n)
{
    static const int turned[FAULT_RANKS] = {2, 1, 0};
    shoal_group *group;
    shoal_status status = shoal_group_create(shoal_group_world(g), turned, FAULT_RANKS, "abandoned", &group);
    if (status == SHOAL_OK) {
        status = shoal_group_all_reduce(group, w->a, w->b, n, SHOAL_F32, SHOAL_SUM);
    }
    return status == SHOAL_OK ? shoal_group_abandon(group) : status;
}

#define FAULT_OP(name, call)                                                                     \
    static inline shoal_status fault_op_##name(shoal_group *g, struct fault_memory *w, size_t n) \
    {                                                                                            \
        const size_t k[FAULT_RANKS] = {n, n, n};                                                 \
        (void)k;                                                                                 \
        return call;                                                                             \
    }
#include "fault/ops.def"
#undef FAULT_OP

enum fault_op_id {
#define FAULT_OP(name, call) FAULT_##name,
#include "fault/ops.def"
#undef FAULT_OP
    FAULT_OP_COUNT
};

struct fault_op {
    const char *name;
    shoal_status (*run)(shoal_group *group, struct fault_memory *memory, size_t count);
};

static const struct fault_op fault_ops[FAULT_OP_COUNT] = {
#define FAULT_OP(name, call) [FAULT_##name] = {#name, fault_op_##name},
#include "fault/ops.def"
#undef FAULT_OP
};

/* What was left behind ------------------------------------------------------------------------------------- */

struct fault_holdings {
    size_t n_blocks;
    size_t n_descriptors;
    size_t mapped_bytes;
};

static inline struct fault_holdings fault_holdings(void)
{
    return (struct fault_holdings){.n_blocks = test_live_blocks(),
                                   .n_descriptors = test_open_descriptors(),
                                   .mapped_bytes = segment_mapped_bytes()};
}

static inline bool fault_holds_more(const struct fault_holdings *before)
{
    struct fault_holdings now = fault_holdings();
    return now.n_blocks > before->n_blocks || now.n_descriptors > before->n_descriptors ||
           now.mapped_bytes > before->mapped_bytes;
}

static inline void fault_check_holdings(const struct fault_holdings *before, const char *what)
{
    struct fault_holdings now = fault_holdings();
    if (fault_holds_more(before)) {
        test_failed(__FILE__, __LINE__,
                    "%s: blocks %zu were %zu, descriptors %zu were %zu, mapped %zu were %zu", what,
                    now.n_blocks, before->n_blocks, now.n_descriptors, before->n_descriptors,
                    now.mapped_bytes, before->mapped_bytes);
    }
}

/* Files of the library in /dev/shm: there must never be one. */
static inline int fault_files_left(void)
{
    DIR *folder = opendir("/dev/shm");
    int n_left = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        n_left += strstr(entry->d_name, "shoal") != NULL;
    }
    if (folder) {
        (void)closedir(folder);
    }
    return n_left;
}

#endif
