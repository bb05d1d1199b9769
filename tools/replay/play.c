/* SPDX-License-Identifier: MIT */
/* Makes the call of a case with the tensors of the file, and compares what it gave. */
#include "play.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

/* What a case came to ---------------------------------------------------------------------------------- */

/* Of several failures the first in time is kept: the others are its echo. */
static shoal_status note_failure(struct replay_run *run, size_t at, int rank, shoal_status status)
{
    struct replay_case *self = run->cases[at];
    char text[REPLAY_REASON_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)pthread_mutex_lock(&run->lock);
    if (!self->is_failed) {
        self->is_failed = true;
        replay_case_set_reason(self, "rank %d: %s", rank, text);
    }
    if (at < run->failed) {
        run->failed = at;
    }
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}

/* Of several wrong results that of the lowest rank is kept, so that two runs say the same. */
static void note_difference(struct replay_run *run, struct replay_case *self, int rank, double worst,
                            const char *reason)
{
    (void)pthread_mutex_lock(&run->lock);
    if (worst > self->worst) {
        self->worst = worst;
    }
    if (reason[0] != '\0' && !self->is_failed && (self->reason[0] == '\0' || rank < self->wrong_rank)) {
        self->wrong_rank = rank;
        replay_case_set_reason(self, "%s", reason);
    }
    (void)pthread_mutex_unlock(&run->lock);
}

static void note_handed_on(struct replay_run *run, struct replay_case *self)
{
    (void)pthread_mutex_lock(&run->lock);
    self->is_handed_on = true;
    (void)pthread_mutex_unlock(&run->lock);
}

/* One case on one rank --------------------------------------------------------------------------------- */

/* What a rank has in hands for one case. */
struct turn {
    struct replay_run *run;
    struct replay_case *self;
    int rank;
    shoal_group *group;
    shoal_tensor **tensors[REPLAY_N_KINDS]; /* of the file */
    shoal_tensor **outs;                    /* what the call gave */
    const void **sources;                   /* n_ranks */
};

static bool has_same_shape(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t bytes = (size_t)shoal_tensor_n_dims(a) * sizeof(int64_t);
    return shoal_tensor_n_dims(a) == shoal_tensor_n_dims(b) &&
           memcmp(shoal_tensor_shape(a), shoal_tensor_shape(b), bytes) == 0;
}

static void format_shape(char *text, size_t text_bytes, const shoal_tensor *tensor)
{
    size_t length = (size_t)snprintf(text, text_bytes, "%s [", shoal_dtype_name(shoal_tensor_dtype(tensor)));
    for (int i = 0; i < shoal_tensor_n_dims(tensor) && length < text_bytes; i++) {
        length += (size_t)snprintf(text + length, text_bytes - length, "%s%lld", i ? ", " : "",
                                   (long long)shoal_tensor_shape(tensor)[i]);
    }
    if (length < text_bytes) {
        (void)snprintf(text + length, text_bytes - length, "]");
    }
}

/* How a result is compared with the recorded one. */
struct judgement {
    enum replay_kind kind; /* of the result */
    enum compare_kind how;
    enum replay_kind source; /* what was added up */
    bool is_block;           /* the rank's block of it */
};

/* Results. */
static struct judgement judge_output(const struct turn *turn)
{
    const struct replay_call *call = &turn->self->call;
    struct judgement judgement = {.kind = REPLAY_OUT,
                                  .how =
                                      compare_kind_of(call->row->is_reduce, call->reduce, turn->self->dtype),
                                  .source = REPLAY_IN,
                                  .is_block = call->row->is_scatter};
    judgement.how = call->row->gradient == REPLAY_CHAINED ? COMPARE_LARGEST : judgement.how;
    return judgement;
}

