/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/block.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "device/device.h"
#include "kernel/moves.h"
#include "parallel/ddp/confirm.h"
#include "parallel/ddp/order.h"
#include "shoal/work.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

#define WORD_BYTES 40

/* Lanes -------------------------------------------------------------------------------------------------- */

shoal_status ddp_open_lane(shoal_group *group, const char *word, shoal_group **lane_out)
{
    return group_create_lane(group, 0, shoal_group_n_ranks(group), word, lane_out);
}

static shoal_status open_numbered(shoal_group *group, int number, int generation, shoal_group **lane_out)
{
    char word[WORD_BYTES];
    (void)snprintf(word, sizeof word, "ddp %d.%d", number, generation);
    return ddp_open_lane(group, word, lane_out);
}

static shoal_status open_for_buffers(shoal_group *group, int number, int generation, shoal_group **lane_out)
{
    char word[WORD_BYTES];
    (void)snprintf(word, sizeof word, "ddp %d.%d buffers", number, generation);
    return ddp_open_lane(group, word, lane_out);
}

static void give_up_healthy(shoal_group *lane)
{
    char reason[96];
    if (lane && group_failure(lane) == SHOAL_OK) {
        (void)snprintf(reason, sizeof reason,
                       "aborted by rank %d: another collective of the module failed there",
                       shoal_world_rank(shoal_group_world(lane)));
        group_poison(lane, SHOAL_ERR_CANCELLED, reason);
    }
    error_clear();
}

/* If one of the two lanes has failed, the generation is lost: closes both. Returns false if neither has failed. */
static bool close_failed(struct ddp_order *order, int number, int generation, shoal_group *lane,
                         shoal_group *buffer_lane)
{
    bool has_failed = ddp_order_close_failed(order, lane);
    if (has_failed) {
        give_up_healthy(buffer_lane);
    }
    if (ddp_order_close_failed(order, buffer_lane) && !has_failed) {
        give_up_healthy(lane);
        has_failed = ddp_order_close_failed(order, lane);
    }
    if (has_failed) {
        ddp_order_lose_lane(order, number, generation);
    }
    return has_failed;
}

/* Whether neither of the two lanes has failed. Also true if the group itself has: then no other lane would be
   better. */
static bool is_usable(const struct ddp *ddp, int number, int generation)
{
    shoal_group *lane = NULL;
    shoal_group *buffer_lane = NULL;
    if (shoal_group_error(ddp->group) != SHOAL_OK ||
        open_numbered(ddp->group, number, generation, &lane) != SHOAL_OK ||
        (ddp->buffers.are_sent &&
         open_for_buffers(ddp->group, number, generation, &buffer_lane) != SHOAL_OK)) {
        return true;
    }
    return !close_failed(ddp->order.shared, number, generation, lane, buffer_lane);
}

static bool is_number_taken(const struct ddp *ddp, int number)
{
    struct owned_list *list = world_owned(shoal_group_world(ddp->group));
    bool is_taken = false;
    (void)pthread_mutex_lock(&list->lock);
    for (const struct owned *owned = list->first; owned && !is_taken; owned = owned->next) {
        const struct ddp *other = (const struct ddp *)owned;
        is_taken =
            owned->destroy == ddp_world_ends && other->group == ddp->group && other->lane.number == number;
    }
    (void)pthread_mutex_unlock(&list->lock);
    return is_taken;
}

void ddp_propose_lane(const struct ddp *ddp, int *number_out, int *generation_out)
{
    int number = 0;
    while (is_number_taken(ddp, number)) {
        number++;
    }
    int generation = ddp_order_first_generation(ddp->order.shared, number);
    while (!is_usable(ddp, number, generation)) {
        generation++;
    }
    *number_out = number;
    *generation_out = generation;
}

/* The block ---------------------------------------------------------------------------------------------- */

static struct address place_of(const struct ddp *ddp, const struct ddp_plan *plan, size_t index)
{
    return address_add(ddp->buckets.memory, (ptrdiff_t)plan->places[index].offset);
}

/* A guess: a backward pass reaches parameters in the reverse order of the tree. */
static shoal_status make_first_plan(const struct ddp *ddp, struct ddp_plan *plan_out)
{
    size_t *order = mem_alloc_zeroed(ddp->n_params, sizeof *order);
    if (!order) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        order[i] = ddp->n_params - 1 - i;
    }
    shoal_status status = ddp_plan_create(ddp->buckets.items, order, ddp->n_params, ddp->config.first_bytes,
                                          ddp->config.bucket_bytes, plan_out);
    mem_free(order);
    return status;
}

