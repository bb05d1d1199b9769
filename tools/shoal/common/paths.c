/* SPDX-License-Identifier: MIT */
/* Compares the files of a command line, whether they exist or not. */
#include "common/paths.h"
#include "common/tool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_LINKS = 8, /* that lead to each other, of a file that is not there */
    TEXT_BYTES = 2 * PATH_MAX
};

/* Cuts a path behind the folder that it is in, "." if it names none. Returns the name of the file. */
static const char *split(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    (void)snprintf(folder, PATH_MAX, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return slash ? slash + 1 : path;
}

/* The path of a file that is not there, without links and dots. */
static bool find_place(const char *path, char *place)
{
    char folder[PATH_MAX];
    char real[PATH_MAX];
    const char *name = split(path, folder);
    return realpath(folder, real) && snprintf(place, PATH_MAX, "%s/%s", real, name) < PATH_MAX;
}

/* A link to a file that is not there leads to the place where the file would be made. */
static bool follow(char *path)
{
    char folder[PATH_MAX];
    char target[PATH_MAX];
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length <= 0) {
        return false;
    }
    target[length] = '\0';
    (void)split(path, folder);
    char next[2 * PATH_MAX];
    (void)snprintf(next, sizeof next, "%s%s%s", target[0] == '/' ? "" : folder, target[0] == '/' ? "" : "/",
                   target);
    return snprintf(path, PATH_MAX, "%s", next) < PATH_MAX;
}

static bool find_canonical(const char *path, char *canonical)
{
    char followed[PATH_MAX];
    if (realpath(path, canonical)) {
        return true;
    }
    if (snprintf(followed, sizeof followed, "%s", path) >= (int)sizeof followed) {
        return false;
    }
    for (int i = 0; i < MAX_LINKS && follow(followed); i++) {
    }
    return find_place(followed, canonical);
}

static bool is_same(const char *left, const char *right)
{
    struct stat a;
    struct stat b;
    char places[2][PATH_MAX];
    bool has_left = stat(left, &a) == 0;
    bool has_right = stat(right, &b) == 0;
    if (has_left && has_right) {
        return S_ISREG(a.st_mode) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    }
    return has_left == has_right && find_canonical(left, places[0]) && find_canonical(right, places[1]) &&
           strcmp(places[0], places[1]) == 0;
}

static void tell(const struct tool_path *output, const struct tool_path *other, char *text, size_t bytes)
{
    if (!other->is_output) {
        (void)snprintf(text, bytes, "%s %s would write over %s", output->name, output->path, other->name);
    } else if (strcmp(output->path, other->path) == 0) {
        (void)snprintf(text, bytes, "%s and %s name the same file, %s", output->name, other->name,
                       output->path);
    } else {
        (void)snprintf(text, bytes, "%s %s and %s %s are the same file", output->name, output->path,
                       other->name, other->path);
    }
}

bool tool_paths_are_apart(const struct tool_path *paths, size_t n_paths, char *text, size_t bytes)
{
    for (size_t i = 0; i < n_paths; i++) {
        for (size_t k = 0; k < n_paths; k++) {
            bool is_pair = k != i && paths[i].is_output && (k > i || !paths[k].is_output);
            if (is_pair && paths[i].path && paths[k].path && is_same(paths[i].path, paths[k].path)) {
                tell(&paths[i], &paths[k], text, bytes);
                return false;
            }
        }
    }
    return true;
}

bool tool_paths_check(const struct tool_path *paths, size_t n_paths)
{
    char text[TEXT_BYTES];
    if (tool_paths_are_apart(paths, n_paths, text, sizeof text)) {
        return true;
    }
    fprintf(stderr, "%s: %s\n", tool_name(), text);
    return false;
}
