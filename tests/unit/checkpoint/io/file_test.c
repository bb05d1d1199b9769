/* SPDX-License-Identifier: MIT */
/*
 * Files that are written safely: the target is the old file or the new one, wherever the process is killed or the
 * system refuses; what dead writers leave is removed, what live ones write is not.
 */
#include "checkpoint/io/file.h"

#include <sys/resource.h>

#include "checkpoint/io/path.h"
#include "fixtures/file_faults.h"
#include "fixtures/scratch.h"

#define OLD_TEXT "what was there"
#define NEW_TEXT "what is new, and longer"
#define PARTIAL ".partial-"

static shoal_status save_text(const char *path, const char *text)
{
    return file_save(path, text, strlen(text));
}

/* Committing ------------------------------------------------------------------------------------------- */

TEST(a_file_appears_when_it_is_committed)
{
    struct scratch scratch = scratch_make();
    struct file file;
    const char *target = scratch_file(&scratch, "a");
    REQUIRE_OK(file_create(target, &file));
    CHECK_INT(scratch_count(&scratch, "a" PARTIAL), 1);
    CHECK(access(target, F_OK) != 0);
    CHECK_OK(file_resize(&file, 6));
    CHECK_OK(file_write(&file, 3, "def", 3));
    CHECK_OK(file_write(&file, 0, "abc", 3));
    CHECK_OK(file_write(&file, 9, NULL, 0));
    CHECK_OK(file_commit(&file));
    CHECK(scratch_has(target, "abcdef"));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 0);
    file_close(&file);
    CHECK(scratch_has(target, "abcdef"));
    scratch_remove(&scratch);
}

TEST(closing_without_a_commit_leaves_the_old_file)
{
    struct scratch scratch = scratch_make();
    struct file file;
    const char *target = scratch_file(&scratch, "a");
    REQUIRE(scratch_write(target, OLD_TEXT, strlen(OLD_TEXT)));
    REQUIRE_OK(file_create(target, &file));
    CHECK_OK(file_write(&file, 0, NEW_TEXT, strlen(NEW_TEXT)));
    file_close(&file);
    CHECK(scratch_has(target, OLD_TEXT));
    CHECK_INT(scratch_count(&scratch, ""), 1);
    CHECK_OK(save_text(target, NEW_TEXT));
    CHECK(scratch_has(target, NEW_TEXT));
    CHECK_INT(scratch_count(&scratch, ""), 1);
    scratch_remove(&scratch);
}

TEST(a_file_that_is_replaced_passes_its_permissions_on)
{
    struct scratch scratch = scratch_make();
    struct stat info;
    const char *target = scratch_file(&scratch, "a");
    mode_t mask = umask(027);
    CHECK_OK(save_text(target, OLD_TEXT));
    CHECK(stat(target, &info) == 0 && (info.st_mode & 07777) == 0640);
    CHECK_INT(chmod(target, 0604), 0);
    CHECK_OK(save_text(target, NEW_TEXT));
    CHECK(stat(target, &info) == 0 && (info.st_mode & 07777) == 0604);
    (void)umask(mask);
    scratch_remove(&scratch);
}

/* Relative paths hold, even if the program goes elsewhere meanwhile. */
static void save_relative(void *context)
{
    const struct scratch *scratch = context;
    struct file file;
    REQUIRE(chdir(scratch->path) == 0);
    CHECK_OK(save_text("a", OLD_TEXT));
    REQUIRE_OK(file_create("./b", &file));
    REQUIRE(chdir("/") == 0);
    CHECK_OK(file_write(&file, 0, NEW_TEXT, strlen(NEW_TEXT)));
    CHECK_OK(file_commit(&file));
    file_close(&file);
    CHECK(scratch_has(scratch_file(scratch, "a"), OLD_TEXT));
    CHECK(scratch_has(scratch_file(scratch, "b"), NEW_TEXT));
}

TEST(relative_paths)
{
    struct scratch scratch = scratch_make();
    test_in_child(save_relative, &scratch);
    scratch_remove(&scratch);
}

