/* SPDX-License-Identifier: MIT */
/*
 * Random programs that change a model between steps and within them, plain, under DDP, and sharded, eager and compiled.
 * What a program sees (losses, outputs, parameters, gradients, calls of hooks) has the bits of an oracle: a process
 * that builds the model anew for every pass, in the shape that it has by then, computes the parts of all ranks one
 * after the other, eagerly, and adds their gradients in rank order. Or the program is refused, where the table below
 * says so, with the status and text of the table on every rank. The table is the one of docs/concepts.md ("Changing a
 * model between steps").
 *
 * SHOAL_TEST_CHANGES says how many programs, SHOAL_TEST_CHANGES_FIRST the number of the first. A program that fails is
 * printed.
 */
#include "fixtures/changing_program.h"
#include "fixtures/changing_table.h"

#include <stdio.h>
#include <stdlib.h>

#include "fixtures/rank_world.h"
#include "shoal/compile.h"

/* The table ---------------------------------------------------------------------------------------------- */

static const struct cell *find_cell(const struct program *program, enum change change, bool is_compiled,
                                    bool is_alone)
{
    const struct row *row = &change_table[program->wrapper][change];
    if (is_alone) {
        return is_compiled ? &row->alone_compiled : &row->alone_eager;
    }
    return is_compiled ? &row->compiled : &row->eager;
}

/* With reduce_unused, parameters may be without a gradient. */
static bool is_refused(const struct program *program, enum change change, bool is_compiled, bool is_alone)
{
    const struct cell *cell = find_cell(program, change, is_compiled, is_alone);
    bool is_free = change == CHANGE_ADD_UNUSED && program->reduce_unused && !is_alone;
    return (cell->fate == REFUSED || cell->fate == EITHER) && !(is_free && program->wrapper == WRAPPER_DDP);
}

/* Trials ------------------------------------------------------------------------------------------------- */

struct trial {
    const struct program *program;
    struct rank *self;
    shoal_world *world;
    struct model models[MODEL_RANKS];
    struct live live;
    struct live_step step; /* of the compiled step */
    shoal_compiled *compiled;
    int n_runs;
    const struct cell *refusal; /* of the last line; NULL: it was followed */
    bool was_mine;              /* this rank made the change that is refused */
    bool has_ended;             /* refused */
};

static struct live_place place_of(const struct trial *trial)
{
    return (struct live_place){.rank = trial->self->rank, .n_ranks = trial->self->n_ranks};
}

static bool is_of_rank(const struct trial *trial, int rank)
{
    return trial->program->wrapper != WRAPPER_NONE || rank == trial->self->rank;
}

static const struct op *op_of(const struct line *line, int rank)
{
    return line->deviant == rank ? &line->other : &line->op;
}

/* The oracle --------------------------------------------------------------------------------------------- */

struct part {
    shoal_status status;
    float loss;
};

static void read_gradients(struct model *model, const struct live *fresh)
{
    for (int i = 0; i < model->n_tensors; i++) {
        struct model_tensor *tensor = &model->tensors[i];
        if (!fresh->tensors[i]) {
            continue;
        }
        const shoal_tensor *gradient = shoal_grad(fresh->tensors[i]);
        const float *values = gradient ? shoal_data(gradient) : NULL;
        tensor->local.is_there = values != NULL;
        tensor->has_zeroed = false;
        if (values) {
            memcpy(tensor->local.values, values, (size_t)tensor->count * sizeof(float));
        }
        if (!tensor->is_shard) {
            tensor->n_calls += fresh->n_calls[i];
        }
    }
}

static bool changes_gradients(enum change change)
{
    return change == CHANGE_DROP_GRADIENT || change == CHANGE_DROP_GRADIENTS ||
           change == CHANGE_ZERO_GRADIENTS;
}

