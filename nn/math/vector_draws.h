/* SPDX-License-Identifier: MIT */
/*
 * Philox4x32-10 (draws.c) on several blocks at once, one in each lane. Part of vector_loops.h; needs these operations
 * too:
 *
 *     load_words, all_words          like load and all, for words
 *     multiply_long                  the halves of 64-bit products
 *     store_blocks(to, c)            stores c[0], c[1], c[2] and c[3] of each lane, lane after lane
 */
enum {
    PHILOX_ROUNDS = 10,
    PHILOX_SIDE_BY_SIDE = LANES == 1 ? 1 : 2
};

static inline void philox_round(words c[4], uint32_t key_0, uint32_t key_1)
{
    words high_0;
    words low_0;
    words high_1;
    words low_1;
    multiply_long(c[0], UINT32_C(0xD2511F53), &high_0, &low_0);
    multiply_long(c[2], UINT32_C(0xCD9E8D57), &high_1, &low_1);
    c[0] = high_1 ^ c[1] ^ all_words(key_0);
    c[1] = low_1;
    c[2] = high_0 ^ c[3] ^ all_words(key_1);
    c[3] = low_0;
}

static void loop_philox(const uint32_t key[2], uint64_t sample, uint64_t first, uint32_t *to)
{
    uint32_t low[NN_PHILOX_BLOCKS];
    uint32_t high[NN_PHILOX_BLOCKS];
    for (uint32_t i = 0; i < NN_PHILOX_BLOCKS; i++) {
        low[i] = (uint32_t)((first + i) & UINT32_MAX);
        high[i] = (uint32_t)((first + i) >> 32);
    }
    for (int i = 0; i < NN_PHILOX_BLOCKS; i += PHILOX_SIDE_BY_SIDE * LANES) {
        words c[PHILOX_SIDE_BY_SIDE][4];
        uint32_t k[2] = {key[0], key[1]};
        for (int s = 0; s < PHILOX_SIDE_BY_SIDE; s++) {
            c[s][0] = all_words((uint32_t)(sample & UINT32_MAX));
            c[s][1] = all_words((uint32_t)(sample >> 32));
            c[s][2] = load_words(low + i + s * LANES);
            c[s][3] = load_words(high + i + s * LANES);
        }
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            for (int s = 0; s < PHILOX_SIDE_BY_SIDE; s++) {
                philox_round(c[s], k[0], k[1]);
            }
            k[0] += UINT32_C(0x9E3779B9);
            k[1] += UINT32_C(0xBB67AE85);
        }
        for (int s = 0; s < PHILOX_SIDE_BY_SIDE; s++) {
            store_blocks(to + 4 * (i + s * LANES), c[s]);
        }
    }
}
