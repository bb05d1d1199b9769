/* SPDX-License-Identifier: MIT */
/* The functions of the module that the library looks up. */
#include "transport/mpi/mpi.h"

TRANSPORT_MODULE_EXPORT mpi_start_function shoal_mpi_start;

const struct transport *shoal_transport_module(const struct transport_services *services)
{
    if (!transport_services_fit(services)) {
        return NULL;
    }
    mpi_services = services;
    return services->message_transport(&mpi_kind);
}

const struct mpi_start *shoal_mpi_start(void)
{
    return &mpi_start_table;
}
