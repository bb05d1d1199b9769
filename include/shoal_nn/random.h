/* SPDX-License-Identifier: MIT */
/*
 * Random numbers for training: initial values of parameters, dropout, and the draws that both are made of.
 *
 *     const shoal_nn_distribution weights = SHOAL_NN_KAIMING_UNIFORM(sqrt(2), SHOAL_NN_FAN_IN);
 *     const shoal_nn_distribution zeros = SHOAL_NN_UNIFORM(0, 0);
 *     status = shoal_nn_initialize(model, "*weight", &weights, seed);   before or after shoal_fully_shard
 *     status = shoal_nn_initialize(model, "*bias", &zeros, seed);
 *
 *     int64_t position[3] = {seed, step, first_sample};   of this rank's micro-batch, in the whole batch
 *     shoal_tensor *at = shoal_from_memory(position, (int64_t[]){3}, 1, SHOAL_I64, NULL, NULL, NULL);
 *     hidden = shoal_nn_dropout(hidden, at, shoal_nn_stream("blocks.3"), 0.1);
 *
 * There is no generator with a state. A draw is a function of five numbers, so its value does not depend on the rank
 * that makes it, on the order, on micro-batches, on repetitions or on compilation:
 *
 *     seed      the seed of the run
 *     stream    who draws: a parameter, a dropout layer. shoal_nn_stream makes a stream from a name
 *     step      the number of the training step; 0 for initial values
 *     sample    the number of the sample in the whole batch, over all ranks and micro-batches; 0 for initial values
 *     element   the index within the sample, or within the whole parameter, in row-major order
 *
 * The definition. Philox4x32-10 of Random123 maps a counter of four 32-bit words and a key of two to four words. A
 * 64-bit number takes two words, the lower half first.
 *     (k0, k1, ., .)     = philox(counter (stream, step), key (seed))
 *     words 4b .. 4b + 3 = philox(counter (sample, b), key (k0, k1))
 * Element i of a 32-bit draw is word i; of a 64-bit draw it is (word 2i) + 2^32 * (word 2i + 1).
 *
 *     uniform, f32   u = the upper 24 bits / 2^24            uniform, f64   u = the upper 53 bits / 2^53
 *                    low + (high - low) * u in f64, rounded to the type. Rounding may give `high` itself.
 *     normal, f32    u = (word + 1/2) / 2^32                 normal, f64    u = (the upper 52 bits + 1/2) / 2^52
 *                    mean + std * z in f64, rounded to the type; z is the inverse of the normal distribution at u, by
 *                    Wichura's algorithm AS 241, with a logarithm of our own. |z| is at most 6.4 in f32 and 8.3 in f64.
 *     bf16, f16      the f32 draw, rounded once more
 *
 * Bits: all of this uses integers, and + - * / and square roots of IEEE 754. The bits are the same with every machine,
 * compiler, number of ranks and floating-point mode.
 *
 * Ownership: returned tensors belong to the innermost scope; memory that a call fills stays the caller's.
 * Threads: any.
 * Errors: a status, or NULL with the error in the scope. A call that fails has written nothing.
 */
#ifndef SHOAL_NN_RANDOM_H
#define SHOAL_NN_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/module.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Draws ------------------------------------------------------------------------------------------------ */

/* Names a sequence of draws: all but the element. */
typedef struct shoal_nn_draws {
    uint64_t seed;
    uint64_t stream;
    uint64_t step;
    uint64_t sample;
} shoal_nn_draws;

/* Gives the stream of a name: the 64-bit FNV-1a hash of its bytes (begin with 0xcbf29ce484222325; for each byte: xor
   it, then multiply by 0x100000001b3). NULL counts as "". */
SHOAL_API uint64_t shoal_nn_stream(const char *name);

/* Writes words first .. first + count - 1 of the sequence, all of them below number 2^63. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_words(const shoal_nn_draws *draws, uint64_t first,
                                                       size_t count, uint32_t *words_out);

/* Distributions ---------------------------------------------------------------------------------------- */

