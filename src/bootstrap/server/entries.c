/* SPDX-License-Identifier: MIT */
/* A map of names, and a list of what has them. */
#include "bootstrap/server/entries.h"

#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"

struct name {
    const char *bytes;
    size_t n_bytes;
};

static bool has_name(const void *context, const void *wanted, size_t value)
{
    const struct entry *entry = map_pointer(value);
    const struct name *name = wanted;
    (void)context;
    return entry->name_bytes == name->n_bytes && memcmp(entry->name, name->bytes, name->n_bytes) == 0;
}

static struct entry *find(const struct entries *entries, uint64_t hash, const char *name, size_t name_bytes)
{
    size_t value;
    const struct name wanted = {.bytes = name, .n_bytes = name_bytes};
    return map_find(&entries->by_name, hash, has_name, NULL, &wanted, &value) ? map_pointer(value) : NULL;
}

struct entry *entries_find(const struct entries *entries, const char *name, size_t name_bytes)
{
    return find(entries, hash_bytes(0, name, name_bytes), name, name_bytes);
}

shoal_status entries_obtain(struct entries *entries, const char *name, size_t name_bytes,
                            struct entry **entry_out)
{
    uint64_t hash = hash_bytes(0, name, name_bytes);
    struct entry *entry = find(entries, hash, name, name_bytes);
    if (entry) {
        *entry_out = entry;
        return SHOAL_OK;
    }
    TRY(map_reserve(&entries->by_name, 1));
    entry = mem_alloc(sizeof(*entry) + name_bytes + 1);
    if (!entry) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *entry = (struct entry){.next = entries->first, .hash = hash, .fd = -1, .name_bytes = name_bytes};
    memcpy(entry->name, name, name_bytes);
    entry->name[name_bytes] = '\0';
    map_put(&entries->by_name, hash, (size_t)map_key(entry));
    if (entry->next) {
        entry->next->before = entry;
    }
    entries->first = entry;
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
    (void)map_remove(&entries->by_name, entry->hash, (size_t)map_key(entry));
    *(entry->before ? &entry->before->next : &entries->first) = entry->next;
    if (entry->next) {
        entry->next->before = entry->before;
    }
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
    struct entry *next;
    for (struct entry *entry = entries->first; entry; entry = next) {
        next = entry->next;
        if (ends_with(entry, suffix, suffix_bytes)) {
            entries_remove(entries, entry);
        }
    }
}

void entries_clear(struct entries *entries)
{
    struct entry *next;
    for (struct entry *entry = entries->first; entry; entry = next) {
        next = entry->next;
        free_entry(entry);
    }
    map_free(&entries->by_name);
    entries->first = NULL;
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
