/* SPDX-License-Identifier: MIT */
/* The values of a model in a directory. */
#ifndef MODEL_LOAD_H
#define MODEL_LOAD_H

#include "model/describe.h"

#include "shoal/group.h"
#include "shoal/module.h"

/* Loads the values into a GPT of the shape that was described, whole or sharded. Collective. */
shoal_status model_load(shoal_group *group, const char *directory,
                        const struct model_description *description, shoal_module *gpt);

#endif
