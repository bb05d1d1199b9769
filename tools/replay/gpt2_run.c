/* SPDX-License-Identifier: MIT */
/* The ranks of a training: the model, its values, steps, and what is compared. */
#include "gpt2_run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/world.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/optim.h"

#define IGNORED_TARGET (-100)

/* What a rank has in hands. */
struct player {
    const struct gpt2_run *run;
    const struct gpt2_case *plan;
    int rank;
    shoal_group *group;
    shoal_module *model;
    shoal_nn_optimizer *optimizer;
};

/* A rank's rows of a step. */
struct part {
    shoal_tensor *tokens;
    shoal_tensor *targets;
    int64_t first; /* row; its logits are compared if it has any */
    int64_t n_rows;
    double share; /* of the targets that count, which this rank has */
};

/* Checks ------------------------------------------------------------------------------------------------ */

enum {
    LOGITS = 0,
    LOSS = 1,
    FIRST_GRADIENT = 2,
    N_FINAL = 3
};

/* The final checks come after those of all steps. */
static size_t number_of(const struct gpt2_case *plan, int step, size_t index)
{
    return (size_t)step * (FIRST_GRADIENT + plan->n_names) + index;
}

static void add_checks(const struct gpt2_run *run)
{
    char name[2 * GPT2_NAME_BYTES];
    for (int step = 0; step < GPT2_STEPS; step++) {
        (void)snprintf(name, sizeof name, "step%d.logits", step);
        (void)fsdp_checks_add(run->checks, name, GPT2_LOGITS_BOUND);
        (void)snprintf(name, sizeof name, "step%d.loss", step);
        (void)fsdp_checks_add(run->checks, name, GPT2_LOSS_BOUND);
        for (size_t i = 0; i < run->plan->n_names; i++) {
            (void)snprintf(name, sizeof name, "step%d.grad.%s", step, run->plan->names[i].text);
            (void)fsdp_checks_add(run->checks, name, GPT2_GRADIENT_BOUND);
        }
    }
    (void)fsdp_checks_add(run->checks, "final, root of the mean square", GPT2_RMS_BOUND);
    (void)fsdp_checks_add(run->checks, "final, largest", GPT2_LARGEST_BOUND);
    (void)fsdp_checks_add(run->checks, "final, share above 1e-5", GPT2_SHARE_BOUND);
}

