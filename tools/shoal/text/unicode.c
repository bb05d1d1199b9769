/* SPDX-License-Identifier: MIT */
/* Reads UTF-8 strictly: no overlong forms, no surrogates, nothing beyond U+10FFFF. Classes are looked up in ranges. */
#include "text/unicode.h"

struct range {
    uint32_t first;
    uint32_t last;
};

#define LETTERS(first, last) {first, last},
#define NUMBERS(first, last)
static const struct range letters[] = {
#include "text/unicode.def"
};
#undef LETTERS
#undef NUMBERS

#define LETTERS(first, last)
#define NUMBERS(first, last) {first, last},
static const struct range numbers[] = {
#include "text/unicode.def"
};
#undef LETTERS
#undef NUMBERS

static const struct range spaces[] = {
    {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
};

static bool is_among(const struct range *ranges, size_t n_ranges, uint32_t code)
{
    size_t low = 0;
    size_t high = n_ranges;
    while (low < high) { /* to the first range that does not end before the code */
        size_t middle = (low + high) / 2;
        if (ranges[middle].last < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < n_ranges && ranges[low].first <= code;
}

#define IS_AMONG(ranges, code) is_among(ranges, sizeof(ranges) / sizeof((ranges)[0]), code)

enum unicode_class unicode_classify(uint32_t code)
{
    if (IS_AMONG(letters, code)) {
        return UNICODE_LETTER;
    }
    if (IS_AMONG(numbers, code)) {
        return UNICODE_NUMBER;
    }
    return IS_AMONG(spaces, code) ? UNICODE_SPACE : UNICODE_OTHER;
}

/* How many bytes a character has that begins with this one; 0 if none does. */
static size_t count_bytes(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

size_t unicode_read(const char *text, size_t n_bytes, uint32_t *code_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* that needs so many bytes */
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length = count_bytes(bytes[0]);
    *code_out = UNICODE_INVALID;
    if (length == 0 || length > n_bytes) {
        return 1;
    }
    uint32_t code = length == 1 ? bytes[0] : bytes[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 1;
        }
        code = code << 6 | (bytes[i] & 0x3fu);
    }
    if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
        return 1;
    }
    *code_out = code;
    return length;
}

bool unicode_is_cut(const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;
    bool is_cut = n_bytes > 0 && n_bytes < count_bytes(bytes[0]);
    for (size_t i = 1; is_cut && i < n_bytes; i++) {
        is_cut = (bytes[i] & 0xc0) == 0x80;
    }
    return is_cut;
}
