/* SPDX-License-Identifier: MIT */
/*
 * Ranks that run graphs one after the other: threads of this process with a world of their own. Each rank has a text of its
 * own, so that one of them can be made to differ. What a rank gives is bytes: of outputs, with their dtypes and shapes, and of
 * inputs after the run.
 */
#ifndef TESTS_UNIT_GRAPH_PASS_FUZZ_RANKS_H
#define TESTS_UNIT_GRAPH_PASS_FUZZ_RANKS_H

#include <pthread.h>

#include "unit/graph/running.h"
#include "fixtures/graph_text.h"
#include "fixtures/random_graph.h"
#include "shoal/compile.h"

enum {
    FUZZ_MAX_OUTPUTS = RANDOM_MAX_POOL,
    FUZZ_ERROR_BYTES = 512
};

struct fuzz_result {
    shoal_status status;
    char error[FUZZ_ERROR_BYTES];
    struct graph_text given;
};

struct fuzz_ranks;

struct fuzz_rank {
    struct fuzz_ranks *ranks;
    int rank;
    pthread_t thread;
    const char *text; /* of the graph to run */
    struct fuzz_result *result;
};

struct fuzz_ranks {
    int n_ranks;
    struct rank_key key;
    double timeout_s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned round; /* counts graphs */
    int n_busy;
    bool is_over;
    struct fuzz_rank each[RANDOM_MAX_RANKS];
};

/* Running one graph ------------------------------------------------------------------------------------ */

static inline void fuzz_append(struct graph_text *given, shoal_tensor *tensor)
{
    char text[TENSOR_TEXT_BYTES];
    (void)tensor_format(text, tensor);
    (void)graph_text_write(given, text, strlen(text));
    shoal_tensor *whole = shoal_contiguous(tensor);
    const void *data = whole ? shoal_data(whole) : NULL;
    if (data) {
        (void)graph_text_write(given, data, tensor_bytes(whole));
    }
}

static inline size_t fuzz_count_outputs(const shoal_arg *arg)
{
    size_t count = 0;
    if (arg->kind == SHOAL_ARG_NODE) {
        return arg->as.node->n_values;
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        count += fuzz_count_outputs(&arg->as.list.items[i]);
    }
    return count;
}

static inline shoal_status fuzz_run_graph(const shoal_graph *graph, shoal_world *world,
                                          struct graph_text *given)
{
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    shoal_tensor *outputs[FUZZ_MAX_OUTPUTS] = {NULL};
    size_t n_inputs = run_inputs(graph, shoal_world_rank(world), inputs);
    size_t n_outputs = graph->output ? fuzz_count_outputs(&graph->output->args[0]) : 0;
    shoal_status status = shoal_graph_run(graph, world, inputs, n_inputs, outputs, n_outputs);
    if (status == SHOAL_OK && (status = shoal_scope_begin()) == SHOAL_OK) {
        for (size_t i = 0; i < n_outputs + n_inputs; i++) {
            fuzz_append(given, i < n_outputs ? outputs[i] : inputs[i - n_outputs]);
        }
        run_unref(outputs, n_outputs);
        status = shoal_scope_end();
    }
    run_unref(inputs, n_inputs);
    return status;
}

static inline void fuzz_run_text(const char *text, shoal_world *world, struct fuzz_result *result)
{
    shoal_graph *graph = NULL;
    result->given.length = 0;
    result->error[0] = '\0';
    result->status = shoal_graph_parse(text, strlen(text), &graph);
    if (result->status == SHOAL_OK) {
        result->status = fuzz_run_graph(graph, world, &result->given);
    }
    if (result->status != SHOAL_OK) {
        (void)snprintf(result->error, sizeof result->error, "%s", shoal_error_text());
    }
    shoal_graph_free(graph);
}

/* Threads ---------------------------------------------------------------------------------------------- */

static inline shoal_world *fuzz_open_world(const struct fuzz_rank *self)
{
    const struct rank rank = {.rank = self->rank, .n_ranks = self->ranks->n_ranks};
    shoal_world_options options = rank_world_options(&rank, &self->ranks->key);
    shoal_world *world = NULL;
    options.timeout_s = self->ranks->timeout_s;
    (void)CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

static inline void *fuzz_rank_main(void *argument)
{
    struct fuzz_rank *self = argument;
    struct fuzz_ranks *ranks = self->ranks;
    shoal_world *world = fuzz_open_world(self);
    (void)pthread_mutex_lock(&ranks->lock);
    for (unsigned round = 0;; round = ranks->round) {
        while (ranks->round == round && !ranks->is_over) {
            (void)pthread_cond_wait(&ranks->changed, &ranks->lock);
        }
        if (ranks->round == round) {
            break;
        }
        (void)pthread_mutex_unlock(&ranks->lock);
        if (world) {
            fuzz_run_text(self->text, world, self->result);
        } else {
            self->result->status = SHOAL_ERR_STATE;
        }
        (void)pthread_mutex_lock(&ranks->lock);
        ranks->n_busy--;
        (void)pthread_cond_broadcast(&ranks->changed);
    }
    (void)pthread_mutex_unlock(&ranks->lock);
    if (world) {
        (void)shoal_world_close(world); /* after a difference between ranks it has nothing good to say */
    }
    return NULL;
}

static inline void fuzz_ranks_begin(struct fuzz_ranks *ranks, int n_ranks, double timeout_s)
{
    static int n_worlds = 0;
    const struct rank rank = {.n_ranks = n_ranks};
    *ranks = (struct fuzz_ranks){
        .n_ranks = n_ranks, .key = rank_key(&rank, n_worlds++), .timeout_s = timeout_s * test_time_scale()};
    (void)pthread_mutex_init(&ranks->lock, NULL);
    (void)pthread_cond_init(&ranks->changed, NULL);
    for (int i = 0; i < n_ranks; i++) {
        ranks->each[i] = (struct fuzz_rank){.ranks = ranks, .rank = i};
        CHECK_INT(pthread_create(&ranks->each[i].thread, NULL, fuzz_rank_main, &ranks->each[i]), 0);
    }
}

static inline void fuzz_ranks_end(struct fuzz_ranks *ranks)
{
    (void)pthread_mutex_lock(&ranks->lock);
    ranks->is_over = true;
    (void)pthread_cond_broadcast(&ranks->changed);
    (void)pthread_mutex_unlock(&ranks->lock);
    for (int i = 0; i < ranks->n_ranks; i++) {
        (void)pthread_join(ranks->each[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&ranks->changed);
    (void)pthread_mutex_destroy(&ranks->lock);
}

/* Runs a text on each rank: texts[i] and results[i]. Whether all could. */
static inline bool fuzz_ranks_run(struct fuzz_ranks *ranks, char *const *texts, struct fuzz_result *results)
{
    bool is_ok = true;
    for (int i = 0; i < ranks->n_ranks; i++) {
        ranks->each[i].text = texts[i];
        ranks->each[i].result = &results[i];
    }
    (void)pthread_mutex_lock(&ranks->lock);
    ranks->n_busy = ranks->n_ranks;
    ranks->round++;
    (void)pthread_cond_broadcast(&ranks->changed);
    while (ranks->n_busy > 0) {
        (void)pthread_cond_wait(&ranks->changed, &ranks->lock);
    }
    (void)pthread_mutex_unlock(&ranks->lock);
    for (int i = 0; i < ranks->n_ranks; i++) {
        is_ok = is_ok && results[i].status == SHOAL_OK;
    }
    return is_ok;
}

#endif
