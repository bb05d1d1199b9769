/* SPDX-License-Identifier: MIT */
/*
 * Asking servers. A connection carries one request at a time, so that a call that waits holds up nobody: each call
 * takes an idle connection to the server, or makes one, and leaves it behind for the next.
 *
 * The server watches the time of calls that wait for keys, so that even a wait of no time sees a key that is there;
 * the client's own deadline only bounds a server that does not answer.
 */
#include "comm/store.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/members.h"
#include "comm/request.h"
#include "comm/world.h"
#include "transport/segment.h"

/* Idle connections that are kept per server. */
#define IDLE_MAX 4
/* Between two attempts to reach a server that is busy with others. */
#define NAP_NS 1000000
/* How long the reason of a lost connection is looked for. */
#define VERDICT_NS 50000000
/* Beyond the time of a call: what a server gets to say that it is over. */
#define ANSWER_NS 5000000000
#define RESERVED_PREFIX "shoal/"

struct pool {
    int n_idle;
    int idle[IDLE_MAX];
};

struct shoal_store {
    struct stores *stores; /* NULL: there are none */
    int holder;
};

struct stores {
    struct shoal_world *world;
    struct card *cards;
    struct shoal_store store;
    pthread_mutex_t lock; /* over the pools */
    struct pool pools[];  /* one per rank */
};

shoal_status stores_create(struct shoal_world *world, struct card *cards, struct stores **stores_out)
{
    struct stores *stores =
        mem_alloc_zeroed(1, sizeof(*stores) + (size_t)world->n_ranks * sizeof(struct pool));
    if (!stores) {
        return SHOAL_ERR_NO_MEMORY;
    }
    stores->world = world;
    stores->cards = cards;
    stores->store = (struct shoal_store){.stores = stores, .holder = 0};
    (void)pthread_mutex_init(&stores->lock, NULL);
    *stores_out = stores;
    return SHOAL_OK;
}

void stores_free(struct stores *stores)
{
    if (!stores) {
        return;
    }
    for (int rank = 0; rank < stores->world->n_ranks; rank++) {
        struct pool *pool = &stores->pools[rank];
        while (pool->n_idle > 0) {
            (void)close(pool->idle[--pool->n_idle]);
        }
    }
    (void)pthread_mutex_destroy(&stores->lock);
    mem_free(stores->cards);
    mem_free(stores);
}

struct shoal_store *stores_public(struct stores *stores)
{
    return &stores->store;
}

struct shoal_store *stores_none(void)
{
    static struct shoal_store none = {.stores = NULL};
    return &none;
}

/* Connections ------------------------------------------------------------------------------------------- */

void stores_keep(struct stores *stores, int holder, int fd)
{
    struct pool *pool = &stores->pools[holder];
    (void)pthread_mutex_lock(&stores->lock);
    bool is_kept = pool->n_idle < IDLE_MAX;
    if (is_kept) {
        pool->idle[pool->n_idle++] = fd;
    }
    (void)pthread_mutex_unlock(&stores->lock);
    if (!is_kept) {
        (void)close(fd);
    }
}

static int take_idle(struct stores *stores, int holder)
{
    struct pool *pool = &stores->pools[holder];
    (void)pthread_mutex_lock(&stores->lock);
    int fd = pool->n_idle > 0 ? pool->idle[--pool->n_idle] : -1;
    (void)pthread_mutex_unlock(&stores->lock);
    return fd;
}

/* A rank that is closing its world still serves the others; only death ends that. */
struct holder {
    struct stores *stores;
    int rank;
};

static shoal_status check_holder(void *context)
{
    const struct holder *holder = context;
    struct members *members = holder->stores->world->members;
    return members_state(members, holder->rank) == MEMBER_DEAD ? members_check(members, holder->rank)
                                                               : SHOAL_OK;
}

/* A process that dies closes one thing after the other: its death may show a moment later. */
static shoal_status fail_gone(const struct holder *holder)
{
    int64_t until_ns = clock_now_ns() + VERDICT_NS;
    do {
        TRY(members_check(holder->stores->world->members, holder->rank));
        wait_sleep(NAP_NS);
    } while (clock_now_ns() < until_ns);
    return error_set(SHOAL_ERR_PEER, "rank %d's server has gone", holder->rank);
}

