/* SPDX-License-Identifier: MIT */
/*
 * Lists that are saved on some ranks in one way, and loaded on other ranks in another: all values have the bits that
 * were saved, and what is not of the part stays as it was.
 *
 * `make test` saves in a few ways on 1 to 6 ranks, and loads each on 1 to 6 ranks in random ways; SHOAL_TEST_SWEEP=whole
 * tries all pairs of ways, numbers of ranks and formats.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fixtures/checkpoint_stage.h"
#include "shoal/checkpoint.h"
#include "tensor/dtype.h"

#define MAX_RANKS STAGE_MAX_RANKS
#define GUARD_BYTES 32
#define JUNK 0xC3

/* How ranks share a list. */
enum way {
    WAY_ROWS,       /* FSDP, dimension 0 */
    WAY_COLUMNS,    /* FSDP, dimension 1 where there is one */
    WAY_HYBRID,     /* HSDP: halves of the ranks have the same, if their number is even */
    WAY_REPLICATED, /* DDP */
    WAY_ZERO,       /* the model as DDP has it, the optimizer's by rows */
    WAY_UNEVEN,     /* cuts that no rule makes, other ones for each tensor */
    N_WAYS
};

static const char *const way_names[N_WAYS] = {"rows", "columns", "hybrid", "replicated", "zero", "uneven"};

struct row {
    const char *section;
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[4];
};

static const struct row rows[] = {
    {"model", "a.weight", SHOAL_F32, 2, {13, 7}},
    {"model", "a.bias", SHOAL_F32, 1, {5}},
    {"optimizer", "a.weight.m", SHOAL_F32, 2, {13, 7}},
    {"optimizer", "a.weight.v", SHOAL_F64, 2, {13, 7}},
    {"model", "scalar", SHOAL_I64, 0, {0}},
    {"model", "empty", SHOAL_F32, 2, {0, 4}},
    {"model", "half", SHOAL_BF16, 3, {3, 8, 2}},
    {"model", "one", SHOAL_U8, 1, {1}},
    {"extra", "flags", SHOAL_BOOL, 4, {2, 3, 1, 5}},
    {"optimizer", "wide", SHOAL_F32, 2, {2, 300}},
};
#define N_ROWS (sizeof rows / sizeof rows[0])

/* What a rank has of each. */
struct part {
    int dim;
    int64_t offset;
    int64_t length;
    size_t bytes;
    unsigned char *memory; /* with guards on both sides */
};

struct list {
    shoal_items *items;
    struct part parts[N_ROWS];
    int64_t epoch;
    double loss;
    char run[16];
};

/* Parts ------------------------------------------------------------------------------------------------ */

static void cut_evenly(struct part *part, int64_t size, int n_ranks, int rank)
{
    int64_t chunk = (size + n_ranks - 1) / n_ranks;
    int64_t begin = chunk * rank < size ? chunk * rank : size;
    part->offset = begin;
    part->length = chunk < size - begin ? chunk : size - begin;
}

/* Cuts by a hash of the tensor: the same on all ranks. */
static void cut_unevenly(struct part *part, const struct row *row, int n_ranks, int rank)
{
    uint64_t hash = hash_bytes(1, row->name, strlen(row->name));
    part->dim = (int)(hash % (uint64_t)row->n_dims);
    int64_t size = row->shape[part->dim];
    int64_t ends[2] = {0, size};
    /* The cuts are sorted, since each lies in its own share, moved by less than one. */
    for (int i = 0; i < 2; i++) {
        int number = rank + i;
        uint64_t share = (uint64_t)size / (uint64_t)n_ranks;
        if (number > 0 && number < n_ranks) {
            uint64_t moved = hash_bytes(hash, &number, sizeof number) % (share + 1);
            ends[i] = (int64_t)(share * (uint64_t)(number - 1) + moved);
        } else {
            ends[i] = number == 0 ? 0 : size;
        }
    }
    part->offset = ends[0];
    part->length = ends[1] - ends[0];
}

