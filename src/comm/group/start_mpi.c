/* SPDX-License-Identifier: MIT */
/*
 * Worlds on MPI. If the application gives a communicator or asks for MPI, the module is opened before the ranks meet:
 * MPI gives rank and size, which must be those that other sources say, and exchanges the cards. Otherwise MPI may be
 * chosen after the ranks have met (start_mpi_late). This file does not call MPI itself (transport/mpi_start.h).
 */
#include "comm/group/start_mpi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/meet/environment.h"
#include "bootstrap/alive/liveness.h"
#include "bootstrap/alive/watch.h"
#include "comm/group/world.h"
#include "transport/mpi_start.h"
#include "transport/registry.h"

/* How long MPI may still need after a rank was seen to have left its world: see check_company. */
#define LEFT_GRACE_NS INT64_C(2000000000)

bool start_mpi_is_usual(const struct shoal_world *world)
{
    return world->mpi || environment_starts_mpi(world->launcher);
}

shoal_status start_mpi_check(const struct shoal_world *world, const shoal_world_options *options)
{
    if (!options->mpi_lock != !options->mpi_unlock) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL, but %s is given: both or none",
                         options->mpi_lock ? "mpi_unlock" : "mpi_lock",
                         options->mpi_lock ? "mpi_lock" : "mpi_unlock");
    }
    if (options->mpi_comm && options->exchange) {
        return error_set(SHOAL_ERR_INVALID,
                         "both mpi_comm and exchange are given: the communicator is an exchange");
    }
    bool is_asked = options->mpi_comm || (world->transport && mpi_start_of(world->transport));
    if (!is_asked && (options->mpi_lock || options->mpi_progress)) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s is given, but neither mpi_comm nor transport mpi: the world would not use MPI",
                         options->mpi_lock ? "mpi_lock" : "mpi_progress");
    }
    if (options->mpi_comm && !world->has_peers) {
        return error_set(SHOAL_ERR_INVALID, "mpi_comm is given, but transport %s has no peers",
                         world->transport->name);
    }
    return SHOAL_OK;
}

static shoal_status open_mpi(struct shoal_world *world, const struct transport *transport,
                             const struct mpi_options *options)
{
    world->mpi_start = mpi_start_of(transport);
    if (!world->mpi_start) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "the module of transport %s does not fit: build both together", transport->name);
    }
    shoal_status status = world->mpi_start->open(options, &world->mpi);
    if (status != SHOAL_OK) {
        return error_prefix(status, "transport %s", transport->name);
    }
    static _Atomic uint64_t n_opened;
    world->mpi_number = atomic_fetch_add(&n_opened, 1);
    return SHOAL_OK;
}

shoal_status start_mpi_drive(struct shoal_world *world, void (*drive)(void *context))
{
    if (!world->mpi || !world->mpi_start->is_driven(world->mpi)) {
        return SHOAL_OK;
    }
    if (!wait_set_meanwhile(drive, world)) {
        return error_set(SHOAL_ERR_STATE,
                         "this thread has a world with mpi_progress already: it can have one at a time");
    }
    world->is_driven = true;
    world->opener = pthread_self();
    return SHOAL_OK;
}

/* The processes of ranks, at the exit ------------------------------------------------------------------------- */

/*
 * Members and watch of the last world that was closed, if Shoal has initialized MPI: they say which processes of MPI
 * are still alive. Worlds are numbered in the order of their communicators, which is the same on all ranks, so all
 * ranks keep those of the same world.
 */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct members *members;
    struct watch *watch;
    uint64_t number;
} kept;

/* Under the lock. */
static void free_kept(void)
{
    watch_stop(kept.watch);
    members_free(kept.members);
    watch_free(kept.watch);
    kept.members = NULL;
    kept.watch = NULL;
}

static shoal_status check_kept(void)
{
    (void)pthread_mutex_lock(&kept_lock);
    shoal_status status = kept.members ? members_check_processes(kept.members) : SHOAL_OK;
    (void)pthread_mutex_unlock(&kept_lock);
    return status;
}

static void end_kept(void)
{
    (void)pthread_mutex_lock(&kept_lock);
    free_kept();
    (void)pthread_mutex_unlock(&kept_lock);
}

/* Called while another world is opened: a process that has ended since the last world will not take part. */
static shoal_status check_before_meeting(void *context)
{
    (void)context;
    shoal_status status = check_kept();
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "start-up");
}

void start_mpi_keep(struct shoal_world *world)
{
    (void)pthread_mutex_lock(&kept_lock);
    if (!kept.members || kept.number < world->mpi_number) {
        free_kept();
        kept.members = world->members;
        kept.watch = world->watch;
        kept.number = world->mpi_number;
        world->members = NULL;
        world->watch = NULL;
    }
    (void)pthread_mutex_unlock(&kept_lock);
}

shoal_status start_mpi_if_asked(struct shoal_world *world, const shoal_world_options *options)
{
    const struct transport *transport = world->transport;
    bool is_asked = transport && mpi_start_of(transport);
    if (!options->mpi_comm && !is_asked) {
        return SHOAL_OK;
    }
    if (!is_asked) {
        TRY(transport_find("mpi", &transport));
    }
    struct mpi_options mpi = {.comm = options->mpi_comm,
                              .lock = options->mpi_lock,
                              .unlock = options->mpi_unlock,
                              .lock_context = options->mpi_lock_context,
                              .is_driven = options->mpi_progress != 0,
                              .deadline_ns = clock_deadline_after(world->startup_timeout_s),
                              .check = check_before_meeting};
    return open_mpi(world, transport, &mpi);
}

