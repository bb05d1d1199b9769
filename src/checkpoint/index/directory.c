/* SPDX-License-Identifier: MIT */
/* Directories of checkpoints: see directory.h. */
#include "checkpoint/index/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "checkpoint/index/index.h"
#include "checkpoint/io/path.h"

#define LOCK_NAME ".lock"
#define SAVING ".saving-"
#define REMOVING ".removing-"
#define REPLACED ".replaced-"
#define STEP "step-"

/* Names ------------------------------------------------------------------------------------------------ */

#define STEP_NAME_BYTES 32

static void format_step(char name[STEP_NAME_BYTES], int64_t step)
{
    (void)snprintf(name, STEP_NAME_BYTES, STEP "%09" PRId64, step);
}

/* Returns -1 if it is not the name of a checkpoint. */
static int64_t parse_step(const char *name)
{
    char again[STEP_NAME_BYTES];
    if (strncmp(name, STEP, strlen(STEP)) != 0) {
        return -1;
    }
    errno = 0;
    long long step = strtoll(name + strlen(STEP), NULL, 10);
    format_step(again, step);
    return step >= 0 && errno == 0 && strcmp(name, again) == 0 ? step : -1;
}

static bool begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

int64_t directory_step(const char *path)
{
    const char *name = path_name(path);
    return parse_step(name + (begins(name, REPLACED) ? strlen(REPLACED) : 0));
}

/* DIR/PREFIXname. */
static char *join(const char *directory, const char *prefix, const char *name)
{
    size_t bytes = strlen(directory) + strlen(prefix) + strlen(name) + 2;
    char *path = mem_alloc(bytes);
    if (path) {
        (void)snprintf(path, bytes, "%s/%s%s", directory, prefix, name);
    }
    return path;
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static bool has_file(const char *directory, const char *name)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length < (int)sizeof path && access(path, F_OK) == 0;
}

/* Whether it has an index, which is written last, or is a checkpoint of another tool, which has none. */
static bool is_complete(const char *path)
{
    return has_file(path, INDEX_NAME) || has_file(path, "model.safetensors") ||
           has_file(path, "model.safetensors.index.json");
}

/* What is in a directory --------------------------------------------------------------------------------- */

struct entry {
    char name[NAME_MAX + 1];
    int64_t step;     /* -1 if it is not a checkpoint */
    bool is_replaced; /* its name begins with REPLACED */
};

struct entries {
    struct entry *entries;
    size_t n_entries;
    size_t capacity;
};

static shoal_status add_entry(struct entries *list, const char *name)
{
    bool is_replaced = begins(name, REPLACED);
    int64_t step = parse_step(name + (is_replaced ? strlen(REPLACED) : 0));
    if (step < 0 && !begins(name, SAVING) && !begins(name, REMOVING)) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&list->entries, &list->capacity, list->n_entries + 1, sizeof(list->entries[0])));
    struct entry *entry = &list->entries[list->n_entries++];
    *entry = (struct entry){.step = step, .is_replaced = is_replaced};
    (void)snprintf(entry->name, sizeof entry->name, "%s", name);
    return SHOAL_OK;
}

