/* SPDX-License-Identifier: MIT */
/* Loads of what saves have written: which one, files that were exchanged between two saves, other dtypes, large ones. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/checkpoint_stage.h"
#include "kernel/kernel.h"
#include "shoal/checkpoint.h"
#include "shoal/ops.h"
#include "tensor/dtype.h"

#define ROWS 10
#define COLUMNS 4

/* A list of one tensor [rows, columns], of which each rank has its share along `dim`; -1: all. */
struct list {
    shoal_items *items;
    shoal_dtype dtype;
    int dim;
    int64_t shape[2];
    int64_t offset;
    int64_t length;
    char *data;
    size_t bytes;
};

static void make_list(struct list *list, const struct rank *self, shoal_dtype dtype, int dim, int64_t n_rows,
                      int64_t n_columns)
{
    shoal_item item = SHOAL_ITEM_INIT;
    *list = (struct list){.dtype = dtype, .dim = dim, .shape = {n_rows, n_columns}};
    if (dim >= 0) {
        list->offset = list->shape[dim] * self->rank / self->n_ranks;
        list->length = list->shape[dim] * (self->rank + 1) / self->n_ranks - list->offset;
    }
    list->bytes = (size_t)(dim == 0 ? list->length : n_rows) * (size_t)(dim == 1 ? list->length : n_columns) *
                  dtype_bytes(dtype);
    list->data = malloc(list->bytes + 1);
    memset(list->data, 0, list->bytes);
    item.name = "t";
    item.dtype = dtype;
    item.n_dims = 2;
    item.shape = list->shape;
    item.dim = dim;
    item.offset = list->offset;
    item.length = list->length;
    item.data = list->data;
    REQUIRE_OK(shoal_items_create(&list->items));
    CHECK_OK(shoal_items_add(list->items, &item));
}

static void free_list(struct list *list)
{
    shoal_items_free(list->items);
    free(list->data);
}

/* What an element is, by its place, in a round. */
static double element(int64_t place, int round)
{
    return (double)(place % 1000003) / 7 + round;
}

/* Fills the part, or compares it with what saves of `from` become. */
static void walk(const struct list *list, int round, shoal_dtype from, bool compares)
{
    int64_t n_rows = list->dim == 0 ? list->length : list->shape[0];
    int64_t n_columns = list->dim == 1 ? list->length : list->shape[1];
    size_t size = dtype_bytes(list->dtype);
    char *at = list->data;
    for (int64_t i = 0; i < n_rows && !test_has_failed(); i++) {
        int64_t row = i + (list->dim == 0 ? list->offset : 0);
        for (int64_t j = 0; j < n_columns; j++, at += size) {
            double value = element(row * list->shape[1] + j + (list->dim == 1 ? list->offset : 0), round);
            char saved[8];
            char expected[8];
            kernel_cast(from, saved, SHOAL_F64, &value, 1);
            kernel_cast(list->dtype, expected, from, saved, 1);
            if (!compares) {
                memcpy(at, expected, size);
            } else if (memcmp(at, expected, size) != 0) {
                CHECK_BYTES(at, expected, size);
                return;
            }
        }
    }
}

static void save(struct stage *stage, struct list *list, int64_t step, int round,
                 shoal_checkpoint_format format)
{
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.step = step;
    options.format = format;
    walk(list, round, list->dtype, false);
    CHECK_OK(shoal_checkpoint_save(stage->group, stage->directory, list->items, &options));
}

/* Which one -------------------------------------------------------------------------------------------- */

TEST_RANKS(the_newest_or_one_that_is_named, 2)
{
    struct stage stage;
    struct list list;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, 0, ROWS, COLUMNS);
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, NULL, NULL),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("there is no complete checkpoint");
    for (int i = 1; i <= 3; i++) {
        save(&stage, &list, 10 * i, i, SHOAL_CHECKPOINT_PIECES);
    }
    CHECK_OK(shoal_checkpoint_newest(stage.directory, &info));
    CHECK_INT(info.step, 30);
    options.has_step = true;
    options.step = 20;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info));
    CHECK_INT(info.step, 20);
    walk(&list, 2, SHOAL_F32, true);
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, NULL, &info));
    CHECK_INT(info.step, 30);
    walk(&list, 3, SHOAL_F32, true);
    options.step = 25;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, NULL),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("there is no complete checkpoint of step 25");
    free_list(&list);
    close_stage(&stage);
}