/* One rank's part of a step, with a net that is built for it. */
static struct part compute_part(const struct trial *trial, struct model *model, const struct line *line,
                                int rank)
{
    struct live *fresh = malloc(sizeof *fresh);
    struct part part = {.status = SHOAL_ERR_NO_MEMORY};
    shoal_tensor *loss = NULL;
    if (!fresh) {
        return part;
    }
    live_build(fresh, model);
    struct model before = *model;
    struct live_step step = {.live = fresh,
                             .model = &before,
                             .between = *op_of(line, rank),
                             .place = {.rank = rank, .n_ranks = trial->self->n_ranks}};
    if (trial->program->wrapper == WRAPPER_FSDP && changes_gradients(step.between.change)) {
        step.between.change = CHANGE_NOTHING; /* of shards; those that wait to be reduced are elsewhere */
    }
    model_apply(model, op_of(line, rank));
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = live_input(trial->n_runs, rank);
    part.status = live_run_step(&step, &x, 1, &loss, 1);
    if (part.status == SHOAL_OK) {
        part.loss = *(const float *)shoal_data(loss);
        read_gradients(model, fresh);
    }
    (void)!shoal_scope_end();
    live_free(fresh);
    free(fresh);
    return part;
}

/* A parameter that leaves takes its gradient along, as this rank's own, and an average that was set aside. */
static void leave_wrapper(struct model_tensor *tensor)
{
    for (int i = 0; i < tensor->count && tensor->local.is_there && tensor->average.is_there; i++) {
        tensor->local.values[i] += tensor->average.values[i];
    }
    if (!tensor->local.is_there) {
        tensor->local = tensor->average;
    }
    tensor->average.is_there = false;
}

static void follow_in_model(const struct trial *trial, struct model *model)
{
    const struct model *first = &trial->models[0];
    for (int i = 0; i < model->n_tensors; i++) {
        struct model_tensor *tensor = &model->tensors[i];
        bool is_in_tree = model_has_parameter(model, i) && !tensor->is_ignored;
        if (is_in_tree && !tensor->is_wrapped && !trial->program->keeps_parameters) {
            memcpy(tensor->values, first->tensors[i].values, sizeof tensor->values);
        }
        if (tensor->is_wrapped && !is_in_tree) {
            leave_wrapper(tensor);
        }
        tensor->is_wrapped = is_in_tree;
    }
}

static void send_buffers(const struct trial *trial, struct model *model)
{
    const struct model *first = &trial->models[0];
    for (int m = 0; m < model->n_modules; m++) {
        for (int b = 0; b < model->modules[m].n_buffers; b++) {
            memcpy(model->tensors[model->modules[m].buffers[b]].values,
                   first->tensors[first->modules[m].buffers[b]].values, MODEL_WIDTH * sizeof(float));
        }
    }
}

/* Before a forward pass that will be reduced, DDP wraps parameters that are new, and sends buffers. */
static void follow_in_models(struct trial *trial)
{
    for (int r = 0; r < trial->self->n_ranks && trial->models[0].syncs; r++) {
        follow_in_model(trial, &trial->models[r]);
        send_buffers(trial, &trial->models[r]);
    }
}

static bool is_reduced(const struct trial *trial, const struct model_tensor *tensor)
{
    switch ((int)trial->program->wrapper) {
    case WRAPPER_DDP:
        return tensor->is_wrapped && tensor->is_trained;
    case WRAPPER_FSDP:
        return tensor->is_shard && tensor->is_trained;
    default:
        return false;
    }
}

/* False: a rank has no gradient of a parameter that all must have. */
static bool reduce_tensor(struct trial *trial, int id)
{
    int n_ranks = trial->self->n_ranks;
    float sums[MODEL_WIDTH];
    int n_parts = 0;
    for (int r = 0; r < n_ranks; r++) {
        const struct model_gradient *local = &trial->models[r].tensors[id].local;
        n_parts += local->is_there;
        for (int i = 0; i < MODEL_WIDTH; i++) {
            float value = local->is_there ? local->values[i] : -0.0F;
            sums[i] = r == 0 ? value : sums[i] + value;
        }
    }
    for (int r = 0; r < n_ranks && n_parts > 0; r++) {
        struct model_tensor *tensor = &trial->models[r].tensors[id];
        for (int i = 0; i < MODEL_WIDTH; i++) {
            float mean = sums[i] / (float)n_ranks;
            tensor->average.values[i] = tensor->average.is_there ? tensor->average.values[i] + mean : mean;
        }
        tensor->average.is_there = true;
        tensor->local.is_there = false;
        tensor->n_calls += tensor->is_shard && tensor->has_leaf_hook;
    }
    return n_parts == n_ranks || trial->program->wrapper == WRAPPER_FSDP || trial->program->reduce_unused;
}

