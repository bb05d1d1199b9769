/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/module/landed.h"

#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "shoal/autograd.h"
#include "shoal/scope.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

struct fsdp_landed {
    struct fsdp_unit *unit;
    shoal_tensor *sharded; /* one reference */
    /* When its gradient landed: */
    const shoal_tensor *gradient;
    uint64_t gradient_version;
    uint64_t version;
    bool is_read_again;
};

static shoal_status refuse(const struct fsdp_landed *landed, const char *what)
{
    return error_set(
        SHOAL_ERR_UNSUPPORTED,
        "%s has a hook that shoal_on_accumulated added, which a compiled step runs when the step "
        "is over, but the step %s after the gradient has landed",
        shoal_tensor_name(landed->sharded), what);
}

static shoal_status check(void *context)
{
    const struct fsdp_landed *landed = context;
    const shoal_tensor *gradient = leaf_gradient(landed->sharded);
    if (landed->is_read_again) {
        return refuse(landed, "gathers the parameter again");
    }
    if (shoal_tensor_version(landed->sharded) != landed->version) {
        return refuse(landed, "writes the shard");
    }
    return gradient == landed->gradient && shoal_tensor_version(gradient) == landed->gradient_version
               ? SHOAL_OK
               : refuse(landed, "changes the gradient");
}

/* Runs the hooks as the end of an eager backward pass does: in a scope of its own, with gradients off. */
static shoal_status run_hooks(const struct fsdp_landed *landed)
{
    struct leaf *leaf = leaf_of(landed->sharded);
    TRY(shoal_scope_set_grad(false));
    return leaf ? hook_list_run_leaf(&leaf->accumulated_hooks, landed->sharded) : SHOAL_OK;
}

static shoal_status run(void *context)
{
    const struct fsdp_landed *landed = context;
    TRY(shoal_scope_begin());
    shoal_status status = run_hooks(landed);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    status = shoal_scope_end();
    return status == SHOAL_OK ? SHOAL_OK : fsdp_mark_failure(landed->unit, status); /* other ranks are told */
}

static void release(void *context)
{
    struct fsdp_landed *landed = context;
    shoal_tensor_unref(landed->sharded);
    mem_free(landed);
}

static shoal_status add(struct op_tracer *tracer, struct fsdp_unit *unit, shoal_tensor *sharded,
                        struct fsdp_landed **landed_out)
{
    const shoal_tensor *gradient = leaf_gradient(sharded);
    struct fsdp_landed *landed = mem_alloc_zeroed(1, sizeof *landed);
    if (!landed) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *landed = (struct fsdp_landed){.unit = unit,
                                   .sharded = shoal_tensor_ref(sharded),
                                   .gradient = gradient,
                                   .gradient_version = shoal_tensor_version(gradient),
                                   .version = shoal_tensor_version(sharded)};
    const struct op_run_end end = {.check = check, .run = run, .release = release, .context = landed};
    shoal_status status = tracer->capture->after_run(tracer, &end);
    if (status != SHOAL_OK) {
        release(landed);
        return status;
    }
    *landed_out = landed;
    return SHOAL_OK;
}

shoal_status fsdp_landed_note(struct op_tracer *tracer, struct fsdp_unit *unit, shoal_tensor *sharded,
                              struct fsdp_landed **landed)
{
    struct leaf *leaf = leaf_of(sharded);
    if (!tracer->is_compiled || !hook_list_has_program_hook(&leaf->accumulated_hooks)) {
        return hook_list_run_leaf(&leaf->accumulated_hooks, sharded);
    }
    return *landed ? SHOAL_OK
                   : add(tracer, unit, sharded, landed); /* a second one has changed the gradient */
}

void fsdp_landed_read_again(struct fsdp_landed *landed)
{
    if (landed) {
        landed->is_read_again = true;
    }
}
