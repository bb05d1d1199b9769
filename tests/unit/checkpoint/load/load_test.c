/* SPDX-License-Identifier: MIT */
/* Loading on several ranks: each gets its part; whatever one rank finds wrong, all fail and keep their values. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "checkpoint/items/items.h"
#include "checkpoint/io/path.h"
#include "fixtures/made_checkpoint.h"
#include "fixtures/rank_world.h"
#include "fixtures/safetensors_image.h"
#include "shoal/checkpoint.h"

#define ROWS 7
#define COLUMNS 5
#define BEFORE (-1.0f)

/* All ranks of a test. */
struct stage {
    struct rank *self;
    shoal_world *world;
    shoal_group *group;
    struct made *made; /* first rank only */
    char *path;        /* of the checkpoint, seen by all */
    shoal_items *items;
    float data[ROWS * COLUMNS];
    int64_t shape[2];
    int dim;
    int64_t offset;
    int64_t length;
    int64_t epoch;
};

static void write_index(struct made *made)
{
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(index_write(&made->index, &text, &bytes));
    CHECK(scratch_write(scratch_file(&made->scratch, INDEX_NAME), text, bytes));
    mem_free(text);
}

/* A checkpoint of "t", f32 [7, 5], in four pieces in two files, and the number "epoch". */
static void make_checkpoint(struct stage *stage)
{
    static const struct index_value epoch = {.name = "epoch", .kind = ITEM_INTEGER, .integer = 3};
    const int64_t shape[] = {ROWS, COLUMNS};
    const int cuts[] = {1, 1};
    struct test_random random = test_random_begin(1);
    stage->made = calloc(1, sizeof *stage->made);
    made_create(stage->made, SHOAL_F32, 2, shape, cuts, 2, &random);
    stage->made->index.step = 12;
    stage->made->index.progress =
        (shoal_checkpoint_progress){.n_ranks = 4, .batch = 8, .n_accumulate = 2, .sample = 1000};
    stage->made->index.values = (struct index_value *)&epoch;
    stage->made->index.n_values = 1;
    write_index(stage->made);
    (void)snprintf(stage->path, SCRATCH_PATH_BYTES, "%s", stage->made->scratch.path);
}

/* Its share of rows or columns: uneven, and empty on the last rank if there are more than four. */
static void add_items(struct stage *stage, int dim)
{
    shoal_item item = SHOAL_ITEM_INIT;
    int n_sharing = stage->self->n_ranks > 2 ? stage->self->n_ranks - 1 : stage->self->n_ranks;
    int64_t size = dim == 0 ? ROWS : COLUMNS;
    int64_t chunk = (size + n_sharing - 1) / n_sharing;
    int64_t offset = chunk * stage->self->rank;
    stage->dim = dim;
    stage->offset = offset < size ? offset : size;
    stage->length = chunk < size - stage->offset ? chunk : size - stage->offset;
    stage->shape[0] = ROWS;
    stage->shape[1] = COLUMNS;
    item.name = "t";
    item.dtype = SHOAL_F32;
    item.n_dims = 2;
    item.shape = stage->shape;
    item.dim = dim;
    item.offset = stage->offset;
    item.length = stage->length;
    item.data = stage->data;
    REQUIRE_OK(shoal_items_create(&stage->items));
    CHECK_OK(shoal_items_add(stage->items, &item));
    CHECK_OK(shoal_items_add_integer(stage->items, "epoch", &stage->epoch));
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        stage->data[i] = BEFORE;
    }
    stage->epoch = -1;
}

static void open_stage(struct rank *self, struct stage *stage, int dim)
{
    memset(stage, 0, sizeof *stage);
    stage->self = self;
    stage->path = self->shared;
    stage->world = rank_world_open(self, 0);
    REQUIRE(stage->world);
    stage->group = shoal_world_group(stage->world);
    if (self->rank == 0) {
        make_checkpoint(stage);
    }
    add_items(stage, dim);
    test_barrier(self);
}

static void close_stage(struct stage *stage)
{
    test_barrier(stage->self);
    shoal_items_free(stage->items);
    if (stage->made) {
        /* Some tests write more beside the files of it, or have removed them. */
        made_free(stage->made);
        free(stage->made);
    }
    (void)shoal_world_close(stage->world);
}

