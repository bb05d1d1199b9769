/* SPDX-License-Identifier: MIT */
/*
 * From tensors to a raw collective in flight. A kernel of this layer
 *
 *   - begins a launch;
 *   - asks for the memory of each tensor as the raw call needs it: contiguous, blocks of ranks one after the other. A
 *     tensor that is laid out differently is staged: inputs at once, outputs by copies when the data has arrived;
 *   - adds what ranks must have in common beyond the raw collective, and starts the collective, into launch.work;
 *   - ends the launch: every storage that is touched then has a fence for the work, and nobody has waited.
 *
 * Everything that can fail is done before the collective starts, because a started collective cannot be taken back.
 *
 * The dispatcher has waited for the inputs before it called the kernel.
 */
#ifndef COLLECTIVE_LAUNCH_H
#define COLLECTIVE_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/group.h"
#include "shoal/work.h"
#include "tensor/tensor.h"
#include "transport/collective.h"

struct fence;
struct flight; /* launch.c: what is copied when the data has arrived */

/* A storage that the work touches, and the fence that will be set there. */
struct launch_fence {
    struct storage *storage; /* of a tensor of the call, borrowed; or of a staging buffer, owned */
    struct fence *fence;
    bool is_write;
    bool is_owned;
};

#define LAUNCH_INLINE_FENCES 6
#define LAUNCH_INLINE_DETAILS 24

struct launch {
    shoal_group *group;
    int n_ranks;
    shoal_work *work; /* of the raw call */
    struct launch_fence *fences;
    size_t n_fences;
    size_t capacity;
    struct launch_fence inline_fences[LAUNCH_INLINE_FENCES];
    struct flight *flight; /* NULL if there is nothing to copy afterwards */
    shoal_device device;   /* of the tensors of the call */
    bool is_transfer; /* point to point: never waited for in the call, because the peer might do the same */
    void *scratch;    /* launch_alloc */
    /* What ranks compare besides the raw call: items as in transport/purpose.h. */
    int64_t *details;
    size_t n_details;
    size_t details_capacity;
    bool has_no_memory; /* there was no memory for details */
    int64_t inline_details[LAUNCH_INLINE_DETAILS];
};

/* The forms of one family (in place or not, and so on) move the same data, so ranks may mix them. */
enum launch_family {
#define FAMILY(name, text) LAUNCH_##name,
#include "collective/families.def"
#undef FAMILY
    LAUNCH_FAMILIES
};

void launch_begin(struct launch *launch, shoal_group *group);

/*
 * Ends the launch. `status` is the outcome of everything since launch_begin. On failure everything is undone. With
 * SHOAL_SYNC the work is waited for, and its failure is returned.
 */
shoal_status launch_end(struct launch *launch, shoal_status status);

/* Allocates memory for lists and counts that lives until launch_end. Call it once per launch. Returns NULL if memory
   runs out. */
void *launch_alloc(struct launch *launch, size_t count, size_t size);

/*
 * Add what must be equal on all ranks and is not part of the raw call: shapes, dimensions, permutations, in the order
 * in which errors list them. What may differ between ranks (splits, strides, in place or not) is not added.
 */
void launch_say_shape(struct launch *launch, const shoal_tensor *tensor);
void launch_say_number(struct launch *launch, int64_t number);
void launch_say_numbers(struct launch *launch, const int64_t *numbers, size_t n);

/* Starts the raw collective, with the details that were added, into launch->work. `call` is as for collectives_start
   (comm/call/collectives.h). */
shoal_status launch_start(struct launch *launch, enum launch_family family, struct collective *call);
shoal_status launch_start_list(struct launch *launch, enum launch_family family, struct collective *call,
                               const shoal_part *parts, size_t n_parts);

/* The memory of an input, contiguous. */
shoal_status launch_input(struct launch *launch, shoal_tensor *tensor, const void **data_out);
/* An input as n_ranks blocks along `dim`, each contiguous, one after the other. */
shoal_status launch_input_blocks(struct launch *launch, shoal_tensor *tensor, int dim, const void **data_out);

/* The memory of an output, contiguous. */
shoal_status launch_output(struct launch *launch, shoal_tensor *tensor, void **data_out);
/* An output that the collective fills as n_ranks blocks along `dim`, one after the other. */
shoal_status launch_output_blocks(struct launch *launch, shoal_tensor *tensor, int dim, void **data_out);
/* Memory for blocks one after the other; block r becomes tensors[r]. */
shoal_status launch_output_list(struct launch *launch, shoal_tensor *const *tensors, void **data_out);

/* Makes the tensor a copy of contiguous memory when the work has ended. A fence of this launch keeps that memory. */
shoal_status launch_output_copy(struct launch *launch, shoal_tensor *tensor, const void *data);

/* The memory of a tensor that is read and written. */
shoal_status launch_in_place(struct launch *launch, shoal_tensor *tensor, void **data_out);

/* Makes a tensor count as ready when the work has ended, although the work does not use its memory. */
shoal_status launch_mark(struct launch *launch, shoal_tensor *tensor);

#endif
