/* SPDX-License-Identifier: MIT */
/*
 * Loads checkpoints, in phases. At the end of each, all ranks agree that it succeeded (agree.h).
 *
 *   arguments   compares the arguments of all ranks
 *   finding     the first rank chooses the checkpoint, and sends its path and its index
 *   looking     every rank parses the index, matches the names and checks all bytes that it will need. If files are
 *               damaged and options.skips_damaged is set, finding starts again, with the checkpoint before.
 *   preparing   checks whether parts can be written; then they count as changed
 *   reading     reads into place
 *   ending      sets numbers and strings, and calls the functions of shoal_items_on_loaded
 *
 * Nothing is changed on any rank before all parts can be written. From "reading" on, an error leaves values undefined,
 * and says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "checkpoint/index/directory.h"
#include "checkpoint/io/file.h"
#include "checkpoint/index/index.h"
#include "checkpoint/items/items.h"
#include "checkpoint/ranks/copies.h"
#include "checkpoint/ranks/list.h"
#include "checkpoint/load/foreign.h"
#include "checkpoint/load/match.h"
#include "checkpoint/load/read.h"
#include "checkpoint/io/path.h"
#include "checkpoint/index/progress.h"
#include "shoal/checkpoint.h"

/* No index is this long. The limit keeps a wrong file size from using all memory. */
#define MAX_INDEX_BYTES ((uint64_t)4 << 30)

/* Which file tells what a checkpoint contains. */
enum source {
    SOURCE_NONE,
    SOURCE_SHOAL,        /* INDEX_NAME */
    SOURCE_FOREIGN,      /* FOREIGN_INDEX_NAME */
    SOURCE_FOREIGN_FILE, /* FOREIGN_FILE_NAME, which needs no index */
};

/* A checkpoint that was found. The first rank sends it in one message: source, path with its zero, text. */
struct found {
    enum source source;
    const char *path;
    const char *text; /* of the index */
    size_t text_bytes;
    void *memory; /* of all of that */
};

struct load {
    shoal_group *group;
    const char *directory;
    shoal_items *items;  /* those of the program, or `spread` */
    shoal_items *spread; /* if ranks have values of their own (ranks/copies.h); NULL otherwise */
    const shoal_items *given;
    shoal_checkpoint_load_options options;
    struct found found;
    int64_t step; /* first rank only: that of the directory's name; -1 for the directory itself */
    /* This rank has failed because of files of the checkpoint; another checkpoint may be readable. */
    bool has_damage;
    size_t n_damaged;                   /* checkpoints that were skipped */
    char damage_text[ERROR_TEXT_BYTES]; /* of the newest of these */
    struct checkpoint_index index;
    struct load_match match;
    struct load_reader reader;
};

/* Arguments -------------------------------------------------------------------------------------------- */

static shoal_status check_arguments(struct load *load, const shoal_checkpoint_load_options *options,
                                    const shoal_checkpoint_info *info_out)
{
    if (!load->directory || !load->items) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", load->directory ? "items" : "directory");
    }
    if (load->directory[0] == '\0') {
        return error_set(SHOAL_ERR_INVALID, "directory is empty");
    }
    if (options) {
        TRY(struct_size_read("options", options, sizeof(size_t), &load->options, sizeof(load->options)));
    }
    if (load->options.has_step && load->options.step < 0) {
        return error_set(SHOAL_ERR_INVALID, "options.step: %" PRId64 " is negative", load->options.step);
    }
    if (load->options.has_step && load->options.skips_damaged) {
        return error_set(SHOAL_ERR_INVALID,
                         "options: skips_damaged is set, but has_step asks for step %" PRId64,
                         load->options.step);
    }
    TRY(progress_check(&load->options.progress));
    if (info_out) {
        /* Checks the struct before anything is changed. */
        shoal_checkpoint_info trial = SHOAL_CHECKPOINT_INFO_INIT;
        trial.struct_size = info_out->struct_size < sizeof(trial) ? info_out->struct_size : sizeof(trial);
        const shoal_checkpoint_info zeros = {0};
        TRY(struct_size_write("info_out", &trial, sizeof(size_t), &zeros, sizeof(zeros)));
    }
    return SHOAL_OK;
}

