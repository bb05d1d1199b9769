/* SPDX-License-Identifier: MIT */
/*
 * Checkpoints that are removed while there are symbolic links in them: the links go, and what they point to stays. Each
 * place of a link meets each way in which a checkpoint is removed.
 */
#include <limits.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/os/fault.h"
#include "checkpoint/index/directory.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/path.h"
#include "fixtures/file_faults.h"
#include "fixtures/scratch.h"

#define INDEX "shoal.index.json"
#define OLD "step-000000001"
#define KEPT "kept"

/* Of a scratch directory: `outside` has files and directories, and nothing in it may change. */
struct place {
    struct scratch scratch;
    char old[PATH_MAX]; /* the checkpoint or remnant that is removed */
};

static const char *const outside_files[] = {("outside/" INDEX), "outside/data", "outside/inner/data",
                                            "outside/inner/deep/data"};

static void make_outside(const struct place *place)
{
    CHECK_INT(mkdir(scratch_file(&place->scratch, "outside"), 0777), 0);
    CHECK_INT(mkdir(scratch_file(&place->scratch, "outside/inner"), 0777), 0);
    CHECK_INT(mkdir(scratch_file(&place->scratch, "outside/inner/deep"), 0777), 0);
    for (size_t i = 0; i < sizeof outside_files / sizeof outside_files[0]; i++) {
        CHECK(scratch_write(scratch_file(&place->scratch, outside_files[i]), KEPT, strlen(KEPT)));
    }
}

static void check_outside(const struct place *place)
{
    for (size_t i = 0; i < sizeof outside_files / sizeof outside_files[0]; i++) {
        CHECK(scratch_has(scratch_file(&place->scratch, outside_files[i]), KEPT));
    }
}

/* A link PATH/name to something in `outside`, or to nothing that exists. */
static void link_to(const struct place *place, const char *name, const char *target)
{
    char path[2 * PATH_MAX];
    (void)snprintf(path, sizeof path, "%s%s", place->old, name);
    CHECK_INT(symlink(scratch_file(&place->scratch, target), path), 0);
}

/* A directory PATH/name with a file of that name in it. */
static void make_directory(const struct place *place, const char *name, const char *file)
{
    char path[2 * PATH_MAX];
    (void)snprintf(path, sizeof path, "%s%s", place->old, name);
    CHECK_INT(mkdir(path, 0777), 0);
    (void)snprintf(path, sizeof path, "%s%s/%s", place->old, name, file);
    CHECK(scratch_write(path, "old", 3));
}

/* Where links are ---------------------------------------------------------------------------------------- */

static void link_itself(const struct place *place)
{
    link_to(place, "", "outside");
}

static void link_relative(const struct place *place)
{
    CHECK_INT(symlink("../outside", place->old), 0);
}

static void link_to_link(const struct place *place)
{
    CHECK_INT(symlink("outside", scratch_file(&place->scratch, "second")), 0);
    link_to(place, "", "second");
}

static void link_directory(const struct place *place)
{
    make_directory(place, "", INDEX);
    link_to(place, "/inner", "outside");
}

static void link_deep_directory(const struct place *place)
{
    make_directory(place, "", INDEX);
    make_directory(place, "/inner", "data");
    make_directory(place, "/inner/deep", "data");
    link_to(place, "/inner/a", "outside/inner");
    link_to(place, "/inner/deep/b", "outside/inner/deep");
}

static void link_files(const struct place *place)
{
    make_directory(place, "", "data");
    make_directory(place, "/inner", "data");
    link_to(place, "/" INDEX, "outside/" INDEX);
    link_to(place, "/more", "outside/data");
    link_to(place, "/inner/more", "outside/inner/data");
}

static void link_to_nothing(const struct place *place)
{
    char loop[2 * PATH_MAX];
    make_directory(place, "", INDEX);
    make_directory(place, "/inner", "data");
    link_to(place, "/gone", "gone");
    link_to(place, "/inner/gone", "outside/gone");
    (void)snprintf(loop, sizeof loop, "%s/inner/self", place->old);
    CHECK_INT(symlink("self", loop), 0);
}

/* Is not complete, so that `keep` does not see it. */
static void link_itself_to_nothing(const struct place *place)
{
    link_to(place, "", "gone");
}

static const struct {
    const char *name;
    void (*make)(const struct place *place);
    bool is_incomplete;
} links[] = {
    {"the checkpoint", link_itself, false},
    {"the checkpoint, by a relative path", link_relative, false},
    {"the checkpoint, by a second link", link_to_link, false},
    {"a directory", link_directory, false},
    {"directories of directories", link_deep_directory, false},
    {"files", link_files, false},
    {"dangling", link_to_nothing, false},
    {"the checkpoint, dangling", link_itself_to_nothing, true},
};

/* How a checkpoint is removed ---------------------------------------------------------------------------- */

static shoal_status save(const struct place *place, int64_t step, bool replaces, int keep)
{
    struct directory_save save = DIRECTORY_SAVE_INIT;
    const struct directory_keep kept = {.count = keep};
    char path[PATH_MAX];
    shoal_status status =
        directory_save_begin(scratch_file(&place->scratch, "run"), step, "1", replaces, &save);
    if (status == SHOAL_OK) {
        (void)snprintf(path, sizeof path, "%s/" INDEX, save.saving);
        status = file_save(path, "new", 3);
    }
    if (status == SHOAL_OK) {
        status = directory_save_commit(&save, replaces, &kept);
    }
    directory_save_end(&save);
    return status;
}

static shoal_status replace(const struct place *place)
{
    return save(place, 1, true, 0);
}

