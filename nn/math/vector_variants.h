/* SPDX-License-Identifier: MIT */
/* The tables of the variants, one per file vector_<name>.c. Those of other architectures are not there. */
#ifndef NN_MATH_VECTOR_VARIANTS_H
#define NN_MATH_VECTOR_VARIANTS_H

#include "math/vector.h"

extern const struct nn_vector_table nn_vectors_plain;
extern const struct nn_vector_table nn_vectors_neon;
extern const struct nn_vector_table nn_vectors_avx2;
extern const struct nn_vector_table nn_vectors_avx512;

#endif
