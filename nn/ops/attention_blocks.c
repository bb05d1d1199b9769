/* SPDX-License-Identifier: MIT */
/*
 * Attention in blocks; ops/attention_blocks.h describes the method. The arithmetic on one tile is in attention_loops.h. This file
 * decides in which order tiles are computed and where their values lie in memory.
 *
 * A block of queries is cut into tiles. In a tile each query is a column (queries are transposed once, at the start)
 * and each key is a row, as in memory. So all scores, weights and results of a query stay in its column; results are
 * transposed back once, at the end. With a causal mask a tile leaves out the rows after the last key that any of its
 * queries sees, and scores that remain above the diagonal become -infinity.
 */
#include "ops/attention_blocks.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "math/attention_loops.h"
#include "math/loops.h"
#include "math/pool.h"
#include "ops/values.h"
#include "math/vector.h"

/* Keys of a block: the order of sums, and so the bits, depend on them and, backward, on the queries. */
enum {
    KEY_ROWS = 256,
    QUERY_ROWS = 128,
    BACKWARD_KEY_ROWS = 128,
    BACKWARD_QUERY_ROWS = NN_TILE_COLUMNS,
    WORD_LANES = 128 /* words are drawn so many at a time, fastest */
};

/* Places ----------------------------------------------------------------------------------------------- */

/* Some rows of one head of one sample, against some keys. */
struct block {
    int64_t sample;
    int64_t head;
    int64_t kv_head;
    int64_t first_query;
    int64_t n_queries;
    int64_t first_key;
    int64_t n_keys;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static const struct nn_attention_loops *loops_of(const struct nn_attention *attention)
{
    return attention->real == SHOAL_F64 ? &nn_attention_f64 : nn_vectors()->attention;
}

/* Element `index` of an array. */
static char *at(const struct nn_attention *attention, const void *array, size_t index)
{
    return (char *)(uintptr_t)array + index * shoal_dtype_bytes(attention->real);
}

/* How many keys a query sees, from the first on. */
static int64_t count_seen(const struct nn_attention *attention, int64_t query)
{
    if (!attention->is_causal) {
        return attention->n_keys;
    }
    int64_t n_seen = query + attention->n_keys - attention->n_queries + 1;
    return n_seen > 0 ? n_seen : 0;
}

/* How many of the block's keys one of its queries sees. */
static size_t count_seen_in(const struct nn_attention *attention, const struct block *block, int64_t query)
{
    int64_t n_seen = count_seen(attention, block->first_query + query) - block->first_key;
    return (size_t)larger(0, smaller(n_seen, block->n_keys));
}

/* How many of the block's queries, from the first on, do not see one of its keys. */
static int64_t count_blind(const struct nn_attention *attention, const struct block *block, int64_t key)
{
    if (!attention->is_causal) {
        return 0;
    }
    int64_t first_seeing = block->first_key + key - attention->n_keys + attention->n_queries;
    return smaller(block->n_queries, larger(0, first_seeing - block->first_query));
}

static char *row_of(const struct nn_attention *attention, const struct nn_heads *heads, int64_t sample,
                    int64_t head, int64_t row)
{
    int64_t offset = sample * heads->sample_stride + head * heads->head_stride + row * heads->row_stride;
    return heads->data + offset * (int64_t)shoal_dtype_bytes(attention->real);
}

static char *queries_of(const struct nn_attention *attention, const struct nn_heads *heads,
                        const struct block *block)
{
    return row_of(attention, heads, block->sample, block->head, block->first_query);
}

static char *keys_of(const struct nn_attention *attention, const struct nn_heads *heads,
                     const struct block *block)
{
    return row_of(attention, heads, block->sample, block->kv_head, block->first_key);
}

/* The log-sum-exps of a block's queries. */
static char *lse_of(const struct nn_attention *attention, const struct block *block)
{
    int64_t offset =
        (block->sample * attention->n_heads + block->head) * attention->n_queries + block->first_query;
    return at(attention, attention->lse, (size_t)offset);
}

static struct block begin_block(const struct nn_attention *attention, int64_t sample, int64_t head,
                                int64_t first_query, int64_t n_rows)
{
    return (struct block){.sample = sample,
                          .head = head,
                          .kv_head = head / (attention->n_heads / attention->n_kv_heads),
                          .first_query = first_query,
                          .n_queries = smaller(n_rows, attention->n_queries - first_query)};
}

/* The queries of tile `first` .. of a block. */
static struct block tile_of(const struct nn_attention *attention, const struct block *block, size_t first)
{
    struct block tile = *block;
    tile.first_query += (int64_t)first;
    tile.n_queries = smaller((int64_t)loops_of(attention)->n_columns, block->n_queries - (int64_t)first);
    tile.n_keys = (int64_t)count_seen_in(attention, &tile, tile.n_queries - 1);
    return tile;
}

static int64_t count_query_blocks(const struct nn_attention *attention, int64_t n_rows)
{
    return (attention->n_queries + n_rows - 1) / n_rows;
}

static void fill_rows(const struct nn_attention *attention, const struct nn_heads *heads, int64_t sample,
                      int64_t head, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        memset(row_of(attention, heads, sample, head, first + i), 0,
               (size_t)attention->size * shoal_dtype_bytes(attention->real));
    }
}

