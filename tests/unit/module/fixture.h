/* SPDX-License-Identifier: MIT */
/* Small modules for the tests: "scale" multiplies by its weight, "chain" calls its children one after another. */
#ifndef MODULE_FIXTURE_H
#define MODULE_FIXTURE_H

#include <stdio.h>
#include <string.h>

#include "unit/autograd/fixture.h"

static inline shoal_module *make_module(const char *type, shoal_module_forward forward, void *context)
{
    shoal_module *module = NULL;
    CHECK_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                            .type = type,
                                                            .forward = forward,
                                                            .context = context},
                                 &module));
    return module;
}

static inline shoal_status scale_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                         shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
    return SHOAL_OK;
}

static inline shoal_module *make_scale(shoal_tensor *weight)
{
    shoal_module *scale = make_module("scale", scale_forward, NULL);
    CHECK_OK(shoal_module_add_parameter(scale, "weight", weight));
    return scale;
}

static inline shoal_status chain_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                         shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = inputs[0];
    for (size_t i = 0; shoal_module_child_at(module, i, NULL) != NULL; i++) {
        x = shoal_module_call_one(shoal_module_child_at(module, i, NULL), x);
    }
    outputs[0] = x;
    return SHOAL_OK;
}

/* The parent's reference is the only one from then on. */
static inline void give_child(shoal_module *module, const char *name, shoal_module *child)
{
    CHECK_OK(shoal_module_add_child(module, name, child));
    shoal_module_unref(child);
}

/* What happened, in order. */
struct journal {
    char text[512];
};

static inline void note(struct journal *journal, const char *word)
{
    size_t length = strlen(journal->text);
    if (length + strlen(word) + 2 < sizeof(journal->text)) {
        if (length > 0) {
            journal->text[length++] = ' ';
        }
        memcpy(journal->text + length, word, strlen(word) + 1);
    }
}

#endif
