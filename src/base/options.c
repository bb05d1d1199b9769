/* SPDX-License-Identifier: MIT */
/*
 * Values of the rows of options.def. The environment is read once, by the first thread that asks; after that
 * everything here is constant, except that problems are told to the log once.
 *
 * Reading and telling are apart, because the log itself asks for its level here (see log.c). Nothing is
 * allocated: the application may still want to install its allocator.
 */
#include "base/options.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/name.h"
#include "base/option_parse.h"
#include "shoal/option.h"

#define PREFIX "SHOAL_"
#define TEST_PREFIX "SHOAL_TEST_"
#define NN_PREFIX "SHOAL_NN_"

/* Values longer than this are bad: no good one needs more. */
#define VALUE_BYTES 256
#define RANGE_BYTES 80
/* So many unknown names are told, the others counted. */
#define UNKNOWN_MAX 8
#define UNKNOWN_NAME_BYTES 64

enum option_type {
    TYPE_int,
    TYPE_bytes,
    TYPE_seconds,
    TYPE_choice,
    TYPE_text
};

struct option_row {
    const char *name; /* with the prefix */
    enum option_type type;
    const char *type_name;
    const char *default_text;
    int64_t low; /* of int and bytes */
    int64_t high;
    double low_seconds; /* of seconds */
    double high_seconds;
    const char *range_text; /* of seconds, choice and text */
    const char *choices;    /* of choice */
    const char *doc;
};

/* What the columns low, high and choices mean depends on the type. */
#define RANGE_int(range_low, range_high, row_choices) .low = (range_low), .high = (range_high)
#define RANGE_bytes(range_low, range_high, row_choices) .low = (range_low), .high = (range_high)
#define RANGE_seconds(range_low, range_high, row_choices)     \
    .low_seconds = (range_low), .high_seconds = (range_high), \
    .range_text = "seconds, " #range_low " to " #range_high
#define RANGE_choice(range_low, range_high, row_choices) .range_text = (row_choices), .choices = (row_choices)
#define RANGE_text(range_low, range_high, row_choices) .range_text = (row_choices)

static const struct option_row rows[] = {
#define OPTION(row_name, row_type, row_default, row_low, row_high, row_choices, row_doc) \
    {.name = PREFIX #row_name,                                                           \
     .type = TYPE_##row_type,                                                            \
     .type_name = #row_type,                                                             \
     .default_text = row_default,                                                        \
     RANGE_##row_type(row_low, row_high, row_choices),                                   \
     .doc = row_doc},
#include "base/options.def"
#undef OPTION
};

enum option_source {
    SOURCE_DEFAULT,
    SOURCE_ENVIRONMENT,
    SOURCE_BAD /* the environment's value was bad, so the default holds; for SHOAL_LOG: warn */
};

struct option_value {
    int64_t integer; /* of int, bytes and choice */
    double seconds;
    enum option_source source;
    char text[VALUE_BYTES];     /* the value in force */
    char bad_text[VALUE_BYTES]; /* with SOURCE_BAD: what the environment said, perhaps cut */
    char range[RANGE_BYTES];
};

/* Written by read_environment, constant afterwards. */
static pthread_once_t is_read = PTHREAD_ONCE_INIT;
static struct option_value values[OPTION_COUNT];
static char unknown_names[UNKNOWN_MAX][UNKNOWN_NAME_BYTES];
static size_t n_unknown; /* may exceed UNKNOWN_MAX */

/* True from the end of the reading until the log was told. */
static atomic_bool has_untold_problems;

static bool parse_value(const struct option_row *row, const char *text, struct option_value *value)
{
    int64_t integer = 0;
    double seconds = 0.0;
    int choice = 0;
    bool is_good = false;
    switch (row->type) {
    case TYPE_int:
        is_good = option_parse_int(text, &integer) && integer >= row->low && integer <= row->high;
        break;
    case TYPE_bytes:
        is_good = option_parse_bytes(text, &integer) && integer >= row->low && integer <= row->high;
        break;
    case TYPE_seconds:
        is_good = option_parse_seconds(text, &seconds) && seconds >= row->low_seconds &&
                  seconds <= row->high_seconds;
        break;
    case TYPE_choice:
        is_good = option_parse_choice(text, row->choices, &choice);
        integer = choice;
        break;
    case TYPE_text:
        is_good = true;
        break;
    }
    if (!is_good || strlen(text) >= VALUE_BYTES) {
        return false;
    }
    value->integer = integer;
    value->seconds = seconds;
    (void)snprintf(value->text, sizeof value->text, "%s", text);
    return true;
}

static void describe_range(const struct option_row *row, struct option_value *value)
{
    const char *kind = row->type == TYPE_bytes ? "bytes, suffix K, M or G, " : "";
    if (row->range_text) {
        (void)snprintf(value->range, sizeof value->range, "%s", row->range_text);
    } else if (row->high == INT64_MAX) {
        (void)snprintf(value->range, sizeof value->range, "%sat least %" PRId64, kind, row->low);
    } else {
        (void)snprintf(value->range, sizeof value->range, "%s%" PRId64 " to %" PRId64, kind, row->low,
                       row->high);
    }
}

