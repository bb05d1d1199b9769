/* SPDX-License-Identifier: MIT */
/*
 * A transport for tests: barriers by control messages, and nothing else. It crosses hosts, has no streams, no memory and no
 * choice of algorithms. With MODULE_FLAW it is one that must be refused: see tests/CMakeLists.txt.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/module.h"

enum flaw {
    FLAW_NONE,
    FLAW_INTERFACE, /* of another version */
    FLAW_SIZE,      /* of another size */
    FLAW_ENTRY,     /* exports another name */
    FLAW_NULL,      /* gives none, and says why */
    FLAW_SILENT,    /* gives none */
    FLAW_MEMBER,    /* lacks a function that is required */
    FLAW_NAME,      /* has another name than its file */
    FLAW_LAYOUT,    /* sees structs of other sizes */
    /* These are found when they are used. */
    FLAW_OPEN,    /* open returns what is no status */
    FLAW_CONNECT, /* connect fails without a reason */
    FLAW_CHANNEL, /* connect gives no channel */
    FLAW_ORPHAN,  /* connect gives a channel of no transport */
    FLAW_RUN,     /* run returns what is no status */
    FLAW_QUIET,   /* run fails without a reason */
    FLAW_MANY     /* none: it has the name of its file, so that copies are as many transports */
};

static const struct transport_services *services;

struct state {
    const struct transport_world *world;
};

struct post_channel {
    struct channel base;
    _Atomic int is_failed;
    shoal_status status;
    char text[256];
};

/* Says "here" under a name, and waits until everybody has. */
static shoal_status meet(const struct transport_world *world, const int *ranks, int n_ranks, const char *name,
                         int64_t deadline_ns)
{
    char key[128];
    int rank = world->rank;
    (void)snprintf(key, sizeof key, "%s/%d", name, rank);
    shoal_status status = world->set(world->context, key, &rank, sizeof rank);
    for (int i = 0; status == SHOAL_OK && i < n_ranks; i++) {
        int peer = ranks ? ranks[i] : i;
        int said = -1;
        size_t bytes = 0;
        (void)snprintf(key, sizeof key, "%s/%d", name, peer);
        status = world->get(world->context, key, &said, sizeof said, deadline_ns, &bytes);
        if (status == SHOAL_OK && (bytes != sizeof said || said != peer)) {
            status =
                services->set_error(SHOAL_ERR_INTERNAL, "rank %d said %d in %zu bytes", peer, said, bytes);
        }
    }
    return status;
}

static shoal_status post_open(const struct transport *transport, const struct transport_world *world,
                              int64_t deadline_ns, void **state_out)
{
    if (MODULE_FLAW == FLAW_OPEN) {
        return (shoal_status)-777;
    }
    struct state *state = services->alloc_zeroed(1, sizeof *state);
    if (!state) {
        return SHOAL_ERR_NO_MEMORY;
    }
    state->world = world;
    shoal_status status = meet(world, NULL, world->n_ranks, "open", deadline_ns);
    if (status != SHOAL_OK) {
        services->free(state);
        return status;
    }
    services->log(SHOAL_LOG_DEBUG, "%s opened on rank %d", transport->name, world->rank);
    *state_out = state;
    return SHOAL_OK;
}

static void post_close(void *state)
{
    services->free(state);
}

extern const struct transport post;

static shoal_status post_connect(const struct transport_peers *peers, int64_t deadline_ns,
                                 struct channel **channel_out)
{
    static struct channel orphan;
    if (MODULE_FLAW == FLAW_CONNECT) {
        return SHOAL_ERR_SYSTEM;
    }
    if (MODULE_FLAW == FLAW_CHANNEL || MODULE_FLAW == FLAW_ORPHAN) {
        *channel_out = MODULE_FLAW == FLAW_ORPHAN ? &orphan : NULL;
        return SHOAL_OK;
    }
    struct post_channel *channel = services->alloc_zeroed(1, sizeof *channel);
    if (!channel) {
        return SHOAL_ERR_NO_MEMORY;
    }
    channel->base = (struct channel){.transport = &post, .peers = peers};
    *channel_out = &channel->base;
    return SHOAL_OK;
}

static void post_disconnect(struct channel *channel)
{
    services->free(channel);
}

static bool post_post(struct channel *channel, struct collective *collective)
{
    return false; /* a barrier of set and get does not end without its caller */
}

