/* SPDX-License-Identifier: MIT */
/*
 * The rounds of a rank: a save and a load, a plain writer and a plain reader on rank 0, and a save in the background
 * while steps run. The plain one and ours take turns in coming first. Everything that is loaded is compared.
 */
#include "bench/checkpoint.h"
#include "bench/ranks.h"
#include "common/count_heap.h"

#include "base/clock.h"
#include "shoal/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct rounds {
    const struct bench_checkpoint *bench;
    struct measure_page *page;
    int rank;
    shoal_group *group;
    shoal_items *items;
    struct bench_checkpoint_steps *steps;
    struct bench_checkpoint_files files; /* of the last checkpoint; of rank 0 */
    uint32_t *memory;                    /* the shards, one after the other */
    size_t memory_bytes;                 /* of the largest shards of any rank */
    size_t shard_words;
    size_t first_word; /* of a shard in its tensor */
    char ours[BENCH_CHECKPOINT_PATH + 8];
    char plain[BENCH_CHECKPOINT_PATH + 8];
};

/* Values ------------------------------------------------------------------------------------------------- */

/* Depends on the tensor, the place in it and the round. */
static uint32_t value_at(size_t tensor, size_t word, int round)
{
    return ((uint32_t)word + (uint32_t)tensor * 40503u + (uint32_t)(round + 1) * 69069u) * 2654435761u + 1u;
}

static void write_values(struct rounds *rounds, int round)
{
    for (size_t tensor = 0; tensor < BENCH_CHECKPOINT_TENSORS; tensor++) {
        uint32_t *shard = rounds->memory + tensor * rounds->shard_words;
        for (size_t i = 0; i < rounds->shard_words; i++) {
            shard[i] = value_at(tensor, rounds->first_word + i, round);
        }
    }
}

static void check_values(struct rounds *rounds, int round)
{
    uint64_t n_wrong = 0;
    for (size_t tensor = 0; tensor < BENCH_CHECKPOINT_TENSORS; tensor++) {
        const uint32_t *shard = rounds->memory + tensor * rounds->shard_words;
        for (size_t i = 0; i < rounds->shard_words; i++) {
            n_wrong += shard[i] != value_at(tensor, rounds->first_word + i, round);
        }
    }
    *measure_page_wrong(rounds->page, rounds->rank) += n_wrong;
}

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status add_item(struct rounds *rounds, size_t tensor, int64_t n_rows)
{
    const struct bench_checkpoint *bench = rounds->bench;
    int64_t n_columns = BENCH_CHECKPOINT_ROW_BYTES / (int64_t)sizeof(uint32_t);
    const int64_t shape[2] = {n_rows, n_columns};
    int64_t first = n_rows * rounds->rank / bench->request.n_ranks;
    int64_t end = n_rows * (rounds->rank + 1) / bench->request.n_ranks;
    char name[32];
    (void)snprintf(name, sizeof name, "layers.%zu.weight", tensor);
    rounds->first_word = (size_t)(first * n_columns);
    rounds->shard_words = (size_t)((end - first) * n_columns);
    const shoal_item item = {.struct_size = sizeof item,
                             .name = name,
                             .dtype = SHOAL_F32,
                             .n_dims = 2,
                             .shape = shape,
                             .dim = 0,
                             .offset = first,
                             .length = end - first,
                             .data = rounds->memory + tensor * rounds->shard_words};
    return shoal_items_add(rounds->items, &item);
}

static bool make_items(struct rounds *rounds)
{
    const struct bench_checkpoint *bench = rounds->bench;
    size_t n_rows = bench->bytes / BENCH_CHECKPOINT_TENSORS / BENCH_CHECKPOINT_ROW_BYTES;
    size_t n_ranks = (size_t)bench->request.n_ranks;
    size_t most_rows = (n_rows + n_ranks - 1) / n_ranks;
    rounds->memory_bytes = BENCH_CHECKPOINT_TENSORS * most_rows * BENCH_CHECKPOINT_ROW_BYTES;
    rounds->memory = calloc(rounds->memory_bytes, 1);
    if (!rounds->memory) {
        fprintf(stderr, "shoal bench checkpoint: rank %d: no memory for its shards\n", rounds->rank);
        return false;
    }
    shoal_status status = shoal_items_create(&rounds->items);
    for (size_t i = 0; i < BENCH_CHECKPOINT_TENSORS && status == SHOAL_OK; i++) {
        status = add_item(rounds, i, (int64_t)n_rows);
    }
    return bench_ranks_check("checkpoint", rounds->rank, status, "items");
}

static bool make_directory(const char *path)
{
    if (mkdir(path, 0777) == 0) {
        return true;
    }
    fprintf(stderr, "shoal bench checkpoint: %s: mkdir: %s\n", path, strerror(errno));
    return false;
}

