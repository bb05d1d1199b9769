/* SPDX-License-Identifier: MIT */
/*
 * The engine of FSDP: units of parameters that are gathered and reduced together, and what they share. The explicit
 * calls and modules drive it by the same calls (step.h); docs/design/fsdp.md has the picture.
 *
 *     SHARDED --unshard, wait--> UNSHARDED --reshard--> SHARDED
 *                                    \--reshard after forward, over neighbours--> KEPT --unshard, wait--> UNSHARDED
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_UNIT_H
#define PARALLEL_FSDP_ENGINE_STATE_UNIT_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "shoal/fsdp_unit.h"
#include "shoal/work.h"

enum fsdp_state {
    FSDP_SHARDED,
    FSDP_KEPT, /* sharded over neighbours, after the forward pass */
    FSDP_UNSHARDED
};

/* Where in a step a unit is. */
enum fsdp_phase {
    FSDP_IDLE,
    FSDP_FORWARD,
    FSDP_PRE_BACKWARD,
    FSDP_POST_BACKWARD
};

/* Events that tests listen to. */
enum fsdp_event {
    FSDP_EVENT_UNSHARD, /* a gather was issued */
    FSDP_EVENT_RESHARD,
    FSDP_EVENT_POST_BACKWARD
};

struct fsdp_context;
struct fsdp_domain;
struct fsdp_gather_way;
struct fsdp_kept;
struct fsdp_mesh;
struct fsdp_unit;

/* Callbacks by which modules follow their unit. The explicit calls have none. */
struct fsdp_watch {
    /* Parameters are about to be gathered: from the shards or, in state FSDP_KEPT, from what neighbours kept. */
    shoal_status (*gathering)(struct fsdp_unit *unit);
    /* unsharded: the full parameters have arrived. resharding: they are about to be given up. */
    shoal_status (*unsharded)(struct fsdp_unit *unit);
    void (*resharding)(struct fsdp_unit *unit);
    /* Whether backward passes have left gradients that are not in the buffer. */
    bool (*has_kept)(const struct fsdp_unit *unit);
    /* Whether a compiled step has left such gradients in the dtype of the reduction, which is not the dtype of
       backward passes. */
    bool (*has_cast)(const struct fsdp_unit *unit);
    /* A backward pass begins: whole gradients in the buffer become the gradients of the full tensors, in the same
       memory. */
    shoal_status (*lend)(struct fsdp_unit *unit);
    /* The backward pass is over: puts gradients into the buffer (fsdp_unit_put_grad), if there are any to reduce. */
    shoal_status (*collect)(struct fsdp_unit *unit);
    /* The same where nothing has to be sent: adds gradients to those of the shards at once (fsdp_land_whole), without a
       buffer. Landing and landed are part of it. It tells other ranks of failures. */
    shoal_status (*land_alone)(struct fsdp_unit *unit);
    /* Whether the world is closed. Also called before the unit has a context. */
    bool (*is_closed)(const struct fsdp_unit *unit);
    /* SHOAL_ERR_STATE, with the call in front, if a backward pass is running or has failed. */
    shoal_status (*check_ended)(const struct fsdp_unit *unit, const char *call);
    /* The unit is about to be gathered by hand: gives it a context, and prepares the context. */
    shoal_status (*prepare)(struct fsdp_unit *unit);
    /* The unit was gathered by hand, and is used outside of a step. */
    shoal_status (*held)(struct fsdp_unit *unit);
    /* The values of a shard are about to be read; are about to be overwritten; have been written. */
    shoal_status (*reading)(struct fsdp_unit *unit, size_t index);
    shoal_status (*writing)(struct fsdp_unit *unit, size_t index);
    void (*written)(struct fsdp_unit *unit, size_t index);
    /* Whether a shard was made without values, and nobody has written it yet. */
    bool (*needs_values)(const struct fsdp_unit *unit, size_t index);
    /* Fills in the gradient of a whole parameter, if a backward pass left it elsewhere than in the buffer. */
    shoal_status (*get_pending)(struct fsdp_unit *unit, size_t index, shoal_pending_gradient *pending);
    /* Puts into grads.partial what a compiled step has left elsewhere. */
    shoal_status (*give_partial)(struct fsdp_unit *unit);
    /* landing: reduced gradients are about to be added to the gradients of the shards; sets has_grad where the shard
       still has one. landed: they have been added. */
    shoal_status (*landing)(struct fsdp_unit *unit);
    shoal_status (*landed)(struct fsdp_unit *unit);
};