typedef enum shoal_nn_distribution_kind {
    SHOAL_NN_KIND_UNIFORM = 1,
    SHOAL_NN_KIND_NORMAL = 2,
    SHOAL_NN_KIND_XAVIER_UNIFORM = 3,  /* from -a to a, with a = sqrt(3) * std of XAVIER_NORMAL */
    SHOAL_NN_KIND_XAVIER_NORMAL = 4,   /* mean 0, std = gain * sqrt(2 / (fan_in + fan_out)) */
    SHOAL_NN_KIND_KAIMING_UNIFORM = 5, /* from -a to a, with a = sqrt(3) * std of KAIMING_NORMAL */
    SHOAL_NN_KIND_KAIMING_NORMAL = 6   /* mean 0, std = gain / sqrt(fan) */
} shoal_nn_distribution_kind;

/*
 * As in PyTorch: fan_in = shape[1] * shape[2] * ..., fan_out = shape[0] * shape[2] * ..., of the whole parameter,
 * which has two dimensions or more. For a linear layer's weight [out, in] these are in and out.
 */
typedef enum shoal_nn_fan {
    SHOAL_NN_FAN_IN = 0,
    SHOAL_NN_FAN_OUT = 1
} shoal_nn_fan;

typedef struct shoal_nn_distribution {
    size_t struct_size; /* sizeof(shoal_nn_distribution) */
    shoal_nn_distribution_kind kind;
    double low; /* UNIFORM; low and high may be equal: a constant */
    double high;
    double mean; /* NORMAL */
    double std;
    double gain;      /* XAVIER and KAIMING */
    shoal_nn_fan fan; /* KAIMING */
} shoal_nn_distribution;
#define SHOAL_NN_DISTRIBUTION_INIT SHOAL_SIZED(shoal_nn_distribution)

/* Initializers, one for each kind. */
#define SHOAL_NN_UNIFORM(low, high)                                                                   \
    {                                                                                                 \
        sizeof(shoal_nn_distribution), SHOAL_NN_KIND_UNIFORM, (low), (high), 0, 0, 0, SHOAL_NN_FAN_IN \
    }
#define SHOAL_NN_NORMAL(mean, std)                                                                   \
    {                                                                                                \
        sizeof(shoal_nn_distribution), SHOAL_NN_KIND_NORMAL, 0, 0, (mean), (std), 0, SHOAL_NN_FAN_IN \
    }
#define SHOAL_NN_XAVIER_UNIFORM(gain)                                                                    \
    {                                                                                                    \
        sizeof(shoal_nn_distribution), SHOAL_NN_KIND_XAVIER_UNIFORM, 0, 0, 0, 0, (gain), SHOAL_NN_FAN_IN \
    }
#define SHOAL_NN_XAVIER_NORMAL(gain)                                                                    \
    {                                                                                                   \
        sizeof(shoal_nn_distribution), SHOAL_NN_KIND_XAVIER_NORMAL, 0, 0, 0, 0, (gain), SHOAL_NN_FAN_IN \
    }
#define SHOAL_NN_KAIMING_UNIFORM(gain, fan)                                                     \
    {                                                                                           \
        sizeof(shoal_nn_distribution), SHOAL_NN_KIND_KAIMING_UNIFORM, 0, 0, 0, 0, (gain), (fan) \
    }
#define SHOAL_NN_KAIMING_NORMAL(gain, fan)                                                     \
    {                                                                                          \
        sizeof(shoal_nn_distribution), SHOAL_NN_KIND_KAIMING_NORMAL, 0, 0, 0, 0, (gain), (fan) \
    }

/* What follows a layer, for shoal_nn_gain. */
typedef enum shoal_nn_nonlinearity {
    SHOAL_NN_LINEAR = 0,
    SHOAL_NN_SIGMOID = 1,
    SHOAL_NN_TANH = 2,
    SHOAL_NN_RELU = 3,
    SHOAL_NN_LEAKY_RELU = 4,
    SHOAL_NN_SELU = 5
} shoal_nn_nonlinearity;