/* An eager pass of DDP adds to an average of zeros, as to a gradient of this rank. */
static void take_zeros(struct model *model)
{
    static const float zeros[MODEL_WIDTH];
    for (int i = 0; i < model->n_tensors; i++) {
        struct model_tensor *tensor = &model->tensors[i];
        bool is_zero = tensor->average.is_there && !tensor->local.is_there &&
                       memcmp(tensor->average.values, zeros, (size_t)tensor->count * sizeof(float)) == 0;
        if (is_zero && tensor->is_wrapped && tensor->is_trained && model_uses_parameter(model, i)) {
            tensor->local = tensor->average;
            tensor->average.is_there = false;
        }
    }
}

/* The step of all ranks. Returns the status that all of them get, unless the table says otherwise. */
static shoal_status compute_all(struct trial *trial, const struct line *line, float *loss_out)
{
    shoal_status status = SHOAL_OK;
    if (trial->program->wrapper == WRAPPER_DDP) {
        follow_in_models(trial);
    }
    for (int r = 0; r < trial->self->n_ranks; r++) {
        if (!is_of_rank(trial, r)) {
            continue;
        }
        if (trial->program->wrapper == WRAPPER_DDP && !line->is_compiled) {
            take_zeros(&trial->models[r]);
        }
        struct part part = compute_part(trial, &trial->models[r], line, r);
        status = part.status == SHOAL_OK ? status : part.status;
        *loss_out = r == trial->self->rank ? part.loss : *loss_out;
    }
    for (int i = 0; i < trial->models[0].n_tensors && trial->models[0].syncs && status == SHOAL_OK; i++) {
        if (is_reduced(trial, &trial->models[0].tensors[i]) && !reduce_tensor(trial, i)) {
            status = SHOAL_ERR_STATE;
        }
    }
    return status;
}

/* Comparing ---------------------------------------------------------------------------------------------- */

static bool has_values(const shoal_tensor *tensor, const float *values, int offset, int length)
{
    const float *data = length > 0 ? shoal_data(tensor) : NULL;
    return shoal_tensor_count(tensor) == length &&
           (length == 0 || (data && memcmp(data, values + offset, (size_t)length * sizeof(float)) == 0));
}

static const char *find_difference(const struct trial *trial, int id)
{
    const struct model_tensor *want = &trial->models[trial->self->rank].tensors[id];
    const shoal_tensor *tensor = trial->live.tensors[id];
    const struct model_gradient *gradient = model_shown(want);
    int n_ranks = trial->self->n_ranks;
    int offset = live_offset(want, trial->self->rank, n_ranks);
    int end = want->is_shard ? live_offset(want, trial->self->rank + 1, n_ranks) : want->count;
    if (!has_values(tensor, want->values, offset, end - offset)) {
        return "its value";
    }
    if (shoal_requires_grad(tensor) != want->is_trained) {
        return "whether it requires a gradient";
    }
    if (gradient->is_there != (shoal_grad(tensor) != NULL)) {
        return gradient->is_there ? "its gradient, which is missing"
                                  : "its gradient, which should not be there";
    }
    if (gradient->is_there && !has_values(shoal_grad(tensor), gradient->values, offset, end - offset)) {
        return "its gradient";
    }
    return trial->live.n_calls[id] == want->n_calls ? NULL : "the number of calls of its hook";
}

static void compare(const struct trial *trial)
{
    const struct model *model = &trial->models[trial->self->rank];
    for (int i = 0; i < model->n_tensors && !test_has_failed(); i++) {
        if (model->tensors[i].count == 0 || !trial->live.tensors[i]) {
            continue;
        }
        const char *what = find_difference(trial, i);
        if (what) {
            test_failed(__FILE__, __LINE__, "rank %d: tensor %d differs in %s", trial->self->rank, i, what);
        }
    }
}

