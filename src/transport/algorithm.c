/* SPDX-License-Identifier: MIT */
/* What SHOAL_ALGO asks of the algorithms of a transport. */
#include "transport/algorithm.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/try.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of reading SHOAL_ALGO */

static void set_wish(const struct algorithm_table *table, enum collective_kind kind, int row)
{
    /* Relaxed: set before ranks use a group. */
    atomic_store_explicit(&table->wishes->rows[kind], row == table->n_rows ? 0 : row + 1,
                          memory_order_relaxed);
}

void algorithm_override_all(const struct algorithm_table *table, int row)
{
    algorithm_read_wishes(table);
    for (int kind = 0; kind < COLLECTIVE_COUNT; kind++) {
        set_wish(table, (enum collective_kind)kind, row);
    }
}

static bool is_named(const char *name, const char *text, size_t chars)
{
    return strlen(name) == chars && memcmp(name, text, chars) == 0;
}

static shoal_status find_algorithm(const struct algorithm_table *table, const char *text, size_t chars,
                                   int *row_out)
{
    for (int i = 0; i < table->n_rows; i++) {
        if (is_named(table->rows[i].name, text, chars)) {
            *row_out = i;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "there is no algorithm \"%.*s\" (shoal info --explain lists them)",
                     (int)chars, text);
}

static shoal_status find_kind(const char *text, size_t chars, enum collective_kind *kind_out)
{
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        if (is_named(collective_rows[i].name, text, chars)) {
            *kind_out = (enum collective_kind)i;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "there is no collective \"%.*s\"", (int)chars, text);
}

/* "op=algorithm" or "algorithm" into the wishes. */
static shoal_status parse_item(const struct algorithm_table *table, const char *item, size_t chars,
                               int wishes[COLLECTIVE_COUNT])
{
    const char *equals = memchr(item, '=', chars);
    int row = 0;
    if (!equals) {
        TRY(find_algorithm(table, item, chars, &row));
        for (int i = 0; i < COLLECTIVE_COUNT; i++) {
            wishes[i] = row;
        }
        return SHOAL_OK;
    }
    size_t kind_chars = (size_t)(equals - item);
    enum collective_kind kind = COLLECTIVE_BARRIER;
    TRY(find_kind(item, kind_chars, &kind));
    TRY(find_algorithm(table, equals + 1, chars - kind_chars - 1, &row));
    wishes[kind] = row;
    return SHOAL_OK;
}

shoal_status algorithm_override_parse(const struct algorithm_table *table, const char *text)
{
    int wishes[COLLECTIVE_COUNT];
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        wishes[i] = table->n_rows;
    }
    for (const char *item = text;;) {
        size_t chars = strcspn(item, ",");
        TRY(parse_item(table, item, chars, wishes));
        if (item[chars] == '\0') {
            break;
        }
        item += chars + 1;
    }
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        set_wish(table, (enum collective_kind)i, wishes[i]);
    }
    return SHOAL_OK;
}

void algorithm_read_wishes(const struct algorithm_table *table)
{
    (void)pthread_mutex_lock(&lock);
    /* Relaxed: only changed under the lock. */
    if (!atomic_load_explicit(&table->wishes->is_read, memory_order_relaxed)) {
        const char *text = option_text(OPTION_ALGO);
        if (*text != '\0' && algorithm_override_parse(table, text) != SHOAL_OK) {
            LOG(SHOAL_LOG_WARN, "SHOAL_ALGO: %s; ignored", shoal_error_text());
            error_clear();
        }
        /* Release: pairs with the acquire in algorithm_asked. */
        atomic_store_explicit(&table->wishes->is_read, true, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
}
