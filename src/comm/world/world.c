/* SPDX-License-Identifier: MIT */
/* Worlds: the public calls that open, close and query them. How ranks meet is in startup.c. */
#include "comm/group/world.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/processors.h"
#include "base/struct_size.h"
#include "base/trace.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/meet/environment.h"
#include "bootstrap/server/server.h"
#include "comm/group/groups.h"
#include "comm/lane/handles.h"
#include "comm/lane/lane.h"
#include "bootstrap/alive/liveness.h"
#include "comm/p2p/p2p.h"
#include "comm/group/start_mpi.h"
#include "comm/world/startup.h"
#include "comm/group/transports.h"
#include "comm/lane/work.h"
#include "transport/registry.h"

#define STARTUP_TIMEOUT_S 60.0
#define CLOSE_TIMEOUT_S 30.0
/* Between two checks whether other threads have finished. */
#define NAP_NS 200000

/* Opening ----------------------------------------------------------------------------------------------- */

static shoal_status check_seconds(const char *name, double given, double by_default, double *seconds_out)
{
    double most = option_seconds_most(OPTION_TIMEOUT);
    if (!(given >= 0.0 && given <= most)) {
        return error_set(SHOAL_ERR_INVALID, "%s is %g, 0 (the default) to %g expected", name, given, most);
    }
    *seconds_out = given == 0 ? by_default : given;
    return SHOAL_OK;
}

static shoal_status check_times(struct shoal_world *world, const shoal_world_options *options)
{
    TRY(check_seconds("startup_timeout_s", options->startup_timeout_s, STARTUP_TIMEOUT_S,
                      &world->startup_timeout_s));
    TRY(check_seconds("timeout_s", options->timeout_s, option_seconds(OPTION_TIMEOUT), &world->timeout_s));
    return check_seconds("close_timeout_s", options->close_timeout_s, CLOSE_TIMEOUT_S,
                         &world->close_timeout_s);
}

/* Takes rank and size from the options. */
static shoal_status check_place(struct shoal_world *world, const shoal_world_options *options)
{
    int n_ranks_max = !world->has_peers ? INT_MAX : ENVIRONMENT_RANKS_MAX;
    if (options->n_ranks < 0 || options->n_ranks > n_ranks_max) {
        return error_set(SHOAL_ERR_INVALID, "n_ranks is %d, 0 (from the environment) to %d expected",
                         options->n_ranks, n_ranks_max);
    }
    if (options->rank < 0 || options->rank >= options->n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "rank is %d, 0 to %d expected: n_ranks is %d", options->rank,
                         options->n_ranks - 1, options->n_ranks);
    }
    bool needs_key = world->has_peers && options->n_ranks > 1 && !options->exchange && !world->mpi;
    if (needs_key && (!options->key || !options->key[0])) {
        return error_set(SHOAL_ERR_INVALID, "n_ranks is %d, but neither key nor exchange is given",
                         options->n_ranks);
    }
    world->launcher = "options";
    world->n_ranks = options->n_ranks;
    world->rank = options->rank;
    return SHOAL_OK;
}

/* Takes rank, size and key from the environment. */
static shoal_status find_place(struct shoal_world *world, const shoal_world_options *options,
                               struct environment *environment)
{
    /* With a communicator, its rank and size count, whatever the launcher says. */
    if (options->mpi_comm) {
        *environment = (struct environment){.launcher = "MPI"};
        return start_mpi_check_place(world, /*has_communicator=*/true);
    }
    /* The check is the same on every rank, also on rank 0: otherwise the others would wait for it in the exchange. */
    if (options->exchange) {
        return error_set(SHOAL_ERR_INVALID,
                         "exchange is given, but n_ranks is 0: give n_ranks and rank with it");
    }
    if (options->rank != 0 || options->key) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s is given, but n_ranks is 0, which means that all is taken from the environment: "
                         "give n_ranks too",
                         options->key ? "key" : "rank");
    }
    TRY(environment_read(environment));
    world->launcher = environment->launcher;
    world->n_ranks = environment->n_ranks;
    world->rank = environment->rank;
    return SHOAL_OK;
}

