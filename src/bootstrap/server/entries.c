/* SPDX-License-Identifier: MIT */
/* A hash table with chains. Its size doubles when the chains are longer than one entry on average. */
#include "bootstrap/server/entries.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/try.h"
#include "base/hash.h"

#define FIRST_CHAINS 16

static struct entry **find_link(const struct entries *entries, uint64_t hash, const char *name,
                                size_t name_bytes)
{
    struct entry **link = &entries->chains[hash & (entries->n_chains - 1)];
    while (*link) {
        const struct entry *entry = *link;
        if (entry->hash == hash && entry->name_bytes == name_bytes &&
            memcmp(entry->name, name, name_bytes) == 0) {
            break;
        }
        link = &(*link)->next;
    }
    return link;
}

struct entry *entries_find(const struct entries *entries, const char *name, size_t name_bytes)
{
    if (entries->n_chains == 0) {
        return NULL;
    }
    return *find_link(entries, hash_bytes(0, name, name_bytes), name, name_bytes);
}

static shoal_status grow(struct entries *entries)
{
    size_t n_chains = entries->n_chains ? entries->n_chains * 2 : FIRST_CHAINS;
    struct entry **chains = mem_alloc_zeroed(n_chains, sizeof(struct entry *));
    if (!chains) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < entries->n_chains; i++) {
        struct entry *next;
        for (struct entry *entry = entries->chains[i]; entry; entry = next) {
            next = entry->next;
            struct entry **head = &chains[entry->hash & (n_chains - 1)];
            entry->next = *head;
            *head = entry;
        }
    }
    mem_free(entries->chains);
    entries->chains = chains;
    entries->n_chains = n_chains;
    return SHOAL_OK;
}

shoal_status entries_obtain(struct entries *entries, const char *name, size_t name_bytes,
                            struct entry **entry_out)
{
    struct entry *entry = entries_find(entries, name, name_bytes);
    if (entry) {
        *entry_out = entry;
        return SHOAL_OK;
    }
    if (entries->count >= entries->n_chains) {
        TRY(grow(entries));
    }
    entry = mem_alloc(sizeof(*entry) + name_bytes + 1);
    if (!entry) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *entry = (struct entry){.hash = hash_bytes(0, name, name_bytes), .fd = -1, .name_bytes = name_bytes};
    memcpy(entry->name, name, name_bytes);
    entry->name[name_bytes] = '\0';
    struct entry **head = &entries->chains[entry->hash & (entries->n_chains - 1)];
    entry->next = *head;
    *head = entry;
    entries->count++;
    *entry_out = entry;
    return SHOAL_OK;
}

static void free_entry(struct entry *entry)
{
    if (entry->fd >= 0) {
        (void)close(entry->fd);
    }
    mem_free(entry->value);
    mem_free(entry);
}

void entries_remove(struct entries *entries, struct entry *entry)
{
    struct entry **link = find_link(entries, entry->hash, entry->name, entry->name_bytes);
    *link = entry->next;
    entries->count--;
    free_entry(entry);
}

/* Whether a name ends with the suffix, and has no space before it. */
static bool ends_with(const struct entry *entry, const char *suffix, size_t suffix_bytes)
{
    const char *space = memchr(entry->name, ' ', entry->name_bytes);
    size_t rest_bytes = space ? entry->name_bytes - (size_t)(space - (const char *)entry->name) : 0;
    return space && rest_bytes == suffix_bytes && memcmp(space, suffix, suffix_bytes) == 0;
}

void entries_remove_all(struct entries *entries, const char *suffix, size_t suffix_bytes)
{
    for (size_t i = 0; i < entries->n_chains; i++) {
        for (struct entry **link = &entries->chains[i]; *link;) {
            struct entry *entry = *link;
            if (ends_with(entry, suffix, suffix_bytes)) {
                *link = entry->next;
                entries->count--;
                free_entry(entry);
            } else {
                link = &entry->next;
            }
        }
    }
}

void entries_clear(struct entries *entries)
{
    for (size_t i = 0; i < entries->n_chains; i++) {
        struct entry *next;
        for (struct entry *entry = entries->chains[i]; entry; entry = next) {
            next = entry->next;
            free_entry(entry);
        }
    }
    mem_free(entries->chains);
    *entries = (struct entries){.chains = NULL};
}

shoal_status entry_set_value(struct entry *entry, const char *value, size_t value_bytes)
{
    char *copy = mem_alloc(value_bytes + 1);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(copy, value, value_bytes);
    copy[value_bytes] = '\0';
    mem_free(entry->value);
    entry->value = copy;
    entry->value_bytes = value_bytes;
    return SHOAL_OK;
}
