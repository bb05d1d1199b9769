/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of shoal_nn/random.h over plain arrays: Philox, and uniform and normal numbers from its words.
 * Nothing here calls libm but sqrt, which IEEE 754 defines to the last bit. Callers set the default floating-point
 * mode.
 */
#ifndef NN_MATH_DRAWS_H
#define NN_MATH_DRAWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal_nn/random.h"

/* As many numbers are made at a time. A multiple of what the vector loops take. */
#define NN_DRAWS_CHUNK 512

/* The sequence of words of one sample. */
struct nn_sequence {
    uint32_t key[2]; /* of seed, stream and step */
    uint64_t sample;
};

/* Philox4x32-10. words_out may be the array `counter`. */
void nn_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words_out[4]);

struct nn_sequence nn_sequence_of(const shoal_nn_draws *draws);

/* Words first .. first + count - 1. */
void nn_draw_words(const struct nn_sequence *sequence, uint64_t first, size_t count, uint32_t *words);

/* A distribution without its shape: shift + scale * x, where x is uniform in [0, 1) or standard normal. */
struct nn_law {
    bool is_normal;
    double shift;
    double scale;
};

/* Of a distribution that was checked. The shape, of two dimensions or more, is read for XAVIER and KAIMING only. */
void nn_compute_law(const shoal_nn_distribution *distribution, const int64_t *shape, int n_dims,
                    struct nn_law *law_out);
/* Of a leaky relu. */
double nn_leaky_gain(double slope);

/* Elements first .. first + count - 1, at most NN_DRAWS_CHUNK, as floats or as doubles. `real` is SHOAL_F32 or
   SHOAL_F64. */
void nn_draw_reals(const struct nn_sequence *sequence, const struct nn_law *law, shoal_dtype real,
                   uint64_t first, size_t count, void *to);

#endif
