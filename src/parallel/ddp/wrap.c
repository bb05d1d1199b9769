/* SPDX-License-Identifier: MIT */
/*
 * Wrapping a module: its parameters are collected, ranks compare what they have, a lane and a block are made, hooks are
 * put on the leaves, values are broadcast. Whatever fails on one rank, all go through the same collectives and hear of it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "comm/hash.h"
#include "comm/shared.h"
#include "op/operand.h"
#include "parallel/ddp/ddp.h"
#include "shoal/fully_shard.h"
#include "tensor/device.h"

#define DEFAULT_FIRST_BYTES ((size_t)1 << 20)
#define DEFAULT_BUCKET_BYTES ((size_t)25 << 20)

static const char ddp_key;    /* its address finds what hangs on a module that is wrapped, */
static const char inside_key; /* and this one marks those inside */

struct ddp *ddp_of(const shoal_module *module)
{
    return shoal_module_extra(module, &ddp_key);
}

bool ddp_is_inside(const shoal_module *module)
{
    return shoal_module_extra(module, &inside_key);
}

/* The end ------------------------------------------------------------------------------------------------ */

static void remove_hooks(struct ddp_param *param)
{
    shoal_hook_remove(param->on_gradient);
    shoal_hook_remove(param->on_accumulated);
    param->on_gradient = NULL;
    param->on_accumulated = NULL;
    param->leaf = NULL;
}

static void free_param(struct ddp_param *param)
{
    remove_hooks(param);
    shoal_tensor_unref(param->gradient);
    shoal_tensor_unref(param->tensor);
    mem_free(param->aside);
    mem_free(param->path);
}

static void free_ddp(struct ddp *ddp)
{
    ddp_leave_world(ddp);
    for (size_t i = 0; i < ddp->n_params; i++) {
        free_param(&ddp->params[i]);
    }
    for (size_t i = 0; i < ddp->n_frozen; i++) {
        shoal_tensor_unref(ddp->frozen[i].tensor);
        mem_free(ddp->frozen[i].path);
    }
    for (size_t i = 0; i < ddp->n_inner; i++) {
        (void)!shoal_module_set_extra(ddp->inner[i], &inside_key, NULL, NULL); /* removing does not fail */
        shoal_module_unref(ddp->inner[i]);
    }
    shoal_module_hook_remove(ddp->forward_hook);
    ddp_plan_free(&ddp->plan);
    mem_free(ddp->inner);
    mem_free(ddp->frozen);
    mem_free(ddp->params);
    mem_free(ddp->items);
    mem_free(ddp->n_ready);
    mem_free(ddp->works);
    mem_free(ddp->fences);
    mem_free(ddp->scratch);
    mem_free(ddp);
}

static void free_extra(void *value)
{
    free_ddp(value);
}

/* Collecting --------------------------------------------------------------------------------------------- */

/* What is broadcast, and what ranks compare of it. */
struct tensor_list {
    shoal_tensor **tensors; /* the tree's references */
    uint64_t *hashes;
    char **paths;
    size_t n_tensors;
    size_t capacity;
    size_t hashes_capacity;
    size_t paths_capacity;
};

struct collector {
    struct ddp *ddp;
    const shoal_ddp_options *options;
    struct tensor_list list;
};

static void free_list(struct tensor_list *list)
{
    for (size_t i = 0; i < list->n_tensors; i++) {
        mem_free(list->paths[i]);
    }
    mem_free(list->paths);
    mem_free(list->hashes);
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

static shoal_status list_tensor(struct tensor_list *list, const shoal_module_entry *entry, bool is_trained)
{
    size_t n = list->n_tensors + 1;
    TRY(mem_grow((void **)&list->tensors, &list->capacity, n, sizeof list->tensors[0]));
    TRY(mem_grow((void **)&list->hashes, &list->hashes_capacity, n, sizeof list->hashes[0]));
    TRY(mem_grow((void **)&list->paths, &list->paths_capacity, n, sizeof list->paths[0]));
    char *path = mem_copy_string(entry->path);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    list->tensors[list->n_tensors] = entry->tensor;
    list->hashes[list->n_tensors] = hash_entry(entry, is_trained);
    list->paths[list->n_tensors] = path;
    list->n_tensors = n;
    return SHOAL_OK;
}

static bool is_ignored(const shoal_ddp_options *options, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < options->n_ignored; i++) {
        if (options->ignored[i] == tensor) {
            return true;
        }
    }
    return false;
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
    TRY(mem_grow((void **)&ddp->params, &ddp->params_capacity, ddp->n_params + 1, sizeof ddp->params[0]));
    char *path = mem_copy_string(entry->path);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    ddp->params[ddp->n_params++] = (struct ddp_param){
        .ddp = ddp, .tensor = shoal_tensor_ref(entry->tensor), .path = path, .n_expected = 1};
    return SHOAL_OK;
}