/* By step; a replaced checkpoint comes before the other one of its step. */
static int compare_entries(const void *a, const void *b)
{
    const struct entry *left = a;
    const struct entry *right = b;
    if (left->step != right->step) {
        return left->step < right->step ? -1 : 1;
    }
    if (left->is_replaced != right->is_replaced) {
        return left->is_replaced ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

/* Lists the entries with names of this format, sorted; none if there is no such directory. Freed with
   mem_free(entries_out->entries), also after an error. */
static shoal_status list_entries(const char *path, struct entries *entries_out)
{
    *entries_out = (struct entries){0};
    DIR *directory = opendir(path);
    if (!directory) {
        return errno == ENOENT ? SHOAL_OK : path_fail(path, "open", errno);
    }
    shoal_status status = SHOAL_OK;
    for (struct dirent *entry; status == SHOAL_OK && (entry = readdir(directory));) {
        status = add_entry(entries_out, entry->d_name);
    }
    (void)closedir(directory);
    if (entries_out->n_entries > 1) {
        qsort(entries_out->entries, entries_out->n_entries, sizeof(entries_out->entries[0]), compare_entries);
    }
    return status;
}

/* Beginning ---------------------------------------------------------------------------------------------- */

static shoal_status make_directories(const char *directory)
{
    char path[PATH_MAX];
    bool is_new;
    size_t length = strlen(directory);
    if (length == 0 || length >= sizeof path) {
        return path_fail(directory, "mkdir", length == 0 ? ENOENT : ENAMETOOLONG);
    }
    memcpy(path, directory, length + 1);
    for (size_t end = 1; end <= length; end++) {
        bool is_component = path[end - 1] != '/' && (path[end] == '/' || path[end] == '\0');
        if (!is_component) {
            continue;
        }
        path[end] = '\0';
        if (access(path, F_OK) != 0) {
            TRY(path_make_directory(path, &is_new));
        }
        path[end] = directory[end];
    }
    return SHOAL_OK;
}

/* On a file system without locks, other jobs have none either: the save goes on, but removes nothing that others
   left. */
static shoal_status take_lock(struct directory_save *save, bool *is_locked_out)
{
    char *path = join(save->directory, "", LOCK_NAME);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    save->lock_fd = path_create_file(AT_FDCWD, path, 0);
    if (save->lock_fd < 0) {
        shoal_status status = path_fail(path, "create", errno);
        mem_free(path);
        return status;
    }
    mem_free(path);
    *is_locked_out = flock(save->lock_fd, LOCK_EX | LOCK_NB) == 0;
    if (!*is_locked_out && errno == EWOULDBLOCK) {
        return error_set(SHOAL_ERR_STATE, "%.240s: another save to this directory is under way (it holds %s)",
                         save->directory, LOCK_NAME);
    }
    return SHOAL_OK;
}

/* A replaced checkpoint gets its name back if the new one never took its place; otherwise it is removed. */
static shoal_status resolve_replaced(const struct directory_save *save, const struct entry *entry)
{
    char *path = join(save->directory, "", entry->name);
    char *target = join(save->directory, "", entry->name + strlen(REPLACED));
    shoal_status status = path && target ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        if (exists(target)) {
            (void)path_remove_tree(path);
        } else {
            status = path_rename(path, target, NULL);
        }
    }
    mem_free(path);
    mem_free(target);
    return status;
}

/* What cannot be removed stays; it does no harm. */
static void remove_entry(const char *directory, const char *name)
{
    char *path = join(directory, "", name);
    if (path) {
        (void)path_remove_tree(path);
        mem_free(path);
    }
}

static shoal_status clean(const struct directory_save *save)
{
    struct entries list;
    shoal_status status = list_entries(save->directory, &list);
    for (size_t i = 0; i < list.n_entries && status == SHOAL_OK; i++) {
        const struct entry *entry = &list.entries[i];
        if (entry->is_replaced) {
            status = resolve_replaced(save, entry);
        } else if (entry->step < 0) {
            remove_entry(save->directory, entry->name);
        }
    }
    mem_free(list.entries);
    if (status == SHOAL_OK) {
        error_clear(); /* of what could not be removed */
    }
    return status;
}

static shoal_status begin(struct directory_save *save, int64_t step, const char *id, bool replaces)
{
    char name[STEP_NAME_BYTES];
    bool is_locked = false;
    bool is_new = false;
    format_step(name, step);
    char *target = join(save->directory, "", name);
    save->target = target;
    if (!target) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(make_directories(save->directory));
    TRY(take_lock(save, &is_locked));
    if (is_locked) {
        TRY(clean(save));
    }
    if (!replaces && exists(target)) {
        return error_set(SHOAL_ERR_STATE, "%.240s: exists already; set options.replaces to replace it",
                         target);
    }
    char *saving = join(save->directory, SAVING, id);
    if (!saving) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = path_make_directory(saving, &is_new);
    if (status == SHOAL_OK && !is_new) {
        status = path_fail(saving, "mkdir", EEXIST);
    }
    if (status != SHOAL_OK) {
        mem_free(saving);
        return status;
    }
    save->saving = saving;
    return SHOAL_OK;
}

shoal_status directory_save_begin(const char *directory, int64_t step, const char *id, bool replaces,
                                  struct directory_save *save_out)
{
    struct directory_save save = DIRECTORY_SAVE_INIT;
    save.step = step;
    save.directory = mem_copy_string(directory);
    if (!save.directory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = begin(&save, step, id, replaces);
    if (status != SHOAL_OK) {
        directory_save_end(&save);
        return status;
    }
    *save_out = save;
    return SHOAL_OK;
}

/* Moving into place -------------------------------------------------------------------------------------- */

static shoal_status sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return path_fail(path, "open", errno);
    }
    shoal_status status = path_sync(fd, path);
    (void)close(fd);
    return status;
}

