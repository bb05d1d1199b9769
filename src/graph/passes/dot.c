/* SPDX-License-Identifier: MIT */
/*
 * Which nodes a pass erases is known only after it, when the old graph is gone. So the picture of the old graph is kept
 * as text, and gets a line for each erased node that changes the node's colour.
 */
#include "graph/passes/dot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/write.h"
#include "graph/text/dot.h"

static _Atomic unsigned n_begun;

static int keep(void *context, const char *text, size_t bytes)
{
    struct pass_picture *picture = context;
    if (mem_grow((void **)&picture->text, &picture->capacity, picture->n_bytes + bytes + 1, 1) != SHOAL_OK) {
        return -1;
    }
    memcpy(picture->text + picture->n_bytes, text, bytes);
    picture->n_bytes += bytes;
    picture->text[picture->n_bytes] = '\0';
    return 0;
}

static shoal_status draw(const struct shoal_graph *graph, const struct dot_marks *marks,
                         struct pass_picture *picture)
{
    shoal_status status = graph_print_dot_marked(graph, marks, keep, picture);
    return status == SHOAL_ERR_CANCELLED
               ? error_set(SHOAL_ERR_NO_MEMORY, "no memory for a picture of %zu nodes", graph->n_nodes)
               : status;
}

shoal_status pass_dot_begin(struct pass_dot *dot, const struct shoal_graph *graph, const char *prefix,
                            const char *label)
{
    *dot = (struct pass_dot){.prefix = prefix, .label = label, .n_ids = graph->n_ids};
    if (!prefix) {
        return SHOAL_OK;
    }
    /* Relaxed: the number only has to differ each time. */
    dot->number = atomic_fetch_add_explicit(&n_begun, 1, memory_order_relaxed);
    dot->is_erased = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(dot->is_erased[0]));
    if (!dot->is_erased) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(draw(graph, &(struct dot_marks){.what = "erased by the pass"}, &dot->input));
    char *brace = strrchr(dot->input.text, '}');
    dot->input.n_bytes = brace ? (size_t)(brace - dot->input.text) : dot->input.n_bytes;
    return SHOAL_OK;
}

void pass_dot_erased(struct pass_dot *dot, const struct shoal_node *node)
{
    if (dot->is_erased && node->id < dot->n_ids) {
        dot->is_erased[node->id] = true;
    }
}

void pass_dot_end(struct pass_dot *dot)
{
    mem_free(dot->input.text);
    mem_free(dot->is_erased);
    *dot = (struct pass_dot){.prefix = NULL};
}

/* Files --------------------------------------------------------------------------------------------------- */

struct file {
    char path[4096];
    int fd;
};

static shoal_status fail(const struct file *file, int code)
{
    return error_set(SHOAL_ERR_SYSTEM, "dot_prefix: %.256s: %s", file->path, error_errno_text(code));
}

static shoal_status write_file(struct file *file, const struct pass_dot *dot, const char *which,
                               const struct pass_picture *picture)
{
    int bytes = snprintf(file->path, sizeof(file->path), "%spass_%u_%s_%s_graph.dot", dot->prefix,
                         dot->number, dot->label, which);
    if (bytes < 0 || (size_t)bytes >= sizeof(file->path)) {
        return error_set(SHOAL_ERR_INVALID, "dot_prefix has %zu characters, which is too long for a path",
                         strlen(dot->prefix));
    }
    struct stat info;
    file->fd = open(file->path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        return fail(file, errno);
    }
    if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode)) { /* a pipe's reader might never read */
        (void)close(file->fd);
        return error_set(SHOAL_ERR_INVALID, "dot_prefix: %.256s is not a regular file", file->path);
    }
    int code = write_all(file->fd, picture->text, picture->n_bytes);
    if (close(file->fd) != 0 && code == 0) {
        code = errno;
    }
    return code == 0 ? SHOAL_OK : fail(file, code);
}

/* Adds up the hashes of lines: the order of nodes is none of the picture. */
static uint64_t hash_picture(const struct pass_dot *dot, const struct pass_picture *picture)
{
    uint64_t hash = hash_bytes(0, dot->prefix, strlen(dot->prefix));
    for (const char *line = picture->text; *line;) {
        size_t bytes = strcspn(line, "\n");
        hash += hash_bytes(1, line, bytes);
        line += bytes + (line[bytes] == '\n' ? 1 : 0);
    }
    return hash;
}

/* Writes a picture, unless the last one of its kind of this graph was the same: a pass of which one part has changed the
   graph has the pictures of that part. */
static shoal_status write_new(const struct pass_dot *dot, const char *which,
                              const struct pass_picture *picture, uint64_t *last)
{
    uint64_t hash = hash_picture(dot, picture);
    if (*last == hash) {
        return SHOAL_OK;
    }
    *last = hash;
    struct file *file = mem_alloc_zeroed(1, sizeof(*file));
    if (!file) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = write_file(file, dot, which, picture);
    mem_free(file);
    return status;
}

static shoal_status write_input(struct pass_dot *dot, uint64_t *last)
{
    for (uint32_t id = 0; id < dot->n_ids; id++) {
        char line[64];
        if (dot->is_erased[id]) {
            int bytes = snprintf(line, sizeof(line), "    n%u [fillcolor=yellow];\n", (unsigned)id);
            if (keep(&dot->input, line, (size_t)bytes) != 0) {
                return SHOAL_ERR_NO_MEMORY;
            }
        }
    }
    return keep(&dot->input, "}\n", 2) == 0 ? write_new(dot, "input", &dot->input, last)
                                            : SHOAL_ERR_NO_MEMORY;
}

static shoal_status write_output(const struct pass_dot *dot, const struct shoal_graph *graph, uint64_t *last)
{
    struct pass_picture picture = {.n_bytes = 0};
    bool *is_new = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(is_new[0]));
    if (!is_new) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (uint32_t id = dot->n_ids; id < graph->n_ids; id++) {
        is_new[id] = true;
    }
    const struct dot_marks marks = {.is_marked = is_new, .n_marks = graph->n_ids, .what = "made by the pass"};
    shoal_status status = draw(graph, &marks, &picture);
    if (status == SHOAL_OK) {
        status = write_new(dot, "output", &picture, last);
    }
    mem_free(picture.text);
    mem_free(is_new);
    return status;
}

shoal_status pass_dot_write(struct pass_dot *dot, struct shoal_graph *graph)
{
    if (!dot->prefix) {
        return SHOAL_OK;
    }
    TRY(write_input(dot, &graph->drawn[0]));
    return write_output(dot, graph, &graph->drawn[1]);
}
