/* SPDX-License-Identifier: MIT */
/* Worlds on MPI: docs/design/mpi.md. */
#ifndef COMM_GROUP_START_MPI_H
#define COMM_GROUP_START_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "shoal/world.h"

struct transport;

/* Checks the options that are about MPI. */
shoal_status start_mpi_check(const struct shoal_world *world, const shoal_world_options *options);

/* Opens MPI, as world->mpi, if the application gives a communicator or asks for transport mpi. */
shoal_status start_mpi_if_asked(struct shoal_world *world, const shoal_world_options *options);

/* Opens MPI if an MPI launcher has started ranks on several hosts, and SHOAL_ADDRESS does not say where they meet. Does
   nothing if the module is not installed. */
shoal_status start_mpi_for_hosts(struct shoal_world *world);

/* If only the thread that opens the world may call MPI, makes that thread call `drive` with the world while it
   waits. */
shoal_status start_mpi_drive(struct shoal_world *world, void (*drive)(void *context));

/* Takes rank and size from MPI if world->n_ranks is 0. Otherwise checks that MPI has the same. */
shoal_status start_mpi_check_place(struct shoal_world *world, bool has_communicator);

/* A shoal_exchange, whose context is the world. */
int start_mpi_exchange(void *world, const void *in, void *out_all, size_t bytes);

/* Whether groups on several hosts should use MPI although nobody asked for it, because an MPI launcher has started
   the ranks. */
bool start_mpi_is_usual(const struct shoal_world *world);
/* Opens MPI for such groups, after the ranks have met. */
shoal_status start_mpi_late(struct shoal_world *world, const struct transport *transport,
                            int64_t deadline_ns);

/* With mpi_comm: fails if the launcher has started another number of ranks than MPI_COMM_WORLD has, because it then
   belongs to another MPI. */
shoal_status start_mpi_check_launcher(const struct shoal_world *world);

/* SHOAL_ERR_STATE: the application has called MPI_Finalize although the world is open. */
shoal_status start_mpi_check_order(const struct shoal_world *world);

/* Call before this rank leaves the world. */
void start_mpi_leave(struct shoal_world *world);

/*
 * Call after the transports were closed, when no thread calls MPI any more. Returns true if Shoal has initialized MPI,
 * and finalizes it when all processes exit. Then start_mpi_keep must be called later, which takes the members and their
 * watch from the world: a process that waits for others at its exit must know whether they are alive.
 */
bool start_mpi_end(struct shoal_world *world);
void start_mpi_keep(struct shoal_world *world);

#endif
