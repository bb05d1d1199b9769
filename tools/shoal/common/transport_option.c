/* SPDX-License-Identifier: MIT */
/* `--transport NAME` of commands that start ranks: the ranks find it as SHOAL_TRANSPORT. */
#include "common/tool.h"

#include "transport/module.h"
#include "transport/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAMES = 64,
    NAME_BYTES = 64
};

struct names {
    char texts[MAX_NAMES][NAME_BYTES];
    struct tool_choice choices[MAX_NAMES];
    size_t n_names;
};

static void add_name(struct names *names, const char *name)
{
    if (names->n_names < MAX_NAMES && !tool_choice_find(names->choices, names->n_names, name)) {
        char *text = names->texts[names->n_names];
        (void)snprintf(text, NAME_BYTES, "%s", name);
        names->choices[names->n_names++].name = text;
    }
}

/* Of one MPI or another: both are called mpi, as ranks choose theirs. */
static shoal_status add_module(void *context, const char *name, const char *path)
{
    (void)path;
    add_name(context, strncmp(name, "mpi_", 4) == 0 ? "mpi" : name);
    add_name(context, name);
    return SHOAL_OK;
}

const char *tool_transport_at(size_t index)
{
    static const char *const modules[] = {"socket", "mpi"};
    size_t n_built_in = 0;
    while (transport_at(n_built_in)) {
        n_built_in++;
    }
    if (index < n_built_in) {
        return transport_at(index)->name;
    }
    return index - n_built_in < sizeof modules / sizeof modules[0] ? modules[index - n_built_in] : NULL;
}

bool tool_is_transport(const char *name)
{
    static struct names names;
    names = (struct names){.n_names = 0};
    for (size_t i = 0; transport_at(i); i++) {
        add_name(&names, transport_at(i)->name);
    }
    /* Modules are not loaded: that is the affair of ranks, whose MPI is known only there. */
    if (transport_module_list(add_module, &names) != SHOAL_OK) {
        (void)tool_refuse("--transport: %s", shoal_error_text());
        return false;
    }
    if (!tool_choice_find(names.choices, names.n_names, name)) {
        (void)tool_choice_unknown("transport", name, names.choices, names.n_names);
        return false;
    }
    return true;
}

bool tool_set_transport(const char *name)
{
    /* First: this process may be a rank itself, and looking for modules reads the options of the library, once. */
    if (setenv("SHOAL_TRANSPORT", name, /*overwrite=*/1) != 0) {
        perror("shoal: SHOAL_TRANSPORT");
        return false;
    }
    return tool_is_transport(name);
}