/* Makes the tensor of the gradient. The tensor owns the storage from now on. */
static shoal_status make_gradient(struct ddp_param *param, struct storage *storage)
{
    struct layout layout = {.n_dims = param->tensor->layout.n_dims};
    memcpy(layout.shape, param->tensor->layout.shape, sizeof layout.shape);
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    return tensor_create(storage, param->tensor->dtype, &layout, &param->gradient);
}

static void copy_bytes(shoal_device device, struct address to, struct address from, size_t bytes)
{
    struct moves moves;
    moves_begin(&moves, device);
    moves_copy(&moves, SHOAL_U8, to, from, bytes);
    moves_end(&moves);
}

/* Moves a gradient to its place in the block; the first time, makes a tensor over the place. */
static shoal_status put_gradient(struct ddp_param *param, struct address place)
{
    struct storage *storage;
    struct address data;
    if (!param->gradient) {
        TRY(storage_create_borrowed(param->ddp->device, tensor_bytes(param->tensor), place, NULL, NULL,
                                    &storage));
        return make_gradient(param, storage);
    }
    TRY(tensor_address(param->gradient, &data));
    if (address_number(data) == address_number(place)) {
        return SHOAL_OK;
    }
    (void)!tensor_wait_readable(param->gradient); /* the values are copied even if a write has failed */
    error_clear();
    copy_bytes(param->ddp->device, place, data, tensor_bytes(param->gradient));
    return storage_rebind(param->gradient->storage, place, NULL, NULL);
}

static shoal_status put_gradients(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(put_gradient(&ddp->params[i], place_of(ddp, &ddp->buckets.plan, i)));
    }
    return SHOAL_OK;
}

/* Gives a parameter that has no gradient of ours yet memory outside of the block. */
static shoal_status make_apart(struct ddp_param *param)
{
    struct storage *storage;
    struct address data;
    TRY(storage_create(param->ddp->device, tensor_bytes(param->tensor), &storage));
    if (storage_base(storage, &data) == SHOAL_OK) {
        copy_bytes(storage->device, data, ADDRESS_NONE, storage->bytes);
    }
    return make_gradient(param, storage);
}

/* Puts the struct at the front of the world's list, so that the world ends it before the memory that it uses. */
static void join_world(struct ddp *ddp)
{
    shoal_world *world = shoal_group_world(ddp->group);
    if (ddp->world) {
        owned_list_remove(world_owned(world), &ddp->owned);
    } else {
        group_hold(ddp->group);
    }
    ddp->owned.destroy = ddp_world_ends;
    ddp->world = world;
    owned_list_add(world_owned(world), &ddp->owned);
}

static shoal_status open_lanes(struct ddp *ddp)
{
    const struct ddp_lane *lane = &ddp->lane;
    shoal_group *buffer_lane = NULL;
    if (ddp->buffers.are_sent) {
        TRY(open_for_buffers(ddp->group, lane->number, lane->generation, &buffer_lane));
    }
    TRY(open_numbered(ddp->group, lane->number, lane->generation, &ddp->lane.group));
    ddp->buffers.lane = buffer_lane;
    return SHOAL_OK;
}

shoal_status ddp_open(struct ddp *ddp)
{
    struct ddp_plan plan;
    TRY(make_first_plan(ddp, &plan));
    shoal_status status = open_lanes(ddp);
    if (status != SHOAL_OK) {
        ddp_plan_free(&plan);
        return status;
    }
    ddp_plan_free(&ddp->buckets.plan);
    ddp->buckets.plan = plan;
    ddp->buckets.is_learning = true;
    ddp->lane.is_given_up = false;
    join_world(ddp);
    return SHOAL_OK;
}

shoal_status ddp_open_lists(struct ddp *fresh)
{
    TRY(open_lanes(fresh));
    return make_first_plan(fresh, &fresh->buckets.plan);
}

