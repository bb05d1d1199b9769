/* SPDX-License-Identifier: MIT */
/*
 * What a world has of MPI: its communicator, which threads may call, and the exchange by which its ranks meet. Nothing
 * here blocks in MPI, because a rank may never arrive, and MPI has no deadlines. Operations are started, and tested
 * until the deadline.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "transport/mpi/mpi.h"

/* Between two tests of what start-up waits for: often at first, then rarely. */
#define SOON_NS 20000
#define LATER_NS 500000
#define SOON_TESTS 200
/* Between two checks whether all ranks are alive. */
#define LOOK_NS INT64_C(100000000)

/* Who calls MPI ------------------------------------------------------------------------------------------ */

void mpi_enter(struct mpi *mpi)
{
    if (mpi->mode == MPI_MODE_LOCKED) {
        mpi->options.lock(mpi->options.lock_context);
    }
}

void mpi_leave(struct mpi *mpi)
{
    if (mpi->mode == MPI_MODE_LOCKED) {
        mpi->options.unlock(mpi->options.lock_context);
    }
}

static const char *level_name(int level)
{
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
}

static shoal_status refuse_level(int level)
{
    return mpi_services->set_error(
        SHOAL_ERR_UNSUPPORTED, "MPI was initialized with %s: ask for MPI_THREAD_MULTIPLE%s",
        level_name(level),
        level == MPI_THREAD_SERIALIZED
            ? ", or give mpi_lock and mpi_unlock, or set mpi_progress and call shoal_world_progress"
        : level == MPI_THREAD_FUNNELED
            ? ", for MPI_THREAD_SERIALIZED and give mpi_lock and mpi_unlock, or set mpi_progress and call "
              "shoal_world_progress in the main thread"
            : ", or for MPI_THREAD_FUNNELED, set mpi_progress and call shoal_world_progress in the main "
              "thread");
}

/* After MPI was initialized. */
static shoal_status choose_mode(struct mpi *mpi)
{
    int level = MPI_THREAD_SINGLE;
    (void)MPI_Query_thread(&level);
    mpi->driver = pthread_self();
    mpi->is_funneled = level == MPI_THREAD_FUNNELED;
    if (level == MPI_THREAD_MULTIPLE || (mpi->is_own && level == MPI_THREAD_SERIALIZED)) {
        mpi->mode = MPI_MODE_FREE;
        return SHOAL_OK;
    }
    if (level == MPI_THREAD_SERIALIZED && mpi->options.lock) {
        mpi->mode = MPI_MODE_LOCKED;
        return SHOAL_OK;
    }
    bool is_possible = !mpi->is_own && mpi->options.is_driven && level >= MPI_THREAD_FUNNELED;
    if (!is_possible) {
        return refuse_level(level);
    }
    int is_main = 0;
    if (mpi->is_funneled && (MPI_Is_thread_main(&is_main) != MPI_SUCCESS || !is_main)) {
        return mpi_services->set_error(
            SHOAL_ERR_STATE, "MPI was initialized with MPI_THREAD_FUNNELED, and the world is opened "
                             "by another thread than initialized it");
    }
    mpi->mode = MPI_MODE_DRIVEN;
    return SHOAL_OK;
}

/* Operations of all ranks ---------------------------------------------------------------------------------- */

static shoal_status fail_call(const char *call, int error)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    (void)MPI_Error_string(error, text, &length);
    process_fail();
    return mpi_services->set_error(SHOAL_ERR_SYSTEM, "%s: %.200s", call, text);
}

/* Tests until the operation has ended. If the deadline passes or a rank dies, the operation stays unfinished, and
   MPI is not called any more. */
