/* SPDX-License-Identifier: MIT */
/* Finding a transport among the rows of transports.def. */
#include "transport/transport.h"

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