/* Values are those of the checkpoint, or those from before. */
static void check_values(const struct stage *stage, bool are_loaded)
{
    int64_t n_rows = stage->dim == 0 ? stage->length : ROWS;
    int64_t n_columns = stage->dim == 1 ? stage->length : COLUMNS;
    CHECK_INT(stage->epoch, are_loaded ? 3 : -1);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        float expected = BEFORE;
        if (are_loaded && i < n_rows * n_columns) {
            int64_t row = i / n_columns + (stage->dim == 0 ? stage->offset : 0);
            int64_t column = i % n_columns + (stage->dim == 1 ? stage->offset : 0);
            made_element(SHOAL_F32, row * COLUMNS + column, &expected);
        }
        CHECK_DOUBLE((double)stage->data[i], (double)expected);
    }
}

static shoal_status load(struct stage *stage)
{
    return shoal_checkpoint_load(stage->group, stage->path, stage->items, NULL, NULL);
}

/* Each rank fails with that status, and keeps its values. */
static void check_failure(struct stage *stage, shoal_status expected, const char *words)
{
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    info.step = 99;
    CHECK_STATUS(shoal_checkpoint_load(stage->group, stage->path, stage->items, NULL, &info), expected);
    CHECK_ERROR_TEXT("checkpoint_load: ");
    CHECK_ERROR_TEXT(words);
    CHECK_INT(info.step, 99);
    check_values(stage, false);
}

/* What works ------------------------------------------------------------------------------------------- */

static void load_by(struct rank *self, int dim)
{
    struct stage stage;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    open_stage(self, &stage, dim);
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.path, stage.items, NULL, &info));
    check_values(&stage, true);
    CHECK_INT(info.step, 12);
    CHECK_INT(info.progress.sample, 1000);
    CHECK_INT(info.n_missing, 0);
    CHECK_INT(info.n_unexpected, 0);
    close_stage(&stage);
}

TEST_RANKS(rows_on_four_ranks, 4)
{
    load_by(self, 0);
}

TEST_RANKS(columns_on_three_ranks, 3)
{
    load_by(self, 1);
}

TEST_RANKS(all_on_one_rank, 1)
{
    load_by(self, 0);
}

static shoal_status note(void *context)
{
    struct stage *stage = context;
    check_values(stage, true);
    return stage->self->rank == 1 ? error_set(SHOAL_ERR_STATE, "no room") : SHOAL_OK;
}

TEST_RANKS(functions_are_called_when_all_is_there, 2)
{
    struct stage stage;
    open_stage(self, &stage, 0);
    CHECK_OK(shoal_items_on_loaded(stage.items, note, &stage, NULL));
    CHECK_STATUS(load(&stage), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("no room");
    CHECK_ERROR_TEXT("checkpoint_load: all values are loaded, but a function of items_on_loaded failed: ");
    if (self->rank == 0) {
        CHECK_ERROR_TEXT("failed: rank 1: ");
    }
    close_stage(&stage);
}

/* Options ---------------------------------------------------------------------------------------------- */

TEST_RANKS(another_batch_is_another_run, 2)
{
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(self, &stage, 0);
    options.progress = (shoal_checkpoint_progress){.n_ranks = 4, .batch = 4, .n_accumulate = 2};
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("options.progress: 32 samples in a step (4 ranks x 4 x 2), but the run was saved with "
                     "64 (4 x 8 x 2)");
    check_values(&stage, false);
    options.allows_other_batch = true;
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL));
    options.allows_other_batch = false;
    options.progress = (shoal_checkpoint_progress){.n_ranks = 4, .batch = 8};
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_ranks 4, batch 8 and n_accumulate 0; all of them or none");
    options.progress =
        (shoal_checkpoint_progress){.n_ranks = 16, .batch = 4, .n_accumulate = 1}; /* as many */
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL));
    check_values(&stage, true);
    close_stage(&stage);
}

TEST_RANKS(a_section_leaves_the_rest, 2)
{
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(self, &stage, 0);
    options.section = "model";
    CHECK_OK(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL));
    CHECK_INT(stage.epoch, -1);
    stage.epoch = 3;
    check_values(&stage, true);
    options.section = "modle";
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("options.section: the list has no item of section \"modle\"");
    close_stage(&stage);
}

TEST_RANKS(a_step_that_is_not_there, 2)
{
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(self, &stage, 0);
    options.has_step = true;
    options.step = 13;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("step");
    options.step = -1;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("options.step: -1 is negative");
    check_values(&stage, false);
    close_stage(&stage);
}