static void read_value(const struct option_row *row, struct option_value *value)
{
    describe_range(row, value);
    bool is_default_good = parse_value(row, row->default_text, value);
    assert(is_default_good);
    (void)is_default_good;
    const char *text = getenv(row->name);
    if (!text || *text == '\0') {
        value->source = SOURCE_DEFAULT;
    } else if (parse_value(row, text, value)) {
        value->source = SOURCE_ENVIRONMENT;
    } else {
        value->source = SOURCE_BAD;
        (void)snprintf(value->bad_text, sizeof value->bad_text, "%s", text);
    }
}

static bool is_known(const char *name, size_t name_chars)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strlen(rows[i].name) == name_chars && memcmp(rows[i].name, name, name_chars) == 0) {
            return true;
        }
    }
    return false;
}

static void collect_unknown_names(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        size_t name_chars = strcspn(*entry, "=");
        bool is_ours = strncmp(*entry, PREFIX, strlen(PREFIX)) == 0;
        bool is_of_others = strncmp(*entry, TEST_PREFIX, strlen(TEST_PREFIX)) == 0 ||
                            strncmp(*entry, NN_PREFIX, strlen(NN_PREFIX)) == 0;
        if (!is_ours || is_of_others || is_known(*entry, name_chars)) {
            continue;
        }
        if (n_unknown < UNKNOWN_MAX) {
            (void)snprintf(unknown_names[n_unknown], UNKNOWN_NAME_BYTES, "%.*s",
                           (int)(name_chars < UNKNOWN_NAME_BYTES ? name_chars : UNKNOWN_NAME_BYTES), *entry);
        }
        n_unknown++;
    }
}

static void read_environment(void)
{
    bool has_problems = false;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        read_value(&rows[i], &values[i]);
        has_problems = has_problems || values[i].source == SOURCE_BAD;
    }
    /* Who set it wants to hear something: least of all shall the report of the bad value be lost. */
    if (values[OPTION_LOG].source == SOURCE_BAD) {
        (void)parse_value(&rows[OPTION_LOG], "warn", &values[OPTION_LOG]);
    }
    collect_unknown_names();
    atomic_store(&has_untold_problems, has_problems || n_unknown > 0);
}

static const char *find_nearest_name(const char *name)
{
    const char *nearest = rows[0].name;
    for (size_t i = 1; i < OPTION_COUNT; i++) {
        if (name_distance(name, rows[i].name) < name_distance(name, nearest)) {
            nearest = rows[i].name;
        }
    }
    return nearest;
}

void options_report_problems(void)
{
    (void)pthread_once(&is_read, read_environment);
    /* Relaxed: only decides whether it is time to try; the exchange below decides who tells. */
    if (!atomic_load_explicit(&has_untold_problems, memory_order_relaxed)) {
        return;
    }
    log_prepare();
    /* Relaxed: the level stands for itself (log.c). A silent log keeps the problems for a later listener. */
    bool is_heard = atomic_load_explicit(&log_threshold, memory_order_relaxed) >= (int)SHOAL_LOG_WARN;
    if (!is_heard || !atomic_exchange(&has_untold_problems, false)) {
        return;
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (values[i].source == SOURCE_BAD) {
            LOG(SHOAL_LOG_WARN, "%s: bad value \"%s\" (wanted: %s), using %s%s", rows[i].name,
                values[i].bad_text, values[i].range, i == OPTION_LOG ? "" : "the default ", values[i].text);
        }
    }
    for (size_t i = 0; i < n_unknown && i < UNKNOWN_MAX; i++) {
        LOG(SHOAL_LOG_WARN, "unknown option %s in the environment, ignored; the nearest name is %s",
            unknown_names[i], find_nearest_name(unknown_names[i]));
    }
    if (n_unknown > UNKNOWN_MAX) {
        LOG(SHOAL_LOG_WARN, "%zu more unknown options in the environment, ignored", n_unknown - UNKNOWN_MAX);
    }
}

static const struct option_value *get_value(enum option_id id)
{
    assert((unsigned)id < OPTION_COUNT);
    options_report_problems();
    return &values[id];
}

int64_t option_int(enum option_id id)
{
    assert(rows[id].type == TYPE_int || rows[id].type == TYPE_bytes);
    return get_value(id)->integer;
}

double option_seconds(enum option_id id)
{
    assert(rows[id].type == TYPE_seconds);
    return get_value(id)->seconds;
}

int option_choice(enum option_id id)
{
    assert(rows[id].type == TYPE_choice);
    return (int)get_value(id)->integer;
}

const char *option_text(enum option_id id)
{
    assert(rows[id].type == TYPE_text);
    return get_value(id)->text;
}

int options_log_level(void)
{
    (void)pthread_once(&is_read, read_environment);
    /* The choices are in the order of shoal_log_level, behind "off". */
    return (int)values[OPTION_LOG].integer;
}

bool shoal_option_get(size_t index, shoal_option_info *info_out)
{
    static const char *const source_names[] = {
        [SOURCE_DEFAULT] = "default",
        [SOURCE_ENVIRONMENT] = "environment",
        [SOURCE_BAD] = "default (bad value in environment)",
    };
    if (index >= OPTION_COUNT || !info_out) {
        return false;
    }
    const struct option_value *value = get_value((enum option_id)index);
    *info_out = (shoal_option_info){
        .name = rows[index].name,
        .type = rows[index].type_name,
        .range = value->range,
        .default_value = rows[index].default_text,
        .value = value->text,
        .source = index == OPTION_LOG && value->source == SOURCE_BAD ? "bad value in environment"
                                                                     : source_names[value->source],
        .doc = rows[index].doc,
    };
    return true;
}
