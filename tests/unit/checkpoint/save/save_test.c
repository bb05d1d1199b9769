/* SPDX-License-Identifier: MIT */
/* Saving: what is written in both formats, by one rank and by several, and what is refused on all of them. */
#include "checkpoint/index/directory.h"
#include "fixtures/rank_world.h"
#include "fixtures/saved_state.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"

static void save_and_check(struct rank *self, shoal_checkpoint_format format, size_t max_file_bytes)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, (int)format);
    REQUIRE(world);
    struct state state;
    state_open(&state, self->rank, self->n_ranks, 3);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.step = 12;
    options.format = format;
    options.max_file_bytes = max_file_bytes;
    options.progress = (shoal_checkpoint_progress){self->n_ranks, 2, 3, 72};
    CHECK_OK(shoal_checkpoint_save(shoal_world_group(world), directory, state.items, &options));
    if (self->rank == 0) {
        state_check(inside(directory, "step-000000012"), 12, 3);
    }
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(pieces_of_one_rank, 1)
{
    save_and_check(self, SHOAL_CHECKPOINT_PIECES, 0);
}

TEST_RANKS(pieces_of_several_ranks, 4)
{
    save_and_check(self, SHOAL_CHECKPOINT_PIECES, 0);
}

TEST_RANKS(whole_of_one_rank, 1)
{
    save_and_check(self, SHOAL_CHECKPOINT_WHOLE, 0);
}

TEST_RANKS(whole_of_several_ranks, 4)
{
    save_and_check(self, SHOAL_CHECKPOINT_WHOLE, 0);
}

TEST_RANKS(whole_in_several_files, 3)
{
    save_and_check(self, SHOAL_CHECKPOINT_WHOLE, 300);
}

/* What other tools see --------------------------------------------------------------------------------- */

static void save_whole(struct rank *self, const char *directory, size_t max_file_bytes)
{
    shoal_world *world = rank_world_open(self, (int)max_file_bytes);
    REQUIRE(world);
    struct state state;
    state_open(&state, self->rank, self->n_ranks, 1);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.step = 1;
    options.format = SHOAL_CHECKPOINT_WHOLE;
    options.max_file_bytes = max_file_bytes;
    options.replaces = true;
    CHECK_OK(shoal_checkpoint_save(shoal_world_group(world), directory, state.items, &options));
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
}

static void check_one_file(const char *directory)
{
    shoal_safetensors *file;
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    CHECK(access(inside(directory, "step-000000001/model.safetensors.index.json"), F_OK) != 0);
    CHECK(access(inside(directory, "step-000000001/optimizer.safetensors"), F_OK) == 0);
    REQUIRE_OK(shoal_safetensors_open(inside(directory, "step-000000001/model.safetensors"), &file));
    CHECK_STRING(shoal_safetensors_metadata_key(file, 0), "format");
    CHECK_STRING(shoal_safetensors_metadata(file, "format"), "pt");
    CHECK_STRING(shoal_safetensors_metadata(file, "tied.rows"), "rows");
    CHECK_INT(shoal_safetensors_count(file), 9);
    CHECK_OK(shoal_safetensors_get(file, shoal_safetensors_find(file, "columns"), &info));
    CHECK(info.dtype == SHOAL_F32 && info.n_dims == 2 && info.shape[0] == 6 && info.shape[1] == 11);
    char expected[6 * 11 * 4];
    char found[sizeof expected];
    for (int64_t i = 0; i < 66; i++) {
        state_element(1, i, 1, expected + 4 * i);
    }
    CHECK_OK(
        shoal_safetensors_read_range(file, shoal_safetensors_find(file, "columns"), 0, found, sizeof found));
    CHECK_BYTES(found, expected, sizeof found);
    shoal_safetensors_close(file);
}

