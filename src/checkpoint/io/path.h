/* SPDX-License-Identifier: MIT */
/*
 * Directories and names of files that are written safely. What changes a directory is numbered for tests, as in
 * checkpoint/io/file.h. Errors are SHOAL_ERR_SYSTEM and name the path, what was tried, and why it failed.
 */
#ifndef CHECKPOINT_IO_PATH_H
#define CHECKPOINT_IO_PATH_H

#include <stdbool.h>
#include <sys/types.h>

#include "shoal/status.h"

/* The error of `operation` on that path. Long paths lose their beginning, so that the reason stays in the text. */
shoal_status path_fail(const char *path, const char *operation, int code);

/* The part of the path after its last '/'. */
const char *path_name(const char *path);

/* The absolute path, which stays valid when the process changes its working directory. Freed with mem_free. */
shoal_status path_absolute(const char *path, char **absolute_out);

/*
 * Resolves symbolic links: gives the path of the file that a write to `path` would change. The file need not exist
 * yet. A directory, a pipe or a device is an error, because it must not be replaced by a file. The result is freed
 * with mem_free. mode_out: the permissions of the file; 0 if it does not exist.
 */
shoal_status path_resolve(const char *path, char **resolved_out, mode_t *mode_out);

/* Opens the directory that the path is in. Closed with close. */
shoal_status path_open_parent(const char *path, int *fd_out);

/* Makes changes of a directory durable: new, changed and removed names. `path` is for error texts. */
shoal_status path_sync(int directory_fd, const char *path);

/* Makes changes of the directory that the path is in durable. */
shoal_status path_sync_parent(const char *path);

/* Opens a file for reading and writing, and makes it if there is none. `flags` are additional flags of open. Returns -1
   if it fails; errno says why. On network file systems a signal may interrupt open; the call then tries again. */
int path_create_file(int directory_fd, const char *path, int flags);

/* Makes a directory, and its name durable. One that is there already is fine. */
shoal_status path_make_directory(const char *path, bool *is_new_out);

/* Renames a file or directory within its file system, and makes that durable. Replaces what had the name `to`.
   *is_done_out (may be NULL): whether it has the new name, even if that could not be made durable. */
shoal_status path_rename(const char *from, const char *to, bool *is_done_out);

/*
 * Exchanges the names of two files or directories in one step, and makes that durable. *is_possible_out: false if the
 * file system cannot do this; then nothing has changed, and the call returns SHOAL_OK. *is_done_out: whether the names
 * were exchanged, even if that could not be made durable.
 */
shoal_status path_exchange(const char *a, const char *b, bool *is_possible_out, bool *is_done_out);

/*
 * Removes a file, or a directory with everything in it. A symbolic link is removed, whether `path` itself is one or
 * something below it, and what it points to stays. One that is gone already is fine. Not durable until path_sync.
 */
shoal_status path_remove_tree(const char *path);

#endif
