/* SPDX-License-Identifier: MIT */
/* One rank of the run: the net as modules, sharded, trained. */
#include "fsdp_run.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/try.h"
#include "fsdp_comm.h"
#include "fsdp_extend.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/mesh.h"
#include "shoal/module.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/world.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/optim.h"

/* What a rank has in hands. */
struct player {
    const struct fsdp_plan *plan;
    const struct fsdp_case *run;
    int rank;
    shoal_world *world;
    struct fsdp_meshes meshes;
    shoal_module *net;
    shoal_nn_optimizer *optimizer;
};

/* The net ---------------------------------------------------------------------------------------------- */

static shoal_status layer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *weight = shoal_module_parameter(module, "weight");
    if (weight && shoal_tensor_n_dims(weight) == 3) {
        const int64_t *shape = shoal_tensor_shape(weight);
        weight = shoal_reshape(weight, (int64_t[]){shape[0] * shape[1], shape[2]}, 2);
    }
    outputs[0] = shoal_nn_linear(inputs[0], weight, shoal_module_find_parameter(module, "bias"));
    return SHOAL_OK;
}

static shoal_status net_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_module *layers = shoal_module_child(module, "layers");
    shoal_tensor *x = inputs[0];
    for (size_t i = 0; shoal_module_child_at(layers, i, NULL) != NULL; i++) {
        x = i > 0 ? shoal_nn_tanh(x) : x;
        x = shoal_module_call_one(shoal_module_child_at(layers, i, NULL), x);
    }
    outputs[0] = shoal_mul(x, shoal_module_parameter(module, "scale"));
    return SHOAL_OK;
}

/* A child that belongs to its parent alone. */
static shoal_status add_module(shoal_module *parent, const char *name, const char *type,
                               shoal_module_forward forward, shoal_module **module_out)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = type, .forward = forward, .n_inputs = 1};
    TRY(shoal_module_create(&definition, module_out));
    if (!parent) {
        return SHOAL_OK;
    }
    shoal_status status = shoal_module_add_child(parent, name, *module_out);
    shoal_module_unref(*module_out);
    return status;
}

static shoal_status add_parameter(const struct player *self, const struct fsdp_name *name)
{
    char place[FSDP_NAME_BYTES] = "";
    shoal_tensor *tensor = fsdp_plan_read(self->plan, "init.%s", name->text);
    if (!tensor) {
        return shoal_scope_error();
    }
    if (!name->is_frozen) {
        TRY(shoal_set_requires_grad(tensor, true));
    }
    if (name->layer >= 0) {
        (void)snprintf(place, sizeof place, "layers.%d", name->layer);
    }
    const char *own = name->layer < 0 ? "scale" : name->is_weight ? "weight" : "bias";
    TRY(shoal_module_add_parameter(shoal_module_child(self->net, place), own, tensor));
    if (name->is_weight && fsdp_case_shares_weight(self->run, name->layer + 1)) {
        TRY(shoal_module_add_parameter(shoal_module_child(self->net, "layers.2"), own, tensor));
    }
    return SHOAL_OK;
}

static shoal_status make_net(struct player *self)
{
    shoal_module *layers;
    TRY(add_module(NULL, "", "net", net_forward, &self->net));
    TRY(add_module(self->net, "layers", "list", NULL, &layers));
    for (int i = 0; i < self->run->n_layers; i++) {
        char name[16];
        shoal_module *layer;
        (void)snprintf(name, sizeof name, "%d", i);
        TRY(add_module(layers, name, "linear", layer_forward, &layer));
    }
    for (int i = 0; i < self->run->n_names; i++) {
        TRY(add_parameter(self, &self->run->names[i]));
    }
    return SHOAL_OK;
}

/* Sharding --------------------------------------------------------------------------------------------- */

static int choose_dimension(void *context, const char *path, const shoal_tensor *parameter)
{
    const struct player *self = context;
    (void)path; /* that within the unit */
    for (int i = 0; i < self->run->n_names; i++) {
        const struct fsdp_name *name = &self->run->names[i];
        if (name->cut_dim > 0 && shoal_module_find_parameter(self->net, name->text) == parameter) {
            return name->cut_dim;
        }
    }
    return 0;
}

/* One unit; its modules share what is set. */
static shoal_status shard(struct player *self, shoal_module *const *modules, size_t n_modules,
                          const struct fsdp_unit_case *unit)
{
    const struct fsdp_case *run = self->run;
    shoal_fully_shard_options options = {.struct_size = sizeof options,
                                         .reshard = run->reshard,
                                         .reshard_ranks = run->reshard_ranks,
                                         .param_dtype = run->param_dtype,
                                         .reduce_dtype = run->reduce_dtype,
                                         .placement = choose_dimension,
                                         .placement_context = self};
    TRY(fsdp_meshes_find(&self->meshes, self->world, &unit->ranks, &options.group, &options.mesh));
    TRY(shoal_fully_shard_list(modules, n_modules, &options));
    shoal_fsdp_unit *handle = shoal_fully_shard_unit(modules[0], false);
    if (unit->divide > 0) {
        TRY(shoal_fsdp_set_divide_factor(handle, unit->divide));
    }
    if (run->force_sum) {
        TRY(shoal_fsdp_set_force_sum(handle, true));
    }
    return fsdp_comm_set(&self->meshes, run, handle, &unit->ranks);
}