static void check_weight_map(const char *directory)
{
    size_t bytes = 0;
    char *map = scratch_read(inside(directory, "step-000000001/model.safetensors.index.json"), &bytes);
    REQUIRE(map);
    const char *begin = "{\n  \"metadata\": {\n    \"total_size\": 3000829\n  },\n  \"weight_map\": {\n"
                        "    \"columns\": \"model-00001-of-00004.safetensors\",\n"
                        "    \"empty\": \"model-00002-of-00004.safetensors\",\n";
    CHECK_BYTES(map, begin, strlen(begin));
    const char *end = "    \"same\": \"model-00002-of-00004.safetensors\"\n  }\n}\n";
    CHECK(bytes > strlen(end) && strcmp(map + bytes - strlen(end), end) == 0);
    CHECK(access(inside(directory, "step-000000001/model-00004-of-00004.safetensors"), F_OK) == 0);
    CHECK(access(inside(directory, "step-000000001/model.safetensors"), F_OK) != 0);
    CHECK(access(inside(directory, "step-000000001/optimizer-00002-of-00002.safetensors"), F_OK) == 0);
    CHECK(access(inside(directory, "step-000000001/optimizer.safetensors.index.json"), F_OK) == 0);
    free(map);
}

TEST_RANKS(whole_files_are_those_of_other_tools, 3)
{
    const char *directory = share_directory(self);
    save_whole(self, directory, 0);
    if (self->rank == 0) {
        check_one_file(directory);
    }
    test_barrier(self);
    save_whole(self, directory, 420); /* replaces it */
    if (self->rank == 0) {
        check_weight_map(directory);
        struct scratch scratch;
        (void)snprintf(scratch.path, sizeof scratch.path, "%s", directory);
        CHECK_INT(scratch_count(&scratch, ""), 2);
    }
    remove_directory(self, directory);
}

/* What is refused ---------------------------------------------------------------------------------------- */

