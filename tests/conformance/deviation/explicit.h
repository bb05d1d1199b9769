/* SPDX-License-Identifier: MIT */
/* Calls of shoal/fsdp.h: how they are made, what they show, and the table of their kinds. */
#ifndef TESTS_DEVIATION_EXPLICIT_H
#define TESTS_DEVIATION_EXPLICIT_H

#include "conformance/deviation/runner.h"

static inline shoal_fsdp *context_of(const struct runner *r, const struct call *c)
{
    return r->contexts[model_of(r->program, c)];
}

static inline shoal_fsdp_unit *unit_handle(const struct runner *r, const struct call *c)
{
    int unit = unit_of(r->program, c);
    return shoal_fsdp_unit_of(context_of(r, c), unit == r->program->n_units ? SHOAL_FSDP_ALL_UNITS : unit);
}

static inline shoal_fsdp_param *param_handle(const struct runner *r, const struct call *c)
{
    return shoal_fsdp_param_of(context_of(r, c), param_of(r->program, c));
}

/* Making ------------------------------------------------------------------------------------------------- */

static inline shoal_status explicit_create(struct runner *r, const struct call *c)
{
    const shoal_fsdp_options options = {
        .struct_size = sizeof options,
        .param_dtype = compute_dtype(choice_of(c, "param_dtype")),
        .reduce_dtype = compute_dtype(choice_of(c, "reduce_dtype")),
        .reshard = reshard_of(choice_of(c, "reshard")),
        .reshard_ranks = 2 << choice_of(c, "reshard_ranks"),
        .forward_prefetch = ahead_of(choice_of(c, "forward_prefetch")),
        .divide_factor = factor_of(choice_of(c, "divide_factor")),
        .force_sum = choice_of(c, "force_sum") != 0,
        .max_reduces = at_once_of(choice_of(c, "max_reduces")),
    };
    shoal_fsdp **out = &r->contexts[c->model];
    shoal_fsdp_free(*out);
    *out = NULL;
    r->compute[c->model] = options.param_dtype ? options.param_dtype : SHOAL_F32;
    switch (r->program->layout) {
    case LAYOUT_MESH:
        return shoal_fsdp_create_on_mesh(r->mesh, &options, out);
    case LAYOUT_REPLICATED:
        return shoal_fsdp_create_replicated(r->group, &options, out);
    case LAYOUT_GROUP:
    default:
        return shoal_fsdp_create(r->group, &options, out);
    }
}

static inline void predict_create(struct oracle *oracle, const struct call *c)
{
    struct model_state *state = &oracle->models[EXPLICIT][c->model];
    for (int u = 0; u < MAX_UNITS; u++) {
        state->divide[u] = factor_of(choice_of(c, "divide_factor"));
    }
}

static inline shoal_status explicit_add_param(struct runner *r, const struct call *c)
{
    static const int64_t rows[] = {12, 6, 4, 24};
    static const int64_t few_rows[] = {2, 1, 2, 1};
    bool is_along = strcmp(c->kind->name, "shoal_fsdp_add_param_along") == 0;
    int64_t n_rows = (is_along ? few_rows : rows)[choice_of(c, "shape")];
    const int64_t shape[] = {n_rows, COUNT / n_rows, 1};
    int n_dims = 2 + choice_of(c, "n_dims");
    shoal_dtype dtype = choice_of(c, "dtype") == 0 ? SHOAL_F32 : SHOAL_I32;
    char name[32];
    float values[COUNT];
    (void)snprintf(name, sizeof name, "%s%d.%c", choice_of(c, "name") == 0 ? "" : "other ", c->unit,
                   'a' + c->param % UNIT_PARAMS);
    for (int k = 0; k < COUNT; k++) {
        values[k] = first_value(c->model, c->param, k);
    }
    return is_along ? shoal_fsdp_add_param_along(context_of(r, c), unit_of(r->program, c), name, dtype,
                                                 n_dims, shape, choice_of(c, "dim"), values, NULL)
                    : shoal_fsdp_add_param(context_of(r, c), unit_of(r->program, c), name, dtype, n_dims,
                                           shape, values, NULL);
}

/* Steps -------------------------------------------------------------------------------------------------- */

typedef shoal_status (*unit_function)(shoal_fsdp *fsdp, int unit);
typedef shoal_status (*context_function)(shoal_fsdp *fsdp);
typedef shoal_status (*handle_function)(shoal_fsdp_unit *unit);

static inline shoal_status explicit_unit(struct runner *r, const struct call *c)
{
    return ((unit_function)c->kind->function)(context_of(r, c), unit_of(r->program, c));
}