/* The settings of a unit. Most may change between steps. */
struct fsdp_unit_config {
    double divide_factor;
    int reshard_ranks;
    shoal_sharded sharded; /* set when the unit is made */
    shoal_reshard wanted_reshard;
    shoal_reshard reshard;       /* fsdp_effective_reshard of it; known once prepared */
    shoal_dtype param_dtype;     /* 0 means as stored */
    shoal_dtype reduce_dtype;    /* 0 means the dtype of the gradients */
    bool reshard_after_backward; /* false where parameters are not sharded */
    bool unshard_in_backward;
    bool sync;       /* gradients are reduced in post_backward */
    bool all_reduce; /* they are reduced over replicas, too */
    bool force_sum;
    bool reduce_unused; /* parameters without a gradient take part with zeros */
};

/* Functions of the program (shoal/fsdp_comm.h). */
struct fsdp_unit_hooks {
    shoal_all_reduce_hook all_reduce; /* NULL if there is none */
    void *all_reduce_context;
    shoal_fsdp_accumulated_hook accumulated; /* with the explicit calls only; NULL if there is none */
    void *accumulated_context;
    shoal_custom_all_gather all_gather;         /* its `call` is NULL if there is none */
    shoal_custom_reduce_scatter reduce_scatter; /* its `call` is NULL if there is none */
};

/* Full parameters: in flight, or gathered. */
struct fsdp_unit_gather {
    const struct fsdp_gather_way *way; /* of the gather in flight; NULL if none is */
    size_t bytes;                      /* that all full parameters take; known once prepared */
    size_t window_bytes; /* the same in a window, with encoded shards where it is one of several hosts */
    shoal_work *work;    /* NULL if there is nothing to wait for */
    struct fsdp_block *window; /* a block of the pool; NULL if there is none */
    struct address
        full; /* without a window: memory for full parameters; none if the shards are used as they are */
    size_t encoded_bytes;  /* of this rank's encoded shards (encoded.h); known once prepared */
    struct address staged; /* rows (rows.h), or encoded shards, while they are gathered */
    size_t staged_bytes;
    shoal_work *compared;         /* a barrier that compares a custom gather; NULL if none is in flight */
    shoal_work *by_hand;          /* the mark of fsdp_mark_unshard; NULL if none is in flight */
    size_t n_asked;               /* the context's n_asked when the unit was last gathered from the shards */
    struct fsdp_kept *neighbours; /* with SHOAL_RESHARD_PARTLY */
    bool is_pending;              /* a gather was started and not waited for */
    shoal_status
        undecoded; /* how the decoding of this gather has failed on this rank (encoded.h); SHOAL_OK if not */
    bool is_held;  /* gathered by hand: whole parameters can be used outside of a step, too */
};

/* Gradients on their way to a reduction. */
struct fsdp_unit_grads {
    shoal_dtype dtype;         /* in which they are reduced; known once prepared */
    struct fsdp_block *buffer; /* where they are reduced; NULL if there is none yet */
    /* With SHOAL_SHARDED_STATE: a buffer that no other unit takes; NULL if there is none yet. */
    struct fsdp_block *own;
    size_t buffer_bytes;
    size_t output_bytes; /* of all results, if they lie in one piece */
    struct address data; /* memory for gradients that kernels cannot write in the buffer (is_direct) */
    size_t bytes;
    size_t capacity;
    struct address partial; /* reduced over shards, not over replicas yet */
    size_t partial_capacity;
    int64_t *purpose_details; /* of the last reduction's purpose: which parameters take part (purpose.c) */
    char *purpose_words;
    bool is_zeroed;       /* places in `data` that hold no gradient hold zeros */
    bool has_begun;       /* kernels may write gradients */
    bool has_accumulated; /* an earlier backward pass left something in the buffer */
    bool has_partial;     /* `partial` holds gradients, of the parameters with is_partial */
    bool is_owed; /* with reduce_unused: a backward pass ended without a reduction, so one must follow */
};