/* Gradients of inputs. Where elements are moved, an average still divides them. */
static struct judgement judge_gradient(const struct turn *turn)
{
    const struct replay_call *call = &turn->self->call;
    bool is_average = call->row->is_reduce && call->reduce == SHOAL_AVG;
    struct judgement judgement = {.kind = REPLAY_GIN, .source = REPLAY_GOUT, .how = COMPARE_BITS};
    enum compare_kind sum = compare_kind_of(true, is_average ? SHOAL_AVG : SHOAL_SUM, turn->self->dtype);
    switch (call->row->gradient) {
    case REPLAY_SUMMED:
    case REPLAY_SUMMED_OWN:
        judgement.how = sum;
        break;
    case REPLAY_SUMMED_BLOCK:
        judgement.how = sum;
        judgement.is_block = true;
        break;
    case REPLAY_SUMMED_ROOT:
        judgement.how = turn->rank == call->source ? sum : COMPARE_BITS;
        break;
    case REPLAY_CHAINED:
        judgement.how = COMPARE_LARGEST;
        break;
    case REPLAY_MOVED:
        judgement.how = is_average ? COMPARE_AVERAGE : COMPARE_BITS;
        break;
    case REPLAY_NO_GRADIENT:
        break;
    }
    return judgement;
}

/* Which of a rank's source tensors result i was added up from: of one for every rank, the own one. */
static size_t source_of(const struct turn *turn, const struct judgement *judgement, size_t i)
{
    const struct replay_row *row = turn->self->call.row;
    enum replay_count count = judgement->source == REPLAY_IN ? row->ins : row->outs;
    return count == REPLAY_RANKS ? (size_t)turn->rank : i;
}

/* Where the result comes from: from the same place, or from the rank's block along a dimension. */
static void place_sources(const struct turn *turn, const struct judgement *judgement, size_t i,
                          const shoal_tensor *got, struct comparison *comparison)
{
    const shoal_tensor *source = turn->tensors[judgement->source][source_of(turn, judgement, i)];
    int n_dims = shoal_tensor_n_dims(source);
    comparison->block_elems = comparison->count;
    comparison->input_step = 0;
    comparison->input_begin = 0;
    if (!judgement->is_block || n_dims == 0 || n_dims != shoal_tensor_n_dims(got)) {
        return;
    }
    int64_t named = turn->self->call.dims[i];
    int dim = (int)(named < 0 ? named + n_dims : named);
    int64_t inner = 1;
    for (int d = dim + 1; d < n_dims; d++) {
        inner *= shoal_tensor_shape(source)[d];
    }
    comparison->block_elems = shoal_tensor_shape(got)[dim] * inner;
    comparison->input_step = shoal_tensor_shape(source)[dim] * inner;
    comparison->input_begin = turn->rank * comparison->block_elems;
}

/* Addresses of what all ranks added up. */
static bool read_sources(const struct turn *turn, const struct judgement *judgement, size_t i)
{
    const struct replay_case *self = turn->self;
    for (int rank = 0; rank < self->n_ranks; rank++) {
        size_t at = (size_t)rank * self->n_tensors[judgement->source] + source_of(turn, judgement, i);
        int64_t number = self->tensors[judgement->source][at];
        turn->sources[rank] = shoal_data(replay_case_load(self, turn->run->file, number));
        if (!turn->sources[rank]) {
            return false;
        }
    }
    return true;
}

static void note_shapes(const struct turn *turn, const char *name, const shoal_tensor *got,
                        const shoal_tensor *want)
{
    char reason[REPLAY_REASON_BYTES];
    char a[200];
    char b[200];
    format_shape(a, sizeof a, got);
    format_shape(b, sizeof b, want);
    (void)snprintf(reason, sizeof reason, "%s: got %s, expected %s", name, a, b);
    note_difference(turn->run, turn->self, turn->rank, 0, reason);
}

