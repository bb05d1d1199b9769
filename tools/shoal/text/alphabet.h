/* SPDX-License-Identifier: MIT */
/*
 * How the files of Hugging Face's byte-level tokenizers write bytes, as characters that can be seen: bytes that Latin-1
 * prints stand for themselves, and the others, in order, are the characters from U+0100 on (a space is U+0120).
 */
#ifndef TEXT_ALPHABET_H
#define TEXT_ALPHABET_H

#include <stdint.h>

enum {
    ALPHABET_BYTES = 3 /* of a character in UTF-8, with a 0 behind it */
};

/* The byte that a character stands for; -1 if it stands for none. */
int alphabet_read(uint32_t code);
/* The character of a byte, in UTF-8. */
void alphabet_write(unsigned char byte, char text_out[ALPHABET_BYTES]);

#endif