static shoal_status await(struct mpi *mpi, const char *call)
{
    const struct mpi_options *options = &mpi->options;
    int64_t look_ns = mpi_services->now_ns() + LOOK_NS;
    for (int n_tests = 0;; n_tests++) {
        int is_done = 0;
        mpi_enter(mpi);
        int error = MPI_Test(&mpi->request, &is_done, MPI_STATUS_IGNORE);
        mpi_leave(mpi);
        if (error != MPI_SUCCESS) {
            return fail_call(call, error);
        }
        if (is_done) {
            return SHOAL_OK;
        }
        int64_t now_ns = mpi_services->now_ns();
        if (options->check && now_ns >= look_ns) {
            look_ns = now_ns + LOOK_NS;
            shoal_status status = options->check(options->check_context);
            if (status != SHOAL_OK) {
                process_fail();
                return status;
            }
        }
        if (now_ns >= options->deadline_ns) {
            process_fail();
            return mpi_services->set_error(SHOAL_ERR_TIMEOUT,
                                           "start-up: not all of the communicator's %d ranks have arrived: "
                                           "%s has not ended",
                                           mpi->n_ranks, call);
        }
        mpi_services->sleep(n_tests < SOON_TESTS ? SOON_NS : LATER_NS);
    }
}

static shoal_status duplicate(struct mpi *mpi)
{
    MPI_Comm comm = mpi->options.comm ? *(const MPI_Comm *)mpi->options.comm : MPI_COMM_WORLD;
    if (comm == MPI_COMM_NULL) {
        return mpi_services->set_error(SHOAL_ERR_INVALID, "mpi_comm is MPI_COMM_NULL");
    }
    int is_inter = 0;
    mpi_enter(mpi);
    (void)MPI_Comm_test_inter(comm, &is_inter);
    if (is_inter) {
        mpi_leave(mpi);
        return mpi_services->set_error(SHOAL_ERR_INVALID, "mpi_comm is an intercommunicator");
    }
    (void)MPI_Comm_rank(comm, &mpi->rank);
    (void)MPI_Comm_size(comm, &mpi->n_ranks);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &mpi->n_started);
    int error = MPI_Comm_idup(comm, &mpi->comm, &mpi->request);
    mpi_leave(mpi);
    if (error != MPI_SUCCESS) {
        return fail_call("MPI_Comm_idup", error);
    }
    shoal_status status = await(mpi, "MPI_Comm_idup");
    if (status == SHOAL_OK) {
        mpi_enter(mpi);
        (void)MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
        mpi_leave(mpi);
    }
    return status;
}

static shoal_status gather(struct mpi *mpi, const void *in, void *out_all, size_t bytes)
{
    if (bytes > INT_MAX) {
        return mpi_services->set_error(SHOAL_ERR_INVALID, "%zu bytes are exchanged, at most %d expected",
                                       bytes, INT_MAX);
    }
    if (process_has_failed()) {
        return mpi_services->set_error(SHOAL_ERR_STATE, "MPI is not called any more after a failure");
    }
    mpi_enter(mpi);
    int error =
        MPI_Iallgather(in, (int)bytes, MPI_BYTE, out_all, (int)bytes, MPI_BYTE, mpi->comm, &mpi->request);
    mpi_leave(mpi);
    return error == MPI_SUCCESS ? await(mpi, "MPI_Iallgather") : fail_call("MPI_Iallgather", error);
}

static int start_exchange(void *context, const void *in, void *out_all, size_t bytes)
{
    return gather(context, in, out_all, bytes) == SHOAL_OK ? 0 : -1;
}

/* Ranks with different versions of an MPI library may get this far and hang later. */
static shoal_status compare_libraries(struct mpi *mpi)
{
    char(*all)[MPI_LIBRARY_BYTES] = mpi_services->alloc_zeroed((size_t)mpi->n_ranks, MPI_LIBRARY_BYTES);
    if (!all) {
        process_fail(); /* the other ranks wait in the exchange, which can never end */
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = gather(mpi, mpi->library, all, MPI_LIBRARY_BYTES);
    for (int rank = 0; status == SHOAL_OK && rank < mpi->n_ranks; rank++) {
        if (memcmp(all[rank], all[0], MPI_LIBRARY_BYTES) != 0) {
            status =
                mpi_services->set_error(SHOAL_ERR_UNSUPPORTED,
                                        "ranks have different versions of MPI: rank 0 has %.60s, rank %d "
                                        "has %.60s",
                                        all[0], rank, all[rank]);
        }
    }
    mpi_services->free(all);
    return status;
}

/* The library's name and version: the text that it gives, up to the first comma or line end, with spaces for tabs. */
static void read_library(char library[MPI_LIBRARY_BYTES])
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1];
    int length = 0;
    memset(library, 0, MPI_LIBRARY_BYTES);
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) {
        return;
    }
    text[strcspn(text, ",\n")] = '\0';
    for (char *tab = strchr(text, '\t'); tab; tab = strchr(text, '\t')) {
        *tab = ' ';
    }
    (void)snprintf(library, MPI_LIBRARY_BYTES, "%.60s", text);
}

