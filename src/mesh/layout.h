/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of meshes. The ranks of the mesh that a family began with are numbered row-major; these numbers are
 * their positions. A dimension of any mesh of the family is a line: some digits of the position, as in a number with
 * mixed bases, read as one number, the first digit being the most significant. Flattening joins lines, unflattening
 * cuts one, slicing leaves lines out; digits that are left out keep the caller's values.
 */
#ifndef MESH_LAYOUT_H
#define MESH_LAYOUT_H

#include <stdbool.h>

/* Digits have at least two values and all together at most INT_MAX. */
#define MESH_MAX_DIGITS 30

struct mesh_digit {
    int size;
    int stride; /* by how much the position grows with the digit */
};

/* No digit has size 1, and neighbours that could be one digit are one: equal lines have equal digits. */
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

/* Cuts a line into n parts whose sizes multiply to its own. False when a part would have to begin inside a digit. */
bool mesh_line_split(const struct mesh_line *line, const int *sizes, int n_parts, struct mesh_line *parts);

bool mesh_line_equal(const struct mesh_line *a, const struct mesh_line *b);

/* True when the lines share a digit, or parts of one: there is no array with both as dimensions. */
bool mesh_lines_overlap(const struct mesh_line *a, const struct mesh_line *b);

#endif