static shoal_status shard_net(struct player *self)
{
    shoal_module *layers = shoal_module_child(self->net, "layers");
    const struct fsdp_unit_case *units = self->run->units;
    for (int i = 0; i < self->run->n_layers; i++) {
        shoal_module *modules[2] = {shoal_module_child_at(layers, (size_t)i, NULL)};
        const struct fsdp_unit_case *unit = &units[i];
        size_t n_modules = 1;
        if (fsdp_case_shares_weight(self->run, i + 1)) {
            modules[n_modules++] = shoal_module_child_at(layers, (size_t)++i, NULL);
        }
        TRY(shard(self, modules, n_modules, unit));
    }
    return shard(self, &self->net, 1, &units[self->run->n_layers]);
}

static shoal_status make_optimizer(struct player *self)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(self->net, &n_parameters);
    if (!parameters) {
        return shoal_scope_error();
    }
    if (self->run->is_adamw) {
        const shoal_nn_adamw_options options = {.struct_size = sizeof options,
                                                .lr = self->run->lr,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .eps = 1e-8,
                                                .weight_decay = 0.1};
        return shoal_nn_adamw_create(parameters, n_parameters, &options, &self->optimizer);
    }
    const shoal_nn_sgd_options options = {.struct_size = sizeof options, .lr = self->run->lr};
    return shoal_nn_sgd_create(parameters, n_parameters, &options, &self->optimizer);
}

/* Comparing -------------------------------------------------------------------------------------------- */

/* A missing piece was noted when the plan was made. */
static void compare(const struct player *self, enum fsdp_kind kind, int step, int index,
                    const shoal_tensor *got)
{
    struct fsdp_checks *checks = self->plan->checks;
    size_t number = fsdp_plan_number(self->plan, kind, step, index);
    shoal_tensor *want = fsdp_plan_want(self->plan, number, kind, self->rank);
    if (want) {
        fsdp_checks_compare(checks, number, self->rank, got, want);
    }
}

/* Of one number the file may have any shape of one element. */
static void compare_number(const struct player *self, enum fsdp_kind kind, int step, int index, float value)
{
    size_t number = fsdp_plan_number(self->plan, kind, step, index);
    shoal_tensor *want = fsdp_plan_want(self->plan, number, kind, self->rank);
    shoal_tensor *got = shoal_full(NULL, 0, (double)value, SHOAL_F32);
    if (want && shoal_tensor_count(want) == 1) {
        want = shoal_view(want, NULL, 0);
    }
    if (want) {
        fsdp_checks_compare(self->plan->checks, number, self->rank, got, want);
    }
}

static void compare_gradients(const struct player *self, int step)
{
    for (int i = 0; i < self->run->n_names; i++) {
        const struct fsdp_name *name = &self->run->names[i];
        const shoal_tensor *gradient = shoal_grad(shoal_module_parameter(self->net, name->text));
        if (!name->is_frozen && !gradient) {
            fsdp_checks_set_reason(self->plan->checks, fsdp_plan_number(self->plan, FSDP_GRAD, step, i),
                                   "rank %d: there is no gradient", self->rank);
        } else if (!name->is_frozen) {
            compare(self, FSDP_GRAD, step, i, gradient);
        } else if (gradient) {
            fsdp_checks_set_reason(self->plan->checks, fsdp_plan_number(self->plan, FSDP_PARAM, step, i),
                                   "rank %d: is frozen and has a gradient", self->rank);
        }
    }
}

static void compare_parameters(const struct player *self, int step)
{
    for (int i = 0; i < self->run->n_names; i++) {
        compare(self, FSDP_PARAM, step, i, shoal_module_parameter(self->net, self->run->names[i].text));
    }
}

/* Training --------------------------------------------------------------------------------------------- */

/* Units that do not reduce until the last micro-batch, each by itself: others reduce every time. */
static shoal_status choose_sync(const struct player *self, bool is_last)
{
    const struct fsdp_case *run = self->run;
    shoal_module *layers = shoal_module_child(self->net, "layers");
    for (int i = 0; i <= run->n_layers; i++) {
        bool is_root = i == run->n_layers;
        if (!is_root && fsdp_case_shares_weight(run, i)) {
            continue;
        }
        shoal_module *module = is_root ? self->net : shoal_module_child_at(layers, (size_t)i, NULL);
        TRY(shoal_fsdp_set_sync(shoal_fully_shard_unit(module, false), is_last || !run->units[i].no_sync));
    }
    return SHOAL_OK;
}