static shoal_status collect_tensor(struct collector *collector, const shoal_module_entry *entry)
{
    bool is_parameter = entry->kind == SHOAL_WALK_PARAMETERS;
    bool is_trained = is_parameter && shoal_requires_grad(entry->tensor);
    if (is_parameter && is_ignored(collector->options, entry->tensor)) {
        return SHOAL_OK;
    }
    if (!device_rows[entry->tensor->storage->device].has_data) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s is on device %s, which has no data", entry->path,
                         device_rows[entry->tensor->storage->device].name);
    }
    if (is_trained) {
        TRY(add_param(collector->ddp, entry));
    } else if (is_parameter) {
        TRY(add_frozen(collector->ddp, entry));
    }
    return list_tensor(&collector->list, entry, is_trained);
}

/* Shards are not the same on all ranks: somebody else takes care of them, or nobody. */
static shoal_status check_shard(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct collector *collector = context;
    (void)next;
    return is_ignored(collector->options, entry->tensor)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE, "parameter %s of a module that is fully sharded is not ignored",
                           entry->path);
}

static shoal_status check_module(struct collector *collector, const shoal_module_entry *entry)
{
    const char *type = shoal_module_type(entry->module);
    bool is_root = entry->path[0] == '\0';
    if (ddp_is_inside(entry->module)) {
        return error_set(SHOAL_ERR_STATE, "module %s%s%s is inside of one that is wrapped already", type,
                         is_root ? "" : " at ", entry->path);
    }
    if (ddp_of(entry->module)) {
        return error_set(SHOAL_ERR_STATE, "module %s%s%s is wrapped already", type, is_root ? "" : " at ",
                         entry->path);
    }
    return shoal_is_fully_sharded(entry->module)
               ? shoal_module_walk(entry->module, SHOAL_WALK_PARAMETERS, check_shard, collector)
               : SHOAL_OK;
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct collector *collector = context;
    struct ddp *ddp = collector->ddp;
    (void)next;
    if (entry->kind != SHOAL_WALK_MODULES) {
        return collect_tensor(collector, entry);
    }
    TRY(check_module(collector, entry));
    if (entry->module == ddp->module) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&ddp->inner, &ddp->inner_capacity, ddp->n_inner + 1, sizeof ddp->inner[0]));
    ddp->inner[ddp->n_inner++] = shoal_module_ref(entry->module);
    return SHOAL_OK;
}

static shoal_status make_lists(struct ddp *ddp)
{
    size_t n = ddp->n_params;
    ddp->items = mem_alloc_zeroed(n, sizeof ddp->items[0]);
    ddp->n_ready = mem_alloc_zeroed(n, sizeof ddp->n_ready[0]);
    ddp->works = mem_alloc_zeroed(n, sizeof ddp->works[0]);
    ddp->fences = mem_alloc_zeroed(n, sizeof ddp->fences[0]);
    if (!ddp->items || !ddp->n_ready || !ddp->works || !ddp->fences) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        ddp->items[i] = (struct ddp_item){.dtype = ddp->params[i].tensor->dtype,
                                          .bytes = tensor_bytes(ddp->params[i].tensor)};
    }
    return SHOAL_OK;
}

static shoal_status collect(struct collector *collector)
{
    struct ddp *ddp = collector->ddp;
    uint32_t flags = SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS;
    size_t n_buffers;
    TRY(shoal_module_count(ddp->module, SHOAL_WALK_BUFFERS, &n_buffers));
    ddp->has_buffers = n_buffers > 0 && !collector->options->keeps_buffers;
    flags |= collector->options->keeps_parameters ? 0U : SHOAL_WALK_BUFFERS;
    TRY(shoal_module_walk(ddp->module, flags, visit, collector));
    if (ddp->n_params == 0) {
        return error_set(SHOAL_ERR_INVALID, "no parameter of module %s requires a gradient",
                         shoal_module_type(ddp->module));
    }
    return make_lists(ddp);
}

/* Comparing ---------------------------------------------------------------------------------------------- */

/* What every rank says. */
enum card_field {
    CARD_STATUS,
    CARD_NUMBER,
    CARD_GENERATION,
    CARD_TENSORS,
    CARD_FIRST_BYTES,
    CARD_BUCKET_BYTES,
    CARD_FLAGS,
    CARD_FIELDS
};