/* Filled with zeros. */
static shoal_status open_block(struct ddp *ddp)
{
    struct ddp_buckets *buckets = &ddp->buckets;
    if (device_is_host(ddp->device)) {
        TRY(symmetric_open_if_possible(ddp->lane.group, buckets->block_number, buckets->plan.bytes,
                                       &buckets->block));
        buckets->memory = address_of(shoal_symmetric_data(buckets->block));
    } else {
        TRY(device_memory_allocate(ddp->device, buckets->plan.bytes, &buckets->memory));
        copy_bytes(ddp->device, buckets->memory, ADDRESS_NONE, buckets->plan.bytes);
    }
    join_world(ddp);
    return SHOAL_OK;
}

static void discard_block(const struct ddp *ddp, shoal_group *lane, const struct ddp_buckets *buckets)
{
    if (buckets->block) {
        symmetric_discard(lane, buckets->block);
    } else {
        device_memory_free(ddp->device, buckets->memory);
    }
}

/* Makes a block with all gradients in it. After a failure the next call goes on where this one stopped. */
static shoal_status need_block(struct ddp *ddp)
{
    if (!ddp_has_block(&ddp->buckets)) {
        TRY(open_block(ddp));
    }
    return put_gradients(ddp);
}

shoal_status ddp_need_places(struct ddp *ddp)
{
    /* A block is not opened for a generation that is lost. */
    if (ddp->buckets.is_shared || (!ddp->lane.is_broken && need_block(ddp) == SHOAL_OK)) {
        return SHOAL_OK;
    }
    error_clear();
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (!ddp->params[i].gradient) {
            TRY(make_apart(&ddp->params[i]));
        }
    }
    return SHOAL_OK;
}

shoal_status ddp_share_block(struct ddp *ddp)
{
    struct ddp_buckets *buckets = &ddp->buckets;
    if (buckets->is_shared) {
        return SHOAL_OK;
    }
    shoal_status mine = need_block(ddp);
    TRY(device_is_host(ddp->device) ? symmetric_share(ddp->lane.group, buckets->block_number,
                                                      buckets->plan.bytes, buckets->block, mine)
                                    : ddp_confirm(ddp->lane.group, mine));
    buckets->is_shared = true;
    return SHOAL_OK;
}

/* Makes a new block after a failure, because a peer may still be writing to the old one. */
static shoal_status replace_block(struct ddp *ddp, shoal_group *old_lane)
{
    const struct ddp_buckets old = ddp->buckets;
    if (!ddp_has_block(&old)) {
        return SHOAL_OK;
    }
    TRY(open_block(ddp));
    ddp->buckets.is_shared = false;
    TRY(put_gradients(ddp)); /* if this fails, some are still in the old block, which the world frees */
    discard_block(ddp, old_lane, &old);
    return SHOAL_OK;
}

/* Fills the gaps between items with zeros: they are sent with the items, and should be numbers. */
shoal_status ddp_move(struct ddp *ddp, struct ddp_plan *plan)
{
    size_t bytes = ddp->buckets.plan.bytes;
    struct address copy;
    struct moves moves;
    TRY(device_memory_allocate(ddp->device, bytes, &copy));
    copy_bytes(ddp->device, copy, ddp->buckets.memory, bytes);
    copy_bytes(ddp->device, ddp->buckets.memory, ADDRESS_NONE, bytes);
    struct ddp_plan old = ddp->buckets.plan;
    ddp->buckets.plan = *plan;
    *plan = (struct ddp_plan){.n_items = 0};
    shoal_status status = SHOAL_OK;
    moves_begin(&moves, ddp->device);
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct address place = place_of(ddp, &ddp->buckets.plan, i);
        moves_copy(&moves, SHOAL_U8, place, address_add(copy, (ptrdiff_t)old.places[i].offset),
                   ddp->buckets.items[i].bytes);
        if (status == SHOAL_OK) {
            status = storage_rebind(ddp->params[i].gradient->storage, place, NULL, NULL);
        }
    }
    moves_end(&moves);
    ddp_plan_free(&old);
    device_memory_free(ddp->device, copy);
    return status;
}

/* The end ------------------------------------------------------------------------------------------------ */

static bool is_anything_in_flight(const struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->buckets.plan.n_buckets; i++) {
        if (ddp->backward.works[i]) {
            return true;
        }
    }
    return false;
}

