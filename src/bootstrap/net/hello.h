/* SPDX-License-Identifier: MIT */
/*
 * The handshake of a TCP connection, before any frame: both ends prove that they know the same secret
 * (bootstrap/net/proof.h).
 *
 *   server: greeting   magic, version, a random number
 *   client: hello      magic, version, a random number, its proof
 *   server: welcome    the verdict, and its own proof if the client's was good
 *
 * All three have fixed sizes, so a stranger cannot make a server allocate memory.
 */
#ifndef BOOTSTRAP_NET_HELLO_H
#define BOOTSTRAP_NET_HELLO_H

#include <stdbool.h>
#include <stdint.h>

#include "bootstrap/net/proof.h"
#include "shoal/status.h"

struct socket_wait;

#define HELLO_MAGIC "shoalC1"
#define HELLO_ORDER 0x01020304u
/* The version of the handshake only. Versions of the library are compared with the cards. */
#define HELLO_VERSION 1u

/* The beginning of what either side sends. */
struct hello_head {
    char magic[8];
    uint32_t order; /* a constant that shows the byte order */
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
    HELLO_WRONG_KIND = 'k' /* another byte order or version */
};

struct welcome {
    char magic[7];
    char verdict; /* enum hello_verdict */
    unsigned char proof[PROOF_BYTES];
};

/* The server's side. hello_greet makes what it sends first; it returns false if the system gave no random numbers.
   hello_judge checks the client's answer. */
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