TEST(names_of_any_length)
{
    struct scratch scratch = scratch_make();
    char name[256];
    struct file file;
    /* Two-byte characters: the name may not be cut in the middle of one. */
    for (size_t i = 0; i < sizeof name - 1; i++) {
        name[i] = i % 2 == 0 ? '\xC3' : '\xA9';
    }
    for (size_t length = 225; length <= 255; length++) {
        name[length] = '\0';
        CHECK_OK(save_text(scratch_file(&scratch, name), NEW_TEXT));
        name[length] = '\xA9';
    }
    CHECK_INT(scratch_count(&scratch, ""), 31);
    char longer[260];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK_STATUS(file_create(scratch_file(&scratch, longer), &file), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("File name too long");
    scratch_remove(&scratch);
}

/* Links ------------------------------------------------------------------------------------------------ */

TEST(a_symbolic_link_is_followed_and_stays)
{
    struct scratch scratch = scratch_make();
    struct stat info;
    bool is_new;
    CHECK_OK(path_make_directory(scratch_file(&scratch, "inner"), &is_new));
    CHECK(is_new);
    REQUIRE(symlink("inner/one", scratch_file(&scratch, "one")) == 0);
    REQUIRE(symlink("../two", scratch_file(&scratch, "inner/one")) == 0);
    REQUIRE(symlink(scratch_file(&scratch, "one"), scratch_file(&scratch, "whole")) == 0);
    /* What it leads to does not exist yet, and does the second time. */
    for (int i = 0; i < 2; i++) {
        CHECK_OK(save_text(scratch_file(&scratch, "whole"), i == 0 ? OLD_TEXT : NEW_TEXT));
        CHECK(scratch_has(scratch_file(&scratch, "two"), i == 0 ? OLD_TEXT : NEW_TEXT));
    }
    CHECK(lstat(scratch_file(&scratch, "two"), &info) == 0 && S_ISREG(info.st_mode));
    CHECK(lstat(scratch_file(&scratch, "one"), &info) == 0 && S_ISLNK(info.st_mode));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 0);
    scratch_remove(&scratch);
}