static void compare_numbers(const struct trial *trial, const shoal_tensor *got, const shoal_tensor *want,
                            const char *what)
{
    size_t bytes = want ? (size_t)shoal_tensor_count(want) * sizeof(float) : 0;
    const void *x = got ? shoal_data(got) : NULL;
    const void *y = want ? shoal_data(want) : NULL;
    if (!x || !y || memcmp(x, y, bytes) != 0) {
        test_failed(__FILE__, __LINE__, "rank %d: %s differs", trial->self->rank, what);
    }
}

/* Lines -------------------------------------------------------------------------------------------------- */

static bool has_hook_that_is_refused(const struct model *model)
{
    bool has_any = false;
    for (int i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        /* Those on shards run after the step. */
        has_any = has_any || (tensor->has_leaf_hook && !tensor->is_shard && model_uses_parameter(model, i));
    }
    return has_any;
}

/* A captured step cannot have local gradients beside averaged ones. */
static bool has_gradients_apart(const struct trial *trial)
{
    const struct model *model = &trial->models[trial->self->rank];
    bool is_apart = false;
    for (int i = 0; i < model->n_tensors && trial->program->wrapper == WRAPPER_DDP; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        bool is_reached = tensor->is_wrapped && tensor->is_trained && model_uses_parameter(model, i);
        bool has_both = tensor->average.is_there && (tensor->local.is_there || !model->syncs);
        is_apart = is_apart || (is_reached && (has_both || tensor->has_zeroed));
    }
    return is_apart;
}

/* What the table says of a step beside changes. */
static const struct cell *find_standing(const struct trial *trial, const struct line *line)
{
    static const struct cell apart = {REFUSED, STATE, 0, "was averaged"};
    static const struct cell both = {REFUSED, STATE, 0, ""};
    static const struct cell hooked = {REFUSED, STATE, 0, "shoal_on_accumulated"};
    static const struct cell frozen = {EITHER, STATE, 0, "frozen between its forward and its backward pass"};
    if (trial->program->wrapper == WRAPPER_FSDP && line->op.change == CHANGE_FREEZE) {
        return &frozen; /* units that stay gathered do not mind */
    }
    bool has_hook = line->is_compiled && has_hook_that_is_refused(&trial->models[trial->self->rank]);
    bool is_apart = line->is_compiled && has_gradients_apart(trial);
    if (has_hook && is_apart) {
        return &both; /* whichever the backward pass comes to first */
    }
    return has_hook ? &hooked : is_apart ? &apart : NULL;
}

/* `standing` is what find_standing says: there may be two reasons. The text names the one that the step comes to
   first. */
static void check_refused(struct trial *trial, const struct cell *cell, const struct cell *standing,
                          shoal_status status, const char *text)
{
    bool was_mine = !trial->refusal || trial->was_mine;
    unsigned allowed = was_mine ? cell->own : cell->of_rest;
    trial->has_ended = true;
    if (status == SHOAL_OK || !(STATUS_BIT(status) & allowed)) {
        test_failed(__FILE__, __LINE__, "rank %d: the step should be refused, but is %s: %s",
                    trial->self->rank, shoal_status_name(status), status == SHOAL_OK ? "" : text);
    } else if (was_mine && !strstr(text, cell->text) && !(standing && strstr(text, standing->text))) {
        test_failed(__FILE__, __LINE__, "rank %d: the text has no \"%s\": %s", trial->self->rank, cell->text,
                    text);
    }
}

static shoal_status run_live(struct trial *trial, const struct line *line, shoal_tensor **loss_out)
{
    const struct model before = trial->models[trial->self->rank];
    struct live_step step = {.live = &trial->live,
                             .model = &before,
                             .between = *op_of(line, trial->self->rank),
                             .place = place_of(trial)};
    shoal_tensor *x = live_input(trial->n_runs, trial->self->rank);
    return line->is_compiled ? shoal_compiled_run(trial->compiled, &x, 1, loss_out, 1)
                             : live_run_step(&step, &x, 1, loss_out, 1);
}

