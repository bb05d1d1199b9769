/* SPDX-License-Identifier: MIT */
/*
 * Wraps a module: collects its parameters, compares them between ranks, opens a lane, adds hooks to the leaves, and
 * broadcasts the values of the first rank. If something fails on one rank, all ranks still make the same collectives
 * and are told. The block of gradients is made later, by backward passes (block.h).
 */
#include <math.h>
#include <stdio.h>

#include "base/changes.h"
#include "base/error.h"
#include "base/fp_mode.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "collective/gradient_buckets.h"
#include "comm/call/collectives.h"
#include "op/operand.h"
#include "parallel/claim.h"
#include "parallel/ddp/agree.h"
#include "parallel/ddp/backward.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/collect.h"
#include "parallel/ddp/confirm.h"
#include "parallel/ddp/follow.h"
#include "parallel/ddp/forward.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/values.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

#define DEFAULT_FIRST_BYTES ((size_t)GRADIENT_BUCKETS_FIRST_MB << 20)
#define DEFAULT_BUCKET_BYTES ((size_t)GRADIENT_BUCKETS_MB << 20)

/* Wrapping ----------------------------------------------------------------------------------------------- */

static shoal_status hang_up(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(ddp_add_hooks(&ddp->params[i]));
    }
    for (size_t i = 0; i < ddp->inner.n_modules; i++) {
        TRY(claim_cover(ddp->inner.modules[i], CLAIMANT_DDP, ddp));
    }
    TRY(ddp_guard(ddp));
    TRY(ddp_hook_forward(ddp));
    return claim_take(ddp->module, CLAIMANT_DDP, ddp, ddp_release_claim);
}

/* Called when the ranks agree. */
static shoal_status wrap_together(struct ddp_collector *collector, shoal_group *lane)
{
    struct ddp *ddp = collector->ddp;
    shoal_status mine = ddp_open(ddp);
    TRY(ddp_confirm(lane, mine == SHOAL_OK ? hang_up(ddp) : mine));
    return collector->options->keeps_parameters ? SHOAL_OK : ddp_broadcast(lane, &collector->list);
}

/* Keeps what a later wrapping of the same module needs. */
static shoal_status keep_options(struct ddp *ddp, const shoal_ddp_options *given)
{
    shoal_ddp_options *options = &ddp->config.options;
    shoal_tensor **ignored = mem_alloc_zeroed(given->n_ignored + 1, sizeof ignored[0]);
    if (!ignored) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < given->n_ignored; i++) {
        ignored[i] = shoal_tensor_ref(given->ignored[i]);
    }
    *options = *given;
    options->ignored = ignored;
    return SHOAL_OK;
}

static shoal_status wrap(struct ddp_collector *collector)
{
    struct ddp *ddp = collector->ddp;
    shoal_group *lane;
    TRY(ddp_open_lane(ddp->group, "ddp", &lane));
    struct purpose purpose = {.id = PURPOSE_DDP_WRAP, .words = shoal_module_type(ddp->module)};
    TRY(ddp_order_find(ddp->group, &ddp->order.shared));
    TRY(ddp_order_compare(ddp->order.shared, &purpose, NULL, 0));
    shoal_status mine = keep_options(ddp, collector->options);
    TRY(ddp_agree(collector, lane, mine == SHOAL_OK ? ddp_collect(collector) : mine));
    return wrap_together(collector, lane);
}

static shoal_status check_options(const shoal_ddp_options *options)
{
    if (!options->group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    if (!options->ignored && options->n_ignored > 0) {
        return error_set(SHOAL_ERR_INVALID, "ignored is NULL, but n_ignored is %zu", options->n_ignored);
    }
    if (!(options->divide_factor >= 0.0) || isinf(options->divide_factor)) {
        return error_set(
            SHOAL_ERR_INVALID,
            "divide_factor is %g, but must be a finite number of 0 (the number of ranks) or more",
            options->divide_factor);
    }
    return SHOAL_OK;
}

static FP_MODE_APART double invert(double factor)
{
    return 1.0 / factor;
}

/* Chooses the operator that divides the sum of the gradients by the factor. */
static void choose_reduce(struct ddp_config *config, double divide_factor, int n_ranks)
{
    if (divide_factor == 0.0 || divide_factor == n_ranks) {
        config->reduce = SHOAL_AVG;
    } else if (divide_factor == 1.0) {
        config->reduce = SHOAL_SUM;
    } else {
        uint64_t mode = fp_mode_enter();
        config->reduce = SHOAL_PREMUL_SUM;
        config->factor = invert(divide_factor);
        fp_mode_leave(mode);
    }
}

static shoal_status create(shoal_module *module, const shoal_ddp_options *options)
{
    struct ddp *ddp = mem_alloc_zeroed(1, sizeof *ddp);
    if (!ddp) {
        return SHOAL_ERR_NO_MEMORY;
    }
    ddp->module = module;
    ddp->group = options->group;
    choose_reduce(&ddp->config, options->divide_factor, shoal_group_n_ranks(options->group));
    ddp->config.reduce_unused = options->reduce_unused;
    ddp->config.first_bytes =
        options->first_bucket_bytes > 0 ? options->first_bucket_bytes : DEFAULT_FIRST_BYTES;
    ddp->config.bucket_bytes = options->bucket_bytes > 0 ? options->bucket_bytes : DEFAULT_BUCKET_BYTES;
    ddp->wants_sync = true;
    ddp->forwards.list = (struct forward_list){.owner = ddp, .keep = ddp_keep, .let_go = ddp_let_go};
    struct ddp_collector collector = {.ddp = ddp, .options = options};
    shoal_status status = wrap(&collector);
    ddp_tensors_free(&collector.list);
    if (status != SHOAL_OK) {
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        if (ddp_of(module) == ddp) {
            claim_drop(module, CLAIMANT_DDP); /* frees `ddp` */
        } else {
            ddp_free(ddp);
        }
        return error_set(status, "%s", text);
    }
    ddp->looked = changes_latest();
    return SHOAL_OK;
}

shoal_status shoal_ddp(shoal_module *module, const shoal_ddp_options *given)
{
    shoal_ddp_options options = {.struct_size = sizeof options};
    if (!module) {
        return error_prefix(error_null("module"), "ddp");
    }
    error_clear();
    shoal_status status =
        struct_size_read("shoal_ddp_options", given, sizeof(size_t), &options, sizeof options);
    if (status == SHOAL_OK) {
        status = check_options(&options);
    }
    if (status == SHOAL_OK) {
        status = create(module, &options);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp");
}