/* Finds the transport that the program or the environment asks for. */
static shoal_status find_transport(struct shoal_world *world, const shoal_world_options *options)
{
    const char *by_environment = option_text(OPTION_TRANSPORT);
    if (options->transport) {
        TRY(transport_find(options->transport, &world->transport));
    } else if (*by_environment != '\0') {
        shoal_status status = transport_find(by_environment, &world->transport);
        if (status != SHOAL_OK) {
            return error_prefix(status, "SHOAL_TRANSPORT");
        }
    }
    world->has_peers = !world->transport || world->transport->has_peers;
    return SHOAL_OK;
}

static void drive(void *context)
{
    const struct shoal_world *world = context;
    transports_drive(world->transports);
}

static shoal_status open_world(struct shoal_world *world, const shoal_world_options *options)
{
    struct environment environment;
    struct startup_plan plan = {.exchange = options->exchange,
                                .exchange_context = options->exchange_context,
                                .is_by_environment = options->n_ranks == 0,
                                .hosts_text = ""};
    TRY(check_times(world, options));
    TRY(find_transport(world, options));
    TRY(start_mpi_check(world, options));
    TRY(start_mpi_if_asked(world, options));
    if (options->mpi_comm) {
        TRY(start_mpi_check_launcher(world));
    }
    TRY(start_mpi_drive(world, drive));
    char own_key[ENVIRONMENT_KEY_BYTES];
    if (options->n_ranks == 0) {
        TRY(find_place(world, options, &environment));
        plan.key = environment.key;
        plan.hosts_text = environment.hosts_text;
    } else {
        TRY(check_place(world, options));
        const char *key = options->key ? options->key : "";
        int length = snprintf(own_key, sizeof own_key, "options\n%s", key);
        if (length < 0 || (size_t)length >= sizeof own_key) {
            return error_set(SHOAL_ERR_INVALID, "key has %zu characters, at most %zu expected", strlen(key),
                             sizeof own_key - sizeof "options\n");
        }
        plan.key = own_key;
    }
    if (plan.hosts_text[0] != '\0') {
        TRY(start_mpi_for_hosts(world));
    }
    if (world->mpi) {
        plan.exchange = start_mpi_exchange;
        plan.exchange_context = world;
        TRY(start_mpi_check_place(world, options->mpi_comm != NULL));
    }
    world->may_spin = processors_suffice(world->n_ranks);
    if (!world->has_peers) {
        return startup_without_peers(world);
    }
    return startup_with_peers(world, &plan);
}

static void free_world(struct shoal_world *world)
{
    work_count_unref(world->works);
    mem_free(world);
}

shoal_status shoal_world_open(const shoal_world_options *options, shoal_world **world_out)
{
    error_clear();
    shoal_world_options known = {.struct_size = sizeof known};
    if (!world_out) {
        return error_set(SHOAL_ERR_INVALID, "world_out is NULL");
    }
    if (options) {
        TRY(struct_size_read("shoal_world_options", options, sizeof(size_t), &known, sizeof known));
    }
    TRY(fork_watch());
    struct shoal_world *world = mem_alloc_zeroed(1, sizeof(*world));
    if (!world) {
        return SHOAL_ERR_NO_MEMORY;
    }
    world->n_forks = fork_count();
    owned_list_init(&world->ending);
    owned_list_init(&world->owned);
    world->works = work_count_create(world->n_forks);
    shoal_status status = world->works ? open_world(world, &known) : SHOAL_ERR_NO_MEMORY;
    if (status != SHOAL_OK) {
        startup_undo(world);
        free_world(world);
        return status;
    }
    trace_world_opened(world->rank, world->n_ranks, world->run);
    *world_out = world;
    return SHOAL_OK;
}

/* Closing ----------------------------------------------------------------------------------------------- */

static void warn_of_unawaited(struct shoal_world *world)
{
    /* Relaxed: a number that stands for itself. */
    uint64_t n_unawaited = atomic_load_explicit(&world->works->n_unawaited, memory_order_relaxed);
    if (n_unawaited > 0) {
        LOG(SHOAL_LOG_WARN,
            "rank %d closes its world, but never waited for %" PRIu64 " operations that were started",
            world->rank, n_unawaited);
    }
}

/*
 * Waits until what this rank has started has ended, because peers may be in the middle of it, or until the deadline.
 * What is unfinished then is cancelled when its group is freed.
 */