static shoal_status compare_options(struct load *load)
{
    const shoal_checkpoint_load_options *options = &load->options;
    const struct agree_number numbers[] = {{"options.has_step", options->has_step},
                                           {"options.step", options->has_step ? options->step : 0},
                                           {"options.allows_missing", options->allows_missing},
                                           {"options.allows_unexpected", options->allows_unexpected},
                                           {"options.casts", options->casts},
                                           {"options.skips_sums", options->skips_sums},
                                           {"options.progress.n_ranks", options->progress.n_ranks},
                                           {"options.progress.batch", options->progress.batch},
                                           {"options.progress.n_accumulate", options->progress.n_accumulate},
                                           {"options.allows_other_batch", options->allows_other_batch},
                                           {"options.allows_none", options->allows_none},
                                           {"options.skips_damaged", options->skips_damaged}};
    TRY(agree_on_numbers(load->group, numbers, sizeof numbers / sizeof numbers[0]));
    return agree_on_string(load->group, "options.section", options->section);
}

static shoal_status compare_arguments(struct load *load)
{
    TRY(agree_on_string(load->group, "directory", load->directory));
    TRY(compare_options(load));
    TRY(copies_make(load->group, load->given, &load->spread));
    load->items = load->spread ? load->spread : load->items;
    return list_agree(load->group, load->items);
}

/* Notes failures that are caused by the files of the checkpoint. Missing memory or a later version is not damage. */
static shoal_status note_damage(struct load *load, shoal_status status)
{
    load->has_damage = status == SHOAL_ERR_INVALID || status == SHOAL_ERR_SYSTEM;
    return status;
}

/* Finding ---------------------------------------------------------------------------------------------- */

static const char *source_name(enum source source)
{
    static const char *const names[] = {[SOURCE_SHOAL] = INDEX_NAME,
                                        [SOURCE_FOREIGN] = FOREIGN_INDEX_NAME,
                                        [SOURCE_FOREIGN_FILE] = FOREIGN_FILE_NAME};
    return names[source];
}

static bool has_file(const char *path, const char *name)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_there = fd >= 0 && fstatat(fd, name, &info, 0) == 0;
    (void)(fd < 0 ? 0 : close(fd));
    return is_there;
}

/* Opens a file in a directory, even if the whole path is longer than the system allows. Returns -1 if it fails; errno
   says why. */
static int open_file(const char *path, const char *name)
{
    int directory_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = directory_fd < 0 ? -1 : openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int code = errno;
    (void)(directory_fd < 0 ? 0 : close(directory_fd));
    errno = code;
    return fd;
}

static enum source find_source(const char *path)
{
    enum source source = SOURCE_SHOAL;
    while (source < SOURCE_FOREIGN_FILE && !has_file(path, source_name(source))) {
        source++;
    }
    return source;
}

/* Reads all of it behind `kept` bytes of *memory_out. */
static shoal_status read_text(const char *file_path, int fd, size_t kept, char **memory_out,
                              size_t *bytes_out)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return path_fail(file_path, "stat", errno);
    }
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size > MAX_INDEX_BYTES) {
        return error_set(SHOAL_ERR_INVALID, "%.240s: is not a regular file, or of %" PRId64 " bytes",
                         file_path, (int64_t)info.st_size);
    }
    char *memory = mem_alloc(kept + (size_t)info.st_size + 1);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = file_read_at(fd, 0, memory + kept, (size_t)info.st_size);
    if (status != SHOAL_OK) {
        mem_free(memory);
        return error_prefix(status, "%.240s", file_path);
    }
    *memory_out = memory;
    *bytes_out = kept + (size_t)info.st_size;
    return SHOAL_OK;
}

