/* SPDX-License-Identifier: MIT */
/*
 * How both ends of a connection prove that they know a secret, without sending it. Each end sends a number that was
 * never used before, and a keyed hash (SipHash-2-4) of both numbers. Somebody who records the traffic can use neither
 * again.
 */
#ifndef BOOTSTRAP_NET_PROOF_H
#define BOOTSTRAP_NET_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NONCE_BYTES 16
#define PROOF_BYTES 16

/* A secret of 128 bits. */
struct proof_key {
    uint64_t words[2];
};

struct nonces {
    unsigned char server[NONCE_BYTES];
    unsigned char client[NONCE_BYTES];
};

/* SipHash-2-4 of the bytes. */
uint64_t proof_hash(const struct proof_key *key, const unsigned char *bytes, size_t n_bytes);

/* Makes a key out of a text of a person or a launcher. It is as secret as the text. */
struct proof_key proof_key_of_text(const char *text);

/* `is_server`: the end that was connected to. The proofs of the two ends differ. */
void proof_make(const struct proof_key *key, bool is_server, const struct nonces *nonces,
                unsigned char proof[PROOF_BYTES]);

/* Takes the same time whatever differs. */
bool proof_is_equal(const unsigned char a[PROOF_BYTES], const unsigned char b[PROOF_BYTES]);

#endif
