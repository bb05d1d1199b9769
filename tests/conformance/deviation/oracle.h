/* SPDX-License-Identifier: MIT */
/*
 * What calls show if no rank deviates, computed for all ranks at once without the library: models are whole arrays,
 * a reduction is a loop over ranks. Gradients and values are small whole numbers; where a division rounds, or bf16
 * does, results are compared with a tolerance that no wrong value meets.
 */
#ifndef TESTS_DEVIATION_ORACLE_H
#define TESTS_DEVIATION_ORACLE_H

#include <math.h>

#include "conformance/deviation/program.h"

struct model_state {
    double values[MAX_PARAMS][COUNT];
    double grads[MAX_PARAMS][COUNT];
    double pending[MAX_PARAMS][COUNT]; /* summed over ranks, not yet divided */
    bool is_frozen[MAX_PARAMS];
    bool is_ignored[MAX_PARAMS];
    bool is_not_synced[MAX_UNITS];
    bool is_not_all_reduced[MAX_UNITS];
    double divide[MAX_UNITS]; /* by what gradients of a unit are divided; 0: the number of ranks */
};

struct oracle {
    struct program *program;
    struct model_state models[N_FAMILIES][MAX_MODELS];
};

static inline struct model_state *state_of(struct oracle *oracle, const struct call *call)
{
    return &oracle->models[call->kind->family][model_of(oracle->program, call)];
}

/* The call shows this on one rank. */
static inline void show_on(struct oracle *oracle, const struct call *call, int rank, const double *values,
                           size_t n)
{
    struct shown *shown = &oracle->program->shown[call->id][rank];
    float *all = realloc(shown->values, (shown->n + n) * sizeof *all);
    if (!all) {
        test_failed(__FILE__, __LINE__, "no memory");
        return;
    }
    shown->values = all;
    for (size_t i = 0; i < n; i++) {
        all[shown->n++] = (float)values[i];
    }
}

static inline void show_on_all(struct oracle *oracle, const struct call *call, const double *values, size_t n)
{
    for (int r = 0; r < oracle->program->n_ranks; r++) {
        show_on(oracle, call, r, values, n);
    }
}

static inline void oracle_begin(struct oracle *oracle, struct program *program)
{
    memset(oracle, 0, sizeof *oracle);
    oracle->program = program;
    for (int f = 0; f < N_FAMILIES; f++) {
        for (int m = 0; m < MAX_MODELS; m++) {
            for (int i = 0; i < MAX_PARAMS * COUNT; i++) {
                oracle->models[f][m].values[i / COUNT][i % COUNT] =
                    (double)first_value(m, i / COUNT, i % COUNT);
            }
        }
    }
}

/* With the argument that deviates, on its rank. Changes nothing that others are shown. */
static inline void predict_asked(const struct oracle *oracle, const struct call *call)
{
    struct program *program = oracle->program;
    const struct deviation *deviation = &program->deviation;
    struct call asked = *call;
    struct shown kept[MAX_RANKS];
    struct oracle *copy = malloc(sizeof *copy);
    if (!copy) {
        return;
    }
    *copy = *oracle;
    asked.choices[deviation->argument] = deviation->choice;
    memcpy(kept, program->shown[call->id], sizeof kept);
    memset(program->shown[call->id], 0, sizeof kept);
    call->kind->predict(copy, &asked);
    program->asked = program->shown[call->id][deviation->rank];
    program->shown[call->id][deviation->rank] = (struct shown){.values = NULL};
    for (int r = 0; r < program->n_ranks; r++) {
        free(program->shown[call->id][r].values);
    }
    memcpy(program->shown[call->id], kept, sizeof kept);
    free(copy);
}