static inline shoal_status explicit_context(struct runner *r, const struct call *c)
{
    return ((context_function)c->kind->function)(context_of(r, c));
}

static inline shoal_status explicit_handle(struct runner *r, const struct call *c)
{
    return ((handle_function)c->kind->function)(unit_handle(r, c));
}

/* The whole parameters of the unit can be read now. */
static inline shoal_status show_gathered(struct runner *r, const struct call *c)
{
    int model = model_of(r->program, c);
    float values[UNIT_PARAMS * COUNT];
    for (int i = 0; i < UNIT_PARAMS; i++) {
        const void *data = shoal_fsdp_full_param(context_of(r, c), unit_of(r->program, c) * UNIT_PARAMS + i);
        for (int k = 0; k < COUNT && data; k++) {
            values[i * COUNT + k] = r->compute[model] == SHOAL_BF16 ? from_bf16(((const uint16_t *)data)[k])
                                                                    : ((const float *)data)[k];
        }
        if (!data) {
            return SHOAL_ERR_STATE;
        }
    }
    /* A rank that has the other unit already, because it keeps it, may see that: nobody else is asked. */
    if (is_deviating(r, c) && find_wrong(&r->program->asked, values, UNIT_PARAMS * COUNT) < 0) {
        return SHOAL_OK;
    }
    return show(r, c, values, UNIT_PARAMS * COUNT);
}

static inline shoal_status explicit_gathered(struct runner *r, const struct call *c)
{
    shoal_status status = explicit_unit(r, c);
    return status == SHOAL_OK ? show_gathered(r, c) : status;
}

static inline shoal_status explicit_waited(struct runner *r, const struct call *c)
{
    shoal_status status = explicit_handle(r, c);
    return status == SHOAL_OK ? show_gathered(r, c) : status;
}

static inline void predict_gathered(struct oracle *oracle, const struct call *c)
{
    const struct model_state *state = state_of(oracle, c);
    int unit = unit_of(oracle->program, c);
    show_on_all(oracle, c, state->values[unit * UNIT_PARAMS], (size_t)UNIT_PARAMS * COUNT);
}

static inline void add_gradient(void *data, shoal_dtype dtype, int k, float value)
{
    if (dtype == SHOAL_BF16) {
        uint16_t *at = &((uint16_t *)data)[k];
        *at = to_bf16(from_bf16(*at) + value);
    } else {
        ((float *)data)[k] += value;
    }
}

/* Once for each call of the program: a rank that makes it twice has no other gradients. */
static inline void add_gradients(struct runner *r, const struct call *c)
{
    int model = model_of(r->program, c);
    int unit = unit_of(r->program, c);
    for (int i = unit * UNIT_PARAMS; i < (unit + 1) * UNIT_PARAMS && !r->has_added[c->id]; i++) {
        void *data = shoal_fsdp_grad(context_of(r, c), i);
        for (int k = 0; k < COUNT && data; k++) {
            add_gradient(data, r->compute[model], k, gradient_value(r->rank, c->id, i, k));
        }
    }
    r->has_added[c->id] = true;
}

static inline shoal_status explicit_pre_backward(struct runner *r, const struct call *c)
{
    shoal_status status = explicit_unit(r, c);
    if (status == SHOAL_OK) {
        add_gradients(r, c);
    }
    return status;
}

static inline void predict_pre_backward(struct oracle *oracle, const struct call *c)
{
    predict_gradients(oracle, c, unit_of(oracle->program, c), false);
}

/* Settings ----------------------------------------------------------------------------------------------- */

typedef shoal_status (*flag_function)(shoal_fsdp *fsdp, bool is_on);
typedef shoal_status (*unit_flag_function)(shoal_fsdp_unit *unit, bool is_on);
typedef shoal_status (*prefetch_function)(shoal_fsdp_unit *unit, shoal_fsdp_unit *const *units,
                                          size_t n_units);

static inline shoal_status explicit_flag(struct runner *r, const struct call *c)
{
    return ((flag_function)c->kind->function)(context_of(r, c), c->choices[c->n_choices - 1] != 0);
}

static inline shoal_status explicit_unit_flag(struct runner *r, const struct call *c)
{
    return ((unit_flag_function)c->kind->function)(unit_handle(r, c), c->choices[c->n_choices - 1] != 0);
}

