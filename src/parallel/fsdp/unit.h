/* SPDX-License-Identifier: MIT */
/*
 * The machine inside: units of parameters that are gathered and reduced together, and what they share. Both ways in (raw
 * calls, modules) drive it by the same five calls per unit and one at the end; docs/design/fsdp.md has the picture.
 *
 *   SHARDED --unshard, wait--> UNSHARDED --reshard--> SHARDED
 *                                  \--reshard in forward, over neighbours--> KEPT --unshard, wait--> UNSHARDED
 */
#ifndef PARALLEL_FSDP_UNIT_H
#define PARALLEL_FSDP_UNIT_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/owned.h"
#include "parallel/fsdp/factors.h"
#include "parallel/fsdp/mesh.h"
#include "parallel/fsdp/param.h"
#include "parallel/fsdp/pool.h"
#include "shoal/fsdp.h"
#include "shoal/work.h"

enum fsdp_state {
    FSDP_SHARDED,
    FSDP_KEPT, /* sharded over neighbours, after forward */
    FSDP_UNSHARDED
};

/* Where in a step a unit is. */
enum fsdp_phase {
    FSDP_IDLE,
    FSDP_FORWARD,
    FSDP_PRE_BACKWARD,
    FSDP_POST_BACKWARD
};

/* What tests listen to. */
enum fsdp_event {
    FSDP_EVENT_UNSHARD, /* a gather was issued */
    FSDP_EVENT_RESHARD,
    FSDP_EVENT_POST_BACKWARD
};

struct fsdp_unit;

/* What the module way in adds to a unit; the raw calls have none. */
struct fsdp_watch {
    /* Parameters are about to be gathered: from the shards, if that is what there is. */
    shoal_status (*gathering)(struct fsdp_unit *unit);
    /* The full parameters have arrived; are about to go. */
    shoal_status (*unsharded)(struct fsdp_unit *unit);
    void (*resharding)(struct fsdp_unit *unit);
    /* Whether backwards have left gradients that are not in the buffer. */
    bool (*has_kept)(const struct fsdp_unit *unit);
    /* The backward is over: puts gradients into the buffer (fsdp_unit_put_grad), if there are any to reduce. */
    shoal_status (*collect)(struct fsdp_unit *unit);
    /* Reduced gradients are about to be added to those of the shards (has_grad); have been. */
    shoal_status (*landing)(struct fsdp_unit *unit);
    shoal_status (*landed)(struct fsdp_unit *unit);
};

struct fsdp_unit {
    struct fsdp_context *context; /* NULL until it is known whose the unit is */
    const struct fsdp_watch *watch;
    void *owner; /* the watch's */
    char *name;
    struct fsdp_param *params; /* fixed once the unit is prepared */
    size_t n_params;
    size_t params_capacity;
    double divide_factor;
    int number;
    int reshard_ranks;
    shoal_reshard reshard;
    shoal_dtype param_dtype;   /* wanted; 0: as stored */
    shoal_dtype wanted_reduce; /* 0: that of the gradients */
    bool reshards_after_backward;
    bool unshards_in_backward;
    bool reduces;     /* gradients are reduced in post_backward */
    bool all_reduces; /* and over replicas */
    bool forces_sum;
    bool reduces_unused;        /* parameters without a gradient take part with zeros */
    shoal_all_reduce_hook hook; /* NULL: none */
    void *hook_context;
    shoal_status (*landed)(
        struct fsdp_unit *unit);        /* without a watch: gradients are in the shards; NULL: nobody asks */
    shoal_fsdp_landed_hook landed_hook; /* what that calls */
    void *landed_context;
    shoal_custom_all_gather custom_gather; /* without a call: windows */
    shoal_custom_reduce_scatter custom_scatter;
    /* Instead of the orders of the last step: what to gather when this one has its parameters. */
    struct fsdp_unit **forward_list;
    size_t n_forward_list;
    struct fsdp_unit **backward_list;
    size_t n_backward_list;
    size_t n_listed; /* times that it is in a list of another or its own */
    bool is_gone;    /* freed but for these lines, until no list has it */