/* Scratch memory of a lane, in parts of so many elements. */
struct parts {
    size_t n[12];
    size_t n_parts;
};

static size_t parts_bytes(const struct nn_attention *attention, const struct parts *parts)
{
    size_t bytes = 0;
    for (size_t i = 0; i < parts->n_parts; i++) {
        bytes += nn_scratch_bytes(parts->n[i], shoal_dtype_bytes(attention->real));
    }
    return bytes;
}

static char *take(const struct nn_attention *attention, const struct parts *parts, size_t part, char *scratch)
{
    struct parts before = *parts;
    before.n_parts = part;
    return scratch + parts_bytes(attention, &before);
}

/* Dropout ---------------------------------------------------------------------------------------------- */

/* The words of one query of a block: those of elements (head, query, key) of [heads, queries, keys]. Draws from a block
   of four on, and whole lanes, of which the ends are not looked at. Returns where the first one is. */
static const uint32_t *draw_row(const struct nn_attention *attention, const struct block *block, int64_t row,
                                size_t n, uint32_t words[KEY_ROWS + 2 * WORD_LANES])
{
    struct nn_sequence draws = attention->draws;
    draws.sample += (uint64_t)block->sample;
    uint64_t query =
        (uint64_t)block->head * (uint64_t)attention->n_queries + (uint64_t)(block->first_query + row);
    uint64_t first = query * (uint64_t)attention->n_keys + (uint64_t)block->first_key;
    size_t skipped = (size_t)(first % 4);
    size_t count = (skipped + n + WORD_LANES - 1) / WORD_LANES * WORD_LANES;
    nn_draw_words(&draws, first - skipped, count, words);
    return words + skipped;
}

/* What the weights of a tile are multiplied with, [keys, columns]: 0 or the scale. */
static void draw_tile(const struct nn_attention *attention, const struct block *tile, char *kept)
{
    const struct nn_loops *loops = nn_loops_of(attention->real);
    uint32_t words[KEY_ROWS + 2 * WORD_LANES];
    double row[KEY_ROWS]; /* or floats */
    size_t n_columns = loops_of(attention)->n_columns;
    size_t bytes = shoal_dtype_bytes(attention->real);
    memset(kept, 0, (size_t)tile->n_keys * n_columns * bytes);
    for (int64_t i = 0; i < tile->n_queries; i++) {
        size_t n = count_seen_in(attention, tile, i);
        loops->fill(n, 1, row);
        if (n > 0) {
            loops->dropout(n, attention->dropout, draw_row(attention, tile, i, n, words), row, row);
        }
        for (size_t k = 0; k < n; k++) {
            memcpy(at(attention, kept, k * n_columns + (size_t)i), at(attention, row, k), bytes);
        }
    }
}

/* Forward ---------------------------------------------------------------------------------------------- */

enum forward_part {
    TILES_OF_QUERIES, /* [tiles][size, columns], times the scale */
    TILES_OF_OUTPUT,  /* [tiles][rows of panels, columns] */
    PANELS_OF_VALUES, /* of a block of keys */
    SCORES,           /* [keys, columns] of one tile */
    KEPT,             /* [keys, columns] of one tile */
    LARGEST,          /* of each query, as those that follow */
    SUMS,
    FACTORS,
    LSES,
    N_FORWARD_PARTS
};

