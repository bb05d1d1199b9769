/* SPDX-License-Identifier: MIT */
/*
 * Calls of shoal/fully_shard.h and shoal/ddp.h, on nets whose gradients are known: a module adds its parameters to
 * what it gets, each times its number (a 1, b 2, ...), and the loss is the sum of the result times small whole numbers.
 *
 *     unit 0 is the root; units 1 ... are its children, or all children together are unit 1 (program.is_listed)
 */
#ifndef TESTS_DEVIATION_MODULES_H
#define TESTS_DEVIATION_MODULES_H

#include "fixtures/fsdp_handles.h"
#include "fixtures/fsdp_handles.h"
#include "conformance/deviation/explicit.h"

/* Nets --------------------------------------------------------------------------------------------------- */

static inline shoal_status add_parameters(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                          shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *sum = shoal_to_dtype(inputs[0], SHOAL_F32);
    (void)n_inputs;
    (void)n_outputs;
    for (size_t i = 0; shoal_module_child_at(module, i, NULL) != NULL; i++) {
        sum = shoal_to_dtype(shoal_module_call_one(shoal_module_child_at(module, i, NULL), sum), SHOAL_F32);
    }
    for (size_t i = 0; shoal_module_parameter_at(module, i, NULL) != NULL; i++) {
        const char *name;
        shoal_tensor *parameter = shoal_module_parameter_at(module, i, &name);
        shoal_tensor *flat = shoal_reshape(parameter, (const int64_t[]){COUNT}, 1);
        sum = shoal_add(sum, shoal_mul_scalar(shoal_to_dtype(flat, SHOAL_F32), 1 + name[0] - 'a'));
    }
    outputs[0] = sum;
    return SHOAL_OK;
}

static inline shoal_module *make_module(const char *type)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = type, .forward = add_parameters};
    shoal_module *module = NULL;
    return shoal_module_create(&definition, &module) == SHOAL_OK ? module : NULL;
}

typedef float (*value_function)(int number, int param, int k);

static inline shoal_status add_parameter(shoal_module *module, value_function value, int number, int param)
{
    const char name[] = {(char)('a' + param % UNIT_PARAMS), '\0'};
    shoal_tensor *tensor = shoal_empty((const int64_t[]){2, COUNT / 2}, 2, SHOAL_F32);
    float *data = shoal_mutable_data(tensor);
    for (int k = 0; k < COUNT && data; k++) {
        data[k] = value(number, param, k);
    }
    shoal_status status = shoal_set_requires_grad(tensor, true);
    return status == SHOAL_OK ? shoal_module_add_parameter(module, name, tensor) : status;
}

/* The module that has a parameter. */
static inline shoal_module *owner_of(const struct program *p, const struct net *net, int param)
{
    int unit = param / UNIT_PARAMS;
    if (unit == 0) {
        return net->root;
    }
    return net->children[p->is_listed ? param % UNIT_PARAMS / 2 : unit - 1];
}

static inline void path_of(const struct program *p, int param, char *path, size_t bytes)
{
    int unit = param / UNIT_PARAMS;
    int slot = param % UNIT_PARAMS;
    if (unit == 0) {
        (void)snprintf(path, bytes, "%c", 'a' + slot);
    } else {
        (void)snprintf(path, bytes, "%d.%c", p->is_listed ? slot / 2 : unit - 1, 'a' + slot);
    }
}

static inline shoal_status make_net(const struct program *p, struct net *net, value_function value,
                                    int number, bool has_buffer)
{
    static const char *const names[] = {"0", "1"};
    shoal_status status = SHOAL_OK;
    *net = (struct net){.root = make_module("net"), .n_children = p->is_listed ? 2 : p->n_units - 1};
    for (int i = 0; i < net->n_children && status == SHOAL_OK; i++) {
        net->children[i] = make_module("layer");
        status = shoal_module_add_child(net->root, names[i], net->children[i]);
    }
    for (int i = 0; i < p->n_units * UNIT_PARAMS && status == SHOAL_OK; i++) {
        status = add_parameter(owner_of(p, net, i), value, number, i);
    }
    if (status == SHOAL_OK && has_buffer) {
        status =
            shoal_module_add_buffer(net->root, "seen", shoal_full((const int64_t[]){3}, 1, 1, SHOAL_F32));
    }
    return status;
}

