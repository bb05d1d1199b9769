/* SPDX-License-Identifier: MIT */
/*
 * The lane that buckets go over, and the block of symmetric memory that they are ranges of.
 *
 * A backward that fails on one rank may leave collectives that others never answer. Nothing can be done with such a lane:
 * it is aborted, so that everybody hears of it, and all go on with the next generation: a lane of another name and another
 * block, because a peer may still be writing to the old one. Lanes die on all ranks, so all count generations alike.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/group.h"
#include "comm/hash.h"
#include "comm/world.h"
#include "kernel/kernel.h"
#include "parallel/ddp/ddp.h"
#include "shoal/work.h"

#define TAG_BYTES 64
#define WORD_BYTES 32
/* Longer tags of groups are hashed: there must be room for a word. */
#define MAX_TAG 32

/* Lanes -------------------------------------------------------------------------------------------------- */

shoal_status ddp_open_lane(shoal_group *group, const char *word, shoal_group **lane_out)
{
    char tag[TAG_BYTES];
    const char *given = shoal_group_tag(group);
    size_t length = strlen(given);
    if (length <= MAX_TAG) {
        (void)snprintf(tag, sizeof tag, "%s/ddp%s", given, word);
    } else {
        (void)snprintf(tag, sizeof tag, "%016" PRIx64 "/ddp%s", hash_bytes(0, given, length), word);
    }
    TRY(shoal_group_create(group->world, group->ranks, group->peers.n_ranks, tag, lane_out));
    return shoal_group_set_timeout(*lane_out, shoal_group_timeout(group));
}

static shoal_status open_numbered(shoal_group *group, int number, int generation, shoal_group **lane_out)
{
    char word[WORD_BYTES];
    (void)snprintf(word, sizeof word, " %d.%d", number, generation);
    return ddp_open_lane(group, word, lane_out);
}

static shoal_status open_for_buffers(shoal_group *group, int number, int generation, shoal_group **lane_out)
{
    char word[WORD_BYTES];
    (void)snprintf(word, sizeof word, " %d.%d b", number, generation);
    return ddp_open_lane(group, word, lane_out);
}

shoal_status ddp_open_buffer_lane(struct ddp *ddp)
{
    return open_for_buffers(ddp->group, ddp->number, ddp->generation, &ddp->buffer_lane);
}

/* Neither of the two lanes has failed. */
static bool is_usable(const struct ddp *ddp, int number, int generation)
{
    shoal_group *lane;
    if (open_numbered(ddp->group, number, generation, &lane) == SHOAL_OK &&
        shoal_group_error(lane) != SHOAL_OK) {
        return false;
    }
    return !ddp->has_buffers || open_for_buffers(ddp->group, number, generation, &lane) != SHOAL_OK ||
           shoal_group_error(lane) == SHOAL_OK;
}

static bool is_number_taken(const struct ddp *ddp, int number)
{
    struct owned_list *list = &ddp->group->world->owned;
    bool is_taken = false;
    (void)pthread_mutex_lock(&list->lock);
    for (const struct owned *owned = list->first; owned && !is_taken; owned = owned->next) {
        const struct ddp *other = (const struct ddp *)owned;
        is_taken = owned->destroy == ddp_world_ends && other->group == ddp->group && other->number == number;
    }
    (void)pthread_mutex_unlock(&list->lock);
    return is_taken;
}

void ddp_propose_lane(const struct ddp *ddp, int *number_out, int *generation_out)
{
    int number = 0;
    int generation = 0;
    while (is_number_taken(ddp, number)) {
        number++;
    }
    while (!is_usable(ddp, number, generation)) {
        generation++;
    }
    *number_out = number;
    *generation_out = generation;
}

/* The block ---------------------------------------------------------------------------------------------- */

static void *place_of(const struct ddp *ddp, const struct ddp_plan *plan, size_t index)
{
    return (char *)shoal_symmetric_data(ddp->block) + plan->places[index].offset;
}

/* Parameters in the order of the tree; backwards come to them the other way round. */
static shoal_status make_first_plan(const struct ddp *ddp, struct ddp_plan *plan_out)
{
    size_t *order = mem_alloc_zeroed(ddp->n_params, sizeof *order);
    if (!order) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        order[i] = ddp->n_params - 1 - i;
    }
    shoal_status status =
        ddp_plan_create(ddp->items, order, ddp->n_params, ddp->first_bytes, ddp->bucket_bytes, plan_out);
    mem_free(order);
    return status;
}

/* To the block; at first there is nothing but a tensor to make. */
static shoal_status put_gradient(struct ddp_param *param, void *place)
{
    struct storage *storage;
    void *data;
    if (param->gradient) {
        TRY(tensor_address(param->gradient, &data));
        kernel_copy(place, data, tensor_bytes(param->gradient));
        return storage_rebind(param->gradient->storage, place, NULL, NULL);
    }
    struct layout layout = {.n_dims = param->tensor->layout.n_dims};
    memcpy(layout.shape, param->tensor->layout.shape, sizeof layout.shape);
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    TRY(storage_create_borrowed(tensor_bytes(param->tensor), place, NULL, NULL, &storage));
    return tensor_create(storage, param->tensor->dtype, &layout, &param->gradient);
}

