/* SPDX-License-Identifier: MIT */
/*
 * Optimizers of modules. Creation checks and copies the groups first, then walks over the module and assigns each
 * parameter, known by its first path, to a group. A group that ends up without parameters is an error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/struct_size.h"
#include "ops/ops.h"
#include "optim/optim.h"
#include "math/pattern.h"
#include "shoal/fully_shard.h"
#include "shoal/scope.h"
#include "common/try.h"

/* Rows ------------------------------------------------------------------------------------------------- */

/* "group 2 (*bias)", for texts. */
struct group_name {
    char text[160];
};

static struct group_name name_of(size_t index, const shoal_nn_param_group *row)
{
    struct group_name name;
    (void)snprintf(name.text, sizeof(name.text), "group %zu (%.100s)", index,
                   row->pattern ? row->pattern : "*");
    return name;
}

/* What may be changed later: the rates. */
static shoal_status check_rates(const char *call, const shoal_nn_optimizer *optimizer, const char *name,
                                const shoal_nn_param_group *row)
{
    char field[200];
    (void)snprintf(field, sizeof(field), "%s: lr_factor", name);
    NN_TRY(nn_check_number(call, field, row->lr_factor, (double)INFINITY));
    if (row->lr_factor == 0 && !row->allows_zeros) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: %s is 0, perhaps forgotten; begin with SHOAL_NN_PARAM_GROUP_INIT (1), or set "
                          "allows_zeros",
                          call, field);
    }
    (void)snprintf(field, sizeof(field), "%s: lr * lr_factor", name);
    NN_TRY(nn_check_number(call, field, optimizer->options.lr * row->lr_factor, (double)INFINITY));
    if (row->weight_decay == SHOAL_NN_SAME_DECAY) {
        return SHOAL_OK;
    }
    if (optimizer->rule == NN_RULE_SGD && row->weight_decay != 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: weight_decay %g, but SGD has none", call, name,
                          row->weight_decay);
    }
    (void)snprintf(field, sizeof(field), "%s: weight_decay", name);
    return nn_check_number(call, field, row->weight_decay, (double)INFINITY);
}

/* Rows of a caller's array, which may be shorter or longer than ours. All have the same size. */
static shoal_status read_row(const char *call, const shoal_nn_param_group *groups, size_t index,
                             shoal_nn_param_group *row_out)
{
    char which[40];
    (void)snprintf(which, sizeof(which), "group %zu", index);
    size_t stride = groups[0].struct_size;
    const char *given = (const char *)groups + index * stride;
    size_t bytes;
    memcpy(&bytes, given, sizeof(bytes));
    if (bytes != stride) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: struct_size %zu is not %zu, as of group 0", call, which,
                          bytes, stride);
    }
    *row_out = (shoal_nn_param_group)SHOAL_NN_PARAM_GROUP_INIT;
    return nn_struct_read(call, which, given, row_out, sizeof(*row_out));
}

static shoal_status check_row(const char *call, const shoal_nn_optimizer *optimizer, size_t index,
                              const shoal_nn_param_group *row)
{
    struct group_name name = name_of(index, row);
    if (row->max_dims < 0 || row->max_dims > SHOAL_MAX_DIMS) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: max_dims: %d is not within 0..%d", call, name.text,
                          row->max_dims, SHOAL_MAX_DIMS);
    }
    return check_rates(call, optimizer, name.text, row);
}

static char *copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* Rows that were checked. What was copied belongs to the optimizer, also when a later one fails. */
static shoal_status copy_rows(const char *call, shoal_nn_optimizer *optimizer,
                              const shoal_nn_param_group *groups, size_t n_groups)
{
    if (n_groups == 0) {
        return SHOAL_OK;
    }
    optimizer->groups = calloc(n_groups, sizeof(groups[0]));
    if (!optimizer->groups) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for %zu groups", call, n_groups);
    }
    for (size_t i = 0; i < n_groups; i++) {
        shoal_nn_param_group *row = &optimizer->groups[i];
        NN_TRY(read_row(call, groups, i, row));
        const char *pattern = row->pattern;
        optimizer->n_groups = i + 1;
        row->pattern = pattern ? copy_text(pattern) : NULL;
        if (pattern && !row->pattern) {
            return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for the pattern of group %zu", call, i);
        }
    }
    return SHOAL_OK;
}

/* Parameters --------------------------------------------------------------------------------------------- */

struct making {
    const char *call;
    shoal_module *module;
    shoal_nn_optimizer *optimizer;
    size_t n_filled;
    shoal_device device; /* of the parameters so far; SHOAL_META before the first */
    size_t *n_fitting;   /* of each group: parameters that it fits, also those that an earlier one has */
    size_t *n_members;   /* of each group */
};

