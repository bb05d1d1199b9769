/* SPDX-License-Identifier: MIT */
/*
 * The transport: what it keeps for a world and a group, and how a collective passes through it. No other file of this
 * folder depends on this one.
 */
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "device/device.h"
#include "transport/two_level/two_level.h"

static struct two_channel *of(struct channel *base)
{
    return (struct two_channel *)base;
}

/* Worlds -------------------------------------------------------------------------------------------------- */

static shoal_status open_world(const struct transport *transport, const struct transport_world *world,
                               int64_t deadline_ns, void **state_out)
{
    (void)transport;
    (void)deadline_ns;
    struct router *router = message_router_of(world->crossing, world->crossing_state);
    if (!router) {
        return error_set(
            SHOAL_ERR_UNSUPPORTED, "it needs a transport that carries messages between hosts%s%s",
            world->crossing ? ", and this world has " : "", world->crossing ? world->crossing->name : "");
    }
    struct two_world *state = mem_alloc(sizeof *state);
    if (!state) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *state = (struct two_world){
        .outer = world->crossing, .router = router, .is_fast = option_choice(OPTION_REDUCE) == 1};
    *state_out = state;
    return SHOAL_OK;
}

static void close_world(void *state)
{
    mem_free(state);
}

/* Connecting ---------------------------------------------------------------------------------------------- */

static void two_disconnect(struct channel *base)
{
    struct two_channel *channel = of(base);
    size_t n_ports = (size_t)two_n_hops(&channel->layout) * (size_t)channel->layout.n_slices;
    if (channel->outer) {
        router_settle(channel->world->router);
    }
    for (size_t i = 0; channel->ports && i < n_ports; i++) {
        port_detach(channel->ports[i]);
    }
    port_detach(channel->windows);
    if (channel->outer) {
        message_operations.disconnect(&channel->outer->base);
    }
    two_cells_close(channel->cells);
    two_layout_free(&channel->layout);
    mem_free((void *)channel->ports);
    mem_free((void *)channel->sources);
    mem_free(channel->scratch);
    mem_free(channel);
}

static shoal_status connect_outer(struct two_channel *channel, int64_t deadline_ns)
{
    const struct transport_peers *peers = channel->base.peers;
    channel->outer_peers = *peers;
    channel->outer_peers.transport = channel->world->outer;
    channel->outer_peers.state = channel->world->router;
    struct channel *outer = NULL;
    TRY(transport_generation(peers, deadline_ns, &channel->generation));
    TRY(message_operations.connect(&channel->outer_peers, deadline_ns, &outer));
    channel->outer = (struct message_channel *)outer;
    channel->outer->mode = channel->world->is_fast ? MESSAGE_MODE_FAST : MESSAGE_MODE_ORDERED;
    return SHOAL_OK;
}

static shoal_status connect_parts(struct two_channel *channel, int64_t deadline_ns)
{
    const struct transport_peers *peers = channel->base.peers;
    TRY(two_layout_create(peers, &channel->layout));
    channel->host = channel->layout.hosts[peers->rank];
    channel->local = channel->layout.locals[peers->rank];
    size_t n_ports = (size_t)two_n_hops(&channel->layout) * (size_t)channel->layout.n_slices;
    channel->ports = mem_alloc_zeroed(n_ports, sizeof(struct port *));
    channel->sources = mem_alloc_zeroed((size_t)peers->n_ranks, sizeof *channel->sources);
    channel->scratch = mem_alloc_aligned(TWO_SCRATCH_BYTES, MEM_DATA_ALIGNMENT);
    if (!channel->ports || !channel->sources || !channel->scratch) {
        return SHOAL_ERR_NO_MEMORY;
    }
    FAIL_POINT("two_level connect");
    return connect_outer(channel, deadline_ns);
}

static shoal_status two_connect(const struct transport_peers *peers, int64_t deadline_ns,
                                struct channel **channel_out)
{
    struct two_channel *channel = mem_alloc_zeroed(1, sizeof *channel);
    if (!channel) {
        return SHOAL_ERR_NO_MEMORY;
    }
    channel->base = (struct channel){.transport = peers->transport, .peers = peers};
    channel->world = peers->state;
    shoal_status status = connect_parts(channel, deadline_ns);
    if (status != SHOAL_OK) {
        two_disconnect(&channel->base);
        return status;
    }
    *channel_out = &channel->base;
    return SHOAL_OK;
}

/* Collectives --------------------------------------------------------------------------------------------- */

/* Small ones travel with the calls, from rank to rank: that is one step, and little is saved by two levels. */
static bool two_post(struct channel *base, struct collective *collective)
{
    return message_operations.post(&of(base)->outer->base, collective);
}

static bool two_is_ready(struct channel *base, const struct collective *collective)
{
    return message_operations.is_ready(&of(base)->outer->base, collective);
}

static shoal_status two_finish(struct channel *base, struct collective *collective, int64_t until_ns,
                               bool *is_pending_out)
{
    return message_operations.finish(&of(base)->outer->base, collective, until_ns, is_pending_out);
}

static shoal_status check_device(const struct collective *collective)
{
    return collective->device == SHOAL_CPU
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED,
                           "%s: buffers on device %s; transport two_level carries those of the cpu",
                           collective_rows[collective->kind].name, device_name(collective->device));
}

static shoal_status run_together(struct two_channel *channel, const struct collective *collective)
{
    TRY(check_device(collective));
    bool is_window = collective->kind == COLLECTIVE_WINDOW_GATHER;
    if (channel->layout.n_ranks == 1 && !is_window) {
        return message_run_alone(collective);
    }
    bool is_finished = false;
    TRY(message_meet(channel->outer, collective, &is_finished));
    if (is_finished) {
        return SHOAL_OK;
    }
    if (is_window) {
        return two_window_run(channel, collective);
    }
    return two_is_chained(channel, collective) ? two_chain_run(channel, collective)
                                               : message_move(channel->outer, collective);
}

static shoal_status two_run(struct channel *base, struct collective *collective)
{
    struct two_channel *channel = of(base);
    TRY(message_failure(channel->outer));
    return message_conclude(channel->outer, run_together(channel, collective), collective->deadline_ns);
}

static void two_poison(struct channel *base, shoal_status status, const char *text)
{
    message_operations.poison(&of(base)->outer->base, status, text);
}

static shoal_status two_failure(struct channel *base)
{
    return message_failure(of(base)->outer);
}

const struct transport transport_two_level = {
    .struct_size = sizeof(struct transport),
    .interface = TRANSPORT_INTERFACE,
    .layout = TRANSPORT_LAYOUT,
    .name = "two_level",
    .doc = "ranks of several hosts: shared memory within a host, messages between hosts",
    .has_peers = true,
    .is_layered = true,
    .open = open_world,
    .close = close_world,
    .connect = two_connect,
    .disconnect = two_disconnect,
    .post = two_post,
    .is_ready = two_is_ready,
    .finish = two_finish,
    .run = two_run,
    .poison = two_poison,
    .failure = two_failure,
    .streams = &two_level_streams,
    .memory = &two_level_memory,
};