static shoal_status put_gradients(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(put_gradient(&ddp->params[i], place_of(ddp, &ddp->plan, i)));
    }
    return SHOAL_OK;
}

/* In front of the memory it uses: the world ends it first. */
static void join_world(struct ddp *ddp)
{
    shoal_world *world = ddp->group->world;
    if (ddp->world) {
        owned_list_remove(&world->owned, &ddp->owned);
    }
    ddp->owned.destroy = ddp_world_ends;
    ddp->world = world;
    owned_list_add(&world->owned, &ddp->owned);
}

shoal_status ddp_open(struct ddp *ddp)
{
    struct ddp_plan plan;
    shoal_symmetric *old = ddp->block;
    TRY(make_first_plan(ddp, &plan));
    shoal_status status = open_numbered(ddp->group, ddp->number, ddp->generation, &ddp->lane);
    if (status != SHOAL_OK) {
        ddp_plan_free(&plan);
        return status;
    }
    ddp_plan_free(&ddp->plan);
    ddp->plan = plan;
    ddp->is_learning = true;
    TRY(shoal_symmetric_create(ddp->lane, ddp->plan.bytes, &ddp->block));
    join_world(ddp);
    status = put_gradients(ddp);
    if (status == SHOAL_OK) {
        shoal_symmetric_free(old);
    } /* otherwise some gradients are still there: the world frees it */
    return status;
}

/* Zeros stay between items: what travels with them is nobody's, but should be a number. */
shoal_status ddp_move(struct ddp *ddp, struct ddp_plan *plan)
{
    size_t bytes = ddp->plan.bytes;
    char *block = shoal_symmetric_data(ddp->block);
    char *copy = mem_alloc_aligned(bytes > 0 ? bytes : 1, DDP_ALIGNMENT);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    kernel_copy(copy, block, bytes);
    memset(block, 0, bytes);
    struct ddp_plan old = ddp->plan;
    ddp->plan = *plan;
    *plan = (struct ddp_plan){.n_items = 0};
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < ddp->n_params; i++) {
        void *place = place_of(ddp, &ddp->plan, i);
        kernel_copy(place, copy + old.places[i].offset, ddp->items[i].bytes);
        if (status == SHOAL_OK) {
            status = storage_rebind(ddp->params[i].gradient->storage, place, NULL, NULL);
        }
    }
    ddp_plan_free(&old);
    mem_free(copy);
    return status;
}

/* The end ------------------------------------------------------------------------------------------------ */

static bool is_anything_in_flight(const struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->plan.n_buckets; i++) {
        if (ddp->works[i]) {
            return true;
        }
    }
    return false;
}

void ddp_close(struct ddp *ddp)
{
    char reason[128];
    bool is_awaited = ddp->is_running && ddp->syncs; /* others may be in that backward still */
    if (ddp->lane && (ddp->is_broken || is_awaited || is_anything_in_flight(ddp))) {
        (void)snprintf(reason, sizeof reason,
                       "rank %d gave up a backward of a module whose gradients were on their way",
                       shoal_group_rank(ddp->group));
        (void)shoal_group_abort(ddp->lane, reason);
    }
    for (size_t i = 0; i < ddp->plan.n_buckets; i++) {
        if (ddp->works[i]) {
            (void)!shoal_work_wait(ddp->works[i], -1.0); /* it has failed, or is about to */
            shoal_work_free(ddp->works[i]);
            ddp->works[i] = NULL;
        }
    }
}

static void free_memory(void *context, void *data)
{
    (void)context;
    mem_free(data);
}

/* False: somebody still looks at the block. */
static bool leave(struct ddp_param *param)
{
    struct storage *storage = param->gradient->storage;
    void *place;
    if (storage_base(storage, &place) != SHOAL_OK) {
        return true;
    }
    size_t bytes = storage->bytes > 0 ? storage->bytes : 1;
    void *copy = mem_alloc_aligned(bytes, MEM_DATA_ALIGNMENT);
    if (copy) {
        kernel_copy(copy, place, storage->bytes);
        if (storage_rebind(storage, copy, free_memory, NULL) == SHOAL_OK) {
            return true;
        }
        mem_free(copy);
    }
    return storage_release(storage) == SHOAL_OK;
}

static void leave_block(struct ddp *ddp)
{
    bool is_free = true;
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (ddp->params[i].gradient) {
            is_free = leave(&ddp->params[i]) && is_free;
        }
    }
    if (is_free) {
        shoal_symmetric_free(ddp->block); /* otherwise the world does */
    }
    ddp->block = NULL;
}

void ddp_leave_world(struct ddp *ddp)
{
    if (ddp->world) {
        ddp_close(ddp);
        owned_list_remove(&ddp->world->owned, &ddp->owned);
        leave_block(ddp);
        ddp->world = NULL;
    }
}

/* Groups are gone by now, and with them all that was in flight; symmetric memory is not. This is off the list. */
void ddp_world_ends(struct owned *owned)
{
    struct ddp *ddp = (struct ddp *)owned;
    ddp->lane = NULL;
    ddp->group = NULL;
    ddp_close(ddp);
    leave_block(ddp);
    ddp->world = NULL;
}