/* Opening and closing -------------------------------------------------------------------------------------- */

static shoal_status open_parts(struct mpi *mpi)
{
    shoal_status status = process_begin(&mpi->options, &mpi->is_own);
    if (status == SHOAL_OK) {
        status = choose_mode(mpi);
    }
    if (status != SHOAL_OK) {
        return status;
    }
    mpi_enter(mpi);
    process_await_finalize();
    mpi_leave(mpi);
    read_library(mpi->library);
    status = duplicate(mpi);
    return status == SHOAL_OK ? compare_libraries(mpi) : status;
}

static shoal_status start_open(const struct mpi_options *options, struct mpi **mpi_out)
{
    struct mpi *mpi = mpi_services->alloc_zeroed(1, sizeof *mpi);
    if (!mpi) {
        return SHOAL_ERR_NO_MEMORY;
    }
    mpi->options = *options;
    mpi->comm = MPI_COMM_NULL;
    mpi->request = MPI_REQUEST_NULL;
    shoal_status status = open_parts(mpi);
    if (status != SHOAL_OK) {
        mpi_services->free(mpi);
        return status;
    }
    mpi->options.check = NULL; /* only valid during start-up */
    process_count_worlds(1);
    mpi_services->log(SHOAL_LOG_INFO, "mpi %s rank %d of %d mode %s", mpi->library, mpi->rank, mpi->n_ranks,
                      mpi->mode == MPI_MODE_FREE     ? "free"
                      : mpi->mode == MPI_MODE_LOCKED ? "locked"
                                                     : "driven");
    *mpi_out = mpi;
    return SHOAL_OK;
}

static void start_fail(struct mpi *mpi)
{
    (void)mpi;
    process_fail();
}

static shoal_status start_check(struct mpi *mpi)
{
    (void)mpi;
    if (process_is_finalised() || process_is_finalised_early()) {
        process_fail();
        return mpi_services->set_error(SHOAL_ERR_STATE, PROCESS_ORDER);
    }
    return SHOAL_OK;
}

static bool start_close(struct mpi *mpi, bool is_clean)
{
    if (!is_clean || process_is_finalised()) {
        process_fail();
    }
    bool may_call = !process_has_failed();
    if (may_call) {
        mpi_enter(mpi);
        (void)MPI_Comm_free(&mpi->comm);
        mpi_leave(mpi);
    }
    process_count_worlds(-1);
    /* The endpoint's thread may be waiting for the application's lock, which it unlocks through `mpi`. */
    if (!atomic_load(&mpi->has_endpoint)) {
        mpi_services->free(mpi);
    }
    return may_call;
}

static int start_rank(const struct mpi *mpi)
{
    return mpi->rank;
}

static int start_n_ranks(const struct mpi *mpi)
{
    return mpi->n_ranks;
}

static int start_n_started(const struct mpi *mpi)
{
    return mpi->n_started;
}

static bool start_is_own(const struct mpi *mpi)
{
    return mpi->is_own;
}

static const char *start_library(const struct mpi *mpi)
{
    return mpi->library;
}

static bool start_is_driven(const struct mpi *mpi)
{
    return mpi->mode == MPI_MODE_DRIVEN;
}

const struct mpi_start mpi_start_table = {
    .struct_size = sizeof(struct mpi_start),
    .interface = MPI_START_INTERFACE,
    .open = start_open,
    .rank = start_rank,
    .n_ranks = start_n_ranks,
    .n_started = start_n_started,
    .is_own = start_is_own,
    .library = start_library,
    .is_driven = start_is_driven,
    .exchange = start_exchange,
    .fail = start_fail,
    .check = start_check,
    .close = start_close,
    .set_exit = process_set_exit,
};
