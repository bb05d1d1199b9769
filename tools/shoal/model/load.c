/* SPDX-License-Identifier: MIT */
/* Loads the section of the model, and nothing else of a checkpoint. */
#include "model/load.h"

#include "base/try.h"
#include "shoal/checkpoint.h"
#include "shoal/items.h"

static shoal_status load_items(shoal_group *group, const char *directory,
                               const struct model_description *description, shoal_module *gpt,
                               shoal_items *items)
{
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    how.section = SHOAL_SECTION_MODEL;
    how.allows_unexpected = description->is_foreign; /* masks, and the output head, which is the embedding */
    how.casts = true;
    how.has_step = description->step >= 0; /* a newer one may have come since */
    how.step = how.has_step ? description->step : 0;
    TRY(shoal_nn_gpt_add_items(gpt, items));
    return shoal_checkpoint_load(group, directory, items, &how, NULL);
}

shoal_status model_load(shoal_group *group, const char *directory,
                        const struct model_description *description, shoal_module *gpt)
{
    shoal_items *items = NULL;
    TRY(shoal_items_create(&items));
    shoal_status status = load_items(group, directory, description, gpt, items);
    shoal_items_free(items);
    return status;
}
