/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of meshes. The ranks of a family's first mesh are numbered row-major; these numbers are their
 * positions. A position is a number with digits of mixed bases. A dimension of any mesh of the family is a line: some
 * of these digits, read as one number with the most significant digit first. Flattening joins lines, unflattening
 * splits one, and slicing leaves lines out. Digits that are left out keep the values of the caller's position.
 */
#ifndef MESH_LAYOUT_H
#define MESH_LAYOUT_H

#include <stdbool.h>

/* Every digit has at least two values, and a position is at most INT_MAX. */
#define MESH_MAX_DIGITS 30

struct mesh_digit {
    int size;
    int stride; /* by how much the position grows with the digit */
};

/* No digit has size 1, and adjacent digits that could be one digit are one. So equal lines have equal digits. */
struct mesh_line {
    int size;
    int n_digits;
    struct mesh_digit digits[MESH_MAX_DIGITS];
};

void mesh_line_init(struct mesh_line *line, int size, int stride);

/* How far an index is from index 0, in positions. */
int mesh_line_offset(const struct mesh_line *line, int index);

/* The index that a position has on the line through it. */
int mesh_line_index(const struct mesh_line *line, int position);

/* line becomes (line, inner) in row-major order. */
void mesh_line_append(struct mesh_line *line, const struct mesh_line *inner);

/* Splits a line into parts whose sizes multiply to its own. False if a digit cannot be divided that way. */
bool mesh_line_split(const struct mesh_line *line, const int *sizes, int n_parts, struct mesh_line *parts);

bool mesh_line_equal(const struct mesh_line *a, const struct mesh_line *b);

/* Whether the lines have a digit, or part of one, in common: then no mesh can have both as dimensions. */
bool mesh_lines_overlap(const struct mesh_line *a, const struct mesh_line *b);

#endif
