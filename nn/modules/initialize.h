/* SPDX-License-Identifier: MIT */
/* Initial values for parameters that a function chooses. */
#ifndef NN_MODULES_INITIALIZE_H
#define NN_MODULES_INITIALIZE_H

#include "shoal_nn/random.h"

/* The distribution of a parameter, which lives until the call ends; NULL if it keeps its values. */
typedef const shoal_nn_distribution *(*nn_chooser)(const void *context, const shoal_module_entry *entry);

/*
 * Fills the parameters for which `choose` gives a distribution: all of them or, after an error, none. Distributions
 * must have been checked. `call` is the name of the public call, for error texts. *n_filled_out is the number of
 * parameters that were filled.
 */
shoal_status nn_initialize_chosen(const char *call, shoal_module *module, nn_chooser choose,
                                  const void *context, uint64_t seed, size_t *n_filled_out);

#endif