static inline shoal_status explicit_prefetch(struct runner *r, const struct call *c)
{
    int n_units = r->program->n_units;
    int unit = unit_of(r->program, c);
    int other = (unit + (choice_of(c, "units") == 0 ? 1 : n_units - 1)) % n_units;
    shoal_fsdp_unit *const units[] = {shoal_fsdp_unit_of(context_of(r, c), other)};
    return ((prefetch_function)c->kind->function)(unit_handle(r, c), units, (size_t)choice_of(c, "n_units"));
}

static inline shoal_status explicit_requires_grad(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_requires_grad(context_of(r, c), param_of(r->program, c),
                                        choice_of(c, "is_required") != 0);
}

static inline void predict_requires_grad(struct oracle *oracle, const struct call *c)
{
    state_of(oracle, c)->is_frozen[param_of(oracle->program, c)] = choice_of(c, "is_required") == 0;
}

static inline shoal_status explicit_reshard(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_reshard(unit_handle(r, c), reshard_of(choice_of(c, "reshard")));
}

static inline shoal_status explicit_divide(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_divide_factor(unit_handle(r, c), factor_of(choice_of(c, "factor")));
}

static inline shoal_status explicit_hook(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_all_reduce_hook(unit_handle(r, c), choice_of(c, "hook") != 0 ? hook_nothing : NULL,
                                          NULL);
}

static inline shoal_status explicit_custom_gather(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_custom_all_gather(unit_handle(r, c),
                                            choice_of(c, "custom") != 0 ? &own_gather : NULL);
}

static inline shoal_status explicit_custom_scatter(struct runner *r, const struct call *c)
{
    return shoal_fsdp_set_custom_reduce_scatter(unit_handle(r, c),
                                                choice_of(c, "custom") != 0 ? &own_scatter : NULL);
}

/* Whole parameters, arrays, norms -------------------------------------------------------------------------- */

static inline shoal_status show_if(struct runner *r, const struct call *c, shoal_status status, bool is_shown,
                                   const float *values, size_t n)
{
    return status == SHOAL_OK && is_shown ? show(r, c, values, n) : status;
}

static inline shoal_status gather_whole(struct runner *r, const struct call *c, shoal_fsdp_param *param)
{
    float whole[COUNT];
    int root = root_of_call(r->program, c);
    shoal_status status = shoal_fsdp_gather(param, whole, root);
    return show_if(r, c, status, root < 0 || r->rank == root, whole, COUNT);
}

static inline shoal_status explicit_gather(struct runner *r, const struct call *c)
{
    return gather_whole(r, c, param_handle(r, c));
}

static inline shoal_status explicit_broadcast(struct runner *r, const struct call *c)
{
    float whole[COUNT];
    for (int k = 0; k < COUNT; k++) {
        whole[k] = sent_value(c->id, param_of(r->program, c), k);
    }
    return shoal_fsdp_broadcast(param_handle(r, c), whole, rank_of(c));
}

static inline bool explicit_part(const struct runner *r, const struct call *c, int id, struct part *part)
{
    shoal_shard_layout layout = {.struct_size = sizeof layout};
    if (shoal_fsdp_get_layout(shoal_fsdp_param_of(context_of(r, c), id), &layout) != SHOAL_OK) {
        return false;
    }
    *part = (struct part){.dim = layout.dim,
                          .shape = {layout.shape[0], layout.shape[1]},
                          .offset = layout.offset,
                          .length = layout.length};
    return true;
}

static inline shoal_dtype array_dtype(int choice)
{
    return choice == 0 ? SHOAL_F32 : SHOAL_I32;
}

/* Whole numbers as f32 or i32. */
static inline void put_numbers(const float *from, int choice, void *to)
{
    for (int k = 0; k < COUNT; k++) {
        if (choice == 0) {
            ((float *)to)[k] = from[k];
        } else {
            ((int32_t *)to)[k] = (int32_t)from[k];
        }
    }
}

static inline void get_numbers(const void *from, int choice, float *to)
{
    for (int k = 0; k < COUNT; k++) {
        to[k] = choice == 0 ? ((const float *)from)[k] : (float)((const int32_t *)from)[k];
    }
}

static inline void array_whole(const struct call *c, float *whole)
{
    for (int k = 0; k < COUNT; k++) {
        whole[k] = sent_value(c->id, 5, k);
    }
}

