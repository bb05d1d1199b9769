/* SPDX-License-Identifier: MIT */
/* Lists of names, as options give them. */
#include "opt/opt.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

bool opt_names_add(struct opt_names *names, const char *name, size_t bytes)
{
    char *copy = mem_alloc_zeroed(bytes + 1, 1);
    if (!copy || mem_grow((void **)&names->names, &names->capacity, names->n_names + 1,
                          sizeof(names->names[0])) != SHOAL_OK) {
        mem_free(copy);
        fprintf(stderr, "shoal opt: %s\n", shoal_error_text());
        return false;
    }
    memcpy(copy, name, bytes);
    names->names[names->n_names++] = copy;
    return true;
}

bool opt_names_split(struct opt_names *names, const char *text)
{
    while (*text) {
        size_t bytes = strcspn(text, ",");
        if (bytes > 0 && !opt_names_add(names, text, bytes)) {
            return false;
        }
        text += bytes + (text[bytes] == ',');
    }
    return true;
}

bool opt_names_has(const struct opt_names *names, const char *name)
{
    for (size_t i = 0; i < names->n_names; i++) {
        if (strcmp(names->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

void opt_names_free(struct opt_names *names)
{
    for (size_t i = 0; i < names->n_names; i++) {
        mem_free(names->names[i]);
    }
    mem_free(names->names);
}
