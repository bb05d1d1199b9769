/* SPDX-License-Identifier: MIT */
/*
 * The thread's error text. Every text is put together in a local buffer and copied at the end, because the
 * arguments may point into the text they replace.
 */
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "shoal/status.h"

static _Thread_local char error_text[ERROR_TEXT_BYTES];

/* Appends to a text of `used` bytes and returns its new length; what does not fit marks the text as cut. */
static size_t append_text(char *text, size_t used, const char *more, bool *is_cut)
{
    size_t more_bytes = strlen(more);
    size_t room = ERROR_TEXT_BYTES - 1 - used;
    if (more_bytes > room) {
        more_bytes = room;
        *is_cut = true;
    }
    memcpy(text + used, more, more_bytes);
    text[used + more_bytes] = '\0';
    return used + more_bytes;
}

/* Puts "..." over the end, where a character of several bytes begins, so that the rest stays readable. */
static void mark_cut(char *text)
{
    size_t end = ERROR_TEXT_BYTES - sizeof "...";
    while (end > 0 && ((unsigned char)text[end] & 0xC0u) == 0x80u) {
        end--;
    }
    memcpy(text + end, "...", sizeof "...");
}

__attribute__((format(printf, 2, 0))) static size_t format_text(char *text, const char *format,
                                                                va_list arguments, bool *is_cut)
{
    int wanted = vsnprintf(text, ERROR_TEXT_BYTES, format, arguments);
    if (wanted < 0) {
        /* The arguments can not be printed; the words around them still can. */
        text[0] = '\0';
        return append_text(text, 0, format, is_cut);
    }
    *is_cut = *is_cut || wanted >= ERROR_TEXT_BYTES;
    return strlen(text);
}

shoal_status error_set_v(shoal_status status, const char *format, va_list arguments)
{
    char text[ERROR_TEXT_BYTES];
    bool is_cut = false;
    size_t used = format_text(text, format, arguments, &is_cut);
    if (is_cut) {
        mark_cut(text);
        used = strlen(text);
    }
    memcpy(error_text, text, used + 1);
    return status;
}

shoal_status error_set(shoal_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_v(status, format, arguments);
    va_end(arguments);
    return status;
}

shoal_status error_prefix(shoal_status status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    bool is_cut = false;
    va_list arguments;
    va_start(arguments, format);
    size_t used = format_text(text, format, arguments, &is_cut);
    va_end(arguments);
    if (error_text[0]) {
        used = append_text(text, used, ": ", &is_cut);
        used = append_text(text, used, error_text, &is_cut);
    }
    if (is_cut) {
        mark_cut(text);
        used = strlen(text);
    }
    memcpy(error_text, text, used + 1);
    return status;
}

void error_clear(void)
{
    error_text[0] = '\0';
}

const char *shoal_error_text(void)
{
    return error_text;
}