/* The message: one character of the source, the path with its zero, and the text. */
static shoal_status make_message(const char *path, char **message_out, size_t *bytes_out)
{
    enum source source = find_source(path);
    char file_path[PATH_MAX + NAME_MAX]; /* for texts */
    char *message = NULL;
    size_t kept = 1 + strlen(path) + 1;
    size_t bytes = kept;
    if (source == SOURCE_FOREIGN_FILE) {
        message = mem_alloc(kept);
        if (!message) {
            return SHOAL_ERR_NO_MEMORY;
        }
    } else {
        (void)snprintf(file_path, sizeof file_path, "%s/%s", path, source_name(source));
        int fd = open_file(path, source_name(source));
        if (fd < 0) {
            return path_fail(file_path, "open", errno);
        }
        shoal_status status = read_text(file_path, fd, kept, &message, &bytes);
        (void)close(fd);
        TRY(status);
    }
    message[0] = (char)source;
    memcpy(message + 1, path, kept - 1);
    *message_out = message;
    *bytes_out = bytes;
    return SHOAL_OK;
}

static struct found read_message(void *message, size_t bytes)
{
    struct found found = {.memory = message};
    found.source = (enum source)((const char *)message)[0];
    found.path = (const char *)message + 1;
    size_t kept = 1 + strlen(found.path) + 1;
    found.text = found.source == SOURCE_FOREIGN_FILE || found.source == SOURCE_NONE
                     ? NULL
                     : (const char *)message + kept;
    found.text_bytes = bytes - kept;
    return found;
}