#define CARD_FLAG_WORDS "sums, finds_unused, keeps_parameters, keeps_buffers, or whether there are buffers"

static const char *const card_words[CARD_FIELDS] = {[CARD_TENSORS] = "number of tensors",
                                                    [CARD_FIRST_BYTES] = "first_bucket_bytes",
                                                    [CARD_BUCKET_BYTES] = "bucket_bytes",
                                                    [CARD_FLAGS] = CARD_FLAG_WORDS};

static void write_card(const struct collector *collector, shoal_status mine, int64_t *card)
{
    const struct ddp *ddp = collector->ddp;
    const shoal_ddp_options *options = collector->options;
    int number = 0;
    int generation = 0;
    if (shoal_group_rank(ddp->group) == 0) {
        ddp_propose_lane(ddp, &number, &generation);
    }
    card[CARD_STATUS] = mine;
    card[CARD_NUMBER] = number;
    card[CARD_GENERATION] = generation;
    card[CARD_TENSORS] = (int64_t)collector->list.n_tensors;
    card[CARD_FIRST_BYTES] = (int64_t)ddp->first_bytes;
    card[CARD_BUCKET_BYTES] = (int64_t)ddp->bucket_bytes;
    card[CARD_FLAGS] = options->sums | options->finds_unused << 1 | options->keeps_parameters << 2 |
                       options->keeps_buffers << 3 | ddp->has_buffers << 4;
}

static shoal_status compare_cards(const int64_t *cards, const int64_t *mine, int n_ranks)
{
    for (int r = 0; r < n_ranks; r++) {
        const int64_t *card = &cards[r * CARD_FIELDS];
        if (card[CARD_STATUS] != SHOAL_OK) {
            return error_set((shoal_status)card[CARD_STATUS], "rank %d could not do it: %s", r,
                             shoal_status_name((shoal_status)card[CARD_STATUS]));
        }
    }
    for (int r = 0; r < n_ranks; r++) {
        for (int k = CARD_TENSORS; k < CARD_FIELDS; k++) {
            if (cards[r * CARD_FIELDS + k] != mine[k]) {
                return error_set(SHOAL_ERR_INVALID,
                                 "ranks differ in the %s: %" PRId64 " here, %" PRId64 " on rank %d",
                                 card_words[k], mine[k], cards[r * CARD_FIELDS + k], r);
            }
        }
    }
    return SHOAL_OK;
}

/* Gathers `count` numbers of each rank; the caller frees them. */
static shoal_status gather(shoal_group *lane, const void *mine, size_t count, void *all_out)
{
    void *all = mem_alloc_zeroed((size_t)shoal_group_n_ranks(lane), count * sizeof(uint64_t));
    if (!all) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = shoal_group_all_gather(lane, mine, all, count, SHOAL_U64);
    if (status != SHOAL_OK) {
        mem_free(all);
        return status;
    }
    *(void **)all_out = all;
    return SHOAL_OK;
}

static shoal_status compare_hashes(shoal_group *lane, const struct tensor_list *list)
{
    uint64_t *all;
    shoal_status status = SHOAL_OK;
    TRY(gather(lane, list->hashes, list->n_tensors, &all));
    for (size_t i = 0; i < list->n_tensors && status == SHOAL_OK; i++) {
        for (int r = 0; r < shoal_group_n_ranks(lane) && status == SHOAL_OK; r++) {
            if (all[(size_t)r * list->n_tensors + i] != list->hashes[i]) {
                status = error_set(
                    SHOAL_ERR_INVALID,
                    "%s is another one on rank %d: names, order, dtypes, shapes and requires_grad must be "
                    "the same on all ranks",
                    list->paths[i], r);
            }
        }
    }
    mem_free(all);
    return status;
}

/* Collective, whatever this rank has to say. */
static shoal_status agree(struct collector *collector, shoal_group *lane, shoal_status mine)
{
    struct ddp *ddp = collector->ddp;
    char text[ERROR_TEXT_BYTES];
    int64_t card[CARD_FIELDS];
    int64_t *cards;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    write_card(collector, mine, card);
    shoal_status status = gather(lane, card, CARD_FIELDS, &cards);
    if (mine != SHOAL_OK || status != SHOAL_OK) {
        if (status == SHOAL_OK) {
            mem_free(cards);
        }
        return mine != SHOAL_OK ? error_set(mine, "%s", text) : status;
    }
    bool has_peers = shared_has_peers(lane);
    const int64_t *first = has_peers ? cards : card;
    ddp->number = (int)first[CARD_NUMBER];
    ddp->generation = (int)first[CARD_GENERATION];
    status = has_peers ? compare_cards(cards, card, shoal_group_n_ranks(lane)) : SHOAL_OK;
    mem_free(cards);
    TRY(status);
    return has_peers ? compare_hashes(lane, &collector->list) : SHOAL_OK;
}