static shoal_status connect_to(const struct holder *holder, int64_t deadline_ns, int *fd_out)
{
    char name[SOCKET_NAME_BYTES];
    card_server_name(&holder->stores->cards[holder->rank], name);
    for (;;) {
        TRY(socket_connect(name, fd_out));
        if (*fd_out >= 0) {
            return SHOAL_OK;
        }
        /* Nobody listens there, or many do at once. */
        TRY(members_check(holder->stores->world->members, holder->rank));
        if (clock_now_ns() >= deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT, "rank %d's server can not be reached", holder->rank);
        }
        wait_sleep(NAP_NS);
    }
}

/* The whole of a request to a rank's server. */
static shoal_status perform(struct stores *stores, int rank, struct request *request, int64_t deadline_ns,
                            const char *what, struct frame *frame_out)
{
    FAIL_POINT("store request");
    TRY(world_check_process(stores->world));
    struct holder holder = {.stores = stores, .rank = rank};
    int fd = take_idle(stores, rank);
    if (fd < 0) {
        TRY(connect_to(&holder, deadline_ns, &fd));
    }
    struct socket_wait wait = {
        .deadline_ns = deadline_ns, .liveness = check_holder, .liveness_context = &holder, .what = what};
    shoal_status status = request_perform(fd, request, &wait, frame_out);
    if (status == SHOAL_OK || (request->was_answered && status != SHOAL_ERR_NO_MEMORY)) {
        stores_keep(stores, rank, fd);
        return status;
    }
    (void)close(fd);
    if (status == SHOAL_ERR_PEER && !request->was_answered) {
        return fail_gone(&holder);
    }
    if (status == SHOAL_ERR_TIMEOUT && !request->was_answered) {
        return error_prefix(status, "rank %d does not answer", rank);
    }
    return status;
}

/* Segments ---------------------------------------------------------------------------------------------- */

shoal_status stores_open_segment(struct stores *stores, int holder, const char *name, size_t bytes,
                                 int64_t deadline_ns, struct segment **segment_out)
{
    if (bytes == 0 || bytes > INT64_MAX) {
        return error_set(SHOAL_ERR_INVALID, "shared memory \"%.100s\" of %zu bytes", name, bytes);
    }
    struct request request = {.op = REQUEST_SEGMENT};
    request_add_bytes(&request, name, strlen(name));
    request_add_number(&request, (int64_t)bytes);
    struct frame frame;
    TRY(perform(stores, holder, &request, deadline_ns, "shared memory", &frame));
    shoal_status status = segment_map(frame.fd, bytes, segment_out);
    frame_clear(&frame);
    return status;
}

shoal_status stores_drop_segment(struct stores *stores, int holder, const char *name, int64_t deadline_ns)
{
    struct request request = {.op = REQUEST_DROP};
    request_add_bytes(&request, name, strlen(name));
    struct frame frame;
    TRY(perform(stores, holder, &request, deadline_ns, "shared memory to be dropped", &frame));
    frame_clear(&frame);
    return SHOAL_OK;
}

/* Arguments of public calls ----------------------------------------------------------------------------- */

static shoal_status check_store(const struct shoal_store *store)
{
    if (!store) {
        return error_set(SHOAL_ERR_INVALID, "store is NULL");
    }
    if (!store->stores) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "a world without peers (transport fake) has no store");
    }
    return SHOAL_OK;
}

static shoal_status check_key(const char *key)
{
    if (!key) {
        return error_set(SHOAL_ERR_INVALID, "key is NULL");
    }
    size_t bytes = strlen(key);
    if (bytes == 0 || bytes > STORE_KEY_BYTES_MAX) {
        return error_set(SHOAL_ERR_INVALID, "key \"%.40s\" has %zu bytes, 1 to %zu expected", key, bytes,
                         STORE_KEY_BYTES_MAX);
    }
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)key[i];
        if (byte < 0x20 || byte == 0x7f) {
            return error_set(SHOAL_ERR_INVALID, "byte %zu of a key is the control character 0x%02x", i, byte);
        }
    }
    if (strncmp(key, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) == 0) {
        return error_set(SHOAL_ERR_INVALID, "key \"%s\": what begins with \"%s\" is the library's", key,
                         RESERVED_PREFIX);
    }
    return SHOAL_OK;
}

