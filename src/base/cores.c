/* SPDX-License-Identifier: MIT */
/* Cores: see cores.h. */
#include "base/cores.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/os.h"

int cores_set_count(const struct cores_set *set)
{
    int n = 0;
    for (size_t i = 0; i < sizeof set->words / sizeof set->words[0]; i++) {
        n += __builtin_popcountll(set->words[i]);
    }
    return n;
}

/* Reads a number and moves *text behind it. Returns -1 if there is none that a set can hold. */
static int parse_processor(const char **text)
{
    char *end;
    long number = **text >= '0' && **text <= '9' ? strtol(*text, &end, 10) : -1;
    if (number < 0 || number >= CORES_MAX_PROCESSORS) {
        return -1;
    }
    *text = end;
    return (int)number;
}

bool cores_set_parse(const char *text, struct cores_set *set_out)
{
    struct cores_set set = {{0}};
    for (;;) {
        int first = parse_processor(&text);
        bool is_range = first >= 0 && *text == '-';
        text += is_range;
        int last = is_range ? parse_processor(&text) : first;
        if (first < 0 || last < first) {
            return false;
        }
        for (int i = first; i <= last; i++) {
            cores_set_add(&set, i);
        }
        if (*text != ',') {
            break;
        }
        text++;
    }
    if (*text != '\0' && strcmp(text, "\n") != 0) {
        return false;
    }
    *set_out = set;
    return true;
}

void cores_ask_system(void *context, int processor, struct cores_set *set)
{
    char path[96];
    char text[4096];
    struct cores_set found;
    (void)context;
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                   processor);
    if (os_read_text(path, text, sizeof text) && cores_set_parse(text, &found)) {
        for (size_t i = 0; i < sizeof set->words / sizeof set->words[0]; i++) {
            set->words[i] |= found.words[i];
        }
    }
}

/* Numbers the cores of the allowed processors, by the first processor of each; -1 for processors that are not allowed. */
static int number_cores(const struct cores_set *allowed, cores_siblings siblings, void *context,
                        int cores[CORES_MAX_PROCESSORS])
{
    int n_cores = 0;
    for (int i = 0; i < CORES_MAX_PROCESSORS; i++) {
        cores[i] = -1;
    }
    for (int i = 0; i < CORES_MAX_PROCESSORS; i++) {
        if (!cores_set_has(allowed, i) || cores[i] >= 0) {
            continue;
        }
        struct cores_set core = {{0}};
        siblings(context, i, &core);
        for (int k = i + 1; k < CORES_MAX_PROCESSORS; k++) {
            if (cores_set_has(&core, k) && cores_set_has(allowed, k) && cores[k] < 0) {
                cores[k] = n_cores;
            }
        }
        cores[i] = n_cores++;
    }
    return n_cores;
}

bool cores_divide(const struct cores_set *allowed, cores_siblings siblings, void *context, int part,
                  int n_parts, int n_least, struct cores_set *share_out)
{
    int cores[CORES_MAX_PROCESSORS];
    struct cores_set share = {{0}};
    int n_cores = number_cores(allowed, siblings, context, cores);
    if (n_cores < n_parts || cores_set_count(allowed) / n_parts < n_least) {
        return false;
    }
    int begin = (int)((int64_t)n_cores * part / n_parts);
    int end = (int)((int64_t)n_cores * (part + 1) / n_parts);
    for (int i = 0; i < CORES_MAX_PROCESSORS; i++) {
        if (cores[i] >= begin && cores[i] < end) {
            cores_set_add(&share, i);
        }
    }
    *share_out = share;
    return true;
}
