/* SPDX-License-Identifier: MIT */
/* What the library gave to the module. */
#include "transport/mpi/mpi.h"

const struct transport_services *mpi_services;