/* For the case that there is no checkpoint, and that is allowed: an empty path. */
static shoal_status make_empty_message(char **message_out, size_t *bytes_out)
{
    *bytes_out = 2;
    *message_out = mem_alloc_zeroed(1, *bytes_out);
    return *message_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status report_none(const struct load *load)
{
    char of_step[40] = "";
    if (load->n_damaged > 0) {
        return error_set(SHOAL_ERR_INVALID, "%.120s: only %zu damaged checkpoint%s found; the newest: %s",
                         load->directory, load->n_damaged, load->n_damaged == 1 ? "" : "s",
                         load->damage_text);
    }
    if (load->options.has_step) {
        (void)snprintf(of_step, sizeof of_step, " of step %" PRId64, load->options.step);
    }
    return error_set(SHOAL_ERR_STATE, "%.300s: there is no complete checkpoint%s", load->directory, of_step);
}

/* Finds the checkpoint that was asked for, or the newest, or the newest before the damaged ones; NULL if there is
   none. */
static shoal_status find_path(struct load *load, char **path_out)
{
    int64_t least = load->options.has_step ? load->options.step : 0;
    int64_t most = load->options.has_step ? load->options.step : INT64_MAX;
    *path_out = NULL;
    if (load->n_damaged > 0 && load->step <= 0) {
        return SHOAL_OK;
    }
    return directory_find(load->directory, least, load->n_damaged > 0 ? load->step - 1 : most, path_out,
                          &load->step);
}

static shoal_status find_message(struct load *load, char **message_out, size_t *bytes_out)
{
    char *path = NULL;
    TRY(find_path(load, &path));
    if (!path) {
        return load->n_damaged == 0 && load->options.allows_none ? make_empty_message(message_out, bytes_out)
                                                                 : report_none(load);
    }
    shoal_status status = note_damage(load, make_message(path, message_out, bytes_out));
    mem_free(path);
    return status;
}

/* The source is SOURCE_NONE if there is no checkpoint and that is allowed. */
static shoal_status find(struct load *load, shoal_status *own_out)
{
    char *message = NULL;
    size_t bytes = 0;
    void *received = NULL;
    if (shoal_group_rank(load->group) == 0) {
        *own_out = find_message(load, &message, &bytes);
    }
    shoal_status status = agree(load->group, "finding a checkpoint", *own_out);
    if (status == SHOAL_OK) {
        status = agree_receive(load->group, message, bytes, &received, &bytes);
    }
    mem_free(message);
    TRY(status);
    load->found = read_message(received, bytes);
    return SHOAL_OK;
}

/* Looking ---------------------------------------------------------------------------------------------- */

static shoal_status read_index(const struct found *found, struct checkpoint_index *index_out)
{
    if (found->source != SOURCE_SHOAL) {
        TRY(load_foreign_read(found->path, found->text, found->text_bytes, index_out));
        int64_t step = directory_step(found->path);
        index_out->step = step >= 0 ? step : 0;
        return SHOAL_OK;
    }
    shoal_status status = index_read(found->text, found->text_bytes, index_out);
    return status == SHOAL_OK ? status : error_prefix(status, "%.240s/" INDEX_NAME, found->path);
}

static void free_index(const struct found *found, struct checkpoint_index *index)
{
    if (found->source == SOURCE_SHOAL) {
        index_free(index);
    } else {
        load_foreign_free(index);
    }
}

static shoal_status check_index(const struct load *load)
{
    const shoal_checkpoint_load_options *options = &load->options;
    if (load->found.source != SOURCE_SHOAL && options->section &&
        strcmp(options->section, SHOAL_SECTION_MODEL) != 0) {
        return error_set(
            SHOAL_ERR_INVALID,
            "options.section: \"%.64s\", but %.240s was written by another tool and has only \"%s\"",
            options->section, load->found.path, SHOAL_SECTION_MODEL);
    }
    if (options->has_step && load->index.step != options->step) {
        return error_set(SHOAL_ERR_STATE, "%.240s: is of step %" PRId64 ", not %" PRId64, load->found.path,
                         load->index.step, options->step);
    }
    return options->allows_other_batch ? SHOAL_OK
                                       : progress_compare(&options->progress, &load->index.progress);
}

static shoal_status match(struct load *load)
{
    const struct load_rules rules = {.section = load->options.section,
                                     .allows_missing = load->options.allows_missing,
                                     .allows_unexpected = load->options.allows_unexpected,
                                     .casts = load->options.casts,
                                     .is_foreign = load->found.source != SOURCE_SHOAL};
    shoal_status status = load_match_make(load->items, &load->index, &rules, &load->match);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", path_name(load->found.path));
    }
    for (size_t i = 0; i < load->match.n_wants; i++) {
        struct load_want *want = &load->match.wants[i];
        TRY(items_region(load->items, want->item, &want->region));
    }
    return SHOAL_OK;
}

static shoal_status look(struct load *load)
{
    TRY(note_damage(load, read_index(&load->found, &load->index)));
    TRY(check_index(load));
    TRY(match(load));
    const struct load_source source = {.directory = load->found.path,
                                       .index = &load->index,
                                       .is_foreign = load->found.source != SOURCE_SHOAL,
                                       .skips_sums = load->options.skips_sums};
    TRY(load_reader_make(&source, load->match.wants, load->match.n_wants, &load->reader));
    return note_damage(load, load_reader_look(&load->reader));
}

static void free_found(struct load *load)
{
    load_reader_free(&load->reader);
    load_match_free(&load->match);
    free_index(&load->found, &load->index);
    mem_free(load->found.memory);
    load->index = (struct checkpoint_index){0};
    load->found = (struct found){0};
}

/* If the first rank sees no checkpoint, but another rank does, that is an error: otherwise the run would silently start
   from the beginning. */
static shoal_status check_none(struct load *load)
{
    char *path = NULL;
    shoal_status status = find_path(load, &path);
    if (status == SHOAL_OK && path) {
        status = error_set(SHOAL_ERR_STATE,
                           "%.200s: this rank sees %.60s, but the first rank sees no checkpoint: all ranks "
                           "must share the directory",
                           load->directory, path_name(path));
    }
    mem_free(path);
    return status;
}

