/* SPDX-License-Identifier: MIT */
/*
 * Directories of checkpoints: what is found in them is complete, old or new, wherever the process is killed or the
 * system refuses, and whether or not the file system can exchange two names at once.
 */
#include "checkpoint/index/directory.h"

#include <inttypes.h>
#include <limits.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os/fault.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/path.h"
#include "fixtures/file_faults.h"
#include "fixtures/scratch.h"

#define ID "0123456789abcdef0123456789abcdef"
#define INDEX "shoal.index.json"

static bool is_damaged(const char *path)
{
    char text[PATH_MAX];
    (void)snprintf(text, sizeof text, "%s/damaged", path);
    return access(text, F_OK) == 0;
}

/* One save of a checkpoint that is a text. */
static shoal_status save_text(const char *directory, int64_t step, const char *text, bool replaces, int keep)
{
    struct directory_save save = DIRECTORY_SAVE_INIT;
    char path[PATH_MAX];
    shoal_status status = directory_save_begin(directory, step, ID, replaces, &save);
    if (status == SHOAL_OK) {
        (void)snprintf(path, sizeof path, "%s/" INDEX, save.saving);
        status = file_save(path, text, strlen(text));
    }
    if (status == SHOAL_OK) {
        const struct directory_keep kept = {.count = keep, .is_damaged = is_damaged};
        status = directory_save_commit(&save, replaces, &kept);
    }
    directory_save_end(&save);
    return status;
}

/* That of the step, or the newest (-1). */
static shoal_status find(const char *directory, int64_t step, char **path_out)
{
    int64_t found = -2;
    shoal_status status =
        directory_find(directory, step < 0 ? 0 : step, step < 0 ? INT64_MAX : step, path_out, &found);
    CHECK(status != SHOAL_OK || !*path_out || step < 0 || found == step || found == -1);
    return status;
}

/* The text of the checkpoint that is found; "" if there is none. Valid until the next call. */
static const char *found_text(const char *directory, int64_t step)
{
    static char text[64];
    char path[PATH_MAX];
    char *found = NULL;
    size_t bytes = 0;
    text[0] = '\0';
    if (CHECK_OK(find(directory, step, &found)) && found) {
        (void)snprintf(path, sizeof path, "%s/" INDEX, found);
        char *content = scratch_read(path, &bytes);
        (void)snprintf(text, sizeof text, "%s", content ? content : "?");
        free(content);
    }
    mem_free(found);
    return text;
}

static void make_file(const char *directory, const char *name)
{
    char path[PATH_MAX];
    (void)mkdir(directory, 0777);
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    CHECK(scratch_write(path, "x", 1));
}

