/* SPDX-License-Identifier: MIT */
/* Helpers of the functions that print graphs and plans. */
#include "graph/text/writer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "graph/ir/graph.h"

shoal_status writer_begin(struct writer *writer, const char *call, const shoal_graph *graph,
                          shoal_graph_write write, void *context)
{
    if (!graph || !write) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s is NULL", call, graph ? "write" : "graph");
    }
    writer->write = write;
    writer->context = context;
    writer->status = SHOAL_OK;
    writer->n_bytes = 0;
    return SHOAL_OK;
}

static void flush(struct writer *writer)
{
    if (writer->status == SHOAL_OK && writer->n_bytes > 0) {
        int answer = writer->write(writer->context, writer->bytes, writer->n_bytes);
        if (answer != 0) {
            writer->status =
                error_set(SHOAL_ERR_CANCELLED, "the function that takes the text returned %d", answer);
        }
    }
    writer->n_bytes = 0;
}

shoal_status writer_end(struct writer *writer)
{
    flush(writer);
    return writer->status;
}

void writer_add(struct writer *writer, const char *text, size_t bytes)
{
    while (bytes > 0 && writer->status == SHOAL_OK) {
        size_t room = sizeof writer->bytes - writer->n_bytes;
        size_t n = bytes < room ? bytes : room;
        memcpy(writer->bytes + writer->n_bytes, text, n);
        writer->n_bytes += n;
        text += n;
        bytes -= n;
        if (writer->n_bytes == sizeof writer->bytes) {
            flush(writer);
        }
    }
}

void writer_add_string(struct writer *writer, const char *string)
{
    writer_add(writer, string, strlen(string));
}

void writer_add_format(struct writer *writer, const char *format, ...)
{
    char text[128];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    writer_add(writer, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

void writer_add_int(struct writer *writer, int64_t number)
{
    writer_add_format(writer, "%" PRId64, number);
}

/* Returns the letter that is written after a backslash for a character; 0 if it has none. */
static char escape_letter(char c)
{
    switch (c) {
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    case '"':
    case '\\':
        return c;
    default:
        return 0;
    }
}

void writer_add_quoted(struct writer *writer, const char *string)
{
    writer_add(writer, "\"", 1);
    for (const char *c = string; *c; c++) {
        char letter = escape_letter(*c);
        if (letter) {
            writer_add(writer, (char[]){'\\', letter}, 2);
        } else if ((unsigned char)*c < 0x20 || *c == 0x7F) {
            writer_add_format(writer, "\\x%02x", (unsigned)(unsigned char)*c);
        } else {
            writer_add(writer, c, 1);
        }
    }
    writer_add(writer, "\"", 1);
}

void writer_add_name(struct writer *writer, char sign, const char *name)
{
    writer_add(writer, &sign, 1);
    writer_add_string(writer, name);
}

static void add_numbers(struct writer *writer, int n_dims, const int64_t *numbers)
{
    for (int i = 0; i < n_dims; i++) {
        writer_add_string(writer, i > 0 ? ", " : "");
        writer_add_int(writer, numbers[i]);
    }
}

void writer_add_type(struct writer *writer, const shoal_tensor *tensor, bool has_strides)
{
    int n_dims = shoal_tensor_n_dims(tensor);
    writer_add_string(writer, shoal_dtype_name(shoal_tensor_dtype(tensor)));
    writer_add(writer, "[", 1);
    add_numbers(writer, n_dims, shoal_tensor_shape(tensor));
    writer_add(writer, "]", 1);
    if (has_strides && !shoal_tensor_is_contiguous(tensor)) {
        writer_add(writer, "{", 1);
        add_numbers(writer, n_dims, shoal_tensor_strides(tensor));
        writer_add(writer, "}", 1);
    }
}

void writer_add_values(struct writer *writer, const shoal_node *node, bool has_strides, size_t most)
{
    if (!node->is_list) {
        if (node->n_values > 0) {
            writer_add_type(writer, node->values[0], has_strides);
        } else {
            writer_add_string(writer, "none");
        }
        return;
    }
    writer_add(writer, "[", 1);
    for (size_t i = 0; i < node->n_values; i++) {
        writer_add_string(writer, i > 0 ? ", " : "");
        if (i == most) {
            writer_add_string(writer, "...");
            break;
        }
        writer_add_type(writer, node->values[i], has_strides);
    }
    writer_add(writer, "]", 1);
}
