/* SPDX-License-Identifier: MIT */
/*
 * The first bytes of a connection over TCP, before any frame: both ends show that they know the same secret.
 *
 *   server: greeting   who it is, a number
 *   client: hello      who it is, a number, its proof
 *   server: welcome    the verdict; its proof if that is good
 *
 * All are of fixed sizes, so that a stranger can make nobody allocate anything.
 */
#ifndef BOOTSTRAP_HELLO_H
#define BOOTSTRAP_HELLO_H

#include <stdbool.h>
#include <stdint.h>

#include "bootstrap/proof.h"
#include "shoal/status.h"

struct socket_wait;

#define HELLO_MAGIC "shoalC1"
#define HELLO_ORDER 0x01020304u
/* Of these bytes alone; the version of the library is compared when cards are. */
#define HELLO_VERSION 1u

/* What both sides begin with. */
struct hello_head {
    char magic[8];
    uint32_t order; /* of bytes */
    uint32_t version;
    unsigned char nonce[NONCE_BYTES];
};

struct hello {
    struct hello_head head;
    unsigned char proof[PROOF_BYTES];
};

enum hello_verdict {
    HELLO_WELCOME = 'w',
    HELLO_WRONG_TOKEN = 't',
    HELLO_WRONG_KIND = 'k' /* another order of bytes, another version */
};

struct welcome {
    char magic[7];
    char verdict; /* enum hello_verdict */
    unsigned char proof[PROOF_BYTES];
};

/* The server's side: what it sends first, and what it makes of the answer. False: there are no random numbers. */
bool hello_greet(struct hello_head *greeting_out);
struct welcome hello_judge(const struct hello_head *greeting, const struct hello *hello,
                           const struct proof_key *key);

/*
 * Performs the client's side of the handshake. `where` is the address, for error texts. SHOAL_ERR_PEER when the
 * connection ended; SHOAL_ERR_INVALID when something other than a Shoal server listens there, or when the secrets
 * differ.
 */
shoal_status hello_perform(int fd, const struct proof_key *key, const char *where,
                           const struct socket_wait *wait);

#endif