TEST(saving_and_finding)
{
    struct scratch scratch = scratch_make();
    char directory[PATH_MAX];
    (void)snprintf(directory, sizeof directory, "%s/a//b/", scratch.path);
    char *found = (char *)directory;
    CHECK_OK(find(directory, -1, &found));
    CHECK(!found);
    CHECK_OK(save_text(directory, 2, "two", false, 0));
    CHECK_OK(save_text(directory, 10, "ten", false, 0));
    CHECK_OK(save_text(directory, INT64_MAX, "last", false, 0));
    CHECK_STRING(found_text(directory, -1), "last");
    CHECK_STRING(found_text(directory, 2), "two");
    CHECK_STRING(found_text(directory, 3), "");
    CHECK_OK(find(directory, 10, &found));
    CHECK(found && strstr(found, "/step-000000010") != NULL);
    /* A checkpoint itself is one, too. */
    CHECK_STRING(found_text(found, -1), "ten");
    mem_free(found);
    CHECK_STATUS(save_text(directory, 2, "again", false, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("step-000000002: exists already");
    CHECK_STRING(found_text(directory, 2), "two");
    CHECK_OK(save_text(directory, 2, "again", true, 0));
    CHECK_STRING(found_text(directory, 2), "again");
    CHECK_OK(save_text(directory, 4, "four", true, 0)); /* nothing to replace */
    struct scratch inner;
    (void)snprintf(inner.path, sizeof inner.path, "%.200s/a/b", scratch.path);
    CHECK_INT(scratch_count(&inner, ""), 5); /* with .lock */
    CHECK_STATUS(find(scratch_file(&inner, ".lock"), -1, &found), SHOAL_ERR_SYSTEM);
    CHECK_STATUS(save_text(scratch_file(&inner, ".lock/x"), 1, "", false, 0), SHOAL_ERR_SYSTEM);
    CHECK_STATUS(save_text("", 1, "", false, 0), SHOAL_ERR_SYSTEM);
    CHECK_OK(path_remove_tree(scratch.path));
}

TEST(only_complete_ones_are_found)
{
    struct scratch scratch = scratch_make();
    CHECK_OK(save_text(scratch.path, 1, "one", false, 0));
    make_file(scratch_file(&scratch, "step-000000002"), "pieces-00001-of-00001.safetensors");
    make_file(scratch_file(&scratch, "step-3"), INDEX);
    make_file(scratch_file(&scratch, "step-000000003x"), INDEX);
    make_file(scratch_file(&scratch, "step--00000001"), INDEX);
    make_file(scratch_file(&scratch, ".saving-" ID), INDEX);
    CHECK_STRING(found_text(scratch.path, -1), "one");
    make_file(scratch_file(&scratch, "step-000000005"), "model.safetensors");
    char *found = NULL;
    CHECK_OK(find(scratch.path, -1, &found));
    CHECK(found && strstr(found, "step-000000005") != NULL);
    mem_free(found);
    CHECK_OK(path_remove_tree(scratch.path));
}

TEST(the_newest_are_kept)
{
    struct scratch scratch = scratch_make();
    for (int64_t step = 1; step <= 5; step++) {
        CHECK_OK(save_text(scratch.path, step, "", false, 3));
    }
    CHECK_INT(scratch_count(&scratch, "step-"), 3);
    CHECK_INT(scratch_count(&scratch, "step-000000002"), 0);
    /* One of an earlier step removes no later ones. */
    make_file(scratch_file(&scratch, "step-000000000"), "notes");
    CHECK_OK(save_text(scratch.path, 1, "", false, 2));
    CHECK_INT(scratch_count(&scratch, "step-"), 5);
    CHECK_INT(scratch_count(&scratch, "step-000000003"), 1);
    CHECK_INT(scratch_count(&scratch, "step-000000005"), 1);
    CHECK_INT(scratch_count(&scratch, "step-000000001"), 1);
    CHECK_INT(scratch_count(&scratch, "step-000000000"), 1); /* not complete: nobody's */
    CHECK_OK(save_text(scratch.path, 9, "", false, 1));
    CHECK_INT(scratch_count(&scratch, "step-"), 2);
    CHECK_OK(path_remove_tree(scratch.path));
}

/* They stay until there are enough newer ones that can be loaded. */
TEST(damaged_ones_do_not_count)
{
    struct scratch scratch = scratch_make();
    for (int64_t step = 1; step <= 3; step++) {
        CHECK_OK(save_text(scratch.path, step, "", false, 3));
    }
    make_file(scratch_file(&scratch, "step-000000002"), "damaged");
    make_file(scratch_file(&scratch, "step-000000003"), "damaged");
    CHECK_OK(save_text(scratch.path, 4, "", false, 2));
    CHECK_INT(scratch_count(&scratch, "step-"), 4);
    CHECK_OK(save_text(scratch.path, 5, "", false, 2));
    CHECK_INT(scratch_count(&scratch, "step-"), 2);
    CHECK_INT(scratch_count(&scratch, "step-000000004"), 1);
    CHECK_OK(path_remove_tree(scratch.path));
}

TEST(a_second_job_is_refused)
{
    struct scratch scratch = scratch_make();
    struct directory_save first = DIRECTORY_SAVE_INIT;
    REQUIRE_OK(directory_save_begin(scratch.path, 1, ID, false, &first));
    CHECK_STATUS(save_text(scratch.path, 2, "two", false, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("another save to this directory is under way");
    CHECK_INT(scratch_count(&scratch, ".saving-"), 1);
    directory_save_end(&first);
    CHECK_INT(scratch_count(&scratch, ".saving-"), 0);
    CHECK_INT(scratch_count(&scratch, ""), 1);
    CHECK_OK(save_text(scratch.path, 2, "two", false, 0));
    struct directory_save none = DIRECTORY_SAVE_INIT;
    directory_save_end(&none);
    CHECK_OK(path_remove_tree(scratch.path));
}

TEST(what_dead_saves_left_is_removed)
{
    struct scratch scratch = scratch_make();
    make_file(scratch_file(&scratch, ".saving-1"), "a");
    make_file(scratch_file(&scratch, ".removing-step-000000001"), INDEX);
    make_file(scratch_file(&scratch, ".replaced-step-000000002"), INDEX);
    make_file(scratch_file(&scratch, ".replaced-step-000000003"), INDEX);
    make_file(scratch_file(&scratch, "step-000000003"), INDEX);
    make_file(scratch_file(&scratch, ".saving-1/inner"), "a");
    REQUIRE(symlink("/", scratch_file(&scratch, ".saving-1/inner/link")) == 0);
    CHECK_STRING(found_text(scratch.path, 2), "x"); /* its successor never came */
    CHECK_OK(save_text(scratch.path, 4, "four", false, 0));
    CHECK_INT(scratch_count(&scratch, ""), 4);
    CHECK_STRING(found_text(scratch.path, 2), "x");
    CHECK_INT(scratch_count(&scratch, ".re"), 0);
    CHECK_OK(path_remove_tree(scratch.path));
    CHECK(access("/tmp", F_OK) == 0);
}

/* Disturbed ---------------------------------------------------------------------------------------------- */

#ifdef SHOAL_FAIL_POINTS

struct disturbed {
    struct scratch scratch;
    bool exchanges; /* the file system can */
    int64_t old_step;
    int64_t new_step;
    bool is_refused; /* the save has returned an error */
};

static void put_old(void *context)
{
    struct disturbed *disturbed = context;
    disturbed->is_refused = false;
    (void)path_remove_tree(disturbed->scratch.path);
    CHECK_OK(save_text(disturbed->scratch.path, disturbed->old_step, "old", false, 0));
}

static shoal_status save_new(void *context)
{
    struct disturbed *disturbed = context;
    os_fault_arm(disturbed->exchanges ? 0 : 2, ENOSYS); /* the first is the random name of the file */
    shoal_status status = save_text(disturbed->scratch.path, disturbed->new_step, "new", true, 1);
    CHECK(status != SHOAL_OK || disturbed->exchanges || strcmp(os_fault_name(), "exchange") == 0);
    os_fault_arm(0, 0);
    disturbed->is_refused = status != SHOAL_OK;
    return status;
}

static void old_or_new(void *context, bool is_done)
{
    struct disturbed *disturbed = context;
    const char *text = found_text(disturbed->scratch.path, -1);
    CHECK((!disturbed->is_refused && strcmp(text, "new") == 0) || (!is_done && strcmp(text, "old") == 0));
    CHECK_OK(save_text(disturbed->scratch.path, disturbed->new_step, "newer", true, 1));
    CHECK_STRING(found_text(disturbed->scratch.path, -1), "newer");
    CHECK_INT(scratch_count(&disturbed->scratch, ""), 2); /* and the lock */
}

static void disturb(bool exchanges, int64_t old_step, int64_t new_step)
{
    struct disturbed disturbed = {scratch_make(), exchanges, old_step, new_step, false};
    struct file_faults faults = {put_old, save_new, old_or_new, &disturbed};
    uint64_t count = file_faults_kill(&faults);
    CHECK(count > 10);
    CHECK_INT(file_faults_refuse(&faults, ENOSPC), count);
    CHECK_INT(file_faults_refuse(&faults, EIO), count);
    CHECK_OK(path_remove_tree(disturbed.scratch.path));
}

TEST(disturbed_while_it_follows_another)
{
    disturb(true, 1, 2);
}

TEST(disturbed_while_it_replaces)
{
    disturb(true, 1, 1);
}

TEST(disturbed_while_it_replaces_in_two_steps)
{
    disturb(false, 1, 1);
}

/* What cannot be put back is an error with a text. */
TEST(a_name_that_cannot_be_restored)
{
    int code = EIO;
    struct scratch scratch = scratch_make();
    make_file(scratch_file(&scratch, ".replaced-step-000000002"), INDEX);
    fail_point_arm(2, file_faults_give_code, &code); /* the first is the lock */
    CHECK_STATUS(save_text(scratch.path, 4, "four", false, 0), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("step-000000002: rename: ");
    fail_point_arm(0, NULL, NULL);
    CHECK_STRING(found_text(scratch.path, -1), "x");
    CHECK_OK(path_remove_tree(scratch.path));
}

static shoal_status save_again(void *context)
{
    const struct scratch *scratch = context;
    return save_text(scratch->path, 1, "text", true, 1);
}

TEST(without_memory)
{
    struct scratch scratch = scratch_make();
    CHECK_OK(save_again(&scratch));
    (void)test_sweep_allocations(save_again, &scratch);
    CHECK_STRING(found_text(scratch.path, 1), "text");
    CHECK_OK(path_remove_tree(scratch.path));
}

#endif