static bool post_is_ready(struct channel *channel, const struct collective *collective)
{
    return true;
}

static shoal_status post_failure(struct channel *base)
{
    struct post_channel *channel = (struct post_channel *)base;
    return atomic_load(&channel->is_failed) ? services->set_error(channel->status, "%s", channel->text)
                                            : transport_check_parent(base->peers);
}

static void post_poison(struct channel *base, shoal_status status, const char *text)
{
    struct post_channel *channel = (struct post_channel *)base;
    if (!atomic_load(&channel->is_failed)) {
        channel->status = status;
        (void)snprintf(channel->text, sizeof channel->text, "%s", text);
        atomic_store(&channel->is_failed, 1);
    }
}

static shoal_status post_run(struct channel *channel, struct collective *collective)
{
    const struct transport_peers *peers = channel->peers;
    const struct state *state = peers->state;
    char name[64];
    shoal_status status;
    if (MODULE_FLAW == FLAW_RUN || MODULE_FLAW == FLAW_QUIET) {
        return MODULE_FLAW == FLAW_RUN ? (shoal_status)7 : SHOAL_ERR_SYSTEM;
    }
    if (collective->kind == COLLECTIVE_BARRIER) {
        (void)snprintf(name, sizeof name, "barrier/%u", (unsigned)collective->sequence);
        status = meet(state->world, peers->world_ranks, peers->n_ranks, name, collective->deadline_ns);
    } else {
        char call[128];
        status = services->set_error(SHOAL_ERR_UNSUPPORTED, "%s: only barriers",
                                     services->collective_describe(collective, call, sizeof call));
    }
    if (status != SHOAL_OK) {
        post_poison(channel, status, services->error_text());
    }
    return status;
}

static shoal_status post_finish(struct channel *channel, struct collective *collective, int64_t until_ns,
                                bool *is_pending_out)
{
    *is_pending_out = false;
    return services->set_error(SHOAL_ERR_INTERNAL, "nothing is posted");
}

#define STRING_OF(word) #word
#define STRING(word) STRING_OF(word)

const struct transport post = {
    .struct_size = sizeof post + (MODULE_FLAW == FLAW_SIZE ? 8 : 0),
    .interface = TRANSPORT_INTERFACE + (MODULE_FLAW == FLAW_INTERFACE ? 1 : 0),
    .layout = TRANSPORT_LAYOUT + (MODULE_FLAW == FLAW_LAYOUT ? 8 : 0),
    .name = MODULE_FLAW == FLAW_NAME ? "another" : STRING(MODULE_NAME),
    .doc = "barriers by control messages, for tests",
    .has_peers = true,
    .open = post_open,
    .close = post_close,
    .connect = post_connect,
    .disconnect = post_disconnect,
    .post = post_post,
    .is_ready = post_is_ready,
    .finish = post_finish,
    .run = MODULE_FLAW == FLAW_MEMBER ? NULL : post_run,
    .poison = post_poison,
    .failure = post_failure,
};

#if MODULE_FLAW == 3
#define shoal_transport_module not_the_entry
TRANSPORT_MODULE_EXPORT transport_module_function not_the_entry;
#endif

/* libshoal_transport_<name>-<interface>.so */
static const struct transport *name_by_file(void)
{
    static char name[64];
    static struct transport named;
    Dl_info info;
    const char *begin = dladdr(&services, &info) != 0 ? strstr(info.dli_fname, "_transport_") : NULL;
    if (!begin) {
        return NULL;
    }
    (void)snprintf(name, sizeof name, "%s", begin + strlen("_transport_"));
    name[strcspn(name, "-")] = '\0';
    named = post;
    named.name = name;
    return &named;
}

const struct transport *shoal_transport_module(const struct transport_services *given)
{
    if (!transport_services_fit(given)) {
        return NULL;
    }
    services = given;
    if (!services->built_in("shm") || services->built_in("smoke")) {
        (void)services->set_error(SHOAL_ERR_INTERNAL, "the built-in transports are not as they were");
        return NULL;
    }
    if (MODULE_FLAW == FLAW_NULL) {
        (void)services->set_error(SHOAL_ERR_SYSTEM, "no network here");
    }
    if (MODULE_FLAW == FLAW_MANY) {
        return name_by_file();
    }
    return MODULE_FLAW == FLAW_NULL || MODULE_FLAW == FLAW_SILENT ? NULL : &post;
}
