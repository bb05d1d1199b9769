/* SPDX-License-Identifier: MIT */
/* What all transports need: names and texts for errors. */
#include "transport/transport.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/error.h"
#include "base/status.h"

shoal_status transport_check_status(const struct transport *transport, const char *function,
                                    shoal_status status)
{
    if (!status_is_known(status)) {
        return error_set(SHOAL_ERR_INTERNAL, "transport %s: %s returned %d, which is not a status",
                         transport->name, function, (int)status);
    }
    if (status != SHOAL_OK && *shoal_error_text() == '\0') {
        return error_set(status, "transport %s: %s failed and gave no reason", transport->name, function);
    }
    return status;
}

shoal_status transport_name_rank(const struct transport_peers *peers, shoal_status status)
{
    bool is_own = status == SHOAL_ERR_NO_MEMORY || status == SHOAL_ERR_SYSTEM;
    return is_own && peers->n_ranks > 1 ? error_prefix(status, "rank %d", peers->world_ranks[peers->rank])
                                        : status;
}

const char *transport_describe_timeout(const struct transport_peers *peers,
                                       const struct collective *collective, char *text, size_t text_bytes)
{
    char call[128];
    char passed[96] = "the deadline passed";
    /* Relaxed: a number that stands for itself. */
    double seconds = peers->timeout_s ? atomic_load_explicit(peers->timeout_s, memory_order_relaxed) : 0.0;
    if (collective->timeout_s > 0.0) {
        (void)snprintf(passed, sizeof passed, "%.6g s passed (timeout_s of the call)", collective->timeout_s);
    } else if (seconds > 0.0) {
        (void)snprintf(passed, sizeof passed, "%.6g s passed (SHOAL_TIMEOUT, shoal_group_set_timeout)",
                       seconds);
    }
    (void)snprintf(text, text_bytes, "%s on group %s: %s", collective_describe(collective, call, sizeof call),
                   transport_group_name(peers), passed);
    return text;
}