static struct parts forward_parts(const struct nn_attention *attention)
{
    const struct nn_attention_loops *loops = loops_of(attention);
    size_t size = (size_t)attention->size;
    size_t n_rows = round_up(size, loops->n_rows);
    return (struct parts){.n = {[TILES_OF_QUERIES] = size * QUERY_ROWS,
                                [TILES_OF_OUTPUT] = n_rows * QUERY_ROWS,
                                [PANELS_OF_VALUES] = n_rows * KEY_ROWS,
                                [SCORES] = KEY_ROWS * loops->n_columns,
                                [KEPT] = attention->dropout > 0 ? KEY_ROWS * loops->n_columns : 0,
                                [LARGEST] = QUERY_ROWS,
                                [SUMS] = QUERY_ROWS,
                                [FACTORS] = QUERY_ROWS,
                                [LSES] = QUERY_ROWS},
                          .n_parts = N_FORWARD_PARTS};
}

struct forward {
    const struct nn_attention *attention;
    const struct nn_attention_loops *loops;
    size_t n_rows; /* of panels of a size */
    char *part[N_FORWARD_PARTS];
};

static struct nn_tile_softmax softmax_of(const struct forward *forward, size_t first)
{
    return (struct nn_tile_softmax){.largest = at(forward->attention, forward->part[LARGEST], first),
                                    .sum = at(forward->attention, forward->part[SUMS], first),
                                    .factors = at(forward->attention, forward->part[FACTORS], first)};
}

/* What queries of the tile do not see becomes -infinity. */
static void mask_tile(const struct forward *forward, const struct block *tile)
{
    const struct nn_attention *attention = forward->attention;
    const struct nn_loops *loops = nn_loops_of(attention->real);
    for (int64_t k = tile->n_keys - 1; k >= 0; k--) {
        size_t n = (size_t)count_blind(attention, tile, k);
        if (n == 0) {
            return;
        }
        loops->fill(n, -(double)INFINITY,
                    at(attention, forward->part[SCORES], (size_t)k * forward->loops->n_columns));
    }
}

/* One tile against one block of keys. `first`: the tile's first query, within the block of queries. */
static void attend(const struct forward *forward, const struct block *block, size_t first)
{
    const struct nn_attention *attention = forward->attention;
    const struct nn_attention_loops *loops = forward->loops;
    const struct block tile = tile_of(attention, block, first);
    const struct nn_tile_softmax softmax = softmax_of(forward, first);
    const size_t n_keys = (size_t)tile.n_keys;
    if (n_keys == 0) {
        return;
    }
    loops->multiply_rows(&(struct nn_tile_product){
        .n_rows = n_keys,
        .depth = (size_t)attention->size,
        .a = keys_of(attention, &attention->key, block),
        .a_stride = (size_t)attention->key.row_stride,
        .b = at(attention, forward->part[TILES_OF_QUERIES], first * (size_t)attention->size),
        .b_stride = loops->n_columns,
        .c = forward->part[SCORES],
        .c_stride = loops->n_columns});
    mask_tile(forward, &tile);
    loops->weigh(n_keys, forward->part[SCORES], &softmax);
    if (attention->dropout > 0) {
        draw_tile(attention, &tile, forward->part[KEPT]);
        loops->multiply(n_keys, forward->part[SCORES], forward->part[KEPT]);
    }
    /* A tile may see fewer keys than were packed: panels are as long as the block. */
    loops->multiply_columns(
        &(struct nn_tile_product){.n_rows = forward->n_rows,
                                  .depth = n_keys,
                                  .a = forward->part[PANELS_OF_VALUES],
                                  .a_stride = (size_t)block->n_keys * loops->n_rows,
                                  .b = forward->part[SCORES],
                                  .b_stride = loops->n_columns,
                                  .c = at(attention, forward->part[TILES_OF_OUTPUT], first * forward->n_rows),
                                  .c_stride = loops->n_columns},
        block->first_key > 0 ? softmax.factors : NULL);
}