/* All ranks learn it from the call, which changes nothing. */
TEST_RANKS(none_if_that_is_allowed, 2)
{
    struct stage stage;
    struct list list;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, 0, ROWS, COLUMNS);
    walk(&list, 5, SHOAL_F32, false);
    options.allows_none = true;
    info.step = 7;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info));
    CHECK_INT(info.step, -1);
    CHECK_OK(shoal_checkpoint_load(stage.group, "/nowhere/at/all", list.items, &options, NULL));
    walk(&list, 5, SHOAL_F32, true);
    save(&stage, &list, 3, 1, SHOAL_CHECKPOINT_PIECES);
    walk(&list, 5, SHOAL_F32, false);
    options.has_step = true;
    options.step = 4;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info));
    CHECK_INT(info.step, -1);
    walk(&list, 5, SHOAL_F32, true);
    options.has_step = false;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info));
    CHECK_INT(info.step, 3);
    walk(&list, 1, SHOAL_F32, true);
    options.allows_none = self->rank == 1;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info),
                 SHOAL_ERR_MISMATCH);
    free_list(&list);
    close_stage(&stage);
}

/* Hosts that do not share the directory, here: processes whose relative paths mean different places. */
TEST_PROCESSES(none_on_the_first_rank_only, 2)
{
    struct stage stage;
    struct list list;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, 0, ROWS, COLUMNS);
    save(&stage, &list, 3, 1, SHOAL_CHECKPOINT_PIECES);
    walk(&list, 5, SHOAL_F32, false);
    REQUIRE(chdir(self->rank == 0 ? "/" : stage.directory) == 0);
    options.allows_none = true;
    for (int i = 0; i < 2; i++) {
        options.skips_damaged = i == 1;
        CHECK_STATUS(shoal_checkpoint_load(stage.group, ".", list.items, &options, NULL), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("this rank sees step-000000003, but the first rank sees no checkpoint");
        walk(&list, 5, SHOAL_F32, true);
    }
    REQUIRE(chdir("/") == 0);
    CHECK_OK(shoal_checkpoint_load(stage.group, ".", list.items, &options, NULL));
    free_list(&list);
    close_stage(&stage);
}

TEST_RANKS(steps_of_a_directory, 1)
{
    struct stage stage;
    struct list list;
    int64_t steps[4] = {-7, -7, -7, -7};
    size_t count = 9;
    char one[2 * SCRATCH_PATH_BYTES];
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, 0, ROWS, COLUMNS);
    CHECK_OK(shoal_checkpoint_list(stage.directory, steps, 4, &count));
    CHECK_INT(count, 0);
    CHECK_OK(shoal_checkpoint_list("/nowhere/at/all", NULL, 0, &count));
    CHECK_INT(count, 0);
    static const int64_t saved[] = {30, 0, 1000000000000, 4};
    for (int i = 0; i < 4; i++) {
        save(&stage, &list, saved[i], i, SHOAL_CHECKPOINT_PIECES);
    }
    CHECK_OK(shoal_checkpoint_list(stage.directory, steps, 4, &count));
    CHECK_INT(count, 4);
    CHECK(steps[0] == 0 && steps[1] == 4 && steps[2] == 30 && steps[3] == 1000000000000);
    steps[2] = -7;
    CHECK_OK(shoal_checkpoint_list(stage.directory, steps, 2, &count)); /* the newest */
    CHECK_INT(count, 4);
    CHECK(steps[0] == 30 && steps[1] == 1000000000000 && steps[2] == -7);
    (void)snprintf(one, sizeof one, "%s/step-000000030", stage.directory);
    CHECK_OK(shoal_checkpoint_list(one, steps, 4, &count));
    CHECK(count == 1 && steps[0] == 30);
    CHECK_STATUS(shoal_checkpoint_list(stage.directory, NULL, 1, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("checkpoint_list: steps_out is NULL");
    CHECK_INT(count, 0);
    CHECK_STATUS(shoal_checkpoint_list(NULL, steps, 1, &count), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_checkpoint_list(stage.directory, steps, 1, NULL), SHOAL_ERR_INVALID);
    free_list(&list);
    close_stage(&stage);
}

/* Damage ----------------------------------------------------------------------------------------------- */

static void find_data(const struct stage *stage, const char *step, char *path, size_t bytes);

/* What the first rank does to files between two loads. */
static void spoil(struct stage *stage, const char *step, const char *name)
{
    char path[2 * SCRATCH_PATH_BYTES];
    test_barrier(stage->self);
    if (stage->self->rank == 0 && name) {
        (void)snprintf(path, sizeof path, "%s/%s/%s", stage->directory, step, name);
        CHECK_INT(truncate(path, 100), 0);
    } else if (stage->self->rank == 0) {
        find_data(stage, step, path, sizeof path);
        CHECK_INT(unlink(path), 0);
    }
    test_barrier(stage->self);
}

/* Which damage is found by which rank differs: rank 0 needs nothing of the last file, but reads the index for all. */
TEST_RANKS(damaged_ones_are_passed_over, 3)
{
    struct stage stage;
    struct list list;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    double other = 0;
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, 0, ROWS, COLUMNS);
    for (int i = 0; i <= 4; i++) {
        save(&stage, &list, i, i, SHOAL_CHECKPOINT_PIECES);
    }
    spoil(&stage, "step-000000004", NULL);
    spoil(&stage, "step-000000003", "shoal.index.json");
    CHECK(shoal_checkpoint_load(stage.group, stage.directory, list.items, NULL, NULL) != SHOAL_OK);
    walk(&list, 4, SHOAL_F32, true);
    options.skips_damaged = true;
    options.allows_none = true;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info));
    CHECK_INT(info.step, 2);
    CHECK_INT(info.n_damaged, 2);
    walk(&list, 2, SHOAL_F32, true);
    options.progress = (shoal_checkpoint_progress){self->rank == 1 ? 2 : 0, 1, 1, 0}; /* of one rank */
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info),
                 SHOAL_ERR_INVALID);
    options.progress.n_ranks = options.progress.batch = options.progress.n_accumulate = 0;
    options.has_step = true;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("skips_damaged is set, but has_step asks for step 0");
    options.has_step = false;
    /* A list that no checkpoint fits is no damage. */
    CHECK_OK(shoal_items_add_real(list.items, "other", &other));
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1 missing in the checkpoint: other");
    CHECK_INT(info.step, 2);
    options.allows_missing = true;
    spoil(&stage, "step-000000002", "shoal.index.json");
    spoil(&stage, "step-000000001", NULL);
    spoil(&stage, "step-000000000", "shoal.index.json");
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, &info),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(": only 5 damaged checkpoints found; the newest: ");
    CHECK_ERROR_TEXT("pieces-00003-of-00003.safetensors");
    walk(&list, 2, SHOAL_F32, true);
    free_list(&list);
    close_stage(&stage);
}

