/* SPDX-License-Identifier: MIT */
/*
 * A world is the ranks of one job and everything they share. Each process opens one, makes groups in it, and closes it.
 * If ranks are threads of one process, each thread opens its own (shoal_world_run_threads does that).
 *
 * Ownership: shoal_world_close ends the world and every group, work, mesh, window and symmetric memory made from it.
 * Threads: a world may be used from any thread; open and close are called by one.
 * Errors: status and text. Every wait has a deadline and notices ranks that die.
 * Forks: a child of fork() is not a rank of the worlds that it inherits. Calls on them, and on what was made in them,
 * return SHOAL_ERR_STATE; so does closing them. The child may open a world of its own, but not over MPI if the parent
 * had initialized it.
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
 * An all-gather by the application, for start-up where ranks can already reach each other: every rank gives `bytes`
 * bytes in `in` and gets the bytes of all ranks, in rank order, in `out_all`. Returns 0 on success. With MPI it is one
 * call of MPI_Allgather.
 */
typedef int (*shoal_exchange)(void *context, const void *in, void *out_all, size_t bytes);

typedef struct shoal_world_options {
    size_t struct_size; /* sizeof(shoal_world_options) */
    /* How many ranks the job has, and which one this is. If n_ranks is 0, both are read from the environment, from the
       first launcher whose variables are set: SHOAL_*, torchrun, Open MPI, PMI, Slurm. Without any, the world has one
       rank. If only some of a launcher's variables are set, open fails and names the missing ones. (The shell of a
       Slurm batch job, rank 0 without a step, is a world of one rank: srun starts the ranks.) */
    int n_ranks;
    int rank;
    /* A name by which the ranks of this job find each other on this machine: the same on all of them, and not used by
       another job at the same time. Needed if n_ranks is given without `exchange`. */
    const char *key;
    /* Optional, with n_ranks and rank: used at start-up instead of a socket of this machine. Not with mpi_comm. */
    shoal_exchange exchange;
    void *exchange_context;
    /* The transport of all groups; the same on all ranks. NULL means what SHOAL_TRANSPORT says, or, if that is not set,
       one that suits the hosts of each group's ranks ("shm", shared memory, within one machine). "fake" has no peers
       and moves nothing: for measuring or testing one rank. Any other name is the name of a module. */
    const char *transport;
    /* In seconds, at most 1e9. */
    double startup_timeout_s; /* 0 means 60 */
    double timeout_s;         /* of an operation; 0 means SHOAL_TIMEOUT, which is 600 by default */
    double close_timeout_s;   /* 0 means 30 */
    /*
     * The address of an MPI_Comm of the application. Its ranks become the ranks of the world; n_ranks and rank may be
     * left 0. All of its ranks call open. Open duplicates the communicator, and the application may free its own once
     * all worlds on it are closed. They must be closed before MPI_Finalize (otherwise close gives SHOAL_ERR_STATE). MPI
     * is then used for start-up and by groups on several hosts, or by all groups if transport is "mpi". NULL means that
     * there is no such communicator; transport "mpi" then uses MPI_COMM_WORLD, and initializes MPI if that has not been
     * done.
     */
    const void *mpi_comm;
    /*
     * Which of these is needed depends on the level that MPI_Init_thread gave:
     * - MPI_THREAD_MULTIPLE: none. Shoal's own thread calls MPI, and so do threads inside of calls of Shoal.
     * - MPI_THREAD_SERIALIZED: either mpi_lock and mpi_unlock, or mpi_progress. Shoal's own thread calls MPI between
     *   mpi_lock and mpi_unlock. The application holds the same lock around its own calls of MPI, and must not hold it
     *   while it calls Shoal.
     * - MPI_THREAD_FUNNELED: mpi_progress, in the main thread.
     * - MPI_THREAD_SINGLE, which MPI_Init gives: open fails.
     * If what is needed is missing, open fails, also where all ranks are on one host.
     */
    void (*mpi_lock)(void *context);
    void (*mpi_unlock)(void *context);
    void *mpi_lock_context;
    /*
     * If it is not 0, Shoal has no thread that calls MPI. It calls MPI only inside shoal_world_progress, and where the
     * thread that opened the world waits in a call of Shoal. The same thread must close the world.
     */
    int mpi_progress;
} shoal_world_options;
#define SHOAL_WORLD_OPTIONS_INIT SHOAL_SIZED(shoal_world_options)

/*
 * Joins the job: connects this rank to the others, and returns once all ranks have arrived. Call it first, on every
 * rank. NULL options are the defaults. Fails on ranks that arrived if others do not arrive within startup_timeout_s.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_world_open(const shoal_world_options *options, SHOAL_GIVES shoal_world **world_out);

/*
 * Leaves the job and frees the world with everything made from it. Call it last, on every rank. NULL is allowed.
 *
 * First it waits for saves in the background (shoal/checkpoint.h), however long they take. Then close_timeout_s begins.
 * Collectives and sends that were started are finished, as far as the peers do their part; receives without a sender
 * are cancelled. Then it waits until every rank that is alive has called it too. It returns when close_timeout_s has
 * passed; up to 2 s later where messages to a rank that does not take them are on their way, up to 5 s where another
 * thread keeps mpi_lock, up to 1 s where the program has closed descriptors of the library.
 *
 * SHOAL_ERR_STATE with a text about descriptors: the program has closed descriptors that it did not open. Otherwise
 * SHOAL_ERR_TIMEOUT names a rank that did not close in time. Otherwise a save in the background that failed, and that
 * was not waited for, is the error; or MPI_Finalize was called before (SHOAL_ERR_STATE). It is freed in any case.
 */
SHOAL_API SHOAL_COLLECTIVE shoal_status shoal_world_close(SHOAL_TAKES shoal_world *world);

/*
 * Advances operations in flight as far as possible without waiting. Only for a world that was opened with mpi_progress:
 * call it repeatedly while operations that were started have not ended, because no other thread advances them. In other
 * worlds it does nothing. SHOAL_ERR_STATE: the level of MPI does not allow this thread to call MPI.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_progress(shoal_world *world);

/* The rank of the caller, and how many ranks there are. */
SHOAL_API int shoal_world_rank(const shoal_world *world);
SHOAL_API int shoal_world_n_ranks(const shoal_world *world);

/* The group of all ranks, in order. Borrowed: it lives as long as the world. */
SHOAL_API shoal_group *shoal_world_group(shoal_world *world);

/* The store of the world (shoal/store.h), which rank 0 holds. Borrowed: it lives as long as the world. */
SHOAL_API shoal_store *shoal_world_store(shoal_world *world);

/*
 * Runs `function` on n_ranks threads of this process, each with a world of its own as one rank of the same job.
 * Returns when all have ended. If ranks fail, returns the failure that happened first, with a text that names the rank:
 * the status of its function, or of opening or closing its world.
 */
typedef shoal_status (*shoal_rank_function)(shoal_world *world, void *context);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_run_threads(int n_ranks, shoal_rank_function function,
                                                                void *context);

/*
 * Writes the flight record of all groups as one JSON object, in pieces, through `write`: the last calls of every lane,
 * with op, sequence number, dtype, count, times and state. Call it to find out where ranks hang. If `write` returns
 * anything but 0, the dump ends with SHOAL_ERR_CANCELLED.
 */
typedef int (*shoal_write_function)(void *context, const char *text, size_t bytes);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_world_dump(shoal_world *world, shoal_write_function write,
                                                         void *context);

SHOAL_END_DECLS

#endif