static inline shoal_status explicit_gather_array(struct runner *r, const struct call *c)
{
    struct part part;
    float whole[COUNT];
    float mine[COUNT] = {0};
    uint32_t shard[COUNT];
    uint32_t full[COUNT] = {0};
    int dtype = choice_of(c, "dtype");
    int root = root_of_call(r->program, c);
    if (!explicit_part(r, c, param_of(r->program, c), &part)) {
        return SHOAL_ERR_INVALID;
    }
    array_whole(c, whole);
    take_part(&part, whole, mine);
    put_numbers(mine, dtype, shard);
    shoal_status status = shoal_fsdp_gather_array(param_handle(r, c), array_dtype(dtype), shard, full, root);
    get_numbers(full, dtype, whole);
    return show_if(r, c, status, root < 0 || r->rank == root, whole, COUNT);
}

static inline shoal_status explicit_broadcast_array(struct runner *r, const struct call *c)
{
    struct part part;
    float whole[COUNT];
    float mine[COUNT] = {0};
    uint32_t full[COUNT];
    uint32_t shard[COUNT] = {0};
    int dtype = choice_of(c, "dtype");
    if (!explicit_part(r, c, param_of(r->program, c), &part)) {
        return SHOAL_ERR_INVALID;
    }
    array_whole(c, whole);
    put_numbers(whole, dtype, full);
    shoal_status status =
        shoal_fsdp_broadcast_array(param_handle(r, c), array_dtype(dtype), full, shard, rank_of(c));
    get_numbers(shard, dtype, mine);
    copy_shown(r, c, whole, COUNT);
    put_part(&part, mine, whole);
    return show_if(r, c, status, true, whole, COUNT);
}

static inline shoal_status show_norm(struct runner *r, const struct call *c, shoal_status status, double norm)
{
    const float shown[] = {(float)norm};
    return show_if(r, c, status, true, shown, 1);
}

static inline shoal_status explicit_clip_norm(struct runner *r, const struct call *c)
{
    double norm = 0.0;
    shoal_status status = shoal_fsdp_clip_grad_norm(context_of(r, c), maximum_of(choice_of(c, "max_norm")),
                                                    power_of(choice_of(c, "power")),
                                                    choice_of(c, "must_be_finite") != 0, &norm);
    return show_norm(r, c, status, norm);
}

static inline shoal_status explicit_clip_value(struct runner *r, const struct call *c)
{
    return shoal_fsdp_clip_grad_value(context_of(r, c), maximum_of(choice_of(c, "max_value")));
}

/* Looking at everything that this rank has: values, then gradients. */
static inline shoal_status explicit_look(struct runner *r, const struct call *c)
{
    float all[2 * MAX_PARAMS * COUNT];
    int n_params = r->program->n_units * UNIT_PARAMS;
    copy_shown(r, c, all, (size_t)2 * (size_t)n_params * COUNT);
    for (int i = 0; i < n_params; i++) {
        struct part part;
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        shoal_status status = shoal_fsdp_update_shard(context_of(r, c), i, &shard);
        if (status != SHOAL_OK || !explicit_part(r, c, i, &part)) {
            return status != SHOAL_OK ? status : SHOAL_ERR_INTERNAL;
        }
        put_part(&part, shard.data, &all[i * COUNT]);
        put_part(&part, shard.grad, &all[(n_params + i) * COUNT]);
    }
    return show(r, c, all, (size_t)2 * (size_t)n_params * COUNT);
}

static inline void predict_look(struct oracle *oracle, const struct call *c)
{
    const struct model_state *state = state_of(oracle, c);
    size_t n = (size_t)oracle->program->n_units * UNIT_PARAMS * COUNT;
    show_on_all(oracle, c, state->values[0], n);
    show_on_all(oracle, c, state->grads[0], n);
}

/* The table ---------------------------------------------------------------------------------------------- */

#define FUNCTION(name) .function = (void (*)(void))(name)
#define EXPLICIT_KIND(name_, block_, run_, predict_) \
    .name = #name_, .family = EXPLICIT, .block = (block_), .run = (run_), .predict = (predict_)
#define EXPLICIT_FUNCTION(name_, block_, run_, predict_) \
    EXPLICIT_KIND(name_, block_, run_, predict_), FUNCTION(name_)

