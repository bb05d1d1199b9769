/* SPDX-License-Identifier: MIT */
#include "op/dependence.h"

#include "base/mem.h"
#include "base/refcount.h"

struct op_dependence {
    _Atomic uint32_t references;
    uint64_t (*state)(const void *owner);
    const void *owner; /* NULL: it was freed */
};

shoal_status op_dependence_create(uint64_t (*state)(const void *owner), const void *owner,
                                  struct op_dependence **dependence_out)
{
    struct op_dependence *dependence = mem_alloc_zeroed(1, sizeof *dependence);
    if (!dependence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&dependence->references, 1);
    dependence->state = state;
    dependence->owner = owner;
    *dependence_out = dependence;
    return SHOAL_OK;
}

struct op_dependence *op_dependence_ref(struct op_dependence *dependence)
{
    refcount_get(&dependence->references);
    return dependence;
}

void op_dependence_unref(struct op_dependence *dependence)
{
    if (dependence && refcount_put(&dependence->references)) {
        mem_free(dependence);
    }
}

void op_dependence_leave(struct op_dependence *dependence)
{
    if (dependence) {
        dependence->owner = NULL;
        op_dependence_unref(dependence);
    }
}

uint64_t op_dependence_state(const struct op_dependence *dependence)
{
    return dependence->owner ? dependence->state(dependence->owner) : 0;
}
