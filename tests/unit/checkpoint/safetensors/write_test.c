/* SPDX-License-Identifier: MIT */
/* Writers of safetensors files: several of them in one file, and what is refused. */
#include <sys/wait.h>

#include "checkpoint/safetensors/layout.h"
#include "fixtures/safetensors_image.h"
#include "fixtures/scratch.h"
#include "fixtures/tiny_safetensors.h"
#include "shoal/safetensors.h"

#define NUMBERS(...) ((const int64_t[]){__VA_ARGS__})
#define PARTIAL ".partial-"

/* "w" f32 [2, 3] and "flags" bool [3]. */
static shoal_safetensors_layout *small_layout(void)
{
    shoal_safetensors_layout *layout = NULL;
    CHECK_OK(shoal_safetensors_layout_create(&layout));
    CHECK_OK(shoal_safetensors_layout_add(layout, "flags", NUMBERS(3), 1, SHOAL_BOOL));
    CHECK_OK(shoal_safetensors_layout_add(layout, "w", NUMBERS(2, 3), 2, SHOAL_F32));
    CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "format", "pt"));
    return layout;
}

static const float values[6] = {1, 2, 3, 4, 5, 6};

static void check_small_file(const char *path)
{
    size_t bytes;
    char *file = scratch_read(path, &bytes);
    REQUIRE(file);
    const char *w = tiny_find(file, "w", "F32", "[2,3]");
    const char *flags = tiny_find(file, "flags", "BOOL", "[3]");
    CHECK(w && memcmp(w, values, sizeof values) == 0);
    CHECK(flags && memcmp(flags, "\1\0\1", 3) == 0 && flags + 3 == file + bytes);
    CHECK(strstr(file + 8, "\"__metadata__\":{\"format\":\"pt\"}") != NULL);
    free(file);
    shoal_safetensors *opened;
    REQUIRE_OK(shoal_safetensors_open(path, &opened));
    float read[6];
    CHECK_OK(shoal_safetensors_read_range(opened, shoal_safetensors_find(opened, "w"), 0, read, sizeof read));
    CHECK_BYTES(read, values, sizeof values);
    CHECK_STRING(shoal_safetensors_metadata_key(opened, 0), "format");
    CHECK(!shoal_safetensors_metadata_key(opened, 1) && !shoal_safetensors_metadata_key(opened, -1));
    CHECK(!shoal_safetensors_metadata_key(NULL, 0));
    shoal_safetensors_close(opened);
}

TEST(one_writer)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "m.safetensors");
    shoal_safetensors_layout *layout = small_layout();
    shoal_safetensors_writer *writer;
    REQUIRE_OK(shoal_safetensors_writer_create(path, layout, &writer));
    CHECK(strstr(shoal_safetensors_writer_path(writer), "m.safetensors" PARTIAL) != NULL);
    shoal_safetensors_layout_free(layout); /* the writer has what it needs */
    CHECK_OK(shoal_safetensors_write(writer, 1, 8, values + 2, 16));
    CHECK_OK(shoal_safetensors_write(writer, 0, 0, "\1\0\1", 3));
    CHECK_OK(shoal_safetensors_write(writer, 1, 0, values, 8));
    CHECK_OK(shoal_safetensors_write(writer, 1, 24, NULL, 0));
    CHECK(access(path, F_OK) != 0);
    CHECK_OK(shoal_safetensors_writer_finish(writer));
    check_small_file(path);
    CHECK_STATUS(shoal_safetensors_write(writer, 0, 0, "\1", 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the writer has finished");
    CHECK_STATUS(shoal_safetensors_writer_finish(writer), SHOAL_ERR_STATE);
    shoal_safetensors_writer_close(writer);
    check_small_file(path);
    CHECK_INT(scratch_count(&scratch, ""), 1);
    scratch_remove(&scratch);
}

TEST(a_writer_that_does_not_finish_leaves_nothing)
{
    struct scratch scratch = scratch_make();
    shoal_safetensors_layout *layout = small_layout();
    shoal_safetensors_writer *writer;
    REQUIRE_OK(shoal_safetensors_writer_create(scratch_file(&scratch, "m"), layout, &writer));
    CHECK_OK(shoal_safetensors_write(writer, 1, 0, values, 8));
    CHECK_INT(scratch_count(&scratch, "m" PARTIAL), 1);
    shoal_safetensors_writer_close(writer);
    CHECK_INT(scratch_count(&scratch, ""), 0);
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "late", NULL, 0, SHOAL_F32), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("a writer uses the layout");
    CHECK_STATUS(shoal_safetensors_layout_add_metadata(layout, "late", ""), SHOAL_ERR_STATE);
    shoal_safetensors_layout_free(layout);
    shoal_safetensors_writer_close(NULL);
    CHECK(!shoal_safetensors_writer_path(NULL));
    scratch_remove(&scratch);
}