/* Which units are gathered ahead (prefetch.c). */
struct fsdp_unit_prefetch {
    /* What to gather when this unit has its parameters, instead of following the order of the last step. */
    struct fsdp_unit **forward;
    size_t n_forward;
    struct fsdp_unit **backward;
    size_t n_backward;
    size_t n_listed; /* how often the unit occurs in lists of all units */
};

/* Where in a step the unit is. A capture exchanges it, with fsdp_passes, for states of its own (steps.h). */
struct fsdp_unit_step {
    enum fsdp_phase phase;
    bool was_forward; /* had a forward pass in this step */
    size_t *order;    /* a stack: places in passes.order of forward passes whose backward pass is to come */
    size_t n_order;
    size_t order_capacity;
};

struct fsdp_unit {
    struct fsdp_context *context; /* with modules: NULL until a root has taken the unit */
    const struct fsdp_watch *watch;
    void *owner;                  /* the watch's */
    struct fsdp_domain *domain;   /* of the context; NULL as long as there is none */
    const struct fsdp_mesh *mesh; /* of the domain; also before there is one */
    uint32_t root;                /* the number in purposes of calls made by hand (transport/purpose.h) */
    char *name;
    int number;
    shoal_device device;       /* of all its memory */
    struct fsdp_param *params; /* fixed once the unit is prepared */
    size_t n_params;
    size_t params_capacity;
    shoal_fsdp_unit *handle;          /* what programs use the unit by */
    shoal_fsdp_param **param_handles; /* the same for each parameter */
    size_t handles_capacity;
    enum fsdp_state state;
    struct fsdp_unit_step step;
    bool is_prepared;
    bool was_loaded; /* values were loaded since the forward pass: its backward pass would see other values */
    bool is_gone;    /* freed, except for this struct, which stays until no prefetch list contains it */
    struct fsdp_unit_config config;
    struct fsdp_unit_hooks hooks;
    struct fsdp_unit_gather gather;
    struct fsdp_unit_grads grads;
    struct fsdp_unit_prefetch prefetch;
};

/* Calls the listener (context.h), if there is one. */
void fsdp_note(struct fsdp_unit *unit, enum fsdp_event event);

/* fsdp_unit_unshard starts a gather, fsdp_unit_wait waits for it. Each does nothing where there is nothing to do. */
shoal_status fsdp_unit_unshard(struct fsdp_unit *unit);
shoal_status fsdp_unit_wait(struct fsdp_unit *unit);
/* Waits for a gather whose result nobody wants. */
void fsdp_unit_forget_gather(struct fsdp_unit *unit);
/* Gives up full parameters; after a forward pass only if, and as far as, the settings say so. */
shoal_status fsdp_unit_reshard(struct fsdp_unit *unit, bool is_after_forward);
/* Waits for a gather in flight, and gives up full parameters. */
shoal_status fsdp_unit_give_up(struct fsdp_unit *unit);
/* The full parameter of a unit that is UNSHARDED. */
struct address fsdp_unit_param(const struct fsdp_unit *unit, const struct fsdp_param *param);

/* Sets what is cut among the ranks. It cannot change afterwards. */
void fsdp_unit_set_sharded(struct fsdp_unit *unit, shoal_sharded sharded);
/* Whether whole parameters stay from step to step, and are gathered again only when shards were written. */
static inline bool fsdp_unit_stays(const struct fsdp_unit *unit)
{
    return unit->config.sharded != SHOAL_SHARDED_PARAMETERS;
}

/* Whether a reduction of the unit is in flight. */
bool fsdp_unit_is_reducing(const struct fsdp_unit *unit);
/* SHOAL_ERR_STATE, with `what` in front, while the unit is in a step, or a gather or reduction of it is in flight. */
shoal_status fsdp_unit_check_idle(const struct fsdp_unit *unit, const char *what);

#endif
