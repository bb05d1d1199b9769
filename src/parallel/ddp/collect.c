/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/collect.h"

#include <string.h>

#include "base/changes.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/claim.h"
#include "shoal/autograd.h"
#include "device/device.h"
#include "tensor/tensor.h"

void ddp_tensors_free(struct ddp_tensors *list)
{
    for (size_t i = 0; i < list->n_tensors; i++) {
        mem_free(list->paths[i]);
    }
    mem_free(list->paths);
    mem_free(list->hashes);
    mem_free(list->are_new);
    mem_free(list->tensors);
}

static uint64_t hash_entry(const shoal_module_entry *entry, bool is_trained)
{
    const shoal_tensor *tensor = entry->tensor;
    uint64_t facts = (uint64_t)entry->kind << 32 | (uint64_t)(uint8_t)tensor->dtype << 16 |
                     (uint64_t)tensor->layout.n_dims << 8 | is_trained;
    uint64_t hash = hash_bytes(1, entry->path, strlen(entry->path));
    hash = hash_bytes(hash, &facts, sizeof facts);
    return hash_bytes(hash, tensor->layout.shape, (size_t)tensor->layout.n_dims * sizeof(int64_t));
}

bool ddp_has_param(const struct ddp *ddp, const shoal_tensor *tensor)
{
    size_t k = 0;
    while (k < ddp->n_frozen && ddp->frozen[k].tensor != tensor) {
        k++;
    }
    return ddp_find_param(ddp, tensor) || k < ddp->n_frozen;
}

/* A tensor that the module did not have when it was wrapped the last time. Buffers are sent before forward passes. */
static bool is_new(const struct ddp_collector *collector, const shoal_module_entry *entry)
{
    return !collector->again ||
           (entry->kind == SHOAL_WALK_PARAMETERS && !ddp_has_param(collector->again, entry->tensor));
}

static shoal_status list_tensor(struct ddp_collector *collector, const shoal_module_entry *entry,
                                bool is_trained)
{
    struct ddp_tensors *list = &collector->list;
    size_t n = list->n_tensors + 1;
    TRY(mem_grow((void **)&list->tensors, &list->capacity, n, sizeof list->tensors[0]));
    TRY(mem_grow((void **)&list->hashes, &list->hashes_capacity, n, sizeof list->hashes[0]));
    TRY(mem_grow((void **)&list->paths, &list->paths_capacity, n, sizeof list->paths[0]));
    TRY(mem_grow((void **)&list->are_new, &list->are_new_capacity, n, sizeof list->are_new[0]));
    char *path = mem_copy_string(entry->path);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    list->tensors[list->n_tensors] = entry->tensor;
    list->are_new[list->n_tensors] = is_new(collector, entry);
    list->hashes[list->n_tensors] = hash_entry(entry, is_trained) << 1 | list->are_new[list->n_tensors];
    list->paths[list->n_tensors] = path;
    list->n_tensors = n;
    return SHOAL_OK;
}

static shoal_status add_frozen(struct ddp *ddp, const shoal_module_entry *entry)
{
    TRY(mem_grow((void **)&ddp->frozen, &ddp->frozen_capacity, ddp->n_frozen + 1, sizeof ddp->frozen[0]));
    char *path = mem_copy_string(entry->path);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    ddp->frozen[ddp->n_frozen++] =
        (struct ddp_frozen){.tensor = shoal_tensor_ref(entry->tensor), .path = path};
    return SHOAL_OK;
}

static shoal_status add_param(struct ddp *ddp, const shoal_module_entry *entry)
{
    shoal_device device = entry->tensor->storage->device;
    if (ddp->n_params > 0 && device != ddp->device) {
        return error_set(SHOAL_ERR_INVALID,
                         "parameter %.128s is on device %s, but parameter %.128s is on device %s",
                         entry->path, device_name(device), ddp->params[0].path, device_name(ddp->device));
    }
    ddp->device = device;
    TRY(mem_grow((void **)&ddp->params, &ddp->params_capacity, ddp->n_params + 1, sizeof ddp->params[0]));
    char *path = mem_copy_string(entry->path);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    ddp->params[ddp->n_params++] = (struct ddp_param){
        .ddp = ddp, .tensor = shoal_tensor_ref(entry->tensor), .path = path, .n_expected = 1};
    return SHOAL_OK;
}