static shoal_status check_value(const char *what, const void *value, size_t bytes)
{
    if (!value && bytes > 0) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL, but has %zu bytes", what, bytes);
    }
    if (bytes > STORE_VALUE_BYTES_MAX) {
        return error_set(SHOAL_ERR_INVALID, "%s has %zu bytes, at most %zu are possible", what, bytes,
                         STORE_VALUE_BYTES_MAX);
    }
    return SHOAL_OK;
}

static shoal_status check_out(const char *what, const void *out)
{
    return out ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s is NULL", what);
}

static shoal_status check_timeout(double timeout_s)
{
    return isnan(timeout_s) ? error_set(SHOAL_ERR_INVALID, "timeout_s is not a number") : SHOAL_OK;
}

static shoal_status check_keys(const char *const *keys, size_t n_keys, size_t *bytes_out)
{
    if (!keys && n_keys > 0) {
        return error_set(SHOAL_ERR_INVALID, "keys is NULL, but n_keys is %zu", n_keys);
    }
    *bytes_out = 0;
    for (size_t i = 0; i < n_keys; i++) {
        TRY(check_key(keys[i]));
        *bytes_out += sizeof(uint32_t) + strlen(keys[i]);
        if (*bytes_out > FRAME_PAYLOAD_BYTES_MAX - sizeof(int64_t)) {
            return error_set(SHOAL_ERR_INVALID, "%zu keys are too many for one call: more than %zu bytes",
                             n_keys, FRAME_PAYLOAD_BYTES_MAX);
        }
    }
    return SHOAL_OK;
}

/* Public calls ------------------------------------------------------------------------------------------ */

static shoal_status ask(struct shoal_store *store, struct request *request, struct frame *frame_out)
{
    return perform(store->stores, store->holder, request,
                   clock_deadline_after(store->stores->world->timeout_s), "the store to answer", frame_out);
}

/* Of calls that wait: from seconds, negative for the world's own, to nanoseconds. */
static int64_t wait_ns_of(const struct shoal_store *store, double timeout_s)
{
    int64_t now_ns = clock_now_ns();
    int64_t deadline_ns = clock_deadline_after(timeout_s < 0 ? store->stores->world->timeout_s : timeout_s);
    return deadline_ns == DEADLINE_NEVER ? INT64_MAX : deadline_ns - now_ns;
}

static int64_t answer_deadline(int64_t wait_ns)
{
    int64_t now_ns = clock_now_ns();
    return wait_ns >= INT64_MAX - now_ns - ANSWER_NS ? DEADLINE_NEVER : now_ns + wait_ns + ANSWER_NS;
}

/* An answer of the size that its request has. */
static shoal_status take_answer(struct frame *frame, void *to, size_t bytes)
{
    shoal_status status = SHOAL_OK;
    if (frame->header.bytes == bytes) {
        memcpy(to, frame->payload, bytes);
    } else {
        status = error_set(SHOAL_ERR_SYSTEM, "the store answered %u bytes, %zu expected", frame->header.bytes,
                           bytes);
    }
    frame_clear(frame);
    return status;
}

static shoal_status ask_bool(struct shoal_store *store, struct request *request, bool *answer_out)
{
    struct frame frame;
    TRY(ask(store, request, &frame));
    char byte = 0;
    TRY(take_answer(&frame, &byte, 1));
    *answer_out = byte != 0;
    return SHOAL_OK;
}

shoal_status shoal_store_set(shoal_store *store, const char *key, const void *value, size_t bytes)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_key(key));
    TRY(check_value("value", value, bytes));
    struct request request = {.op = REQUEST_SET};
    request_add_bytes(&request, key, strlen(key));
    request_add_bytes(&request, value, bytes);
    struct frame frame;
    TRY(ask(store, &request, &frame));
    frame_clear(&frame);
    return SHOAL_OK;
}

