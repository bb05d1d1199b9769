/* SPDX-License-Identifier: MIT */
/*
 * Directories and names of files that are written safely. What changes a directory is numbered for tests, as in
 * checkpoint/file.h. Errors are SHOAL_ERR_SYSTEM and name the path, what was tried, and why it failed.
 */
#ifndef CHECKPOINT_PATH_H
#define CHECKPOINT_PATH_H

#include <stdbool.h>
#include <sys/types.h>

#include "shoal/status.h"

/* The error of `operation` on that path. Long paths lose their beginning, so that the reason stays in the text. */
shoal_status path_fail(const char *path, const char *operation, int code);

/* The part of the path behind its last '/'. */
const char *path_name(const char *path);

/* The path, which stays right when the process changes its working directory. Freed with mem_free. */
shoal_status path_absolute(const char *path, char **absolute_out);

/*
 * The path of the file that a program means when it writes to `path`: symbolic links are followed, also one to a file
 * that is not there yet. A directory, a pipe or a device is an error: replacing one by a file is never what was
 * meant. The result is freed with mem_free. mode_out: the permissions of the file that is there; 0 if there is none.
 */
shoal_status path_resolve(const char *path, char **resolved_out, mode_t *mode_out);

/* Opens the directory that the path is in. Closed with close. */
shoal_status path_open_parent(const char *path, int *fd_out);

/* Makes changes of a directory durable: names that were given, changed or removed. `path` is for texts. */
shoal_status path_sync(int directory_fd, const char *path);

/* The same for the directory that the path is in. */
shoal_status path_sync_parent(const char *path);

/* Opens a file to be read and written, and makes it if there is none; flags as of open, besides. -1: errno says why.
   Network file systems interrupt this for signals, which is not an error: it goes on. */
int path_create_file(int directory_fd, const char *path, int flags);

/* Makes a directory, and its name durable. One that is there already is fine. */
shoal_status path_make_directory(const char *path, bool *is_new_out);

/* Renames a file or directory in its file system, and makes that durable. What had the name `to` is replaced at once.
   is_done_out may be NULL: whether it has the new name, also if making that durable has failed. */
shoal_status path_rename(const char *from, const char *to, bool *is_done_out);

/*
 * Two files or directories change their names at once, durably. *is_possible_out: false if the file system cannot; then
 * nothing has changed, and the call returns SHOAL_OK. *is_done_out: whether they have changed, also if making that
 * durable has failed.
 */
shoal_status path_exchange(const char *a, const char *b, bool *is_possible_out, bool *is_done_out);

/* Removes a file, or an empty directory. One that is gone already is fine. Not durable until path_sync. */
shoal_status path_remove(const char *path);
shoal_status path_remove_directory(const char *path);

/* Removes a directory with all that is in it, links as links. One that is gone already is fine. Not durable until
   path_sync. */
shoal_status path_remove_tree(const char *path);

#endif
