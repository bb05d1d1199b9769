/* SPDX-License-Identifier: MIT */
/* A reduction in flight, an element of the context's list of them. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_IN_FLIGHT_H
#define PARALLEL_FSDP_ENGINE_STATE_IN_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parallel/fsdp/engine/state/factors.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "shoal/work.h"

struct fsdp_reduction {
    struct fsdp_unit *unit;
    struct fsdp_block *buffer; /* holds what is reduced, and the results unless there is an `output` */
    /* Memory of output_bytes, for a hook that needs results in one piece; none otherwise. */
    struct address output;
    shoal_work *work; /* NULL if there is nothing to wait for */
    struct fsdp_factors factors;
    bool all_reduces;
    bool is_all_reduce; /* the work is the all-reduce over replicas, or was started by the hook */
    bool was_hooked;
    struct address staged; /* the input of a custom reduce-scatter, if there is one */
    size_t staged_bytes;
    struct address scattered; /* its result */
    size_t scattered_bytes;
    shoal_work *compared; /* a barrier beside a custom reduce-scatter; NULL if none is in flight */
    uint64_t n_gathers;   /* what fsdp_count_gathers returned when this reduction began */
};

#endif