static shoal_tensor *read_tensor(const struct player *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* NULL, without an error, if the file has none: that was said before. */
static shoal_tensor *read_tensor(const struct player *self, const char *format, ...)
{
    char name[2 * GPT2_NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    int64_t at = shoal_safetensors_find(self->run->file, name);
    return at < 0 ? NULL : shoal_safetensors_tensor(self->run->file, at);
}

static void compare(const struct player *self, size_t number, const shoal_tensor *got,
                    const shoal_tensor *want)
{
    if (want) {
        fsdp_checks_compare(self->run->checks, number, self->rank, got, want);
    }
}

/* The model --------------------------------------------------------------------------------------------- */

static shoal_status shard(const struct player *self)
{
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    options.group = self->group;
    for (int64_t i = 0; i < self->plan->n_layers; i++) {
        TRY(shoal_fully_shard(shoal_nn_gpt_block(self->model, i), &options));
    }
    return shoal_fully_shard(self->model, &options);
}

/* The rank's part of a whole parameter, or gradient, of the file. */
static shoal_tensor *cut(const struct player *self, const struct gpt2_name *name, shoal_tensor *whole)
{
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    if (!whole || !self->run->is_sharded ||
        memcmp(shoal_tensor_shape(whole), name->shape, (size_t)name->n_dims * sizeof name->shape[0]) != 0) {
        return whole;
    }
    if (shoal_fsdp_get_layout(shoal_fully_shard_param(self->model, name->text), &layout) != SHOAL_OK) {
        return NULL;
    }
    return shoal_contiguous(shoal_narrow(whole, layout.dim, layout.offset, layout.length));
}

static shoal_status give_values(const struct player *self)
{
    TRY(shoal_scope_set_grad(false));
    for (size_t i = 0; i < self->plan->n_names; i++) {
        const struct gpt2_name *name = &self->plan->names[i];
        shoal_tensor *part = cut(self, name, read_tensor(self, "init.%s", name->text));
        (void)shoal_copy_(shoal_module_parameter(self->model, name->text), part);
        TRY(shoal_scope_error());
    }
    return shoal_scope_set_grad(true);
}

static shoal_status make_model(struct player *self)
{
    const struct gpt2_case *plan = self->plan;
    const shoal_nn_adamw_options options = {.struct_size = sizeof options,
                                            .lr = plan->lr,
                                            .beta1 = plan->beta1,
                                            .beta2 = plan->beta2,
                                            .eps = plan->eps,
                                            .weight_decay = plan->weight_decay,
                                            .allows_zeros = true};
    TRY(gpt2_case_make(plan, self->run->is_sharded ? SHOAL_META : SHOAL_CPU, &self->model));
    if (self->run->is_sharded) {
        TRY(shard(self));
    }
    TRY(give_values(self));
    return shoal_nn_adamw_create_for(self->model, &options, NULL, 0, &self->optimizer);
}

/* Steps ------------------------------------------------------------------------------------------------- */

static double count_targets(shoal_tensor *targets)
{
    const int32_t *data = shoal_data(targets);
    double n = 0;
    for (int64_t i = 0; data && i < shoal_tensor_count(targets); i++) {
        n += data[i] != IGNORED_TARGET;
    }
    return n;
}

static shoal_status take_part(const struct player *self, int step, struct part *part)
{
    shoal_tensor *tokens = read_tensor(self, "step%d.tokens", step);
    shoal_tensor *targets = read_tensor(self, "step%d.targets", step);
    int64_t batch = self->plan->batch;
    int64_t first = self->rank * batch / self->run->n_ranks;
    int64_t n_rows = (self->rank + 1) * batch / self->run->n_ranks - first;
    *part = (struct part){.first = first, .n_rows = n_rows};
    double n_all = count_targets(targets);
    double n_own = n_rows > 0 ? count_targets(shoal_narrow(targets, 0, first, n_rows)) : 0;
    part->share = n_all > 0 ? n_own / n_all : (double)NAN;
    if (n_rows > 0) {
        part->tokens = shoal_narrow(tokens, 0, first, n_rows);
    } else {
        part->tokens = shoal_narrow(tokens, 0, 0, 1);
    }
    part->targets = n_own > 0 ? shoal_narrow(targets, 0, first, n_rows)
                              : shoal_zeros(shoal_tensor_shape(part->tokens), 2, SHOAL_I32);
    return shoal_scope_error();
}

static void compare_logits(const struct player *self, int step, const struct part *part, shoal_tensor *logits)
{
    shoal_tensor *want = read_tensor(self, "step%d.logits", step);
    if (!want) {
        return;
    }
    if (shoal_tensor_n_dims(want) == 3 && shoal_tensor_shape(want)[0] == self->plan->batch) {
        want = shoal_contiguous(shoal_narrow(want, 0, part->first, part->n_rows));
    }
    if (part->n_rows == 0) {
        logits = shoal_narrow(logits, 0, 0, 0);
    }
    compare(self, number_of(self->plan, step, LOGITS), shoal_contiguous(shoal_detach(logits)), want);
}

/* The loss of the whole batch. A file may have it in any shape of one element. */
static shoal_status compare_loss(const struct player *self, int step, const struct part *part,
                                 const shoal_tensor *own)
{
    const float *value = shoal_data(own);
    shoal_tensor *want = read_tensor(self, "step%d.loss", step);
    if (!value) {
        return SHOAL_ERR_INTERNAL;
    }
    double loss = part->share > 0 ? (double)*value * part->share : part->share;
    TRY(shoal_group_all_reduce(self->group, &loss, &loss, 1, SHOAL_F64, SHOAL_SUM));
    if (want && shoal_tensor_count(want) == 1) {
        want = shoal_view(want, NULL, 0);
    }
    compare(self, number_of(self->plan, step, LOSS), shoal_full(NULL, 0, loss, SHOAL_F32), want);
    return SHOAL_OK;
}

static void compare_gradients(const struct player *self, int step)
{
    for (size_t i = 0; i < self->plan->n_names; i++) {
        const struct gpt2_name *name = &self->plan->names[i];
        size_t number = number_of(self->plan, step, FIRST_GRADIENT + i);
        shoal_tensor *gradient = shoal_grad(shoal_module_parameter(self->model, name->text));
        if (!gradient) {
            fsdp_checks_set_reason(self->run->checks, number, "rank %d: there is no gradient", self->rank);
            continue;
        }
        shoal_tensor *want = cut(self, name, read_tensor(self, "step%d.grad.%s", step, name->text));
        compare(self, number, shoal_contiguous(gradient), want);
    }
}

static shoal_status play_step(const struct player *self, int step)
{
    struct part part;
    TRY(take_part(self, step, &part));
    shoal_tensor *logits = shoal_module_call_one(self->model, part.tokens);
    shoal_tensor *loss = shoal_nn_cross_entropy(logits, part.targets);
    TRY(shoal_scope_error());
    compare_logits(self, step, &part, logits);
    TRY(compare_loss(self, step, &part, loss));
    TRY(shoal_backward(shoal_mul_scalar(loss, part.share * self->run->n_ranks), NULL));
    compare_gradients(self, step);
    TRY(shoal_nn_optimizer_step(self->optimizer));
    return shoal_nn_optimizer_zero_grad(self->optimizer);
}

/* Final parameters -------------------------------------------------------------------------------------- */

/* Differences of all parameters. */
struct differences {
    double n;
    double squares;
    double n_above;
    double largest;
    const char *name; /* where the largest is */
    int64_t element;
    float got;
    float want;
};

static void add_differences(struct differences *all, const struct gpt2_name *name, const float *got,
                            const float *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        difference = isnan(difference) ? (double)INFINITY : difference;
        all->n += 1;
        all->squares += difference * difference;
        all->n_above += difference > GPT2_LIMIT;
        if (difference > all->largest) {
            all->largest = difference;
            all->name = name->text;
            all->element = i;
            all->got = got[i];
            all->want = want[i];
        }
    }
}

static shoal_status gather(const struct player *self, const struct gpt2_name *name, shoal_tensor **whole)
{
    shoal_tensor *own = shoal_module_parameter(self->model, name->text);
    if (!self->run->is_sharded) {
        *whole = own;
        return SHOAL_OK;
    }
    *whole = shoal_empty(name->shape, name->n_dims, SHOAL_F32);
    void *data = *whole ? shoal_mutable_data(*whole) : NULL;
    if (!data) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return shoal_fsdp_gather(shoal_fully_shard_param(self->model, name->text), data, SHOAL_FSDP_ALL_RANKS);
}

/* One number against its bound, which is absolute. */
static void set_number(const struct gpt2_run *run, size_t index, double error)
{
    struct fsdp_check *check = &run->checks->checks[number_of(run->plan, GPT2_STEPS, index)];
    check->largest_error = error;
    check->largest_want = 1;
    check->got = (float)error;
    check->n_pieces = run->n_ranks;
}

static shoal_status play_final(const struct player *self)
{
    struct differences all = {0};
    for (size_t i = 0; i < self->plan->n_names; i++) {
        const struct gpt2_name *name = &self->plan->names[i];
        shoal_tensor *want = read_tensor(self, "final.%s", name->text);
        shoal_tensor *got = NULL;
        TRY(gather(self, name, &got));
        const float *got_data = shoal_data(got);
        const float *want_data = want ? shoal_data(want) : NULL;
        if (got_data && want_data) {
            add_differences(&all, name, got_data, want_data, shoal_tensor_count(got));
        }
    }
    if (self->rank == 0 && all.n > 0) {
        set_number(self->run, 0, sqrt(all.squares / all.n));
        set_number(self->run, 1, all.largest);
        set_number(self->run, 2, all.n_above / all.n);
        if (all.largest > GPT2_LARGEST_BOUND) {
            fsdp_checks_set_reason(self->run->checks, number_of(self->plan, GPT2_STEPS, 1),
                                   "%s, element %lld: got %.9g, expected %.9g", all.name,
                                   (long long)all.element, (double)all.got, (double)all.want);
        }
    }
    return shoal_scope_error();
}

/* Each in a scope of its own, so that what it made is gone after it. */
static shoal_status end_scope(shoal_status status)
{
    shoal_status of_scope = shoal_scope_end();
    return status == SHOAL_OK ? of_scope : status;
}

static shoal_status train(struct player *self)
{
    TRY(make_model(self));
    for (int step = 0; step < GPT2_STEPS; step++) {
        TRY(shoal_scope_begin());
        TRY(end_scope(play_step(self, step)));
    }
    return play_final(self);
}

static shoal_status play(shoal_world *world, void *context)
{
    const struct gpt2_run *run = context;
    struct player self = {
        .run = run, .plan = run->plan, .rank = shoal_world_rank(world), .group = shoal_world_group(world)};
    TRY(shoal_scope_begin());
    shoal_status status = end_scope(train(&self));
    shoal_nn_optimizer_free(self.optimizer);
    shoal_module_unref(self.model);
    return status;
}

shoal_status gpt2_run(struct gpt2_run *self)
{
    add_checks(self);
    if (self->checks->has_no_memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return shoal_world_run_threads(self->n_ranks, play, self);
}
