/* SPDX-License-Identifier: MIT */
/* Attention in blocks; see attention.h. Products are a BLAS's, rows are attention_real.h's. */
#include "attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "blas.h"
#include "loops.h"
#include "pool.h"
#include "values.h"
#include "vector.h"

enum {
    QUERY_ROWS = 128, /* of a block */
    EDGE_ROWS = 32,   /* where not all queries see all keys: the fewer, the less is computed in vain */
    KEY_ROWS = 256,
    WORD_LANES = 128 /* words are drawn so many at a time, fastest */
};

/* The softmax of a query, so far. */
struct running {
    double largest;
    double sum;
    bool has_output; /* of an earlier block */
};

struct row_loops {
    void (*weigh)(size_t n, void *scores, struct running *running, size_t size, void *output);
    void (*finish)(const struct running *running, size_t size, void *output, void *lse);
    double (*mean)(size_t n, const void *gradient, const void *output);
    void (*weigh_again)(size_t n, const void *lse, void *scores);
    void (*softmax_backward)(size_t n, double mean, const void *weights, void *gradients);
};

static double maximum_f32(size_t n, const float *x)
{
    return (double)nn_vectors()->maximum(n, x);
}

static double sum_exp_f32(size_t n, const float *x, float shift, float *y)
{
    return nn_vectors()->sum_exp(n, x, shift, y);
}

static double sum_of_products_f32(size_t n, const float *a, const float *b)
{
    return nn_vectors()->sum_of_products(n, a, b);
}

static void scale_f32(size_t n, float factor, float *x)
{
    nn_vectors()->scale(n, factor, x, x);
}

static double maximum_f64(size_t n, const double *x)
{
    double largest = -(double)INFINITY;
    for (size_t i = 0; i < n; i++) {
        largest = x[i] > largest || x[i] != x[i] ? x[i] : largest;
    }
    return largest;
}

static double sum_exp_f64(size_t n, const double *x, double shift, double *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        y[i] = exp(x[i] - shift);
        sum += y[i];
    }
    return sum;
}