/* Several ------------------------------------------------------------------------------------------------ */

/* What ranks tell each other. */
struct board {
    char path[256];
    char writer_path[512];
};

static void write_as_rank(struct rank *self, shoal_safetensors_writer *writer)
{
    int64_t row = self->rank;
    float line[5];
    for (int i = 0; i < 5; i++) {
        line[i] = (float)(10 * row + i);
    }
    CHECK_OK(shoal_safetensors_write_box(writer, 0, NUMBERS(row, 0), NUMBERS(1, 5), line, NULL));
    /* A column each: five numbers apart in memory, and as many as there are ranks apart in the file. */
    CHECK_OK(shoal_safetensors_write_box(writer, 1, NUMBERS(0, row), NUMBERS(5, 1), line, NUMBERS(1, 1)));
}

static void check_joined_file(const char *path, int n_ranks)
{
    shoal_safetensors *file;
    float number;
    REQUIRE_OK(shoal_safetensors_open(path, &file));
    for (int row = 0; row < n_ranks; row++) {
        for (int i = 0; i < 5; i++) {
            CHECK_OK(shoal_safetensors_read_box(file, shoal_safetensors_find(file, "rows"), NUMBERS(row, i),
                                                NUMBERS(1, 1), &number, NULL));
            CHECK_DOUBLE((double)number, 10 * row + i);
            CHECK_OK(shoal_safetensors_read_box(file, shoal_safetensors_find(file, "columns"),
                                                NUMBERS(i, row), NUMBERS(1, 1), &number, NULL));
            CHECK_DOUBLE((double)number, 10 * row + i);
        }
    }
    shoal_safetensors_close(file);
}

/* The first creates, the others join; the first finishes last. */
TEST_RANKS(several_processes_write_one_file, 4)
{
    struct board *board = self->shared;
    shoal_safetensors_layout *layout;
    shoal_safetensors_writer *writer = NULL;
    struct scratch scratch;
    REQUIRE_OK(shoal_safetensors_layout_create(&layout));
    CHECK_OK(shoal_safetensors_layout_add(layout, "rows", NUMBERS(self->n_ranks, 5), 2, SHOAL_F32));
    CHECK_OK(shoal_safetensors_layout_add(layout, "columns", NUMBERS(5, self->n_ranks), 2, SHOAL_F32));
    if (self->rank == 0) {
        scratch = scratch_make();
        (void)snprintf(board->path, sizeof board->path, "%.200s/m", scratch.path);
        CHECK_OK(shoal_safetensors_writer_create(board->path, layout, &writer));
        (void)snprintf(board->writer_path, sizeof board->writer_path, "%s",
                       shoal_safetensors_writer_path(writer));
    }
    test_barrier(self);
    if (self->rank > 0) {
        CHECK_OK(shoal_safetensors_writer_join(board->writer_path, layout, &writer));
    }
    shoal_safetensors_layout_free(layout);
    REQUIRE(writer);
    write_as_rank(self, writer);
    if (self->rank > 0) {
        CHECK_OK(shoal_safetensors_writer_finish(writer));
        shoal_safetensors_writer_close(writer);
    }
    test_barrier(self);
    if (self->rank == 0) {
        CHECK(access(board->path, F_OK) != 0);
        CHECK_OK(shoal_safetensors_writer_finish(writer));
        shoal_safetensors_writer_close(writer);
        check_joined_file(board->path, self->n_ranks);
        CHECK_INT(scratch_count(&scratch, ""), 1);
        scratch_remove(&scratch);
    }
}