static shoal_status collect_tensor(struct ddp_collector *collector, const shoal_module_entry *entry)
{
    bool is_parameter = entry->kind == SHOAL_WALK_PARAMETERS;
    bool is_trained = is_parameter && shoal_requires_grad(entry->tensor);
    if (is_parameter && ddp_is_ignored(collector->options, entry->tensor)) {
        return SHOAL_OK;
    }
    if (!device_has_data(entry->tensor->storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s is on device %s, which has no data", entry->path,
                         device_name(entry->tensor->storage->device));
    }
    if (is_trained && !shoal_is_leaf(entry->tensor)) {
        return error_set(
            SHOAL_ERR_STATE,
            "parameter %s is the result of a recorded operation that changed it in place, not a leaf",
            entry->path);
    }
    if (is_trained) {
        TRY(add_param(collector->ddp, entry));
    } else if (is_parameter) {
        TRY(add_frozen(collector->ddp, entry));
    }
    return list_tensor(collector, entry, is_trained);
}

/* Shards differ between ranks, so DDP must not take them. */
static shoal_status check_shard(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct ddp_collector *collector = context;
    (void)next;
    return ddp_is_ignored(collector->options, entry->tensor)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "parameter %s of a module that is fully sharded is not in the option `ignored`",
                           entry->path);
}

static shoal_status check_module(struct ddp_collector *collector, const shoal_module_entry *entry)
{
    if (!collector->again || !claim_is_by(entry->module, CLAIMANT_DDP, collector->again)) {
        TRY(claim_check(entry->module, entry->path, CLAIMANT_DDP));
    }
    return claim_value(entry->module, CLAIMANT_FSDP)
               ? shoal_module_walk(entry->module, SHOAL_WALK_PARAMETERS, check_shard, collector)
               : SHOAL_OK;
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct ddp_collector *collector = context;
    struct ddp *ddp = collector->ddp;
    (void)next;
    if (entry->kind != SHOAL_WALK_MODULES) {
        return collect_tensor(collector, entry);
    }
    TRY(check_module(collector, entry));
    if (entry->module == ddp->module) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&ddp->inner.modules, &ddp->inner.capacity, ddp->inner.n_modules + 1,
                 sizeof ddp->inner.modules[0]));
    ddp->inner.modules[ddp->inner.n_modules++] = shoal_module_ref(entry->module);
    return SHOAL_OK;
}

/* Looking ------------------------------------------------------------------------------------------------ */

/* A walk over all places. The lists are in the order of first places, so only those of tied parameters have to be
   searched for. */
struct looking {
    const struct ddp *ddp;
    struct ddp_look look;
    size_t n_params; /* how many of them were found so far */
    size_t n_frozen;
};

static bool find_place(struct looking *looking, const shoal_tensor *tensor, size_t *number_out)
{
    const struct ddp *ddp = looking->ddp;
    size_t i = looking->n_params;
    size_t k = looking->n_frozen;
    if (i < ddp->n_params && ddp->params[i].tensor == tensor) {
        looking->n_params++;
    } else if (k < ddp->n_frozen && ddp->frozen[k].tensor == tensor) {
        looking->n_frozen++;
        i = ddp->n_params;
    } else {
        i = 0;
        while (i < ddp->n_params && ddp->params[i].tensor != tensor) {
            i++;
        }
        k = 0;
        while (k < ddp->n_frozen && ddp->frozen[k].tensor != tensor) {
            k++;
        }
    }
    *number_out = i < ddp->n_params ? i : ddp->n_params + k;
    return *number_out < ddp->n_params + ddp->n_frozen;
}

