/* SPDX-License-Identifier: MIT */
/*
 * Files that are written safely: whoever looks at the target sees the old file or the new one, whole, whenever the
 * process dies, the disk is full, or the power fails.
 *
 * The bytes go into a temporary file beside the target, TARGET.partial-0123456789abcdef. Committing makes them
 * durable, gives the file the name of the target, and makes that durable; closing without a commit removes the
 * temporary file. Everybody who writes holds a lock on it that ends with the process, so that file_create finds what
 * dead writers of the same target have left, and removes it. (Where the file system has no locks, such files stay.)
 *
 * Every request that changes something passes a numbered fail point. Errors are SHOAL_ERR_SYSTEM and name the file,
 * what was tried, how many bytes, and why it failed.
 */
#ifndef CHECKPOINT_FILE_H
#define CHECKPOINT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shoal/status.h"

struct file {
    int fd;
    int directory_fd;  /* of the target; -1: another process commits */
    char *path;        /* of what is written */
    char *target;      /* NULL: another process commits */
    bool is_temporary; /* closing removes it */
    pid_t owner;       /* a forked child must not remove what its parent writes */
};

/* A temporary file for that target, of no bytes. A target that is replaced keeps its permissions. */
shoal_status file_create(const char *target, struct file *file_out);

/* The temporary file of another writer, by the path that its struct has. */
shoal_status file_join(const char *path, struct file *file_out);

/* The file itself, for directories that are temporary as a whole; made if there is none. Nothing is removed or
   renamed. */
shoal_status file_open_in_place(const char *path, struct file *file_out);

/* Several threads may write at a time. */
shoal_status file_write(const struct file *file, uint64_t offset, const void *data, size_t bytes);
shoal_status file_resize(const struct file *file, uint64_t bytes);
/* The disk may begin with that range, so that less is left for file_sync. A hint: errors are file_sync's. */
void file_begin_sync(const struct file *file, uint64_t offset, uint64_t bytes);

/* What this process has written is durable, though still under the temporary name. */
shoal_status file_sync(const struct file *file);

/*
 * The target is the new file. After an error it is the old one; only if the last step failed, making the new name
 * durable, is it the new one, which a power failure might undo.
 */
shoal_status file_commit(struct file *file);

/* Without a commit the temporary file of file_create is removed. A struct of zeros is not allowed. */
void file_close(struct file *file);

/* All of it at once: a small file. */
shoal_status file_save(const char *target, const void *data, size_t bytes);

/* Reads everything. A file that ends before is an error; the text does not name the file. */
shoal_status file_read_at(int fd, uint64_t offset, void *out, size_t bytes);

#endif