static inline void free_net(struct net *net)
{
    for (int i = 0; i < net->n_children; i++) {
        shoal_module_unref(net->children[i]);
    }
    shoal_module_unref(net->root);
    *net = (struct net){.root = NULL};
}

static inline struct net *net_of(struct runner *r, const struct call *c)
{
    return &r->nets[c->kind->family][model_of(r->program, c)];
}

static inline shoal_module *root_of(struct runner *r, const struct call *c)
{
    return net_of(r, c)->root;
}

/* The module of a unit; of several, the first. */
static inline shoal_module *unit_module(const struct net *net, int unit)
{
    return unit == 0 ? net->root : net->children[unit - 1];
}

static inline shoal_module *module_of(struct runner *r, const struct call *c)
{
    return unit_module(net_of(r, c), unit_of(r->program, c));
}

/* Making ------------------------------------------------------------------------------------------------- */

static inline shoal_status modules_make(struct runner *r, const struct call *c)
{
    return make_net(r->program, &r->nets[c->kind->family][c->model], first_value, c->model,
                    c->kind->family == WRAPPED);
}

static inline int cut_second(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    (void)parameter;
    return 1;
}

/* One of the two last parameters of the unit. */
static inline int ignored_param(const struct program *p, const struct call *c)
{
    return unit_of(p, c) * UNIT_PARAMS + 2 + choice_of(c, "ignored");
}

static inline shoal_tensor *tensor_of(struct runner *r, const struct net *net, int param)
{
    const char name[] = {(char)('a' + param % UNIT_PARAMS), '\0'};
    return shoal_module_parameter(owner_of(r->program, net, param), name);
}

static inline shoal_fully_shard_options shard_options(struct runner *r, const struct call *c)
{
    return (shoal_fully_shard_options){
        .struct_size = sizeof(shoal_fully_shard_options),
        .group = r->program->layout == LAYOUT_MESH ? NULL : r->group,
        .mesh = r->program->layout == LAYOUT_MESH ? r->mesh : NULL,
        .is_replicated = choice_of(c, "is_replicated") != 0,
        .reshard = reshard_of(choice_of(c, "reshard")),
        .reshard_ranks = 2 << choice_of(c, "reshard_ranks"),
        .param_dtype = compute_dtype(choice_of(c, "param_dtype")),
        .reduce_dtype = compute_dtype(choice_of(c, "reduce_dtype")),
        .forward_prefetch = ahead_of(choice_of(c, "forward_prefetch")),
        .max_reduces = at_once_of(choice_of(c, "max_reduces")),
        .placement = choice_of(c, "placement") != 0 ? cut_second : NULL,
    };
}

static inline shoal_status modules_shard(struct runner *r, const struct call *c)
{
    shoal_fully_shard_options options = shard_options(r, c);
    struct net *net = &r->nets[MODULES][c->model];
    shoal_tensor *ignored[] = {tensor_of(r, net_of(r, c), ignored_param(r->program, c))};
    options.ignored = ignored;
    options.n_ignored = (size_t)choice_of(c, "n_ignored");
    if (strcmp(c->kind->name, "shoal_fully_shard") == 0) {
        return shoal_fully_shard(module_of(r, c), &options);
    }
    shoal_module *const both[2][2] = {{net->children[0], net->children[1]},
                                      {net->children[1], net->children[0]}};
    return shoal_fully_shard_list(both[choice_of(c, "modules")], 1 + (size_t)choice_of(c, "n_modules"),
                                  &options);
}

static inline void predict_ignored(struct oracle *oracle, const struct call *c)
{
    int param = ignored_param(oracle->program, c);
    state_of(oracle, c)->is_ignored[param] = choice_of(c, "n_ignored") != 0;
}

static inline size_t bytes_of(int choice)
{
    static const size_t bytes[] = {0, 1, 200};
    return bytes[choice];
}

