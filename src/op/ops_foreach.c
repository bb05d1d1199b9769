/* SPDX-License-Identifier: MIT */
/* Rows over lists: foreach_copy_ foreach_div foreach_add_. A call changes all of its targets or none. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/arith.h"
#include "op/operand.h"
#include "op/rows.h"

static shoal_status check_lengths(const shoal_value *self, const shoal_value *other)
{
    if (self->count == other->count) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "the lists have %zu and %zu tensors, but must have the same number",
                     self->count, other->count);
}

enum {
    SEEN_BITS = 12 /* with some hundred storages, few have the same bit */
};

/* A summary of where the targets of a list lie, by which most sources pass without a look at each target. */
struct targets {
    uint64_t seen[(1 << SEEN_BITS) / 64]; /* a bit per storage, by its hash */
    uintptr_t first;                      /* first..end contains all borrowed memory of targets: */
    uintptr_t end;                        /* only borrowed memory can be part of two storages */
};

static bool is_borrowed(const struct storage *storage)
{
    return storage->memory && storage->memory->given;
}

static uint64_t hash_storage(const struct storage *storage)
{
    return (uint64_t)(uintptr_t)storage * UINT64_C(0x9e3779b97f4a7c15) >> (64 - SEEN_BITS);
}

static void targets_collect(struct targets *targets, const shoal_value *list)
{
    *targets = (struct targets){.first = UINTPTR_MAX};
    for (size_t i = 0; i < list->count; i++) {
        const struct storage *storage = list->as.tensors[i]->storage;
        uint64_t hash = hash_storage(storage);
        targets->seen[hash / 64] |= UINT64_C(1) << hash % 64;
        if (is_borrowed(storage)) {
            uintptr_t base = address_number(storage->memory->base);
            targets->first = base < targets->first ? base : targets->first;
            targets->end = base + storage->bytes > targets->end ? base + storage->bytes : targets->end;
        }
    }
}

static bool targets_may_meet(const struct targets *targets, const struct storage *storage)
{
    uint64_t hash = hash_storage(storage);
    if (targets->seen[hash / 64] >> hash % 64 & 1) {
        return true;
    }
    uintptr_t base = is_borrowed(storage) ? address_number(storage->memory->base) : UINTPTR_MAX;
    return base < targets->end && base + storage->bytes > targets->first;
}

static shoal_status check_apart_from_others(size_t source_index, const shoal_tensor *source,
                                            const shoal_value *targets)
{
    for (size_t i = 0; i < targets->count; i++) {
        const shoal_tensor *target = targets->as.tensors[i];
        bool may_meet = target->storage == source->storage ||
                        (is_borrowed(target->storage) && is_borrowed(source->storage));
        if (may_meet && i != source_index && tensor_may_overlap(source, target)) {
            return error_set(SHOAL_ERR_INVALID, "source %zu shares memory with target %zu", source_index, i);
        }
    }
    return SHOAL_OK;
}

/* A call uses its sources as they were before it, but the pairs are computed one after the other. */
static shoal_status check_pairs_apart(const shoal_value *self, const shoal_value *sources)
{
    struct targets targets;
    targets_collect(&targets, self);
    for (size_t i = 0; i < sources->count; i++) {
        const shoal_tensor *source = sources->as.tensors[i];
        if (targets_may_meet(&targets, source->storage)) {
            TRY(check_apart_from_others(i, source, self));
        }
    }
    return SHOAL_OK;
}

static shoal_status declare_targets(shoal_op_call_context *call, const shoal_value *arguments, bool adds)
{
    TRY(check_lengths(&arguments[0], &arguments[1]));
    for (size_t i = 0; i < arguments[0].count; i++) {
        shoal_status status = adds ? arith_check_dtype(arguments[0].as.tensors[i]) : SHOAL_OK;
        if (adds && status == SHOAL_OK) {
            status = arith_check_same_dtype(arguments[0].as.tensors[i], arguments[1].as.tensors[i]);
        }
        if (status == SHOAL_OK) {
            status = op_check_in_place(arguments[0].as.tensors[i], arguments[1].as.tensors[i]);
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "pair %zu", i);
        }
        TRY(shoal_op_output_alias(call, arguments[0].as.tensors[i]));
    }
    return check_pairs_apart(&arguments[0], &arguments[1]);
}

shoal_status meta_foreach_copy_(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_targets(call, arguments, /*adds=*/false);
}

shoal_status meta_foreach_add_(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_targets(call, arguments, /*adds=*/true);
}

shoal_status meta_foreach_div(shoal_op_call_context *call, const shoal_value *arguments)
{
    for (size_t i = 0; i < arguments[0].count; i++) {
        const shoal_tensor *tensor = arguments[0].as.tensors[i];
        shoal_status status = arith_check_number(tensor);
        if (status == SHOAL_OK) {
            status = arith_check_fits(tensor, "divisor", &arguments[1]);
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "tensor %zu", i);
        }
        TRY(op_declare_like(call, tensor, tensor->dtype));
    }
    return SHOAL_OK;
}

/* A source that can be read while its target is written. All are made before the first target is written, because that
   may fail. Targets of other pairs do not matter: check_pairs_apart has refused sources that overlap them. */
struct source {
    shoal_tensor *safe; /* as in op_separate */
    shoal_tensor *copy; /* as in op_separate */
};

static void free_sources(struct source *sources, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        shoal_tensor_unref(sources[i].copy);
    }
}

size_t workspace_pairs(const shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return op_round_workspace(arguments[1].count * sizeof(struct source));
}

typedef shoal_status pair_function(shoal_tensor *target, shoal_tensor *source);

static shoal_status run_pairs(shoal_op_call_context *call, shoal_tensor *const *targets,
                              const shoal_value *from, pair_function *function)
{
    struct source *sources = shoal_op_workspace(call, from->count * sizeof(*sources));
    shoal_status status = sources ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    size_t n_sources = 0;
    while (status == SHOAL_OK && n_sources < from->count) {
        struct source *source = &sources[n_sources];
        status = op_separate(from->as.tensors[n_sources], targets[n_sources], &source->safe, &source->copy);
        n_sources += status == SHOAL_OK ? 1 : 0;
    }
    for (size_t i = 0; i < from->count && status == SHOAL_OK; i++) {
        status = function(targets[i], sources[i].safe);
    }
    free_sources(sources, n_sources);
    return status;
}

shoal_status run_foreach_copy_(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_pairs(call, outputs, &arguments[1], op_copy_into);
}

static shoal_status add_into(shoal_tensor *target, shoal_tensor *source)
{
    return arith_run(KERNEL_ADD, target, target, source);
}

shoal_status run_foreach_add_(shoal_op_call_context *call, const shoal_value *arguments,
                              shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_pairs(call, outputs, &arguments[1], add_into);
}

shoal_status run_foreach_div(shoal_op_call_context *call, const shoal_value *arguments,
                             shoal_tensor *const *outputs, size_t n_outputs)
{
    for (size_t i = 0; i < n_outputs; i++) {
        TRY(arith_run_with_number(KERNEL_DIV, outputs[i], arguments[0].as.tensors[i], &arguments[1]));
    }
    return SHOAL_OK;
}