TEST(joining_with_another_layout)
{
    struct scratch scratch = scratch_make();
    shoal_safetensors_layout *layout = small_layout();
    shoal_safetensors_layout *other;
    shoal_safetensors_writer *writer;
    shoal_safetensors_writer *joined = NULL;
    REQUIRE_OK(shoal_safetensors_writer_create(scratch_file(&scratch, "m"), layout, &writer));
    const char *path = shoal_safetensors_writer_path(writer);

    REQUIRE_OK(shoal_safetensors_layout_create(&other));
    CHECK_OK(shoal_safetensors_layout_add(other, "w", NUMBERS(2, 3), 2, SHOAL_F32));
    CHECK_STATUS(shoal_safetensors_writer_join(path, other, &joined), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("bytes, but a file of this layout has");
    shoal_safetensors_layout_free(other);

    REQUIRE_OK(shoal_safetensors_layout_create(&other));
    CHECK_OK(shoal_safetensors_layout_add(other, "flags", NUMBERS(3), 1, SHOAL_BOOL));
    CHECK_OK(shoal_safetensors_layout_add(other, "w", NUMBERS(3, 2), 2, SHOAL_F32));
    CHECK_OK(shoal_safetensors_layout_add_metadata(other, "format", "pt"));
    CHECK_STATUS(shoal_safetensors_writer_join(path, other, &joined), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("was created with another layout");
    shoal_safetensors_layout_free(other);

    CHECK_STATUS(shoal_safetensors_writer_join(scratch_file(&scratch, "m"), layout, &joined),
                 SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("safetensors_writer_join: ");
    CHECK(!joined);
    shoal_safetensors_writer_close(writer);
    shoal_safetensors_layout_free(layout);
    scratch_remove(&scratch);
}

/* A writer of a dead process is replaced, one of a live process is not touched. */
TEST(two_writers_of_one_path)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "m");
    shoal_safetensors_layout *layout = small_layout();
    shoal_safetensors_writer *first;
    shoal_safetensors_writer *second;
    pid_t child = fork();
    if (child == 0) {
        _exit(shoal_safetensors_writer_create(path, layout, &first) == SHOAL_OK ? 0 : 1);
    }
    int wait_status = 0;
    REQUIRE(child > 0 && waitpid(child, &wait_status, 0) == child && wait_status == 0);
    CHECK_INT(scratch_count(&scratch, PARTIAL), 1);
    REQUIRE_OK(shoal_safetensors_writer_create(path, layout, &first));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 1);
    REQUIRE_OK(shoal_safetensors_writer_create(path, layout, &second));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 2);
    CHECK_OK(shoal_safetensors_write(first, 1, 0, values, 24));
    CHECK_OK(shoal_safetensors_write(first, 0, 0, "\1\0\1", 3));
    CHECK_OK(shoal_safetensors_writer_finish(second));
    CHECK_OK(shoal_safetensors_writer_finish(first));
    shoal_safetensors_writer_close(first);
    shoal_safetensors_writer_close(second);
    shoal_safetensors_layout_free(layout);
    check_small_file(path);
    CHECK_INT(scratch_count(&scratch, ""), 1);
    scratch_remove(&scratch);
}

/* Beyond 4 GiB; most of the file is a hole. */
TEST(large_offsets)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "m");
    const int64_t n_rows = (int64_t)5 << 20; /* of 1 KiB */
    shoal_safetensors_layout *layout;
    shoal_safetensors_writer *writer;
    shoal_safetensors *file;
    float column[3] = {0};
    REQUIRE_OK(shoal_safetensors_layout_create(&layout));
    CHECK_OK(shoal_safetensors_layout_add(layout, "t", NUMBERS(n_rows, 256), 2, SHOAL_F32));
    CHECK_OK(shoal_safetensors_layout_add(layout, "u", NUMBERS(2), 1, SHOAL_U8));
    CHECK_OK(safetensors_layout_arrange(layout));
    CHECK(layout->file_bytes > (uint64_t)5 << 30);
    shoal_status status = shoal_safetensors_writer_create(path, layout, &writer);
    shoal_safetensors_layout_free(layout);
    if (status != SHOAL_OK) {
        test_skip("no files of 5 GiB here");
        scratch_remove(&scratch);
        return;
    }
    CHECK_OK(shoal_safetensors_write(writer, 0, ((uint64_t)n_rows - 1) * 1024 + 20, values, 4));
    CHECK_OK(shoal_safetensors_write_box(writer, 0, NUMBERS(n_rows - 3, 5), NUMBERS(2, 1), values + 1, NULL));
    CHECK_OK(shoal_safetensors_write(writer, 1, 1, "\7", 1));
    CHECK_OK(shoal_safetensors_writer_finish(writer));
    shoal_safetensors_writer_close(writer);
    REQUIRE_OK(shoal_safetensors_open(path, &file));
    CHECK_OK(shoal_safetensors_read_box(file, 0, NUMBERS(n_rows - 3, 5), NUMBERS(3, 1), column, NULL));
    CHECK(column[0] == 2 && column[1] == 3 && column[2] == 1);
    char two[2] = "";
    CHECK_OK(shoal_safetensors_read_range(file, 1, 0, two, 2));
    CHECK_BYTES(two, "\0\7", 2);
    CHECK_OK(shoal_safetensors_read_range(file, 0, ((uint64_t)n_rows - 1) * 1024 + 20, column, 4));
    CHECK(column[0] == 1);
    shoal_safetensors_close(file);
    scratch_remove(&scratch);
}

