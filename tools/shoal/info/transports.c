/* SPDX-License-Identifier: MIT */
/* The transports of this build, and the modules that are found. */
#include "info/info.h"
#include "common/tool.h"

#include "shoal/status.h"
#include "transport/module.h"
#include "transport/registry.h"

#include <stdio.h>
#include <string.h>

struct visit {
    void (*visit)(void *context, const struct info_transport *transport);
    void *context;
};

static bool is_built_in(const char *name)
{
    bool is_found = false;
    for (size_t i = 0; transport_at(i) && !is_found; i++) {
        is_found = strcmp(transport_at(i)->name, name) == 0;
    }
    return is_found;
}

static shoal_status visit_module(void *context, const char *name, const char *path)
{
    const struct visit *visit = context;
    const struct transport *transport;
    struct info_transport found = {.name = name, .path = path};
    if (is_built_in(name)) {
        found.error = "a transport of this name is built in, and used instead";
    } else if (transport_find(name, &transport) != SHOAL_OK) {
        found.error = shoal_error_text();
    } else {
        found.doc = transport->doc;
        found.interface = transport->interface;
    }
    visit->visit(visit->context, &found);
    return SHOAL_OK;
}

int info_visit_transports(void (*visit)(void *context, const struct info_transport *transport), void *context)
{
    for (size_t i = 0; transport_at(i); i++) {
        visit(context, &(struct info_transport){.name = transport_at(i)->name,
                                                .doc = transport_at(i)->doc,
                                                .interface = transport_at(i)->interface});
    }
    struct visit modules = {.visit = visit, .context = context};
    if (transport_module_list(visit_module, &modules) != SHOAL_OK) {
        fprintf(stderr, "shoal info: listing modules: %s\n", shoal_error_text());
        return TOOL_FAILED;
    }
    return TOOL_DONE;
}