/* Parts that cannot be written ------------------------------------------------------------------------- */

static const int64_t pair_shape[] = {4, 3};

static void make_pair(shoal_tensor *pair[2], bool is_meta, shoal_items **items_out)
{
    REQUIRE_OK(shoal_items_create(items_out));
    for (int i = 0; i < 2; i++) {
        shoal_device device = i == 1 && is_meta ? SHOAL_META : SHOAL_CPU;
        pair[i] = shoal_empty_on(pair_shape, 2, SHOAL_F32, device);
        REQUIRE(pair[i]);
        CHECK_OK(shoal_items_add_tensor(*items_out, NULL, i == 0 ? "first" : "second", pair[i]));
    }
}

/* One rank has a tensor without memory. On no rank does anything count as changed. */
TEST_RANKS(a_part_that_one_rank_cannot_write, 3)
{
    struct stage stage;
    shoal_tensor *pair[2];
    shoal_items *items = NULL;
    open_stage(&stage, self);
    REQUIRE_OK(shoal_scope_begin());
    make_pair(pair, false, &items);
    memset(shoal_mutable_data(pair[0]), 1, 48);
    memset(shoal_mutable_data(pair[1]), 2, 48);
    CHECK_OK(shoal_checkpoint_save(stage.group, stage.directory, items, NULL));
    shoal_items_free(items);
    make_pair(pair, self->rank == 1, &items);
    memset(shoal_mutable_data(pair[0]), 7, 48);
    const uint64_t versions[] = {shoal_tensor_version(pair[0]), shoal_tensor_version(pair[1])};
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, items, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'second': it is on the meta device");
    CHECK_INT(shoal_tensor_version(pair[0]), versions[0]);
    CHECK_INT(shoal_tensor_version(pair[1]), versions[1]);
    CHECK_INT(*(const char *)shoal_data(pair[0]), 7);
    shoal_items_free(items);
    CHECK_OK(shoal_scope_end());
    close_stage(&stage);
}

/* Exchanged files -------------------------------------------------------------------------------------- */

