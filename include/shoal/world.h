/* SPDX-License-Identifier: MIT */
/*
 * A world: the ranks of one job, and everything they share. A process opens one (or, for ranks as threads,
 * one per thread), makes groups in it, and closes it.
 *
 * Ownership: shoal_world_close ends the world and every group, work, mesh, window and symmetric memory made from it.
 * Threads: a world may be used from any thread; open and close are called by one.
 * Errors: status and text. Every wait has a deadline and notices ranks that die.
 * Forks: a child of fork() is no rank of the worlds it inherited: calls on them, and on what was made in them, are
 * SHOAL_ERR_STATE, closing too. It may open a world of its own.
 *
 *     shoal_world *world;
 *     if (shoal_world_open(NULL, &world) != SHOAL_OK) { ... shoal_error_text() ... }
 *     shoal_group *all = shoal_world_group(world);
 */
#ifndef SHOAL_WORLD_H
#define SHOAL_WORLD_H

#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_world shoal_world;
typedef struct shoal_group shoal_group;
typedef struct shoal_store shoal_store;

/*
 * What start-up needs of an application that already has a way to talk: every rank gives `bytes` bytes and
 * gets those of all ranks in rank order. Three lines on MPI_Allgather. Zero is success.
 */
typedef int (*shoal_exchange)(void *context, const void *in, void *out_all, size_t bytes);

typedef struct shoal_world_options {
    size_t struct_size; /* sizeof(shoal_world_options) */
    /* 0: from the environment. The first launcher whose variables are set counts: SHOAL_*, torchrun, Open MPI, PMI,
       Slurm; without any, a world of one. If only some of its variables are set, open fails and names what is missing.
       (The shell of a Slurm batch job, rank 0 without a step, is a world of one: srun makes the ranks.) */
    int n_ranks;
    int rank;
    /* What ranks that belong together agree on, when n_ranks is given without `exchange`. */
    const char *key;
    /* Optional, with n_ranks and rank: replaces meeting on a socket of this machine. Not with mpi_comm. */
    shoal_exchange exchange;
    void *exchange_context;
    /* What carries all groups. NULL: SHOAL_TRANSPORT, or, if that is not set, what fits the hosts of each group's
       ranks: "shm", shared memory, within one machine. "fake": no peers and nothing moved, to measure or test one rank.
       Otherwise the name of a module. All ranks ask for the same. */
    const char *transport;
    /* In seconds, at most 1e9. */
    double startup_timeout_s; /* 0: 60 */
    double timeout_s;         /* of an operation; 0: SHOAL_TIMEOUT, which is 600 by default */
    double close_timeout_s;   /* 0: 30 */
    /*
     * The address of the application's MPI_Comm, whose ranks become those of the world (n_ranks and rank may be left
     * 0). All of them call open; the communicator is duplicated, and may be freed once all worlds on it are closed. It
     * is the exchange of start-up, and carries groups on several hosts, or all if transport is "mpi". NULL: none;
     * transport "mpi" then takes MPI_COMM_WORLD, and initializes MPI if nobody has.
     */
    const void *mpi_comm;
    /*
     * Who may call MPI, by the level that MPI_Init_thread gave. MULTIPLE: Shoal's own thread does, and nothing is
     * needed. SERIALIZED: it does so between mpi_lock and mpi_unlock, which the application holds around its own calls
     * of MPI, and never while it calls Shoal; or mpi_progress. FUNNELED: mpi_progress, in the main thread. Otherwise
     * open fails.
     */
    void (*mpi_lock)(void *context);
    void (*mpi_unlock)(void *context);
    void *mpi_lock_context;
    /*
     * Not 0: Shoal calls MPI only in shoal_world_progress, and where the thread that opened the world waits in a call
     * of Shoal. That thread closes the world.
     */
    int mpi_progress;
} shoal_world_options;
#define SHOAL_WORLD_OPTIONS_INIT SHOAL_SIZED(shoal_world_options)

/* NULL options: everything by default. Returns on a rank once all ranks have arrived. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_open(const shoal_world_options *options,
                                                         shoal_world **world_out);

/*
 * Waits for saves in the background (shoal/checkpoint.h), however long these take, before the deadline begins. Then
 * finishes what was started, collectives and sends, as far as the peers do their part; receives that were not answered
 * are cancelled. Waits until every rank that lives has closed too, then frees everything. A rank that does not come
 * within the deadline is named in a SHOAL_ERR_TIMEOUT; otherwise a save in the background that has failed, and that
 * nobody has waited for, is the error. The world is gone all the same. NULL is allowed.
 */
SHOAL_API shoal_status shoal_world_close(shoal_world *world);

/*
 * Moves what can be moved now, and never waits. Needed only in a world that was opened with mpi_progress, again and
 * again while something that was started has not ended: nothing else moves it. Elsewhere it does nothing.
 * SHOAL_ERR_STATE: the level of MPI does not allow this thread to call it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_progress(shoal_world *world);

SHOAL_API int shoal_world_rank(const shoal_world *world);
SHOAL_API int shoal_world_n_ranks(const shoal_world *world);

/* Where rank and size came from: "SHOAL", "torchrun", "Open MPI", "PMI", "Slurm", "alone", "options". */
SHOAL_API const char *shoal_world_launcher(const shoal_world *world);

/* All ranks, in order. Borrowed: lives as long as the world. */
SHOAL_API shoal_group *shoal_world_group(shoal_world *world);

/* The store that start-up used; rank 0 holds it. Borrowed. */
SHOAL_API shoal_store *shoal_world_store(shoal_world *world);

/*
 * Runs `function` on n_ranks threads of this process, each with a world of its own as one rank of the same job.
 * Returns the first failure in time, with a text that names the rank: what its function returned, or what opening or
 * closing did.
 */
typedef shoal_status (*shoal_rank_function)(shoal_world *world, void *context);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_run_threads(int n_ranks, shoal_rank_function function,
                                                                void *context);

/*
 * The flight record of all groups as one JSON object, handed to `write` piece by piece: the last calls of every
 * lane, with op, sequence, dtype, count, times and state. What `write` returns other than 0 ends it as
 * SHOAL_ERR_CANCELLED.
 */
typedef int (*shoal_write_function)(void *context, const char *text, size_t bytes);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_dump(shoal_world *world, shoal_write_function write,
                                                         void *context);

SHOAL_END_DECLS

#endif
