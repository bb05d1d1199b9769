/* SPDX-License-Identifier: MIT */
/* The characters of bytes are counted rather than listed: there are 256, and files are read once. */
#include "text/alphabet.h"

#include <stdbool.h>

enum {
    FIRST_OTHER = 0x100, /* the first character of bytes that cannot be seen */
    N_BYTES = 256
};

static bool is_seen(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Of bytes that cannot be seen: how many such bytes are lower. */
static int count_lower(int byte)
{
    int n = 0;
    for (int other = 0; other < byte; other++) {
        n += is_seen(other) ? 0 : 1;
    }
    return n;
}

int alphabet_read(uint32_t code)
{
    uint32_t next = FIRST_OTHER; /* the character of the next byte that cannot be seen */
    for (int byte = 0; byte < N_BYTES; byte++) {
        if ((is_seen(byte) ? (uint32_t)byte : next) == code) {
            return byte;
        }
        next += is_seen(byte) ? 0 : 1;
    }
    return -1;
}

void alphabet_write(unsigned char byte, char text_out[ALPHABET_BYTES])
{
    int code = is_seen(byte) ? byte : FIRST_OTHER + count_lower(byte);
    bool is_short = code < 0x80;
    text_out[0] = (char)(is_short ? code : 0xc0 | code >> 6);
    text_out[1] = (char)(is_short ? 0 : 0x80 | (code & 0x3f));
    text_out[2] = 0;
}
