/* SPDX-License-Identifier: MIT */
/*
 * Which MPI library transport "mpi" uses: the rows of mpi_flavours.def. MPI libraries use the same names for different
 * things. So a process can use only one of them, and a module is built for one of them.
 *
 * It is decided by the first of these that says: an MPI library that the process has loaded; SHOAL_MPI; the variables
 * of the launcher that started the process; the only module that is installed.
 */
#ifndef TRANSPORT_MPI_FLAVOUR_H
#define TRANSPORT_MPI_FLAVOUR_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

#define MPI_FLAVOUR_BYTES 32

/*
 * Finds the name of the module, such as "mpi_openmpi". SHOAL_ERR_INVALID when nothing says which, or when SHOAL_MPI
 * names another MPI than the process has loaded. SHOAL_ERR_UNSUPPORTED when the process has loaded one that has no
 * module, or two. The text says what was looked at.
 */
shoal_status mpi_flavour_find(char module[MPI_FLAVOUR_BYTES]);

/* Whether the launcher of this process is one of an MPI. */
bool mpi_flavour_is_launched(void);

#endif
