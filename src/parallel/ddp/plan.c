/* SPDX-License-Identifier: MIT */
/* Plans buckets: cuts them by size, sorts them by their last item, and lays them out one after the other. */
#include "parallel/ddp/plan.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/try.h"
#include "tensor/dtype.h"

/* The bucket of a dtype that takes items now. */
struct open_bucket {
    bool is_open;
    bool has_closed; /* an earlier bucket of this dtype is full */
    size_t bucket;
};

size_t ddp_round_up(size_t bytes)
{
    return (bytes + DDP_ALIGNMENT - 1) / DDP_ALIGNMENT * DDP_ALIGNMENT;
}

/* Allocates the three lists as one block of memory, which begins with `places`. */
static shoal_status allocate(struct ddp_plan *plan, size_t n_items)
{
    size_t each = sizeof plan->places[0] + sizeof plan->buckets[0] + sizeof plan->members[0];
    struct ddp_place *places = mem_alloc_zeroed(n_items > 0 ? n_items : 1, each);
    if (!places) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *plan = (struct ddp_plan){.n_items = n_items, .places = places};
    plan->buckets = (struct ddp_range *)(places + n_items);
    plan->members = (size_t *)(plan->buckets + n_items);
    return SHOAL_OK;
}

void ddp_plan_free(struct ddp_plan *plan)
{
    mem_free(plan->places);
    *plan = (struct ddp_plan){.n_items = 0};
}

/* Numbers buckets in the order in which they are opened. Until lay_out runs, a bucket's `first` is the position of its
   last item in `order`. */
static void cut(struct ddp_plan *plan, const struct ddp_item *items, const size_t *order, size_t first_bytes,
                size_t bytes)
{
    struct open_bucket open[DTYPE_COUNT] = {{.is_open = false}};
    for (size_t i = 0; i < plan->n_items; i++) {
        const struct ddp_item *item = &items[order[i]];
        struct open_bucket *of_dtype = &open[item->dtype];
        if (!of_dtype->is_open) {
            of_dtype->is_open = true;
            of_dtype->bucket = plan->n_buckets++;
            plan->buckets[of_dtype->bucket] = (struct ddp_range){.dtype = item->dtype};
        }
        struct ddp_range *bucket = &plan->buckets[of_dtype->bucket];
        plan->places[order[i]].bucket = of_dtype->bucket;
        bucket->bytes += ddp_round_up(item->bytes);
        bucket->n_items++;
        bucket->first = i;
        if (bucket->bytes >= (of_dtype->has_closed ? bytes : first_bytes)) {
            of_dtype->is_open = false;
            of_dtype->has_closed = true;
        }
    }
}

static int compare_last(const void *a, const void *b)
{
    const struct ddp_range *one = a;
    const struct ddp_range *other = b;
    return one->first < other->first ? -1 : one->first > other->first;
}

/* A bucket cannot be sent before its last item has arrived, so buckets are sorted and numbered by that. */
static void sort_buckets(struct ddp_plan *plan, const size_t *order)
{
    qsort(plan->buckets, plan->n_buckets, sizeof plan->buckets[0], compare_last);
    /* Uses `members` as scratch memory: the new number of each bucket, by its old number. The last item of a bucket
       still has the old one. */
    for (size_t i = 0; i < plan->n_buckets; i++) {
        plan->members[plan->places[order[plan->buckets[i].first]].bucket] = i;
    }
    for (size_t i = 0; i < plan->n_items; i++) {
        plan->places[i].bucket = plan->members[plan->places[i].bucket];
    }
}

static void lay_out(struct ddp_plan *plan, const struct ddp_item *items, const size_t *order)
{
    size_t n_before = 0;
    for (size_t i = 0; i < plan->n_buckets; i++) {
        struct ddp_range *bucket = &plan->buckets[i];
        bucket->first = n_before;
        bucket->offset = plan->bytes;
        n_before += bucket->n_items;
        plan->bytes += bucket->bytes;
        bucket->n_items = 0;
        bucket->bytes = 0;
    }
    for (size_t i = 0; i < plan->n_items; i++) {
        struct ddp_place *place = &plan->places[order[i]];
        struct ddp_range *bucket = &plan->buckets[place->bucket];
        place->offset = bucket->offset + bucket->bytes;
        bucket->bytes += ddp_round_up(items[order[i]].bytes);
        plan->members[bucket->first + bucket->n_items++] = order[i];
    }
}

shoal_status ddp_plan_create(const struct ddp_item *items, const size_t *order, size_t n_items,
                             size_t first_bytes, size_t bytes, struct ddp_plan *plan_out)
{
    TRY(allocate(plan_out, n_items));
    cut(plan_out, items, order, first_bytes, bytes);
    sort_buckets(plan_out, order);
    lay_out(plan_out, items, order);
    return SHOAL_OK;
}

bool ddp_plan_is_same(const struct ddp_plan *a, const struct ddp_plan *b)
{
    if (a->n_items != b->n_items || a->n_buckets != b->n_buckets || a->bytes != b->bytes) {
        return false;
    }
    for (size_t i = 0; i < a->n_items; i++) {
        if (a->places[i].bucket != b->places[i].bucket || a->places[i].offset != b->places[i].offset) {
            return false;
        }
    }
    return true;
}