static bool look_at_param(struct looking *looking, const shoal_module_entry *entry)
{
    const struct ddp *ddp = looking->ddp;
    size_t number;
    if (ddp_is_ignored(&ddp->config.options, entry->tensor)) {
        return true;
    }
    if (!find_place(looking, entry->tensor, &number) ||
        (number >= ddp->n_params && shoal_requires_grad(entry->tensor))) {
        return false;
    }
    looking->look.places = hash_bytes(looking->look.places, entry->path, strlen(entry->path));
    looking->look.places = hash_bytes(looking->look.places, &number, sizeof number);
    return true;
}

static shoal_status look_at(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct looking *looking = context;
    if (entry->kind == SHOAL_WALK_MODULES) {
        *next = claim_value(entry->module, CLAIMANT_FSDP) ? SHOAL_WALK_SKIP : SHOAL_WALK_ON;
    } else if (entry->kind == SHOAL_WALK_BUFFERS) {
        uint64_t hash = hash_entry(entry, /*is_trained=*/false);
        looking->look.buffers = hash_bytes(looking->look.buffers, &hash, sizeof hash);
    } else if (!look_at_param(looking, entry)) {
        looking->look.has_same_params = false;
        *next = SHOAL_WALK_STOP;
    }
    return SHOAL_OK;
}

shoal_status ddp_look(const struct ddp *ddp, struct ddp_look *look_out)
{
    struct looking looking = {.ddp = ddp, .look.has_same_params = true};
    uint32_t flags = SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS | SHOAL_WALK_DUPLICATES;
    flags |= ddp->config.options.keeps_buffers ? 0U : SHOAL_WALK_BUFFERS;
    TRY(shoal_module_walk(ddp->module, flags, look_at, &looking));
    *look_out = looking.look;
    look_out->has_same_params = looking.look.has_same_params && looking.n_params == ddp->n_params &&
                                looking.n_frozen == ddp->n_frozen;
    return SHOAL_OK;
}

shoal_status ddp_has_same_params(const struct ddp *ddp, bool *has_same_out)
{
    struct ddp_look look = {.has_same_params = true};
    if (ddp->looked != changes_latest()) {
        TRY(ddp_look(ddp, &look));
    }
    *has_same_out = look.has_same_params;
    return SHOAL_OK;
}

/* Collecting --------------------------------------------------------------------------------------------- */

static shoal_status make_lists(struct ddp *ddp)
{
    size_t n = ddp->n_params;
    ddp->buckets.items = mem_alloc_zeroed(n, sizeof ddp->buckets.items[0]);
    ddp->backward.n_ready = mem_alloc_zeroed(n, sizeof ddp->backward.n_ready[0]);
    ddp->backward.works = mem_alloc_zeroed(n, sizeof ddp->backward.works[0]);
    ddp->backward.fences = mem_alloc_zeroed(n, sizeof ddp->backward.fences[0]);
    if (!ddp->buckets.items || !ddp->backward.n_ready || !ddp->backward.works || !ddp->backward.fences) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        ddp->buckets.items[i] = (struct ddp_item){.dtype = ddp->params[i].tensor->dtype,
                                                  .bytes = tensor_bytes(ddp->params[i].tensor)};
    }
    return SHOAL_OK;
}

shoal_status ddp_collect(struct ddp_collector *collector)
{
    struct ddp *ddp = collector->ddp;
    uint32_t flags = SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS;
    size_t n_buffers;
    TRY(shoal_module_count(ddp->module, SHOAL_WALK_BUFFERS, &n_buffers));
    ddp->buffers.are_sent = n_buffers > 0 && !collector->options->keeps_buffers;
    flags |= collector->options->keeps_parameters ? 0U : SHOAL_WALK_BUFFERS;
    TRY(shoal_module_walk(ddp->module, flags, visit, collector));
    if (ddp->n_params == 0 && !collector->again) { /* later, all may be frozen for a while */
        return error_set(SHOAL_ERR_INVALID, "no parameter of module %s requires a gradient",
                         shoal_module_type(ddp->module));
    }
    struct ddp_look look;
    TRY(ddp_look(ddp, &look));
    ddp->places = look.places;
    ddp->buffers.places = look.buffers;
    return make_lists(ddp);
}