/* Of the whole parameter that the tensor is, or is a shard of. */
static shoal_status find_n_dims(const struct making *making, const shoal_module_entry *entry, int *n_dims_out)
{
    const shoal_tensor *tensor = entry->tensor;
    shoal_fsdp_param *param = NULL;
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    *n_dims_out = shoal_tensor_n_dims(tensor);
    NN_TRY(shoal_fully_shard_find_param(making->module, entry, &param));
    if (!param) {
        return SHOAL_OK;
    }
    NN_TRY(shoal_fsdp_get_layout(param, &layout));
    if (layout.n_dims != *n_dims_out || memcmp(layout.shard_shape, shoal_tensor_shape(tensor),
                                               (size_t)layout.n_dims * sizeof(layout.shape[0])) != 0) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: parameter %.200s: shape %s is not that of its shard",
                          making->call, entry->path, nn_shape_text(tensor).text);
    }
    return SHOAL_OK;
}

static void choose_group(struct making *making, const char *path, int n_dims, struct nn_parameter *parameter)
{
    const shoal_nn_optimizer *optimizer = making->optimizer;
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        const shoal_nn_param_group *row = &optimizer->groups[i];
        bool fits = (row->max_dims == SHOAL_NN_ANY_DIMS || n_dims <= row->max_dims) &&
                    (!row->pattern || nn_matches(row->pattern, path));
        making->n_fitting[i] += fits;
        if (fits && parameter->group < 0) {
            parameter->group = (int64_t)i;
            making->n_members[i]++;
        }
    }
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct making *making = context;
    int n_dims = 0;
    (void)next;
    if (making->n_filled == making->optimizer->n_parameters) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: the module was changed while the optimizer was created",
                          making->call);
    }
    NN_TRY(nn_check_tensor(making->call, entry->path, entry->tensor));
    NN_TRY(nn_check_device(making->call, entry->path, entry->tensor, &making->device));
    NN_TRY(find_n_dims(making, entry, &n_dims));
    struct nn_parameter *parameter = &making->optimizer->parameters[making->n_filled];
    parameter->path = copy_text(entry->path);
    if (!parameter->path) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for the path %.200s", making->call,
                          entry->path);
    }
    nn_parameter_set(parameter, entry->tensor);
    choose_group(making, entry->path, n_dims, parameter);
    making->n_filled++;
    return SHOAL_OK;
}

static shoal_status check_members(const struct making *making)
{
    for (size_t i = 0; i < making->optimizer->n_groups; i++) {
        const shoal_nn_param_group *row = &making->optimizer->groups[i];
        if (making->n_members[i] == 0 && !row->may_be_empty) {
            return shoal_fail(SHOAL_ERR_INVALID, "%s: %s has no parameter: %s", making->call,
                              name_of(i, row).text,
                              making->n_fitting[i] > 0 ? "those that it matches are in earlier groups"
                                                       : "none has such a path and number of dimensions");
        }
    }
    return SHOAL_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct nn_path *)a)->path, ((const struct nn_path *)b)->path);
}

static shoal_status sort_paths(const char *call, shoal_nn_optimizer *optimizer)
{
    size_t n_paths = optimizer->n_parameters;
    optimizer->paths = calloc(n_paths, sizeof(optimizer->paths[0]));
    if (!optimizer->paths) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for a list of %zu paths", call, n_paths);
    }
    for (size_t i = 0; i < n_paths; i++) {
        optimizer->paths[i] = (struct nn_path){optimizer->parameters[i].path, i};
    }
    qsort(optimizer->paths, n_paths, sizeof(optimizer->paths[0]), compare_paths);
    return SHOAL_OK;
}

static shoal_status take_parameters(struct making *making, const shoal_nn_param_group *groups,
                                    size_t n_groups)
{
    shoal_nn_optimizer *optimizer = making->optimizer;
    for (size_t i = 0; i < n_groups; i++) {
        shoal_nn_param_group row = SHOAL_NN_PARAM_GROUP_INIT;
        NN_TRY(read_row(making->call, groups, i, &row));
        NN_TRY(check_row(making->call, optimizer, i, &row));
    }
    NN_TRY(copy_rows(making->call, optimizer, groups, n_groups));
    making->n_fitting = calloc(2 * (n_groups + 1), sizeof(size_t));
    if (!making->n_fitting) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for %zu groups", making->call, n_groups);
    }
    making->n_members = making->n_fitting + n_groups;
    NN_TRY(shoal_module_walk(making->module, SHOAL_WALK_PARAMETERS, visit, making));
    NN_TRY(check_members(making));
    return sort_paths(making->call, optimizer);
}

