/* SPDX-License-Identifier: MIT */
/*
 * Finds and reads the program's own source, by looking at the directories above the program. In a cloned tree one of
 * them has src/shoal.map; in an installation one has include/shoal/shoal.h.
 */
#include "config/source.h"

#include "base/error.h"
#include "base/try.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_LEVELS = 5, /* from the program up */
    MAX_DEPTH = 12, /* of folders below one that is read */
    NAME_BYTES = 256
};

#define MAX_SOURCE_BYTES ((size_t)64 << 20)

struct source {
    char *text;
    size_t n_bytes;
    size_t capacity;
};

static const char *const folders_of_tree[] = {"examples", "include", "nn", "src", "tools", NULL};
static const char *const folders_of_install[] = {"include/shoal", "include/shoal_nn", "share/doc/shoal",
                                                 NULL};

static const struct place {
    const char *mark; /* the file that tells */
    const char *const *folders;
    const char *name;
} places[] = {
    {"src/shoal.map", folders_of_tree, "the source of shoal"},
    {"include/shoal/shoal.h", folders_of_install, "the headers and documents of shoal"},
};

static bool is_text(const char *name)
{
    static const char *const ends[] = {".c", ".h", ".md"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t n = strlen(ends[i]);
        if (length > n && strcmp(name + length - n, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

static shoal_status make_room(struct source *source, size_t n_more)
{
    if (source->n_bytes + n_more <= source->capacity) {
        return SHOAL_OK;
    }
    size_t capacity = 2 * (source->n_bytes + n_more);
    char *text = realloc(source->text, capacity);
    if (!text) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu bytes of text", capacity);
    }
    source->text = text;
    source->capacity = capacity;
    return SHOAL_OK;
}

static shoal_status read_text(struct source *source, const char *path)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    if (!file) {
        return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
    }
    size_t n_bytes = fstat(fileno(file), &about) == 0 && about.st_size > 0 ? (size_t)about.st_size : 0;
    shoal_status status =
        source->n_bytes + n_bytes <= MAX_SOURCE_BYTES ? make_room(source, n_bytes) : SHOAL_OK;
    if (status == SHOAL_OK && source->n_bytes + n_bytes <= source->capacity) {
        source->n_bytes += fread(source->text + source->n_bytes, 1, n_bytes, file);
    }
    (void)fclose(file);
    return status;
}

static shoal_status read_folder(struct source *source, const char *path, int depth);

static shoal_status read_entry(struct source *source, const char *folder, const char *name, int depth)
{
    char path[PATH_MAX];
    struct stat about;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (name[0] == '.' || length >= (int)sizeof path || lstat(path, &about) != 0) {
        return SHOAL_OK;
    }
    if (S_ISDIR(about.st_mode)) {
        return read_folder(source, path, depth + 1);
    }
    return S_ISREG(about.st_mode) && is_text(name) ? read_text(source, path) : SHOAL_OK;
}

/* In the order of bytes, not of a language. */
static int compare_names(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

/* A folder that is not there has nothing to read. */
static shoal_status read_folder(struct source *source, const char *path, int depth)
{
    struct dirent **entries = NULL;
    int n_entries = depth < MAX_DEPTH ? scandir(path, &entries, NULL, compare_names) : 0;
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < n_entries; i++) {
        if (status == SHOAL_OK) {
            status = read_entry(source, path, entries[i]->d_name, depth);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static shoal_status read_place(struct source *source, const struct place *place, const char *root)
{
    char path[PATH_MAX];
    for (size_t i = 0; place->folders[i]; i++) {
        if (snprintf(path, sizeof path, "%s/%s", root, place->folders[i]) < (int)sizeof path) {
            TRY(read_folder(source, path, 0));
        }
    }
    return SHOAL_OK;
}

/* The first place, from the program up; NULL if there is none. `root` is cut to its folder. */
static const struct place *find_place(char *root)
{
    char path[PATH_MAX];
    for (int level = 0; level < MAX_LEVELS; level++) {
        char *slash = strrchr(root, '/');
        if (!slash) {
            return NULL;
        }
        *slash = '\0';
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            int length = snprintf(path, sizeof path, "%s/%s", root, places[i].mark);
            if (length < (int)sizeof path && access(path, R_OK) == 0) {
                return &places[i];
            }
        }
    }
    return NULL;
}

shoal_status train_source_read(char **text_out, size_t *bytes_out, char *name_out)
{
    char root[PATH_MAX] = "";
    struct source source = {0};
    ssize_t length = readlink("/proc/self/exe", root, sizeof root - 1);
    root[length > 0 ? length : 0] = '\0';
    const struct place *place = find_place(root);
    if (!place) {
        return error_set(SHOAL_ERR_STATE,
                         "the source of this program is not beside it: name a text with --data FILE");
    }
    shoal_status status = read_place(&source, place, root);
    if (status != SHOAL_OK) {
        free(source.text);
        return status;
    }
    (void)snprintf(name_out, NAME_BYTES, "%s", place->name);
    *text_out = source.text;
    *bytes_out = source.n_bytes;
    return SHOAL_OK;
}
