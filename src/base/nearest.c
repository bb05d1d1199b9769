/* SPDX-License-Identifier: MIT */
/* A short list of names, sorted by their distance from the wanted one. */
#include "base/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/name.h"

void nearest_begin(struct nearest *nearest, const char *wanted)
{
    *nearest = (struct nearest){.wanted = wanted};
}

/* A name that is added several times is told once. */
static bool is_known(const struct nearest *nearest, const char *name)
{
    for (size_t i = 0; i < nearest->n_names; i++) {
        if (strncmp(nearest->names[i], name, NEAREST_NAME_BYTES - 1) == 0) {
            return true;
        }
    }
    return false;
}

void nearest_add(struct nearest *nearest, const char *name)
{
    bool begins = name_begins(name, nearest->wanted);
    size_t distance = begins ? 0 : name_distance(nearest->wanted, name);
    size_t at = nearest->n_names;
    if (is_known(nearest, name)) {
        return;
    }
    while (at > 0 && nearest->distances[at - 1] > distance) {
        at--;
    }
    if (at == NEAREST_NAMES) {
        return;
    }
    size_t n_after = nearest->n_names - at - (nearest->n_names == NEAREST_NAMES);
    memmove(&nearest->names[at + 1], &nearest->names[at], n_after * sizeof nearest->names[0]);
    memmove(&nearest->distances[at + 1], &nearest->distances[at], n_after * sizeof nearest->distances[0]);
    (void)snprintf(nearest->names[at], NEAREST_NAME_BYTES, "%s", name);
    nearest->distances[at] = distance;
    nearest->n_names += nearest->n_names < NEAREST_NAMES;
}

size_t nearest_count(const struct nearest *nearest)
{
    if (nearest->n_names == 0) {
        return 0;
    }
    size_t limit = nearest->distances[0] == 0 ? 0 : strlen(nearest->wanted) / 2;
    size_t count = 1;
    while (count < nearest->n_names && nearest->distances[count] <= limit) {
        count++;
    }
    return count;
}

bool nearest_is_likely(const struct nearest *nearest)
{
    return nearest->n_names > 0 && 2 * nearest->distances[0] <= strlen(nearest->wanted);
}

void nearest_describe(const struct nearest *nearest, const char *what, char *words)
{
    size_t n_told = nearest_count(nearest);
    if (n_told == 0) {
        (void)snprintf(words, NEAREST_BYTES, "there are no %.64s", what);
        return;
    }
    size_t n = (size_t)snprintf(words, NEAREST_BYTES, "the nearest %s", n_told == 1 ? "is" : "are");
    for (size_t i = 0; i < n_told; i++) {
        const char *separator = i == 0 ? "" : i + 1 == n_told ? " and" : ",";
        n += (size_t)snprintf(words + n, NEAREST_BYTES - n, "%s \"%s\"", separator, nearest->names[i]);
    }
}
