/* SPDX-License-Identifier: MIT */
/*
 * Written by hand for the regular expression of GPT-2, whose alternatives are tried in this order:
 *
 *     's|'t|'re|'ve|'m|'ll|'d          endings of English words
 *     | ?\p{L}+                        letters, with one space in front if there is one
 *     | ?\p{N}+                        numbers, likewise
 *     | ?[^\s\p{L}\p{N}]+              anything else that is not white space
 *     |\s+(?!\S)                       white space, without its last character if something else follows
 *     |\s+                             white space
 */
#include "text/split.h"
#include "text/unicode.h"

#include <string.h>

/* The length of an ending such as "'re"; 0 if none begins here. */
static size_t find_ending(const char *text, size_t n_bytes)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(endings[i]);
        if (length <= n_bytes && memcmp(text, endings[i], length) == 0) {
            return length;
        }
    }
    return 0;
}

/* Where characters of this class end, from `at` on. *last_out is where the last of them begins, if there is one. */
static size_t skip_class(const char *text, size_t n_bytes, size_t at, enum unicode_class wanted,
                         size_t *last_out)
{
    while (at < n_bytes) {
        uint32_t code;
        size_t length = unicode_read(text + at, n_bytes - at, &code);
        if (unicode_classify(code) != wanted) {
            break;
        }
        *last_out = at;
        at += length;
    }
    return at;
}

size_t split_next(const char *text, size_t n_bytes)
{
    size_t last = 0;
    size_t ending = find_ending(text, n_bytes);
    if (ending > 0 || n_bytes == 0) {
        return ending;
    }
    size_t begin = text[0] == ' ' && n_bytes > 1 ? 1 : 0;
    uint32_t code;
    (void)unicode_read(text + begin, n_bytes - begin, &code);
    enum unicode_class class = unicode_classify(code);
    if (class != UNICODE_SPACE) {
        return skip_class(text, n_bytes, begin, class, &last);
    }
    size_t end = skip_class(text, n_bytes, 0, UNICODE_SPACE, &last);
    return end < n_bytes && last > 0 ? last : end;
}
