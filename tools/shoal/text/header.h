/* SPDX-License-Identifier: MIT */
/* What all files of llm.c begin with: 256 words of 32 bits, little-endian, as the machines are that Shoal runs on. */
#ifndef TEXT_HEADER_H
#define TEXT_HEADER_H

enum {
    HEADER_WORDS = 256,
    HEADER_BYTES = 4 * HEADER_WORDS,
    HEADER_MAGIC = 0, /* which word is what */
    HEADER_VERSION = 1
};

#endif
