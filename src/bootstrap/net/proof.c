/* SPDX-License-Identifier: MIT */
/* SipHash-2-4 (Aumasson and Bernstein, 2012), and proofs made with it. */
#include "bootstrap/net/proof.h"

#include <stddef.h>
#include <string.h>

struct sip {
    uint64_t v[4];
};

static uint64_t rotate(uint64_t word, int by)
{
    return word << by | word >> (64 - by);
}

static void run_rounds(struct sip *sip, int n_rounds)
{
    uint64_t *v = sip->v;
    for (int i = 0; i < n_rounds; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void absorb(struct sip *sip, uint64_t word)
{
    sip->v[3] ^= word;
    run_rounds(sip, 2);
    sip->v[0] ^= word;
}

/* Little-endian, on every machine. */
static uint64_t read_word(const unsigned char *bytes, size_t n_bytes)
{
    uint64_t word = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        word |= (uint64_t)bytes[i] << (8 * i);
    }
    return word;
}

uint64_t proof_hash(const struct proof_key *key, const unsigned char *bytes, size_t n_bytes)
{
    uint64_t k0 = key->words[0];
    uint64_t k1 = key->words[1];
    struct sip sip = {{k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                       k1 ^ 0x7465646279746573u}};
    size_t n_whole = n_bytes / 8 * 8;
    for (size_t i = 0; i < n_whole; i += 8) {
        absorb(&sip, read_word(bytes + i, 8));
    }
    absorb(&sip, read_word(bytes + n_whole, n_bytes - n_whole) | (uint64_t)(n_bytes & 0xff) << 56);
    sip.v[2] ^= 0xff;
    run_rounds(&sip, 4);
    return sip.v[0] ^ sip.v[1] ^ sip.v[2] ^ sip.v[3];
}

struct proof_key proof_key_of_text(const char *text)
{
    static const struct proof_key halves[2] = {{{1, 2}}, {{3, 4}}};
    struct proof_key key;
    for (int half = 0; half < 2; half++) {
        key.words[half] = proof_hash(&halves[half], (const unsigned char *)text, strlen(text));
    }
    return key;
}

void proof_make(const struct proof_key *key, bool is_server, const struct nonces *nonces,
                unsigned char proof[PROOF_BYTES])
{
    unsigned char message[1 + 2 * NONCE_BYTES];
    memcpy(message + 1, nonces->server, NONCE_BYTES);
    memcpy(message + 1 + NONCE_BYTES, nonces->client, NONCE_BYTES);
    for (int half = 0; half < 2; half++) {
        message[0] = (unsigned char)((is_server ? 2 : 0) + half);
        uint64_t word = proof_hash(key, message, sizeof message);
        for (int i = 0; i < 8; i++) {
            proof[8 * half + i] = (unsigned char)(word >> (8 * i));
        }
    }
}

bool proof_is_equal(const unsigned char a[PROOF_BYTES], const unsigned char b[PROOF_BYTES])
{
    unsigned char difference = 0;
    for (size_t i = 0; i < PROOF_BYTES; i++) {
        difference |= a[i] ^ b[i];
    }
    return difference == 0;
}