/* Ranks that deviate ----------------------------------------------------------------------------------- */

TEST_RANKS(arguments_of_one_rank, 3)
{
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(self, &stage, 0);
    bool is_other = self->rank == 1;
    CHECK_STATUS(
        shoal_checkpoint_load(stage.group, is_other ? "elsewhere" : stage.path, stage.items, NULL, NULL),
        SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("on rank 0, but \"elsewhere\" on rank 1");
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, is_other ? NULL : stage.items, NULL, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items is NULL");
    options.casts = is_other;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("options.casts is 0 on rank 0, but 1 on rank 1");
    options.casts = false;
    options.section = is_other ? "model" : "modem";
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("options.section is \"modem\" on rank 0, but \"model\" on rank 1");
    options.section = NULL;
    options.struct_size = is_other ? 1 : sizeof options;
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("options: struct_size is 1");
    check_values(&stage, false);
    CHECK_OK(load(&stage));
    check_values(&stage, true);
    close_stage(&stage);
}

TEST_RANKS(a_list_of_one_rank, 3)
{
    struct stage stage;
    double loss = 0;
    open_stage(self, &stage, 0);
    if (self->rank == 2) {
        CHECK_OK(shoal_items_add_real(stage.items, "loss", &loss));
    }
    CHECK_STATUS(load(&stage), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("loss");
    check_values(&stage, false);
    close_stage(&stage);
}

TEST_PROCESSES(a_rank_that_never_comes, 3)
{
    struct stage stage;
    struct rank_key key = rank_key(self, 1);
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    open_stage(self, &stage, 0);
    options.timeout_s = 0.5 * test_time_scale();
    REQUIRE_OK(shoal_world_open(&options, &world));
    if (self->rank != 2) {
        CHECK_STATUS(shoal_checkpoint_load(shoal_world_group(world), stage.path, stage.items, NULL, NULL),
                     SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("checkpoint_load: load: arguments: ");
        check_values(&stage, false);
        CHECK(shoal_checkpoint_save(shoal_world_group(world), stage.path, stage.items, NULL) != SHOAL_OK);
        CHECK_ERROR_TEXT("checkpoint_save: save: arguments: ");
    }
    test_barrier(self);
    (void)shoal_world_close(world);
    close_stage(&stage);
}

/* Damage ----------------------------------------------------------------------------------------------- */

static void flip(const char *path, int64_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char byte = 0;
    off_t place = at >= 0 ? (off_t)at : lseek(fd, 0, SEEK_END) + (off_t)at;
    CHECK_INT(pread(fd, &byte, 1, place), 1);
    byte = (char)(byte ^ 0x04);
    CHECK_INT(pwrite(fd, &byte, 1, place), 1);
    (void)close(fd);
}

/* Something that the first rank does to the files between two loads that all ranks make. */
static void change(struct stage *stage, void (*how)(struct made *made))
{
    test_barrier(stage->self);
    if (stage->made) {
        how(stage->made);
    }
    test_barrier(stage->self);
}

static void flip_data(struct made *made)
{
    flip(scratch_file(&made->scratch, made->files[1].name), -1);
}

static void flip_header(struct made *made)
{
    flip(scratch_file(&made->scratch, made->files[0].name), 12);
}

static void flip_index(struct made *made)
{
    flip(scratch_file(&made->scratch, INDEX_NAME), 100);
}

static void cut_index(struct made *made)
{
    CHECK_INT(truncate(scratch_file(&made->scratch, INDEX_NAME), 300), 0);
}

static void remove_index(struct made *made)
{
    CHECK_INT(unlink(scratch_file(&made->scratch, INDEX_NAME)), 0);
}

static void raise_version(struct made *made)
{
    size_t bytes = 0;
    const char *path = scratch_file(&made->scratch, INDEX_NAME);
    char *text = scratch_read(path, &bytes);
    char *version = text ? strstr(text, "\"version\":") : NULL;
    REQUIRE(version != NULL);
    version[strcspn(version, "1")] = '9';
    /* As a later version would write it: with its own sum. */
    char *sum = strstr(text, "\"sum\"");
    char digits[17];
    (void)snprintf(digits, sizeof digits, "%016" PRIx64, checksum_block(text, (size_t)(sum - text)));
    memcpy(sum + 5 + strcspn(sum + 5, "0123456789abcdef"), digits, 16);
    CHECK(scratch_write(path, text, bytes));
    free(text);
}

static void remove_file(struct made *made)
{
    char kept[2 * SCRATCH_PATH_BYTES];
    const char *path = scratch_file(&made->scratch, made->files[1].name);
    (void)snprintf(kept, sizeof kept, "%s.kept", path);
    CHECK_INT(rename(path, kept), 0);
}

static void bring_file_back(struct made *made)
{
    char kept[2 * SCRATCH_PATH_BYTES];
    const char *path = scratch_file(&made->scratch, made->files[1].name);
    (void)snprintf(kept, sizeof kept, "%s.kept", path);
    CHECK_INT(rename(kept, path), 0);
}

TEST_RANKS(damaged_checkpoints_change_nothing, 3)
{
    static const struct {
        void (*damage)(struct made *made);
        void (*repair)(struct made *made);
        shoal_status status;
        const char *words;
    } rows[] = {
        {flip_data, flip_data, SHOAL_ERR_INVALID, "file-1.safetensors: bytes "},
        {flip_header, flip_header, SHOAL_ERR_INVALID, "file-0.safetensors: "},
        {remove_file, bring_file_back, SHOAL_ERR_SYSTEM, "file-1.safetensors"},
        {flip_index, write_index, SHOAL_ERR_INVALID, INDEX_NAME ": "},
        {cut_index, write_index, SHOAL_ERR_INVALID, INDEX_NAME ": "},
        {remove_index, write_index, SHOAL_ERR_STATE, "there is no complete checkpoint"},
        {raise_version, write_index, SHOAL_ERR_UNSUPPORTED, "version"},
    };
    struct stage stage;
    open_stage(self, &stage, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !test_has_failed(); i++) {
        change(&stage, rows[i].damage);
        check_failure(&stage, rows[i].status, rows[i].words);
        change(&stage, rows[i].repair);
    }
    CHECK_OK(load(&stage));
    check_values(&stage, true);
    close_stage(&stage);
}

/* The last row lies in the second file, of which the first rank needs nothing. */
TEST_RANKS(what_one_rank_finds_fails_on_all, 2)
{
    struct stage stage;
    open_stage(self, &stage, 0);
    change(&stage, flip_data);
    CHECK_STATUS(load(&stage), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("are damaged: their checksum is ");
    check_values(&stage, false);
    change(&stage, flip_data);
    close_stage(&stage);
}

static void forbid(struct made *made)
{
    CHECK_INT(chmod(made->scratch.path, 0), 0);
}

static void permit(struct made *made)
{
    CHECK_INT(chmod(made->scratch.path, 0700), 0);
}

TEST_RANKS(a_directory_without_rights, 2)
{
    struct stage stage;
    if (geteuid() == 0) {
        test_skip("root may read everything");
        return;
    }
    open_stage(self, &stage, 0);
    change(&stage, forbid);
    CHECK(load(&stage) != SHOAL_OK);
    CHECK_ERROR_TEXT(stage.path);
    check_values(&stage, false);
    change(&stage, permit);
    close_stage(&stage);
}

/* Other tools ------------------------------------------------------------------------------------------ */

static void make_foreign(struct made *made)
{
    char header[160];
    (void)snprintf(header, sizeof header,
                   "{\"t\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", ROWS, COLUMNS,
                   ROWS * COLUMNS * 4);
    struct image image = image_make(header, made->elements, (size_t)ROWS * COLUMNS * 4);
    const char *map = "{\"weight_map\":{\"t\":\"a.safetensors\"}}";
    remove_index(made);
    CHECK(scratch_write(scratch_file(&made->scratch, "model.safetensors"), image.bytes, image.n_bytes));
    CHECK(scratch_write(scratch_file(&made->scratch, "a.safetensors"), image.bytes, image.n_bytes));
    CHECK(scratch_write(scratch_file(&made->scratch, "model.safetensors.index.json"), map, strlen(map)));
    image_free(&image);
}

static void remove_map(struct made *made)
{
    CHECK_INT(unlink(scratch_file(&made->scratch, "model.safetensors.index.json")), 0);
    CHECK_INT(unlink(scratch_file(&made->scratch, "a.safetensors")), 0);
}

TEST_RANKS(files_of_other_tools, 3)
{
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    open_stage(self, &stage, 1);
    change(&stage, make_foreign);
    for (int i = 0; i < 2; i++) {
        shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
        for (size_t j = 0; j < ROWS * COLUMNS; j++) {
            stage.data[j] = BEFORE;
        }
        stage.epoch = -1;
        CHECK_OK(shoal_checkpoint_load(stage.group, stage.path, stage.items, NULL, &info));
        CHECK_INT(stage.epoch, -1);
        CHECK_INT(info.format, SHOAL_CHECKPOINT_WHOLE);
        CHECK_INT(info.n_missing, 1);
        stage.epoch = 3;
        check_values(&stage, true);
        if (i == 0) {
            change(&stage, remove_map); /* the file alone */
        }
    }
    options.section = "optimizer";
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("was written by another tool and has only \"model\"");
    options = (shoal_checkpoint_load_options){.struct_size = sizeof options, .has_step = true, .step = 7};
    CHECK_STATUS(shoal_checkpoint_load(stage.group, stage.path, stage.items, &options, NULL),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("is of step 0, not 7");
    close_stage(&stage);
}

/* The directory's own path fits, that of the file which tells what is in it does not. */
TEST_RANKS(a_path_as_long_as_they_get, 1)
{
    enum {
        PATH_CHARS = 4095 - 20
    };
    struct stage stage;
    char name[NAME_MAX + 1];
    char path[PATH_CHARS + 1];
    open_stage(self, &stage, 0);
    make_foreign(stage.made);
    int at = open(stage.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t length = (size_t)snprintf(path, sizeof path, "%s", stage.path);
    while (length < PATH_CHARS) {
        size_t left = PATH_CHARS - length - 1;
        size_t n_chars = left > 220 ? 200 : left;
        memset(name, 'd', n_chars);
        name[n_chars] = '\0';
        length += (size_t)snprintf(path + length, sizeof path - length, "/%s", name);
        CHECK_INT(mkdirat(at, name, 0700), 0);
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(at);
        at = next;
        REQUIRE(at >= 0);
    }
    static const char *const files[] = {"model.safetensors", "a.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < 3; i++) {
        CHECK_INT(linkat(AT_FDCWD, scratch_file(&stage.made->scratch, files[i]), at, files[i], 0), 0);
    }
    CHECK_OK(shoal_checkpoint_load(stage.group, path, stage.items, NULL, NULL));
    stage.epoch = 3;
    check_values(&stage, true);
    for (size_t i = 0; i < 3; i++) {
        CHECK_INT(unlinkat(at, files[i], 0), 0);
    }
    (void)close(at);
    path[strlen(stage.path) + 201] = '\0'; /* the first of them */
    CHECK_OK(path_remove_tree(path));
    close_stage(&stage);
}

/* The newest ------------------------------------------------------------------------------------------- */

TEST(the_newest)
{
    struct rank self = {.n_ranks = 1, .shared = calloc(1, SCRATCH_PATH_BYTES)};
    struct stage stage = {.self = &self, .path = self.shared};
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    make_checkpoint(&stage);
    CHECK_OK(shoal_checkpoint_newest(stage.path, &info));
    CHECK_INT(info.step, 12);
    CHECK_INT(info.progress.batch, 8);
    flip_index(stage.made);
    CHECK_STATUS(shoal_checkpoint_newest(stage.path, &info), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("checkpoint_newest: ");
    CHECK_INT(info.step, 12);
    remove_index(stage.made);
    CHECK_OK(shoal_checkpoint_newest(stage.path, &info));
    CHECK_INT(info.step, -1);
    CHECK_OK(shoal_checkpoint_newest("/nowhere/at/all", &info));
    CHECK_INT(info.step, -1);
    CHECK_STATUS(shoal_checkpoint_newest(NULL, &info), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_checkpoint_newest(stage.path, NULL), SHOAL_ERR_INVALID);
    made_free(stage.made);
    free(stage.made);
    free(self.shared);
}

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status load_or_keep(void *context)
{
    struct stage *stage = context;
    shoal_status status = load(stage);
    check_values(stage, status == SHOAL_OK);
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        stage->data[i] = BEFORE;
    }
    stage->epoch = -1;
    return status;
}

TEST_RANKS(allocations_that_fail, 1)
{
    struct stage stage;
    open_stage(self, &stage, 0);
    CHECK_OK(load_or_keep(&stage)); /* what groups make once is there */
    CHECK(test_sweep_allocations(load_or_keep, &stage) > 0);
    close_stage(&stage);
}
