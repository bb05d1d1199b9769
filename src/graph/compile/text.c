/* SPDX-License-Identifier: MIT */
#include "graph/compile/text.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "graph/text/excerpt.h"

struct text {
    char *bytes;
    size_t n_bytes;
    size_t capacity;
};

static int append(void *context, const char *piece, size_t n_bytes)
{
    struct text *text = context;
    if (mem_grow((void **)&text->bytes, &text->capacity, text->n_bytes + n_bytes + 1, 1) != SHOAL_OK) {
        return 1;
    }
    memcpy(text->bytes + text->n_bytes, piece, n_bytes);
    text->n_bytes += n_bytes;
    text->bytes[text->n_bytes] = '\0';
    return 0;
}

shoal_status compile_text(const shoal_graph *graph, char **text_out)
{
    struct text text = {.bytes = NULL};
    shoal_status status = shoal_graph_print(graph, append, &text);
    if (status != SHOAL_OK) {
        mem_free(text.bytes);
        return status == SHOAL_ERR_CANCELLED ? SHOAL_ERR_NO_MEMORY : status;
    }
    *text_out = text.bytes;
    return SHOAL_OK;
}

/* Returns the length of the line at *text, and moves *text to the next line. */
static size_t take_line(const char **text)
{
    size_t n_bytes = strcspn(*text, "\n");
    *text += n_bytes + ((*text)[n_bytes] == '\n');
    return n_bytes;
}

shoal_status compile_compare(const char *was, const char *is)
{
    for (size_t line = 1; *was || *is; line++) {
        const char *old = was;
        const char *now = is;
        size_t n_old = take_line(&was);
        size_t n_now = take_line(&is);
        if (was - old != is - now || memcmp(old, now, (size_t)(was - old)) != 0) {
            char texts[2][EXCERPT_BYTES];
            size_t column = excerpt_find(old, n_old, now, n_now);
            excerpt_write(texts[0], old, n_old, column);
            excerpt_write(texts[1], now, n_now, column);
            return error_set(SHOAL_ERR_STATE,
                             "SHOAL_COMPILE_CHECK: the step has changed since it was compiled: line %zu was "
                             "\"%s\" and is \"%s\"",
                             line, texts[0], texts[1]);
        }
    }
    return SHOAL_OK;
}