/* Keeps the error text of a save that has failed already. */
static shoal_status call_quietly(shoal_status (*call)(const char *path), const char *path)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status status = call(path);
    if (status != SHOAL_OK && text[0] != '\0') {
        (void)error_set(status, "%s", text);
    }
    return status;
}

/*
 * Undoes a move that could not be made durable, so that a failed save leaves everything as it was. Returns whether the
 * names are back. If that is not durable either, `saving` must not be removed (is_moved stays true): after a crash it
 * could have the name of a checkpoint. The next save removes it.
 */
static bool take_back(struct directory_save *save, bool is_exchanged)
{
    int result =
        is_exchanged ? os_exchange_names(save->saving, save->target) : rename(save->target, save->saving);
    if (result == 0 && call_quietly(path_sync_parent, save->target) == SHOAL_OK) {
        save->is_moved = false;
    }
    return result == 0;
}

/* For file systems that cannot exchange names: renames the old checkpoint first, to a name that directory_find
   knows. */
static shoal_status replace_in_two_steps(struct directory_save *save)
{
    bool is_aside = false;
    bool is_back = true;
    char *aside = join(save->directory, REPLACED, path_name(save->target));
    if (!aside) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = path_rename(save->target, aside, &is_aside);
    if (status == SHOAL_OK) {
        status = path_rename(save->saving, save->target, &save->is_moved);
    }
    if (status != SHOAL_OK && save->is_moved) {
        is_back = take_back(save, /*is_exchanged=*/false);
    }
    if (status != SHOAL_OK && is_aside && is_back) {
        (void)rename(aside, save->target); /* if this also fails, it is found under its other name */
    } else if (status == SHOAL_OK) {
        (void)path_remove_tree(aside);
    }
    mem_free(aside);
    return status;
}

static shoal_status move_into_place(struct directory_save *save, bool replaces)
{
    bool is_possible = true;
    bool is_exchange = replaces && exists(save->target);
    shoal_status status = is_exchange
                              ? path_exchange(save->saving, save->target, &is_possible, &save->is_moved)
                              : path_rename(save->saving, save->target, &save->is_moved);
    if (!is_possible) {
        return replace_in_two_steps(save);
    }
    if (status != SHOAL_OK && save->is_moved) {
        (void)take_back(save, is_exchange);
    } else if (status == SHOAL_OK && is_exchange) {
        (void)path_remove_tree(save->saving); /* the old one */
    }
    return status;
}

/* Renames an old checkpoint before it removes it, so that nobody finds half of it. */
static void remove_old(const struct directory_save *save, const struct entry *entry)
{
    char *path = join(save->directory, "", entry->name);
    char *removing = join(save->directory, REMOVING, entry->name);
    if (path && removing && path_rename(path, removing, NULL) == SHOAL_OK) {
        (void)path_remove_tree(removing);
    }
    mem_free(path);
    mem_free(removing);
}

/* Removes checkpoints of earlier steps; the newest ones stay, and this step counts among them. Incomplete checkpoints
   are not touched, and neither are later steps: this run may have started again from an earlier step than another one
   had reached. A symbolic link does not count: it may point to a checkpoint that is removed here. */
static void remove_old_ones(const struct directory_save *save, const struct directory_keep *keep)
{
    struct entries list;
    int n_kept = 1;
    shoal_status status = list_entries(save->directory, &list);
    for (size_t i = list.n_entries; i-- > 0 && status == SHOAL_OK;) {
        const struct entry *entry = &list.entries[i];
        char *path = join(save->directory, "", entry->name);
        bool counts =
            path && entry->step >= 0 && entry->step < save->step && !entry->is_replaced && is_complete(path);
        if (counts && n_kept >= keep->count) {
            remove_old(save, entry);
        } else if (counts) {
            n_kept += !is_link(path) && (!keep->is_damaged || !keep->is_damaged(path));
        }
        mem_free(path);
    }
    mem_free(list.entries);
}