static void finish_started(struct shoal_world *world, int64_t deadline_ns)
{
    for (struct shoal_group *group = groups_walk(world->groups); group; group = group->next) {
        struct p2p *p2p = group_p2p(group);
        while ((!lane_drain(group->lane, deadline_ns) || p2p_is_sending(p2p)) &&
               clock_now_ns() < deadline_ns) {
            wait_sleep(NAP_NS);
        }
    }
    groups_end_walk(world->groups);
    error_clear();
}

static void free_parts(struct shoal_world *world)
{
    groups_close(world->groups);
    owned_list_end(&world->owned);
    owned_list_init(&world->owned);
}

shoal_status shoal_world_close(shoal_world *world)
{
    error_clear();
    if (!world) {
        return SHOAL_OK;
    }
    TRY(world_check_process(world));
    TRY(callback_check("world_close"));
    if (world->is_driven && !pthread_equal(pthread_self(), world->opener)) {
        return error_set(SHOAL_ERR_STATE, "world_close: the world was opened with mpi_progress, so the "
                                          "thread that opened it must close it");
    }
    owned_list_end(&world->ending);
    error_clear();
    if (start_mpi_check_order(world) != SHOAL_OK) {
        world_note_failure(world, SHOAL_ERR_STATE, shoal_error_text());
    }
    int64_t deadline_ns = clock_deadline_after(world->close_timeout_s);
    LOG(SHOAL_LOG_DEBUG, "rank %d closes its world", world->rank);
    warn_of_unawaited(world);
    /* Half of the time. An operation whose peer does nothing must not use up the time in which this rank waits for the
       others to close. */
    finish_started(world, clock_deadline_after(world->close_timeout_s / 2));
    /* Of the rest one half is for ranks that do not answer, and one for this rank to leave and wait for the others: those
       that close too must not find it missing. */
    transports_hurry(world->transports, deadline_ns - (deadline_ns - clock_now_ns()) / 2);
    /* Before this rank leaves, because names may have to be dropped at servers of other ranks. */
    free_parts(world);
    error_clear();
    shoal_status status = SHOAL_OK;
    if (world->members) {
        start_mpi_leave(world);
        members_leave(world->members);
        status = members_wait_for_end(world->members, deadline_ns);
    }
    world->has_ended_well = status == SHOAL_OK;
    /* If all have closed, nobody needs what is still on its way. */
    transports_hurry(world->transports, status == SHOAL_OK ? deadline_ns : 0);
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    if (status == SHOAL_OK && world->ending_failure != SHOAL_OK) {
        status = world->ending_failure;
        (void)snprintf(text, sizeof text, "%s", world->ending_text);
    }
    if (world->server &&
        server_check(world->server) != SHOAL_OK) { /* whatever else has failed comes from that */
        status = SHOAL_ERR_STATE;
        (void)snprintf(text, sizeof text, "closing the world: %s", shoal_error_text());
    }
    LOG(SHOAL_LOG_DEBUG, "rank %d has closed its world: %s", world->rank, shoal_status_name(status));
    startup_undo(world);
    free_world(world);
    trace_world_closed();
    return status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", text);
}

shoal_status shoal_world_progress(shoal_world *world)
{
    error_clear();
    if (!world) {
        return error_set(SHOAL_ERR_INVALID, "world is NULL");
    }
    TRY(world_check_process(world));
    TRY(start_mpi_check_order(world));
    return world->is_driven ? transports_progress(world->transports) : SHOAL_OK;
}

/* Asking ------------------------------------------------------------------------------------------------ */

int shoal_world_rank(const shoal_world *world)
{
    return world ? world->rank : -1;
}

int shoal_world_n_ranks(const shoal_world *world)
{
    return world ? world->n_ranks : 0;
}

shoal_group *shoal_world_group(shoal_world *world)
{
    return world ? world->group : NULL;
}

shoal_store *shoal_world_store(shoal_world *world)
{
    return world ? world->store : NULL;
}

shoal_status world_check(const shoal_world *world)
{
    return world_check_process(world);
}

void world_note_failure(shoal_world *world, shoal_status status, const char *text)
{
    if (world->ending_failure == SHOAL_OK) {
        world->ending_failure = status;
        (void)snprintf(world->ending_text, sizeof world->ending_text, "%s", text);
    }
}

struct owned_list *world_ending(shoal_world *world)
{
    return &world->ending;
}

struct owned_list *world_owned(shoal_world *world)
{
    return &world->owned;
}