/* The results of one tile. Queries that saw nothing have zeros. */
static void finish_tile(const struct forward *forward, const struct block *block, size_t first)
{
    const struct nn_attention *attention = forward->attention;
    const struct nn_tile_softmax softmax = softmax_of(forward, first);
    const struct block tile = tile_of(attention, block, first);
    char *lse = at(attention, forward->part[LSES], first);
    size_t n = (size_t)tile.n_queries;
    size_t n_blind = 0;
    while (n_blind < n && count_seen(attention, tile.first_query + (int64_t)n_blind) == 0) {
        n_blind++;
    }
    if (n_blind < n) {
        forward->loops->finish(&softmax, lse);
        forward->loops->transpose_back(n, (size_t)attention->size,
                                       at(attention, forward->part[TILES_OF_OUTPUT], first * forward->n_rows),
                                       softmax.sum, queries_of(attention, &attention->output, &tile),
                                       (size_t)attention->output.row_stride);
    }
    fill_rows(attention, &attention->output, tile.sample, tile.head, tile.first_query, (int64_t)n_blind);
    nn_loops_of(attention->real)->fill(n_blind, -(double)INFINITY, lse);
    memcpy(lse_of(attention, &tile), lse, n * shoal_dtype_bytes(attention->real));
}

/* One block of queries of one head. */
static void run_forward(const struct nn_attention *attention, int64_t item, char *scratch)
{
    int64_t n_blocks = count_query_blocks(attention, QUERY_ROWS);
    int64_t head = item / n_blocks;
    struct block block = begin_block(attention, head / attention->n_heads, head % attention->n_heads,
                                     item % n_blocks * QUERY_ROWS, QUERY_ROWS);
    const struct parts parts = forward_parts(attention);
    struct forward forward = {.attention = attention, .loops = loops_of(attention)};
    const size_t n_columns = forward.loops->n_columns;
    const size_t n_queries = (size_t)block.n_queries;
    forward.n_rows = round_up((size_t)attention->size, forward.loops->n_rows);
    for (size_t i = 0; i < N_FORWARD_PARTS; i++) {
        forward.part[i] = take(attention, &parts, i, scratch);
    }
    nn_loops_of(attention->real)->fill(QUERY_ROWS, -(double)INFINITY, forward.part[LARGEST]);
    nn_loops_of(attention->real)->fill(QUERY_ROWS, 0, forward.part[SUMS]);
    for (size_t first = 0; first < n_queries; first += n_columns) {
        struct block tile = tile_of(attention, &block, first);
        forward.loops->transpose(
            (size_t)tile.n_queries, (size_t)attention->size, queries_of(attention, &attention->query, &tile),
            (size_t)attention->query.row_stride, attention->scale,
            at(attention, forward.part[TILES_OF_QUERIES], first * (size_t)attention->size));
    }
    int64_t n_seen = count_seen(attention, block.first_query + block.n_queries - 1);
    for (block.first_key = 0; block.first_key < n_seen; block.first_key += KEY_ROWS) {
        block.n_keys = smaller(KEY_ROWS, n_seen - block.first_key);
        forward.loops->pack_columns((size_t)block.n_keys, (size_t)attention->size,
                                    keys_of(attention, &attention->value, &block),
                                    (size_t)attention->value.row_stride, 1, forward.part[PANELS_OF_VALUES]);
        for (size_t first = 0; first < n_queries; first += n_columns) {
            attend(&forward, &block, first);
        }
    }
    for (size_t first = 0; first < n_queries; first += n_columns) {
        finish_tile(&forward, &block, first);
    }
}

/* Backward --------------------------------------------------------------------------------------------- */

enum backward_part {
    QUERIES,         /* [tiles][size, columns], times the scale */
    GRADIENTS,       /* [tiles][size, columns] of the output */
    QUERY_PANELS,    /* [panels of the size][queries, columns], times the scale */
    GRADIENT_PANELS, /* [panels of the size][queries, columns] of the output */
    KEY_PANELS,      /* of a block of keys, for multiply_columns */
    QUERY_SUMS,      /* [tiles][rows of panels, columns]: the queries' gradients */
    WEIGHTS,         /* [keys, queries] */
    DIFFERENCES,     /* [keys, queries]: gradients of scores */
    KEPT_AGAIN,      /* [keys, columns] of one tile */
    LSE,             /* of each query */
    MEANS,           /* of each query: the sum of gradient * output */
    SOME_COLUMNS,    /* [keys, columns], of a panel that is not full; the first ones serve as factors, too */
    N_BACKWARD_PARTS
};

