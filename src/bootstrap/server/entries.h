/* SPDX-License-Identifier: MIT */
/* A table from names to values or descriptors: what a server keeps. Used by its thread alone. */
#ifndef BOOTSTRAP_SERVER_ENTRIES_H
#define BOOTSTRAP_SERVER_ENTRIES_H

#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "shoal/status.h"

struct entry {
    struct entry *next;   /* NULL for the last one */
    struct entry *before; /* NULL for the first one */
    uint64_t hash;        /* of the name */
    char *value;          /* owned; NULL if there is none */
    size_t value_bytes;
    int fd; /* owned; -1 if there is none */
    uint64_t segment_bytes;
    size_t name_bytes;
    char name[]; /* with a zero byte at the end */
};

struct entries {
    struct map by_name;  /* from hashes to entries */
    struct entry *first; /* the newest */
};

/* NULL when there is none. */
struct entry *entries_find(const struct entries *entries, const char *name, size_t name_bytes);

/* Finds the entry of this name, or makes an empty one. */
shoal_status entries_obtain(struct entries *entries, const char *name, size_t name_bytes,
                            struct entry **entry_out);

void entries_remove(struct entries *entries, struct entry *entry);

/* Removes all entries whose names are, from their first space on, this suffix. */
void entries_remove_all(struct entries *entries, const char *suffix, size_t suffix_bytes);

/* Removes all. */
void entries_clear(struct entries *entries);

/* Copies the value into the entry. On failure the old one stays. */
shoal_status entry_set_value(struct entry *entry, const char *value, size_t value_bytes);

#endif
