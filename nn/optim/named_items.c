/* SPDX-License-Identifier: MIT */
/* Items of checkpoints with names of two parts. */
#include "optim/named_items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/op.h"
#include "common/try.h"

/* Freed with free. */
static shoal_status join(const char *call, const char *first, const char *second, char **text_out)
{
    size_t bytes = strlen(first) + strlen(second) + 1;
    char *text = malloc(bytes);
    if (!text) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for the name %.100s%s", call, first, second);
    }
    (void)snprintf(text, bytes, "%s%s", first, second);
    *text_out = text;
    return SHOAL_OK;
}

shoal_status nn_add_item(const char *call, shoal_items *items, const char *name, const char *suffix,
                         const shoal_item *item)
{
    char *text = NULL;
    shoal_item named = *item;
    NN_TRY(join(call, name, suffix, &text));
    named.name = text;
    shoal_status status = shoal_items_add(items, &named);
    free(text);
    return status;
}

shoal_status nn_add_integer(const char *call, shoal_items *items, const char *prefix, const char *name,
                            int64_t *value)
{
    char *text = NULL;
    NN_TRY(join(call, prefix, name, &text));
    shoal_status status = shoal_items_add_integer(items, text, value);
    free(text);
    return status;
}

shoal_status nn_add_real(const char *call, shoal_items *items, const char *prefix, const char *name,
                         double *value)
{
    char *text = NULL;
    NN_TRY(join(call, prefix, name, &text));
    shoal_status status = shoal_items_add_real(items, text, value);
    free(text);
    return status;
}