/* A step ends in the same way on all ranks: with or without an error. */
static void compare_ends(const struct trial *trial, shoal_status status)
{
    _Atomic int *ends = trial->self->shared;
    if (trial->program->wrapper == WRAPPER_NONE) {
        return;
    }
    ends[trial->self->rank] = status;
    test_barrier(trial->self);
    for (int r = 0; r < trial->self->n_ranks; r++) {
        if ((ends[r] == SHOAL_OK) != (status == SHOAL_OK)) {
            test_failed(__FILE__, __LINE__, "rank %d: the step ended with %s, but on rank %d with %s",
                        trial->self->rank, shoal_status_name(status), r,
                        shoal_status_name((shoal_status)ends[r]));
        }
    }
    test_barrier(trial->self);
}

static void check_followed(const struct trial *trial, shoal_status status, const char *text, float got,
                           float want)
{
    if (status != SHOAL_OK) {
        test_failed(__FILE__, __LINE__, "rank %d: %s: %s", trial->self->rank, shoal_status_name(status),
                    text);
    } else if (memcmp(&got, &want, sizeof got) != 0) {
        test_failed(__FILE__, __LINE__, "rank %d: the loss differs", trial->self->rank);
    }
}

static void run_step(struct trial *trial, const struct line *line)
{
    static const struct cell missing = {REFUSED, STATE | PEER | MISMATCH, STATE | PEER | MISMATCH, ""};
    const struct cell *standing = find_standing(trial, line);
    const struct cell *cell = trial->refusal ? trial->refusal : standing;
    shoal_tensor *loss = NULL;
    float want = 0;
    char text[600];
    (void)CHECK_OK(shoal_scope_begin());
    shoal_status status = run_live(trial, line, &loss);
    float got = status == SHOAL_OK ? *(const float *)shoal_data(loss) : 0;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    compare_ends(trial, status);
    if (cell && cell->fate == EITHER && status == SHOAL_OK) {
        cell = NULL;
    }
    shoal_status wanted = cell ? SHOAL_OK : compute_all(trial, line, &want);
    if (cell || wanted != SHOAL_OK) {
        check_refused(trial, cell ? cell : &missing, standing, status, text);
    } else {
        check_followed(trial, status, text, got, want);
    }
    if (line->is_compiled) {
        shoal_tensor_unref(loss);
    }
    (void)!shoal_scope_end();
    trial->n_runs++;
    trial->refusal = NULL;
}

/* All ranks, because those of FSDP gather. */
static void evaluate(struct trial *trial)
{
    struct live *fresh = malloc(sizeof *fresh);
    REQUIRE(fresh != NULL);
    live_build(fresh, &trial->models[trial->self->rank]);
    (void)CHECK_OK(shoal_scope_begin());
    (void)CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *x = live_input(trial->n_runs, trial->self->rank);
    shoal_tensor *got = shoal_module_call_one(trial->live.modules[0], x);
    shoal_tensor *want = shoal_module_call_one(fresh->modules[0], x);
    compare_numbers(trial, got, want, "the output of an evaluation");
    (void)CHECK_OK(shoal_scope_end());
    live_free(fresh);
    free(fresh);
}

static void update_values(float *values, const float *gradient, int count)
{
    for (int i = 0; i < count; i++) {
        values[i] -= 0.1F * gradient[i];
    }
}

static void update(struct trial *trial, bool keeps)
{
    for (int r = 0; r < trial->self->n_ranks; r++) {
        struct model *model = &trial->models[r];
        for (int i = 0; i < model->n_tensors; i++) {
            struct model_tensor *tensor = &model->tensors[i];
            if (model_has_parameter(model, i) && model_shown(tensor)->is_there) {
                update_values(tensor->values, model_shown(tensor)->values, tensor->count);
            }
        }
        if (!keeps) {
            model_apply(model, &(struct op){.change = CHANGE_DROP_GRADIENTS});
        }
    }
    const struct model *model = &trial->models[trial->self->rank];
    for (int i = 0; i < model->n_tensors; i++) {
        shoal_tensor *tensor = model_has_parameter(model, i) ? trial->live.tensors[i] : NULL;
        shoal_tensor *gradient = tensor ? shoal_grad(tensor) : NULL;
        if (gradient && shoal_tensor_count(gradient) > 0) {
            update_values(shoal_mutable_data(tensor), shoal_data(gradient), (int)shoal_tensor_count(tensor));
        }
        if (gradient && !keeps) {
            (void)CHECK_OK(shoal_set_grad(tensor, NULL));
        }
    }
}