/* Collective: this rank's status if it is a failure, otherwise the first of the others'. */
static shoal_status confirm(shoal_group *lane, shoal_status mine)
{
    char text[ERROR_TEXT_BYTES];
    int64_t number = mine;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status status = shoal_group_all_reduce(lane, &number, &number, 1, SHOAL_I64, SHOAL_MIN);
    if (mine != SHOAL_OK) {
        return error_set(mine, "%s", text);
    }
    TRY(status);
    return number == SHOAL_OK ? SHOAL_OK
                              : error_set((shoal_status)number, "another rank could not do it: %s",
                                          shoal_status_name((shoal_status)number));
}

/* Broadcasting ------------------------------------------------------------------------------------------- */

/* Contiguous memory for the values of a tensor: its own, or a copy. */
static shoal_status find_values(shoal_tensor *tensor, shoal_part *part, shoal_tensor **copy_out)
{
    TRY(tensor_wait_writable(tensor, /*overwrites=*/false));
    *copy_out = NULL;
    if (!tensor->is_contiguous) {
        TRY(tensor_create_empty(tensor->storage->device, tensor->dtype, tensor->layout.n_dims,
                                tensor->layout.shape, copy_out));
        TRY(op_copy_into(*copy_out, tensor));
    }
    *part = (shoal_part){.count = tensor_bytes(tensor)};
    return tensor_address(*copy_out ? *copy_out : tensor, &part->recv);
}

static shoal_status put_values(struct tensor_list *list, shoal_tensor *const *copies)
{
    for (size_t i = 0; i < list->n_tensors; i++) {
        if (copies[i]) {
            TRY(op_copy_into(list->tensors[i], copies[i]));
        }
        storage_bump_version(list->tensors[i]->storage);
    }
    return SHOAL_OK;
}

/* As bytes: one synchronisation for all dtypes. */
static shoal_status send_values(shoal_group *lane, struct tensor_list *list, shoal_part *parts,
                                shoal_tensor **copies)
{
    shoal_status mine = SHOAL_OK;
    for (size_t i = 0; i < list->n_tensors && mine == SHOAL_OK; i++) {
        mine = find_values(list->tensors[i], &parts[i], &copies[i]);
    }
    TRY(confirm(lane, mine));
    TRY(shoal_group_broadcast_list(lane, parts, list->n_tensors, SHOAL_U8, 0));
    return shoal_group_rank(lane) == 0 ? SHOAL_OK : put_values(list, copies);
}

static shoal_status broadcast(shoal_group *lane, struct tensor_list *list)
{
    shoal_part *parts = mem_alloc_zeroed(list->n_tensors, sizeof *parts);
    shoal_tensor **copies = mem_alloc_zeroed(list->n_tensors, sizeof(shoal_tensor *));
    shoal_status status =
        parts && copies ? send_values(lane, list, parts, copies) : confirm(lane, SHOAL_ERR_NO_MEMORY);
    for (size_t i = 0; copies && i < list->n_tensors; i++) {
        shoal_tensor_unref(copies[i]);
    }
    mem_free(copies);
    mem_free(parts);
    return status;
}

/* Hooks -------------------------------------------------------------------------------------------------- */

static shoal_status add_hooks(struct ddp_param *param)
{
    TRY(shoal_on_gradient(param->tensor, ddp_before_adding, param, &param->on_gradient));
    TRY(shoal_on_accumulated(param->tensor, ddp_after_adding, param, &param->on_accumulated));
    param->leaf = leaf_of(param->tensor);
    param->n_failures = param->leaf->n_failures;
    return SHOAL_OK;
}

/* A tensor that was frozen and thawed has lost its hooks. */
static shoal_status watch_param(struct ddp_param *param)
{
    const struct leaf *leaf = leaf_of(param->tensor);
    if (leaf && leaf == param->leaf && leaf->accumulated_hooks.first) {
        return SHOAL_OK;
    }
    remove_hooks(param);
    return leaf ? add_hooks(param) : SHOAL_OK;
}

/* Others that wait in a backward which failed here hear of it now, or they would never come to this forward. */
static void give_up_failed(struct ddp *ddp)
{
    ddp_notice_failure(ddp);
    if (ddp->world && ddp->is_broken) {
        ddp_close(ddp);
    }
}

