/* SPDX-License-Identifier: MIT */
/* Worlds on MPI: docs/design/mpi.md. */
#ifndef COMM_START_MPI_H
#define COMM_START_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "shoal/world.h"

struct transport;

/* Checks what the options say of MPI. */
shoal_status start_mpi_check(const struct shoal_world *world, const shoal_world_options *options);

/* Where the application gives a communicator, or asks for transport mpi: world->mpi is there afterwards. */
shoal_status start_mpi_if_asked(struct shoal_world *world, const shoal_world_options *options);

/* The same where its launcher has started ranks on several hosts, and no address says where they meet; nothing where there is
   no module. */
shoal_status start_mpi_for_hosts(struct shoal_world *world);

/* Where only the thread that opens the world may call MPI: while that waits, it calls `drive` with the world. */
shoal_status start_mpi_drive(struct shoal_world *world, void (*drive)(void *context));

/* Rank and size as MPI has them, if nothing else has said them: world->n_ranks is 0. Otherwise they must be the same. */
shoal_status start_mpi_check_place(struct shoal_world *world, bool has_communicator);

/* A shoal_exchange, whose context is the world. */
int start_mpi_exchange(void *world, const void *in, void *out_all, size_t bytes);

/* Whether groups on several hosts should use MPI although nobody asked: MPI has started the ranks. */
bool start_mpi_is_usual(const struct shoal_world *world);
/* For these: after the ranks have met. */
shoal_status start_mpi_late(struct shoal_world *world, const struct transport *transport,
                            int64_t deadline_ns);

/* With mpi_comm: a launcher that has started another number of ranks than MPI_COMM_WORLD has is that of another MPI. */
shoal_status start_mpi_check_launcher(const struct shoal_world *world);

/* SHOAL_ERR_STATE: the application has called MPI_Finalize although the world is open. */
shoal_status start_mpi_check_order(const struct shoal_world *world);

/* Before this rank says that it leaves. */
void start_mpi_leave(struct shoal_world *world);

/*
 * After the transports: no thread calls MPI any more. True: MPI is Shoal's own, and is finalized when all processes
 * exit. So start_mpi_keep is called later, which takes the members and their watch from the world: who waits for
 * another process at its exit must know whether that lives.
 */
bool start_mpi_end(struct shoal_world *world);
void start_mpi_keep(struct shoal_world *world);

#endif