static inline shoal_status wrapped_wrap(struct runner *r, const struct call *c)
{
    shoal_tensor *ignored[] = {tensor_of(r, net_of(r, c), 2 + choice_of(c, "ignored"))};
    const shoal_ddp_options options = {
        .struct_size = sizeof options,
        .group = r->group,
        .first_bucket_bytes = bytes_of(choice_of(c, "first_bucket_bytes")),
        .bucket_bytes = bytes_of(choice_of(c, "bucket_bytes")),
        .divide_factor = factor_of(choice_of(c, "divide_factor")),
        .reduce_unused = choice_of(c, "reduce_unused") != 0,
        .keeps_parameters = choice_of(c, "keeps_parameters") != 0,
        .ignored = ignored,
        .n_ignored = (size_t)choice_of(c, "n_ignored"),
        .keeps_buffers = choice_of(c, "keeps_buffers") != 0,
    };
    return shoal_ddp(root_of(r, c), &options);
}

static inline void predict_wrap(struct oracle *oracle, const struct call *c)
{
    struct model_state *state = state_of(oracle, c);
    for (int u = 0; u < MAX_UNITS; u++) {
        state->divide[u] = factor_of(choice_of(c, "divide_factor"));
    }
    state->is_ignored[2 + choice_of(c, "ignored")] = choice_of(c, "n_ignored") != 0;
}

/* Steps -------------------------------------------------------------------------------------------------- */

static inline shoal_status modules_forward(struct runner *r, const struct call *c)
{
    struct net *net = net_of(r, c);
    net->out = NULL;
    shoal_tensor *x = shoal_zeros((const int64_t[]){COUNT}, 1, SHOAL_F32);
    shoal_tensor *out = shoal_module_call_one(net->root, x);
    out = out ? shoal_to_dtype(out, SHOAL_F32) : NULL;
    if (!out) {
        return SHOAL_OK; /* the scope has the error */
    }
    net->out = shoal_scope_keep(out);
    return show_tensor(r, c, out);
}

static inline void predict_forward(struct oracle *oracle, const struct call *c)
{
    const struct model_state *state = state_of(oracle, c);
    double out[COUNT] = {0};
    for (int i = 0; i < oracle->program->n_units * UNIT_PARAMS; i++) {
        for (int k = 0; k < COUNT; k++) {
            out[k] += state->values[i][k] * (1 + i % UNIT_PARAMS);
        }
    }
    show_on_all(oracle, c, out, COUNT);
}

static inline shoal_status modules_backward(struct runner *r, const struct call *c)
{
    struct net *net = net_of(r, c);
    shoal_tensor *weights = shoal_empty((const int64_t[]){COUNT}, 1, SHOAL_F32);
    float *data = shoal_mutable_data(weights);
    for (int k = 0; k < COUNT && data; k++) {
        data[k] = gradient_value(r->rank, c->id, 0, k);
    }
    if (!net->out) {
        return SHOAL_ERR_STATE; /* the forward pass was left out */
    }
    shoal_tensor *loss = shoal_sum(shoal_mul(net->out, weights), NULL, 0, false);
    net->out = NULL;
    return shoal_backward(loss, NULL);
}

static inline void predict_backward(struct oracle *oracle, const struct call *c)
{
    for (int unit = 0; unit < oracle->program->n_units; unit++) {
        predict_gradients(oracle, c, unit, true);
    }
    predict_end_of_backward(oracle, c);
}

/* Looking at what this rank has of the first two parameters of each unit. */
static inline shoal_status look_at(struct runner *r, const struct call *c, int param, float *value,
                                   float *grad)
{
    char path[16];
    struct net *net = net_of(r, c);
    shoal_tensor *tensor = tensor_of(r, net, param);
    struct part part = {.shape = {2, COUNT / 2}, .length = 2};
    path_of(r->program, param, path, sizeof path);
    shoal_status status = c->kind->family == WRAPPED
                              ? SHOAL_OK
                              : shard_place(net->root, path, &part.dim, &part.offset, &part.length);
    if (status == SHOAL_OK) {
        put_part(&part, shoal_data(tensor), value);
        put_part(&part, shoal_grad(tensor) ? shoal_data(shoal_grad(tensor)) : NULL, grad);
    }
    return status;
}

