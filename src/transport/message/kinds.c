/* SPDX-License-Identifier: MIT */
/* The transport that is made of a kind of endpoints. */
#include <pthread.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "transport/message/channel.h"
#include "transport/message/endpoint.h"
#include "transport/message/streams.h"

struct message_transport {
    struct transport base; /* first */
    const struct endpoint_kind *kind;
};

static pthread_mutex_t kinds_lock = PTHREAD_MUTEX_INITIALIZER;
static struct message_transport transports[TRANSPORTS_MOST]; /* under the lock; those that are set stay */

static shoal_status message_open(const struct transport *transport, const struct transport_world *world,
                                 int64_t deadline_ns, void **state_out)
{
    const struct message_transport *own = (const struct message_transport *)transport;
    struct router *router = NULL;
    FAIL_POINT("message open");
    TRY(router_open(own->kind, world, deadline_ns, &router));
    *state_out = router;
    return SHOAL_OK;
}

static void message_close(void *state)
{
    router_close(state);
}

static shoal_status message_progress(void *state)
{
    return router_poll(state, /*is_driver=*/true)
               ? SHOAL_OK
               : error_set(
                     SHOAL_ERR_STATE, "this thread may not make progress: %s",
                     "where MPI was initialized with MPI_THREAD_FUNNELED, the main thread calls it, and "
                     "where a lock was given nobody has to");
}

struct router *message_router_of(const struct transport *transport, void *state)
{
    return transport && transport->open == message_open ? state : NULL;
}

static shoal_status check_kind(const struct endpoint_kind *kind)
{
    if (!kind || kind->struct_size != sizeof *kind) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the kind of endpoints has %zu bytes, %zu expected",
                         kind ? kind->struct_size : 0, sizeof *kind);
    }
    bool is_whole = kind->name && kind->doc && kind->open && kind->close && kind->isend && kind->irecv &&
                    kind->test && kind->cancel && kind->progress && kind->failure &&
                    !kind->wait == !kind->wake && !kind->enter == !kind->leave &&
                    !kind->isend_apart == !kind->irecv_apart && !kind->isend_apart == !kind->may_lend &&
                    (!kind->isend_apart || kind->give_up);
    return is_whole ? SHOAL_OK : error_set(SHOAL_ERR_UNSUPPORTED, "the kind of endpoints lacks a function");
}

const struct transport *message_transport(const struct endpoint_kind *kind)
{
    if (check_kind(kind) != SHOAL_OK) {
        return NULL;
    }
    (void)pthread_mutex_lock(&kinds_lock);
    struct message_transport *found = NULL;
    for (size_t i = 0; i < TRANSPORTS_MOST && !found; i++) {
        if (!transports[i].kind) {
            transports[i] = (struct message_transport){.base = message_operations, .kind = kind};
            transports[i].base.open = message_open;
            transports[i].base.close = message_close;
            transports[i].base.progress = kind->enter ? message_progress : NULL;
            transports[i].base.streams = &message_streams;
            transports[i].base.name = kind->name;
            transports[i].base.doc = kind->doc;
        }
        found = transports[i].kind == kind ? &transports[i] : NULL;
    }
    (void)pthread_mutex_unlock(&kinds_lock);
    if (!found) {
        (void)error_set(SHOAL_ERR_UNSUPPORTED,
                        "a process can have %d transports, and has as many kinds of endpoints already",
                        TRANSPORTS_MOST);
    }
    return found ? &found->base : NULL;
}
