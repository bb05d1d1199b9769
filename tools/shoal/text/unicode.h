/* SPDX-License-Identifier: MIT */
/* Characters of UTF-8, and the classes by which GPT-2 splits text. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_INVALID UINT32_MAX

enum unicode_class {
    UNICODE_LETTER, /* general category L */
    UNICODE_NUMBER, /* general category N */
    UNICODE_SPACE,  /* white space */
    UNICODE_OTHER   /* all others, and bytes that are not UTF-8 */
};

/*
 * Reads the first character of n_bytes bytes, of which there is at least one. Returns how many bytes it has. If no
 * character of UTF-8 begins here, the code is UNICODE_INVALID, and one byte is taken.
 */
size_t unicode_read(const char *text, size_t n_bytes, uint32_t *code_out);

/* Whether all n_bytes bytes are the beginning of one character that is longer. */
bool unicode_is_cut(const char *text, size_t n_bytes);

enum unicode_class unicode_classify(uint32_t code);

#endif