shoal_status shoal_store_get(shoal_store *store, const char *key, void *value, size_t capacity,
                             double timeout_s, size_t *bytes_out)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_key(key));
    TRY(check_timeout(timeout_s));
    TRY(check_out("bytes_out", bytes_out));
    if (!value && capacity > 0) {
        return error_set(SHOAL_ERR_INVALID, "value is NULL, but capacity is %zu", capacity);
    }
    int64_t wait_ns = wait_ns_of(store, timeout_s);
    struct request request = {.op = REQUEST_GET};
    request_add_number(&request, wait_ns);
    request_add_bytes(&request, key, strlen(key));
    struct frame frame;
    TRY(perform(store->stores, store->holder, &request, answer_deadline(wait_ns), "the store to answer",
                &frame));
    size_t bytes = frame.header.bytes;
    size_t n_copied = bytes < capacity ? bytes : capacity;
    if (n_copied > 0) {
        memcpy(value, frame.payload, n_copied);
    }
    frame_clear(&frame);
    *bytes_out = bytes;
    if (bytes > capacity) {
        return error_set(SHOAL_ERR_INVALID, "the value of \"%s\" has %zu bytes, capacity is %zu", key, bytes,
                         capacity);
    }
    return SHOAL_OK;
}

shoal_status shoal_store_add(shoal_store *store, const char *key, int64_t amount, int64_t *sum_out)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_key(key));
    TRY(check_out("sum_out", sum_out));
    struct request request = {.op = REQUEST_ADD};
    request_add_bytes(&request, key, strlen(key));
    request_add_number(&request, amount);
    struct frame frame;
    TRY(ask(store, &request, &frame));
    return take_answer(&frame, sum_out, sizeof *sum_out);
}

shoal_status shoal_store_compare_set(shoal_store *store, const char *key, const void *expected,
                                     size_t expected_bytes, const void *desired, size_t desired_bytes,
                                     bool *was_set_out)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_key(key));
    TRY(check_value("expected", expected, expected_bytes));
    TRY(check_value("desired", desired, desired_bytes));
    TRY(check_out("was_set_out", was_set_out));
    struct request request = {.op = REQUEST_COMPARE_SET};
    request_add_bytes(&request, key, strlen(key));
    request_add_bytes(&request, expected, expected_bytes);
    request_add_bytes(&request, desired, desired_bytes);
    return ask_bool(store, &request, was_set_out);
}

/* The keys one after the other, each with its length in front. NULL: no memory. */
static char *join_keys(const char *const *keys, size_t n_keys, size_t bytes)
{
    char *joined = mem_alloc(bytes);
    size_t used = 0;
    for (size_t i = 0; joined && i < n_keys; i++) {
        uint32_t key_bytes = (uint32_t)strlen(keys[i]);
        memcpy(joined + used, &key_bytes, sizeof key_bytes);
        memcpy(joined + used + sizeof key_bytes, keys[i], key_bytes);
        used += sizeof key_bytes + key_bytes;
    }
    return joined;
}

shoal_status shoal_store_wait(shoal_store *store, const char *const *keys, size_t n_keys, double timeout_s)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_timeout(timeout_s));
    size_t bytes;
    TRY(check_keys(keys, n_keys, &bytes));
    if (n_keys == 0) {
        return SHOAL_OK;
    }
    char *joined = join_keys(keys, n_keys, bytes);
    if (!joined) {
        return SHOAL_ERR_NO_MEMORY;
    }
    int64_t wait_ns = wait_ns_of(store, timeout_s);
    struct request request = {.op = REQUEST_WAIT};
    request_add_number(&request, wait_ns);
    request_add_raw(&request, joined, bytes);
    struct frame frame;
    shoal_status status = perform(store->stores, store->holder, &request, answer_deadline(wait_ns),
                                  "the store to answer", &frame);
    mem_free(joined);
    TRY(status);
    frame_clear(&frame);
    return SHOAL_OK;
}

shoal_status shoal_store_check(shoal_store *store, const char *const *keys, size_t n_keys, bool *exist_out)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_out("exist_out", exist_out));
    size_t bytes;
    TRY(check_keys(keys, n_keys, &bytes));
    if (n_keys == 0) {
        *exist_out = true;
        return SHOAL_OK;
    }
    char *joined = join_keys(keys, n_keys, bytes);
    if (!joined) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct request request = {.op = REQUEST_CHECK};
    request_add_number(&request, 0);
    request_add_raw(&request, joined, bytes);
    shoal_status status = ask_bool(store, &request, exist_out);
    mem_free(joined);
    return status;
}

shoal_status shoal_store_delete(shoal_store *store, const char *key, bool *existed_out)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_key(key));
    struct request request = {.op = REQUEST_DELETE};
    request_add_bytes(&request, key, strlen(key));
    bool existed;
    TRY(ask_bool(store, &request, &existed));
    if (existed_out) {
        *existed_out = existed;
    }
    return SHOAL_OK;
}
