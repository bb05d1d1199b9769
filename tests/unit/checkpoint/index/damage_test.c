/* SPDX-License-Identifier: MIT */
/* Damage that is seen without reading data: an index that cannot be read, files that are missing or of another size. */
#include "checkpoint/index/damage.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "checkpoint/io/path.h"
#include "fixtures/index_sample.h"
#include "fixtures/scratch.h"

/* A directory with the files that the index says, which are empty but for their size. */
static void make(const struct scratch *scratch, const struct checkpoint_index *index)
{
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(index_write(index, &text, &bytes));
    CHECK(scratch_write(scratch_file(scratch, INDEX_NAME), text, bytes));
    mem_free(text);
    for (size_t i = 0; i < index->n_files; i++) {
        const char *path = scratch_file(scratch, index->files[i].name);
        CHECK(scratch_write(path, "", 0));
        CHECK_INT(truncate(path, (off_t)index->files[i].bytes), 0);
    }
}

TEST(sizes_and_index)
{
    struct checkpoint_index index = index_sample();
    struct scratch scratch = scratch_make();
    CHECK(!damage_is_seen(scratch.path)); /* no index: of another tool */
    make(&scratch, &index);
    CHECK(!damage_is_seen(scratch.path));
    CHECK_INT(truncate(scratch_file(&scratch, index.files[1].name), 1), 0);
    CHECK(damage_is_seen(scratch.path));
    make(&scratch, &index);
    CHECK_INT(unlink(scratch_file(&scratch, index.files[0].name)), 0);
    CHECK(damage_is_seen(scratch.path));
    make(&scratch, &index);
    CHECK_INT(truncate(scratch_file(&scratch, INDEX_NAME), 100), 0);
    CHECK(damage_is_seen(scratch.path));
    CHECK_OK(path_remove_tree(scratch.path));
    CHECK(!damage_is_seen(scratch.path));
}

TEST(without_memory)
{
    struct checkpoint_index index = index_sample();
    struct scratch scratch = scratch_make();
    make(&scratch, &index);
    for (size_t i = 1; i <= 4; i++) {
        test_fail_allocation(i, true);
        bool is_seen = damage_is_seen(scratch.path);
        test_fail_allocation(0, false);
        CHECK(!is_seen);
    }
    CHECK_OK(path_remove_tree(scratch.path));
}
