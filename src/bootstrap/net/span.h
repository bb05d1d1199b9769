/* SPDX-License-Identifier: MIT */
/*
 * Whether a world may span hosts, and if so, where its ranks meet on the network and at which address this one is
 * reached.
 */
#ifndef BOOTSTRAP_NET_SPAN_H
#define BOOTSTRAP_NET_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#include "bootstrap/net/address.h"
#include "bootstrap/net/proof.h"
#include "shoal/status.h"

struct span {
    bool is_on;             /* this rank's server listens on the network too */
    struct address own;     /* this rank's, without a port */
    struct address meeting; /* where rank 0 listens; unknown: the ranks find it in another way */
    /* `meeting` was given as a host name, which often means a loopback address on that host itself. */
    bool is_by_name;
    struct proof_key key; /* the secret of the meeting */
    int64_t heartbeat_ns;
};

struct span_question {
    int rank;
    int n_ranks;
    bool has_exchange;      /* the application or the MPI module exchanges the cards */
    bool is_by_environment; /* rank and size came from a launcher: SHOAL_ADDRESS counts */
    const char *hosts_text; /* why there are several hosts, as the launcher says; "" if it does not */
    int64_t deadline_ns;    /* of start-up: until then a name is looked up */
};

/*
 * Reads SHOAL_ADDRESS, SHOAL_TOKEN, SHOAL_PORT and SHOAL_INTERFACE at each call. SHOAL_ERR_INVALID when one is wrong or
 * missing, SHOAL_ERR_UNSUPPORTED when there are several hosts and no way for the ranks to find each other,
 * SHOAL_ERR_TIMEOUT when a name could not be looked up in time.
 */
shoal_status span_decide(const struct span_question *question, struct span *span_out);

#endif
