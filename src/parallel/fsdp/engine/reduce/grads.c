/* SPDX-License-Identifier: MIT */
/*
 * Gradients before their reduction. Every parameter has a region in the unit's buffer: one block for each shard, in the
 * dtype of the reduction. The gradient of a parameter that is sharded along its first dimension lies there as it is,
 * with padding at the end; kernels write it in place if they compute in the dtype of the reduction. Other gradients are
 * written elsewhere and copied into the blocks afterwards.
 */
#include "parallel/fsdp/engine/reduce/grads.h"

#include "base/trace.h"
#include "base/try.h"
#include "device/device.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* All blocks of a parameter, and the region that holds them: what lies between regions is not reduced. */
static size_t blocks_bytes(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return (size_t)unit->mesh->n_shards * param->padded_count * dtype_bytes(unit->grads.dtype);
}

static size_t region_bytes(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return fsdp_round_up(blocks_bytes(unit, param));
}

bool fsdp_lands_in_place(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return unit->mesh->n_shards == 1 && !unit->watch && param->dtype == unit->grads.dtype;
}

/* The bytes of all gradients of the unit in a buffer. */
static size_t whole_bytes(const struct fsdp_unit *unit)
{
    size_t bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        bytes += unit->params[i].requires_grad ? region_bytes(unit, &unit->params[i]) : 0;
    }
    return bytes;
}

/* How many bytes of buffers the pool may have: one for the unit that is being written, max_reduces for units that are
   being reduced over the shards, and with replicas one more. Gradients that land in place, and buffers that units own,
   come on top. */
static size_t buffers_limit(const struct fsdp_context *context, const struct fsdp_domain *domain,
                            size_t largest)
{
    size_t stays = 0;
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        if (unit->domain != domain) {
            continue;
        }
        size_t bytes = whole_bytes(unit);
        for (size_t k = 0; k < unit->n_params; k++) {
            const struct fsdp_param *param = &unit->params[k];
            stays += param->requires_grad && fsdp_lands_in_place(unit, param) ? region_bytes(unit, param) : 0;
        }
        stays += unit->config.sharded == SHOAL_SHARDED_STATE ? bytes : 0;
        largest = bytes > largest ? bytes : largest;
    }
    int n_buffers = 1 + context->config.max_reduces + (domain->mesh.replicate ? 1 : 0);
    return (size_t)n_buffers * largest + stays;
}

bool fsdp_is_direct(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    bool is_whole = unit->mesh->n_shards == 1;
    return (param->outer == 1 || is_whole) && param->compute == unit->grads.dtype;
}

/* Gives each parameter with is_reduced its places. This is done for each buffer, because which parameters get gradients
   may change between steps. */
static void lay_out_grads(struct fsdp_unit *unit)
{
    size_t element_bytes = dtype_bytes(unit->grads.dtype);
    unit->grads.buffer_bytes = unit->grads.output_bytes = unit->grads.bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (!param->is_reduced) {
            continue;
        }
        param->reduce_offset = unit->grads.buffer_bytes;
        unit->grads.buffer_bytes += region_bytes(unit, param);
        param->output_offset = unit->grads.output_bytes;
        unit->grads.output_bytes += fsdp_round_up(param->padded_count * element_bytes);
        param->is_direct = fsdp_is_direct(unit, param);
        param->grad_offset = unit->grads.bytes;
        unit->grads.bytes += param->is_direct ? 0 : fsdp_round_up(param->count * dtype_bytes(param->compute));
    }
}

/* Collective. Makes a new block of the pool. */
static shoal_status make_buffer(struct fsdp_unit *unit, size_t bytes, struct fsdp_block **block_out)
{
    struct fsdp_context *context = unit->context;
    struct fsdp_pool *pool = &unit->domain->pools.buffers;
    struct purpose purpose = {.id = PURPOSE_NONE}; /* without a group there is nobody to compare it with */
    if (pool->group) {
        purpose = fsdp_reduction_purpose(unit, PURPOSE_FSDP_BUFFER);
    }
    TRY(fsdp_mark_buffer(unit, &purpose));
    if (pool->group == unit->mesh->replicate) {
        purpose = fsdp_replica_purpose(unit->mesh, purpose);
    }
    shoal_status status =
        fsdp_pool_make(pool, bytes, buffers_limit(context, unit->domain, bytes), &purpose, block_out);
    /* If ranks were found to differ here, the other lanes must fail, too. */
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell_all(context, status);
}

static shoal_status take_shared(struct fsdp_unit *unit, size_t bytes, struct fsdp_block **block_out)
{
    *block_out = fsdp_pool_take(&unit->domain->pools.buffers, bytes);
    return *block_out ? SHOAL_OK : make_buffer(unit, bytes, block_out);
}

/* The unit's own buffer has room for all of its gradients, so that it is made once. While it is taken (a landed
   gradient lies in it, or gradients of this backward pass in an older layout), the unit takes a shared buffer
   instead. */