/* Result i, or the gradient of input i. Returns false if something could not be had, with the error in the scope. */
static bool check_tensor(const struct turn *turn, const struct judgement *judgement, size_t i,
                         shoal_tensor *got, const shoal_tensor *want)
{
    struct replay_case *self = turn->self;
    char name[40];
    char reason[REPLAY_REASON_BYTES] = "";
    if (!got || !want) {
        return false;
    }
    (void)snprintf(name, sizeof name, "rank%d.%s%zu", turn->rank,
                   judgement->kind == REPLAY_GIN ? "gin" : "out", i);
    if (shoal_tensor_dtype(got) != self->dtype || !has_same_shape(got, want)) {
        note_shapes(turn, name, got, want);
        return true;
    }
    struct comparison comparison = {.kind = judgement->how,
                                    .dtype = self->dtype,
                                    .n_ranks = self->n_ranks,
                                    .count = shoal_tensor_count(got),
                                    .got = shoal_data(shoal_contiguous(got)),
                                    .want = shoal_data(want)};
    bool is_moved = judgement->kind == REPLAY_GIN && self->call.row->gradient == REPLAY_MOVED;
    if (compare_needs_sources(judgement->how) && !is_moved) {
        if (!read_sources(turn, judgement, i)) {
            return false;
        }
        comparison.ins = turn->sources;
        place_sources(turn, judgement, i, got, &comparison);
    }
    if (!comparison.got || !comparison.want) {
        return false;
    }
    struct difference difference = compare(&comparison);
    if (difference.worst > 1) {
        (void)snprintf(reason, sizeof reason, "%s, element %lld: %s, %.3g of its bound", name,
                       (long long)difference.element, difference.text, difference.worst);
    }
    note_difference(turn->run, self, turn->rank, difference.worst, reason);
    return true;
}

/* The call --------------------------------------------------------------------------------------------- */

static bool load_tensors(const struct turn *turn)
{
    const struct replay_case *self = turn->self;
    for (int kind = 0; kind < REPLAY_N_KINDS; kind++) {
        for (size_t i = 0; i < self->n_tensors[kind]; i++) {
            size_t at = (size_t)turn->rank * self->n_tensors[kind] + i;
            turn->tensors[kind][i] = replay_case_load(self, turn->run->file, self->tensors[kind][at]);
        }
    }
    return shoal_scope_error() == SHOAL_OK;
}

/* Inputs as the call is to see them: transposed views, leaves. Returns false after an error. */
static bool prepare_inputs(const struct turn *turn, shoal_tensor **ins)
{
    for (size_t i = 0; i < turn->self->n_tensors[REPLAY_IN]; i++) {
        /* A second copy: calls in place change it, and what was recorded is compared with. */
        size_t at = (size_t)turn->rank * turn->self->n_tensors[REPLAY_IN] + i;
        shoal_tensor *in = replay_case_load(turn->self, turn->run->file, turn->self->tensors[REPLAY_IN][at]);
        if (turn->self->call.layout == REPLAY_TRANSPOSED) {
            in = shoal_transpose(shoal_contiguous(shoal_transpose(in, 0, 1)), 0, 1);
        }
        ins[i] = in;
        if (!in || (turn->self->n_tensors[REPLAY_GIN] > 0 && shoal_set_requires_grad(in, true) != SHOAL_OK)) {
            return false;
        }
    }
    return true;
}

static bool is_equal(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t bytes = (size_t)shoal_tensor_count(a) * shoal_dtype_bytes(shoal_tensor_dtype(a));
    return has_same_shape(a, b) && memcmp(shoal_data(a), shoal_data(b), bytes) == 0;
}

/* The sum of gradient i of all outputs on the source, zeros on other ranks. */
static shoal_tensor *add_on_source(const struct turn *turn, size_t i)
{
    const struct replay_case *self = turn->self;
    shoal_tensor *own = turn->tensors[REPLAY_GOUT][i];
    shoal_tensor *sum = shoal_zeros(shoal_tensor_shape(own), shoal_tensor_n_dims(own), self->dtype);
    for (int rank = 0; sum && turn->rank == self->call.source && rank < self->n_ranks; rank++) {
        size_t at = (size_t)rank * self->n_tensors[REPLAY_GOUT] + i;
        sum = shoal_add(sum, replay_case_load(self, turn->run->file, self->tensors[REPLAY_GOUT][at]));
    }
    return sum;
}

/* What was recorded. PyTorch's functional broadcast has no gradient of its own and hands on what comes from above, which
   no rank's loss has as its gradient: there, what is right is compared with. */
