/* SPDX-License-Identifier: MIT */
/*
 * The module of transport "mpi": an endpoint of the message transport over a duplicate of a communicator. The same sources
 * are built for each MPI library. docs/design/mpi.md has the rules by which MPI is called.
 *
 *   process.c    what the process has of MPI: who initialized it, whether it may still be called
 *   start.c      a world's duplicate of a communicator, thread levels, the exchange of start-up
 *   endpoint.c   messages
 */
#ifndef MPI_MPI_H
#define MPI_MPI_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/message/endpoint.h"
#include "transport/module.h"
#include "transport/mpi_start.h"

#define MPI_LIBRARY_BYTES 64

/* Who calls MPI after start-up. Calls of one world are never made at the same time: the wire has a lock. */
enum mpi_mode {
    MPI_MODE_FREE, /* whoever has something to send or waits: the level is MULTIPLE, or MPI is Shoal's own */
    MPI_MODE_LOCKED, /* the wire's thread, between the application's lock and unlock */
    MPI_MODE_DRIVEN  /* the thread that opened the world, and one inside shoal_world_progress */
};

struct mpi {
    MPI_Comm comm;       /* the duplicate */
    MPI_Request request; /* of start-up */
    int rank;
    int n_ranks;
    int n_started; /* ranks of MPI_COMM_WORLD */
    bool is_own;   /* Shoal has initialized MPI */
    enum mpi_mode mode;
    bool is_funneled;
    pthread_t driver;          /* of MPI_MODE_DRIVEN */
    _Atomic bool has_endpoint; /* whose thread may still use this */
    struct mpi_options options;
    char library[MPI_LIBRARY_BYTES];
};

/* services.c: the library's, set once. */
extern const struct transport_services *mpi_services;

/* process.c ---------------------------------------------------------------------------------------------- */

/*
 * MPI is initialized afterwards, by the process or by Shoal. *is_own_out: by Shoal, on a thread that also finalizes it when
 * the process exits.
 */
shoal_status process_begin(const struct mpi_options *options, bool *is_own_out);
/* From now on MPI is not called any more. Any thread. */
void process_fail(void);
bool process_has_failed(void);
/*
 * Around calls of MPI after start-up. False: MPI must not be called any more, and process_leave is not called. The
 * application may call MPI_Finalize while worlds are open, which is wrong: it is held up until nobody is inside, and
 * then it is false.
 */
bool process_enter(void);
void process_leave(void);
/* From the first world on MPI_Finalize is noticed when it begins. By a thread that may call MPI. */
void process_await_finalize(void);
/* Whether MPI_Finalize has returned. */
bool process_is_finalised(void);
/* Whether the application has called MPI_Finalize under an open world, for which the text is PROCESS_ORDER. */
bool process_is_finalised_early(void);
#define PROCESS_ORDER \
    "the application has called MPI_Finalize while the world was open: close all worlds first, then call it"
/* Worlds that are open: MPI is not finalized under them. */
void process_count_worlds(int change);
/* As set_exit in transport/mpi_start.h. */
void process_set_exit(shoal_status (*check)(void), void (*end)(void));
/* A world has ranks on several hosts. */
void process_note_hosts(void);

/* start.c ------------------------------------------------------------------------------------------------ */

extern const struct mpi_start mpi_start_table;

/* Around calls of MPI: takes the application's lock where it gave one. */
void mpi_enter(struct mpi *mpi);
void mpi_leave(struct mpi *mpi);

/* endpoint.c --------------------------------------------------------------------------------------------- */

extern const struct endpoint_kind mpi_kind;

#endif