/* Each rank writes its shard, in the whole of all ranks. */
static void write_shard(struct trial *trial, const struct op *op, int rank)
{
    int n_ranks = trial->self->n_ranks;
    const struct model_tensor *tensor = &trial->models[rank].tensors[op->tensor];
    int end = live_offset(tensor, rank + 1, n_ranks);
    for (int i = live_offset(tensor, rank, n_ranks); i < end; i++) {
        for (int k = 0; k < n_ranks; k++) {
            trial->models[k].tensors[op->tensor].values[i] = model_value(op->seed, i);
        }
    }
}

static void change_models(struct trial *trial, const struct line *line)
{
    for (int r = 0; r < trial->self->n_ranks; r++) {
        const struct op *op = op_of(line, r);
        if (op->change == CHANGE_WRITE && trial->models[r].tensors[op->tensor].is_shard) {
            write_shard(trial, op, r);
        } else {
            model_apply(&trial->models[r], op);
        }
    }
}

static void change(struct trial *trial, const struct line *line, bool next_is_compiled)
{
    int rank = trial->self->rank;
    const struct op *op = op_of(line, rank);
    bool is_alone = line_is_alone(line);
    enum change kind = line->deviant != MODEL_NOWHERE ? line->other.change : line->op.change;
    const struct cell *cell = find_cell(trial->program, kind, next_is_compiled, is_alone);
    shoal_status status = live_apply(&trial->live, &trial->models[rank], op, place_of(trial));
    if (cell->fate == NOT_MADE) {
        if (op->change != CHANGE_NOTHING) {
            CHECK(status != SHOAL_OK && (STATUS_BIT(status) & cell->own) &&
                  strstr(shoal_error_text(), cell->text));
        }
        return;
    }
    (void)CHECK_OK(status);
    change_models(trial, line);
    if (is_refused(trial->program, kind, next_is_compiled, is_alone) &&
        (is_alone || kind != CHANGE_ADD_LEAF_HOOK)) { /* find_standing knows of these hooks */
        trial->refusal = cell;
        trial->was_mine = !is_alone || rank == line->deviant;
    }
}

static bool next_step_is_compiled(const struct program *program, int index)
{
    while (index < program->n_lines && program->lines[index].act != ACT_STEP) {
        index++;
    }
    return index < program->n_lines && program->lines[index].is_compiled;
}

static void run_line(struct trial *trial, int index)
{
    const struct line *line = &trial->program->lines[index];
    switch (line->act) {
    case ACT_CHANGE:
        change(trial, line, next_step_is_compiled(trial->program, index));
        break;
    case ACT_STEP:
        run_step(trial, line);
        break;
    case ACT_EVALUATE:
        evaluate(trial);
        break;
    case ACT_UPDATE:
        update(trial, false);
        break;
    case ACT_UPDATE_AND_KEEP:
        update(trial, true);
        break;
    }
    if (!trial->has_ended && !trial->refusal && !test_has_failed()) {
        compare(trial);
    }
}

/* Programs ----------------------------------------------------------------------------------------------- */

static bool wrap_ddp(struct trial *trial)
{
    const struct program *program = trial->program;
    shoal_ddp_options options = {.struct_size = sizeof options,
                                 .group = shoal_world_group(trial->world),
                                 .reduce_unused = program->reduce_unused,
                                 .keeps_parameters = program->keeps_parameters,
                                 .bucket_bytes = program->has_small_buckets ? 1 : 0,
                                 .first_bucket_bytes = program->has_small_buckets ? 1 : 0,
                                 .ignored = &trial->live.tensors[PROGRAM_IGNORED],
                                 .n_ignored = program->has_ignored ? 1 : 0};
    for (int r = 0; r < trial->self->n_ranks; r++) {
        for (int i = 0; i < trial->models[r].n_tensors; i++) {
            trial->models[r].tensors[i].is_ignored = program->has_ignored && i == PROGRAM_IGNORED;
            trial->models[r].tensors[i].is_wrapped =
                model_has_parameter(&trial->models[r], i) && !trial->models[r].tensors[i].is_ignored;
        }
    }
    return CHECK_OK(shoal_ddp(trial->live.modules[0], &options));
}