static struct parts backward_parts(const struct nn_attention *attention)
{
    const struct nn_attention_loops *loops = loops_of(attention);
    const size_t n_queries = BACKWARD_QUERY_ROWS;
    const size_t n_keys = BACKWARD_KEY_ROWS;
    size_t size = (size_t)attention->size;
    size_t n_rows = round_up(size, loops->n_rows);
    size_t n_padded = round_up(size, loops->n_columns);
    return (struct parts){.n = {[QUERIES] = size * n_queries,
                                [GRADIENTS] = size * n_queries,
                                [QUERY_PANELS] = n_padded * n_queries,
                                [GRADIENT_PANELS] = n_padded * n_queries,
                                [KEY_PANELS] = n_rows * n_keys,
                                [QUERY_SUMS] = n_rows * n_queries,
                                [WEIGHTS] = n_keys * n_queries,
                                [DIFFERENCES] = n_keys * n_queries,
                                [KEPT_AGAIN] = attention->dropout > 0 ? n_keys * loops->n_columns : 0,
                                [LSE] = n_queries,
                                [MEANS] = n_queries,
                                [SOME_COLUMNS] = n_keys * loops->n_columns},
                          .n_parts = N_BACKWARD_PARTS};
}

struct backward {
    const struct nn_attention *attention;
    const struct nn_attention_loops *loops;
    size_t n_rows;    /* of panels of a size */
    bool has_queries; /* the gradients that are computed */
    bool has_keys;
    int64_t first_key; /* the keys that are looked at */
    int64_t end_key;
    char *part[N_BACKWARD_PARTS];
};

static void begin_backward(struct backward *backward, const struct nn_attention *attention, char *scratch)
{
    const struct parts parts = backward_parts(attention);
    *backward = (struct backward){.attention = attention,
                                  .loops = loops_of(attention),
                                  .has_queries = true,
                                  .has_keys = true,
                                  .end_key = attention->n_keys};
    backward->n_rows = round_up((size_t)attention->size, backward->loops->n_rows);
    for (size_t i = 0; i < N_BACKWARD_PARTS; i++) {
        backward->part[i] = take(attention, &parts, i, scratch);
    }
}

/* Copies of a block of queries, and what they are compared with. */
static void load_queries(const struct backward *backward, const struct block *block)
{
    const struct nn_attention *attention = backward->attention;
    const struct nn_attention_loops *loops = backward->loops;
    const size_t size = (size_t)attention->size;
    const size_t n = (size_t)block->n_queries;
    const struct nn_loops *fills = nn_loops_of(attention->real);
    for (size_t first = 0; first < n; first += loops->n_columns) {
        struct block tile = tile_of(attention, block, first);
        loops->transpose((size_t)tile.n_queries, size, queries_of(attention, &attention->query, &tile),
                         (size_t)attention->query.row_stride, attention->scale,
                         at(attention, backward->part[QUERIES], first * size));
        loops->transpose((size_t)tile.n_queries, size, queries_of(attention, &attention->gradient, &tile),
                         (size_t)attention->gradient.row_stride, 1,
                         at(attention, backward->part[GRADIENTS], first * size));
    }
    loops->pack_rows(n, size, queries_of(attention, &attention->query, block),
                     (size_t)attention->query.row_stride, attention->scale, backward->part[QUERY_PANELS]);
    loops->pack_rows(n, size, queries_of(attention, &attention->gradient, block),
                     (size_t)attention->gradient.row_stride, 1, backward->part[GRADIENT_PANELS]);
    fills->fill(BACKWARD_QUERY_ROWS, 0, backward->part[LSE]);
    fills->fill(BACKWARD_QUERY_ROWS, 0, backward->part[MEANS]);
    fills->fill(backward->n_rows * BACKWARD_QUERY_ROWS, 0, backward->part[QUERY_SUMS]);
    memcpy(backward->part[LSE], lse_of(attention, block), n * shoal_dtype_bytes(attention->real));
    for (size_t i = 0; i < n; i++) {
        int64_t query = block->first_query + (int64_t)i;
        double mean = loops->sum_of_products(
            size, row_of(attention, &attention->gradient, block->sample, block->head, query),
            row_of(attention, &attention->output, block->sample, block->head, query));
        fills->fill(1, mean, at(attention, backward->part[MEANS], i));
    }
}

