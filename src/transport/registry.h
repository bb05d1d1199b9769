/* SPDX-License-Identifier: MIT */
/* Which transports there are: the rows of transports.def, and modules (transport/module.h). */
#ifndef TRANSPORT_REGISTRY_H
#define TRANSPORT_REGISTRY_H

#include <stddef.h>

#include "shoal/status.h"
#include "transport/transport.h"

/* Rows of transports.def. NULL past the last. */
const struct transport *transport_at(size_t index);

/* Names of the modules that are looked for when ranks are on several hosts, in this order. NULL past the last. */
const char *transport_crossing_at(size_t index);

/* A row, or a module, which is loaded. SHOAL_ERR_INVALID says which names there are and where modules were looked
   for. */
shoal_status transport_find(const char *name, const struct transport **transport_out);

#endif
