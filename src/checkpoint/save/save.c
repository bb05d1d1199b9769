/* SPDX-License-Identifier: MIT */
/* Saving a checkpoint: see save.h. Files are planned in save/pieces.c and save/whole.c. */
#include "checkpoint/save/save.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/label.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/struct_size.h"
#include "base/trace.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "checkpoint/index/damage.h"
#include "checkpoint/io/box.h"
#include "checkpoint/io/path.h"
#include "checkpoint/index/progress.h"
#include "checkpoint/safetensors/layout.h"
#include "checkpoint/save/exchange.h"
#include "checkpoint/save/writer.h"
#include "checkpoint/ranks/copies.h"

#define DEFAULT_FILE_BYTES ((size_t)5000000000)

/* Arguments ---------------------------------------------------------------------------------------------- */

shoal_status save_check_arguments(const char *directory, const shoal_items *items,
                                  const shoal_checkpoint_options *given,
                                  shoal_checkpoint_options *options_out)
{
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    if (!directory || !items) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", directory ? "items" : "directory");
    }
    if (directory[0] == '\0') {
        return error_set(SHOAL_ERR_INVALID, "directory is \"\"");
    }
    if (given) {
        TRY(struct_size_read("shoal_checkpoint_options", given, sizeof(size_t), &options, sizeof options));
    }
    if (options.step < 0) {
        return error_set(SHOAL_ERR_INVALID, "options: step is %" PRId64 ", below 0", options.step);
    }
    if (options.format != SHOAL_CHECKPOINT_PIECES && options.format != SHOAL_CHECKPOINT_WHOLE) {
        return error_set(SHOAL_ERR_INVALID, "options: format is %d, which is none of SHOAL_CHECKPOINT_*",
                         (int)options.format);
    }
    if (options.keep < 0) {
        return error_set(SHOAL_ERR_INVALID, "options: keep is %d, below 0", options.keep);
    }
    TRY(progress_check(&options.progress));
    if (options.max_file_bytes == 0) {
        options.max_file_bytes = DEFAULT_FILE_BYTES;
    }
    *options_out = options;
    return SHOAL_OK;
}

/* The options must be the same on all ranks. */
static shoal_status compare_options(shoal_group *group, const char *directory,
                                    const shoal_checkpoint_options *options)
{
    const struct agree_number numbers[] = {{"options.step", options->step},
                                           {"options.format", options->format},
                                           {"options.replaces", options->replaces},
                                           {"options.keep", options->keep},
                                           {"options.max_file_bytes", (int64_t)options->max_file_bytes},
                                           {"options.progress.n_ranks", options->progress.n_ranks},
                                           {"options.progress.batch", options->progress.batch},
                                           {"options.progress.n_accumulate", options->progress.n_accumulate},
                                           {"options.progress.sample", options->progress.sample},
                                           {"options.fails_if_busy", options->fails_if_busy}};
    TRY(agree_on_string(group, "directory", directory));
    return agree_on_numbers(group, numbers, sizeof numbers / sizeof numbers[0]);
}

/* Beginning ---------------------------------------------------------------------------------------------- */

static int compare_jobs(const void *a, const void *b)
{
    const struct save_job *left = a;
    const struct save_job *right = b;
    if (left->file != right->file) {
        return left->file < right->file ? -1 : 1;
    }
    return left->at == right->at ? 0 : left->at < right->at ? -1 : 1;
}