static shoal_status take_own(struct fsdp_unit *unit)
{
    size_t needed = unit->grads.buffer_bytes;
    if (unit->grads.own && !fsdp_block_take(unit->grads.own)) {
        return take_shared(unit, needed, &unit->grads.buffer);
    }
    if (unit->grads.own && unit->grads.own->bytes < needed) { /* parameters were thawed */
        fsdp_pool_give_back(unit->grads.own);
        fsdp_block_disown(unit->grads.own);
        unit->grads.own = NULL;
    }
    if (!unit->grads.own) {
        size_t whole = whole_bytes(unit);
        TRY(take_shared(unit, whole > needed ? whole : needed, &unit->grads.own));
        fsdp_block_own(unit->grads.own);
    }
    unit->grads.buffer = unit->grads.own;
    return SHOAL_OK;
}

shoal_status fsdp_unit_take_buffer(struct fsdp_unit *unit)
{
    if (unit->grads.buffer) {
        return SHOAL_OK;
    }
    lay_out_grads(unit);
    if (unit->grads.buffer_bytes == 0) {
        return SHOAL_OK;
    }
    TRY(unit->config.sharded == SHOAL_SHARDED_STATE
            ? take_own(unit)
            : take_shared(unit, unit->grads.buffer_bytes, &unit->grads.buffer));
    for (size_t i = 0; i < unit->n_params; i++) {
        unit->params[i].is_unset = unit->params[i].is_reduced;
    }
    unit->grads.has_accumulated = false;
    return SHOAL_OK;
}

/* Clears the blocks of a parameter from `begin` on. */
static void clear(const struct fsdp_unit *unit, struct fsdp_param *param, size_t begin, struct moves *moves)
{
    moves_clear(moves, address_add(fsdp_region_of(unit, param), (ptrdiff_t)begin),
                blocks_bytes(unit, param) - begin);
    param->is_unset = false;
}

/* Clears the blocks of a parameter that was not written yet. This is done only when something is about to be added
   there: a kernel that stores needs no zeros, and a pass over the memory is saved. */
static void clear_place(const struct fsdp_unit *unit, struct fsdp_param *param, struct moves *moves)
{
    if (param->is_unset) {
        clear(unit, param, 0, moves);
    }
}

/* clear_place for a kernel that will write all elements of the parameter: clears only the padding after them. */
static void clear_behind(const struct fsdp_unit *unit, struct fsdp_param *param, struct moves *moves)
{
    if (param->is_unset) {
        clear(unit, param, param->count * dtype_bytes(unit->grads.dtype), moves);
    }
}

void fsdp_unit_clear_unset(struct fsdp_unit *unit)
{
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params; i++) {
        clear_place(unit, &unit->params[i], &moves);
    }
    moves_end(&moves);
}

/* While gradients accumulate, those that are reduced in the dtype of the kernels stay where the kernels add to
   them. The others are added up in the buffer, in the dtype of the reduction, so that no digits are lost. */
static bool stays_until_reduced(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return param->compute == unit->grads.dtype;
}

static void begin_written(struct fsdp_unit *unit)
{
    for (size_t i = 0; unit->grads.bytes > 0 && i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        bool is_left = unit->grads.has_accumulated && stays_until_reduced(unit, param);
        param->is_clear = param->is_reduced && !param->is_direct && !is_left;
    }
    unit->grads.is_zeroed = false;
}

/* Clears the places that hold no gradient, all at once: before a kernel adds to one of them, or they are read. Kernels
   that store need no zeros. */
static void zero_written(struct fsdp_unit *unit)
{
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; !unit->grads.is_zeroed && unit->grads.bytes > 0 && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_clear) {
            moves_clear(&moves, fsdp_written_at(unit, param), param->count * dtype_bytes(param->compute));
        }
    }
    moves_end(&moves);
    unit->grads.is_zeroed = true;
}

shoal_status fsdp_unit_need_memory(struct fsdp_unit *unit, struct address *data, size_t *capacity,
                                   size_t bytes)
{
    struct fsdp_memory *memory = &unit->context->memory;
    if (bytes <= *capacity) {
        return SHOAL_OK;
    }
    device_memory_free(unit->device, *data);
    fsdp_memory_remove(memory, FSDP_MEMORY_GRADIENTS, *capacity);
    *data = ADDRESS_NONE;
    *capacity = 0;
    TRY(device_memory_allocate(unit->device, bytes, data));
    *capacity = bytes;
    fsdp_memory_add(memory, FSDP_MEMORY_GRADIENTS, bytes);
    return SHOAL_OK;
}

shoal_status fsdp_unit_need_grads(struct fsdp_unit *unit)
{
    TRY(fsdp_unit_need_memory(unit, &unit->grads.data, &unit->grads.capacity, unit->grads.bytes));
    begin_written(unit);
    return SHOAL_OK;
}

