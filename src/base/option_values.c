/* SPDX-License-Identifier: MIT */
/*
 * Reads the environment once, on the first thread that asks. After that everything here is constant, except whether
 * problems were reported. Nothing is allocated, because the application may still want to install its allocator.
 */
#include "base/option_values.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/name.h"
#include "base/option_parse.h"

#define PREFIX "SHOAL_"
/* Of the tests, of the companion library, of transport modules, of the Python package. */
static const char *const prefixes_of_others[] = {"SHOAL_TEST_",    "SHOAL_NN_",   "SHOAL_TRANSPORT_",
                                                 "SHOAL_LIBRARY=", "SHOAL_TOOL=", "SHOAL_TORCH_"};

/* So many unknown names are told, the others counted. */
#define UNKNOWN_MAX 8
#define UNKNOWN_NAME_BYTES 64

/* What the columns low, high and choices mean depends on the type. */
#define RANGE_int(range_low, range_high, row_choices) .low = (range_low), .high = (range_high)
#define RANGE_bytes(range_low, range_high, row_choices) .low = (range_low), .high = (range_high)
#define RANGE_seconds(range_low, range_high, row_choices)     \
    .low_seconds = (range_low), .high_seconds = (range_high), \
    .range_text = "seconds, " #range_low " to " #range_high
#define RANGE_choice(range_low, range_high, row_choices) .range_text = (row_choices), .choices = (row_choices)
#define RANGE_text(range_low, range_high, row_choices) .range_text = (row_choices)

const struct option_row option_rows[OPTION_COUNT] = {
#define OPTION(row_name, row_type, row_default, row_low, row_high, row_choices, row_doc) \
    {.name = PREFIX #row_name,                                                           \
     .type = OPTION_TYPE_##row_type,                                                     \
     .type_name = #row_type,                                                             \
     .default_text = row_default,                                                        \
     RANGE_##row_type(row_low, row_high, row_choices),                                   \
     .doc = row_doc},
#include "base/options.def"
#undef OPTION
};

/* Written by read_environment, constant afterwards. */
static pthread_once_t is_read = PTHREAD_ONCE_INIT;
static struct option_value values[OPTION_COUNT];
static char unknown_names[UNKNOWN_MAX][UNKNOWN_NAME_BYTES];
static size_t n_unknown; /* may exceed UNKNOWN_MAX */

/* True from the end of the reading until somebody took them. */
_Atomic bool option_untold_problems;

static bool parse_value(const struct option_row *row, const char *text, struct option_value *value)
{
    int64_t integer = 0;
    double seconds = 0.0;
    int choice = 0;
    bool is_good = false;
    switch (row->type) {
    case OPTION_TYPE_int:
        is_good = option_parse_int(text, &integer) && integer >= row->low && integer <= row->high;
        break;
    case OPTION_TYPE_bytes:
        is_good = option_parse_bytes(text, &integer) && integer >= row->low && integer <= row->high;
        break;
    case OPTION_TYPE_seconds:
        is_good = option_parse_seconds(text, &seconds) && seconds >= row->low_seconds &&
                  seconds <= row->high_seconds;
        break;
    case OPTION_TYPE_choice:
        is_good = option_parse_choice(text, row->choices, &choice);
        integer = choice;
        break;
    case OPTION_TYPE_text:
        is_good = true;
        break;
    }
    if (!is_good || strlen(text) >= OPTION_VALUE_BYTES) {
        return false;
    }
    value->integer = integer;
    value->seconds = seconds;
    (void)snprintf(value->text, sizeof value->text, "%s", text);
    return true;
}

static void describe_range(const struct option_row *row, struct option_value *value)
{
    const char *kind = row->type == OPTION_TYPE_bytes ? "bytes, suffix K, M or G, " : "";
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
        value->source = OPTION_SOURCE_DEFAULT;
    } else if (parse_value(row, text, value)) {
        value->source = OPTION_SOURCE_ENVIRONMENT;
    } else {
        value->source = OPTION_SOURCE_BAD;
        (void)snprintf(value->bad_text, sizeof value->bad_text, "%s", text);
    }
}

static bool is_known(const char *name, size_t name_chars)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strlen(option_rows[i].name) == name_chars && memcmp(option_rows[i].name, name, name_chars) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_of_others(const char *entry)
{
    bool is_found = false;
    for (size_t i = 0; i < sizeof prefixes_of_others / sizeof prefixes_of_others[0]; i++) {
        is_found = is_found || strncmp(entry, prefixes_of_others[i], strlen(prefixes_of_others[i])) == 0;
    }
    return is_found;
}

static void collect_unknown_names(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        size_t name_chars = strcspn(*entry, "=");
        bool is_ours = strncmp(*entry, PREFIX, strlen(PREFIX)) == 0;
        if (!is_ours || is_of_others(*entry) || is_known(*entry, name_chars)) {
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
        read_value(&option_rows[i], &values[i]);
        has_problems = has_problems || values[i].source == OPTION_SOURCE_BAD;
    }
    /* Who set it wants to hear something: least of all shall the report of the bad value be lost. */
    if (values[OPTION_LOG].source == OPTION_SOURCE_BAD) {
        (void)parse_value(&option_rows[OPTION_LOG], "warn", &values[OPTION_LOG]);
    }
    collect_unknown_names();
    atomic_store(&option_untold_problems, has_problems || n_unknown > 0);
}

static const char *find_nearest_name(const char *name)
{
    const char *nearest = option_rows[0].name;
    for (size_t i = 1; i < OPTION_COUNT; i++) {
        if (name_distance(name, option_rows[i].name) < name_distance(name, nearest)) {
            nearest = option_rows[i].name;
        }
    }
    return nearest;
}

const struct option_value *option_values(void)
{
    (void)pthread_once(&is_read, read_environment);
    return values;
}

/* Problems --------------------------------------------------------------------------------------------- */

bool option_take_problems(void)
{
    return atomic_exchange(&option_untold_problems, false);
}

static void describe_bad_value(size_t id, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%s: bad value \"%s\" (wanted: %s), using %s%s", option_rows[id].name,
                   values[id].bad_text, values[id].range, id == OPTION_LOG ? "" : "the default ",
                   values[id].text);
}

bool option_describe_problem(size_t index, char *text, size_t bytes)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (values[i].source == OPTION_SOURCE_BAD && index-- == 0) {
            describe_bad_value(i, text, bytes);
            return true;
        }
    }
    if (index < n_unknown && index < UNKNOWN_MAX) {
        (void)snprintf(text, bytes, "unknown option %s in the environment, ignored; the nearest name is %s",
                       unknown_names[index], find_nearest_name(unknown_names[index]));
        return true;
    }
    if (index == UNKNOWN_MAX && n_unknown > UNKNOWN_MAX) {
        (void)snprintf(text, bytes, "%zu more unknown options in the environment, ignored",
                       n_unknown - UNKNOWN_MAX);
        return true;
    }
    return false;
}
