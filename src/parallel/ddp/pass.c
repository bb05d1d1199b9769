/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/pass.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/purpose.h"
#include "parallel/ddp/reduction.h"
#include "shoal/work.h"

struct pass {
    struct ddp **ddps;
    size_t n;
    size_t capacity;
    shoal_work **announced; /* for each module a barrier; NULL if none was started, or it is over */
};

/* Which modules ----------------------------------------------------------------------------------------- */

/* Finds the modules of this pass, and marks them, so that their end is not tried twice. */
static shoal_status collect(struct ddp *first, struct pass *pass)
{
    struct owned_list *list = world_owned(first->world);
    shoal_status status = SHOAL_OK;
    (void)pthread_mutex_lock(&list->lock);
    for (struct owned *owned = list->first; owned && status == SHOAL_OK; owned = owned->next) {
        struct ddp *ddp = (struct ddp *)owned;
        /* Relaxed: numbers of passes are unique, so one that is equal was written by this thread. */
        if (owned->destroy != ddp_world_ends ||
            atomic_load_explicit(&ddp->backward.pass, memory_order_relaxed) != first->backward.number) {
            continue;
        }
        status = mem_grow((void **)&pass->ddps, &pass->capacity, pass->n + 1, sizeof(struct ddp *));
        if (status == SHOAL_OK) {
            pass->ddps[pass->n++] = ddp;
            atomic_store_explicit(&ddp->backward.pass, 0, memory_order_relaxed);
        }
    }
    (void)pthread_mutex_unlock(&list->lock);
    return status;
}

static int compare_places(const void *left, const void *right)
{
    const struct ddp *a = *(struct ddp *const *)left;
    const struct ddp *b = *(struct ddp *const *)right;
    int order = strcmp(shoal_group_name(a->group), shoal_group_name(b->group));
    return order != 0 ? order : (a->lane.number > b->lane.number) - (a->lane.number < b->lane.number);
}

/* The order --------------------------------------------------------------------------------------------- */

/* "net (module 1), head (module 2)" */
static void write_words(struct ddp *const *ddps, size_t n, char *words)
{
    struct text text = text_begin(words, PURPOSE_WORDS_BYTES);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%.32s (module %d)", ddp_purpose(ddps[i], PURPOSE_DDP_PASS).words,
                       ddps[i]->lane.number + 1);
        text_add_name(&text, i > 0 ? ", " : "", name);
    }
}

/* Compares with the other ranks that a pass through these `n` modules of one group ends. */
static shoal_status compare_order(struct ddp *const *ddps, size_t n)
{
    char words[PURPOSE_WORDS_BYTES];
    int64_t *numbers = mem_alloc((2 + n) * sizeof *numbers);
    shoal_group **lanes = mem_alloc(n * sizeof(shoal_group *));
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (numbers && lanes) {
        numbers[0] = DETAIL_SET; /* not printed: `words` has the numbers */
        numbers[1] = (int64_t)n;
        for (size_t i = 0; i < n; i++) {
            numbers[2 + i] = ddps[i]->lane.number + 1;
            lanes[i] = ddps[i]->lane.group;
        }
        write_words(ddps, n, words);
        struct purpose purpose = {
            .id = PURPOSE_DDP_PASS, .details = numbers, .n_details = 2 + n, .words = words};
        status = ddp_order_compare(ddps[0]->order.shared, &purpose, lanes, n);
    }
    mem_free(lanes);
    mem_free(numbers);
    return status;
}

/*
 * A module that has not sent anything in this backward pass also announces the end by a barrier on its own lane. A rank
 * that runs a compiled step of the module instead issues collectives on that lane and never on the lane of the order,
 * so without the barrier the two would wait until the deadline.
 */
static shoal_status announce(const struct pass *pass)
{
    for (size_t i = 0; i < pass->n; i++) {
        const struct ddp *ddp = pass->ddps[i];
        if (ddp->buckets.is_learning) {
            struct purpose purpose = ddp_backward_purpose(ddp, PURPOSE_DDP_BACKWARD);
            TRY(collectives_barrier_start(ddp->lane.group, &purpose, &pass->announced[i]));
        }
    }
    return SHOAL_OK;
}

static shoal_status hear(const struct pass *pass)
{
    for (size_t i = 0; i < pass->n; i++) {
        if (pass->announced[i]) {
            TRY(shoal_work_wait(pass->announced[i], -1.0));
            shoal_work_free(pass->announced[i]);
            pass->announced[i] = NULL;
        }
    }
    return SHOAL_OK;
}

static void forget(const struct pass *pass)
{
    for (size_t i = 0; i < pass->n; i++) {
        if (pass->announced[i]) {
            work_forget(pass->announced[i]);
            shoal_work_free(pass->announced[i]);
        }
    }
}

static shoal_status end_all(const struct pass *pass)
{
    size_t n;
    TRY(announce(pass));
    for (size_t i = 0; i < pass->n; i += n) {
        n = 1;
        while (i + n < pass->n && pass->ddps[i + n]->group == pass->ddps[i]->group) {
            n++;
        }
        TRY(compare_order(&pass->ddps[i], n));
    }
    TRY(hear(pass));
    for (size_t i = 0; i < pass->n; i++) {
        TRY(ddp_end_backward(pass->ddps[i]));
    }
    return SHOAL_OK;
}

shoal_status ddp_end_pass(struct ddp *first)
{
    struct pass pass = {.n = 0};
    if (atomic_load_explicit(&first->backward.pass, memory_order_relaxed) != first->backward.number) {
        return SHOAL_OK; /* the end of another module has ended this one, too */
    }
    shoal_status status = collect(first, &pass);
    if (status == SHOAL_OK) {
        if (pass.n > 1) {
            qsort(pass.ddps, pass.n, sizeof(struct ddp *), compare_places);
        }
        pass.announced = mem_alloc_zeroed(pass.n, sizeof(shoal_work *));
        status = pass.announced ? end_all(&pass) : SHOAL_ERR_NO_MEMORY;
    }
    if (pass.announced) {
        forget(&pass);
    }
    mem_free(pass.announced);
    mem_free(pass.ddps);
    return status;
}