static void cut(struct part *part, const struct row *row, enum way way, int n_ranks, int rank)
{
    bool is_whole = way == WAY_REPLICATED || row->n_dims == 0 ||
                    (way == WAY_ZERO && strcmp(row->section, "optimizer") != 0);
    *part = (struct part){.dim = -1};
    if (is_whole) {
        return;
    }
    if (way == WAY_UNEVEN) {
        cut_unevenly(part, row, n_ranks, rank);
        return;
    }
    part->dim = way == WAY_COLUMNS && row->n_dims > 1 ? 1 : 0;
    int n_sharing = way == WAY_HYBRID && n_ranks % 2 == 0 ? n_ranks / 2 : n_ranks;
    cut_evenly(part, row->shape[part->dim], n_sharing, rank % n_sharing);
}

/* The bytes of an element: by the tensor and its number in the whole. */
static void make_element(size_t row, int64_t number, unsigned char *out)
{
    uint64_t bits = hash_bytes(row, &number, sizeof number);
    if (rows[row].dtype == SHOAL_BOOL) {
        bits &= 1;
    }
    memcpy(out, &bits, dtype_bytes(rows[row].dtype));
}

/* Fills the part, or compares it. */
static void walk_part(const struct list *list, size_t number, bool compares)
{
    const struct row *row = &rows[number];
    const struct part *part = &list->parts[number];
    size_t size = dtype_bytes(row->dtype);
    int64_t indices[4] = {0};
    int64_t lengths[4] = {0};
    for (int i = 0; i < row->n_dims; i++) {
        lengths[i] = i == part->dim ? part->length : row->shape[i];
    }
    for (size_t i = 0; i < part->bytes / size && !test_has_failed(); i++) {
        unsigned char bytes[16];
        int64_t at = 0;
        for (int d = 0; d < row->n_dims; d++) {
            at = at * row->shape[d] + indices[d] + (d == part->dim ? part->offset : 0);
        }
        make_element(number, at, bytes);
        unsigned char *element = part->memory + GUARD_BYTES + i * size;
        if (compares) {
            CHECK_BYTES(element, bytes, size);
        } else {
            memcpy(element, bytes, size);
        }
        for (int d = row->n_dims - 1; d >= 0 && ++indices[d] == lengths[d]; d--) {
            indices[d] = 0;
        }
    }
}

/* Lists ------------------------------------------------------------------------------------------------ */

static void add_row(struct list *list, size_t number, enum way way, int n_ranks, int rank)
{
    const struct row *row = &rows[number];
    struct part *part = &list->parts[number];
    shoal_item item = SHOAL_ITEM_INIT;
    cut(part, row, way, n_ranks, rank);
    part->bytes = dtype_bytes(row->dtype);
    for (int i = 0; i < row->n_dims; i++) {
        part->bytes *= (size_t)(i == part->dim ? part->length : row->shape[i]);
    }
    part->memory = malloc(part->bytes + 2 * GUARD_BYTES);
    memset(part->memory, JUNK, part->bytes + 2 * GUARD_BYTES);
    item.section = row->section;
    item.name = row->name;
    item.dtype = row->dtype;
    item.n_dims = row->n_dims;
    item.shape = row->shape;
    item.dim = part->dim;
    item.offset = part->offset;
    item.length = part->length;
    item.data = part->memory + GUARD_BYTES;
    CHECK_OK(shoal_items_add(list->items, &item));
}

static void make_list(struct list *list, enum way way, int n_ranks, int rank)
{
    memset(list, 0, sizeof *list);
    REQUIRE_OK(shoal_items_create(&list->items));
    for (size_t i = 0; i < N_ROWS; i++) {
        add_row(list, i, way, n_ranks, rank);
    }
    CHECK_OK(shoal_items_add_integer(list->items, "epoch", &list->epoch));
    CHECK_OK(shoal_items_add_real(list->items, "loss", &list->loss));
    CHECK_OK(shoal_items_add_string(list->items, "run", list->run, sizeof list->run));
}

static void free_list(struct list *list)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        for (size_t j = 0; j < GUARD_BYTES && !test_has_failed(); j++) {
            CHECK_INT(list->parts[i].memory[j], JUNK);
            CHECK_INT(list->parts[i].memory[GUARD_BYTES + list->parts[i].bytes + j], JUNK);
        }
        free(list->parts[i].memory);
    }
    shoal_items_free(list->items);
}

/* Saving and loading ----------------------------------------------------------------------------------- */

