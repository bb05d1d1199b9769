/* SPDX-License-Identifier: MIT */
/* Times of communication: from the counter of the thread, and from the flight record of the world. */
#include "train/comm.h"

#include "base/clock.h"
#include "base/waited.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct train_waits train_waits_begin(void)
{
    return (struct train_waits){.begin_ticks = clock_ticks(), .begin_ns = clock_now_ns()};
}

int64_t train_waits_ns(const struct train_waits *waits)
{
    double ticks = (double)(clock_ticks() - waits->begin_ticks);
    double ns = (double)(clock_now_ns() - waits->begin_ns);
    return ticks > 0.0 ? (int64_t)((double)waited_ticks() * (ns / ticks)) : 0;
}

/* The flight record is text. */
struct record {
    char *text;
    size_t n_bytes;
    size_t capacity;
};

static int keep_text(void *context, const char *text, size_t bytes)
{
    struct record *record = context;
    if (record->n_bytes + bytes + 1 > record->capacity) {
        size_t capacity = 2 * (record->n_bytes + bytes + 1);
        char *larger = realloc(record->text, capacity);
        if (!larger) {
            return 1;
        }
        record->text = larger;
        record->capacity = capacity;
    }
    memcpy(record->text + record->n_bytes, text, bytes);
    record->n_bytes += bytes;
    record->text[record->n_bytes] = '\0';
    return 0;
}

static int64_t find_ns(const char *call, const char *key)
{
    const char *found = strstr(call, key);
    return found ? strtoll(found + strlen(key), NULL, 10) : 0;
}

/* Gathers and reductions of parameters. Not counted: comparisons, announcements, and the loss, which may be late. */
static bool is_counted(const char *op)
{
    if (find_ns(op, "\"count\": ") <= 1) {
        return false;
    }
    static const char *const names[] = {"window_gather", "all_gather", "reduce_scatter", "all_reduce"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(op, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

int64_t train_comm_ns(shoal_world *world, int64_t since_ns)
{
    static const char mark[] = "{\"op\": \"";
    struct record record = {0};
    int64_t sum_ns = 0;
    if (shoal_world_dump(world, keep_text, &record) == SHOAL_OK && record.text) {
        for (const char *at = record.text; (at = strstr(at, mark)) != NULL; at++) {
            int64_t begin_ns = find_ns(at, "\"start_ns\": ");
            int64_t end_ns = find_ns(at, "\"end_ns\": ");
            if (is_counted(at + strlen(mark)) && begin_ns >= since_ns && end_ns > begin_ns) {
                sum_ns += end_ns - begin_ns;
            }
        }
    }
    free(record.text);
    return sum_ns;
}
