/* SPDX-License-Identifier: MIT */
/* Proofs of a secret: the hash is SipHash-2-4, and nothing that differs gives the same proof. */
#include "bootstrap/net/proof.h"

#include <string.h>

#include "harness/test.h"

/* From the reference implementation: key 00 01 .. 0f, input 00 01 .. of each length. */
TEST(the_hash_is_siphash)
{
    static const struct {
        size_t n_bytes;
        uint64_t hash;
    } vectors[] = {{0, 0x726fdb47dd0e0e31},
                   {1, 0x74f839c593dc67fd},
                   {7, 0xab0200f58b01d137},
                   {8, 0x93f5f5799a932462},
                   {15, 0xa129ca6149be45e5}};
    const struct proof_key key = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
    unsigned char bytes[16];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)i;
    }
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        CHECK(proof_hash(&key, bytes, vectors[i].n_bytes) == vectors[i].hash);
    }
}

static void check_differ(const unsigned char *a, const unsigned char *b)
{
    CHECK(!proof_is_equal(a, b));
}

TEST(proofs_differ_where_anything_does)
{
    struct nonces nonces = {.server = "0123456789abcde", .client = "fedcba987654321"};
    struct proof_key key = proof_key_of_text("secret");
    struct proof_key other_key = proof_key_of_text("secreu");
    unsigned char proof[PROOF_BYTES];
    unsigned char other[PROOF_BYTES];
    proof_make(&key, false, &nonces, proof);
    proof_make(&key, false, &nonces, other);
    CHECK(proof_is_equal(proof, other));
    proof_make(&key, true, &nonces, other);
    check_differ(proof, other);
    proof_make(&other_key, false, &nonces, other);
    check_differ(proof, other);
    nonces.server[15] ^= 1;
    proof_make(&key, false, &nonces, other);
    check_differ(proof, other);
    nonces.server[15] ^= 1;
    nonces.client[0] ^= 128;
    proof_make(&key, false, &nonces, other);
    check_differ(proof, other);
    memcpy(other, proof, sizeof other);
    other[PROOF_BYTES - 1] ^= 1;
    check_differ(proof, other);
}
