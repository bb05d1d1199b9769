/* SPDX-License-Identifier: MIT */
/* Writing jobs: see save/writer.h. */
#include "checkpoint/save/writer.h"

#include <limits.h>
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/box.h"
#include "checkpoint/io/path.h"
#include "kernel/kernel.h"

/* How much is given to the disk at a time before a file is complete. */
#define EARLY_BYTES ((uint64_t)8 << 20)

/* The bytes of a job ------------------------------------------------------------------------------------- */

struct walk {
    const struct save_job *job;
    const struct box *box;
    char *buffer;
    shoal_dtype dtype; /* that elements are moved as */
    save_bytes_visit visit;
    void *context;
};

static shoal_status visit_piece(void *context, const struct box_piece *piece)
{
    const struct walk *walk = context;
    const char *memory = walk->job->data + piece->memory_offset;
    if (!walk->box->is_direct) {
        kernel_copy_nd(
            walk->dtype,
            (struct kernel_operand){.data = address_of(walk->buffer), .strides = piece->file_strides},
            walk->dtype,
            (struct kernel_operand){.data = address_of(memory), .strides = piece->memory_strides},
            piece->n_dims, piece->shape);
        memory = walk->buffer;
    }
    return walk->visit(walk->context, memory, piece->file_bytes);
}

shoal_status save_walk_job(const struct save_job *job, char *buffer, save_bytes_visit visit, void *context)
{
    const struct box_arguments arguments = {
        .n_dims = job->n_dims, .shape = job->shape, .dtype = job->dtype, .strides = job->strides};
    struct box box;
    TRY(box_make(&arguments, &box));
    bool is_boolean = job->dtype == SHOAL_BOOL; /* bytes become 0 or 1 */
    box_plan(&box, 0, is_boolean);
    struct walk walk = {.job = job,
                        .box = &box,
                        .buffer = buffer,
                        .dtype = is_boolean ? SHOAL_BOOL : box_bits(&box),
                        .visit = visit,
                        .context = context};
    return box_walk(&box, visit_piece, &walk);
}

/* Files -------------------------------------------------------------------------------------------------- */

shoal_status save_writer_begin(struct save *save, struct save_writer *writer_out)
{
    *writer_out = (struct save_writer){.save = save};
    writer_out->buffer = mem_alloc(BOX_BUFFER_BYTES);
    return writer_out->buffer ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status save_writer_finish(struct save_writer *writer)
{
    if (!writer->is_open) {
        return SHOAL_OK;
    }
    shoal_status status = file_sync(&writer->file);
    file_close(&writer->file);
    writer->is_open = false;
    return status;
}

void save_writer_end(struct save_writer *writer)
{
    if (writer->is_open) {
        file_close(&writer->file);
    }
    mem_free(writer->buffer);
    *writer = (struct save_writer){0};
}

static shoal_status open_file(struct save_writer *writer, size_t number)
{
    char path[PATH_MAX];
    if (writer->is_open && writer->file_number == number) {
        return SHOAL_OK;
    }
    TRY(save_writer_finish(writer));
    const char *name = writer->save->files[number].name;
    if (snprintf(path, sizeof path, "%s/%s", writer->save->path, name) >= (int)sizeof path) {
        return error_set(SHOAL_ERR_INVALID, "%.240s: the path of the file %s is too long", writer->save->path,
                         name);
    }
    TRY(file_open_in_place(path, &writer->file));
    writer->is_open = true;
    writer->file_number = number;
    writer->early_bytes = 0;
    return SHOAL_OK;
}

/* Runs --------------------------------------------------------------------------------------------------- */

static shoal_status continue_run(struct save *save, const struct save_job *job)
{
    struct save_run *last = save->n_runs > 0 ? &save->runs[save->n_runs - 1] : NULL;
    if (last && last->file == job->file && last->at + last->bytes == job->at) {
        return SHOAL_OK;
    }
    if (last) {
        checksums_end(&last->sums);
    }
    TRY(mem_grow((void **)&save->runs, &save->run_capacity, save->n_runs + 1, sizeof(save->runs[0])));
    save->runs[save->n_runs++] = (struct save_run){.file = job->file, .at = job->at};
    return SHOAL_OK;
}

/* Lets the disk begin to write once there is a large range. */
static void begin_early(struct save_writer *writer, uint64_t at, size_t bytes)
{
    bool continues = at == writer->early_at + writer->early_bytes;
    if (!continues || writer->early_bytes >= EARLY_BYTES) {
        if (writer->early_bytes > 0) {
            file_begin_sync(&writer->file, writer->early_at, writer->early_bytes);
        }
        writer->early_at = at;
        writer->early_bytes = 0;
    }
    writer->early_bytes += bytes;
}

/* Works in portions that end with a block: after a sum was computed, its bytes are still in the cache for the write. */
static shoal_status write_bytes(void *context, const void *data, size_t bytes)
{
    struct save_writer *writer = context;
    struct save_run *run = &writer->save->runs[writer->save->n_runs - 1];
    const char *from = data;
    while (bytes > 0) {
        size_t room = CHECKSUM_BLOCK_BYTES - (size_t)(run->bytes % CHECKSUM_BLOCK_BYTES);
        size_t portion = bytes < room ? bytes : room;
        TRY(checksums_add(&run->sums, from, portion));
        TRY(file_write(&writer->file, run->at + run->bytes, from, portion));
        begin_early(writer, run->at + run->bytes, portion);
        run->bytes += portion;
        from += portion;
        bytes -= portion;
    }
    return SHOAL_OK;
}

shoal_status save_writer_add(struct save_writer *writer, const struct save_job *job)
{
    TRY(open_file(writer, job->file));
    TRY(continue_run(writer->save, job));
    return save_walk_job(job, writer->buffer, write_bytes, writer);
}
