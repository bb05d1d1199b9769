/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What tells of names that did not fit, behind another one. */
#define MORE ", ..."

struct text text_begin(char *string, size_t bytes)
{
    string[0] = '\0';
    return (struct text){.string = string, .bytes = bytes};
}

void text_add(struct text *text, const char *format, ...)
{
    size_t left = text->bytes - text->length;
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text->string + text->length, left, format, arguments);
    va_end(arguments);
    text->length += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left - 1;
}

void text_add_bytes(struct text *text, uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double size = (double)bytes / 1024.0;
    if (bytes < 1024) {
        text_add(text, "%d bytes", (int)bytes);
        return;
    }
    while (size >= 1023.995 && unit + 1 < sizeof units / sizeof units[0]) {
        size /= 1024.0;
        unit++;
    }
    text_add(text, "%.2f %s", size, units[unit]);
}

void text_add_name(struct text *text, const char *between, const char *name)
{
    size_t left = text->bytes - text->length;
    if (strlen(between) + strlen(name) + sizeof MORE <= left) {
        text_add(text, "%s%s", between, name);
        return;
    }
    text_add(text, "%s...", between);
    text->bytes = text->length + 1;
}