static inline void oracle_run(struct program *program)
{
    struct oracle *oracle = malloc(sizeof *oracle);
    if (!oracle) {
        test_failed(__FILE__, __LINE__, "no memory");
        return;
    }
    oracle_begin(oracle, program);
    for (int i = 0; i < program->n_calls; i++) {
        const struct call *call = &program->calls[i];
        if (call->kind->predict && i == program->deviation.call &&
            program->deviation.kind == DEVIATE_ARGUMENT) {
            predict_asked(oracle, call);
        }
        if (call->kind->predict) {
            call->kind->predict(oracle, call);
        }
    }
    free(oracle);
}

/* Models ------------------------------------------------------------------------------------------------- */

/* Parts of the gradients of a unit, which its backward pass adds: `weight` of parameter i is its factor. */
static inline void predict_gradients(struct oracle *oracle, const struct call *call, int unit,
                                     bool is_weighted)
{
    struct model_state *state = state_of(oracle, call);
    for (int i = unit * UNIT_PARAMS; i < (unit + 1) * UNIT_PARAMS; i++) {
        for (int k = 0; k < COUNT && !state->is_frozen[i]; k++) {
            for (int r = 0; r < oracle->program->n_ranks; r++) {
                double part = (double)gradient_value(r, call->id, is_weighted ? 0 : i, k);
                state->pending[i][k] += is_weighted ? part * (1 + i % UNIT_PARAMS) : part;
            }
        }
    }
}

/* Gradients of a unit become those of its shards. */
static inline void land(const struct program *program, struct model_state *state, int unit)
{
    double divide = state->divide[unit] > 0.0 ? state->divide[unit] : program->n_ranks;
    for (int i = unit * UNIT_PARAMS; i < (unit + 1) * UNIT_PARAMS; i++) {
        for (int k = 0; k < COUNT; k++) {
            state->grads[i][k] += state->pending[i][k] / divide;
            state->pending[i][k] = 0.0;
        }
    }
}

static inline void predict_end_of_backward(struct oracle *oracle, const struct call *call)
{
    struct model_state *state = state_of(oracle, call);
    for (int u = 0; u < MAX_UNITS; u++) {
        /* On a group every rank has a shard, and there are no replicas. */
        bool is_kept = state->is_not_all_reduced[u] && oracle->program->layout != LAYOUT_GROUP;
        if (!state->is_not_synced[u] && !is_kept) {
            land(oracle->program, state, u);
        }
    }
}

static inline void predict_synchronize(struct oracle *oracle, const struct call *call)
{
    for (int u = 0; u < MAX_UNITS; u++) {
        land(oracle->program, state_of(oracle, call), u);
    }
}

/* Of one unit, or of all. */
static inline void predict_flag(struct oracle *oracle, const struct call *call, bool *flags)
{
    int unit = unit_of(oracle->program, call);
    for (int u = 0; u < MAX_UNITS; u++) {
        bool is_meant = u == unit || unit == oracle->program->n_units;
        flags[u] = is_meant ? choice_of(call, "is_on") == 0 : flags[u];
    }
}

static inline void predict_sync(struct oracle *oracle, const struct call *call)
{
    predict_flag(oracle, call, state_of(oracle, call)->is_not_synced);
}

static inline void predict_all_reduce(struct oracle *oracle, const struct call *call)
{
    predict_flag(oracle, call, state_of(oracle, call)->is_not_all_reduced);
}

static inline double factor_of(int choice)
{
    static const double factors[] = {0.0, 2.0, 8.0};
    return factors[choice];
}

static inline void predict_divide_factor(struct oracle *oracle, const struct call *call)
{
    int unit = unit_of(oracle->program, call);
    for (int u = 0; u < MAX_UNITS; u++) {
        if (u == unit || unit == oracle->program->n_units) {
            state_of(oracle, call)->divide[u] = factor_of(choice_of(call, "factor"));
        }
    }
}

static inline int rank_of(const struct call *call)
{
    int at = find_domain(call, DOMAIN_RANK);
    return at >= 0 ? call->choices[at] : 0;
}