static shoal_status choose_reduction(const struct player *self, bool is_last)
{
    shoal_fsdp_unit *all = shoal_fully_shard_unit(self->net, true);
    if (self->run->keeps_gathered) {
        TRY(shoal_fsdp_set_reshard_after_backward(all, is_last));
    }
    if (self->run->says_last) {
        shoal_fsdp *fsdp;
        TRY(shoal_fully_shard_context(self->net, &fsdp));
        TRY(shoal_fsdp_set_is_last_backward(fsdp, is_last));
    }
    switch (self->run->accumulation) {
    case FSDP_NO_SYNC:
        return choose_sync(self, is_last);
    case FSDP_NO_ALL_REDUCE:
        return shoal_fsdp_set_all_reduce(all, is_last);
    case FSDP_REDUCE_ALWAYS:
        break;
    }
    return SHOAL_OK;
}

static shoal_status play_micro_batch(const struct player *self, int step, int micro)
{
    shoal_tensor *x = fsdp_plan_read(self->plan, "rank%d.x.%d.%d", self->rank, step, micro);
    shoal_tensor *y = fsdp_plan_read(self->plan, "rank%d.y.%d.%d", self->rank, step, micro);
    TRY(choose_reduction(self, micro == self->run->n_micro - 1));
    shoal_tensor *loss = shoal_nn_mse(shoal_module_call_one(self->net, x), y);
    if (self->run->n_micro > 1) {
        loss = shoal_div_scalar(loss, self->run->n_micro);
    }
    TRY(shoal_scope_error());
    const float *value = shoal_data(loss);
    if (!value) {
        return SHOAL_ERR_INTERNAL;
    }
    compare_number(self, FSDP_LOSS, step, micro, *value);
    return shoal_backward(loss, NULL);
}

static shoal_status play_step(const struct player *self, int step)
{
    for (int i = 0; i < self->run->n_micro; i++) {
        TRY(play_micro_batch(self, step, i));
    }
    compare_gradients(self, step);
    if (self->run->clips) {
        double norm;
        shoal_fsdp *fsdp;
        TRY(shoal_fully_shard_context(self->net, &fsdp));
        TRY(shoal_fsdp_clip_grad_norm(fsdp, self->run->max_norm, 2.0, false, &norm));
        compare_number(self, FSDP_NORM, step, 0, (float)norm);
    }
    TRY(shoal_nn_optimizer_step(self->optimizer));
    TRY(shoal_nn_optimizer_zero_grad(self->optimizer));
    if (fsdp_case_has_params(self->run, step)) {
        compare_parameters(self, step);
    }
    return SHOAL_OK;
}

static shoal_status play_final(const struct player *self)
{
    for (int i = 0; i < self->run->n_names; i++) {
        const struct fsdp_name *name = &self->run->names[i];
        shoal_tensor *full = shoal_empty(name->shape, name->n_dims, SHOAL_F32);
        void *data = full ? shoal_mutable_data(full) : NULL;
        if (!data) {
            return SHOAL_ERR_NO_MEMORY;
        }
        TRY(shoal_fsdp_gather(shoal_fully_shard_param(self->net, name->text), data, SHOAL_FSDP_ALL_RANKS));
        compare(self, FSDP_FINAL, 0, i, full);
    }
    return SHOAL_OK;
}

/* Each in a scope of its own, so that what it made is gone after it. */
static shoal_status end_scope(shoal_status status)
{
    shoal_status of_scope = shoal_scope_end();
    return status == SHOAL_OK ? of_scope : status;
}

static shoal_status train(struct player *self)
{
    TRY(make_net(self));
    TRY(shard_net(self));
    TRY(fsdp_extend(self->run, self->net));
    TRY(make_optimizer(self));
    for (int step = 0; step < self->run->n_steps; step++) {
        TRY(shoal_scope_begin());
        TRY(end_scope(play_step(self, step)));
    }
    return self->run->is_one_of_many ? SHOAL_OK : play_final(self);
}

static shoal_status play(shoal_world *world, void *context)
{
    const struct fsdp_plan *plan = context;
    struct player self = {.plan = plan, .run = plan->run, .rank = shoal_world_rank(world), .world = world};
    TRY(shoal_scope_begin());
    shoal_status status = end_scope(train(&self));
    shoal_nn_optimizer_free(self.optimizer);
    shoal_module_unref(self.net);
    fsdp_meshes_free(&self.meshes);
    return status;
}

shoal_status fsdp_run(const struct fsdp_plan *plan)
{
    return shoal_world_run_threads(plan->run->n_ranks, play, (void *)(uintptr_t)plan);
}
