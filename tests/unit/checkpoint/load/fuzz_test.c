/* SPDX-License-Identifier: MIT */
/*
 * Loads of checkpoints in which bytes were changed, anywhere: in the index, whose own sum is then made right again, so
 * that what is behind it is tried, in headers, in data, and in lengths of files. A load succeeds, or fails with a text
 * and leaves values as they were; whatever it reads stays within the part.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/items/items.h"
#include "fixtures/made_checkpoint.h"
#include "fixtures/rank_world.h"
#include "shoal/checkpoint.h"

#define ROWS 6
#define COLUMNS 10
#define FIRST_COLUMN 2
#define N_COLUMNS 5
#define GUARDS 16
#define BEFORE 77

struct image_file {
    char *bytes;
    size_t n_bytes;
};

struct fuzz {
    struct made made;
    struct image_file files[3]; /* two of data, and the index */
    shoal_group *group;
    struct test_random random;
};

static const char *file_name(const struct fuzz *fuzz, size_t number)
{
    return number < 2 ? fuzz->made.files[number].name : INDEX_NAME;
}

static void begin(struct fuzz *fuzz)
{
    const int64_t shape[] = {ROWS, COLUMNS};
    const int cuts[] = {1, 2};
    char *text = NULL;
    size_t bytes = 0;
    fuzz->random = test_random_begin(1);
    made_create(&fuzz->made, SHOAL_U8, 2, shape, cuts, 2, &fuzz->random);
    REQUIRE_OK(index_write(&fuzz->made.index, &text, &bytes));
    CHECK(scratch_write(scratch_file(&fuzz->made.scratch, INDEX_NAME), text, bytes));
    mem_free(text);
    for (size_t i = 0; i < 3; i++) {
        fuzz->files[i].bytes =
            scratch_read(scratch_file(&fuzz->made.scratch, file_name(fuzz, i)), &fuzz->files[i].n_bytes);
        REQUIRE(fuzz->files[i].bytes);
    }
}

static void end(struct fuzz *fuzz)
{
    for (size_t i = 0; i < 3; i++) {
        free(fuzz->files[i].bytes);
    }
    made_free(&fuzz->made);
}

/* A new file each time: some file systems flush one that is cut and written again. */
static void write_file(const struct fuzz *fuzz, size_t number, const char *bytes, size_t n_bytes)
{
    const char *path = scratch_file(&fuzz->made.scratch, file_name(fuzz, number));
    CHECK_INT(unlink(path), 0);
    CHECK(scratch_write(path, bytes, n_bytes));
}

/* Another digit for a digit, so that most of it still is JSON; sometimes anything. */
static void change_byte(struct test_random *random, char *byte)
{
    bool is_digit = *byte >= '0' && *byte <= '9';
    *byte = is_digit && test_random_below(random, 8) > 0 ? (char)('0' + test_random_below(random, 10))
                                                         : (char)test_random_below(random, 256);
}

/* The text with its own sum, as its writer makes it. */
static void mend_sum(char *text, size_t bytes)
{
    char digits[17];
    char *sum = NULL;
    for (size_t i = 0; i + 5 + 20 < bytes; i++) {
        sum = memcmp(text + i, "\"sum\"", 5) == 0 ? text + i : sum;
    }
    if (sum) {
        (void)snprintf(digits, sizeof digits, "%016" PRIx64, checksum_block(text, (size_t)(sum - text)));
        char *place = memchr(sum + 5, '"', 4);
        if (place && (size_t)(place - text) + 17 <= bytes) {
            memcpy(place + 1, digits, 16);
        }
    }
}

/* One of the files, changed in up to four places. */
static void change_file(struct fuzz *fuzz, size_t number)
{
    const struct image_file *file = &fuzz->files[number];
    struct test_random *random = &fuzz->random;
    char *changed = malloc(file->n_bytes + 8);
    size_t n_bytes = file->n_bytes;
    memcpy(changed, file->bytes, n_bytes);
    memset(changed + n_bytes, 0, 8);
    for (uint64_t i = test_random_below(random, 4); i > 0; i--) {
        change_byte(random, &changed[test_random_below(random, n_bytes)]);
    }
    if (test_random_below(random, 8) == 0) {
        n_bytes = (size_t)test_random_below(random, n_bytes + 8);
    }
    if (number == 2 && test_random_below(random, 4) > 0) {
        mend_sum(changed, n_bytes);
    }
    write_file(fuzz, number, changed, n_bytes);
    free(changed);
}

static void load_columns(struct fuzz *fuzz, size_t *n_loaded)
{
    const int64_t shape[] = {ROWS, COLUMNS};
    const size_t part_bytes = (size_t)ROWS * N_COLUMNS;
    unsigned char memory[GUARDS + ROWS * N_COLUMNS + GUARDS];
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    shoal_item item = SHOAL_ITEM_INIT;
    shoal_items *items;
    REQUIRE_OK(shoal_items_create(&items));
    memset(memory, BEFORE, sizeof memory);
    item.name = "t";
    item.dtype = SHOAL_U8;
    item.n_dims = 2;
    item.shape = shape;
    item.dim = 1;
    item.offset = FIRST_COLUMN;
    item.length = N_COLUMNS;
    item.data = memory + GUARDS;
    CHECK_OK(shoal_items_add(items, &item));
    options.skips_sums = test_random_below(&fuzz->random, 2) == 0;
    options.allows_unexpected = true;
    options.allows_missing = test_random_below(&fuzz->random, 2) == 0;
    shoal_status status = shoal_checkpoint_load(fuzz->group, fuzz->made.scratch.path, items, &options, NULL);
    *n_loaded += status == SHOAL_OK;
    CHECK(status == SHOAL_OK || strstr(shoal_error_text(), "checkpoint_load: ") != NULL);
    for (size_t i = 0; i < sizeof memory && !test_has_failed(); i++) {
        bool is_part = i >= GUARDS && i < GUARDS + part_bytes;
        if (!is_part || status != SHOAL_OK) {
            CHECK_INT(memory[i], BEFORE);
        }
    }
    shoal_items_free(items);
}

TEST_RANKS(changed_files_load_or_fail, 1)
{
    static struct fuzz fuzz;
    size_t n_loaded = 0;
    int n_rounds = (int)(1000 / test_time_scale());
    begin(&fuzz);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    fuzz.group = shoal_world_group(world);
    for (int i = 0; i < n_rounds && !test_has_failed(); i++) {
        size_t number = test_random_below(&fuzz.random, 3);
        change_file(&fuzz, number);
        load_columns(&fuzz, &n_loaded);
        write_file(&fuzz, number, fuzz.files[number].bytes, fuzz.files[number].n_bytes);
    }
    CHECK(n_loaded > 0);
    CHECK_OK(shoal_world_close(world));
    end(&fuzz);
}
