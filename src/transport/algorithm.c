/* SPDX-License-Identifier: MIT */
/* Choosing an algorithm by the rows of algorithms.def and preferences.def, or by SHOAL_ALGO. */
#include "transport/algorithm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/try.h"

const struct algorithm_row algorithm_rows[ALGORITHM_COUNT] = {
#define ALGORITHM(name_, text, min_ranks_, max_ranks_, needs, needs_text_, doc_) \
    [ALGORITHM_##name_] = {.name = text,                                         \
                           .min_ranks = min_ranks_,                              \
                           .max_ranks = max_ranks_,                              \
                           .needs_text = needs_text_,                            \
                           .doc = doc_},
#include "transport/algorithms.def"
#undef ALGORITHM
};

_Static_assert(ALGORITHM_SLOT_BYTES == 16 * 1024, "algorithms.def says it in words");

bool algorithm_can(enum algorithm_id algorithm, const struct algorithm_query *query)
{
    const struct algorithm_row *row = &algorithm_rows[algorithm];
    if (query->n_ranks < row->min_ranks || (row->max_ranks > 0 && query->n_ranks > row->max_ranks)) {
        return false;
    }
    const struct algorithm_query *q = query;
    switch (algorithm) {
#define ALGORITHM(name, text, min_ranks, max_ranks, needs, needs_text, doc) \
    case ALGORITHM_##name:                                                  \
        return (needs);
#include "transport/algorithms.def"
#undef ALGORITHM
    case ALGORITHM_COUNT:
        break;
    }
    (void)q;
    return false;
}

/* Algorithm + 1 for each kind; 0: none. */
static _Atomic int overrides[COLLECTIVE_COUNT];
static pthread_once_t is_environment_read = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    const char *text = option_text(OPTION_ALGO);
    if (*text != '\0' && algorithm_override_parse(text) != SHOAL_OK) {
        LOG(SHOAL_LOG_WARN, "SHOAL_ALGO: %s; ignored", shoal_error_text());
        error_clear();
    }
}

static void set_override(enum collective_kind kind, enum algorithm_id algorithm)
{
    /* Relaxed: set before ranks use a group. */
    atomic_store_explicit(&overrides[kind], algorithm == ALGORITHM_COUNT ? 0 : (int)algorithm + 1,
                          memory_order_relaxed);
}

void algorithm_override(enum collective_kind kind, enum algorithm_id algorithm)
{
    (void)pthread_once(&is_environment_read, read_environment);
    set_override(kind, algorithm);
}

void algorithm_override_all(enum algorithm_id algorithm)
{
    for (int kind = 0; kind < COLLECTIVE_COUNT; kind++) {
        algorithm_override((enum collective_kind)kind, algorithm);
    }
}

static bool is_named(const char *name, const char *text, size_t chars)
{
    return strlen(name) == chars && memcmp(name, text, chars) == 0;
}

static shoal_status find_algorithm(const char *text, size_t chars, enum algorithm_id *algorithm_out)
{
    for (int i = 0; i < ALGORITHM_COUNT; i++) {
        if (is_named(algorithm_rows[i].name, text, chars)) {
            *algorithm_out = (enum algorithm_id)i;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "there is no algorithm \"%.*s\"", (int)chars, text);
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

/* "op=algorithm" or "algorithm" into the table. */
static shoal_status parse_item(const char *item, size_t chars, enum algorithm_id *table)
{
    const char *equals = memchr(item, '=', chars);
    enum algorithm_id algorithm = ALGORITHM_LOCAL;
    if (!equals) {
        TRY(find_algorithm(item, chars, &algorithm));
        for (int i = 0; i < COLLECTIVE_COUNT; i++) {
            table[i] = algorithm;
        }
        return SHOAL_OK;
    }
    size_t kind_chars = (size_t)(equals - item);
    enum collective_kind kind = COLLECTIVE_BARRIER;
    TRY(find_kind(item, kind_chars, &kind));
    TRY(find_algorithm(equals + 1, chars - kind_chars - 1, &algorithm));
    table[kind] = algorithm;
    return SHOAL_OK;
}

shoal_status algorithm_override_parse(const char *text)
{
    enum algorithm_id table[COLLECTIVE_COUNT];
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        table[i] = ALGORITHM_COUNT;
    }
    for (const char *item = text;;) {
        size_t chars = strcspn(item, ",");
        TRY(parse_item(item, chars, table));
        if (item[chars] == '\0') {
            break;
        }
        item += chars + 1;
    }
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        set_override((enum collective_kind)i, table[i]);
    }
    return SHOAL_OK;
}

static enum algorithm_id pick_preferred(const struct algorithm_query *q, const char **why_out)
{
#define PREFER(name, condition, why)                         \
    if ((condition) && algorithm_can(ALGORITHM_##name, q)) { \
        *why_out = why;                                      \
        return ALGORITHM_##name;                             \
    }
#include "transport/preferences.def"
#undef PREFER
    *why_out = "nothing can carry it";
    return ALGORITHM_COUNT;
}

enum algorithm_id algorithm_asked(enum collective_kind kind)
{
    (void)pthread_once(&is_environment_read, read_environment);
    /* Relaxed: see set_override. */
    int override = atomic_load_explicit(&overrides[kind], memory_order_relaxed);
    return override > 0 ? (enum algorithm_id)(override - 1) : ALGORITHM_COUNT;
}

enum algorithm_id algorithm_pick(const struct algorithm_query *query, const char **why_out)
{
    const char *why;
    enum algorithm_id algorithm = algorithm_asked(query->kind);
    if (algorithm < ALGORITHM_COUNT && algorithm_can(algorithm, query)) {
        why = "SHOAL_ALGO asks for it";
    } else if (algorithm == ALGORITHM_DIRECT && algorithm_can(ALGORITHM_STAGED, query)) {
        /* Other ranks may have symmetric buffers; with those only staged can be settled. */
        algorithm = ALGORITHM_STAGED;
        why = "SHOAL_ALGO asks for direct, but the buffers are not symmetric";
    } else {
        algorithm = pick_preferred(query, &why);
    }
    if (why_out) {
        *why_out = why;
    }
    return algorithm;
}
