/* SPDX-License-Identifier: MIT */
/*
 * Writes jobs of a save, in the order in which they are added, into files of its temporary directory, and keeps sums.
 * A job that begins where the last one ended belongs to the same run. The disk starts to write while more jobs are
 * added; a file is made durable when the next one begins.
 */
#ifndef CHECKPOINT_SAVE_WRITER_H
#define CHECKPOINT_SAVE_WRITER_H

#include "checkpoint/io/file.h"
#include "checkpoint/save/save.h"

struct save_writer {
    struct save *save;
    struct file file;
    bool is_open;
    size_t file_number;
    char *buffer;         /* BOX_BUFFER_BYTES */
    uint64_t early_at;    /* a range of the file that was written, but not given to the disk yet */
    uint64_t early_bytes; /* its size */
};

shoal_status save_writer_begin(struct save *save, struct save_writer *writer_out);
shoal_status save_writer_add(struct save_writer *writer, const struct save_job *job);
/* Makes the last file durable. */
shoal_status save_writer_finish(struct save_writer *writer);
void save_writer_end(struct save_writer *writer);

/* Visits the bytes of a job in order. `buffer` has BOX_BUFFER_BYTES, for what is not contiguous. */
typedef shoal_status (*save_bytes_visit)(void *context, const void *data, size_t bytes);
shoal_status save_walk_job(const struct save_job *job, char *buffer, save_bytes_visit visit, void *context);

#endif
