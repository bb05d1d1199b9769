/* SPDX-License-Identifier: MIT */
/*
 * The state of optimizers as items of checkpoints. Items are collected in a separate list and appended at the end, so a
 * call that fails has added nothing. The list holds a reference to the optimizer, which owns the memory of the items.
 */
#include <inttypes.h>
#include <stdio.h>

#include "optim/named_items.h"
#include "optim/optim.h"
#include "shoal/autograd.h"
#include "shoal/op.h"
#include "common/try.h"
#include "ops/values.h"

static const char *const moment_suffixes[NN_N_MOMENTS] = {".exp_avg", ".exp_avg_sq"};

/* How a text names a parameter: by its path, or else by its number. */
struct which {
    char text[160];
};

static struct which which_of(const shoal_nn_optimizer *optimizer, size_t index)
{
    struct which which;
    const char *path = optimizer->parameters[index].path;
    if (path) {
        (void)snprintf(which.text, sizeof(which.text), "parameter %.128s", path);
    } else {
        (void)snprintf(which.text, sizeof(which.text), "%s %zu", optimizer->is_raw ? "shard" : "parameter",
                       index);
    }
    return which;
}

/* Elements of the part that an item is. */
static int64_t part_count(const shoal_item *item)
{
    int64_t count = 1;
    for (int i = 0; i < item->n_dims; i++) {
        count *= i == item->dim ? item->length : item->shape[i];
    }
    return count;
}

/* `item` is the one of the parameter. */
static shoal_status add_state(const char *call, struct nn_parameter *parameter, bool has_moments,
                              const shoal_item *item, shoal_items *items)
{
    shoal_item added = *item;
    added.section = SHOAL_SECTION_OPTIMIZER;
    added.dtype = nn_real(parameter->dtype);
    added.may_be_missing = false;
    if (has_moments) {
        NN_TRY(nn_make_moments(parameter));
    }
    for (int i = 0; has_moments && i < NN_N_MOMENTS; i++) {
        added.tensor = parameter->tensor ? parameter->moments[i] : NULL;
        added.data = NULL;
        if (!added.tensor &&
            parameter->count > 0) { /* raw: the moment has one dimension, and is contiguous */
            added.data = shoal_mutable_data(parameter->moments[i]);
            if (!added.data) {
                return SHOAL_ERR_STATE; /* the text is there already */
            }
        }
        NN_TRY(nn_add_item(call, items, item->name, moment_suffixes[i], &added));
    }
    const shoal_item step = {.struct_size = sizeof(step),
                             .section = SHOAL_SECTION_OPTIMIZER,
                             .dtype = SHOAL_I64,
                             .dim = -1,
                             .data = &parameter->n_updates};
    return nn_add_item(call, items, item->name, ".step", &step);
}

static shoal_status add_parameter(const char *call, shoal_nn_optimizer *optimizer, size_t index,
                                  const shoal_items *from, int64_t number, shoal_items *to)
{
    struct nn_parameter *parameter = &optimizer->parameters[index];
    shoal_item item = SHOAL_ITEM_INIT;
    NN_TRY(shoal_items_get(from, (size_t)number, &item));
    if (item.dtype != parameter->dtype || part_count(&item) != (int64_t)parameter->count) {
        return shoal_fail(
            SHOAL_ERR_INVALID, "%s: %s has %zu elements of %s, but the item %.128s has %" PRId64 " of %s",
            call, which_of(optimizer, index).text, parameter->count, shoal_dtype_name(parameter->dtype),
            item.name, part_count(&item), shoal_dtype_name(item.dtype));
    }
    return add_state(call, parameter, optimizer->rule == NN_RULE_ADAMW, &item, to);
}

/* Whether it is trained, or was. */
static bool has_state(const struct nn_parameter *parameter)
{
    return shoal_requires_grad(parameter->tensor) || parameter->n_updates > 0 || parameter->moments[0] ||
           parameter->moments[1];
}

/* What was there before is gone: counts that are refused become 0, which every other call can go on with. */
static shoal_status accept_loaded(void *context)
{
    shoal_nn_optimizer *optimizer = context;
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        int64_t *n_updates = &optimizer->parameters[i].n_updates;
        if (*n_updates >= 0) {
            continue;
        }
        if (status == SHOAL_OK) {
            status = shoal_fail(SHOAL_ERR_INVALID,
                                "nn_optimizer_add_items: what was loaded: %s: step: %" PRId64
                                " is negative; it is 0 now",
                                which_of(optimizer, i).text, *n_updates);
        }
        *n_updates = 0;
    }
    return status;
}

static void release(void *context)
{
    shoal_nn_optimizer_free(context);
}

/* If `numbers` is NULL, the items are found by their tensors. */
static shoal_status collect(const char *call, shoal_nn_optimizer *optimizer, const shoal_items *from,
                            const int64_t *numbers, shoal_items *to)
{
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        const struct nn_parameter *parameter = &optimizer->parameters[i];
        if (numbers ? numbers[i] == -1 : !has_state(parameter)) {
            continue;
        }
        int64_t number = numbers ? numbers[i] : shoal_items_find_tensor(from, parameter->tensor);
        if (number < 0 || (size_t)number >= shoal_items_count(from)) {
            return shoal_fail(SHOAL_ERR_INVALID, "%s: %s has no item in the list%s", call,
                              which_of(optimizer, i).text,
                              numbers ? " of that number"
                                      : "; add its module first, and create the optimizer after "
                                        "shoal_fully_shard, which replaces the tensors of parameters");
        }
        NN_TRY(add_parameter(call, optimizer, i, from, number, to));
    }
    NN_TRY(shoal_items_on_loaded(to, accept_loaded, optimizer, release));
    nn_optimizer_ref(optimizer);
    return SHOAL_OK;
}

static shoal_status add_items(const char *call, shoal_nn_optimizer *optimizer, shoal_items *items,
                              const int64_t *numbers)
{
    shoal_items *added;
    NN_TRY(shoal_items_create(&added));
    shoal_status status = collect(call, optimizer, items, numbers, added);
    if (status == SHOAL_OK) {
        status = shoal_items_append(items, added);
    }
    shoal_items_free(added);
    return status;
}

static shoal_status check_items(const char *call, const shoal_nn_optimizer *optimizer, bool is_raw,
                                const shoal_items *items)
{
    NN_TRY(nn_check_kind(call, optimizer, is_raw));
    return items ? SHOAL_OK : shoal_fail(SHOAL_ERR_INVALID, "%s: items is NULL", call);
}

shoal_status shoal_nn_optimizer_add_items(shoal_nn_optimizer *optimizer, shoal_items *items)
{
    static const char call[] = "nn_optimizer_add_items";
    NN_TRY(check_items(call, optimizer, /*is_raw=*/false, items));
    return add_items(call, optimizer, items, NULL);
}

shoal_status shoal_nn_optimizer_add_items_raw(shoal_nn_optimizer *optimizer, shoal_items *items,
                                              const int64_t *numbers, size_t n_numbers)
{
    static const char call[] = "nn_optimizer_add_items_raw";
    NN_TRY(check_items(call, optimizer, /*is_raw=*/true, items));
    if (!numbers || n_numbers != optimizer->n_parameters) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %zu numbers%s, but it was made with %zu shards", call,
                          n_numbers, numbers ? "" : " at NULL", optimizer->n_parameters);
    }
    return add_items(call, optimizer, items, numbers);
}