static void save(struct stage *stage, int n_ranks, enum way way, shoal_checkpoint_format format)
{
    struct list list;
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    test_barrier(stage->self);
    if (stage->self->rank < n_ranks) {
        make_list(&list, way, n_ranks, stage->self->rank);
        for (size_t i = 0; i < N_ROWS; i++) {
            walk_part(&list, i, /*compares=*/false);
        }
        list.epoch = INT64_MIN;
        list.loss = 0.1;
        (void)snprintf(list.run, sizeof list.run, "%s", way_names[way]);
        options.format = format;
        options.replaces = true;
        options.max_file_bytes = 1500;
        CHECK_OK(shoal_checkpoint_save(stage->groups[n_ranks], stage->directory, list.items, &options));
        free_list(&list);
    }
    test_barrier(stage->self);
}

static void load(struct stage *stage, int n_ranks, enum way way, enum way saved)
{
    struct list list;
    if (stage->self->rank >= n_ranks) {
        return;
    }
    make_list(&list, way, n_ranks, stage->self->rank);
    CHECK_OK(shoal_checkpoint_load(stage->groups[n_ranks], stage->directory, list.items, NULL, NULL));
    for (size_t i = 0; i < N_ROWS; i++) {
        walk_part(&list, i, /*compares=*/true);
    }
    CHECK_INT(list.epoch, INT64_MIN);
    CHECK_DOUBLE(list.loss, 0.1);
    CHECK_STRING(list.run, way_names[saved]);
    free_list(&list);
}

static void try_pair(struct stage *stage, int n_saved, enum way saved, int n_loaded, enum way loaded)
{
    bool had_failed = test_has_failed();
    load(stage, n_loaded, loaded, saved);
    if (test_has_failed() && !had_failed) {
        test_failed(__FILE__, __LINE__, "saved by %s on %d ranks, loaded by %s on %d", way_names[saved],
                    n_saved, way_names[loaded], n_loaded);
    }
}

/* All numbers of ranks, of one way on both sides, in both formats. */
TEST_RANKS(rows_between_all_numbers_of_ranks, MAX_RANKS)
{
    struct stage stage;
    open_stage_with_groups(&stage, self);
    for (int n_saved = 1; n_saved <= MAX_RANKS && !test_has_failed(); n_saved++) {
        for (int format = 0; format < 2; format++) {
            save(&stage, n_saved, WAY_ROWS, (shoal_checkpoint_format)format);
            for (int n_loaded = 1; n_loaded <= MAX_RANKS; n_loaded++) {
                try_pair(&stage, n_saved, WAY_ROWS, n_loaded, WAY_ROWS);
            }
        }
    }
    close_stage(&stage);
}

static void sweep_loads(struct stage *stage, int n_saved, enum way saved)
{
    for (int n_loaded = 1; n_loaded <= MAX_RANKS; n_loaded++) {
        for (int loaded = 0; loaded < N_WAYS; loaded++) {
            try_pair(stage, n_saved, saved, n_loaded, (enum way)loaded);
        }
    }
}

static void sweep(struct stage *stage)
{
    for (int n_saved = 1; n_saved <= MAX_RANKS && !test_has_failed(); n_saved++) {
        for (int saved = 0; saved < N_WAYS; saved++) {
            for (int format = 0; format < 2; format++) {
                save(stage, n_saved, (enum way)saved, (shoal_checkpoint_format)format);
                sweep_loads(stage, n_saved, (enum way)saved);
            }
        }
    }
}

TEST_RANKS(other_pairs_of_ways_and_ranks, MAX_RANKS)
{
    struct stage stage;
    struct test_random random = test_random_begin(2); /* the same on all ranks */
    open_stage_with_groups(&stage, self);
    if (test_is_whole()) {
        test_deadline(3000);
        sweep(&stage);
    }
    for (int i = 0; i < 18 && !test_is_whole() && !test_has_failed(); i++) {
        int n_saved = 1 + i % MAX_RANKS;
        enum way saved = (enum way)test_random_below(&random, N_WAYS);
        save(&stage, n_saved, saved, (shoal_checkpoint_format)test_random_below(&random, 2));
        for (int n_loaded = 1; n_loaded <= MAX_RANKS; n_loaded++) {
            try_pair(&stage, n_saved, saved, n_loaded, (enum way)test_random_below(&random, N_WAYS));
        }
    }
    close_stage(&stage);
}