/* What is refused ---------------------------------------------------------------------------------------- */

TEST(refuses_wrong_arguments)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "m");
    shoal_safetensors_layout *layout = small_layout();
    shoal_safetensors_writer *writer = NULL;
    CHECK_STATUS(shoal_safetensors_writer_create(NULL, layout, &writer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_writer_create: path is NULL");
    CHECK_STATUS(shoal_safetensors_writer_create(path, NULL, &writer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("layout is NULL");
    CHECK_STATUS(shoal_safetensors_writer_create(path, layout, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("writer_out is NULL");
    CHECK_STATUS(shoal_safetensors_writer_create(scratch.path, layout, &writer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is a directory");
    CHECK_STATUS(shoal_safetensors_writer_finish(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_write(NULL, 0, 0, "", 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_write: writer is NULL");
    REQUIRE_OK(shoal_safetensors_writer_create(path, layout, &writer));
    CHECK_STATUS(shoal_safetensors_write(writer, 2, 0, values, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("index: 2 is not within the 2 tensors of the layout");
    CHECK_STATUS(shoal_safetensors_write(writer, -1, 0, values, 4), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_write(writer, 1, 21, values, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("offset: 4 bytes from 21 on are not within the 24 of tensor 'w'");
    CHECK_STATUS(shoal_safetensors_write(writer, 1, UINT64_MAX, values, 4), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_write(writer, 1, 4, values, SIZE_MAX), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_write(writer, 1, 0, NULL, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("data is NULL");
    CHECK_STATUS(shoal_safetensors_write_box(writer, 1, NULL, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_write_box: data is NULL");
    CHECK_STATUS(shoal_safetensors_write_box(writer, 1, NUMBERS(0, 4), NULL, values, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("begin[1]: 4 is not within 0..3");
    CHECK_OK(shoal_safetensors_write_box(writer, 1, NUMBERS(0, 3), NULL, NULL, NULL));
    /* Wrong calls do no harm. */
    CHECK_OK(shoal_safetensors_write_box(writer, 1, NULL, NULL, values, NULL));
    CHECK_OK(shoal_safetensors_write(writer, 0, 0, "\1\0\1", 3));
    CHECK_OK(shoal_safetensors_writer_finish(writer));
    shoal_safetensors_writer_close(writer);
    shoal_safetensors_layout_free(layout);
    check_small_file(path);
    scratch_remove(&scratch);
}

#ifdef SHOAL_FAIL_POINTS

#include "fixtures/file_faults.h"

/* A file that could not be written does not get its name, whatever the program does next. */
TEST(a_writer_that_failed_does_not_finish)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "m");
    shoal_safetensors_layout *layout = small_layout();
    shoal_safetensors_writer *writer;
    int code = ENOSPC;
    for (int is_sync = 0; is_sync < 2; is_sync++) {
        REQUIRE_OK(shoal_safetensors_writer_create(path, layout, &writer));
        fail_point_arm(1, file_faults_give_code, &code);
        if (is_sync) {
            CHECK_STATUS(shoal_safetensors_writer_finish(writer), SHOAL_ERR_SYSTEM);
            CHECK_ERROR_TEXT("fsync: No space left on device");
        } else {
            CHECK_STATUS(shoal_safetensors_write(writer, 1, 8, values, 16), SHOAL_ERR_SYSTEM);
            CHECK_ERROR_TEXT("safetensors_write: tensor 'w': ");
            CHECK_ERROR_TEXT("write of 16 bytes at byte ");
        }
        fail_point_arm(0, NULL, NULL);
        CHECK_OK(shoal_safetensors_write(writer, 1, 8, values, 16));
        CHECK_STATUS(shoal_safetensors_writer_finish(writer), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("not all of it could be written");
        shoal_safetensors_writer_close(writer);
        CHECK_INT(scratch_count(&scratch, ""), 0);
    }
    shoal_safetensors_layout_free(layout);
    scratch_remove(&scratch);
}

/* Two writers of a file, of which either may be the one that is disturbed. */
struct pair {
    struct scratch scratch;
    shoal_safetensors_layout *layout;
};

static shoal_status write_half(shoal_safetensors_writer *writer, int64_t row)
{
    TRY(shoal_safetensors_write_box(writer, 1, NUMBERS(row, 0), NUMBERS(1, 3), values + 3 * row, NULL));
    TRY(shoal_safetensors_write(writer, 0, row == 0 ? 0 : 1, row == 0 ? "\1" : "\0\1", row == 0 ? 1 : 2));
    return row == 0 ? SHOAL_OK : shoal_safetensors_writer_finish(writer);
}

static shoal_status write_with_two(void *context)
{
    struct pair *pair = context;
    shoal_safetensors_writer *creator;
    shoal_safetensors_writer *joined = NULL;
    TRY(shoal_safetensors_writer_create(scratch_file(&pair->scratch, "m"), pair->layout, &creator));
    shoal_status status =
        shoal_safetensors_writer_join(shoal_safetensors_writer_path(creator), pair->layout, &joined);
    status = status == SHOAL_OK ? write_half(creator, 0) : status;
    status = status == SHOAL_OK ? write_half(joined, 1) : status;
    status = status == SHOAL_OK ? shoal_safetensors_writer_finish(creator) : status;
    shoal_safetensors_writer_close(joined);
    shoal_safetensors_writer_close(creator);
    return status;
}

static void put_old_text(void *context)
{
    struct pair *pair = context;
    CHECK(scratch_write(scratch_file(&pair->scratch, "m"), "old", 3));
}

static void check_pair(void *context, bool is_done)
{
    struct pair *pair = context;
    const char *path = scratch_file(&pair->scratch, "m");
    if (is_done || !scratch_has(path, "old")) {
        check_small_file(path);
    }
    CHECK_OK(write_with_two(context));
    CHECK_INT(scratch_count(&pair->scratch, ""), 1);
}

TEST(two_writers_disturbed_at_every_request)
{
    struct pair pair = {.scratch = scratch_make(), .layout = small_layout()};
    struct file_faults faults = {
        .prepare = put_old_text, .body = write_with_two, .check = check_pair, .context = &pair};
    /* create, header, size, four writes, fsync twice, rename, fsync of the directory */
    CHECK_INT(file_faults_kill(&faults), 11);
    CHECK_INT(file_faults_refuse(&faults, ENOSPC), 11);
    shoal_safetensors_layout_free(pair.layout);
    scratch_remove(&pair.scratch);
}

#endif

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status write_and_join(void *context)
{
    shoal_safetensors_layout *layout = context;
    shoal_safetensors_writer *writer;
    shoal_safetensors_writer *joined = NULL;
    shoal_status status = shoal_safetensors_writer_create("/tmp/shoal_test_never_finished", layout, &writer);
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_safetensors_writer_join(shoal_safetensors_writer_path(writer), layout, &joined);
    if (status == SHOAL_OK) {
        status = shoal_safetensors_write_box(joined, 1, NULL, NULL, values, NUMBERS(1, 2));
    }
    shoal_safetensors_writer_close(joined);
    shoal_safetensors_writer_close(writer);
    return status;
}

TEST(survives_failing_allocations)
{
    shoal_safetensors_layout *layout = small_layout();
    CHECK_OK(safetensors_layout_arrange(layout)); /* keeps its header from now on */
    CHECK(test_sweep_allocations(write_and_join, layout) >= 6);
    shoal_safetensors_layout_free(layout);
}