/* Zeros where queries of a tile see nothing, [keys, queries] of the block. */
static void clear_blind(const struct backward *backward, const struct block *block, const struct block *tile,
                        char *weights)
{
    const struct nn_attention *attention = backward->attention;
    const size_t bytes = shoal_dtype_bytes(attention->real);
    for (int64_t k = block->n_keys - 1; k >= 0; k--) {
        int64_t n = k < tile->n_keys ? count_blind(attention, tile, k) : (int64_t)backward->loops->n_columns;
        if (n == 0) {
            return;
        }
        memset(weights + (size_t)k * BACKWARD_QUERY_ROWS * bytes, 0, (size_t)n * bytes);
    }
}

/* Weights and gradients of scores of one tile, and what the gradients of its queries get from this block of keys. */
static void weigh_tile(const struct backward *backward, const struct block *block, size_t first)
{
    const struct nn_attention *attention = backward->attention;
    const struct nn_attention_loops *loops = backward->loops;
    const struct block tile = tile_of(attention, block, first);
    const size_t size = (size_t)attention->size;
    char *weights = at(attention, backward->part[WEIGHTS], first);
    char *differences = at(attention, backward->part[DIFFERENCES], first);
    struct nn_tile_product product = {.n_rows = (size_t)tile.n_keys,
                                      .depth = size,
                                      .a = keys_of(attention, &attention->key, block),
                                      .a_stride = (size_t)attention->key.row_stride,
                                      .b = at(attention, backward->part[QUERIES], first * size),
                                      .b_stride = loops->n_columns,
                                      .c = weights,
                                      .c_stride = BACKWARD_QUERY_ROWS};
    loops->multiply_rows(&product);
    product.a = keys_of(attention, &attention->value, block);
    product.a_stride = (size_t)attention->value.row_stride;
    product.b = at(attention, backward->part[GRADIENTS], first * size);
    product.c = differences;
    loops->multiply_rows(&product);
    if (attention->dropout > 0) {
        draw_tile(attention, &tile, backward->part[KEPT_AGAIN]);
    }
    loops->weigh_again((size_t)tile.n_keys, BACKWARD_QUERY_ROWS, weights, differences,
                       at(attention, backward->part[LSE], first), at(attention, backward->part[MEANS], first),
                       attention->dropout > 0 ? backward->part[KEPT_AGAIN] : NULL);
    clear_blind(backward, block, &tile, weights);
    clear_blind(backward, block, &tile, differences);
    if (backward->has_queries) {
        loops->multiply_columns(&(struct nn_tile_product){.n_rows = backward->n_rows,
                                                          .depth = (size_t)tile.n_keys,
                                                          .a = backward->part[KEY_PANELS],
                                                          .a_stride = (size_t)block->n_keys * loops->n_rows,
                                                          .b = differences,
                                                          .b_stride = BACKWARD_QUERY_ROWS,
                                                          .c = at(attention, backward->part[QUERY_SUMS],
                                                                  first * backward->n_rows),
                                                          .c_stride = loops->n_columns,
                                                          .adds = true},
                                NULL);
    }
}

/* Rows of keys += weights times rows of queries, in panels. Queries that see none of the keys are left out. */
static void add_to_keys(const struct backward *backward, const struct block *block, const char *weights,
                        const char *panels, const struct nn_heads *to)
{
    const struct nn_attention *attention = backward->attention;
    const struct nn_attention_loops *loops = backward->loops;
    const size_t n_columns = loops->n_columns;
    for (size_t column = 0; column < (size_t)attention->size; column += n_columns) {
        const size_t n_left = (size_t)attention->size - column;
        const bool is_whole = n_left >= n_columns;
        char *rows = at(attention, keys_of(attention, to, block), column);
        for (size_t key = 0; key < (size_t)block->n_keys; key += loops->n_rows) {
            const size_t skipped = (size_t)count_blind(attention, block, (int64_t)key);
            struct nn_tile_product product = {
                .n_rows = (size_t)smaller((int64_t)loops->n_rows, block->n_keys - (int64_t)key),
                .depth = (size_t)block->n_queries - skipped,
                .a = at(attention, weights, key * BACKWARD_QUERY_ROWS + skipped),
                .a_stride = BACKWARD_QUERY_ROWS,
                .b = at(attention, panels, column * (size_t)block->n_queries + skipped * n_columns),
                .b_stride = n_columns,
                .c = is_whole ? at(attention, rows, key * (size_t)to->row_stride)
                              : backward->part[SOME_COLUMNS],
                .c_stride = is_whole ? (size_t)to->row_stride : n_columns,
                .adds = is_whole};
            loops->multiply_rows(&product);
            for (size_t i = 0; i < product.n_rows && !is_whole; i++) {
                nn_loops_of(attention->real)
                    ->add(n_left, at(attention, backward->part[SOME_COLUMNS], i * n_columns),
                          at(attention, rows, (key + i) * (size_t)to->row_stride));
            }
        }
    }
}

