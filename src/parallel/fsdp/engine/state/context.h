/* SPDX-License-Identifier: MIT */
/* What the units of a context share: lanes, pools, the order of passes, and reductions in flight. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_CONTEXT_H
#define PARALLEL_FSDP_ENGINE_STATE_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/group/owned.h"
#include "parallel/fsdp/engine/state/domain.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "shoal/fsdp.h"
#include "shoal/work.h"

struct fsdp_backend; /* step.h */
struct fsdp_reduction;

struct fsdp_unit_list {
    struct fsdp_unit **units;
    size_t n;
    size_t capacity;
};

/* The passes of a step. The order of forward passes tells which units to gather ahead. */
struct fsdp_passes {
    bool is_backward;                    /* a backward pass has begun and has not ended */
    struct fsdp_unit_list order;         /* forward passes of this step whose backward pass is to come */
    struct fsdp_unit_list forwards;      /* all forward passes of this step */
    struct fsdp_unit_list last_forwards; /* all forward passes of the step before */
};

/* Reductions in flight. */
struct fsdp_reductions {
    struct fsdp_reduction *items; /* oldest first */
    size_t n;
    size_t capacity;
    const struct fsdp_unit *last; /* the last unit that was reduced */
};

/* Barriers between passes (marks.h). */
struct fsdp_marks {
    shoal_work *forwards; /* the mark after the forward passes; NULL if none is in flight */
    /* The mark after the gathers of the backward pass; NULL if none is in flight. */
    shoal_work *gathers;
    size_t n_backwards;         /* how many backward passes were marked as ended, over shards */
    size_t n_replica_backwards; /* and over replicas */
    shoal_work *common;         /* the last mark on the common lane; NULL if there is none */
};

struct fsdp_backward {
    bool has_failed;  /* with the explicit calls: gradients of a unit may be lost, until a reset */
    bool is_not_last; /* more backward passes of this step will follow this one */
    size_t n_newer;   /* how many newer forward passes of the same module are pending (parallel/forwards.h) */
};

/* A callback for tests. */
struct fsdp_listener {
    void (*hear)(void *context, enum fsdp_event event, const struct fsdp_unit *unit);
    void *context;
};

/* Used with the explicit calls only: the first permanent failure, and its text. Every later call fails with it. */
struct fsdp_failure {
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

struct fsdp_context_config {
    int forward_prefetch; /* how many units ahead are gathered in a forward pass */
    int max_reduces;
};

struct fsdp_context {
    struct owned owned; /* first: an entry of the world's list, by which it tells of its end */
    bool is_closed;     /* the world was closed: the context can only be freed */
    bool is_prepared;
    int n_callbacks; /* functions of the program that run inside a call on the context; they must not call it */
    size_t n_asked; /* how often explicit calls gave the program the address of a shard, which it may write */
    size_t n_looked; /* n_asked when parameters that stay gathered were last checked (explicit/step.c) */
    struct fsdp_domain **domains; /* at least one; the first is that of the context, or of the root module */
    size_t n_domains;
    size_t domains_capacity;
    /* Of all ranks of all domains; NULL if there is one domain, or before the first call that needs it. */
    shoal_group *common;
    shoal_group *all_ranks;     /* ranks that it has besides, as modules say; NULL if they do not */
    shoal_group *common_parent; /* the group that it belongs to, which is held */
    uint32_t common_root;       /* the number of this context among those made on that group */
    int common_n_ranks;         /* how many ranks it has, and how many of them on this host */
    int common_n_local;
    shoal_fsdp_options options;
    struct fsdp_context_config config;
    struct fsdp_memory memory;
    struct fsdp_unit **units;
    size_t n_units;
    size_t units_capacity;
    const struct fsdp_backend *backend; /* what the passes do: work or, in a capture, ops */
    struct fsdp_passes passes;
    struct fsdp_reductions reductions;
    struct fsdp_marks marks;
    struct fsdp_backward backward;
    struct fsdp_listener listener;
    struct fsdp_failure failure;
};

/* The name of a value of shoal_reshard or shoal_sharded, for error texts. */
const char *fsdp_reshard_name(shoal_reshard reshard);
const char *fsdp_sharded_name(shoal_sharded sharded);
/* SHOAL_ERR_INVALID if parameters are not sharded, but `reshard` asks to give them up. */
shoal_status fsdp_check_sharded(shoal_sharded sharded, shoal_reshard reshard);
/* fsdp_check_sharded for groups in which every rank keeps everything; `why` says so in the error text. */
shoal_status fsdp_check_not_sharded(const char *why, shoal_sharded sharded);
shoal_status fsdp_check_options(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options);
shoal_status fsdp_check_reshard_ranks(const struct fsdp_mesh *mesh, int n_ranks);
/* `root` is the number that fsdp_mesh_next_root gave to the context, or to the wrapper that becomes the root. The mesh
   becomes the first domain. */
shoal_status fsdp_context_create(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options,
                                 uint32_t root, struct fsdp_context **context_out);
void fsdp_context_free(struct fsdp_context *context);
/* Public calls begin with this. SHOAL_ERR_STATE once the world is closed. */
shoal_status fsdp_context_check(const struct fsdp_context *context);

/* Adds a unit at the end. Call before the first forward pass. */
shoal_status fsdp_unit_create(struct fsdp_context *context, struct fsdp_domain *domain,
                              struct fsdp_unit **unit_out);
/* Makes a unit that has no context yet, and frees one. */
shoal_status fsdp_unit_create_alone(const char *name, struct fsdp_unit **unit_out);
void fsdp_unit_free(struct fsdp_unit *unit);
/* Frees the handles of a unit whose module is gone. */
void fsdp_unit_end_handles(struct fsdp_unit *unit);
/* Finds or makes the domain of a mesh. `root`: as for fsdp_context_create. */
shoal_status fsdp_context_need_domain(struct fsdp_context *context, const struct fsdp_mesh *mesh,
                                      uint32_t root, struct fsdp_domain **domain_out);
/* Adds a unit that was made alone; the context owns it from now on. */
shoal_status fsdp_context_adopt(struct fsdp_context *context, struct fsdp_domain *domain,
                                struct fsdp_unit *unit);
/* Whether this rank counts its gradients of the unit in a norm that is summed over all ranks of the context: of several
   replicas the first one does. */
bool fsdp_unit_counts(const struct fsdp_unit *unit);
/* Adds a parameter. The unit owns its memory from now on. */
shoal_status fsdp_unit_add_param(struct fsdp_unit *unit, const struct fsdp_param *param);
/* Call when parameters were moved: all of a unit are on one device. */
shoal_status fsdp_unit_set_device(struct fsdp_unit *unit);

#endif
