/* SPDX-License-Identifier: MIT */
/*
 * The loops of attention_loops.h. The including file defines the operations that vector_loops.h lists, and these:
 *
 *     element                        float or double
 *     TILE_ROWS, TILE_COLUMNS        the size of a tile
 *     TILE_VECTORS                   vectors of a row whose sums are kept in registers at a time
 *     quad, load_quad, element_at    four elements; a vector filled with one of them
 *     larger(a, b)                   a where a > b, else b
 *     exp_of_difference              exp x for x up to 1; 0 where the result is not a normal number
 */
#include <stdint.h>

#include "math/attention_loops.h"

enum {
    PART_COLUMNS = TILE_VECTORS * LANES, /* of a tile, whose sums lie in registers */
    QUAD = 4
};

#if NN_TILE_COLUMNS % TILE_COLUMNS != 0 || TILE_COLUMNS % (TILE_VECTORS * LANES) != 0
#error "a block of queries is cut into whole tiles, and these into whole parts"
#endif

/* Sums stay in registers only where loops over them leave no loop. */
#define UNROLLED _Pragma("GCC unroll 16")

/* Products --------------------------------------------------------------------------------------------- */

/* Some columns of a tile. */
struct tile {
    vector at[TILE_ROWS][TILE_VECTORS];
};

static inline void clear_tile(struct tile *tile)
{
    UNROLLED
    for (int r = 0; r < TILE_ROWS; r++) {
        UNROLLED
        for (int v = 0; v < TILE_VECTORS; v++) {
            tile->at[r][v] = all(0);
        }
    }
}

/* c of the first n rows = or += the tile. */
static inline void store_tile(const struct tile *tile, size_t n, bool adds, element *c, size_t c_stride)
{
    if (n < TILE_ROWS) {
        element whole[TILE_ROWS][PART_COLUMNS];
        UNROLLED
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLLED
            for (int v = 0; v < TILE_VECTORS; v++) {
                store(&whole[r][v * LANES], tile->at[r][v]);
            }
        }
        for (size_t r = 0; r < n; r++) {
            for (size_t i = 0; i < PART_COLUMNS; i++) {
                c[r * c_stride + i] = adds ? c[r * c_stride + i] + whole[r][i] : whole[r][i];
            }
        }
        return;
    }
    UNROLLED
    for (size_t r = 0; r < TILE_ROWS; r++) {
        UNROLLED
        for (size_t v = 0; v < TILE_VECTORS; v++) {
            element *to = c + r * c_stride + v * LANES;
            store(to, adds ? load(to) + tile->at[r][v] : tile->at[r][v]);
        }
    }
}

/* One step of the sum: row r's element is element `lane` of quad r. */
static inline void add_step(struct tile *tile, const quad *a, int lane, const element *b)
{
    vector columns[TILE_VECTORS];
    UNROLLED
    for (int v = 0; v < TILE_VECTORS; v++) {
        columns[v] = load(b + v * LANES);
    }
    UNROLLED
    for (int r = 0; r < TILE_ROWS; r++) {
        UNROLLED
        for (int v = 0; v < TILE_VECTORS; v++) {
            tile->at[r][v] = multiply_add(columns[v], element_at(a[r], lane), tile->at[r][v]);
        }
    }
}

/* Rows of the product, of which n are wanted, in the columns from `column` on. */
static inline void multiply_some_rows(const struct nn_tile_product *product, const element *const *rows,
                                      size_t n, size_t column, element *c)
{
    const element *b = (const element *)product->b + column;
    const size_t stride = product->b_stride;
    struct tile tile;
    clear_tile(&tile);
    size_t k = 0;
    for (; k + QUAD <= product->depth; k += QUAD) {
        quad a[TILE_ROWS];
        UNROLLED
        for (int r = 0; r < TILE_ROWS; r++) {
            a[r] = load_quad(rows[r] + k);
        }
        add_step(&tile, a, 0, b);
        add_step(&tile, a, 1, b + stride);
        add_step(&tile, a, 2, b + 2 * stride);
        add_step(&tile, a, 3, b + 3 * stride);
        b += QUAD * stride;
    }
    for (; k < product->depth; k++) {
        UNROLLED
        for (int v = 0; v < TILE_VECTORS; v++) {
            vector x = load(b + v * LANES);
            UNROLLED
            for (int r = 0; r < TILE_ROWS; r++) {
                tile.at[r][v] = multiply_add(x, all(rows[r][k]), tile.at[r][v]);
            }
        }
        b += stride;
    }
    store_tile(&tile, n, product->adds, c + column, product->c_stride);
}

