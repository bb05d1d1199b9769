/* SPDX-License-Identifier: MIT */
#include "op/dependence.h"

#include "base/mem.h"
#include "base/refcount.h"

struct op_dependence {
    _Atomic uint32_t references;
    const struct op_dependence_kind *kind; /* of static storage duration */
    const void *owner;                     /* NULL if it was freed */
    uint64_t last;                         /* the state when the owner was freed */
};

shoal_status op_dependence_create(const struct op_dependence_kind *kind, const void *owner,
                                  struct op_dependence **dependence_out)
{
    struct op_dependence *dependence = mem_alloc_zeroed(1, sizeof *dependence);
    if (!dependence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&dependence->references, 1);
    dependence->kind = kind;
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

void op_dependence_leave(struct op_dependence *dependence, uint64_t last)
{
    if (dependence) {
        dependence->owner = NULL;
        dependence->last = last;
        op_dependence_unref(dependence);
    }
}

uint64_t op_dependence_state(const struct op_dependence *dependence)
{
    return dependence->owner ? dependence->kind->state(dependence->owner) : dependence->last;
}

shoal_status op_dependence_agree(const struct op_dependence *dependence)
{
    return dependence->owner && dependence->kind->agree ? dependence->kind->agree(dependence->owner)
                                                        : SHOAL_OK;
}

shoal_status op_dependence_begin_run(const struct op_dependence *dependence)
{
    return dependence->owner && dependence->kind->begin_run ? dependence->kind->begin_run(dependence->owner)
                                                            : SHOAL_OK;
}

bool op_dependence_has_gone(const struct op_dependence *dependence, uint64_t state)
{
    return dependence->kind->never_returns && op_dependence_state(dependence) != state;
}

void op_dependence_describe(const struct op_dependence *dependence, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (dependence->owner && dependence->kind->describe) {
        dependence->kind->describe(dependence->owner, text, text_bytes);
    }
}