shoal_status start_mpi_for_hosts(struct shoal_world *world)
{
    const struct transport *transport = NULL;
    const char *address = getenv("SHOAL_ADDRESS");
    if (world->mpi || !world->has_peers || !start_mpi_is_usual(world) || (address && *address)) {
        return SHOAL_OK;
    }
    if (transport_find("mpi", &transport) != SHOAL_OK) {
        LOG(SHOAL_LOG_INFO, "several hosts: %s", shoal_error_text());
        error_clear();
        return SHOAL_OK;
    }
    struct mpi_options mpi = {.deadline_ns = clock_deadline_after(world->startup_timeout_s),
                              .check = check_before_meeting};
    return open_mpi(world, transport, &mpi);
}

/* The state of a rank that waits for the others to initialize MPI. */
struct company {
    struct shoal_world *world;
    int64_t left_ns; /* when a rank was first seen to have left; 0 if none has */
};

/*
 * Checks the other ranks while all initialize MPI together, after they have met. A dead rank is an error at once. A
 * rank that has left has either failed to start, or has finished its start and closed its world already; in that case
 * MPI is about to return here, so a rank that has left is an error only after a grace period.
 */
static shoal_status check_company(void *context)
{
    struct company *company = context;
    struct shoal_world *world = company->world;
    int64_t now_ns = clock_now_ns();
    for (int rank = 0; rank < world->n_ranks; rank++) {
        enum member_state state = members_state(world->members, rank);
        if (state == MEMBER_LEFT && company->left_ns == 0) {
            company->left_ns = now_ns;
        }
        if (state == MEMBER_DEAD || (state == MEMBER_LEFT && now_ns >= company->left_ns + LEFT_GRACE_NS)) {
            return error_prefix(world_check_rank(world, rank), "start-up");
        }
    }
    return SHOAL_OK;
}

shoal_status start_mpi_late(struct shoal_world *world, const struct transport *transport, int64_t deadline_ns)
{
    if (world->mpi || !mpi_start_of(transport)) {
        return SHOAL_OK;
    }
    struct company company = {.world = world};
    struct mpi_options mpi = {.deadline_ns = deadline_ns, .check = check_company, .check_context = &company};
    TRY(open_mpi(world, transport, &mpi));
    return start_mpi_check_place(world, /*has_communicator=*/false);
}

shoal_status start_mpi_check_place(struct shoal_world *world, bool has_communicator)
{
    int rank = world->mpi_start->rank(world->mpi);
    int n_ranks = world->mpi_start->n_ranks(world->mpi);
    if (world->n_ranks == 0 || (strcmp(world->launcher, "alone") == 0 && n_ranks > 1)) {
        world->launcher = "MPI";
        world->rank = rank;
        world->n_ranks = n_ranks;
        return SHOAL_OK;
    }
    if (world->rank == rank && world->n_ranks == n_ranks) {
        return SHOAL_OK;
    }
    return error_set(
        SHOAL_ERR_INVALID, "%s says rank %d of %d, but %s of %s says rank %d of %d%s", world->launcher,
        world->rank, world->n_ranks, has_communicator ? "mpi_comm" : "MPI_COMM_WORLD",
        world->mpi_start->library(world->mpi), rank, n_ranks,
        has_communicator ? "" : ": was the program started by the mpirun of another MPI, or by none?");
}

shoal_status start_mpi_check_launcher(const struct shoal_world *world)
{
    return environment_check_mpi(world->mpi_start->n_started(world->mpi),
                                 world->mpi_start->library(world->mpi));
}

int start_mpi_exchange(void *context, const void *in, void *out_all, size_t bytes)
{
    struct shoal_world *world = context;
    return world->mpi_start->exchange(world->mpi, in, out_all, bytes);
}

static bool has_anybody_died(struct shoal_world *world)
{
    bool has_died = false;
    for (int rank = 0; rank < world->n_ranks && world->members && !has_died; rank++) {
        has_died = members_state(world->members, rank) == MEMBER_DEAD;
    }
    return has_died;
}

shoal_status start_mpi_check_order(const struct shoal_world *world)
{
    return world->mpi ? world->mpi_start->check(world->mpi) : SHOAL_OK;
}

void start_mpi_leave(struct shoal_world *world)
{
    if (world->mpi && world->members && world->mpi_start->is_own(world->mpi)) {
        members_keep(world->members);
    }
}

bool start_mpi_end(struct shoal_world *world)
{
    if (world->is_driven) {
        (void)wait_set_meanwhile(NULL, NULL);
    }
    if (!world->mpi) {
        return false;
    }
    bool is_own = world->mpi_start->is_own(world->mpi);
    bool may_call = world->mpi_start->close(world->mpi, world->has_ended_well && !has_anybody_died(world));
    world->mpi = NULL;
    if (is_own && may_call && world->members) {
        world->mpi_start->set_exit(check_kept, end_kept);
        return true;
    }
    return false;
}