/* Copies the numbers and strings of the first rank, which are saved. */
static shoal_status take_values(struct save *save)
{
    size_t n_values = items_n_values(save->items);
    save->values = mem_alloc_zeroed(n_values > 0 ? n_values : 1, sizeof(save->values[0]));
    if (!save->values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_values; i++) {
        const struct item_value *from = items_value(save->items, i);
        struct index_value *to = &save->values[save->n_values++];
        to->kind = (int)from->kind;
        to->name = mem_copy_string(from->name);
        if (!to->name) {
            return SHOAL_ERR_NO_MEMORY;
        }
        switch (from->kind) {
        case ITEM_INTEGER:
            to->integer = *(const int64_t *)from->value;
            break;
        case ITEM_REAL:
            to->real = *(const double *)from->value;
            break;
        case ITEM_STRING:
            if (!memchr(from->value, '\0', from->bytes)) {
                return error_set(SHOAL_ERR_INVALID, "string \"%.100s\": has no zero within its %zu bytes",
                                 from->name, from->bytes);
            }
            TRY(safetensors_text_check(from->name, from->value));
            to->string = mem_copy_string(from->value);
            if (!to->string) {
                return SHOAL_ERR_NO_MEMORY;
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status make_id(char id[INDEX_ID_CHARS + 1])
{
    uint64_t random[2];
    if (!os_random(random, sizeof random)) {
        return error_set(SHOAL_ERR_SYSTEM, "no random numbers for the id of the save: %s",
                         error_errno_text(errno));
    }
    (void)snprintf(id, INDEX_ID_CHARS + 1, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    return SHOAL_OK;
}

/* What the first rank does before anything is planned. */
static shoal_status prepare_first(struct save *save)
{
    if (save->rank != 0) {
        return SHOAL_OK;
    }
    TRY(take_values(save));
    return make_id(save->id);
}

/* Plans files, places and jobs; writes nothing. Paths become absolute, because the working directory may change before
   files are written. */
static shoal_status plan(struct save *save, const char *directory)
{
    TRY(path_absolute(directory, &save->directory));
    size_t bytes = strlen(save->directory) + sizeof("/.saving-") + INDEX_ID_CHARS;
    save->path = mem_alloc(bytes);
    if (!save->path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    (void)snprintf(save->path, bytes, "%s/.saving-%s", save->directory, save->id);
    TRY(split_make(&save->table, &save->pieces, &save->n_pieces));
    TRY(save->options.format == SHOAL_CHECKPOINT_WHOLE ? save_plan_whole(save) : save_plan_pieces(save));
    if (save->n_jobs > 1) {
        qsort(save->jobs, save->n_jobs, sizeof(save->jobs[0]), compare_jobs);
    }
    return SHOAL_OK;
}

static shoal_status make_directory(struct save *save)
{
    if (save->rank != 0) {
        return SHOAL_OK;
    }
    return directory_save_begin(save->directory, save->options.step, save->id, save->options.replaces,
                                &save->target);
}

static shoal_status see_directory(const struct save *save)
{
    if (access(save->path, F_OK) == 0) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "%.240s: was made by rank 0, but rank %d does not see it: %s. All ranks must share the "
                     "directory of a checkpoint",
                     save->path, save->rank, error_errno_text(errno));
}

shoal_status save_begin(shoal_group *group, const char *directory, const shoal_items *items,
                        const shoal_checkpoint_options *options, struct save *save)
{
    void *id = NULL;
    size_t id_bytes = 0;
    *save = (struct save){.group = group,
                          .rank = shoal_group_rank(group),
                          .n_ranks = shoal_group_n_ranks(group),
                          .options = *options,
                          .items = items,
                          .target = DIRECTORY_SAVE_INIT};
    TRY(compare_options(group, directory, options));
    TRY(copies_make(group, items, &save->spread));
    save->items = save->spread ? save->spread : items;
    TRY(table_make(group, save->items, &save->table));
    TRY(agree(group, "save: numbers and strings", prepare_first(save)));
    TRY(agree_receive(group, save->id, INDEX_ID_CHARS, &id, &id_bytes));
    memcpy(save->id, id, INDEX_ID_CHARS);
    mem_free(id);
    TRY(agree(group, "save: plan", plan(save, directory)));
    TRY(agree(group, "save: make the directory", make_directory(save)));
    return agree(group, "save: see the directory", see_directory(save));
}

/* Taking, writing, finishing ----------------------------------------------------------------------------- */

static shoal_status copy_bytes(void *context, const void *data, size_t bytes)
{
    char **to = context;
    memcpy(*to, data, bytes);
    *to += bytes;
    return SHOAL_OK;
}

/* Copies the job's bytes to `to`, contiguous and ready to be written, and lets the job point there. */
static shoal_status take_job(struct save_job *job, char *to, char *buffer)
{
    char *at = to;
    TRY(save_walk_job(job, buffer, copy_bytes, &at));
    job->data = to;
    job->dtype = SHOAL_U8;
    job->n_dims = 1;
    job->shape[0] = (int64_t)job->bytes;
    job->strides[0] = 1;
    return SHOAL_OK;
}

static shoal_status take_jobs(struct save *save)
{
    size_t bytes = 0;
    for (size_t i = 0; i < save->n_jobs; i++) {
        bytes += (size_t)save->jobs[i].bytes;
    }
    char *buffer = mem_alloc(BOX_BUFFER_BYTES);
    save->taken = mem_alloc_large(bytes > 0 ? bytes : 1);
    shoal_status status = buffer && save->taken ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    char *to = save->taken;
    for (size_t i = 0; i < save->n_jobs && status == SHOAL_OK; i++) {
        status = take_job(&save->jobs[i], to, buffer);
        to += save->jobs[i].bytes;
    }
    mem_free(buffer);
    return status;
}

static shoal_status keep_slice(void *context, const struct save_job *job)
{
    struct save *save = context;
    char *copy = mem_alloc((size_t)job->bytes);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct save_job kept = *job;
    kept.data = copy;
    shoal_status status = mem_grow((void **)&save->taken_slices, &save->slice_capacity,
                                   save->n_taken_slices + 1, sizeof(char *));
    if (status == SHOAL_OK) {
        status = save_add_job(save, &kept);
    }
    if (status != SHOAL_OK) {
        mem_free(copy);
        return status;
    }
    memcpy(copy, job->data, (size_t)job->bytes);
    save->taken_slices[save->n_taken_slices++] = copy;
    return SHOAL_OK;
}

shoal_status save_take(struct save *save)
{
    TRY(agree(save->group, "save: copy", take_jobs(save)));
    TRY(agree(save->group, "save: copy slices", save_exchange(save, keep_slice, save)));
    save->is_taken = true;
    save_drop_copies(save);
    save->items = NULL;
    shoal_items_free(save->spread); /* the program may free its list now */
    save->spread = NULL;
    if (save->n_jobs > 1) {
        qsort(save->jobs, save->n_jobs, sizeof(save->jobs[0]), compare_jobs);
    }
    return SHOAL_OK;
}

static shoal_status write_jobs(struct save *save, struct save_writer *writer)
{
    TRY(save_writer_begin(save, writer));
    for (size_t i = 0; i < save->n_jobs; i++) {
        TRY(save_writer_add(writer, &save->jobs[i]));
    }
    return save_writer_finish(writer);
}

static shoal_status write_slice(void *context, const struct save_job *job)
{
    return save_writer_add(context, job);
}

static void trace_writing(const struct save *save, uint64_t begin_ticks)
{
    struct trace_event event = {.begin_ticks = begin_ticks,
                                .end_ticks = clock_ticks(),
                                .name = label_of("checkpoint write"),
                                .kind = TRACE_CHECKPOINT};
    for (size_t i = 0; i < save->n_runs; i++) {
        event.bytes += save->runs[i].bytes;
    }
    trace_write(&event);
}

shoal_status save_write(struct save *save)
{
    struct save_writer writer = {0};
    uint64_t begin_ticks = trace_begin();
    shoal_status status = write_jobs(save, &writer);
    if (!save->is_taken && save->n_exchanged > 0) {
        status = agree(save->group, "save: write", status);
        if (status == SHOAL_OK) {
            status = save_exchange(save, write_slice, &writer);
        }
        if (status == SHOAL_OK) {
            status = save_writer_finish(&writer);
        }
    }
    save_writer_end(&writer);
    if (save->n_runs > 0) {
        checksums_end(&save->runs[save->n_runs - 1].sums);
    }
    if (begin_ticks != 0) {
        trace_writing(save, begin_ticks);
    }
    return status;
}

/* The first rank's part of the end. */
static shoal_status complete(struct save *save, const char *packed, const uint64_t *offsets)
{
    if (save->rank != 0) {
        return SHOAL_OK;
    }
    if (save->options.format == SHOAL_CHECKPOINT_WHOLE) {
        TRY(save_write_weight_maps(save));
    }
    TRY(save_write_index(save, packed, offsets));
    const struct directory_keep keep = {.count = save->options.keep, .is_damaged = damage_is_seen};
    return directory_save_commit(&save->target, save->options.replaces, &keep);
}

static shoal_status collect_and_complete(struct save *save, shoal_group *group, const char *own, size_t bytes)
{
    char *packed = NULL;
    uint64_t *offsets = NULL;
    TRY(agree_collect(group, own, bytes, /*only_first=*/true, &packed, &offsets));
    shoal_status status = complete(save, packed, offsets);
    mem_free(packed);
    mem_free(offsets);
    return agree(group, "save: move into place", status);
}

shoal_status save_finish(struct save *save, shoal_group *group)
{
    char *own = NULL;
    size_t bytes = 0;
    shoal_status status = agree(group, "save: sums", save_pack_runs(save, &own, &bytes));
    if (status == SHOAL_OK) {
        status = collect_and_complete(save, group, own, bytes);
    }
    mem_free(own);
    return status;
}

/* Ending ------------------------------------------------------------------------------------------------- */

static void free_files(struct save *save)
{
    for (size_t i = 0; i < save->n_files; i++) {
        shoal_safetensors_layout_free(save->files[i].layout);
        mem_free(save->files[i].name);
    }
    mem_free(save->files);
}

static void free_values(struct save *save)
{
    for (size_t i = 0; i < save->n_values; i++) {
        mem_free((char *)save->values[i].name);
        mem_free((char *)save->values[i].string);
    }
    mem_free(save->values);
}

void save_end(struct save *save)
{
    directory_save_end(&save->target);
    for (size_t i = 0; i < save->n_runs; i++) {
        checksums_free(&save->runs[i].sums);
    }
    for (size_t i = 0; i < save->n_taken_slices; i++) {
        mem_free(save->taken_slices[i]);
    }
    free_files(save);
    free_values(save);
    shoal_items_free(save->spread);
    save_drop_copies(save);
    table_free(&save->table);
    mem_free(save->pieces);
    mem_free(save->places);
    mem_free(save->exchanged);
    mem_free(save->jobs);
    mem_free(save->runs);
    mem_free(save->taken);
    mem_free(save->taken_slices);
    mem_free(save->directory);
    mem_free(save->path);
    *save = (struct save){.target = DIRECTORY_SAVE_INIT};
}

/* The call ----------------------------------------------------------------------------------------------- */

static shoal_status run_save(shoal_group *group, const char *directory, const shoal_items *items,
                             const shoal_checkpoint_options *options)
{
    struct save save;
    shoal_status status = save_begin(group, directory, items, options, &save);
    if (status == SHOAL_OK) {
        status = agree(group, "save: write all", save_write(&save));
    }
    if (status == SHOAL_OK) {
        status = save_finish(&save, group);
    }
    save_end(&save);
    return status;
}

shoal_status shoal_checkpoint_save(shoal_group *group, const char *directory, const shoal_items *items,
                                   const shoal_checkpoint_options *options)
{
    shoal_checkpoint_options own = SHOAL_CHECKPOINT_OPTIONS_INIT;
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "checkpoint_save: group is NULL");
    }
    shoal_status status =
        agree(group, "save: arguments", save_check_arguments(directory, items, options, &own));
    if (status == SHOAL_OK) {
        uint64_t begin_ticks = trace_begin();
        status = run_save(group, directory, items, &own);
        trace_end(begin_ticks, TRACE_CHECKPOINT, "checkpoint save");
    }
    return status == SHOAL_OK ? status : error_prefix(status, "checkpoint_save");
}
