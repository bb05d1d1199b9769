/* SPDX-License-Identifier: MIT */
/*
 * Which way of training in parallel (FSDP, DDP) owns the parameters of a module. Each way claims the modules that it
 * takes parameters from, and asks here whether another one has claimed them. The ways do not know each other: a new
 * one adds a row.
 *
 * A claim is an extra of the module (shoal/module.h): it holds a value of the claimant, and ends with the module.
 */
#ifndef PARALLEL_CLAIM_H
#define PARALLEL_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/module.h"
#include "shoal/status.h"

enum claimant {
    CLAIMANT_FSDP,
    CLAIMANT_DDP,
    CLAIMANT_COUNT
};

/* Claims the module. `release` is called with the value when the claim is dropped or the module dies. A module
   has at most one claim of each claimant. */
shoal_status claim_take(shoal_module *module, enum claimant claimant, void *value,
                        void (*release)(void *value));
void claim_drop(shoal_module *module, enum claimant claimant);

/* The value of the claim, or NULL if this claimant has not claimed the module. */
void *claim_value(const shoal_module *module, enum claimant claimant);
bool claim_is_taken(const shoal_module *module);

/* Marks a module in the tree of a claimed one, for claimants whose claim covers the whole tree. `outer` is not NULL. */
shoal_status claim_cover(shoal_module *module, enum claimant claimant, void *outer);
void claim_uncover(shoal_module *module, enum claimant claimant);

/* Whether `claimant` has claimed the module with that value, or covers it with it. */
bool claim_is_by(const shoal_module *module, enum claimant claimant, const void *value);

/* SHOAL_ERR_STATE if `claimant` has claimed the module, or covers it. `path` names it in the text; "" for a root. */
shoal_status claim_check(const shoal_module *module, const char *path, enum claimant claimant);

#endif