static const struct kind explicit_kinds[] = {
    {EXPLICIT_KIND(shoal_fsdp_create, BLOCK_BUILD, explicit_create, predict_create),
     .fields = "shoal_fsdp_options"},
    {EXPLICIT_KIND(shoal_fsdp_add_param, BLOCK_BUILD, explicit_add_param, NULL)},
    {EXPLICIT_KIND(shoal_fsdp_add_param_along, BLOCK_BUILD, explicit_add_param, NULL)},
    {EXPLICIT_FUNCTION(shoal_fsdp_pre_forward, BLOCK_STEP, explicit_gathered, predict_gathered)},
    {EXPLICIT_FUNCTION(shoal_fsdp_post_forward, BLOCK_STEP, explicit_unit, NULL)},
    {EXPLICIT_FUNCTION(shoal_fsdp_pre_backward, BLOCK_STEP, explicit_pre_backward, predict_pre_backward)},
    {EXPLICIT_FUNCTION(shoal_fsdp_post_backward, BLOCK_STEP, explicit_unit, NULL)},
    {EXPLICIT_FUNCTION(shoal_fsdp_end_backward, BLOCK_STEP, explicit_context, predict_end_of_backward)},
    {EXPLICIT_FUNCTION(shoal_fsdp_end_forward, BLOCK_EVAL, explicit_context, NULL)},
    {EXPLICIT_FUNCTION(shoal_fsdp_unshard, BLOCK_HAND, explicit_handle, NULL)},
    {EXPLICIT_FUNCTION(shoal_fsdp_wait, BLOCK_HAND, explicit_waited, predict_gathered)},
    {EXPLICIT_FUNCTION(shoal_fsdp_reshard, BLOCK_HAND, explicit_handle, NULL)},
    {EXPLICIT_KIND(shoal_fsdp_set_requires_grad, BLOCK_SETTING, explicit_requires_grad,
                   predict_requires_grad),
     .setting = "is_required", .usual = 1},
    {EXPLICIT_KIND(shoal_fsdp_set_reshard, BLOCK_SETTING, explicit_reshard, NULL), .setting = "reshard"},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_sync, BLOCK_SETTING, explicit_unit_flag, predict_sync),
     .setting = "is_on", .usual = 1},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_all_reduce, BLOCK_SETTING, explicit_unit_flag, predict_all_reduce),
     .setting = "is_on", .usual = 1},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_reshard_after_backward, BLOCK_SETTING, explicit_unit_flag, NULL),
     .setting = "is_on", .usual = 1},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_unshard_in_backward, BLOCK_SETTING, explicit_unit_flag, NULL),
     .setting = "is_on", .usual = 1},
    {EXPLICIT_KIND(shoal_fsdp_set_divide_factor, BLOCK_SETTING, explicit_divide, predict_divide_factor),
     .setting = "factor"},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_force_sum, BLOCK_SETTING, explicit_unit_flag, NULL),
     .setting = "is_on"},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_forward_prefetch, BLOCK_SETTING, explicit_prefetch, NULL),
     .setting = "n_units"},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_backward_prefetch, BLOCK_SETTING, explicit_prefetch, NULL),
     .setting = "n_units"},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_is_last_backward, BLOCK_SETTING, explicit_flag, NULL),
     .setting = "is_last", .usual = 1},
    {EXPLICIT_KIND(shoal_fsdp_set_all_reduce_hook, BLOCK_SETTING, explicit_hook, NULL), .setting = "hook"},
    {EXPLICIT_KIND(shoal_fsdp_set_custom_all_gather, BLOCK_SETTING, explicit_custom_gather, NULL),
     .setting = "custom"},
    {EXPLICIT_KIND(shoal_fsdp_set_custom_reduce_scatter, BLOCK_SETTING, explicit_custom_scatter, NULL),
     .setting = "custom"},
    {EXPLICIT_FUNCTION(shoal_fsdp_set_reduce_unused, BLOCK_SETTING, explicit_unit_flag, NULL),
     .setting = "is_on"},
    {EXPLICIT_FUNCTION(shoal_fsdp_synchronize, BLOCK_PENDING, explicit_context, predict_synchronize)},
    {EXPLICIT_KIND(shoal_fsdp_clip_grad_norm, BLOCK_CLIP, explicit_clip_norm, predict_clip_norm)},
    {EXPLICIT_KIND(shoal_fsdp_clip_grad_value, BLOCK_CLIP, explicit_clip_value, predict_clip_value)},
    {EXPLICIT_KIND(shoal_fsdp_gather, BLOCK_ALONE, explicit_gather, predict_whole)},
    {EXPLICIT_KIND(shoal_fsdp_broadcast, BLOCK_ALONE, explicit_broadcast, predict_broadcast)},
    {EXPLICIT_KIND(shoal_fsdp_gather_array, BLOCK_ALONE, explicit_gather_array, predict_gathered_array)},
    {EXPLICIT_KIND(shoal_fsdp_broadcast_array, BLOCK_ALONE, explicit_broadcast_array, predict_array)},
    {EXPLICIT_KIND(look, BLOCK_NONE, explicit_look, predict_look)},
};

#endif