/* What lacks to a tile's rows is the last row again. */
static void multiply_rows(const struct nn_tile_product *product)
{
    for (size_t first = 0; first < product->n_rows; first += TILE_ROWS) {
        const element *rows[TILE_ROWS];
        const size_t n_left = product->n_rows - first;
        element *c = (element *)product->c + first * product->c_stride;
        for (size_t r = 0; r < TILE_ROWS; r++) {
            size_t row = first + (r < n_left ? r : n_left - 1);
            rows[r] = (const element *)product->a + row * product->a_stride;
        }
        for (size_t column = 0; column < TILE_COLUMNS; column += PART_COLUMNS) {
            multiply_some_rows(product, rows, n_left < TILE_ROWS ? n_left : TILE_ROWS, column, c);
        }
    }
}

/* One panel, in some columns. */
static inline void multiply_panel(const struct nn_tile_product *product, const element *a, const element *b,
                                  const element *factors, element *c)
{
    struct tile tile;
    clear_tile(&tile);
    for (size_t k = 0; k < product->depth; k++) {
        quad quads[(TILE_ROWS + QUAD - 1) / QUAD];
        vector columns[TILE_VECTORS];
        UNROLLED
        for (int r = 0; r < TILE_ROWS; r += QUAD) {
            quads[r / QUAD] = load_quad(a + r);
        }
        UNROLLED
        for (int v = 0; v < TILE_VECTORS; v++) {
            columns[v] = load(b + v * LANES);
        }
        UNROLLED
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLLED
            for (int v = 0; v < TILE_VECTORS; v++) {
                tile.at[r][v] =
                    multiply_add(columns[v], element_at(quads[r / QUAD], r % QUAD), tile.at[r][v]);
            }
        }
        a += TILE_ROWS;
        b += product->b_stride;
    }
    UNROLLED
    for (int r = 0; r < TILE_ROWS && factors; r++) {
        UNROLLED
        for (int v = 0; v < TILE_VECTORS; v++) {
            vector before = load(c + (size_t)r * product->c_stride + v * LANES);
            tile.at[r][v] = multiply_add(before, load(factors + v * LANES), tile.at[r][v]);
        }
    }
    store_tile(&tile, TILE_ROWS, product->adds && !factors, c, product->c_stride);
}

static void multiply_columns(const struct nn_tile_product *product, const void *factors_of_columns)
{
    const element *factors = factors_of_columns;
    const element *a = product->a;
    const element *b = product->b;
    element *c = product->c;
    for (size_t first = 0; first < product->n_rows; first += TILE_ROWS) {
        for (size_t column = 0; column < TILE_COLUMNS; column += PART_COLUMNS) {
            multiply_panel(product, a, b + column, factors ? factors + column : NULL, c + column);
        }
        a += product->a_stride;
        c += product->c_stride * TILE_ROWS;
    }
}

/* Softmax ---------------------------------------------------------------------------------------------- */

enum {
    ROWS_TOGETHER = 4
};

static inline void find_largest(size_t n, const element *scores, vector largest[TILE_VECTORS])
{
    vector found[ROWS_TOGETHER][TILE_VECTORS];
    for (int r = 0; r < ROWS_TOGETHER; r++) {
        for (int v = 0; v < TILE_VECTORS; v++) {
            found[r][v] = largest[v];
        }
    }
    size_t k = 0;
    for (; k + ROWS_TOGETHER <= n; k += ROWS_TOGETHER) {
        for (int r = 0; r < ROWS_TOGETHER; r++) {
            for (int v = 0; v < TILE_VECTORS; v++) {
                vector next = load(scores + (k + (size_t)r) * TILE_COLUMNS + v * LANES);
                found[r][v] = larger(next, found[r][v]);
            }
        }
    }
    for (int v = 0; v < TILE_VECTORS; v++) {
        largest[v] = larger(larger(found[0][v], found[1][v]), larger(found[2][v], found[3][v]));
        for (size_t i = k; i < n; i++) {
            largest[v] = larger(load(scores + i * TILE_COLUMNS + v * LANES), largest[v]);
        }
    }
}