/* Makes the lanes fail on all ranks, with the first reason that this rank knows. */
static void give_up_lanes(struct ddp *ddp)
{
    char reason[ERROR_TEXT_BYTES];
    shoal_status status = group_failure(ddp->lane.group);
    status = status == SHOAL_OK ? ddp_order_failure(ddp->order.shared, ddp->order.generation) : status;
    if (status == SHOAL_OK) {
        status = error_set(SHOAL_ERR_CANCELLED,
                           "aborted by rank %d: rank %d abandoned a backward pass while gradients of the "
                           "module were being reduced",
                           shoal_world_rank(shoal_group_world(ddp->group)), shoal_group_rank(ddp->group));
    }
    (void)snprintf(reason, sizeof reason, "%s", shoal_error_text());
    ddp_order_poison(ddp->order.shared, ddp->order.generation, status, reason);
    group_poison(ddp->lane.group, status, reason);
    ddp->lane.is_given_up = true;
    error_clear();
}

void ddp_close(struct ddp *ddp)
{
    bool is_awaited = ddp->backward.is_running && ddp->backward.syncs; /* others may wait in that pass */
    /* Only once, because the module may have been called since, and may belong to another generation of the order. */
    if (ddp->lane.group && !ddp->lane.is_given_up &&
        (ddp->lane.is_broken || is_awaited || is_anything_in_flight(ddp))) {
        give_up_lanes(ddp);
    }
    for (size_t i = 0; i < ddp->buckets.plan.n_buckets; i++) {
        if (ddp->backward.works[i]) {
            (void)!shoal_work_wait(ddp->backward.works[i], -1.0); /* it has failed, or is about to */
            shoal_work_free(ddp->backward.works[i]);
            ddp->backward.works[i] = NULL;
        }
    }
}

shoal_status ddp_open_again(struct ddp *ddp)
{
    shoal_group *old = ddp->lane.group;
    shoal_group *old_buffer_lane = ddp->buffers.lane;
    ddp_close(ddp);
    ddp->lane.generation++;
    shoal_status status = ddp_open(ddp);
    if (ddp->lane.group == old) {
        ddp->lane.generation--; /* there was no memory for a new lane, and no rank was told of one */
    }
    TRY(status);
    TRY(replace_block(ddp, old));
    (void)close_failed(ddp->order.shared, ddp->lane.number, ddp->lane.generation - 1, old, old_buffer_lane);
    ddp->lane.is_broken = false;
    return SHOAL_OK;
}

/* Moves a gradient out of the block. Returns false if something still uses the block. */
static bool leave(struct ddp_param *param)
{
    struct storage *storage = param->gradient->storage;
    shoal_device device = storage->device;
    struct address place;
    struct address copy;
    if (storage_base(storage, &place) != SHOAL_OK) {
        return true;
    }
    if (device_memory_allocate(device, storage->bytes, &copy) == SHOAL_OK) {
        copy_bytes(device, copy, place, storage->bytes);
        if (storage_rebind(storage, copy, storage_free_memory, (void *)(uintptr_t)device) == SHOAL_OK) {
            return true;
        }
        device_memory_free(device, copy);
    }
    return storage_release(storage) == SHOAL_OK;
}

void ddp_leave_block(struct ddp *ddp)
{
    bool is_free = true;
    if (!ddp_has_block(&ddp->buckets)) {
        return; /* gradients have memory of their own */
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (ddp->params[i].gradient) {
            is_free = leave(&ddp->params[i]) && is_free;
        }
    }
    if (is_free) {
        discard_block(ddp, ddp->lane.group, &ddp->buckets); /* otherwise the world frees it, or nobody */
    }
    ddp->buckets.block = NULL;
    ddp->buckets.memory = ADDRESS_NONE;
    ddp->buckets.is_shared = false;
}

void ddp_leave_world(struct ddp *ddp)
{
    if (ddp->world) {
        ddp_close(ddp);
        ddp_leave_block(ddp);
        (void)close_failed(ddp->order.shared, ddp->lane.number, ddp->lane.generation, ddp->lane.group,
                           ddp->buffers.lane);
        owned_list_remove(world_owned(ddp->world), &ddp->owned);
        group_let_go(ddp->group);
        ddp->world = NULL;
    }
}

/* Groups are closed by now, so nothing is in flight; symmetric memory still exists. The struct is off the world's
   list. */
void ddp_world_ends(struct owned *owned)
{
    struct ddp *ddp = (struct ddp *)owned;
    ddp->lane.group = NULL;
    ddp->buffers.lane = NULL;
    ddp->group = NULL;
    ddp->order.shared = NULL;
    ddp_close(ddp);
    ddp_leave_block(ddp);
    ddp->world = NULL;
}