TEST(links_that_lead_nowhere)
{
    struct scratch scratch = scratch_make();
    REQUIRE(symlink("b", scratch_file(&scratch, "a")) == 0);
    REQUIRE(symlink("a", scratch_file(&scratch, "b")) == 0);
    CHECK_STATUS(save_text(scratch_file(&scratch, "a"), NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("symbolic link: Too many levels of symbolic links");
    REQUIRE(symlink("no/such", scratch_file(&scratch, "c")) == 0);
    CHECK_STATUS(save_text(scratch_file(&scratch, "c"), NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("no/such: open its directory: No such file or directory");
    scratch_remove(&scratch);
}

/* What cannot be written ------------------------------------------------------------------------------ */

TEST(refuses_what_is_no_file)
{
    struct scratch scratch = scratch_make();
    CHECK_STATUS(save_text(scratch.path, NEW_TEXT), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is a directory, not a regular file");
    CHECK_STATUS(save_text("/dev/null", NEW_TEXT), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("/dev/null: is a device, pipe or socket");
    CHECK_STATUS(save_text("", NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_STATUS(save_text(scratch_file(&scratch, "no/"), NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_STATUS(save_text(scratch_file(&scratch, "no/such"), NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("no/such: open its directory: No such file");
    REQUIRE(scratch_write(scratch_file(&scratch, "file"), "", 0));
    CHECK_STATUS(save_text(scratch_file(&scratch, "file/in"), NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("Not a directory");
    scratch_remove(&scratch);
}

/* Whoever runs tests as root is somebody else for this one. */
static void write_without_rights(void *context)
{
    const struct scratch *scratch = context;
    const char *target = scratch_file(scratch, "a");
    if (geteuid() == 0) {
        REQUIRE(chmod(scratch->path, 0755) == 0 && setegid(65534) == 0 && seteuid(65534) == 0);
    } else {
        REQUIRE(chmod(scratch->path, 0500) == 0);
    }
    CHECK_STATUS(save_text(target, NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("create: Permission denied");
    CHECK(scratch_has(target, OLD_TEXT));
    CHECK_INT(scratch_count(scratch, ""), 1);
}

TEST(a_directory_without_rights)
{
    struct scratch scratch = scratch_make();
    REQUIRE(scratch_write(scratch_file(&scratch, "a"), OLD_TEXT, strlen(OLD_TEXT)));
    test_in_child(write_without_rights, &scratch);
    CHECK_INT(chmod(scratch.path, 0700), 0);
    scratch_remove(&scratch);
}

/* A real refusal in the middle: some bytes fit, no signal comes, the old file stays. */
static void write_beyond_the_limit(void *context)
{
    const struct scratch *scratch = context;
    const char *target = scratch_file(scratch, "a");
    struct rlimit limit;
    static const char large[5000] = "x";
    struct file file;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = 4000;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_STATUS(file_save(target, large, sizeof large), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("write of 5000 bytes at byte 0: File too large (RLIMIT_FSIZE");
    REQUIRE_OK(file_create(target, &file));
    CHECK_STATUS(file_resize(&file, 5000), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("set the size of 5000 bytes: File too large");
    file_close(&file);
    CHECK(scratch_has(target, OLD_TEXT));
    CHECK_INT(scratch_count(scratch, ""), 1);
}

TEST(a_limit_on_the_size_of_files)
{
    struct scratch scratch = scratch_make();
    REQUIRE(scratch_write(scratch_file(&scratch, "a"), OLD_TEXT, strlen(OLD_TEXT)));
    test_in_child(write_beyond_the_limit, &scratch);
    scratch_remove(&scratch);
}

TEST(long_paths_keep_the_reason_in_the_text)
{
    char path[700];
    memset(path, 'd', sizeof path);
    path[0] = '/';
    (void)snprintf(path + 600, 100, "/file");
    CHECK_STATUS(save_text(path, NEW_TEXT), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("...ddd");
    CHECK_ERROR_TEXT("d/file: ");
    CHECK_ERROR_TEXT("File name too long");
}

/* Several writers -------------------------------------------------------------------------------------- */

TEST(live_writers_of_one_target_do_not_disturb_each_other)
{
    struct scratch scratch = scratch_make();
    const char *target = scratch_file(&scratch, "a");
    struct file first;
    struct file second;
    REQUIRE_OK(file_create(target, &first));
    CHECK_OK(file_write(&first, 0, "first", 5));
    REQUIRE_OK(file_create(target, &second));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 2);
    CHECK_OK(file_write(&second, 0, "second", 6));
    CHECK_OK(file_commit(&second));
    CHECK(scratch_has(target, "second"));
    CHECK_OK(file_commit(&first));
    CHECK(scratch_has(target, "first"));
    file_close(&first);
    file_close(&second);
    CHECK_INT(scratch_count(&scratch, ""), 1);
    scratch_remove(&scratch);
}

TEST(what_dead_writers_left_is_removed)
{
    struct scratch scratch = scratch_make();
    struct file other;
    static const char *const left[] = {"a" PARTIAL "0123456789abcdef", "a" PARTIAL "ffffffffffffffff"};
    static const char *const not_ours[] = {"b" PARTIAL "0123456789abcdef", "a" PARTIAL "0123456789abcde",
                                           "a" PARTIAL "0123456789abcdeF", "a" PARTIAL "0123456789abcdef0"};
    for (size_t i = 0; i < 2; i++) {
        REQUIRE(scratch_write(scratch_file(&scratch, left[i]), "x", 1));
    }
    for (size_t i = 0; i < 4; i++) {
        REQUIRE(scratch_write(scratch_file(&scratch, not_ours[i]), "x", 1));
    }
    REQUIRE(mkdir(scratch_file(&scratch, "a" PARTIAL "00000000000000dd"), 0777) == 0);
    REQUIRE_OK(file_create(scratch_file(&scratch, "b2"), &other));
    CHECK_OK(save_text(scratch_file(&scratch, "a"), NEW_TEXT));
    /* The file, four that look alike, the directory, and that of the live writer. */
    CHECK_INT(scratch_count(&scratch, ""), 7);
    file_close(&other);
    scratch_remove(&scratch);
}

TEST(others_join_by_the_path)
{
    struct scratch scratch = scratch_make();
    const char *target = scratch_file(&scratch, "a");
    struct file creator;
    struct file joined;
    REQUIRE_OK(file_create(target, &creator));
    REQUIRE_OK(file_join(creator.path, &joined));
    CHECK_OK(file_write(&joined, 3, "def", 3));
    CHECK_OK(file_sync(&joined));
    file_close(&joined);
    CHECK_OK(file_write(&creator, 0, "abc", 3));
    CHECK_OK(file_commit(&creator));
    file_close(&creator);
    CHECK(scratch_has(target, "abcdef"));
    CHECK_STATUS(file_join(scratch_file(&scratch, "b"), &joined), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("b: open: No such file");
    CHECK_STATUS(file_join("/dev/null", &joined), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is not a regular file");
    scratch_remove(&scratch);
}

/* Those that joined keep the file when the creator has died. */
TEST(a_file_with_joined_writers_is_not_removed)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "a" PARTIAL "0123456789abcdef");
    struct file joined;
    REQUIRE(scratch_write(path, "x", 1));
    REQUIRE_OK(file_join(path, &joined));
    CHECK_OK(save_text(scratch_file(&scratch, "a"), NEW_TEXT));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 1);
    file_close(&joined);
    CHECK_OK(save_text(scratch_file(&scratch, "a"), NEW_TEXT));
    CHECK_INT(scratch_count(&scratch, PARTIAL), 0);
    scratch_remove(&scratch);
}

static void close_in_child(void *context)
{
    file_close(context);
}

TEST(a_forked_child_removes_nothing)
{
    struct scratch scratch = scratch_make();
    struct file file;
    REQUIRE_OK(file_create(scratch_file(&scratch, "a"), &file));
    CHECK_OK(file_write(&file, 0, NEW_TEXT, strlen(NEW_TEXT)));
    struct file copy = file;
    pid_t child = fork();
    if (child == 0) {
        close_in_child(&copy);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    CHECK_OK(file_commit(&file));
    file_close(&file);
    CHECK(scratch_has(scratch_file(&scratch, "a"), NEW_TEXT));
    scratch_remove(&scratch);
}

/* Directories ------------------------------------------------------------------------------------------ */

TEST(directories)
{
    struct scratch scratch = scratch_make();
    bool is_new = false;
    CHECK_OK(path_make_directory(scratch_file(&scratch, "d/"), &is_new));
    CHECK(is_new);
    CHECK_OK(path_make_directory(scratch_file(&scratch, "d"), &is_new));
    CHECK(!is_new);
    CHECK_STATUS(path_make_directory(scratch_file(&scratch, "no/such"), &is_new), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("no/such: mkdir: No such file");
    CHECK_OK(save_text(scratch_file(&scratch, "d/a"), NEW_TEXT));
    CHECK_STATUS(path_make_directory(scratch_file(&scratch, "d/a"), &is_new), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("d/a: mkdir: File exists");
    CHECK_OK(path_rename(scratch_file(&scratch, "d"), scratch_file(&scratch, "e"), NULL));
    CHECK(scratch_has(scratch_file(&scratch, "e/a"), NEW_TEXT));
    CHECK_STATUS(path_rename(scratch_file(&scratch, "d"), scratch_file(&scratch, "f"), NULL),
                 SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("f: rename: No such file");
    CHECK_OK(path_remove_tree(scratch_file(&scratch, "e/a")));
    CHECK_OK(path_remove_tree(scratch_file(&scratch, "e/a")));
    CHECK_STATUS(path_remove_tree(scratch_file(&scratch, "e/")), SHOAL_ERR_SYSTEM);
    CHECK_OK(path_remove_tree(scratch_file(&scratch, "e")));
    CHECK_OK(path_remove_tree(scratch_file(&scratch, "e")));
    CHECK_OK(path_sync_parent(scratch_file(&scratch, "e")));
    CHECK_INT(scratch_count(&scratch, ""), 0);
    scratch_remove(&scratch);
}

/* Faults ----------------------------------------------------------------------------------------------- */

static shoal_status save_once(void *context)
{
    return save_text(scratch_file(context, "a"), NEW_TEXT);
}

TEST(survives_failing_allocations)
{
    struct scratch scratch = scratch_make();
    CHECK(test_sweep_allocations(save_once, &scratch) >= 2);
    CHECK_INT(scratch_count(&scratch, ""), 1);
    scratch_remove(&scratch);
}

#ifdef SHOAL_FAIL_POINTS

static void put_old(void *context)
{
    CHECK(scratch_write(scratch_file(context, "a"), OLD_TEXT, strlen(OLD_TEXT)));
}

static void check_whole(void *context, bool is_done)
{
    const char *target = scratch_file(context, "a");
    CHECK(scratch_has(target, NEW_TEXT) || (!is_done && scratch_has(target, OLD_TEXT)));
    /* The next one that gets through leaves nothing else. */
    fail_point_arm(0, NULL, NULL);
    CHECK_OK(save_once(context));
    CHECK(scratch_has(target, NEW_TEXT));
    CHECK_INT(scratch_count(context, ""), 1);
}

TEST(killed_at_every_request)
{
    struct scratch scratch = scratch_make();
    struct file_faults faults = {
        .prepare = put_old, .body = save_once, .check = check_whole, .context = &scratch};
    /* create, write, fsync, rename, fsync of the directory */
    CHECK_INT(file_faults_kill(&faults), 5);
    scratch_remove(&scratch);
}

TEST(refused_at_every_request)
{
    struct scratch scratch = scratch_make();
    struct file_faults faults = {
        .prepare = put_old, .body = save_once, .check = check_whole, .context = &scratch};
    CHECK_INT(file_faults_refuse(&faults, ENOSPC), 5);
    CHECK_INT(file_faults_refuse(&faults, EIO), 5);
    scratch_remove(&scratch);
}

/* What is left of a dead writer is removed first, and that may be disturbed, too. */
static void put_old_and_left(void *context)
{
    put_old(context);
    CHECK(scratch_write(scratch_file(context, "a" PARTIAL "0123456789abcdef"), "x", 1));
}

TEST(disturbed_while_removing_what_was_left)
{
    struct scratch scratch = scratch_make();
    struct file_faults faults = {
        .prepare = put_old_and_left, .body = save_once, .check = check_whole, .context = &scratch};
    CHECK_INT(file_faults_kill(&faults), 6);
    CHECK_INT(file_faults_refuse(&faults, EACCES), 6);
    scratch_remove(&scratch);
}

/* Killing a process does not show what a power failure would: data that is renamed before it is durable. The order
   does. */
static shoal_status note_name(void *context, const char *name)
{
    char *names = context;
    size_t length = strlen(names);
    (void)snprintf(names + length, 200 - length, "%s,", name);
    return SHOAL_OK;
}

TEST(data_is_durable_before_its_name)
{
    struct scratch scratch = scratch_make();
    char names[200] = "";
    for (uint64_t number = 1; number <= 5; number++) {
        fail_point_arm(number, note_name, names);
        CHECK_OK(save_once(&scratch));
    }
    fail_point_arm(0, NULL, NULL);
    CHECK_STRING(names, "create,write,fsync,rename,sync directory,");
    scratch_remove(&scratch);
}

static void prepare_directory(void *context)
{
    CHECK_OK(path_remove_tree(scratch_file(context, "e")));
    CHECK_OK(path_remove_tree(scratch_file(context, "d")));
    CHECK_OK(path_remove_tree(scratch_file(context, "f")));
}

static shoal_status make_and_rename(void *context)
{
    bool is_new;
    TRY(path_make_directory(scratch_file(context, "d"), &is_new));
    TRY(path_rename(scratch_file(context, "d"), scratch_file(context, "e"), NULL));
    TRY(path_make_directory(scratch_file(context, "f"), &is_new));
    return path_remove_tree(scratch_file(context, "f"));
}

static void check_directory(void *context, bool is_done)
{
    CHECK(!is_done || access(scratch_file(context, "e"), F_OK) == 0);
}

TEST(directories_refused_at_every_request)
{
    struct scratch scratch = scratch_make();
    struct file_faults faults = {
        .prepare = prepare_directory, .body = make_and_rename, .check = check_directory, .context = &scratch};
    CHECK_INT(file_faults_refuse(&faults, ENOSPC), 7);
    CHECK_INT(file_faults_kill(&faults), 7);
    scratch_remove(&scratch);
}

#endif