struct address fsdp_unit_grad(struct fsdp_unit *unit, struct fsdp_param *param)
{
    if (param->count == 0) {
        return param->shard; /* any address will do: there are no elements to add to */
    }
    if (param->is_direct) {
        struct moves moves;
        moves_begin(&moves, unit->device);
        clear_place(unit, param, &moves);
        moves_end(&moves);
        return fsdp_region_of(unit, param);
    }
    if (param->is_clear) {
        zero_written(unit);
        param->is_clear = false;
    }
    return fsdp_written_at(unit, param);
}

struct address fsdp_unit_grad_to_store(struct fsdp_unit *unit, struct fsdp_param *param, bool *has_values_out)
{
    *has_values_out = param->count > 0 && !(param->is_direct ? param->is_unset : param->is_clear);
    if (param->count > 0 && param->is_direct) {
        struct moves moves;
        moves_begin(&moves, unit->device);
        clear_behind(unit, param, &moves);
        moves_end(&moves);
    }
    param->is_clear = false;
    return fsdp_unit_grad(unit, param);
}

/* Clears what put_grad will add to, or not write. */
static void prepare_place(const struct fsdp_unit *unit, struct fsdp_param *param, bool is_added,
                          struct moves *moves)
{
    if (is_added || param->count < (size_t)unit->mesh->n_shards * param->padded_count) {
        clear_place(unit, param, moves);
    } else { /* all blocks will be written; only the padding after the last one is cleared */
        clear_behind(unit, param, moves);
    }
}

/* Casts a whole gradient to the dtype of the reduction, and copies or adds it to the blocks of its region, which has been
   prepared. */
static void put_grad(const struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                     struct address grad, bool is_added, struct moves *moves)
{
    size_t to_bytes = dtype_bytes(unit->grads.dtype);
    size_t from_bytes = dtype_bytes(dtype);
    for (int64_t w = 0; w < unit->mesh->n_shards; w++) {
        int64_t begin;
        int64_t end;
        fsdp_param_rows(param, w, &begin, &end);
        size_t count = (size_t)((end - begin) * param->inner);
        for (int64_t o = 0; o < param->outer; o++) {
            size_t to_at = (size_t)w * param->padded_count + (size_t)(o * param->chunk * param->inner);
            size_t from_at = (size_t)((o * param->size + begin) * param->inner);
            struct address to = address_add(fsdp_region_of(unit, param), (ptrdiff_t)(to_at * to_bytes));
            moves_add(moves, (struct kernel_move){.dst = to,
                                                  .src = address_add(grad, (ptrdiff_t)(from_at * from_bytes)),
                                                  .count = count,
                                                  .dst_dtype = unit->grads.dtype,
                                                  .src_dtype = dtype,
                                                  .is_added = is_added});
        }
    }
}

void fsdp_unit_put_grad(struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                        struct address grad)
{
    /* A sum with the zeros of a place that has no gradient yet would lose the sign of -0. */
    bool is_added = unit->grads.has_accumulated && param->has_whole;
    uint64_t begin_ticks = trace_begin();
    struct moves moves;
    moves_begin(&moves, unit->device);
    prepare_place(unit, param, is_added, &moves);
    moves_end(&moves); /* what is written next overlaps it */
    put_grad(unit, param, dtype, grad, is_added, &moves);
    moves_end(&moves);
    trace_end(begin_ticks, TRACE_OP, "fsdp.put_gradient");
    param->has_whole = true;
}

static bool is_collected(const struct fsdp_unit *unit, const struct fsdp_param *param, bool is_new)
{
    return param->is_reduced && !param->is_direct &&
           (stays_until_reduced(unit, param) ? unit->config.sync : is_new);
}

static bool is_collected_by_adding(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return unit->grads.has_accumulated && !stays_until_reduced(unit, param);
}

void fsdp_unit_collect_written(struct fsdp_unit *unit, bool is_new)
{
    struct moves moves;
    if (is_new) {
        zero_written(unit);
    }
    moves_begin(&moves, unit->device);
    for (size_t i = 0; unit->grads.buffer && i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (is_collected(unit, param, is_new)) {
            prepare_place(unit, param, is_collected_by_adding(unit, param), &moves);
        }
    }
    moves_end(&moves);
    for (size_t i = 0; unit->grads.buffer && i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (is_collected(unit, param, is_new)) {
            put_grad(unit, param, param->compute, fsdp_written_at(unit, param),
                     is_collected_by_adding(unit, param), &moves);
        }
    }
    moves_end(&moves);
}

void fsdp_unit_forget_buffer(struct fsdp_unit *unit)
{
    unit->grads.buffer = NULL;
    unit->grads.has_accumulated = false;
    unit->grads.is_owed = false;
    for (size_t i = 0; i < unit->n_params; i++) {
        unit->params[i].has_whole = false;
    }
}

void fsdp_unit_drop_grads(struct fsdp_unit *unit)
{
    if (unit->grads.buffer) {
        fsdp_pool_give_back(unit->grads.buffer);
    }
    fsdp_unit_forget_buffer(unit);
    unit->grads.has_begun = false;
    unit->grads.has_partial = false;
}
