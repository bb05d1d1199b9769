/* SPDX-License-Identifier: MIT */
/* Gathers into a window, of which there is one per host. Every rank writes its part of every parameter: its shard or,
   in state FSDP_KEPT, the slice that it kept. */
#include <stdio.h>
#include <string.h>

#include "base/explain_faults.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/gather/encoded.h"
#include "parallel/fsdp/engine/gather/way.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

static size_t count_pieces(const struct fsdp_unit *unit)
{
    size_t n = 0;
    for (size_t i = 0; i < unit->n_params; i++) { /* one of a parameter with an extension, too */
        n += unit->state == FSDP_KEPT ? 1 : (size_t)unit->params[i].outer;
    }
    return n;
}

static size_t fill_pieces(const struct fsdp_unit *unit, shoal_window_piece *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        size_t to_bytes = dtype_bytes(param->compute);
        if (unit->state == FSDP_KEPT) {
            pieces[n++] = (shoal_window_piece){.data = address_pointer(param->kept),
                                               .count = param->kept_count,
                                               .data_dtype = param->compute,
                                               .window_dtype = param->compute,
                                               .offset = param->window_offset + param->kept_begin * to_bytes};
            continue;
        }
        if (param->extension) {
            n += fsdp_encoded_piece(unit, param, &pieces[n]);
            continue;
        }
        size_t piece_count = fsdp_param_piece_count(param);
        size_t from_bytes = dtype_bytes(param->dtype);
        const char *shard = address_pointer(param->shard);
        for (int64_t o = 0; o < param->outer; o++) {
            pieces[n++] =
                (shoal_window_piece){.data = shard + (size_t)o * piece_count * from_bytes,
                                     .count = piece_count,
                                     .data_dtype = param->dtype,
                                     .window_dtype = param->compute,
                                     .offset = param->window_offset + fsdp_param_offset(param, o) * to_bytes};
        }
    }
    return n;
}

/* How many bytes of windows the pool may have: one window for the unit that computes, one for a unit that is gathered
   ahead of a backward pass, forward_prefetch for units that are gathered ahead of a forward pass. Units that stay
   gathered come on top. */
static size_t windows_limit(const struct fsdp_context *context, const struct fsdp_domain *domain)
{
    size_t largest = 0;
    size_t stays = 0;
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        if (unit->domain != domain) {
            continue;
        }
        largest = unit->gather.window_bytes > largest ? unit->gather.window_bytes : largest;
        stays += unit->config.reshard == SHOAL_RESHARD_NEVER ? unit->gather.window_bytes : 0;
    }
    return (size_t)(2 + (context->config.forward_prefetch > 0 ? context->config.forward_prefetch : 0)) *
               largest +
           stays;
}

static shoal_status take_window(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    bool is_kept = unit->state == FSDP_KEPT;
    struct fsdp_pool *pool = is_kept ? &unit->gather.neighbours->windows : &unit->domain->pools.windows;
    unit->gather.window = fsdp_pool_take(pool, unit->gather.window_bytes);
    if (unit->gather.window) {
        return SHOAL_OK;
    }
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_WINDOW);
    TRY(fsdp_common_meet(context, &purpose));
    return fsdp_pool_make(pool, unit->gather.window_bytes, windows_limit(context, unit->domain), &purpose,
                          &unit->gather.window);
}

/* What a write to the parameters is called, if faults are explained. */
static void name_window(const struct fsdp_unit *unit)
{
    char text[256];
    const struct fsdp_block *window = unit->gather.window;
    if (window->fault_number == EXPLAIN_FAULTS_NONE) {
        return;
    }
    const shoal_group *group = unit->mesh->gather;
    /* Units without a name of their own are called "unit 1". */
    const char *kind = strncmp(unit->name, "unit ", strlen("unit ")) == 0 ? "" : "unit ";
    (void)snprintf(
        text, sizeof text,
        "shoal: rank %d wrote to gathered parameters of %s%.150s, which are read-only: only shards may "
        "be written\n",
        shoal_group_world_rank(group, shoal_group_rank(group)), kind, unit->name);
    explain_faults_name(window->fault_number, text);
}

static shoal_status start(struct fsdp_unit *unit)
{
    size_t n_pieces = count_pieces(unit);
    shoal_window_piece *pieces = mem_alloc(n_pieces * sizeof *pieces);
    if (!pieces) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = fsdp_encoded_stage(unit);
    if (status == SHOAL_OK) {
        status = take_window(unit);
    }
    if (status == SHOAL_OK) {
        name_window(unit);
        n_pieces = fill_pieces(unit, pieces);
        struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_GATHER);
        const struct window_decoder decoder = {.decode = fsdp_encoded_decode, .context = unit};
        status = collectives_window_gather_start(unit->gather.window->window, pieces, n_pieces, &purpose,
                                                 address_is_none(unit->gather.staged) ? NULL : &decoder,
                                                 &unit->gather.work);
    }
    if (status != SHOAL_OK) {
        fsdp_encoded_drop(unit);
    }
    if (status != SHOAL_OK && unit->gather.window) { /* no gather has begun: nothing to release */
        fsdp_pool_give_back(unit->gather.window);
        unit->gather.window = NULL;
    }
    mem_free(pieces);
    return status;
}

/* The parameters are in the window already. */
static shoal_status finish(struct fsdp_unit *unit)
{
    fsdp_encoded_drop(unit);
    return SHOAL_OK;
}

const struct fsdp_gather_way fsdp_gather_window = {
    .name = "window", .start = start, .finish = finish, .drop = fsdp_encoded_drop};