/* One block of queries of one head, against the keys that are looked at. */
static void add_gradients(const struct backward *backward, struct block *block)
{
    const struct nn_attention *attention = backward->attention;
    const struct nn_attention_loops *loops = backward->loops;
    const size_t n_queries = (size_t)block->n_queries;
    int64_t end =
        smaller(backward->end_key, count_seen(attention, block->first_query + block->n_queries - 1));
    if (backward->first_key < end || backward->has_queries) {
        load_queries(backward, block);
    }
    for (block->first_key = backward->first_key; block->first_key < end;
         block->first_key += BACKWARD_KEY_ROWS) {
        block->n_keys = smaller(BACKWARD_KEY_ROWS, end - block->first_key);
        if (backward->has_queries) {
            loops->pack_columns((size_t)block->n_keys, (size_t)attention->size,
                                keys_of(attention, &attention->key, block), (size_t)attention->key.row_stride,
                                1, backward->part[KEY_PANELS]);
        }
        for (size_t first = 0; first < n_queries; first += loops->n_columns) {
            weigh_tile(backward, block, first);
        }
        if (backward->has_keys) {
            add_to_keys(backward, block, backward->part[WEIGHTS], backward->part[GRADIENT_PANELS],
                        &attention->value_gradient);
            add_to_keys(backward, block, backward->part[DIFFERENCES], backward->part[QUERY_PANELS],
                        &attention->key_gradient);
        }
    }
    nn_loops_of(attention->real)->fill(loops->n_columns, attention->scale, backward->part[SOME_COLUMNS]);
    for (size_t first = 0; first < n_queries && backward->has_queries; first += loops->n_columns) {
        struct block tile = tile_of(attention, block, first);
        loops->transpose_back((size_t)tile.n_queries, (size_t)attention->size,
                              at(attention, backward->part[QUERY_SUMS], first * backward->n_rows),
                              backward->part[SOME_COLUMNS],
                              queries_of(attention, &attention->query_gradient, &tile),
                              (size_t)attention->query_gradient.row_stride);
    }
}

/* All heads of queries that look at a head of keys and values, from the first query of the first one to the last of the
   last: the order in which gradients of keys and values are added. */
static void walk_queries(const struct backward *backward, int64_t sample, int64_t kv_head)
{
    const struct nn_attention *attention = backward->attention;
    int64_t n_shared = attention->n_heads / attention->n_kv_heads;
    int64_t n_keys = backward->end_key - backward->first_key;
    fill_rows(attention, &attention->key_gradient, sample, kv_head, backward->first_key, n_keys);
    fill_rows(attention, &attention->value_gradient, sample, kv_head, backward->first_key, n_keys);
    for (int64_t head = kv_head * n_shared; head < (kv_head + 1) * n_shared; head++) {
        for (int64_t first = 0; first < attention->n_queries; first += BACKWARD_QUERY_ROWS) {
            struct block block = begin_block(attention, sample, head, first, BACKWARD_QUERY_ROWS);
            add_gradients(backward, &block);
        }
    }
}

/* One head of keys and values, and its queries. */
static void run_backward(const struct nn_attention *attention, int64_t item, char *scratch)
{
    struct backward backward;
    begin_backward(&backward, attention, scratch);
    walk_queries(&backward, item / attention->n_kv_heads, item % attention->n_kv_heads);
}

/*
 * The backward pass when there are more threads than heads. Gradients of queries are computed by blocks of queries,
 * those of keys and values by blocks of keys. Scores and weights are therefore computed twice, but every sum has the
 * same order as above, and so the same bits.
 */