static shoal_status find_and_look(struct load *load, shoal_status *own_out)
{
    load->has_damage = false;
    *own_out = SHOAL_OK;
    TRY(find(load, own_out));
    if (load->found.source == SOURCE_NONE) {
        *own_out = check_none(load);
        return agree(load->group, "finding no checkpoint", *own_out);
    }
    *own_out = look(load);
    return agree(load->group, "looking at the checkpoint", *own_out);
}

/* Tries checkpoints until one is not damaged. If a rank fails for another reason, that is an error on all ranks. */
static shoal_status choose(struct load *load)
{
    shoal_status own;
    shoal_status status = find_and_look(load, &own);
    while (status != SHOAL_OK && load->options.skips_damaged) {
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        status = agree(load->group, "passing over a checkpoint", load->has_damage ? SHOAL_OK : own);
        TRY(status);
        free_found(load);
        if (load->n_damaged++ == 0) {
            memcpy(load->damage_text, text, sizeof text);
        }
        if (shoal_group_rank(load->group) == 0) {
            LOG(SHOAL_LOG_WARN, "checkpoint: a damaged checkpoint is skipped: %s", text);
        }
        status = find_and_look(load, &own);
    }
    return status;
}

/* Reading ---------------------------------------------------------------------------------------------- */

/* Finds as many errors as possible before anything counts as changed on any rank. */
static shoal_status check_parts(const struct load *load)
{
    for (size_t i = 0; i < load->match.n_wants; i++) {
        TRY(items_check_mutable(load->items, load->match.wants[i].item));
    }
    return SHOAL_OK;
}

static shoal_status open_parts(struct load *load)
{
    for (size_t i = 0; i < load->match.n_wants; i++) {
        struct load_want *want = &load->match.wants[i];
        TRY(items_mutable_part(load->items, want->item, shoal_group_timeout(load->group), &want->part));
        if (!region_equals(&want->region, &want->part.region, want->tensor->n_dims)) {
            struct item_info info;
            items_info(load->items, want->item, &info);
            return error_set(SHOAL_ERR_STATE, "item \"%.100s\": its part has changed during the load",
                             info.name);
        }
    }
    return SHOAL_OK;
}

/* What was read for devices goes there. */
static shoal_status store_parts(const struct load *load)
{
    for (size_t i = 0; i < load->match.n_wants; i++) {
        TRY(items_part_store(&load->match.wants[i].part));
    }
    return SHOAL_OK;
}

static shoal_status read_all(struct load *load)
{
    shoal_status mine = load_reader_read(&load->reader);
    mine = mine == SHOAL_OK ? store_parts(load) : mine;
    shoal_status status = agree(load->group, "reading the checkpoint", mine);
    return status == SHOAL_OK
               ? status
               : error_prefix(status, "the load failed half way, and values are undefined now");
}

static shoal_status end(struct load *load)
{
    load_match_set_values(&load->match);
    shoal_status status = agree(load->group, "what follows a load", items_loaded(load->given));
    return status == SHOAL_OK
               ? status
               : error_prefix(status, "all values are loaded, but a function of items_on_loaded failed");
}

static shoal_status load_all(struct load *load)
{
    TRY(compare_arguments(load));
    TRY(choose(load));
    if (load->found.source == SOURCE_NONE) {
        return SHOAL_OK;
    }
    TRY(agree(load->group, "checking what to load into", check_parts(load)));
    TRY(agree(load->group, "opening what to load into", open_parts(load)));
    TRY(read_all(load));
    return end(load);
}

static void fill_info(const struct checkpoint_index *index, shoal_checkpoint_info *info_out)
{
    info_out->step = index->step;
    info_out->format = index->format;
    info_out->progress = index->progress;
}

