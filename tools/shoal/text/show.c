/* SPDX-License-Identifier: MIT */
/* Tokens may end in the middle of a character, so the beginning of one waits for the next bytes. */
#include "text/show.h"
#include "text/unicode.h"

#include <stdbool.h>
#include <string.h>

static bool is_printed(uint32_t code)
{
    bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
    return code != UNICODE_INVALID && (!is_control || code == '\n' || code == '\t');
}

/* Prints the first character that is pending, or its first byte if it is none. */
static void print_first(struct show *show)
{
    uint32_t code;
    size_t length = unicode_read(show->pending, show->n_pending, &code);
    if (is_printed(code)) {
        (void)fwrite(show->pending, 1, length, show->out);
    } else {
        for (size_t i = 0; i < length; i++) {
            fprintf(show->out, "\\x%02x", (unsigned)(unsigned char)show->pending[i]);
        }
    }
    show->last = code == '\n' ? '\n' : 0;
    show->n_pending -= length;
    memmove(show->pending, show->pending + length, show->n_pending);
}

void show_bytes(struct show *show, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        show->pending[show->n_pending++] = bytes[i];
        while (show->n_pending > 0 && !unicode_is_cut(show->pending, show->n_pending)) {
            print_first(show);
        }
    }
}

void show_end(struct show *show)
{
    while (show->n_pending > 0) {
        print_first(show);
    }
    if (show->last != '\n') {
        (void)fputc('\n', show->out);
    }
}