#ifdef SHOAL_FAIL_POINTS
static shoal_status replace_in_two_steps(const struct place *place)
{
    os_fault_arm(2, ENOSYS); /* the exchange; the first is the random name of the file */
    shoal_status status = save(place, 1, true, 0);
    CHECK_STRING(os_fault_name(), "exchange");
    os_fault_arm(0, 0);
    return status;
}
#endif

static shoal_status keep_one(const struct place *place)
{
    return save(place, 2, false, 1);
}

static shoal_status remove_tree(const struct place *place)
{
    return path_remove_tree(place->old);
}

static const struct {
    const char *name;
    const char *old;
    shoal_status (*remove)(const struct place *place);
    bool needs_complete;
} ways[] = {
    {"replaces", "run/" OLD, replace, false},
#ifdef SHOAL_FAIL_POINTS
    {"replaces in two steps", "run/" OLD, replace_in_two_steps, false},
#endif
    {"keep", "run/" OLD, keep_one, true},
    {"a dead save", "run/.saving-2", replace, false},
    {"a dead removal", "run/.removing-" OLD, replace, false},
    {"path_remove_tree", "run/x", remove_tree, false},
};

static void try_one(size_t link, size_t way)
{
    struct place place = {.scratch = scratch_make()};
    (void)snprintf(place.old, sizeof place.old, "%s", scratch_file(&place.scratch, ways[way].old));
    CHECK_INT(mkdir(scratch_file(&place.scratch, "run"), 0777), 0);
    make_outside(&place);
    links[link].make(&place);
    CHECK_OK(ways[way].remove(&place));
    check_outside(&place);
    /* Of the old one nothing is left: what has its name now is a directory with the new index alone. */
    struct scratch run;
    (void)snprintf(run.path, sizeof run.path, "%.400s/run", place.scratch.path);
    bool is_saved = ways[way].remove != remove_tree;
    CHECK_INT(scratch_count(&run, ""), is_saved ? 2 : 0); /* and the lock */
    CHECK(!is_saved || ways[way].remove == keep_one || scratch_has(scratch_file(&run, OLD "/" INDEX), "new"));
    if (test_has_failed()) {
        printf("    link: %s; removed by: %s\n", links[link].name, ways[way].name);
    }
    scratch_remove(&place.scratch);
}

TEST(links_are_removed_and_not_followed)
{
    for (size_t link = 0; link < sizeof links / sizeof links[0]; link++) {
        for (size_t way = 0; way < sizeof ways / sizeof ways[0] && !test_has_failed(); way++) {
            if (!links[link].is_incomplete || !ways[way].needs_complete) {
                try_one(link, way);
            }
        }
    }
}

/* A link may point to a checkpoint that `keep` removes: so many that are none have to stay. */
TEST(links_do_not_count_among_those_that_are_kept)
{
    struct place place = {.scratch = scratch_make()};
    CHECK_OK(save(&place, 1, false, 0));
    CHECK_OK(save(&place, 2, false, 0));
    CHECK_INT(symlink(OLD, scratch_file(&place.scratch, "run/step-000000003")), 0);
    CHECK_OK(save(&place, 4, false, 2));
    CHECK(scratch_has(scratch_file(&place.scratch, "run/step-000000002/" INDEX), "new"));
    CHECK(access(scratch_file(&place.scratch, "run/" OLD), F_OK) != 0);
    CHECK_OK(save(&place, 5, false, 2));
    CHECK(access(scratch_file(&place.scratch, "run/step-000000002"), F_OK) != 0);
    scratch_remove(&place.scratch);
}

/* Trees of any depth need a few descriptors only. */
TEST(a_deep_tree)
{
    enum {
        DEPTH = 300,
        MOST = 64
    };
    struct rlimit before;
    struct scratch scratch = scratch_make();
    char path[PATH_MAX];
    size_t length = (size_t)snprintf(path, sizeof path, "%s/tree", scratch.path);
    for (int i = 0; i < DEPTH; i++) {
        REQUIRE(mkdir(path, 0777) == 0);
        length += (size_t)snprintf(path + length, sizeof path - length, "/d%d", i);
    }
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const struct rlimit low = {.rlim_cur = MOST, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
    CHECK_OK(path_remove_tree(scratch_file(&scratch, "tree")));
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_INT(scratch_count(&scratch, ""), 0);
    scratch_remove(&scratch);
}

#ifdef SHOAL_FAIL_POINTS

/* Somebody puts a link in the place of a directory while it is removed. */
static shoal_status swap(void *context, const char *name)
{
    const struct place *place = context;
    CHECK_STRING(name, "unlink");
    char inner[2 * PATH_MAX];
    (void)snprintf(inner, sizeof inner, "%s/inner", place->old);
    CHECK_INT(rename(inner, scratch_file(&place->scratch, "moved")), 0);
    CHECK_INT(symlink(scratch_file(&place->scratch, "outside"), inner), 0);
    return SHOAL_OK;
}

TEST(a_directory_becomes_a_link_while_it_is_removed)
{
    struct place place = {.scratch = scratch_make()};
    (void)snprintf(place.old, sizeof place.old, "%s", scratch_file(&place.scratch, "tree"));
    make_outside(&place);
    CHECK_INT(mkdir(place.old, 0777), 0);
    make_directory(&place, "/inner", "data");
    fail_point_arm(1, swap, &place);
    CHECK_STATUS(path_remove_tree(place.old), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("rmdir: Not a directory");
    fail_point_arm(0, NULL, NULL);
    check_outside(&place);
    CHECK_OK(path_remove_tree(place.old));
    check_outside(&place);
    scratch_remove(&place.scratch);
}

#endif