/* Gives the gain that suits a nonlinearity, as PyTorch's calculate_gain does. `slope` is the negative slope of a leaky
   relu; the others ignore it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_gain(shoal_nn_nonlinearity nonlinearity, double slope,
                                                      double *gain_out);

/* Filling memory and tensors --------------------------------------------------------------------------- */

/* A part of a whole: `length` indices from `offset` on along `dim`, and all indices of the other dimensions. */
typedef struct shoal_nn_part {
    const int64_t *shape; /* of the whole */
    int n_dims;           /* at least 1 */
    int dim;
    int64_t offset;
    int64_t length; /* may be 0 */
} shoal_nn_part;

/*
 * Fills contiguous memory with the values that a part of a parameter has if the whole is filled. Use it for shards in
 * memory of the program, for example with shoal/fsdp.h:
 *
 *     shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
 *     status = shoal_fsdp_get_layout(shoal_fsdp_param_of(f, id), &layout);
 *     shoal_nn_part part = {layout.shape, layout.n_dims, layout.dim, layout.offset, layout.length};
 *     status = shoal_fsdp_update_shard(f, id, &shard);
 *     status = shoal_nn_fill_part(&draws, &distribution, layout.dtype, &part, shard.data);
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_fill_part(const shoal_nn_draws *draws,
                                                           const shoal_nn_distribution *distribution,
                                                           shoal_dtype dtype, const shoal_nn_part *part,
                                                           void *data);

/* Fills a whole tensor of a floating dtype, with any strides, in place. It is no op: neither gradients nor a captured
   step record it. For a tensor on another device the values are made in host memory, and copied there. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_fill(const shoal_nn_draws *draws,
                                                      const shoal_nn_distribution *distribution,
                                                      shoal_tensor *tensor);

/* Parameters ------------------------------------------------------------------------------------------- */

/*
 * Fills the parameters of a module whose paths match `pattern`: '*' stands for any characters, dots included, '?' for
 * one. The stream of a parameter is shoal_nn_stream of its first path from `module` (tied parameters have several);
 * step and sample are 0. A shard gets its part of what the whole parameter would get, so that sharding, the number of
 * ranks and the order in which modules are made do not matter. Every rank calls it; it does not communicate. After an
 * error no value has changed. SHOAL_ERR_INVALID: no parameter matches. SHOAL_ERR_STATE: called inside a forward pass,
 * where the module has gathered parameters.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_initialize(shoal_module *module, const char *pattern,
                                                            const shoal_nn_distribution *distribution,
                                                            uint64_t seed);

/* Dropout ---------------------------------------------------------------------------------------------- */

/*
 * Sets each element to 0 with probability p, whatever it was, and multiplies the others by 1 / (1 - p). Do not call it
 * to evaluate a model. Dimension 0 counts samples. Give each layer of a model its own stream. p = 0 gives the values of
 * `self`, p = 1 zeros.
 *
 * `position` is an i64 tensor [3]: seed, step, and the number of the first sample in the whole batch, taken as unsigned
 * numbers (-1 is 2^64 - 1). It is a tensor so that it can be an input of a compiled step. If a compiled step makes it
 * from memory itself, it is a constant, and every run draws the same mask; SHOAL_COMPILE_CHECK=1 finds that.
 *
 * An element is dropped if its word is below p * 2^32, whatever the dtype. The backward pass draws the same mask again,
 * from a copy of the position: its memory may be changed or freed before. (Inside shoal_recompute, which calls its
 * function again, it must stay until then.)
 */
SHOAL_API shoal_tensor *shoal_nn_dropout(shoal_tensor *self, shoal_tensor *position, uint64_t stream,
                                         double p);

SHOAL_END_DECLS

#endif
