/* SPDX-License-Identifier: MIT */
/* Which processors make a core, and how the processes of a host divide them. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <stdbool.h>
#include <stdint.h>

/* Systems count more than so many processors only if they are asked otherwise. */
#define CORES_MAX_PROCESSORS 1024

/* A set of processors. */
struct cores_set {
    uint64_t words[CORES_MAX_PROCESSORS / 64];
};

static inline bool cores_set_has(const struct cores_set *set, int processor)
{
    return (set->words[processor / 64] >> (processor % 64) & 1) != 0;
}

static inline void cores_set_add(struct cores_set *set, int processor)
{
    set->words[processor / 64] |= (uint64_t)1 << (processor % 64);
}

int cores_set_count(const struct cores_set *set);

/* Reads a list such as "0-3,8\n". Returns false if it is none, or names a processor that no set can hold. */
bool cores_set_parse(const char *text, struct cores_set *set_out);

/* Adds what shares a core with the processor; adding nothing, or only the processor, says that it has one of its
   own. */
typedef void (*cores_siblings)(void *context, int processor, struct cores_set *set);

/* As Linux tells it in /sys; context: not used. */
void cores_ask_system(void *context, int processor, struct cores_set *set);

/*
 * Divides the allowed processors into n_parts of whole cores, whose sizes differ by one core at most, and returns part
 * number `part`; part 0 has the first cores. Returns false if there are fewer cores than parts, or if a part would have
 * fewer than n_least processors.
 */
bool cores_divide(const struct cores_set *allowed, cores_siblings siblings, void *context, int part,
                  int n_parts, int n_least, struct cores_set *share_out);

#endif
