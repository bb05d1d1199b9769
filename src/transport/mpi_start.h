/* SPDX-License-Identifier: MIT */
/*
 * How a world starts on MPI, before its ranks have met: docs/design/mpi.md. The modules of transport "mpi" export this
 * besides their transport.
 *
 * There is one struct mpi per world: a duplicate of a communicator, for the world's endpoint. Threads: open, exchange
 * and close are called by the thread that opens or closes the world; fail by any.
 */
#ifndef TRANSPORT_MPI_START_H
#define TRANSPORT_MPI_START_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct mpi; /* of the module */
struct transport;
struct transport_services;

#define MPI_START_INTERFACE 3

struct mpi_options {
    const void *comm; /* the address of the application's MPI_Comm; NULL means MPI_COMM_WORLD */
    /* Held around Shoal's calls of MPI, where MPI_THREAD_SERIALIZED was given. Both or none. */
    void (*lock)(void *context);
    void (*unlock)(void *context);
    void *lock_context;
    /* The application calls shoal_world_progress, and MPI is called there, or where the thread that opened waits. */
    bool is_driven;
    int64_t deadline_ns;
    /* Asked every now and then while other ranks are waited for: anything but SHOAL_OK, with its text set, ends that.
       It is NULL if it is not known yet who lives. */
    shoal_status (*check)(void *context);
    void *check_context;
};

struct mpi_start {
    size_t struct_size;
    uint32_t interface; /* MPI_START_INTERFACE */
    /*
     * Initializes MPI if nobody has, and duplicates the communicator, so all its ranks must call it. SHOAL_ERR_STATE:
     * MPI was finalized, or an earlier world of the process has failed. SHOAL_ERR_UNSUPPORTED: the thread level is too
     * low; the text says which to ask for. SHOAL_ERR_TIMEOUT: other ranks did not come. Also any failure of `check`.
     */
    shoal_status (*open)(const struct mpi_options *options, struct mpi **mpi_out);
    int (*rank)(const struct mpi *mpi);
    int (*n_ranks)(const struct mpi *mpi);
    /* Of MPI_COMM_WORLD, of which the communicator may be a part. */
    int (*n_started)(const struct mpi *mpi);
    /* Whether Shoal has initialized MPI: it then finalizes it when the process exits. */
    bool (*is_own)(const struct mpi *mpi);
    /* "Open MPI v4.1.4", for texts. */
    const char *(*library)(const struct mpi *mpi);
    /* Whether MPI is called only by the thread that opened, and in shoal_world_progress. */
    bool (*is_driven)(const struct mpi *mpi);
    /* A shoal_exchange, whose context is the struct mpi. Only during start-up. */
    int (*exchange)(void *mpi, const void *in, void *out_all, size_t bytes);
    /* After a failure: no call of MPI follows in this process, MPI_Finalize included. */
    void (*fail)(struct mpi *mpi);
    /* SHOAL_ERR_STATE: the application has called MPI_Finalize. Calls nothing of MPI that could wait or fail. Any
       thread. */
    shoal_status (*check)(struct mpi *mpi);
    /* is_clean says that every rank has closed its world. Otherwise it is a failure. Returns true if MPI may still be
       called afterwards. */
    bool (*close)(struct mpi *mpi, bool is_clean);
    /*
     * How a process that exits learns that another will not come to MPI_Finalize: `check` is asked every now and then
     * while it waits, on a thread of the module's, and anything but SHOAL_OK, with its text set, ends that. `end` is
     * called after it. Once set they stay.
     */
    void (*set_exit)(shoal_status (*check)(void), void (*end)(void));
};

/* What a module exports: const struct mpi_start *shoal_mpi_start(void), after shoal_transport_module was called. */
#define MPI_START_ENTRY "shoal_mpi_start"
typedef const struct mpi_start *mpi_start_function(void);

/* In registry.c. Returns the mpi_start of a transport; NULL if the transport does not start on MPI. */
const struct mpi_start *mpi_start_of(const struct transport *transport);

#endif
