/* SPDX-License-Identifier: MIT */
/*
 * Dropout. Whether an element is dropped depends only on its index, on `position` (a tensor: seed, step, first sample),
 * the stream and the probability, not on values. So the gradient is the same op applied to the output's gradient: it
 * draws the same mask, and only the position has to be saved. If a gradient is needed, shoal_nn_dropout passes a copy
 * of the position, because the program may change or free its own before the backward pass.
 */
#include <inttypes.h>

#include "math/draws.h"
#include "ops/functions.h"
#include "math/pool.h"
#include "common/try.h"
#include "ops/values.h"

enum {
    N_POSITION = 3 /* seed, step, first sample */
};

META(dropout)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *position = arguments[1].as.tensor;
    double p = arguments[3].as.real;
    NN_TRY(nn_check_floating(self, "self"));
    if (shoal_tensor_n_dims(self) < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "self has no dimensions: dimension 0 counts samples");
    }
    if (shoal_tensor_dtype(position) != SHOAL_I64) {
        return shoal_fail(SHOAL_ERR_INVALID, "position is %s, not i64",
                          shoal_dtype_name(shoal_tensor_dtype(position)));
    }
    NN_TRY(nn_check_vector(position, "position", N_POSITION, "seed, step and first sample"));
    if (!(p >= 0 && p <= 1)) {
        return shoal_fail(SHOAL_ERR_INVALID, "p: %g is not a probability from 0 to 1", p);
    }
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

/* What an element takes, in operations: a random word most of all. */
#define DROP_COST 8

struct drop {
    struct nn_sequence sequence; /* of the first sample */
    const struct nn_loops *loops;
    double p;
    size_t n_chunks; /* of a sample */
    size_t count;    /* elements of a sample */
    size_t bytes;    /* of an element */
    const char *from;
    char *to;
};

/* Chunks of samples. The words of an element depend on its place alone. */
static void drop_chunks(void *context, size_t begin, size_t end)
{
    const struct drop *drop = context;
    uint32_t words[NN_DRAWS_CHUNK];
    for (size_t i = begin; i < end; i++) {
        struct nn_sequence sequence = drop->sequence;
        size_t sample = i / drop->n_chunks;
        size_t first = i % drop->n_chunks * NN_DRAWS_CHUNK;
        size_t n = drop->count - first < NN_DRAWS_CHUNK ? drop->count - first : NN_DRAWS_CHUNK;
        size_t offset = (sample * drop->count + first) * drop->bytes;
        sequence.sample += sample;
        nn_draw_words(&sequence, first, n, words);
        drop->loops->dropout(n, drop->p, words, drop->from + offset, drop->to + offset);
    }
}

RUN(dropout)
{
    const shoal_tensor *tensor = arguments[0].as.tensor;
    shoal_dtype real = nn_real(shoal_tensor_dtype(tensor));
    struct nn_values self = {.data = NULL};
    struct nn_values position = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, tensor, &self));
    NN_TRY(nn_load_integers(call, arguments[1].as.tensor, &position));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    const int64_t *numbers = position.data;
    const shoal_nn_draws draws = {.seed = (uint64_t)numbers[0],
                                  .stream = (uint64_t)arguments[2].as.integer,
                                  .step = (uint64_t)numbers[1],
                                  .sample = (uint64_t)numbers[2]};
    size_t n_samples = (size_t)shoal_tensor_shape(tensor)[0];
    size_t count = n_samples > 0 ? self.count / n_samples : 0;
    struct drop drop = {.sequence = nn_sequence_of(&draws),
                        .loops = nn_loops_of(real),
                        .p = arguments[3].as.real,
                        .n_chunks = (count + NN_DRAWS_CHUNK - 1) / NN_DRAWS_CHUNK,
                        .count = count,
                        .bytes = shoal_dtype_bytes(real),
                        .from = self.data,
                        .to = result.data};
    nn_parallel_ranges(n_samples * drop.n_chunks, NN_DRAWS_CHUNK * DROP_COST, drop_chunks, &drop);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}

GRADIENT(dropout)
{
    if (shoal_op_needs_gradient(call, 0)) {
        const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[1], arguments[2],
                                      arguments[3]};
        input_gradients[0] = nn_call(NN_OP_dropout, values, 4);
    }
    return shoal_scope_error();
}