shoal_status shoal_checkpoint_load(shoal_group *group, const char *directory, shoal_items *items,
                                   const shoal_checkpoint_load_options *options,
                                   shoal_checkpoint_info *info_out)
{
    struct load load = {.group = group, .directory = directory, .items = items, .given = items};
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "checkpoint_load: group is NULL");
    }
    shoal_status status = agree(group, "load: arguments", check_arguments(&load, options, info_out));
    if (status == SHOAL_OK) {
        status = load_all(&load);
    }
    if (status == SHOAL_OK && info_out) {
        shoal_checkpoint_info info = {.step = -1,
                                      .n_missing = load.match.n_missing,
                                      .n_unexpected = load.match.n_unexpected,
                                      .n_damaged = load.n_damaged};
        if (load.found.source != SOURCE_NONE) {
            fill_info(&load.index, &info);
        }
        status = struct_size_write("info_out", info_out, sizeof(size_t), &info, sizeof(info));
    }
    free_found(&load);
    shoal_items_free(load.spread);
    return status == SHOAL_OK ? status : error_prefix(status, "checkpoint_load");
}

/* What there is ---------------------------------------------------------------------------------------- */

static shoal_status read_info(const char *path, shoal_checkpoint_info *info)
{
    char *message = NULL;
    size_t bytes = 0;
    TRY(make_message(path, &message, &bytes));
    struct found found = read_message(message, bytes);
    struct checkpoint_index index = {0};
    shoal_status status = read_index(&found, &index);
    if (status == SHOAL_OK) {
        fill_info(&index, info);
    }
    free_index(&found, &index);
    mem_free(found.memory);
    return status;
}

static shoal_status look_at_newest(const char *directory, shoal_checkpoint_info *info)
{
    char *path = NULL;
    int64_t step;
    info->step = -1;
    TRY(directory_find(directory, 0, INT64_MAX, &path, &step));
    shoal_status status = path ? read_info(path, info) : SHOAL_OK;
    mem_free(path);
    return status;
}

shoal_status shoal_checkpoint_newest(const char *directory, shoal_checkpoint_info *info_out)
{
    shoal_checkpoint_info info = {0};
    error_clear();
    if (!directory || !info_out) {
        return error_set(SHOAL_ERR_INVALID, "checkpoint_newest: %s is NULL",
                         directory ? "info_out" : "directory");
    }
    shoal_status status = look_at_newest(directory, &info);
    if (status != SHOAL_OK) {
        return error_prefix(status, "checkpoint_newest");
    }
    return struct_size_write("checkpoint_newest: info_out", info_out, sizeof(size_t), &info, sizeof(info));
}

/* The newest `capacity` of them. */
static shoal_status list_steps(const char *directory, int64_t *steps_out, size_t capacity, size_t *count_out)
{
    int64_t *steps = NULL;
    size_t count = 0;
    TRY(directory_list(directory, &steps, &count));
    shoal_status status = SHOAL_OK;
    if (count == 0) { /* the directory may be a checkpoint itself */
        shoal_checkpoint_info info = {0};
        status = look_at_newest(directory, &info);
        steps[0] = info.step;
        count = info.step >= 0;
    }
    if (status == SHOAL_OK) {
        size_t n_given = count < capacity ? count : capacity;
        if (n_given > 0) {
            memcpy(steps_out, steps + (count - n_given), n_given * sizeof(steps[0]));
        }
        *count_out = count;
    }
    mem_free(steps);
    return status;
}

shoal_status shoal_checkpoint_list(const char *directory, int64_t *steps_out, size_t capacity,
                                   size_t *count_out)
{
    error_clear();
    if (count_out) {
        *count_out = 0;
    }
    if (!directory || !count_out || (!steps_out && capacity > 0)) {
        return error_set(SHOAL_ERR_INVALID, "checkpoint_list: %s is NULL",
                         !directory   ? "directory"
                         : !count_out ? "count_out"
                                      : "steps_out");
    }
    shoal_status status = list_steps(directory, steps_out, capacity, count_out);
    return status == SHOAL_OK ? status : error_prefix(status, "checkpoint_list");
}
