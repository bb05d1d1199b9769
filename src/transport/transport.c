/* SPDX-License-Identifier: MIT */
/* Finding a transport among the rows of transports.def, and what transports say alike. */
#include "transport/transport.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const struct transport *const rows[] = {
#define TRANSPORT(name, variable) &variable,
#include "transport/transports.def"
#undef TRANSPORT
};

static const char known_names[] =
#define TRANSPORT(name, variable) " " #name
#include "transport/transports.def"
#undef TRANSPORT
    ;

#define N_ROWS (sizeof rows / sizeof rows[0])

const struct transport *transport_at(size_t index)
{
    return index < N_ROWS ? rows[index] : NULL;
}

shoal_status transport_find(const char *name, const struct transport **transport_out)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i]->name, name) == 0) {
            *transport_out = rows[i];
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "there is no transport \"%s\"; there are:%s", name, known_names);
}

const char *transport_describe_timeout(const struct transport_peers *peers,
                                       const struct collective *collective, char *text, size_t text_bytes)
{
    char call[128];
    char passed[96] = "the deadline passed";
    /* Relaxed: a number that stands for itself. */
    double seconds = peers->timeout_s ? atomic_load_explicit(peers->timeout_s, memory_order_relaxed) : 0.0;
    if (seconds > 0.0) {
        (void)snprintf(passed, sizeof passed, "%.6g s passed (SHOAL_TIMEOUT, shoal_group_set_timeout)",
                       seconds);
    }
    (void)snprintf(text, text_bytes, "%s on group %s: %s", collective_describe(collective, call, sizeof call),
                   transport_group_name(peers), passed);
    return text;
}
