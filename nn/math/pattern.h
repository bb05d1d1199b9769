/* SPDX-License-Identifier: MIT */
/* Patterns of paths. */
#ifndef NN_MATH_PATTERN_H
#define NN_MATH_PATTERN_H

#include <stdbool.h>
#include <string.h>

/* '*' stands for any characters, '?' for one. Goes back to the last star only, which suffices. */
static inline bool nn_matches(const char *pattern, const char *text)
{
    const char *star = NULL;
    const char *resume = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = text;
        } else if (*pattern == *text || *pattern == '?') {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++resume;
        } else {
            return false;
        }
    }
    return pattern[strspn(pattern, "*")] == '\0';
}

#endif
