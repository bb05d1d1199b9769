/* SPDX-License-Identifier: MIT */
/*
 * What a rank tells the others about itself at start-up, before anything else. A card is plain bytes of a fixed size.
 */
#ifndef BOOTSTRAP_NET_CARD_H
#define BOOTSTRAP_NET_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/net/address.h"
#include "bootstrap/net/socket.h"
#include "shoal/status.h"

#define CARD_MAGIC 0x44524143u /* "CARD" */
#define CARD_TEXT_BYTES 192
#define CARD_TRANSPORT_BYTES 72

struct card {
    uint32_t magic;   /* these two come first in every version */
    uint32_t version; /* of the library; must be equal, because ranks share structs in memory */
    int32_t rank;
    int32_t n_ranks;
    int32_t pid;
    /* shoal_status: a rank that could not start still takes part in exchange, and says so here. */
    int32_t status;
    uint64_t token[2]; /* names the rank's server */
    /* The machine, and the network namespace in which it has its sockets. */
    uint64_t namespace_number;
    /* Stands for both: what a rank believes of its host, until it has met another one there. */
    uint64_t claim;
    uint64_t host; /* ranks with one number can share memory; a claim too, until the meeting has ended */
    uint64_t
        pretended; /* stands for SHOAL_PRETEND_HOSTS, which is the same on all ranks; 0 if it is not set */
    char boot_id[40];
    struct address address; /* of its server on the network; unknown: it is reached on its host only */
    int32_t leader; /* after the meeting: the first rank of its host, which made the page of the host */
    /* For ranks on other hosts: how long a rank may be silent; 0 if it listens to none. */
    uint32_t heartbeat_ms;
    char transport[CARD_TRANSPORT_BYTES]; /* that this rank asks for; "" if there is none */
    char text[CARD_TEXT_BYTES];           /* with a status: why */
};

/* What all ranks are told about each rank at the end. It is short, so that the cards of any world fit into a socket's
   buffer. */
struct card_short {
    uint64_t token[2];
    uint64_t host;
    struct address address;
    int32_t rank;
    int32_t pid;
    int32_t leader;
    int32_t padding;
};

/* What the meeting answers to a rank that joins: which rank of its host has the page. */
struct card_leader {
    uint64_t token[2]; /* names the leader's server */
    int32_t rank;      /* of the leader */
    int32_t padding;
};

/*
 * Makes a card for this process, with a token that nobody else has. `transport` is the one that was asked for ("":
 * none), which must be the same on all ranks. With SHOAL_PRETEND_HOSTS ("a,a,b", a name per rank) ranks of one machine
 * take themselves to be on several hosts; SHOAL_ERR_INVALID: a rank has no name there. They still meet on that machine,
 * except with SHOAL_TEST_TCP=1, which builds for tests read.
 */
shoal_status card_create(int rank, int n_ranks, const char *transport, struct card *card_out);

/* The socket name of its server. */
void card_server_name(const struct card *card, char name[SOCKET_NAME_BYTES]);
void card_token_name(const uint64_t token[2], char name[SOCKET_NAME_BYTES]);

/* Whether SHOAL_TEST_TCP is set; false in builds that are not for tests. */
bool card_is_tcp_test(void);

/* After the meeting: whether the ranks of the world are on several hosts. */
bool card_has_several_hosts(const struct card *cards, int n_ranks);

/*
 * Checks that a card can be that of rank `rank` in the world of `mine`: magic, version, rank, size. The error names
 * what differs.
 */
shoal_status card_check(const struct card *card, int rank, const struct card *mine);

/* Checks what a server can check when a card arrives: everything but the rank. */
shoal_status card_check_kind(const struct card *card, const struct card *mine);

/* The error for ranks on several hosts that have no address at which to meet. `how` says how this was found out. */
shoal_status card_fail_several_hosts(const char *how);

#endif