static bool make_directories(struct rounds *rounds)
{
    return rounds->rank != 0 || (make_directory(rounds->ours) && make_directory(rounds->plain));
}

static bool remove_directories(struct rounds *rounds)
{
    return rounds->rank != 0 ||
           (bench_checkpoint_remove(rounds->ours) && bench_checkpoint_remove(rounds->plain));
}

/* Saving and loading ------------------------------------------------------------------------------------- */

static bool save(struct rounds *rounds)
{
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.format = rounds->bench->format;
    return bench_ranks_check("checkpoint", rounds->rank,
                             shoal_checkpoint_save(rounds->group, rounds->ours, rounds->items, &options),
                             "a save");
}

static bool load(struct rounds *rounds)
{
    return bench_ranks_check("checkpoint", rounds->rank,
                             shoal_checkpoint_load(rounds->group, rounds->ours, rounds->items, NULL, NULL),
                             "a load");
}

static bool save_plain(struct rounds *rounds)
{
    return rounds->rank != 0 ||
           bench_checkpoint_write_plain(rounds->plain, &rounds->files, (const char *)rounds->memory,
                                        rounds->memory_bytes);
}

static bool load_plain(struct rounds *rounds)
{
    return rounds->rank != 0 || bench_checkpoint_read_plain(rounds->plain, &rounds->files,
                                                            (char *)rounds->memory, rounds->memory_bytes);
}

static const struct {
    bool (*run)(struct rounds *rounds);
    bool is_load;
    bool is_plain;
} kinds[] = {
    [BENCH_CHECKPOINT_SAVE] = {save, false, false},
    [BENCH_CHECKPOINT_SAVE_PLAIN] = {save_plain, false, true},
    [BENCH_CHECKPOINT_LOAD] = {load, true, false},
    [BENCH_CHECKPOINT_LOAD_PLAIN] = {load_plain, true, true},
};

static void keep_time(struct rounds *rounds, enum bench_checkpoint_time kind, int round, int64_t time_ns)
{
    if (round >= 0) {
        measure_page_times(rounds->page, rounds->rank)[(int)kind * rounds->bench->n_rounds + round] = time_ns;
    }
}

/* The step of all checkpoints is 0. */
static void path_of_checkpoint(const struct rounds *rounds, char *path, size_t bytes)
{
    (void)snprintf(path, bytes, "%s/step-000000000", rounds->ours);
}

/* The disk is idle, and a reading finds nothing in the page cache. */
static bool prepare(struct rounds *rounds, enum bench_checkpoint_time kind)
{
    char path[BENCH_CHECKPOINT_PATH + 32];
    double cached = 0.0;
    if (kind == BENCH_CHECKPOINT_LOAD) {
        memset(rounds->memory, 0, rounds->memory_bytes);
    }
    if (rounds->rank != 0) {
        return true;
    }
    bench_checkpoint_settle(rounds->bench->directory);
    path_of_checkpoint(rounds, path, sizeof path);
    if (kinds[kind].is_load && !bench_checkpoint_drop(kinds[kind].is_plain ? rounds->plain : path, &cached)) {
        return false;
    }
    struct bench_checkpoint_found *found = rounds->bench->found;
    found->cached = cached > found->cached ? cached : found->cached;
    return true;
}

/* The files, for the plain writer; what was loaded; memory. */
static bool look_back(struct rounds *rounds, enum bench_checkpoint_time kind, int round, size_t above_bytes)
{
    char path[BENCH_CHECKPOINT_PATH + 32];
    struct bench_checkpoint_found *found = rounds->bench->found;
    if (kind == BENCH_CHECKPOINT_LOAD) {
        size_t *most = &found->ranks[rounds->rank].load_bytes;
        *most = above_bytes > *most ? above_bytes : *most;
        check_values(rounds, round);
    }
    if (kind == BENCH_CHECKPOINT_SAVE) {
        size_t *most = &found->ranks[rounds->rank].save_bytes;
        *most = above_bytes > *most ? above_bytes : *most;
        path_of_checkpoint(rounds, path, sizeof path);
        if (rounds->rank == 0 && !bench_checkpoint_list(path, &rounds->files)) {
            return false;
        }
        found->n_files = rounds->rank == 0 ? rounds->files.n_files : found->n_files;
    }
    return true;
}

static bool measure(struct rounds *rounds, enum bench_checkpoint_time kind, int round)
{
    if (!prepare(rounds, kind) || !measure_page_meet(rounds->page, rounds->rank)) {
        return false;
    }
    size_t live_bytes = count_heap_live();
    count_heap_restart();
    int64_t begin_ns = clock_now_ns();
    if (!kinds[kind].run(rounds)) {
        return false;
    }
    keep_time(rounds, kind, round, clock_now_ns() - begin_ns);
    return look_back(rounds, kind, round, count_heap_peak() - live_bytes) &&
           measure_page_meet(rounds->page, rounds->rank);
}