static bool wrap_fsdp(struct trial *trial)
{
    const struct program *program = trial->program;
    const struct model *model = &trial->models[trial->self->rank];
    const shoal_fully_shard_options options = {
        .struct_size = sizeof options, .group = shoal_world_group(trial->world), .sharded = program->sharded};
    for (int m = 1; m < model->n_modules && !program->is_one_unit; m++) {
        if (!CHECK_OK(shoal_fully_shard(trial->live.modules[m], &options))) {
            return false;
        }
    }
    bool is_right = CHECK_OK(shoal_fully_shard(trial->live.modules[0], &options));
    live_take_shards(&trial->live, model);
    for (int r = 0; r < trial->self->n_ranks; r++) {
        for (int i = 0; i < trial->models[r].n_tensors; i++) {
            trial->models[r].tensors[i].is_shard = model_has_parameter(&trial->models[r], i);
        }
    }
    return is_right;
}

static bool wrap(struct trial *trial)
{
    trial->live.wrapper = trial->program->wrapper;
    switch ((int)trial->program->wrapper) {
    case WRAPPER_DDP:
        return wrap_ddp(trial);
    case WRAPPER_FSDP:
        return wrap_fsdp(trial);
    default:
        return true;
    }
}

/* Returns whether the program was refused. */
static bool run_program(struct rank *self, const struct program *program, int round)
{
    struct trial *trial = calloc(1, sizeof *trial);
    if (!trial) {
        test_failed(__FILE__, __LINE__, "no memory");
        return false;
    }
    trial->program = program;
    trial->self = self;
    trial->world = rank_world_open(self, round); /* no program should come to its deadline */
    trial->step = (struct live_step){.live = &trial->live};
    int line = 0;
    if (trial->world) {
        for (int r = 0; r < self->n_ranks; r++) {
            model_make(&trial->models[r], program->n_layers, program->has_buffer);
        }
        live_build(&trial->live, &trial->models[self->rank]);
        if (wrap(trial) &&
            CHECK_OK(shoal_compile(trial->world, live_run_step, &trial->step, 1, NULL, &trial->compiled))) {
            while (line < program->n_lines && !trial->has_ended && !test_has_failed()) {
                run_line(trial, line++);
            }
        }
    }
    if (test_has_failed()) {
        char text[PROGRAM_TEXT];
        program_print(program, line - 1, text);
        test_failed(__FILE__, __LINE__,
                    "rank %d; repeat it with SHOAL_TEST_CHANGES=1 SHOAL_TEST_CHANGES_FIRST=%llu\n%s",
                    self->rank, (unsigned long long)program->number, text);
    }
    bool was_refused = trial->has_ended;
    shoal_compiled_free(trial->compiled);
    live_free(&trial->live);
    (void)!shoal_world_close(trial->world);
    free(trial);
    return was_refused;
}

static uint64_t get_number(const char *name, uint64_t or_else)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : or_else;
}

/* Fewer as processes, which take longer to start. */
static void run_programs(struct rank *self, uint64_t n_wanted)
{
    uint64_t n = get_number("SHOAL_TEST_CHANGES", self->is_process ? n_wanted / 4 : n_wanted);
    uint64_t first = get_number("SHOAL_TEST_CHANGES_FIRST", 1);
    uint64_t n_refused = 0;
    struct program program;
    test_deadline(60 + 0.5 * (double)n);
    for (uint64_t i = 0; i < n && !test_has_failed(); i++) {
        program_choose(&program, first + i, self->n_ranks, is_refused);
        n_refused += run_program(self, &program, (int)i);
        test_progress(i, n);
    }
    if (self->rank == 0 && getenv("SHOAL_TEST_CHANGES") && !test_has_failed()) {
        (void)printf("%llu programs of %d ranks: %llu followed to their end, %llu refused\n",
                     (unsigned long long)n, self->n_ranks, (unsigned long long)(n - n_refused),
                     (unsigned long long)n_refused);
    }
}

TEST_RANKS(random_programs_of_2, 2)
{
    run_programs(self, 80);
}

TEST_RANKS(random_programs_of_3, 3)
{
    run_programs(self, 32);
}
