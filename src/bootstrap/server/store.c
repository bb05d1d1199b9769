/* SPDX-License-Identifier: MIT */
/*
 * shoal_store_*: keys and values that a server keeps. When a call waits for keys, the server keeps its timeout. So even
 * a call with a timeout of 0 finds a key that exists. The client's own deadline is longer, and only ends calls to a
 * server that does not answer.
 */
#include "bootstrap/server/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "bootstrap/net/request.h"
#include "bootstrap/server/client.h"

/* How much longer than a call's timeout a client waits: so long a server may take to say that the time is over. */
#define ANSWER_NS 200000000
/* The least time that a client waits for an answer, also in a call with a timeout of 0. */
#define ANSWER_LEAST_NS 1000000000
#define RESERVED_PREFIX "shoal/"

struct shoal_store {
    struct client *client; /* NULL if the world has no servers */
    int holder;
    double timeout_s; /* of calls that give no timeout */
};

shoal_status store_create(struct client *client, int holder, double timeout_s, struct shoal_store **store_out)
{
    struct shoal_store *store = mem_alloc(sizeof *store);
    if (!store) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *store = (struct shoal_store){.client = client, .holder = holder, .timeout_s = timeout_s};
    *store_out = store;
    return SHOAL_OK;
}

void store_free(struct shoal_store *store)
{
    mem_free(store);
}

/* Arguments of public calls ----------------------------------------------------------------------------- */

static shoal_status check_store(const struct shoal_store *store)
{
    if (!store) {
        return error_set(SHOAL_ERR_INVALID, "store is NULL");
    }
    if (!store->client) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "a world without peers (transport fake) has no store");
    }
    return callback_check_capture("a function of the store");
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
            return error_set(SHOAL_ERR_INVALID, "byte %zu of key \"%.40s\" is the control character 0x%02x",
                             i, key, byte);
        }
    }
    if (strncmp(key, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) == 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "key \"%s\": keys that begin with \"%s\" are reserved for the library", key,
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
        return error_set(SHOAL_ERR_INVALID, "%s has %zu bytes, at most %zu expected", what, bytes,
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
    return isnan(timeout_s) ? error_set(SHOAL_ERR_INVALID, "timeout_s is nan, a number expected") : SHOAL_OK;
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
            return error_set(SHOAL_ERR_INVALID,
                             "the %zu keys have more than %zu bytes together, which is too much for one call",
                             n_keys, FRAME_PAYLOAD_BYTES_MAX);
        }
    }
    return SHOAL_OK;
}

/* Public calls ------------------------------------------------------------------------------------------ */

static shoal_status ask(struct shoal_store *store, struct request *request, struct frame *frame_out)
{
    const struct client_wait wait = {.deadline_ns = clock_deadline_after(store->timeout_s)};
    return client_perform(store->client, store->holder, request, &wait, "the store to answer", frame_out);
}

/* Converts the timeout of a call to nanoseconds. If it is negative, the store's default is taken. */
static int64_t wait_ns_of(const struct shoal_store *store, double timeout_s)
{
    int64_t now_ns = clock_now_ns();
    int64_t deadline_ns = clock_deadline_after(timeout_s < 0 ? store->timeout_s : timeout_s);
    return deadline_ns == DEADLINE_NEVER ? INT64_MAX : deadline_ns - now_ns;
}

/* Performs a request that may have to wait. `key`, or the first of several, is for error texts. */
static shoal_status ask_and_wait(struct shoal_store *store, struct request *request, int64_t wait_ns,
                                 const char *key, struct frame *frame_out)
{
    char what[STORE_KEY_BYTES_MAX + 64];
    int64_t now_ns = clock_now_ns();
    struct client_wait wait = {.deadline_ns = DEADLINE_NEVER};
    if (wait_ns < INT64_MAX - now_ns - ANSWER_LEAST_NS) {
        int64_t bound_ns = wait_ns + ANSWER_NS;
        wait.deadline_ns = now_ns + (bound_ns > ANSWER_LEAST_NS ? bound_ns : ANSWER_LEAST_NS);
    }
    (void)snprintf(what, sizeof what, "the key \"%s\"", key);
    return client_perform(store->client, store->holder, request, &wait, what, frame_out);
}

/* Copies an answer, which must have exactly `bytes`, and clears the frame. */
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

/* Sets a key after the arguments were checked. */
static shoal_status set_key(struct shoal_store *store, const char *key, const void *value, size_t bytes)
{
    struct request request = {.op = REQUEST_SET};
    request_add_bytes(&request, key, strlen(key));
    request_add_bytes(&request, value, bytes);
    struct frame frame;
    TRY(ask(store, &request, &frame));
    frame_clear(&frame);
    return SHOAL_OK;
}

static shoal_status get_key(struct shoal_store *store, const char *key, void *value, size_t capacity,
                            int64_t wait_ns, size_t *bytes_out)
{
    struct request request = {.op = REQUEST_GET};
    request_add_number(&request, wait_ns);
    request_add_bytes(&request, key, strlen(key));
    struct frame frame;
    TRY(ask_and_wait(store, &request, wait_ns, key, &frame));
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

shoal_status shoal_store_set(shoal_store *store, const char *key, const void *value, size_t bytes)
{
    error_clear();
    TRY(check_store(store));
    TRY(check_key(key));
    TRY(check_value("value", value, bytes));
    return set_key(store, key, value, bytes);
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
    return get_key(store, key, value, capacity, wait_ns_of(store, timeout_s), bytes_out);
}

static shoal_status make_own_key(const char *key, char own_key[STORE_KEY_BYTES_MAX + 1])
{
    int length = snprintf(own_key, STORE_KEY_BYTES_MAX + 1, RESERVED_PREFIX "%s", key);
    return length > 0 && (size_t)length <= STORE_KEY_BYTES_MAX
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "key \"%.40s...\" is too long", key);
}

shoal_status store_set_own(struct shoal_store *store, const char *key, const void *value, size_t bytes)
{
    char own_key[STORE_KEY_BYTES_MAX + 1];
    TRY(check_store(store));
    TRY(make_own_key(key, own_key));
    TRY(check_value("value", value, bytes));
    return set_key(store, own_key, value, bytes);
}

shoal_status store_get_own(struct shoal_store *store, const char *key, void *value, size_t capacity,
                           int64_t deadline_ns, size_t *bytes_out)
{
    char own_key[STORE_KEY_BYTES_MAX + 1];
    TRY(check_store(store));
    TRY(make_own_key(key, own_key));
    int64_t wait_ns = deadline_ns == DEADLINE_NEVER ? INT64_MAX : deadline_ns - clock_now_ns();
    return get_key(store, own_key, value, capacity, wait_ns > 0 ? wait_ns : 0, bytes_out);
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

/* The keys one after the other, each with its length in front. Returns NULL if memory runs out. */
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
    shoal_status status = ask_and_wait(store, &request, wait_ns, keys[0], &frame);
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
