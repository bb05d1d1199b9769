/* SPDX-License-Identifier: MIT */
/*
 * The module of transport "mpi": an endpoint of the message transport over a duplicate of a communicator. The same
 * sources are built for each MPI library. docs/design/mpi.md has the rules by which MPI is called.
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

/* Which threads call MPI after start-up. The wire has a lock, so calls of one world are never made at the same time. */
enum mpi_mode {
    MPI_MODE_FREE,   /* any that sends or waits: the thread level is MULTIPLE, or Shoal has initialized MPI */
    MPI_MODE_LOCKED, /* the wire's thread, between the application's lock and unlock */
    MPI_MODE_DRIVEN  /* the thread that opened the world, and one inside shoal_world_progress */
};

struct mpi {
    MPI_Comm comm;       /* the duplicate */
    MPI_Request request; /* of the operation that start-up waits for */
    int rank;
    int n_ranks;
    int n_started; /* how many ranks MPI_COMM_WORLD has */
    bool is_own;   /* Shoal has initialized MPI */
    enum mpi_mode mode;
    bool is_funneled;
    pthread_t driver;          /* of MPI_MODE_DRIVEN: the thread that opened the world */
    _Atomic bool has_endpoint; /* an endpoint's thread may still use this */
    struct mpi_options options;
    char library[MPI_LIBRARY_BYTES];
};

/* Functions of the library that the module may call; set once. In services.c. */
extern const struct transport_services *mpi_services;

/* process.c ---------------------------------------------------------------------------------------------- */

/*
 * Initializes MPI unless the process has done so. *is_own_out says whether Shoal initialized it: then a thread of the
 * module has done it, and finalizes MPI when the process exits. Fails in a child of fork whose parent used MPI.
 */
shoal_status process_begin(const struct mpi_options *options, bool *is_own_out);
/* After this, MPI is not called any more. Any thread may call it. */
void process_fail(void);
bool process_has_failed(void);
/*
 * Called before and after calls of MPI that come after start-up. If process_enter returns false, MPI must not be called
 * any more, and process_leave is not called. If the application wrongly calls MPI_Finalize while worlds are open, that
 * call is held up until no thread is inside, for 2 s at most, and process_enter returns false from then on. MPICH does
 * not allow for that (process.c).
 */
bool process_enter(void);
void process_leave(void);
/* Makes the process notice when the application begins MPI_Finalize. Called by a thread that may call MPI. */
void process_await_finalize(void);
/* Whether MPI_Finalize has returned. */
bool process_is_finalised(void);
/* Whether the application has called MPI_Finalize while a world was open. PROCESS_ORDER is the error text for it. */
bool process_is_finalised_early(void);
#define PROCESS_ORDER \
    "the application has called MPI_Finalize while the world was open: close all worlds first, then call it"
/* Counts open worlds. Shoal does not finalize MPI while there is one. */
void process_count_worlds(int change);
/* set_exit of struct mpi_start (transport/mpi_start.h). */
void process_set_exit(shoal_status (*check)(void), void (*end)(void));
/* Says that a world has ranks on several hosts. */
void process_note_hosts(void);

/* start.c ------------------------------------------------------------------------------------------------ */

extern const struct mpi_start mpi_start_table;

/* Called before and after calls of MPI: take and release the application's lock in MPI_MODE_LOCKED. */
void mpi_enter(struct mpi *mpi);
void mpi_leave(struct mpi *mpi);

/* endpoint.c --------------------------------------------------------------------------------------------- */

extern const struct endpoint_kind mpi_kind;

#endif
