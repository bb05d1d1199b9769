/* SPDX-License-Identifier: MIT */
/*
 * Which MPI library transport "mpi" uses: the rows of mpi_flavours.def. Two MPI libraries have the same names for
 * different things, so that a process can use only one of them, and a module is built for one of them.
 *
 * What is looked at, in this order: an MPI library that the process has loaded; SHOAL_MPI; the variables of the launcher
 * that started the process; the only module that is installed.
 */
#ifndef TRANSPORT_MPI_FLAVOUR_H
#define TRANSPORT_MPI_FLAVOUR_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

#define MPI_FLAVOUR_BYTES 32

/*
 * The name of the module, "mpi_openmpi". SHOAL_ERR_INVALID when nothing says which, or SHOAL_MPI names another than the
 * process has loaded; SHOAL_ERR_UNSUPPORTED when the process has loaded one without a module, or two. The text says what was
 * looked at.
 */
shoal_status mpi_flavour_find(char module[MPI_FLAVOUR_BYTES]);

/* Whether the launcher of this process is one of an MPI. */
bool mpi_flavour_is_launched(void);

#endif
