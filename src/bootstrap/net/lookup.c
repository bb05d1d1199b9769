/* SPDX-License-Identifier: MIT */
/*
 * getaddrinfo has no deadline: if a name server does not answer, it may take minutes. So it runs on a thread of
 * its own. The caller waits for that thread until the deadline and then abandons it. An address written as numbers
 * needs no name server, and no thread.
 */
#include "bootstrap/net/lookup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/option_parse.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"

#define HOST_BYTES 256

enum lookup_state {
    LOOKUP_RUNS,
    LOOKUP_DONE,     /* the caller joins the thread, and frees the lookup */
    LOOKUP_ABANDONED /* the thread frees the lookup */
};

struct lookup {
    _Atomic uint32_t state; /* enum lookup_state */
    int error;              /* of getaddrinfo; written before LOOKUP_DONE, like the address */
    struct address address; /* unknown: the host has neither an IPv4 nor an IPv6 address */
    char host[HOST_BYTES];
};

static int ask(const char *host, int flags, struct address *address_out)
{
    const struct addrinfo hints = {.ai_flags = flags, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error != 0) {
        return error;
    }
    *address_out = (struct address){.family = 0};
    for (const struct addrinfo *each = found; each && !address_is_known(address_out); each = each->ai_next) {
        struct sockaddr_storage system = {.ss_family = AF_UNSPEC};
        memcpy(&system, each->ai_addr, each->ai_addrlen < sizeof system ? each->ai_addrlen : sizeof system);
        *address_out = address_from_system(&system);
    }
    freeaddrinfo(found);
    return 0;
}

static void *run(void *context)
{
    struct lookup *lookup = context;
    lookup->error = ask(lookup->host, /*flags=*/0, &lookup->address);
    /* Release: pairs with the acquire of the wait. Acquire: a caller that has given up does not use the lookup any
       more. */
    if (atomic_exchange_explicit(&lookup->state, LOOKUP_DONE, memory_order_acq_rel) == LOOKUP_ABANDONED) {
        mem_free(lookup);
    } else {
        wait_wake_all(&lookup->state, /*is_shared=*/false);
    }
    return NULL;
}

static shoal_status fail(const char *name, const char *host, int error)
{
    return error_set(SHOAL_ERR_INVALID, "%s: the host \"%.100s\" is not known: %s", name, host,
                     gai_strerror(error));
}

static shoal_status take_answer(const char *name, const struct lookup *lookup, struct address *address_out)
{
    if (lookup->error != 0) {
        return fail(name, lookup->host, lookup->error);
    }
    if (!address_is_known(&lookup->address)) {
        return error_set(SHOAL_ERR_INVALID, "%s: the host \"%.100s\" has no address", name, lookup->host);
    }
    *address_out = lookup->address;
    return SHOAL_OK;
}

static shoal_status look_up_name(const char *name, const char *host, int64_t deadline_ns,
                                 struct address *address_out)
{
    struct lookup *lookup = mem_alloc_zeroed(1, sizeof *lookup);
    if (!lookup) {
        return SHOAL_ERR_NO_MEMORY;
    }
    (void)snprintf(lookup->host, sizeof lookup->host, "%s", host);
    pthread_t thread;
    int error = os_start_thread(&thread, run, lookup);
    if (error != 0) {
        mem_free(lookup);
        return error_set(SHOAL_ERR_SYSTEM, "%s: no thread to look up \"%.100s\": %s", name, host,
                         error_thread_text(error));
    }
    struct wait_options options = {.deadline_ns = deadline_ns, .what = "the name of a host"};
    shoal_status status = wait_while_equal(&lookup->state, LOOKUP_RUNS, &options);
    uint32_t expected = LOOKUP_RUNS;
    /* Release: pairs with the acquire in run. Acquire on failure: the answer has arrived after all. */
    if (status != SHOAL_OK &&
        atomic_compare_exchange_strong_explicit(&lookup->state, &expected, LOOKUP_ABANDONED,
                                                memory_order_acq_rel, memory_order_acquire)) {
        (void)pthread_detach(thread);
        return error_set(status,
                         "%s: looking up the host \"%.100s\" has not ended within the time of start-up: does "
                         "the name server answer?",
                         name, host);
    }
    (void)pthread_join(thread, NULL);
    status = take_answer(name, lookup, address_out);
    mem_free(lookup);
    return status;
}

/* The first address of a host, without a port. */
static shoal_status look_up(const char *name, const char *host, int64_t deadline_ns,
                            struct address *address_out)
{
    struct address address;
    if (ask(host, AI_NUMERICHOST, &address) == 0 && address_is_known(&address)) {
        *address_out = address;
        return SHOAL_OK;
    }
    return look_up_name(name, host, deadline_ns, address_out);
}

/* Parsing ----------------------------------------------------------------------------------------------- */

/* Splits "host:port" at its last colon; brackets of IPv6 are left out. */
static bool split(const char *text, char host[HOST_BYTES], const char **port_out)
{
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    bool has_brackets = length > 2 && text[0] == '[' && text[length - 1] == ']';
    if (length == 0 || length >= HOST_BYTES || (!has_brackets && memchr(text, ':', length))) {
        return false;
    }
    (void)snprintf(host, HOST_BYTES, "%.*s", (int)(has_brackets ? length - 2 : length),
                   has_brackets ? text + 1 : text);
    *port_out = colon + 1;
    return true;
}

shoal_status lookup_address(const char *name, const char *text, int64_t deadline_ns,
                            struct address *address_out)
{
    char host[HOST_BYTES];
    const char *port_text = "";
    int64_t port = 0;
    if (!split(text, host, &port_text) || !option_parse_int(port_text, &port) || port < 1 || port > 65535) {
        return error_set(SHOAL_ERR_INVALID, "%s is \"%.100s\", host:port expected", name, text);
    }
    TRY(look_up(name, host, deadline_ns, address_out));
    address_out->port = (uint16_t)port;
    return SHOAL_OK;
}

bool lookup_is_by_name(const char *text)
{
    char host[HOST_BYTES];
    const char *port;
    struct in6_addr bytes;
    return split(text, host, &port) && inet_pton(AF_INET, host, &bytes) != 1 &&
           inet_pton(AF_INET6, host, &bytes) != 1;
}