/* Before the module is called: parameters may be frozen and thawed between steps. */
static shoal_status before_forward(void *context, const shoal_forward_call *call)
{
    struct ddp *ddp = context;
    if (call->is_recompute) {
        return SHOAL_OK;
    }
    if (!shoal_in_backward()) {
        give_up_failed(ddp);
    }
    ddp->wanted_sync = ddp->wants_sync && shoal_scope_has_grad();
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(watch_param(&ddp->params[i]));
    }
    for (size_t i = 0; i < ddp->n_frozen; i++) {
        if (shoal_requires_grad(ddp->frozen[i].tensor)) {
            return error_set(SHOAL_ERR_STATE,
                             "parameter %s requires a gradient now, but did not when the module was wrapped: "
                             "the ranks' would part",
                             ddp->frozen[i].path);
        }
    }
    if (ddp->world && ddp->has_buffers && ddp->wanted_sync) {
        return ddp_send_buffers(ddp);
    }
    return SHOAL_OK;
}

static shoal_status hang_up(struct ddp *ddp)
{
    const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                     .pre_forward = before_forward,
                                                     .pre_place = SHOAL_HOOK_FIRST,
                                                     .context = ddp};
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(add_hooks(&ddp->params[i]));
    }
    for (size_t i = 0; i < ddp->n_inner; i++) {
        TRY(shoal_module_set_extra(ddp->inner[i], &inside_key, ddp, NULL));
    }
    TRY(shoal_module_add_hook(ddp->module, &definition, &ddp->forward_hook));
    return shoal_module_set_extra(ddp->module, &ddp_key, ddp, free_extra);
}

/* Wrapping ----------------------------------------------------------------------------------------------- */

/* Ranks are of one mind from here on. */
static shoal_status wrap_together(struct collector *collector, shoal_group *lane)
{
    struct ddp *ddp = collector->ddp;
    shoal_status mine = ddp_open(ddp);
    if (mine == SHOAL_OK && ddp->has_buffers) {
        mine = ddp_open_buffer_lane(ddp);
    }
    TRY(confirm(lane, mine == SHOAL_OK ? hang_up(ddp) : mine));
    return collector->options->keeps_parameters ? SHOAL_OK : broadcast(lane, &collector->list);
}

static shoal_status wrap(struct collector *collector)
{
    struct ddp *ddp = collector->ddp;
    shoal_group *lane;
    TRY(ddp_open_lane(ddp->group, "", &lane));
    TRY(agree(collector, lane, collect(collector)));
    return wrap_together(collector, lane);
}

static shoal_status check_arguments(const shoal_module *module, const shoal_ddp_options *options)
{
    if (!module || !options->group) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", module ? "group" : "module");
    }
    if (!options->ignored && options->n_ignored > 0) {
        return error_set(SHOAL_ERR_INVALID, "ignored is NULL with %zu of them", options->n_ignored);
    }
    return SHOAL_OK;
}

static shoal_status create(shoal_module *module, const shoal_ddp_options *options)
{
    struct ddp *ddp = mem_alloc_zeroed(1, sizeof *ddp);
    if (!ddp) {
        return SHOAL_ERR_NO_MEMORY;
    }
    ddp->module = module;
    ddp->group = options->group;
    ddp->reduce = options->sums ? SHOAL_SUM : SHOAL_AVG;
    ddp->finds_unused = options->finds_unused;
    ddp->first_bytes = options->first_bucket_bytes > 0 ? options->first_bucket_bytes : DEFAULT_FIRST_BYTES;
    ddp->bucket_bytes = options->bucket_bytes > 0 ? options->bucket_bytes : DEFAULT_BUCKET_BYTES;
    ddp->wants_sync = true;
    struct collector collector = {.ddp = ddp, .options = options};
    shoal_status status = wrap(&collector);
    free_list(&collector.list);
    if (status != SHOAL_OK) {
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        if (ddp_of(module) == ddp) {
            (void)!shoal_module_set_extra(module, &ddp_key, NULL, NULL); /* frees it */
        } else {
            free_ddp(ddp);
        }
        return error_set(status, "%s", text);
    }
    return SHOAL_OK;
}

shoal_status shoal_ddp(shoal_module *module, const shoal_ddp_options *given)
{
    shoal_ddp_options options = {.struct_size = sizeof options};
    error_clear();
    shoal_status status =
        struct_size_read("shoal_ddp_options", given, sizeof(size_t), &options, sizeof options);
    if (status == SHOAL_OK) {
        status = check_arguments(module, &options);
    }
    if (status == SHOAL_OK) {
        status = create(module, &options);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp");
}