/* Round -1 warms up: there are no files yet that the plain writer could follow. */
static bool run_pair(struct rounds *rounds, enum bench_checkpoint_time kind, int round)
{
    bool is_plain_first = round >= 0 && round % 2 == 1;
    return measure(rounds, kind + is_plain_first, round) && measure(rounds, kind + !is_plain_first, round);
}

static bool run_foreground(struct rounds *rounds, int round)
{
    write_values(rounds, round);
    return make_directories(rounds) && run_pair(rounds, BENCH_CHECKPOINT_SAVE, round) &&
           run_pair(rounds, BENCH_CHECKPOINT_LOAD, round) && remove_directories(rounds);
}

/* In the background -------------------------------------------------------------------------------------- */

static bool start(struct rounds *rounds, int round, shoal_checkpoint_saving **saving_out)
{
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.format = rounds->bench->format;
    int64_t begin_ns = clock_now_ns();
    shoal_status status =
        shoal_checkpoint_save_start(rounds->group, rounds->ours, rounds->items, &options, saving_out);
    keep_time(rounds, BENCH_CHECKPOINT_START, round, clock_now_ns() - begin_ns);
    return bench_ranks_check("checkpoint", rounds->rank, status, "starting a save");
}

static bool step_while_saving(struct rounds *rounds, int round)
{
    shoal_checkpoint_saving *saving = NULL;
    int64_t step_ns = 0;
    size_t n_steps = 0;
    if (!start(rounds, round, &saving)) {
        return false;
    }
    memset(rounds->memory, 0, rounds->memory_bytes); /* as the program may: it has been copied */
    bool is_good = bench_checkpoint_steps_run(rounds->steps, saving, &step_ns, &n_steps);
    is_good = bench_ranks_check("checkpoint", rounds->rank, shoal_checkpoint_save_wait(saving),
                                "a save in the background") &&
              is_good;
    keep_time(rounds, BENCH_CHECKPOINT_STEP_SAVING, round, step_ns);
    rounds->bench->found->n_steps_saving += rounds->rank == 0 && round >= 0 ? n_steps : 0;
    return is_good;
}

static bool run_background(struct rounds *rounds, int round)
{
    int64_t step_ns = 0;
    size_t n_steps;
    write_values(rounds, round);
    if (!make_directories(rounds) || !prepare(rounds, BENCH_CHECKPOINT_SAVE)) {
        return false;
    }
    if (round >= 0 && !bench_checkpoint_steps_run(rounds->steps, NULL, &step_ns, &n_steps)) {
        return false;
    }
    keep_time(rounds, BENCH_CHECKPOINT_STEP, round, step_ns);
    if (!step_while_saving(rounds, round) || !load(rounds)) {
        return false;
    }
    check_values(rounds, round);
    return measure_page_meet(rounds->page, rounds->rank) && remove_directories(rounds);
}

/* All ---------------------------------------------------------------------------------------------------- */

static bool run_rounds(struct rounds *rounds)
{
    bool is_good = make_items(rounds);
    for (int round = -1; round < rounds->bench->n_rounds && is_good; round++) {
        is_good = run_foreground(rounds, round);
    }
    if (is_good) {
        rounds->steps = bench_checkpoint_steps_make(rounds->bench, rounds->page, rounds->rank, rounds->group);
        is_good = rounds->steps != NULL;
    }
    for (int round = -1; round < rounds->bench->n_rounds && is_good; round++) {
        is_good = run_background(rounds, round);
    }
    bench_checkpoint_steps_free(rounds->steps);
    shoal_items_free(rounds->items);
    free(rounds->memory);
    return is_good;
}

bool bench_checkpoint_run(const void *context, struct measure_page *page, int rank)
{
    const struct bench_checkpoint *bench = context;
    shoal_world *world;
    struct rounds rounds = {.bench = bench, .page = page, .rank = rank};
    (void)snprintf(rounds.ours, sizeof rounds.ours, "%s/ours", bench->directory);
    (void)snprintf(rounds.plain, sizeof rounds.plain, "%s/plain", bench->directory);
    bool is_good = bench_ranks_check("checkpoint", rank, count_heap_begin(), "counting memory") &&
                   bench_ranks_check("checkpoint", rank, bench_ranks_open_world(bench->ranks, rank, &world),
                                     "opening the world");
    if (!is_good) {
        return false;
    }
    rounds.group = shoal_world_group(world);
    return bench_ranks_close_world(bench->ranks, rank, world, run_rounds(&rounds));
}