/* One rank has another argument. */
TEST_RANKS(ranks_that_differ, 3)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    struct state state;
    state_open(&state, self->rank, self->n_ranks, 1);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    CHECK_STATUS(shoal_checkpoint_save(group, self->rank == 1 ? inside(directory, "other") : directory,
                                       state.items, NULL),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("checkpoint_save: directory is \"/");
    CHECK_ERROR_TEXT("/other\" on rank 1");
    options.step = self->rank == 2;
    CHECK_STATUS(shoal_checkpoint_save(group, directory, state.items, &options), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("checkpoint_save: options.step is 0 on rank 0, but 1 on rank 2");
    options.step = 0;
    options.keep = self->rank;
    CHECK_STATUS(shoal_checkpoint_save(group, directory, state.items, &options), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("checkpoint_save: options.keep is 0 on rank 0, but 1 on rank 1");
    options.keep = self->rank == 1 ? -4 : 0;
    CHECK_STATUS(shoal_checkpoint_save(group, directory, state.items, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(self->rank == 1 ? "checkpoint_save: options: keep is -4, below 0"
                                     : "checkpoint_save: rank 1: options: keep is -4, below 0");
    CHECK(access(inside(directory, ".lock"), F_OK) != 0); /* nothing was made */
    options.keep = 0;
    shoal_checkpoint_saving *saving = NULL;
    CHECK_STATUS(self->rank == 1
                     ? shoal_checkpoint_save_start(group, directory, state.items, &options, &saving)
                     : shoal_checkpoint_save(group, directory, state.items, &options),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 does \"save: arguments\", but rank 1 does \"save_start: arguments\"");
    CHECK_OK(shoal_checkpoint_save(group, directory, state.items, NULL));
    CHECK_STATUS(shoal_checkpoint_save(group, directory, state.items, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("step-000000000: exists already");
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

static void check_option(shoal_group *group, const shoal_items *items,
                         const shoal_checkpoint_options *options, shoal_status status, const char *words)
{
    CHECK_STATUS(shoal_checkpoint_save(group, "/nowhere/at/all", items, options), status);
    CHECK_ERROR_TEXT(words);
}

TEST_RANKS(arguments, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    shoal_items *items;
    REQUIRE_OK(shoal_items_create(&items));
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    CHECK_STATUS(shoal_checkpoint_save(NULL, "d", items, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group is NULL");
    CHECK_STATUS(shoal_checkpoint_save(group, NULL, items, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("directory is NULL");
    CHECK_STATUS(shoal_checkpoint_save(group, "", items, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_checkpoint_save(group, "d", NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items is NULL");
    options.step = -1;
    check_option(group, items, &options, SHOAL_ERR_INVALID, "step is -1, below 0");
    options = (shoal_checkpoint_options){sizeof options, .format = (shoal_checkpoint_format)7};
    check_option(group, items, &options, SHOAL_ERR_INVALID, "format is 7, which is none");
    options = (shoal_checkpoint_options){sizeof options, .progress = {.batch = -2}};
    check_option(group, items, &options, SHOAL_ERR_INVALID, "progress.batch is -2, below 0");
    options = (shoal_checkpoint_options){0};
    check_option(group, items, &options, SHOAL_ERR_INVALID, "struct_size");
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
}

/* No tensors at all, or names of one section that look like another's. */
TEST_RANKS(odd_lists, 2)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    shoal_items *items;
    float number = 3;
    REQUIRE_OK(shoal_items_create(&items));
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    CHECK_OK(shoal_checkpoint_save(group, directory, items, &options));
    options.step = 1;
    options.format = SHOAL_CHECKPOINT_WHOLE;
    CHECK_OK(shoal_checkpoint_save(group, directory, items, &options));
    shoal_item item = SHOAL_ITEM_INIT;
    item.name = "optimizer/x";
    item.dim = -1;
    item.dtype = SHOAL_F32;
    item.data = &number;
    CHECK_OK(shoal_items_add(items, &item));
    item.section = "optimizer";
    item.name = "x";
    CHECK_OK(shoal_items_add(items, &item));
    for (options.step = 2; options.step < 4; options.step++) {
        options.format = options.step == 2 ? SHOAL_CHECKPOINT_PIECES : SHOAL_CHECKPOINT_WHOLE;
        CHECK_OK(shoal_checkpoint_save(group, directory, items, &options));
    }
    item.section = "model-00001-of-00002";
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_STATUS(shoal_checkpoint_save(group, directory, items, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("looks like the name of a numbered file");
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

/* Hosts that do not share the directory, here: processes whose relative paths mean different places. */
TEST_PROCESSES(a_directory_that_is_not_shared, 2)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && chdir(self->rank == 0 ? directory : "/") == 0);
    struct state state;
    state_open(&state, self->rank, self->n_ranks, 1);
    CHECK_STATUS(shoal_checkpoint_save(shoal_world_group(world), "run", state.items, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("rank 1 does not see it");
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    test_barrier(self);
    if (self->rank == 0) {
        CHECK(access("run/.lock", F_OK) == 0); /* and nothing else */
        CHECK_INT(unlink("run/.lock"), 0);
        CHECK_INT(rmdir("run"), 0);
        CHECK(chdir("/") == 0);
    }
    remove_directory(self, directory);
}

/* Two worlds, as two jobs. */
TEST_RANKS(two_jobs_in_one_directory, 2)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct state state;
    struct directory_save other = DIRECTORY_SAVE_INIT;
    state_open(&state, self->rank, self->n_ranks, 1);
    if (self->rank == 1) {
        CHECK_OK(directory_save_begin(directory, 5, "0", false, &other));
    }
    test_barrier(self);
    CHECK_STATUS(shoal_checkpoint_save(shoal_world_group(world), directory, state.items, NULL),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("another save to this directory is under way");
    test_barrier(self);
    directory_save_end(&other);
    test_barrier(self);
    CHECK_OK(shoal_checkpoint_save(shoal_world_group(world), directory, state.items, NULL));
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}
