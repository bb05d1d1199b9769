/* SPDX-License-Identifier: MIT */
/* Worlds on several hosts: what the environment says of the network. */
#include "bootstrap/net/span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/try.h"
#include "bootstrap/net/card.h"
#include "bootstrap/net/lookup.h"

static const char *read_variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

/* Finds where ranks meet: SHOAL_ADDRESS, or on several hosts MASTER_ADDR with SHOAL_PORT. Not MASTER_PORT, at which
   another program listens. */
static void find_address(const struct span_question *question, char text[512], const char **name_out)
{
    *name_out = "SHOAL_ADDRESS";
    (void)snprintf(text, 512, "%s", read_variable("SHOAL_ADDRESS"));
    const char *host = read_variable("MASTER_ADDR");
    const char *port = read_variable("SHOAL_PORT");
    if (text[0] == '\0' && question->hosts_text[0] && host[0] && port[0]) {
        *name_out = "MASTER_ADDR and SHOAL_PORT";
        (void)snprintf(text, 512, strchr(host, ':') ? "[%.300s]:%.60s" : "%.300s:%.60s", host, port);
    }
}

static shoal_status read_meeting(const struct span_question *question, struct span *span)
{
    char text[512];
    const char *name;
    find_address(question, text, &name);
    if (text[0] == '\0') {
        return question->hosts_text[0] ? card_fail_several_hosts(question->hosts_text) : SHOAL_OK;
    }
    const char *token = read_variable("SHOAL_TOKEN");
    if (token[0] == '\0') {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s is set, but SHOAL_TOKEN is not: set it to a secret text of this job, the same on all ranks",
            name);
    }
    span->key = proof_key_of_text(token);
    span->is_on = true;
    TRY(lookup_address(name, text, question->deadline_ns, &span->meeting));
    span->is_by_name = lookup_is_by_name(text);
    return SHOAL_OK;
}

static shoal_status choose_own(const struct span_question *question, struct span *span)
{
    char text[ADDRESS_TEXT_BYTES];
    const char *wanted = read_variable("SHOAL_INTERFACE");
    struct address peer = span->meeting;
    if (!address_is_known(&peer) && card_is_tcp_test()) {
        peer = (struct address){.family = 4, .bytes = {127, 0, 0, 1}};
    }
    if (span->is_by_name && address_is_loopback(&peer)) {
        peer.family =
            0; /* this is rank 0's host, whose name is a loopback address here; other hosts know another one */
    }
    TRY(address_choose(wanted, &peer, &span->own));
    LOG(SHOAL_LOG_INFO, "rank %d is reached by other hosts at %s%s", question->rank,
        address_host(&span->own, text), wanted[0] ? " (SHOAL_INTERFACE)" : "");
    return SHOAL_OK;
}

shoal_status span_decide(const struct span_question *question, struct span *span_out)
{
    struct span span = {.heartbeat_ns = (int64_t)(option_seconds(OPTION_HEARTBEAT) * 1e9)};
    if (question->n_ranks > 1) {
        span.is_on = question->has_exchange || card_is_tcp_test();
        if (!question->has_exchange && question->is_by_environment) {
            TRY(read_meeting(question, &span));
        }
    }
    if (span.is_on) {
        TRY(choose_own(question, &span));
    }
    if (span.is_by_name && question->rank == 0) {
        span.meeting = address_any(/*family=*/6, span.meeting.port);
    }
    *span_out = span;
    return SHOAL_OK;
}