/* -1: every rank. */
static inline int root_of_call(const struct program *p, const struct call *call)
{
    int choice = choice_of(call, "root");
    return choice == p->n_ranks ? -1 : choice;
}

static inline void predict_whole(struct oracle *oracle, const struct call *call)
{
    const double *values = state_of(oracle, call)->values[param_of(oracle->program, call)];
    int root = root_of_call(oracle->program, call);
    if (root < 0) {
        show_on_all(oracle, call, values, COUNT);
    } else {
        show_on(oracle, call, root, values, COUNT);
    }
}

static inline void predict_broadcast(struct oracle *oracle, const struct call *call)
{
    struct model_state *state = state_of(oracle, call);
    int param = param_of(oracle->program, call);
    for (int k = 0; k < COUNT; k++) {
        state->values[param][k] = (double)sent_value(call->id, param, k);
    }
}

/* Arrays like a shard: what the whole has at k is a function of k alone. */
static inline void array_values(const struct call *call, double *values)
{
    for (int k = 0; k < COUNT; k++) {
        values[k] = (double)sent_value(call->id, 5, k);
    }
}

static inline void predict_array(struct oracle *oracle, const struct call *call)
{
    double values[COUNT];
    array_values(call, values);
    show_on_all(oracle, call, values, COUNT);
}

static inline void predict_gathered_array(struct oracle *oracle, const struct call *call)
{
    double values[COUNT];
    int root = root_of_call(oracle->program, call);
    array_values(call, values);
    if (root < 0) {
        show_on_all(oracle, call, values, COUNT);
    } else {
        show_on(oracle, call, root, values, COUNT);
    }
}

/* Clipping ----------------------------------------------------------------------------------------------- */

static inline double maximum_of(int choice)
{
    static const double maxima[] = {0.25, 0.5, 1e6};
    return maxima[choice];
}

static inline double power_of(int choice)
{
    static const double powers[] = {1.0, 2.0, 3.0, (double)INFINITY};
    return powers[choice];
}

static inline double norm_of(const struct model_state *state, double power)
{
    double sum = 0.0;
    for (int i = 0; i < MAX_PARAMS * COUNT; i++) {
        double size = state->is_ignored[i / COUNT] ? 0.0 : fabs(state->grads[i / COUNT][i % COUNT]);
        sum = isinf(power) ? fmax(sum, size) : sum + pow(size, power);
    }
    return isinf(power) ? sum : pow(sum, 1.0 / power);
}

static inline void predict_clip_by(struct oracle *oracle, const struct call *call, double power)
{
    struct model_state *state = state_of(oracle, call);
    double norm = norm_of(state, power);
    double factor = maximum_of(choice_of(call, "max_norm")) / (norm + 1e-6);
    for (int i = 0; i < MAX_PARAMS * COUNT && factor < 1.0; i++) {
        state->grads[i / COUNT][i % COUNT] *= factor;
    }
    show_on_all(oracle, call, &norm, 1);
}

static inline void predict_clip_norm(struct oracle *oracle, const struct call *call)
{
    predict_clip_by(oracle, call, power_of(choice_of(call, "power")));
}

static inline void predict_clip_value(struct oracle *oracle, const struct call *call)
{
    struct model_state *state = state_of(oracle, call);
    double limit = maximum_of(choice_of(call, "max_value"));
    for (int i = 0; i < MAX_PARAMS * COUNT; i++) {
        double *grad = &state->grads[i / COUNT][i % COUNT];
        *grad = fmin(fmax(*grad, -limit), limit);
    }
}

/* Comparing ---------------------------------------------------------------------------------------------- */

/* The first place where they differ; -1 for none. */
static inline int find_wrong(const struct shown *shown, const float *values, size_t n)
{
    if (shown->n != n) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(values[i] - shown->values[i]) <= 0.02F * fabsf(shown->values[i]) + 1e-4F)) {
            return (int)i;
        }
    }
    return -1;
}

#endif
