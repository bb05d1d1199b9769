/* SPDX-License-Identifier: MIT */
/*
 * The loops of ops/attention_blocks.c over one tile: some queries, one in each lane of the vectors, and any number of keys, one in
 * each row. Each query is computed independently of the others, from its first key to its last, so tiles of every width
 * give the same bits. All variants of floats (vector.h) give the same bits too; a BLAS would not, so none is used here.
 * Elements are floats or, in nn_attention_f64, doubles.
 *
 * Tiles are stored row by row. Strides are in elements.
 */
#ifndef NN_MATH_ATTENTION_LOOPS_H
#define NN_MATH_ATTENTION_LOOPS_H

#include <stdbool.h>
#include <stddef.h>

/* c [rows, columns of a tile] = or += a b, with b [depth, columns]. */
struct nn_tile_product {
    size_t n_rows;
    size_t depth;
    const void *a;
    size_t a_stride;
    const void *b;
    size_t b_stride;
    void *c;
    size_t c_stride;
    bool adds;
};

/* The softmax of the queries of a tile, so far: a number for each. */
struct nn_tile_softmax {
    void *largest; /* score; -infinity before the first keys */
    void *sum;     /* of exp(score - largest) */
    void *factors; /* what the last keys changed: exp(largest before - largest) */
};

struct nn_attention_loops {
    size_t n_rows;    /* rows that are computed together: a panel of columns is so wide */
    size_t n_columns; /* queries of a tile; at most NN_TILE_COLUMNS, which is a multiple */

    /* a [rows, depth], its elements along the depth beside each other. */
    void (*multiply_rows)(const struct nn_tile_product *product);
    /* a [depth, rows] in panels, as pack_columns makes them, and c made fit first: c = c * factors + a b, where there
       are factors for the columns. c has the rows of whole panels; a_stride is that between panels. */
    void (*multiply_columns)(const struct nn_tile_product *product, const void *factors);

    /* Scores [n_keys, columns] become weights, not yet divided by their sum. */
    void (*weigh)(size_t n_keys, void *scores, const struct nn_tile_softmax *softmax);
    /* lse = largest + log(sum); sum = 1 / sum */
    void (*finish)(const struct nn_tile_softmax *softmax, void *lse);
    /* Scores become weights, and gradients of weights those of scores: w (g - mean). `kept` has the factors of dropout
       [n_keys, columns], or is NULL; the weights are those after it. */
    void (*weigh_again)(size_t n_keys, size_t stride, void *scores, void *gradients, const void *lse,
                        const void *means, const void *kept);
    /* x *= by, each of [n_rows, columns]. */
    void (*multiply)(size_t n_rows, void *x, const void *by);

    /* Rows [n, size] to a tile [size, columns], times a scale; columns from n on are 0. */
    void (*transpose)(size_t n, size_t size, const void *from, size_t stride, double scale, void *to);
    /* A tile [size, columns] to rows [n, size], times a factor for each column. */
    void (*transpose_back)(size_t n, size_t size, const void *from, const void *factors, void *to,
                           size_t stride);
    /* Rows [n, size] to panels [n, width] of columns, times a scale, behind each other; the last one is filled up with
       0. The width is n_columns or, for multiply_columns, n_rows. */
    void (*pack_rows)(size_t n, size_t size, const void *from, size_t stride, double scale, void *to);
    void (*pack_columns)(size_t n, size_t size, const void *from, size_t stride, double scale, void *to);
    /* The sum of a[i] * b[i]. */
    double (*sum_of_products)(size_t n, const void *a, const void *b);
};

#define NN_TILE_COLUMNS 64

extern const struct nn_attention_loops nn_attention_f64;

#endif
