/* SPDX-License-Identifier: MIT */
/* Computes the lines of a mesh from the digits of a position. */
#include "mesh/layout.h"

static void append_digit(struct mesh_line *line, struct mesh_digit digit)
{
    if (digit.size == 1) {
        return;
    }
    if (line->n_digits > 0) {
        struct mesh_digit *last = &line->digits[line->n_digits - 1];
        if (last->stride == digit.size * digit.stride) {
            *last = (struct mesh_digit){.size = last->size * digit.size, .stride = digit.stride};
            return;
        }
    }
    line->digits[line->n_digits] = digit;
    line->n_digits++;
}

void mesh_line_init(struct mesh_line *line, int size, int stride)
{
    line->size = size;
    line->n_digits = 0;
    append_digit(line, (struct mesh_digit){.size = size, .stride = stride});
}

int mesh_line_offset(const struct mesh_line *line, int index)
{
    int offset = 0;
    for (int i = line->n_digits - 1; i >= 0; i--) {
        const struct mesh_digit *digit = &line->digits[i];
        offset += index % digit->size * digit->stride;
        index /= digit->size;
    }
    return offset;
}

int mesh_line_index(const struct mesh_line *line, int position)
{
    int index = 0;
    for (int i = 0; i < line->n_digits; i++) {
        const struct mesh_digit *digit = &line->digits[i];
        index = index * digit->size + position / digit->stride % digit->size;
    }
    return index;
}

void mesh_line_append(struct mesh_line *line, const struct mesh_line *inner)
{
    line->size *= inner->size;
    for (int i = 0; i < inner->n_digits; i++) {
        append_digit(line, inner->digits[i]);
    }
}

/* Takes the lowest part, of `size` values, off a line. */
static bool split_off(struct mesh_line *line, int size, struct mesh_line *part)
{
    /* What was taken, lowest digit first. */
    struct mesh_digit taken[MESH_MAX_DIGITS];
    int n_taken = 0;
    int left = size;
    while (left > 1) {
        struct mesh_digit *last = &line->digits[line->n_digits - 1];
        if (left % last->size == 0) {
            taken[n_taken] = *last;
            left /= last->size;
            line->n_digits--;
        } else if (last->size % left == 0) {
            taken[n_taken] = (struct mesh_digit){.size = left, .stride = last->stride};
            last->size /= left;
            last->stride *= left;
            left = 1;
        } else {
            return false;
        }
        n_taken++;
    }
    line->size /= size;
    mesh_line_init(part, 1, 1);
    part->size = size;
    for (int i = n_taken - 1; i >= 0; i--) {
        append_digit(part, taken[i]);
    }
    return true;
}

bool mesh_line_split(const struct mesh_line *line, const int *sizes, int n_parts, struct mesh_line *parts)
{
    struct mesh_line rest = *line;
    for (int i = n_parts - 1; i >= 0; i--) {
        if (!split_off(&rest, sizes[i], &parts[i])) {
            return false;
        }
    }
    return true;
}

bool mesh_line_equal(const struct mesh_line *a, const struct mesh_line *b)
{
    if (a->size != b->size || a->n_digits != b->n_digits) {
        return false;
    }
    for (int i = 0; i < a->n_digits; i++) {
        if (a->digits[i].size != b->digits[i].size || a->digits[i].stride != b->digits[i].stride) {
            return false;
        }
    }
    return true;
}

/* Digits do not overlap if the stride of the higher one is a multiple of the range of the lower one. */
static bool digits_overlap(const struct mesh_digit *a, const struct mesh_digit *b)
{
    const struct mesh_digit *high = a->stride > b->stride ? a : b;
    const struct mesh_digit *low = high == a ? b : a;
    return high->stride % (low->stride * low->size) != 0;
}

bool mesh_lines_overlap(const struct mesh_line *a, const struct mesh_line *b)
{
    for (int i = 0; i < a->n_digits; i++) {
        for (int j = 0; j < b->n_digits; j++) {
            if (digits_overlap(&a->digits[i], &b->digits[j])) {
                return true;
            }
        }
    }
    return false;
}