shoal_status directory_save_commit(struct directory_save *save, bool replaces,
                                   const struct directory_keep *keep)
{
    TRY(sync_directory(save->saving));
    TRY(move_into_place(save, replaces));
    if (keep->count > 0) {
        remove_old_ones(save, keep);
    }
    (void)sync_directory(save->directory);
    error_clear();
    return SHOAL_OK;
}

void directory_save_end(struct directory_save *save)
{
    if (save->saving && !save->is_moved) {
        (void)call_quietly(path_remove_tree, save->saving);
    }
    if (save->lock_fd >= 0) {
        (void)flock(save->lock_fd, LOCK_UN); /* children that were forked meanwhile would keep it otherwise */
        (void)close(save->lock_fd);
    }
    mem_free(save->directory);
    mem_free(save->saving);
    mem_free(save->target);
    *save = (struct directory_save)DIRECTORY_SAVE_INIT;
}

/* Finding ------------------------------------------------------------------------------------------------ */

static shoal_status is_complete_entry(const char *directory, const struct entry *entry, bool *is_complete_out)
{
    *is_complete_out = false;
    if (entry->step < 0) {
        return SHOAL_OK;
    }
    char *path = join(directory, "", entry->name);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *is_complete_out = is_complete(path);
    mem_free(path);
    return SHOAL_OK;
}

/* Keeps the complete checkpoints of the list; if there are two of a step, the last one. */
static shoal_status keep_complete(const char *directory, struct entries *list)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < list->n_entries; i++) {
        bool is_kept;
        TRY(is_complete_entry(directory, &list->entries[i], &is_kept));
        if (!is_kept) {
            continue;
        }
        n_kept -= n_kept > 0 && list->entries[n_kept - 1].step == list->entries[i].step;
        if (n_kept != i) {
            list->entries[n_kept] = list->entries[i];
        }
        n_kept++;
    }
    list->n_entries = n_kept;
    return SHOAL_OK;
}

/* Freed with mem_free(entries_out->entries), also after an error. */
static shoal_status list_complete(const char *directory, struct entries *entries_out)
{
    TRY(list_entries(directory, entries_out));
    return keep_complete(directory, entries_out);
}

static shoal_status copy_steps(const struct entries *list, int64_t **steps_out)
{
    int64_t *steps = mem_alloc_zeroed(list->n_entries + 1, sizeof(steps[0]));
    if (!steps) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < list->n_entries; i++) {
        steps[i] = list->entries[i].step;
    }
    *steps_out = steps;
    return SHOAL_OK;
}

shoal_status directory_list(const char *directory, int64_t **steps_out, size_t *n_steps_out)
{
    struct entries list;
    shoal_status status = list_complete(directory, &list);
    if (status == SHOAL_OK) {
        status = copy_steps(&list, steps_out);
    }
    if (status == SHOAL_OK) {
        *n_steps_out = list.n_entries;
    }
    mem_free(list.entries);
    return status;
}

static shoal_status find(const char *directory, const struct entries *list, int64_t least, int64_t most,
                         char **path_out, int64_t *step_out)
{
    char *path = NULL;
    int64_t step = -1;
    size_t number = list->n_entries;
    while (number > 0 && list->entries[number - 1].step > most) {
        number--;
    }
    bool is_inside = number > 0 && list->entries[number - 1].step >= least;
    bool is_itself = list->n_entries == 0 && is_complete(directory);
    if (is_inside) {
        step = list->entries[number - 1].step;
        path = join(directory, "", list->entries[number - 1].name);
    } else if (is_itself) {
        path = mem_copy_string(directory);
    }
    if (!path && (is_inside || is_itself)) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *path_out = path;
    *step_out = step;
    return SHOAL_OK;
}

shoal_status directory_find(const char *directory, int64_t least, int64_t most, char **path_out,
                            int64_t *step_out)
{
    struct entries list;
    shoal_status status = list_complete(directory, &list);
    if (status == SHOAL_OK) {
        status = find(directory, &list, least, most, path_out, step_out);
    }
    mem_free(list.entries);
    return status;
}