static inline shoal_status modules_look(struct runner *r, const struct call *c)
{
    float all[2 * MAX_UNITS * 2 * COUNT];
    int n = 2 * r->program->n_units;
    copy_shown(r, c, all, (size_t)2 * (size_t)n * COUNT);
    /* Where parameters stay after the backward pass, their places hold whole ones. */
    for (int u = 0; u < r->program->n_units && c->kind->family == MODULES; u++) {
        shoal_status status = shoal_fsdp_reshard(shoal_fully_shard_unit(unit_module(net_of(r, c), u), false));
        if (status != SHOAL_OK) {
            return status;
        }
    }
    for (int i = 0; i < n; i++) {
        int param = i / 2 * UNIT_PARAMS + i % 2;
        shoal_status status = look_at(r, c, param, &all[2 * i * COUNT], &all[(2 * i + 1) * COUNT]);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return show(r, c, all, (size_t)2 * (size_t)n * COUNT);
}

static inline void predict_modules_look(struct oracle *oracle, const struct call *c)
{
    const struct model_state *state = state_of(oracle, c);
    for (int i = 0; i < 2 * oracle->program->n_units; i++) {
        int param = i / 2 * UNIT_PARAMS + i % 2;
        show_on_all(oracle, c, state->values[param], COUNT);
        show_on_all(oracle, c, state->grads[param], COUNT);
    }
}

/* Settings ----------------------------------------------------------------------------------------------- */

/* One that is no unit stands for the root and all units inside. */
static inline shoal_fsdp_unit *module_unit(struct runner *r, const struct call *c)
{
    int unit = unit_of(r->program, c);
    bool is_all = unit == r->program->n_units;
    return shoal_fully_shard_unit(unit_module(net_of(r, c), is_all ? 0 : unit), is_all);
}

static inline shoal_status modules_handle(struct runner *r, const struct call *c)
{
    return ((handle_function)c->kind->function)(module_unit(r, c));
}

static inline shoal_status modules_flag(struct runner *r, const struct call *c)
{
    return ((unit_flag_function)c->kind->function)(module_unit(r, c), c->choices[1] != 0);
}

static inline shoal_status modules_last(struct runner *r, const struct call *c)
{
    shoal_fsdp *fsdp = NULL;
    shoal_status status = shoal_fully_shard_context(root_of(r, c), &fsdp);
    return status == SHOAL_OK ? shoal_fsdp_set_is_last_backward(fsdp, choice_of(c, "is_last") != 0) : status;
}

static inline shoal_status modules_reshard(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_reshard(module_unit(r, c), reshard_of(choice_of(c, "reshard")));
}

static inline shoal_status modules_prefetch(struct runner *r, const struct call *c)
{
    int n_units = r->program->n_units;
    int unit = unit_of(r->program, c);
    int other = (unit + (choice_of(c, "units") == 0 ? 1 : n_units - 1)) % n_units;
    shoal_fsdp_unit *const units[] = {shoal_fully_shard_unit(unit_module(net_of(r, c), other), false)};
    return ((prefetch_function)c->kind->function)(module_unit(r, c), units, (size_t)choice_of(c, "n_units"));
}

static inline shoal_status modules_divide(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_divide_factor(module_unit(r, c), factor_of(choice_of(c, "factor")));
}

static inline shoal_status modules_hook(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_all_reduce_hook(module_unit(r, c), choice_of(c, "hook") != 0 ? hook_nothing : NULL,
                                          NULL);
}

static inline shoal_status modules_custom_gather(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_custom_all_gather(module_unit(r, c),
                                            choice_of(c, "custom") != 0 ? &own_gather : NULL);
}

static inline shoal_status modules_custom_scatter(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_custom_reduce_scatter(module_unit(r, c),
                                                choice_of(c, "custom") != 0 ? &own_scatter : NULL);
}

/* Whole parameters, arrays, norms -------------------------------------------------------------------------- */

static inline shoal_status modules_synchronize(struct runner *r, const struct call *c)
{
    shoal_fsdp *fsdp = NULL;
    shoal_status status = shoal_fully_shard_context(root_of(r, c), &fsdp);
    return status == SHOAL_OK ? shoal_fsdp_synchronize(fsdp) : status;
}

static inline shoal_fsdp_param *module_param(struct runner *r, const struct call *c)
{
    char path[16];
    path_of(r->program, param_of(r->program, c), path, sizeof path);
    return shoal_fully_shard_param(root_of(r, c), path);
}

static inline shoal_status modules_gather(struct runner *r, const struct call *c)
{
    return gather_whole(r, c, module_param(r, c));
}

static inline shoal_status modules_broadcast(struct runner *r, const struct call *c)
{
    float whole[COUNT];
    for (int k = 0; k < COUNT; k++) {
        whole[k] = sent_value(c->id, param_of(r->program, c), k);
    }
    return shoal_fsdp_broadcast(module_param(r, c), whole, rank_of(c));
}

static inline shoal_status modules_broadcast_all(struct runner *r, const struct call *c)
{
    struct net whole;
    shoal_status status = make_net(r->program, &whole, sent_value, c->id, false);
    if (status == SHOAL_OK) {
        status = shoal_fully_shard_broadcast_all(root_of(r, c), whole.root, rank_of(c));
    }
    free_net(&whole);
    return status;
}

static inline void predict_broadcast_all(struct oracle *oracle, const struct call *c)
{
    struct model_state *state = state_of(oracle, c);
    for (int i = 0; i < MAX_PARAMS * COUNT; i++) {
        state->values[i / COUNT][i % COUNT] = (double)sent_value(c->id, i / COUNT, i % COUNT);
    }
}

/* A tensor like this rank's shard, of one dtype or another. */
static inline shoal_tensor *make_array(struct runner *r, const struct call *c, const char *path,
                                       struct part *part)
{
    float whole[COUNT];
    float mine[COUNT] = {0};
    *part = (struct part){.shape = {2, COUNT / 2}};
    if (shard_place(root_of(r, c), path, &part->dim, &part->offset, &part->length) != SHOAL_OK) {
        return NULL;
    }
    int64_t shape[] = {2, COUNT / 2};
    shape[part->dim] = part->length;
    shoal_tensor *array = shoal_empty(shape, 2, array_dtype(choice_of(c, "dtype")));
    uint32_t numbers[COUNT];
    void *data = shoal_mutable_data(array);
    array_whole(c, whole);
    take_part(part, whole, mine);
    put_numbers(mine, choice_of(c, "dtype"), numbers);
    if (data) {
        memcpy(data, numbers, (size_t)shoal_tensor_count(array) * sizeof numbers[0]);
    }
    return array;
}

static inline shoal_status modules_gather_array(struct runner *r, const struct call *c)
{
    char path[16];
    struct part part;
    float whole[COUNT];
    uint32_t full[COUNT] = {0};
    int root = root_of_call(r->program, c);
    path_of(r->program, param_of(r->program, c), path, sizeof path);
    shoal_tensor *array = make_array(r, c, path, &part);
    shoal_status status =
        shoal_fsdp_gather_array(module_param(r, c), shoal_tensor_dtype(array), shoal_data(array), full, root);
    get_numbers(full, choice_of(c, "dtype"), whole);
    return show_if(r, c, status, root < 0 || r->rank == root, whole, COUNT);
}

static inline shoal_status modules_broadcast_array(struct runner *r, const struct call *c)
{
    char path[16];
    struct part part;
    float whole[COUNT];
    float mine[COUNT] = {0};
    uint32_t full[COUNT];
    uint32_t numbers[COUNT] = {0};
    path_of(r->program, param_of(r->program, c), path, sizeof path);
    shoal_tensor *array = make_array(r, c, path, &part);
    array_whole(c, whole);
    put_numbers(whole, choice_of(c, "dtype"), full);
    shoal_status status = shoal_fsdp_broadcast_array(module_param(r, c), shoal_tensor_dtype(array), full,
                                                     shoal_mutable_data(array), rank_of(c));
    const void *data = status == SHOAL_OK ? shoal_data(array) : NULL;
    if (data) {
        memcpy(numbers, data, (size_t)shoal_tensor_count(array) * sizeof numbers[0]);
    }
    get_numbers(numbers, choice_of(c, "dtype"), mine);
    copy_shown(r, c, whole, COUNT);
    put_part(&part, mine, whole);
    return show_if(r, c, status, true, whole, COUNT);
}

static inline shoal_status modules_clip_norm(struct runner *r, const struct call *c)
{
    double norm = 0.0;
    shoal_fsdp *fsdp = NULL;
    shoal_status status = shoal_fully_shard_context(root_of(r, c), &fsdp);
    if (status == SHOAL_OK) {
        status = shoal_fsdp_clip_grad_norm(fsdp, maximum_of(choice_of(c, "max_norm")),
                                           power_of(choice_of(c, "power")),
                                           choice_of(c, "must_be_finite") != 0, &norm);
    }
    return show_norm(r, c, status, norm);
}

static inline shoal_status modules_clip_value(struct runner *r, const struct call *c)
{
    shoal_fsdp *fsdp = NULL;
    shoal_status status = shoal_fully_shard_context(root_of(r, c), &fsdp);
    return status == SHOAL_OK ? shoal_fsdp_clip_grad_value(fsdp, maximum_of(choice_of(c, "max_value")))
                              : status;
}

static inline shoal_status wrapped_clip_norm(struct runner *r, const struct call *c)
{
    double norm = 0.0;
    shoal_status status =
        shoal_ddp_clip_grad_norm(root_of(r, c), maximum_of(choice_of(c, "max_norm")),
                                 power_of(choice_of(c, "power")), choice_of(c, "must_be_finite") != 0, &norm);
    return show_norm(r, c, status, norm);
}

static inline shoal_status wrapped_clip_value(struct runner *r, const struct call *c)
{
    return shoal_ddp_clip_grad_value(root_of(r, c), maximum_of(choice_of(c, "max_value")));
}

/* Tables ------------------------------------------------------------------------------------------------- */

#define MODULES_KIND(name_, block_, run_, predict_) \
    .name = #name_, .family = MODULES, .block = (block_), .run = (run_), .predict = (predict_)
#define MODULES_FUNCTION(name_, block_, run_, predict_) \
    MODULES_KIND(name_, block_, run_, predict_), FUNCTION(name_)

static const struct kind modules_kinds[] = {
    {MODULES_KIND(make_net, BLOCK_NONE, modules_make, NULL)},
    {MODULES_KIND(shoal_fully_shard, BLOCK_BUILD, modules_shard, predict_ignored),
     .fields = "shoal_fully_shard_options"},
    {MODULES_KIND(shoal_fully_shard_list, BLOCK_BUILD, modules_shard, predict_ignored),
     .fields = "shoal_fully_shard_options"},
    {MODULES_KIND(forward, BLOCK_STEP, modules_forward, predict_forward)},
    {MODULES_KIND(backward, BLOCK_STEP, modules_backward, predict_backward)},
    {MODULES_FUNCTION(shoal_fsdp_unshard, BLOCK_HAND, modules_handle, NULL)},
    {MODULES_FUNCTION(shoal_fsdp_wait, BLOCK_HAND, modules_handle, NULL)},
    {MODULES_FUNCTION(shoal_fsdp_reshard, BLOCK_HAND, modules_handle, NULL)},
    {MODULES_FUNCTION(shoal_fsdp_set_sync, BLOCK_SETTING, modules_flag, predict_sync), .setting = "is_on",
     .usual = 1},
    {MODULES_FUNCTION(shoal_fsdp_set_all_reduce, BLOCK_SETTING, modules_flag, predict_all_reduce),
     .setting = "is_on", .usual = 1},
    {MODULES_KIND(shoal_fsdp_set_reshard, BLOCK_SETTING, modules_reshard, NULL), .setting = "reshard"},
    {MODULES_FUNCTION(shoal_fsdp_set_reshard_after_backward, BLOCK_SETTING, modules_flag, NULL),
     .setting = "is_on", .usual = 1},
    {MODULES_FUNCTION(shoal_fsdp_set_unshard_in_backward, BLOCK_SETTING, modules_flag, NULL),
     .setting = "is_on", .usual = 1},
    {MODULES_KIND(shoal_fsdp_set_divide_factor, BLOCK_SETTING, modules_divide, predict_divide_factor),
     .setting = "factor"},
    {MODULES_FUNCTION(shoal_fsdp_set_force_sum, BLOCK_SETTING, modules_flag, NULL), .setting = "is_on"},
    {MODULES_KIND(shoal_fsdp_set_is_last_backward, BLOCK_SETTING, modules_last, NULL), .setting = "is_last",
     .usual = 1},
    {MODULES_FUNCTION(shoal_fsdp_set_forward_prefetch, BLOCK_SETTING, modules_prefetch, NULL),
     .setting = "n_units"},
    {MODULES_FUNCTION(shoal_fsdp_set_backward_prefetch, BLOCK_SETTING, modules_prefetch, NULL),
     .setting = "n_units"},
    {MODULES_KIND(shoal_fsdp_set_all_reduce_hook, BLOCK_SETTING, modules_hook, NULL), .setting = "hook"},
    {MODULES_KIND(shoal_fsdp_set_custom_all_gather, BLOCK_SETTING, modules_custom_gather, NULL),
     .setting = "custom"},
    {MODULES_KIND(shoal_fsdp_set_custom_reduce_scatter, BLOCK_SETTING, modules_custom_scatter, NULL),
     .setting = "custom"},
    {MODULES_FUNCTION(shoal_fsdp_set_reduce_unused, BLOCK_SETTING, modules_flag, NULL), .setting = "is_on"},
    {MODULES_KIND(shoal_fsdp_synchronize, BLOCK_PENDING, modules_synchronize, predict_synchronize)},
    {MODULES_KIND(shoal_fsdp_clip_grad_norm, BLOCK_CLIP, modules_clip_norm, predict_clip_norm)},
    {MODULES_KIND(shoal_fsdp_clip_grad_value, BLOCK_CLIP, modules_clip_value, predict_clip_value)},
    {MODULES_KIND(shoal_fsdp_gather, BLOCK_ALONE, modules_gather, predict_whole)},
    {MODULES_KIND(shoal_fsdp_broadcast, BLOCK_ALONE, modules_broadcast, predict_broadcast)},
    {MODULES_KIND(shoal_fully_shard_broadcast_all, BLOCK_ALONE, modules_broadcast_all,
                  predict_broadcast_all)},
    {MODULES_KIND(shoal_fsdp_gather_array, BLOCK_ALONE, modules_gather_array, predict_gathered_array)},
    {MODULES_KIND(shoal_fsdp_broadcast_array, BLOCK_ALONE, modules_broadcast_array, predict_array)},
    {MODULES_KIND(look, BLOCK_NONE, modules_look, predict_modules_look)},
};

#define WRAPPED_KIND(name_, block_, run_, predict_) \
    .name = #name_, .family = WRAPPED, .block = (block_), .run = (run_), .predict = (predict_)
#define WRAPPED_FUNCTION(name_, block_, run_, predict_) \
    WRAPPED_KIND(name_, block_, run_, predict_), FUNCTION(name_)

static const struct kind wrapped_kinds[] = {
    {WRAPPED_KIND(make_net, BLOCK_NONE, modules_make, NULL)},
    {WRAPPED_KIND(shoal_ddp, BLOCK_BUILD, wrapped_wrap, predict_wrap), .fields = "shoal_ddp_options"},
    {WRAPPED_KIND(forward, BLOCK_STEP, modules_forward, predict_forward)},
    {WRAPPED_KIND(backward, BLOCK_STEP, modules_backward, predict_backward)},
    {WRAPPED_KIND(shoal_ddp_clip_grad_norm, BLOCK_CLIP, wrapped_clip_norm, predict_clip_norm)},
    {WRAPPED_KIND(shoal_ddp_clip_grad_value, BLOCK_CLIP, wrapped_clip_value, predict_clip_value)},
    {WRAPPED_KIND(look, BLOCK_NONE, modules_look, predict_modules_look)},
};

#endif