    /* Known once prepared. */
    size_t window_bytes;
    size_t reduce_bytes;
    size_t output_bytes;
    size_t grads_bytes;
    struct fsdp_kept *neighbours; /* with SHOAL_RESHARD_PARTLY */
    shoal_dtype reduce_dtype;
    bool is_prepared;
    bool was_forward; /* has had one in this step */
    bool is_pending;  /* unsharded but not waited for */
    bool is_held;     /* unsharded by hand, and to be looked at outside of a step */
    enum fsdp_state state;
    enum fsdp_phase phase;
    shoal_work *gather; /* in flight; NULL: none */
    struct fsdp_slot *slot;
    char *full;   /* without a window: memory of our own, or the shards themselves when NULL */
    char *staged; /* memory of custom_gather while it gathers */
    size_t staged_bytes;

    /* Gradients on their way to a reduction. */
    struct fsdp_buffer *buffer; /* where they are reduced from; NULL: none yet */
    char *grads;                /* those that are not written there directly */
    size_t grads_capacity;
    char *partial; /* reduced over shards, not over replicas yet */
    size_t partial_capacity;
    size_t *order; /* places in context->order, a stack: one for each forward since the last backward */
    size_t n_order;
    size_t order_capacity;
    bool has_begun;       /* kernels may add to them */
    bool has_accumulated; /* an earlier backward left something in the buffer */
    bool has_partial;     /* of the parameters with is_partial */
    bool is_owed; /* a backward left gradients on tensors, or would have: reduces_unused is about them */
};

/* What units share that stay sharded over so many neighbours after forward. */
struct fsdp_kept {
    int n_ranks;
    struct fsdp_windows windows;
    size_t largest_bytes;
};

/* A reduction on its way. */
struct fsdp_reduction {
    struct fsdp_unit *unit;
    struct fsdp_buffer *buffer; /* input */
    char *output;               /* of our own, output_bytes */
    shoal_work *work;           /* NULL: nothing to wait for */
    struct fsdp_factors factors;
    bool all_reduces;
    bool is_all_reduce; /* what the work is: over replicas, or what the hook started */
    bool was_hooked;
    char *staged; /* memory of custom_scatter: what goes in, what comes out */
    size_t staged_bytes;
    char *scattered;
    size_t scattered_bytes;
};

struct fsdp_context {
    struct owned owned; /* first: the world's list, which tells of its end */
    bool is_closed;     /* the world is: nothing can be done any more but to free */
    struct fsdp_mesh mesh;
    shoal_fsdp_options options;
    struct fsdp_windows windows;
    struct fsdp_buffers buffers;
    struct fsdp_unit **units;
    size_t n_units;
    size_t units_capacity;
    size_t largest_bytes;        /* of windows of units that give theirs up after forward */
    size_t largest_reduce_bytes; /* of buffers */
    struct fsdp_kept **kept;
    size_t n_kept;
    size_t kept_capacity;
    bool is_prepared;
    int n_forward; /* units ahead in forward */
    int max_reduces;

    /* Of this step: units in the order of their forwards; of the last one: what to gather next. */
    struct fsdp_unit **order;
    size_t n_order;
    size_t order_capacity;
    struct fsdp_unit **forwards;
    size_t n_forwards;
    size_t forwards_capacity;
    struct fsdp_unit **last_forwards;
    size_t n_last_forwards;
    size_t last_forwards_capacity;

    struct fsdp_reduction *reductions; /* oldest first */
    size_t n_reductions;
    size_t reductions_capacity;
    shoal_work *mark; /* of the end of forwards, in flight; NULL: none */
    const struct fsdp_unit *last_reduced;
    size_t n_marks; /* so many ends of backwards, over shards; over replicas */
    size_t n_replica_marks;
    bool is_in_backward;
    bool is_not_last; /* more backwards of this step will follow this one */

    void (*listen)(void *context, enum fsdp_event event, const struct fsdp_unit *unit);
    void *listen_context;
};

shoal_status fsdp_check_options(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options);
shoal_status fsdp_check_reshard_ranks(const struct fsdp_mesh *mesh, int n_ranks);
shoal_status fsdp_context_create(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options,
                                 struct fsdp_context **context_out);
void fsdp_context_free(struct fsdp_context *context);
/* Where calls begin: SHOAL_ERR_STATE once the world is closed; lanes take the deadlines that their groups have now. */
shoal_status fsdp_context_check(const struct fsdp_context *context);