/* The last file of data in the directory of a step. */
static void find_data(const struct stage *stage, const char *step, char *path, size_t bytes)
{
    char directory[SCRATCH_PATH_BYTES];
    (void)snprintf(directory, sizeof directory, "%.200s/%s", stage->directory, step);
    DIR *opened = opendir(directory);
    char name[256] = "";
    for (struct dirent *entry; opened && (entry = readdir(opened));) {
        const char *end = strstr(entry->d_name, ".safetensors");
        if (end && end[12] == '\0' && strcmp(entry->d_name, name) > 0) {
            (void)snprintf(name, sizeof name, "%.200s", entry->d_name);
        }
    }
    CHECK(opened && name[0] != '\0');
    (void)closedir(opened);
    (void)snprintf(path, bytes, "%.250s/%.200s", directory, name);
}

static void exchange(const struct stage *stage)
{
    char first[SCRATCH_PATH_BYTES];
    char second[SCRATCH_PATH_BYTES];
    char third[SCRATCH_PATH_BYTES + 8];
    find_data(stage, "step-000000001", first, sizeof first);
    find_data(stage, "step-000000002", second, sizeof second);
    (void)snprintf(third, sizeof third, "%s.third", first);
    CHECK_INT(rename(first, third), 0);
    CHECK_INT(rename(second, first), 0);
    CHECK_INT(rename(third, second), 0);
}

static void load_exchanged(struct rank *self, shoal_checkpoint_format format)
{
    struct stage stage;
    struct list list;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, 0, ROWS, COLUMNS);
    save(&stage, &list, 1, 1, format);
    save(&stage, &list, 2, 2, format);
    if (self->rank == 0) {
        exchange(&stage);
    }
    test_barrier(self);
    options.has_step = true;
    options.skips_sums = true; /* ids are looked at all the same */
    for (options.step = 1; options.step <= 2; options.step++) {
        CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, NULL),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("it belongs to another save");
        walk(&list, 2, SHOAL_F32, true);
    }
    test_barrier(self);
    if (self->rank == 0) {
        exchange(&stage);
    }
    test_barrier(self);
    options.step = 1;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, &options, NULL));
    walk(&list, 1, SHOAL_F32, true);
    free_list(&list);
    close_stage(&stage);
}

TEST_RANKS(pieces_of_two_saves_exchanged, 3)
{
    load_exchanged(self, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(whole_files_of_two_saves_exchanged, 3)
{
    load_exchanged(self, SHOAL_CHECKPOINT_WHOLE);
}

/* Other dtypes ----------------------------------------------------------------------------------------- */

TEST_RANKS(other_dtypes_if_asked, 2)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_BF16, SHOAL_F16};
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(&stage, self);
    for (int from = 0; from < 4; from++) {
        struct list saved;
        make_list(&saved, self, dtypes[from], 0, ROWS, COLUMNS);
        save(&stage, &saved, from, from, SHOAL_CHECKPOINT_PIECES);
        free_list(&saved);
        for (int to = 0; to < 4; to++) {
            struct list loaded;
            make_list(&loaded, self, dtypes[to], 1, ROWS, COLUMNS);
            options.casts = false;
            CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.directory, loaded.items, &options, NULL),
                         from == to ? SHOAL_OK : SHOAL_ERR_INVALID);
            options.casts = true;
            CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, loaded.items, &options, NULL));
            walk(&loaded, from, dtypes[from], true);
            free_list(&loaded);
        }
    }
    close_stage(&stage);
}

/* Large ones ------------------------------------------------------------------------------------------- */

/* 200 MiB in the sweep; otherwise as much as has several blocks for each rank. */
static void load_large(struct rank *self, int saved_dim, int loaded_dim, shoal_checkpoint_format format)
{
    int64_t n_rows = test_is_whole() ? 51200 : 3001;
    struct stage stage;
    struct list list;
    test_deadline(300);
    open_stage(&stage, self);
    make_list(&list, self, SHOAL_F32, saved_dim, n_rows, 1024);
    save(&stage, &list, 0, 1, format);
    free_list(&list);
    make_list(&list, self, SHOAL_F32, loaded_dim, n_rows, 1024);
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.directory, list.items, NULL, NULL));
    walk(&list, 1, SHOAL_F32, true);
    free_list(&list);
    close_stage(&stage);
}

TEST_RANKS(large_rows_to_columns_in_pieces, 3)
{
    load_large(self, 0, 1, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(large_columns_to_rows_in_whole_files, 3)
{
    load_large(self, 1, 0, SHOAL_CHECKPOINT_WHOLE);
}

TEST_RANKS(large_copies_to_columns_in_whole_files, 3)
{
    load_large(self, -1, 1, SHOAL_CHECKPOINT_WHOLE);
}