/* Four at a time, added in pairs: the sums of a few hundred have the error of some dozens. */
static inline void sum_weights(size_t n, element *scores, const vector shift[TILE_VECTORS],
                               vector sums[TILE_VECTORS])
{
    size_t k = 0;
    for (; k + ROWS_TOGETHER <= n; k += ROWS_TOGETHER) {
        for (int v = 0; v < TILE_VECTORS; v++) {
            vector values[ROWS_TOGETHER];
            element *at = scores + k * TILE_COLUMNS + (size_t)v * LANES;
            for (int r = 0; r < ROWS_TOGETHER; r++) {
                values[r] = exp_of_difference(load(at + r * TILE_COLUMNS) - shift[v]);
            }
            for (int r = 0; r < ROWS_TOGETHER; r++) {
                store(at + r * TILE_COLUMNS, values[r]);
            }
            sums[v] = sums[v] + ((values[0] + values[1]) + (values[2] + values[3]));
        }
    }
    for (; k < n; k++) {
        for (int v = 0; v < TILE_VECTORS; v++) {
            element *at = scores + k * TILE_COLUMNS + (size_t)v * LANES;
            vector value = exp_of_difference(load(at) - shift[v]);
            store(at, value);
            sums[v] = sums[v] + value;
        }
    }
}

/* In the columns from `column` on. */
static inline void weigh_some(size_t n_keys, element *scores, const struct nn_tile_softmax *softmax,
                              size_t column)
{
    element *largest_before = (element *)softmax->largest + column;
    element *sum = (element *)softmax->sum + column;
    element *factors = (element *)softmax->factors + column;
    vector largest[TILE_VECTORS];
    vector shift[TILE_VECTORS];
    vector sums[TILE_VECTORS];
    const vector none = all(-(element)INFINITY);
    for (int v = 0; v < TILE_VECTORS; v++) {
        largest[v] = load(largest_before + v * LANES);
        sums[v] = all(0);
    }
    find_largest(n_keys, scores + column, largest);
    for (int v = 0; v < TILE_VECTORS; v++) {
        /* Where all scores are -infinity, so far, 0 takes the place of the largest: the weights are 0, not NaN. */
        shift[v] = choose(is_equal(largest[v], none), all(0), largest[v]);
    }
    sum_weights(n_keys, scores + column, shift, sums);
    for (int v = 0; v < TILE_VECTORS; v++) {
        vector factor = exp_of_difference(load(largest_before + v * LANES) - shift[v]);
        store(factors + v * LANES, factor);
        store(sum + v * LANES, multiply_add(load(sum + v * LANES), factor, sums[v]));
        store(largest_before + v * LANES, largest[v]);
    }
}

static void weigh(size_t n_keys, void *scores, const struct nn_tile_softmax *softmax)
{
    for (size_t column = 0; column < TILE_COLUMNS; column += PART_COLUMNS) {
        weigh_some(n_keys, scores, softmax, column);
    }
}

static void finish(const struct nn_tile_softmax *softmax, void *lse)
{
    for (int i = 0; i < TILE_COLUMNS; i += LANES) {
        vector sum = load((element *)softmax->sum + i);
        store((element *)lse + i, load((element *)softmax->largest + i) + log_of(sum));
        store((element *)softmax->sum + i, all(1) / sum);
    }
}

static void weigh_again(size_t n_keys, size_t stride, void *scores, void *gradients, const void *lse,
                        const void *means, const void *kept)
{
    for (size_t k = 0; k < n_keys; k++) {
        element *w = (element *)scores + k * stride;
        element *g = (element *)gradients + k * stride;
        const element *factors = kept ? (const element *)kept + k * TILE_COLUMNS : NULL;
        for (int i = 0; i < TILE_COLUMNS; i += LANES) {
            vector weight = exp_of_difference(load(w + i) - load((const element *)lse + i));
            vector gradient = factors ? load(g + i) * load(factors + i) : load(g + i);
            store(g + i, weight * (gradient - load((const element *)means + i)));
            store(w + i, factors ? weight * load(factors + i) : weight);
        }
    }
}

