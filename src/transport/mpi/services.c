/* SPDX-License-Identifier: MIT */
/* The library's functions for modules, as it passed them to shoal_transport_module. */
#include "transport/mpi/mpi.h"

const struct transport_services *mpi_services;
