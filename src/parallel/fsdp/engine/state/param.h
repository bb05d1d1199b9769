/* SPDX-License-Identifier: MIT */
/*
 * A parameter that is cut among ranks. Its shape is seen as [outer, size, inner], where `size` is the dimension that
 * is cut. With n shards, rank i has rows i*chunk ... min((i+1)*chunk, size), chunk = ceil(size / n): the last shards
 * may be short or empty. A dimension other than the first must divide evenly.
 *
 * The shard is at the front of a buffer that has the same size on every rank; the rest of it is zero and not used.
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_PARAM_H
#define PARALLEL_FSDP_ENGINE_STATE_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/address.h"
#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

/* Alignment of parameters and gradients that lie in one block of memory. */
#define FSDP_ALIGNMENT 64

static inline size_t fsdp_round_up(size_t bytes)
{
    return (bytes + FSDP_ALIGNMENT - 1) / FSDP_ALIGNMENT * FSDP_ALIGNMENT;
}

struct fsdp_block;
struct fsdp_extension; /* extension.h */

struct fsdp_param {
    char *name;
    int id;              /* its number in the explicit calls */
    shoal_dtype dtype;   /* as it is stored */
    shoal_dtype compute; /* as it is gathered */
    bool requires_grad;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    int dim;
    int64_t outer;
    int64_t size;
    int64_t inner;
    int64_t chunk;
    int64_t begin;  /* this rank's first row */
    int64_t length; /* how many rows this rank has */
    size_t count;   /* elements of the whole */
    size_t shard_count;
    size_t padded_count; /* elements of a shard that is not short */
    shoal_device device;
    struct address shard;          /* padded_count elements */
    struct address shard_grad;     /* shard_count elements; made when the first gradient arrives */
    struct fsdp_block *grad_block; /* the buffer in which shard_grad lies; NULL if it has memory of its own */
    bool is_lent;                  /* a tensor owns the shard now */
    bool is_grad_lent;             /* a tensor owns shard_grad now */
    bool has_grad;
    size_t window_offset; /* bytes, in the unit's window */
    size_t reduce_offset; /* bytes, in the unit's reduce buffer: n_shards blocks of padded_count elements */
    size_t output_offset; /* bytes, in results that lie in one piece: padded_count elements */
    bool is_reduced;      /* has a place in the unit's buffer */
    bool is_dropped; /* with modules: it was frozen since its forward pass, and its shard gets no gradient */
    bool is_partial; /* has a place in grads.partial, which waits for the replicas */
    bool is_direct;  /* kernels write the gradient in the buffer, from which it is reduced */
    bool is_unset;   /* its place in the buffer was not written yet, and holds old data */
    bool is_clear;   /* its place in grads.data holds no gradient; zeros, if grads.is_zeroed */
    bool has_whole; /* with modules: its place in the buffer holds a gradient, of this pass or earlier ones */
    size_t grad_offset;  /* bytes, in grads.data; used unless is_direct */
    struct address kept; /* kept_count elements of `compute`, while the unit is sharded over neighbours */
    size_t kept_begin;   /* the first of them, as an index into the whole */
    size_t kept_count;
    struct fsdp_extension *extension; /* what is gathered in place of elements; NULL if these are */
};

/* An array that is cut like a parameter: the values of its shard, or something of the same shape (an optimizer's
   moment). */
struct fsdp_array {
    const struct fsdp_param *param; /* how it is cut */
    shoal_dtype dtype;
    shoal_device device;
    struct address shard; /* this rank's part */
    bool is_padded;       /* it has room for padded_count elements; otherwise for shard_count */
};

/* A shape as "[3,4]", for error texts. */
enum {
    FSDP_SHAPE_BYTES = 8 + SHOAL_MAX_DIMS * 21
};

void fsdp_write_shape(int n_dims, const int64_t *shape, char *text);

/* Makes a parameter without data, for memory of the CPU. It is part `shard` of `n_shards`. */
shoal_status fsdp_param_init(struct fsdp_param *param, const char *name, shoal_dtype dtype, int n_dims,
                             const int64_t *shape, int dim, int shard, int n_shards);
void fsdp_param_free(struct fsdp_param *param);

/* Drops the gradient. Memory of its own is kept for the next one. */
void fsdp_param_drop_grad(struct fsdp_param *param);

/* Allocates the shard, filled with zeros. */
shoal_status fsdp_param_allocate(struct fsdp_param *param);
/* Copies this rank's part out of the whole array, which is in host memory. */
shoal_status fsdp_array_load(const struct fsdp_array *array, const void *full);
/* Copies this rank's part out of a slice of the whole: `length` indices from `offset` on, along the dimension that is
   cut. *has_part_out: whether this rank has a part in it. */
shoal_status fsdp_array_load_slice(const struct fsdp_array *array, int64_t offset, int64_t length,
                                   const void *slice, bool *has_part_out);

/* Copies this rank's part to host memory. Waits for a device, as long as op_read_bytes says. */
shoal_status fsdp_array_read(const struct fsdp_array *array, void *target, double timeout_s);

/* Copies this rank's part of the parameter out of the whole, which is on the parameter's device. */
void fsdp_param_cut(const struct fsdp_param *param, struct address full);

/* The values of a parameter. */
static inline struct fsdp_array fsdp_param_values(const struct fsdp_param *param)
{
    return (struct fsdp_array){.param = param,
                               .dtype = param->dtype,
                               .device = param->device,
                               .shard = param->shard,
                               .is_padded = true};
}

/* The rows of shard i, along the dimension that is cut. */
static inline void fsdp_param_rows(const struct fsdp_param *param, int64_t i, int64_t *begin_out,
                                   int64_t *end_out)
{
    int64_t begin = i * param->chunk;
    int64_t end = begin + param->chunk;
    *begin_out = begin < param->size ? begin : param->size;
    *end_out = end < param->size ? end : param->size;
}

/* How many elements of the whole come before piece `o` of this rank's part, where `o` counts the outer dimension. */
static inline size_t fsdp_param_offset(const struct fsdp_param *param, int64_t o)
{
    return (size_t)((o * param->size + param->begin) * param->inner);
}

/* How many elements a piece has: this rank's rows at one index of the outer dimension. */
static inline size_t fsdp_param_piece_count(const struct fsdp_param *param)
{
    return (size_t)(param->length * param->inner);
}

#endif