static void multiply_all(size_t n_rows, void *x, const void *by)
{
    for (size_t i = 0; i < n_rows * TILE_COLUMNS; i += LANES) {
        store((element *)x + i, load((element *)x + i) * load((const element *)by + i));
    }
}

/* Copies ----------------------------------------------------------------------------------------------- */

static void transpose(size_t n, size_t size, const void *from, size_t stride, double scale, void *to)
{
    const element *x = from;
    element *y = to;
    const element by = (element)scale;
    size_t i = 0;
    for (; i + QUAD <= size; i += QUAD) {
        for (size_t q = 0; q + QUAD <= n; q += QUAD) {
            element block[QUAD][QUAD];
            for (size_t r = 0; r < QUAD; r++) {
                for (size_t c = 0; c < QUAD; c++) {
                    block[c][r] = x[(q + r) * stride + i + c] * by;
                }
            }
            for (size_t r = 0; r < QUAD; r++) {
                memcpy(y + (i + r) * TILE_COLUMNS + q, block[r], sizeof(block[r]));
            }
        }
    }
    size_t n_done = n / QUAD * QUAD;
    for (size_t d = 0; d < size; d++) {
        for (size_t q = d < i ? n_done : 0; q < TILE_COLUMNS; q++) {
            y[d * TILE_COLUMNS + q] = q < n ? x[q * stride + d] * by : 0;
        }
    }
}

static void transpose_back(size_t n, size_t size, const void *from, const void *factors, void *to,
                           size_t stride)
{
    const element *x = from;
    const element *by = factors;
    element *y = to;
    size_t i = 0;
    for (; i + QUAD <= size; i += QUAD) {
        for (size_t q = 0; q + QUAD <= n; q += QUAD) {
            element block[QUAD][QUAD];
            for (size_t r = 0; r < QUAD; r++) {
                for (size_t c = 0; c < QUAD; c++) {
                    block[c][r] = x[(i + r) * TILE_COLUMNS + q + c] * by[q + c];
                }
            }
            for (size_t r = 0; r < QUAD; r++) {
                memcpy(y + (q + r) * stride + i, block[r], sizeof(block[r]));
            }
        }
    }
    size_t n_done = n / QUAD * QUAD;
    for (size_t d = 0; d < size; d++) {
        for (size_t q = d < i ? n_done : 0; q < n; q++) {
            y[q * stride + d] = x[d * TILE_COLUMNS + q] * by[q];
        }
    }
}

static inline void pack(size_t width, size_t n, size_t size, const element *from, size_t stride, element by,
                        element *to)
{
    for (size_t first = 0; first < size; first += width) {
        size_t n_copied = size - first < width ? size - first : width;
        for (size_t i = 0; i < n; i++) {
            const element *x = from + i * stride + first;
            if (n_copied == width) {
                for (size_t c = 0; c < width; c++) {
                    to[c] = x[c] * by;
                }
            } else {
                for (size_t c = 0; c < width; c++) {
                    to[c] = c < n_copied ? x[c] * by : 0;
                }
            }
            to += width;
        }
    }
}

static void pack_rows(size_t n, size_t size, const void *from, size_t stride, double scale, void *to)
{
    pack(TILE_COLUMNS, n, size, from, stride, (element)scale, to);
}

static void pack_columns(size_t n, size_t size, const void *from, size_t stride, double scale, void *to)
{
    pack(TILE_ROWS, n, size, from, stride, (element)scale, to);
}

static double multiply_and_sum(size_t n, const void *a, const void *b)
{
    return loop_sum_of_products(n, a, b);
}

#define ATTENTION_LOOPS                                                                                     \
    {                                                                                                       \
        .n_rows = TILE_ROWS, .n_columns = TILE_COLUMNS, .multiply_rows = multiply_rows,                     \
        .multiply_columns = multiply_columns, .weigh = weigh, .finish = finish, .weigh_again = weigh_again, \
        .multiply = multiply_all, .transpose = transpose, .transpose_back = transpose_back,                 \
        .pack_rows = pack_rows, .pack_columns = pack_columns, .sum_of_products = multiply_and_sum           \
    }