static shoal_status create_for(const char *call, enum nn_rule rule, shoal_module *module,
                               const shoal_nn_adamw_options *given, const shoal_nn_param_group *groups,
                               size_t n_groups, shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options options;
    struct making making = {.call = call, .module = module, .device = SHOAL_META};
    size_t n_parameters = 0;
    if (!module) {
        return shoal_fail_null(call, "module");
    }
    if (!optimizer_out || (!groups && n_groups > 0)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call,
                          optimizer_out ? "groups" : "optimizer_out");
    }
    NN_TRY(nn_read_adamw_options(call, given, &options));
    NN_TRY(shoal_module_count(module, SHOAL_WALK_PARAMETERS, &n_parameters));
    if (n_parameters == 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: the module has no parameters: there is nothing to optimize",
                          call);
    }
    NN_TRY(nn_optimizer_allocate(call, rule, &options, n_parameters, &making.optimizer));
    shoal_status status = take_parameters(&making, groups, n_groups);
    free(making.n_fitting);
    if (status != SHOAL_OK) {
        shoal_nn_optimizer_free(making.optimizer);
        return status;
    }
    *optimizer_out = making.optimizer;
    return SHOAL_OK;
}

shoal_status shoal_nn_sgd_create_for(shoal_module *module, const shoal_nn_sgd_options *options,
                                     const shoal_nn_param_group *groups, size_t n_groups,
                                     shoal_nn_optimizer **optimizer_out)
{
    static const char call[] = "nn_sgd_create_for";
    shoal_nn_adamw_options wide;
    NN_TRY(nn_widen_sgd_options(call, options, &wide));
    return create_for(call, NN_RULE_SGD, module, &wide, groups, n_groups, optimizer_out);
}

shoal_status shoal_nn_adamw_create_for(shoal_module *module, const shoal_nn_adamw_options *options,
                                       const shoal_nn_param_group *groups, size_t n_groups,
                                       shoal_nn_optimizer **optimizer_out)
{
    return create_for("nn_adamw_create_for", NN_RULE_ADAMW, module, options, groups, n_groups, optimizer_out);
}

/* Afterwards --------------------------------------------------------------------------------------------- */

const char *shoal_nn_optimizer_path(const shoal_nn_optimizer *optimizer, size_t index)
{
    if (nn_check_index("nn_optimizer_path", optimizer, index) != SHOAL_OK) {
        return NULL;
    }
    const char *path = optimizer->parameters[index].path;
    return path ? path : "";
}

int64_t shoal_nn_optimizer_find(const shoal_nn_optimizer *optimizer, const char *path)
{
    if (!optimizer || !path || !optimizer->paths) {
        return -1;
    }
    const struct nn_path key = {path, 0};
    const struct nn_path *found =
        bsearch(&key, optimizer->paths, optimizer->n_parameters, sizeof(optimizer->paths[0]), compare_paths);
    return found ? (int64_t)found->index : -1;
}

int64_t shoal_nn_optimizer_group_of(const shoal_nn_optimizer *optimizer, size_t index)
{
    if (nn_check_index("nn_optimizer_group_of", optimizer, index) != SHOAL_OK) {
        return -1;
    }
    return optimizer->parameters[index].group;
}

static shoal_status check_group(const char *call, const shoal_nn_optimizer *optimizer, size_t group)
{
    if (!optimizer) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: optimizer is NULL", call);
    }
    if (group >= optimizer->n_groups) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: group %zu, but there are %zu groups", call, group,
                          optimizer->n_groups);
    }
    return SHOAL_OK;
}

shoal_status shoal_nn_optimizer_get_group(const shoal_nn_optimizer *optimizer, size_t group,
                                          shoal_nn_param_group *row_out)
{
    static const char call[] = "nn_optimizer_get_group";
    NN_TRY(check_group(call, optimizer, group));
    return nn_struct_write(call, "row_out", row_out, &optimizer->groups[group], sizeof(*row_out));
}

shoal_status shoal_nn_optimizer_set_group(shoal_nn_optimizer *optimizer, size_t group,
                                          const shoal_nn_param_group *given)
{
    static const char call[] = "nn_optimizer_set_group";
    NN_TRY(check_group(call, optimizer, group));
    shoal_nn_param_group own = optimizer->groups[group]; /* what the caller's struct does not have stays */
    const shoal_nn_param_group *row = &own;
    NN_TRY(nn_struct_read(call, "row", given, &own, sizeof(own)));
    shoal_nn_param_group *old = &optimizer->groups[group];
    struct group_name name = name_of(group, old);
    const char *patterns[] = {old->pattern ? old->pattern : "", row->pattern ? row->pattern : ""};
    if (!old->pattern != !row->pattern || strcmp(patterns[0], patterns[1]) != 0 ||
        row->max_dims != old->max_dims || row->may_be_empty != old->may_be_empty) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: %s: pattern, max_dims and may_be_empty cannot be changed: which parameters "
                          "belong to a group is decided when the optimizer is created",
                          call, name.text);
    }
    NN_TRY(check_rates(call, optimizer, name.text, row));
    old->lr_factor = row->lr_factor;
    old->weight_decay = row->weight_decay;
    old->allows_zeros = row->allows_zeros;
    return SHOAL_OK;
}