/* A new unit, the last; before the first forward. */
shoal_status fsdp_unit_create(struct fsdp_context *context, struct fsdp_unit **unit_out);
/* One that belongs to nobody yet, and its end. */
shoal_status fsdp_unit_create_alone(const char *name, struct fsdp_unit **unit_out);
void fsdp_unit_free(struct fsdp_unit *unit);
/* Puts units, whose array is taken over, in place of one of a unit's lists. */
void fsdp_list_set(struct fsdp_unit ***list, size_t *n_list, struct fsdp_unit **units, size_t n_units);
/* The context takes the unit over. */
shoal_status fsdp_context_adopt(struct fsdp_context *context, struct fsdp_unit *unit);
/* One more parameter, taken over. */
shoal_status fsdp_unit_add_param(struct fsdp_unit *unit, const struct fsdp_param *param);

/* What is wanted of a unit, with few words: always, never, or partly. */
shoal_reshard fsdp_effective_reshard(const struct fsdp_unit *unit, shoal_reshard wanted);

/* Layouts, dtypes, pools: at the first forward. */
shoal_status fsdp_prepare(struct fsdp_context *context);

/* Gathers; no-ops where there is nothing to do. */
shoal_status fsdp_unit_unshard(struct fsdp_unit *unit);
shoal_status fsdp_unit_wait(struct fsdp_unit *unit);
/* Waits for a gather whose result nobody wants. */
void fsdp_unit_forget_gather(struct fsdp_unit *unit);
shoal_status fsdp_unit_reshard(struct fsdp_unit *unit);
/* By hand, whatever the forward would do; a gather in flight is waited for. */
shoal_status fsdp_unit_give_up(struct fsdp_unit *unit);
/* The full parameter of a unit that is UNSHARDED. */
const void *fsdp_unit_param(const struct fsdp_unit *unit, const struct fsdp_param *param);

/* Collective: a parameter as a whole, in the dtype it is stored in. */
shoal_status fsdp_param_gather(const struct fsdp_param *param, const struct fsdp_mesh *mesh, void *full);

/* SHOAL_ERR_STATE, with `what` in front, while something of the unit is on its way. */
shoal_status fsdp_unit_check_idle(const struct fsdp_unit *unit, const char *what);

/* A step. */
shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit);
shoal_status fsdp_end_backward(struct fsdp_context *context);
/* No backward will follow the forwards since the order had `n_order` entries. */
void fsdp_forget_forwards(struct fsdp_context *context, size_t n_order);
/* The same, and units that no earlier forward needs for its backward are given up: their parameters may change now. */
shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order);
shoal_status fsdp_reset(struct fsdp_context *context);

/* Gradients (reduce.c) ----------------------------------------------------------------------------------- */

/* Of the buffer that the unit's gradients are reduced from and to. */
size_t fsdp_unit_reduce_bytes(const struct fsdp_unit *unit);
/* Where kernels add to the whole gradient, once it has begun. */
void *fsdp_unit_grad(struct fsdp_unit *unit, struct fsdp_param *param);
/* Memory for the gradients of a backward: zeros, or what an earlier one left. Once for each. */
shoal_status fsdp_unit_begin_grads(struct fsdp_unit *unit);
/* For a watch's collect: room for the parameters with is_reduced, unless an earlier backward left some; then the whole
   gradient of one, contiguous, of `dtype`, is put or added there. */
shoal_status fsdp_unit_take_buffer(struct fsdp_unit *unit);
void fsdp_unit_put_grad(struct fsdp_unit *unit, const struct fsdp_param *param, shoal_dtype dtype,
                        const void *grad);
/* The backward is over: to the reduction, or kept for the next one. */
shoal_status fsdp_unit_end_grads(struct fsdp_unit *unit);
/* What is kept for the replicas goes to them, without anything new. */
shoal_status fsdp_unit_reduce_partial(struct fsdp_unit *unit);
/* Ends the oldest reductions until at most `n_left` are in flight. */
shoal_status fsdp_drain(struct fsdp_context *context, size_t n_left);
/* Whether a reduction of the unit is on its way. */
bool fsdp_unit_is_reducing(const struct fsdp_unit *unit);
/* Gives up everything of a step. */
void fsdp_drop_reductions(struct fsdp_context *context);
void fsdp_unit_drop_grads(struct fsdp_unit *unit);

#endif
