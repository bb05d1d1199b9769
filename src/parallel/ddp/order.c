/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/order.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "comm/group/owned.h"
#include "shoal/work.h"

/* How often a rank that waits for the others checks whether one of them has given up. */
#define LOOK_SECONDS 0.05

/* The last generation that was lost, and why. It is kept here because the lane, which knew the reason, is closed. */
struct lost {
    uint32_t generation;
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

struct ddp_order {
    struct owned owned;      /* first: an entry of the world's list */
    shoal_group *group;      /* one reference, so that no other group gets its address */
    _Atomic uint32_t n_lost; /* how many generations of the shared lane were lost */
    struct lost last;
    int *n_lost_lanes; /* for each number of a module's lane: how many generations this rank has lost */
    size_t n_numbers;
    size_t capacity;
};

/* Finding ------------------------------------------------------------------------------------------------ */

static void world_ends(struct owned *owned)
{
    struct ddp_order *order = (struct ddp_order *)owned;
    group_unref(order->group);
    mem_free(order->n_lost_lanes);
    mem_free(order);
}

static struct ddp_order *find(const shoal_group *group)
{
    struct owned_list *list = world_owned(shoal_group_world(group));
    struct ddp_order *found = NULL;
    (void)pthread_mutex_lock(&list->lock);
    for (struct owned *owned = list->first; owned && !found; owned = owned->next) {
        struct ddp_order *order = (struct ddp_order *)owned;
        found = owned->destroy == world_ends && order->group == group ? order : NULL;
    }
    (void)pthread_mutex_unlock(&list->lock);
    return found;
}

shoal_status ddp_order_find(shoal_group *group, struct ddp_order **order_out)
{
    struct ddp_order *order = find(group);
    if (!order) {
        order = mem_alloc_zeroed(1, sizeof *order);
        if (!order) {
            return SHOAL_ERR_NO_MEMORY;
        }
        order->owned.destroy = world_ends;
        order->group = group_ref(group);
        owned_list_add(world_owned(shoal_group_world(group)), &order->owned);
    }
    *order_out = order;
    return SHOAL_OK;
}

/* Generations -------------------------------------------------------------------------------------------- */

uint32_t ddp_order_generation(const struct ddp_order *order)
{
    /* Relaxed, here and below: passes of one group are made by one thread at a time, or have no order. */
    return atomic_load_explicit(&order->n_lost, memory_order_relaxed);
}

static shoal_status open_lane(const struct ddp_order *order, uint32_t generation, shoal_group **lane_out)
{
    char word[32];
    (void)snprintf(word, sizeof word, "ddp order %u", generation);
    return group_create_lane(order->group, 0, shoal_group_n_ranks(order->group), word, lane_out);
}

/* Notes that the lane of a generation has failed, and closes it. */
static void lose(struct ddp_order *order, uint32_t generation, shoal_group *lane, shoal_status status,
                 const char *text)
{
    if (ddp_order_generation(order) > generation) {
        return; /* the generation was replaced already */
    }
    atomic_store_explicit(&order->n_lost, generation + 1, memory_order_relaxed);
    order->last = (struct lost){.generation = generation, .status = status};
    (void)snprintf(order->last.text, sizeof order->last.text, "%s", text);
    ddp_order_close_failed(order, lane);
}

shoal_status ddp_order_failure(const struct ddp_order *order, uint32_t generation)
{
    uint32_t current = ddp_order_generation(order);
    shoal_group *lane;
    if (generation == current) {
        TRY(open_lane(order, generation, &lane));
        return group_failure(lane);
    }
    return current > 0 && generation == order->last.generation
               ? error_set(order->last.status, "%s", order->last.text)
               : SHOAL_OK;
}

void ddp_order_poison(struct ddp_order *order, uint32_t generation, shoal_status status, const char *text)
{
    shoal_group *lane = NULL;
    if (ddp_order_generation(order) > generation) {
        return;
    }
    if (open_lane(order, generation, &lane) == SHOAL_OK) {
        group_poison(lane, status, text);
    }
    lose(order, generation, lane, status, text);
}

/* Lanes of modules --------------------------------------------------------------------------------------- */

bool ddp_order_close_failed(const struct ddp_order *order, shoal_group *lane)
{
    if (!lane || group_failure(lane) == SHOAL_OK) {
        return false;
    }
    bool is_alone = group_failure(order->group) == SHOAL_OK; /* if not, other lanes would fail as well */
    if (is_alone) {
        (void)!shoal_group_close(lane); /* does not wait; if it cannot be closed now, the world closes it */
    }
    error_clear();
    return is_alone;
}

int ddp_order_first_generation(const struct ddp_order *order, int number)
{
    return (size_t)number < order->n_numbers ? order->n_lost_lanes[number] : 0;
}

/* If there is no memory, nothing is noted: the failure is found again when the lane is next opened. */
void ddp_order_lose_lane(struct ddp_order *order, int number, int generation)
{
    size_t n = (size_t)number + 1;
    if (mem_grow((void **)&order->n_lost_lanes, &order->capacity, n, sizeof order->n_lost_lanes[0]) !=
        SHOAL_OK) {
        return;
    }
    while (order->n_numbers < n) {
        order->n_lost_lanes[order->n_numbers++] = 0;
    }
    if (order->n_lost_lanes[number] <= generation) {
        order->n_lost_lanes[number] = generation + 1;
    }
}

/* Comparing ---------------------------------------------------------------------------------------------- */

static shoal_status check_lanes(shoal_group *const *lanes, size_t n_lanes)
{
    for (size_t i = 0; i < n_lanes; i++) {
        TRY(group_failure(lanes[i]));
    }
    return SHOAL_OK;
}

static void poison_lanes(shoal_group *const *lanes, size_t n_lanes, shoal_status status, const char *text)
{
    for (size_t i = 0; i < n_lanes; i++) {
        if (group_failure(lanes[i]) == SHOAL_OK) {
            group_poison(lanes[i], status, text);
        }
    }
}

/* A lane may have failed before: then nobody answers, and the rank does not wait at all. */
static shoal_status wait_for_all(shoal_work *work, shoal_group *const *lanes, size_t n_lanes)
{
    while (!shoal_work_test(work)) {
        shoal_status status = check_lanes(lanes, n_lanes);
        if (status != SHOAL_OK) {
            work_forget(work);
            return status;
        }
        status = shoal_work_wait(work, LOOK_SECONDS);
        if (status != SHOAL_ERR_TIMEOUT) {
            return status;
        }
    }
    return shoal_work_wait(work, -1);
}

/* A call on the lane of the order has failed. If ranks differ, `lanes` fail, too. Keeps the thread's error text. */
static shoal_status note_failure(struct ddp_order *order, uint32_t generation, shoal_group *lane,
                                 shoal_group *const *lanes, size_t n_lanes, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    if (group_failure(lane) != SHOAL_OK && group_failure(order->group) == SHOAL_OK) {
        lose(order, generation, lane, status, text);
    }
    if (status == SHOAL_ERR_MISMATCH) {
        poison_lanes(lanes, n_lanes, status, text);
    }
    return error_set(status, "%s", text);
}

shoal_status ddp_order_compare(struct ddp_order *order, const struct purpose *purpose,
                               shoal_group *const *lanes, size_t n_lanes)
{
    uint32_t generation = ddp_order_generation(order);
    shoal_group *lane;
    shoal_work *work = NULL;
    TRY(open_lane(order, generation, &lane));
    shoal_status status = collectives_barrier_start(lane, purpose, &work);
    if (status == SHOAL_OK) {
        status = wait_for_all(work, lanes, n_lanes);
        shoal_work_free(work);
    }
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    return note_failure(order, generation, lane, lanes, n_lanes, status);
}

shoal_status ddp_order_find_lowest(struct ddp_order *order, const struct purpose *purpose, int64_t *number)
{
    uint32_t generation = ddp_order_generation(order);
    shoal_group *lane;
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = SHOAL_I64,
                              .reduce = SHOAL_MIN,
                              .single = {.send = number, .recv = number, .count = 1},
                              .purpose = purpose};
    TRY(open_lane(order, generation, &lane));
    shoal_status status = collectives_run(lane, &call);
    return status == SHOAL_OK ? SHOAL_OK : note_failure(order, generation, lane, NULL, 0, status);
}
