/* SPDX-License-Identifier: MIT */
/*
 * A transport without peers: a world of any size in one process, in which every collective ends at once and moves
 * nothing. It is for tracing, for shapes, and for tests that do not depend on data.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "transport/algorithm.h"
#include "transport/transport.h"

struct fake_channel {
    struct channel base;
    /* 0 while all is well, 1 while the reason is written, 2 once it can be read. */
    _Atomic int failure_state;
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

static shoal_status fake_connect(const struct transport_peers *peers, int64_t deadline_ns,
                                 struct channel **channel_out)
{
    struct fake_channel *fake = mem_alloc_zeroed(1, sizeof *fake);
    if (!fake) {
        return SHOAL_ERR_NO_MEMORY;
    }
    fake->base = (struct channel){.transport = &transport_fake, .peers = peers};
    *channel_out = &fake->base;
    return SHOAL_OK;
}

static void fake_disconnect(struct channel *channel)
{
    mem_free(channel);
}

static shoal_status fake_failure(struct channel *channel)
{
    struct fake_channel *fake = (struct fake_channel *)channel;
    /* Acquire: pairs with the release in fake_poison. */
    if (atomic_load_explicit(&fake->failure_state, memory_order_acquire) != 2) {
        return transport_check_parent(channel->peers);
    }
    return error_set(fake->status, "%s", fake->text);
}

static void fake_poison(struct channel *channel, shoal_status status, const char *text)
{
    struct fake_channel *fake = (struct fake_channel *)channel;
    int expected = 0;
    /* Relaxed: only decides who writes. */
    if (!atomic_compare_exchange_strong_explicit(&fake->failure_state, &expected, 1, memory_order_relaxed,
                                                 memory_order_relaxed)) {
        return;
    }
    fake->status = status;
    (void)snprintf(fake->text, sizeof fake->text, "%s", text);
    /* Release: pairs with the load in fake_failure. */
    atomic_store_explicit(&fake->failure_state, 2, memory_order_release);
}

static bool fake_post(struct channel *channel, struct collective *collective)
{
    collective->algorithm = 0;
    return true;
}

static bool fake_is_ready(struct channel *channel, const struct collective *collective)
{
    return true;
}

static shoal_status fake_finish(struct channel *channel, struct collective *collective, int64_t until_ns,
                                bool *is_pending_out)
{
    *is_pending_out = false;
    return fake_failure(channel);
}

static shoal_status fake_run(struct channel *channel, struct collective *collective)
{
    collective->algorithm = 0;
    return fake_failure(channel);
}

static const struct algorithm_row algorithm_rows[] = {
    {.name = "local", .min_ranks = 1, .needs_text = "", .doc = "nothing moves"},
};

static bool can_carry(int row, const struct algorithm_question *question)
{
    return true;
}

static int pick(const struct algorithm_question *question, const char **why_out)
{
    *why_out = "there are no peers";
    return 0;
}

static struct algorithm_wishes wishes;

static const struct algorithm_table algorithms = {
    .rows = algorithm_rows, .n_rows = 1, .wishes = &wishes, .can = can_carry, .pick = pick};

const struct transport transport_fake = {
    .struct_size = sizeof(struct transport),
    .interface = TRANSPORT_INTERFACE,
    .layout = TRANSPORT_LAYOUT,
    .name = "fake",
    .doc = "any number of ranks, no peers: everything ends at once and moves nothing",
    .has_peers = false,
    .connect = fake_connect,
    .disconnect = fake_disconnect,
    .post = fake_post,
    .is_ready = fake_is_ready,
    .finish = fake_finish,
    .run = fake_run,
    .poison = fake_poison,
    .failure = fake_failure,
    .algorithms = &algorithms,
};