static double sum_of_products_f64(size_t n, const double *a, const double *b)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void scale_f64(size_t n, double factor, double *x)
{
    for (size_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

#define real float
#define NAME(name) name##_f32
#include "attention_real.h"
#undef real
#undef NAME

#define real double
#define NAME(name) name##_f64
#include "attention_real.h"
#undef real
#undef NAME

static const struct row_loops *row_loops_of(shoal_dtype real)
{
    return real == SHOAL_F64 ? &row_loops_f64 : &row_loops_f32;
}

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

/* How many keys a query sees, from the first on. */
static int64_t count_seen(const struct nn_attention *attention, int64_t query)
{
    if (!attention->is_causal) {
        return attention->n_keys;
    }
    int64_t n_seen = query + attention->n_keys - attention->n_queries + 1;
    return n_seen > 0 ? n_seen : 0;
}

/* The same for row `row` of a block, of the block's keys. */
static size_t count_seen_in(const struct nn_attention *attention, const struct block *block, int64_t row)
{
    int64_t n_seen = count_seen(attention, block->first_query + row) - block->first_key;
    return n_seen > 0 ? (size_t)smaller(n_seen, block->n_keys) : 0;
}

static char *row_of(const struct nn_attention *attention, const struct nn_heads *heads, int64_t sample,
                    int64_t head, int64_t row)
{
    int64_t offset = sample * heads->sample_stride + head * heads->head_stride + row * heads->row_stride;
    return heads->data + offset * (int64_t)shoal_dtype_bytes(attention->real);
}

/* The log-sum-exps of a block's queries. */
static char *lse_of(const struct nn_attention *attention, const struct block *block)
{
    int64_t offset =
        (block->sample * attention->n_heads + block->head) * attention->n_queries + block->first_query;
    return (char *)attention->lse + (size_t)offset * shoal_dtype_bytes(attention->real);
}

static struct nn_matrix queries_of(const struct nn_attention *attention, const struct nn_heads *heads,
                                   const struct block *block)
{
    return (struct nn_matrix){.data =
                                  row_of(attention, heads, block->sample, block->head, block->first_query),
                              .rows = block->n_queries,
                              .cols = attention->size,
                              .row_stride = heads->row_stride,
                              .col_stride = 1};
}

static struct nn_matrix keys_of(const struct nn_attention *attention, const struct nn_heads *heads,
                                const struct block *block)
{
    return (struct nn_matrix){.data =
                                  row_of(attention, heads, block->sample, block->kv_head, block->first_key),
                              .rows = block->n_keys,
                              .cols = attention->size,
                              .row_stride = heads->row_stride,
                              .col_stride = 1};
}

static struct nn_matrix scores_of(const struct block *block, const void *scores)
{
    return (struct nn_matrix){.data = scores,
                              .rows = block->n_queries,
                              .cols = block->n_keys,
                              .row_stride = block->n_keys,
                              .col_stride = 1};
}

static struct nn_matrix transpose(struct nn_matrix matrix)
{
    return (struct nn_matrix){.data = matrix.data,
                              .rows = matrix.cols,
                              .cols = matrix.rows,
                              .row_stride = matrix.col_stride,
                              .col_stride = matrix.row_stride};
}

/* scores = scale * rows of queries times rows of keys */
static void multiply_rows(const struct nn_attention *attention, const struct block *block, double scale,
                          const struct nn_heads *queries, const struct nn_heads *keys, void *scores)
{
    struct nn_matrix left = queries_of(attention, queries, block);
    struct nn_matrix right = transpose(keys_of(attention, keys, block));
    nn_blas_update(attention->real, scale, &left, &right, /*adds=*/false, scores, block->n_keys);
}

/* Rows of queries = or += scale * scores times rows of keys. */
static void add_to_queries(const struct nn_attention *attention, const struct block *block, double scale,
                           const void *scores, const struct nn_heads *keys, bool adds,
                           const struct nn_heads *queries)
{
    struct nn_matrix left = scores_of(block, scores);
    struct nn_matrix right = keys_of(attention, keys, block);
    nn_blas_update(attention->real, scale, &left, &right, adds,
                   row_of(attention, queries, block->sample, block->head, block->first_query),
                   queries->row_stride);
}

/* Rows of keys += scale * transposed scores times rows of queries. */
static void add_to_keys(const struct nn_attention *attention, const struct block *block, double scale,
                        const void *scores, const struct nn_heads *queries, const struct nn_heads *keys)
{
    struct nn_matrix left = transpose(scores_of(block, scores));
    struct nn_matrix right = queries_of(attention, queries, block);
    nn_blas_update(attention->real, scale, &left, &right, /*adds=*/true,
                   row_of(attention, keys, block->sample, block->kv_head, block->first_key),
                   keys->row_stride);
}

static void fill_rows(const struct nn_attention *attention, const struct nn_heads *heads, int64_t sample,
                      int64_t head, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        memset(row_of(attention, heads, sample, head, first + i), 0,
               (size_t)attention->size * shoal_dtype_bytes(attention->real));
    }
}

/* What the rows of a block of queries need on their way past the keys. */
struct pass {
    int64_t first_query;
    char *scores;
    struct running running[QUERY_ROWS]; /* forward */
    char *gradients;                    /* backward, as those that follow */
    const char *lse;
    double means[QUERY_ROWS];
};

typedef void (*block_step)(const struct nn_attention *attention, const struct block *block,
                           struct pass *pass);

static struct block begin_block(const struct nn_attention *attention, int64_t sample, int64_t head,
                                int64_t first_query)
{
    return (struct block){.sample = sample,
                          .head = head,
                          .kv_head = head / (attention->n_heads / attention->n_kv_heads),
                          .first_query = first_query,
                          .n_queries = smaller(QUERY_ROWS, attention->n_queries - first_query)};
}

static int64_t count_query_blocks(const struct nn_attention *attention)
{
    return (attention->n_queries + QUERY_ROWS - 1) / QUERY_ROWS;
}

static void walk_keys(const struct nn_attention *attention, struct block block, int64_t first, int64_t end,
                      block_step step, struct pass *pass)
{
    for (block.first_key = first; block.first_key < end; block.first_key += KEY_ROWS) {
        block.n_keys = smaller(KEY_ROWS, end - block.first_key);
        step(attention, &block, pass);
    }
}

/* All keys that a block of queries sees, for each query from the first to the last: with all queries at a time as long
   as all of them see a whole block of keys, then with some. */
static void walk_block(const struct nn_attention *attention, const struct block *block, block_step step,
                       struct pass *pass)
{
    int64_t n_common = count_seen(attention, block->first_query);
    n_common -= attention->is_causal ? n_common % KEY_ROWS : 0;
    walk_keys(attention, *block, 0, n_common, step, pass);
    for (int64_t first = 0; first < block->n_queries; first += EDGE_ROWS) {
        struct block edge = *block;
        edge.first_query += first;
        edge.n_queries = smaller(EDGE_ROWS, block->n_queries - first);
        walk_keys(attention, edge, n_common, count_seen(attention, edge.first_query + edge.n_queries - 1),
                  step, pass);
    }
}

/* Dropout ---------------------------------------------------------------------------------------------- */

/* The words of one row of a block: those of elements (head, query, key) of [heads, queries, keys]. Draws from a block
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

static void drop_row(const struct nn_attention *attention, size_t n, const uint32_t *words, void *row)
{
    nn_loops_of(attention->real)->dropout(n, attention->dropout, words, row, row);
}

/* Forward ---------------------------------------------------------------------------------------------- */

/* Scores become weights, as dropped. */
static void weigh_block(const struct nn_attention *attention, const struct block *block,
                        struct running *running, char *scores)
{
    const struct row_loops *loops = row_loops_of(attention->real);
    uint32_t words[KEY_ROWS + 2 * WORD_LANES];
    size_t bytes = shoal_dtype_bytes(attention->real);
    for (int64_t i = 0; i < block->n_queries; i++) {
        char *row = scores + (size_t)(i * block->n_keys) * bytes;
        size_t n = count_seen_in(attention, block, i);
        if (n > 0) {
            loops->weigh(
                n, row, &running[i], (size_t)attention->size,
                row_of(attention, &attention->output, block->sample, block->head, block->first_query + i));
        }
        if (n > 0 && attention->dropout > 0) {
            drop_row(attention, n, draw_row(attention, block, i, n, words), row);
        }
        memset(row + n * bytes, 0, ((size_t)block->n_keys - n) * bytes);
    }
}

static void finish_block(const struct nn_attention *attention, const struct block *block,
                         const struct running running[QUERY_ROWS])
{
    const struct row_loops *loops = row_loops_of(attention->real);
    size_t bytes = shoal_dtype_bytes(attention->real);
    char *lse = lse_of(attention, block);
    for (int64_t i = 0; i < block->n_queries; i++) {
        int64_t query = block->first_query + i;
        if (count_seen(attention, query) > 0) {
            loops->finish(&running[i], (size_t)attention->size,
                          row_of(attention, &attention->output, block->sample, block->head, query),
                          lse + (size_t)i * bytes);
        } else {
            fill_rows(attention, &attention->output, block->sample, block->head, query, 1);
            nn_loops_of(attention->real)->fill(1, -(double)INFINITY, lse + (size_t)i * bytes);
        }
    }
}

static void step_forward(const struct nn_attention *attention, const struct block *block, struct pass *pass)
{
    multiply_rows(attention, block, attention->scale, &attention->query, &attention->key, pass->scores);
    weigh_block(attention, block, pass->running + (block->first_query - pass->first_query), pass->scores);
    add_to_queries(attention, block, 1, pass->scores, &attention->value, /*adds=*/block->first_key > 0,
                   &attention->output);
}

/* One block of queries of one head. */
static void run_forward(const struct nn_attention *attention, int64_t item, char *scratch)
{
    int64_t n_blocks = count_query_blocks(attention);
    int64_t head = item / n_blocks;
    struct block block = begin_block(attention, head / attention->n_heads, head % attention->n_heads,
                                     item % n_blocks * QUERY_ROWS);
    struct pass pass = {.first_query = block.first_query, .scores = scratch};
    for (int64_t i = 0; i < block.n_queries; i++) {
        pass.running[i].largest = -(double)INFINITY;
    }
    walk_block(attention, &block, step_forward, &pass);
    finish_block(attention, &block, pass.running);
}

/* Backward --------------------------------------------------------------------------------------------- */

/* Scores become weights, as dropped, and gradients of weights become those of scores. */
static void turn_block(const struct nn_attention *attention, const struct block *block,
                       const struct pass *pass)
{
    const struct row_loops *loops = row_loops_of(attention->real);
    uint32_t words[KEY_ROWS + 2 * WORD_LANES];
    size_t bytes = shoal_dtype_bytes(attention->real);
    for (int64_t i = 0; i < block->n_queries; i++) {
        int64_t row = block->first_query - pass->first_query + i;
        char *scores = pass->scores + (size_t)(i * block->n_keys) * bytes;
        char *gradients = pass->gradients + (size_t)(i * block->n_keys) * bytes;
        size_t n = count_seen_in(attention, block, i);
        const uint32_t *drawn = NULL;
        loops->weigh_again(n, pass->lse + (size_t)row * bytes, scores);
        if (n > 0 && attention->dropout > 0) {
            drawn = draw_row(attention, block, i, n, words);
            drop_row(attention, n, drawn, gradients);
        }
        loops->softmax_backward(n, pass->means[row], scores, gradients);
        if (drawn) {
            drop_row(attention, n, drawn, scores);
        }
        memset(scores + n * bytes, 0, ((size_t)block->n_keys - n) * bytes);
        memset(gradients + n * bytes, 0, ((size_t)block->n_keys - n) * bytes);
    }
}

static void step_backward(const struct nn_attention *attention, const struct block *block, struct pass *pass)
{
    multiply_rows(attention, block, attention->scale, &attention->query, &attention->key, pass->scores);
    multiply_rows(attention, block, 1, &attention->gradient, &attention->value, pass->gradients);
    turn_block(attention, block, pass);
    add_to_keys(attention, block, 1, pass->scores, &attention->gradient, &attention->value_gradient);
    add_to_keys(attention, block, attention->scale, pass->gradients, &attention->query,
                &attention->key_gradient);
    add_to_queries(attention, block, attention->scale, pass->gradients, &attention->key, /*adds=*/true,
                   &attention->query_gradient);
}

/* One block of queries of one head. */
static void add_gradients(const struct nn_attention *attention, const struct block *block, char *scratch)
{
    const struct row_loops *loops = row_loops_of(attention->real);
    struct pass pass = {
        .first_query = block->first_query,
        .scores = scratch,
        .gradients = scratch + nn_scratch_bytes(QUERY_ROWS * KEY_ROWS, shoal_dtype_bytes(attention->real)),
        .lse = lse_of(attention, block)};
    for (int64_t i = 0; i < block->n_queries; i++) {
        int64_t query = block->first_query + i;
        pass.means[i] =
            loops->mean((size_t)attention->size,
                        row_of(attention, &attention->gradient, block->sample, block->head, query),
                        row_of(attention, &attention->output, block->sample, block->head, query));
    }
    fill_rows(attention, &attention->query_gradient, block->sample, block->head, block->first_query,
              block->n_queries);
    walk_block(attention, block, step_backward, &pass);
}

/* One head of keys and values, with all heads of queries that look at it: the gradients of keys and values are added
   from the first query of the first head to the last one of the last. */
static void run_backward(const struct nn_attention *attention, int64_t item, char *scratch)
{
    int64_t sample = item / attention->n_kv_heads;
    int64_t kv_head = item % attention->n_kv_heads;
    int64_t n_shared = attention->n_heads / attention->n_kv_heads;
    fill_rows(attention, &attention->key_gradient, sample, kv_head, 0, attention->n_keys);
    fill_rows(attention, &attention->value_gradient, sample, kv_head, 0, attention->n_keys);
    for (int64_t head = kv_head * n_shared; head < (kv_head + 1) * n_shared; head++) {
        for (int64_t first = 0; first < attention->n_queries; first += QUERY_ROWS) {
            struct block block = begin_block(attention, sample, head, first);
            add_gradients(attention, &block, scratch);
        }
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

static int64_t count_items(const struct nn_attention *attention, bool is_backward)
{
    return is_backward ? attention->n_samples * attention->n_kv_heads
                       : attention->n_samples * attention->n_heads * count_query_blocks(attention);
}

static size_t lane_bytes(const struct nn_attention *attention, bool is_backward)
{
    size_t block_bytes = nn_scratch_bytes(QUERY_ROWS * KEY_ROWS, shoal_dtype_bytes(attention->real));
    return is_backward ? 2 * block_bytes : block_bytes;
}

size_t nn_attention_scratch_bytes(const struct nn_attention *attention, bool is_backward)
{
    int64_t n_lanes = smaller(nn_blas_threads(), count_items(attention, is_backward));
    return (size_t)(n_lanes > 0 ? n_lanes : 1) * lane_bytes(attention, is_backward);
}

static void run_all(const struct nn_attention *attention, bool is_backward, void *scratch,
                    size_t scratch_bytes)
{
    struct job job = {.attention = attention,
                      .run = is_backward ? run_backward : run_forward,
                      .n_items = count_items(attention, is_backward),
                      .scratch = scratch,
                      .lane_bytes = lane_bytes(attention, is_backward)};
    nn_blas_use_one_thread();
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
