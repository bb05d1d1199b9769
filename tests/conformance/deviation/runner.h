/* SPDX-License-Identifier: MIT */
/* One rank that runs a program: what it has made, what it was told, and whether what it saw was right. */
#ifndef TESTS_DEVIATION_RUNNER_H
#define TESTS_DEVIATION_RUNNER_H

#include "fixtures/descriptor_calls.h"
#include "conformance/deviation/oracle.h"
#include "shoal/autograd.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/ddp.h"
#include "shoal/fsdp.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/window.h"

struct net {
    shoal_module *root;
    shoal_module *children[2];
    int n_children;
    shoal_tensor *out; /* of the last forward pass */
};

struct runner {
    const struct program *program;
    int rank;
    shoal_world *world;
    shoal_group *group;
    shoal_mesh *mesh;
    shoal_symmetric *symmetric;
    shoal_fsdp *contexts[MAX_MODELS];
    shoal_dtype compute[MAX_MODELS]; /* of the contexts */
    struct net nets[N_FAMILIES][MAX_MODELS];
    bool has_added[MAX_CALLS]; /* gradients, by call */
    /* How it ended. */
    shoal_status status;
    char text[1024];
    int last_call;   /* the one that failed, or -1 */
    char wrong[512]; /* what was shown and differs; "": nothing */
};

/* This is the call in which the program deviates, on the rank that does. */
static inline bool is_deviating(const struct runner *runner, const struct call *call)
{
    const struct deviation *deviation = &runner->program->deviation;
    return deviation->kind == DEVIATE_ARGUMENT && deviation->rank == runner->rank &&
           deviation->call == call->id;
}

static inline shoal_status note_wrong(struct runner *runner, const struct call *call, const char *what,
                                      int at, double got, double wanted)
{
    if (runner->wrong[0] == '\0') {
        (void)snprintf(runner->wrong, sizeof runner->wrong,
                       "rank %d: #%d %s shows %s %g at %d, and should show %g", runner->rank, call->id,
                       call->kind->name, what, got, at, wanted);
    }
    return SHOAL_OK;
}

/* A call has succeeded and shows these values. */
static inline shoal_status show(struct runner *runner, const struct call *call, const float *values, size_t n)
{
    const struct shown *shown = &runner->program->shown[call->id][runner->rank];
    int at = find_wrong(shown, values, n);
    if (shown->n != n) {
        return note_wrong(runner, call, "a number of values", 0, (double)n, (double)shown->n);
    }
    return at < 0 ? SHOAL_OK
                  : note_wrong(runner, call, "a value", at, (double)values[at], (double)shown->values[at]);
}

static inline shoal_status show_tensor(struct runner *runner, const struct call *call, shoal_tensor *tensor)
{
    const float *values = shoal_data(tensor);
    return values ? show(runner, call, values, (size_t)shoal_tensor_count(tensor)) : SHOAL_OK;
}

/* Of a whole [rows, columns] this rank has a part; the rest is taken as it should be. */
struct part {
    int dim;
    int64_t shape[2];
    int64_t offset;
    int64_t length;
};

static inline void put_part(const struct part *part, const float *values, float *whole)
{
    int64_t rows = part->dim == 0 ? part->length : part->shape[0];
    int64_t columns = part->dim == 1 ? part->length : part->shape[1];
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t row = i + (part->dim == 0 ? part->offset : 0);
            int64_t column = j + (part->dim == 1 ? part->offset : 0);
            whole[row * part->shape[1] + column] = values ? values[i * columns + j] : 0.0F;
        }
    }
}

/* The other way round. */
static inline void take_part(const struct part *part, const float *whole, float *values)
{
    int64_t rows = part->dim == 0 ? part->length : part->shape[0];
    int64_t columns = part->dim == 1 ? part->length : part->shape[1];
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t row = i + (part->dim == 0 ? part->offset : 0);
            int64_t column = j + (part->dim == 1 ? part->offset : 0);
            values[i * columns + j] = whole[row * part->shape[1] + column];
        }
    }
}

/* What the program wants to see there, to be overwritten by what this rank has of it. */
static inline void copy_shown(const struct runner *runner, const struct call *call, float *values, size_t n)
{
    const struct shown *shown = &runner->program->shown[call->id][runner->rank];
    for (size_t i = 0; i < n; i++) {
        values[i] = i < shown->n ? shown->values[i] : 0.0F;
    }
}

static inline shoal_dtype compute_dtype(int choice)
{
    static const shoal_dtype dtypes[] = {(shoal_dtype)0, SHOAL_F32, SHOAL_BF16};
    return dtypes[choice];
}

static inline shoal_reshard reshard_of(int choice)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_PARTLY};
    return reshards[choice];
}

static inline int ahead_of(int choice)
{
    static const int ahead[] = {0, 2, -1};
    return ahead[choice];
}

static inline int at_once_of(int choice)
{
    return choice == 0 ? 0 : choice + 1;
}

static inline float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Whole numbers below 257 are exact. */
static inline uint16_t to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    return (uint16_t)(wide >> 16);
}

/* Callbacks that do what the library would do. */
static inline shoal_status hook_nothing(void *context, const shoal_reduced_gradients *reduced,
                                        shoal_work **work_out)
{
    (void)context;
    (void)reduced;
    (void)work_out;
    return SHOAL_OK;
}

static inline shoal_status gather_by_hand(void *context, void *out, const void *in, size_t count,
                                          shoal_dtype dtype, shoal_group *group, shoal_work **work_out)
{
    (void)context;
    (void)work_out;
    return shoal_group_all_gather(group, in, out, count, dtype);
}

static inline shoal_status scatter_by_hand(void *context, void *out, const void *in, size_t count,
                                           shoal_dtype dtype, shoal_reduce_op reduce, double factor,
                                           shoal_group *group, shoal_work **work_out)
{
    (void)context;
    (void)work_out;
    return reduce == SHOAL_PREMUL_SUM ? group_reduce_scatter_premul(group, in, out, count, dtype, factor)
                                      : shoal_group_reduce_scatter(group, in, out, count, dtype, reduce);
}

static const shoal_custom_all_gather own_gather = {.struct_size = sizeof own_gather, .call = gather_by_hand};
static const shoal_custom_reduce_scatter own_scatter = {.struct_size = sizeof own_scatter,
                                                        .call = scatter_by_hand};

#endif
