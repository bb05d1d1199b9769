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
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/write.h"
#include "graph/text/dot.h"

static _Atomic unsigned n_begun;

static int keep(void *context, const char *text, size_t bytes)
{
    struct pass_dot *dot = context;
    if (mem_grow((void **)&dot->input, &dot->capacity, dot->n_bytes + bytes + 1, 1) != SHOAL_OK) {
        return -1;
    }
    memcpy(dot->input + dot->n_bytes, text, bytes);
    dot->n_bytes += bytes;
    dot->input[dot->n_bytes] = '\0';
    return 0;
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
    shoal_status status = graph_print_dot_marked(graph, NULL, 0, keep, dot);
    if (status == SHOAL_ERR_CANCELLED) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for a picture of %zu nodes", graph->n_nodes);
    }
    TRY(status);
    char *brace = strrchr(dot->input, '}');
    dot->n_bytes = brace ? (size_t)(brace - dot->input) : dot->n_bytes;
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
    mem_free(dot->input);
    mem_free(dot->is_erased);
    *dot = (struct pass_dot){.prefix = NULL};
}

/* Files --------------------------------------------------------------------------------------------------- */

struct file {
    char path[4096];
    int fd;
    int code; /* why it could not be written; 0 if it could */
};

static int put(void *context, const char *text, size_t bytes)
{
    struct file *file = context;
    if (file->code == 0) {
        file->code = write_all(file->fd, text, bytes);
    }
    return file->code;
}

static shoal_status file_open(struct file *file, const struct pass_dot *dot, const char *which)
{
    int bytes = snprintf(file->path, sizeof(file->path), "%spass_%u_%s_%s_graph.dot", dot->prefix,
                         dot->number, dot->label, which);
    if (bytes < 0 || (size_t)bytes >= sizeof(file->path)) {
        return error_set(SHOAL_ERR_INVALID, "dot_prefix has %zu characters, which is too long for a path",
                         strlen(dot->prefix));
    }
    file->code = 0;
    file->fd = open(file->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "dot_prefix: %.256s: %s", file->path, error_errno_text(errno));
    }
    return SHOAL_OK;
}

static shoal_status file_close(struct file *file, shoal_status status)
{
    if (close(file->fd) != 0 && file->code == 0) {
        file->code = errno;
    }
    if (file->code != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "dot_prefix: %.256s: %s", file->path,
                         error_errno_text(file->code));
    }
    return status;
}

static shoal_status write_input(struct pass_dot *dot, struct file *file)
{
    TRY(file_open(file, dot, "input"));
    (void)put(file, dot->input, dot->n_bytes);
    for (uint32_t id = 0; id < dot->n_ids; id++) {
        char line[64];
        if (dot->is_erased[id]) {
            int bytes = snprintf(line, sizeof(line), "    n%u [fillcolor=yellow];\n", (unsigned)id);
            (void)put(file, line, (size_t)bytes);
        }
    }
    (void)put(file, "}\n", 2);
    return file_close(file, SHOAL_OK);
}

static shoal_status write_output(struct pass_dot *dot, const struct shoal_graph *graph, struct file *file)
{
    bool *is_new = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(is_new[0]));
    if (!is_new) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (uint32_t id = dot->n_ids; id < graph->n_ids; id++) {
        is_new[id] = true;
    }
    shoal_status status = file_open(file, dot, "output");
    if (status == SHOAL_OK) {
        status = file_close(file, graph_print_dot_marked(graph, is_new, graph->n_ids, put, file));
    }
    mem_free(is_new);
    return status;
}

shoal_status pass_dot_write(struct pass_dot *dot, const struct shoal_graph *graph)
{
    if (!dot->prefix) {
        return SHOAL_OK;
    }
    struct file *file = mem_alloc_zeroed(1, sizeof(*file));
    if (!file) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = write_input(dot, file);
    if (status == SHOAL_OK) {
        status = write_output(dot, graph, file);
    }
    mem_free(file);
    return status;
}