static int64_t count_key_blocks(const struct nn_attention *attention)
{
    return (attention->n_keys + BACKWARD_KEY_ROWS - 1) / BACKWARD_KEY_ROWS;
}

static int64_t count_key_items(const struct nn_attention *attention)
{
    return attention->n_samples * attention->n_kv_heads * count_key_blocks(attention);
}

static void run_backward_part(const struct nn_attention *attention, int64_t item, char *scratch)
{
    struct backward backward;
    int64_t n_key_items = count_key_items(attention);
    begin_backward(&backward, attention, scratch);
    if (item < n_key_items) {
        int64_t n_blocks = count_key_blocks(attention);
        int64_t kv_head = item / n_blocks;
        backward.has_queries = false;
        backward.first_key = item % n_blocks * BACKWARD_KEY_ROWS;
        backward.end_key = smaller(attention->n_keys, backward.first_key + BACKWARD_KEY_ROWS);
        walk_queries(&backward, kv_head / attention->n_kv_heads, kv_head % attention->n_kv_heads);
    } else {
        int64_t n_blocks = count_query_blocks(attention, BACKWARD_QUERY_ROWS);
        int64_t head = (item - n_key_items) / n_blocks;
        struct block block =
            begin_block(attention, head / attention->n_heads, head % attention->n_heads,
                        (item - n_key_items) % n_blocks * BACKWARD_QUERY_ROWS, BACKWARD_QUERY_ROWS);
        backward.has_keys = false;
        add_gradients(&backward, &block);
    }
}

/* All of it ------------------------------------------------------------------------------------------- */

/* Items are computed by lanes, each in scratch memory of its own. Which lane takes which item does not matter. */
struct job {
    const struct nn_attention *attention;
    void (*run)(const struct nn_attention *attention, int64_t item, char *scratch);
    int64_t n_items;
    char *scratch;
    size_t lane_bytes;
    _Atomic int64_t next;
};

static void run_lane(void *context, size_t lane)
{
    struct job *job = context;
    for (;;) {
        /* Relaxed: the number stands for itself; nn_parallel publishes the results. */
        int64_t item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (item >= job->n_items) {
            break;
        }
        job->run(job->attention, item, job->scratch + lane * job->lane_bytes);
    }
}

static struct job plan(const struct nn_attention *attention, bool is_backward)
{
    struct job job = {.attention = attention};
    if (!is_backward) {
        const struct parts parts = forward_parts(attention);
        job.run = run_forward;
        job.n_items = attention->n_samples * attention->n_heads * count_query_blocks(attention, QUERY_ROWS);
        job.lane_bytes = parts_bytes(attention, &parts);
        return job;
    }
    const struct parts parts = backward_parts(attention);
    const int64_t n_threads = nn_threads();
    job.lane_bytes = parts_bytes(attention, &parts);
    job.run = run_backward;
    job.n_items = attention->n_samples * attention->n_kv_heads;
    /* Seven products instead of five, on all threads. */
    if ((job.n_items + n_threads - 1) / n_threads * n_threads * 5 > job.n_items * 7) {
        job.run = run_backward_part;
        job.n_items = count_key_items(attention) + attention->n_samples * attention->n_heads *
                                                       count_query_blocks(attention, BACKWARD_QUERY_ROWS);
    }
    return job;
}

size_t nn_attention_scratch_bytes(const struct nn_attention *attention, bool is_backward)
{
    struct job job = plan(attention, is_backward);
    int64_t n_lanes = smaller(nn_threads(), job.n_items);
    return (size_t)larger(1, n_lanes) * job.lane_bytes;
}

static void run_all(const struct nn_attention *attention, bool is_backward, void *scratch,
                    size_t scratch_bytes)
{
    struct job job = plan(attention, is_backward);
    job.scratch = scratch;
    nn_parallel(scratch_bytes / job.lane_bytes, run_lane, &job);
}

void nn_attention_forward(const struct nn_attention *attention, void *scratch, size_t scratch_bytes)
{
    run_all(attention, /*is_backward=*/false, scratch, scratch_bytes);
}

void nn_attention_backward(const struct nn_attention *attention, void *scratch, size_t scratch_bytes)
{
    run_all(attention, /*is_backward=*/true, scratch, scratch_bytes);
}