static shoal_tensor *expect_gradient(const struct turn *turn, size_t i)
{
    shoal_tensor *want = turn->tensors[REPLAY_GIN][i];
    if (turn->self->call.row->is_handed_on && is_equal(want, turn->tensors[REPLAY_GOUT][i])) {
        note_handed_on(turn->run, turn->self);
        return add_on_source(turn, i);
    }
    return want;
}

static shoal_status play_gradients(const struct turn *turn, shoal_tensor *const *ins)
{
    size_t n_outs = turn->self->n_tensors[REPLAY_OUT];
    shoal_status status = shoal_backward_roots(turn->outs, turn->tensors[REPLAY_GOUT], n_outs, NULL);
    struct judgement judgement = judge_gradient(turn);
    for (size_t i = 0; status == SHOAL_OK && i < turn->self->n_tensors[REPLAY_GIN]; i++) {
        shoal_tensor *gradient = shoal_grad(ins[i]);
        if (!gradient) {
            note_difference(turn->run, turn->self, turn->rank, 0, "an input has no gradient");
        } else if (!check_tensor(turn, &judgement, i, gradient, expect_gradient(turn, i))) {
            return shoal_scope_error();
        }
    }
    return status;
}

/* What goes wrong is the status or an error of the scope that is open. */
static shoal_status play(const struct turn *turn, shoal_tensor **ins)
{
    const struct replay_case *self = turn->self;
    if (!load_tensors(turn) || !prepare_inputs(turn, ins)) {
        return shoal_scope_error();
    }
    struct replay_turn call = {.call = &self->call,
                               .rank = turn->rank,
                               .group = turn->group,
                               .ins = ins,
                               .n_ins = self->n_tensors[REPLAY_IN],
                               .outs = turn->outs,
                               .n_outs = self->n_tensors[REPLAY_OUT],
                               .shapes = turn->tensors[REPLAY_OUT]};
    self->call.row->run(&call);
    if (call.status != SHOAL_OK) {
        return call.status;
    }
    if (call.wrong) {
        note_difference(turn->run, turn->self, turn->rank, 0, call.wrong);
    }
    struct judgement judgement = judge_output(turn);
    for (size_t i = 0; i < call.n_outs; i++) {
        if (!check_tensor(turn, &judgement, i, turn->outs[i], turn->tensors[REPLAY_OUT][i])) {
            return shoal_scope_error();
        }
    }
    return self->n_tensors[REPLAY_GIN] > 0 ? play_gradients(turn, ins) : SHOAL_OK;
}

/* A result that could not be had without anybody saying why, such as for want of memory here. */
static bool has_outputs(const struct turn *turn)
{
    for (size_t i = 0; i < turn->self->n_tensors[REPLAY_OUT]; i++) {
        if (!turn->outs[i]) {
            return false;
        }
    }
    return true;
}

static shoal_status play_in_scope(const struct turn *turn, shoal_tensor **ins)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = play(turn, ins);
    bool is_complete = has_outputs(turn);
    shoal_status of_scope = shoal_scope_end();
    status = status == SHOAL_OK ? of_scope : status;
    return status == SHOAL_OK && !is_complete ? SHOAL_ERR_NO_MEMORY : status;
}

shoal_status replay_play_case(struct replay_run *run, size_t at, shoal_world *world)
{
    struct replay_case *self = run->cases[at];
    shoal_tensor *all[(REPLAY_N_KINDS + 2) * REPLAY_MAX_LIST] = {NULL};
    struct turn turn = {.run = run,
                        .self = self,
                        .rank = shoal_world_rank(world),
                        .group = shoal_world_group(world),
                        .outs = &all[REPLAY_N_KINDS * REPLAY_MAX_LIST],
                        .sources = calloc((size_t)self->n_ranks, sizeof(void *))};
    for (int kind = 0; kind < REPLAY_N_KINDS; kind++) {
        turn.tensors[kind] = &all[kind * REPLAY_MAX_LIST];
    }
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (turn.sources) {
        status = play_in_scope(&turn, &all[(REPLAY_N_KINDS + 1) * REPLAY_MAX_LIST]);
    }
    free(turn.sources);
    return status == SHOAL_OK ? status : note_failure(run, at, turn.rank, status);
}
