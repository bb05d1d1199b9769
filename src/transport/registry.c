/* SPDX-License-Identifier: MIT */
/* The transports that are built in, and finding one by its name. No other file of this layer depends on this one. */
#include "transport/registry.h"

#include <pthread.h>
#include <string.h>

#include "base/try.h"
#include "transport/module.h"
#include "transport/mpi_flavour.h"
#include "transport/mpi_start.h"

static const struct transport *const rows[] = {
#define TRANSPORT(name, variable) &variable,
#define CROSSING(name)
#include "transport/transports.def"
#undef CROSSING
#undef TRANSPORT
};

static const char *const crossing[] = {
#define TRANSPORT(name, variable)
#define CROSSING(name) #name,
#include "transport/transports.def"
#undef CROSSING
#undef TRANSPORT
};

#define N_ROWS (sizeof rows / sizeof rows[0])

const struct transport *transport_at(size_t index)
{
    return index < N_ROWS ? rows[index] : NULL;
}

const char *transport_crossing_at(size_t index)
{
    return index < sizeof crossing / sizeof crossing[0] ? crossing[index] : NULL;
}

static const struct transport *find_row(const char *name)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i]->name, name) == 0) {
            return rows[i];
        }
    }
    return NULL;
}

static struct transport_services services;
static pthread_once_t are_services_made = PTHREAD_ONCE_INIT;

static void make_services(void)
{
    services = transport_services;
    services.built_in = find_row;
}

shoal_status transport_find(const char *name, const struct transport **transport_out)
{
    const struct transport *row = find_row(name);
    if (row) {
        *transport_out = row;
        return SHOAL_OK;
    }
    char flavour[MPI_FLAVOUR_BYTES];
    if (strcmp(name, "mpi") == 0) {
        TRY(mpi_flavour_find(flavour));
        name = flavour;
    }
    (void)pthread_once(&are_services_made, make_services);
    return transport_module_load(name, &services, transport_out);
}

const struct mpi_start *mpi_start_of(const struct transport *transport)
{
    mpi_start_function *function = NULL;
    /* The one way from an object pointer to a function pointer that POSIX blesses. */
    *(void **)&function = transport_module_symbol(transport, MPI_START_ENTRY);
    const struct mpi_start *start = function ? function() : NULL;
    bool fits = start && start->interface == MPI_START_INTERFACE && start->struct_size == sizeof *start;
    return fits ? start : NULL;
}
