/* SPDX-License-Identifier: MIT */
/*
 * Files that are written safely: readers of the target see either the whole old file or the whole new one, even if the
 * process dies, the disk is full, or the power fails.
 *
 * The bytes go into a temporary file beside the target, TARGET.partial-0123456789abcdef. A commit makes them durable,
 * gives the file the name of the target, and makes that durable. Closing without a commit removes the temporary file.
 * Every writer holds a lock on it that ends with the process; so file_create recognizes what dead writers of the same
 * target have left, and removes it. (On file systems without locks, such files stay.)
 *
 * Every request that changes something passes a numbered fail point. Errors are SHOAL_ERR_SYSTEM and name the file,
 * what was tried, how many bytes, and why it failed.
 */
#ifndef CHECKPOINT_IO_FILE_H
#define CHECKPOINT_IO_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shoal/status.h"

struct file {
    int fd;
    int directory_fd;  /* of the target; -1 if another process commits */
    char *path;        /* of what is written */
    char *target;      /* NULL if another process commits */
    bool is_temporary; /* closing removes it */
    pid_t owner;       /* because a forked child must not remove what its parent writes */
};

/* Makes an empty temporary file for the target. The new file gets the permissions of one that it replaces. */
shoal_status file_create(const char *target, struct file *file_out);

/* Opens the temporary file of another writer: `path` is that of its struct. */
shoal_status file_join(const char *path, struct file *file_out);

/* Opens the file itself, for directories that are temporary as a whole; makes it if there is none. Nothing is removed
   or renamed. */
shoal_status file_open_in_place(const char *path, struct file *file_out);

/* Several threads may write at a time. */
shoal_status file_write(const struct file *file, uint64_t offset, const void *data, size_t bytes);
shoal_status file_resize(const struct file *file, uint64_t bytes);
/* Lets the disk begin to write a range, so that less is left for file_sync. A hint: errors are reported by
   file_sync. */
void file_begin_sync(const struct file *file, uint64_t offset, uint64_t bytes);

/* Makes what this process has written durable, still under the temporary name. */
shoal_status file_sync(const struct file *file);

/*
 * Makes the new file the target. After an error the target is still the old file, unless only the last step failed:
 * making the new name durable. Then it is the new one, but a power failure may undo that.
 */
shoal_status file_commit(struct file *file);

/* Without a commit the temporary file of file_create is removed. A struct of zeros is not allowed. */
void file_close(struct file *file);

/* Writes a small file, with all these steps. */
shoal_status file_save(const char *target, const void *data, size_t bytes);

/* Reads exactly so many bytes. It is an error if the file ends before; the text does not name the file. */
shoal_status file_read_at(int fd, uint64_t offset, void *out, size_t bytes);

#endif
