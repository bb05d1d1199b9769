/* SPDX-License-Identifier: MIT */
/* Reading options. Whoever reads one makes the log report what was wrong with the environment. */
#include "base/options.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/log.h"
#include "base/option_values.h"
#include "base/struct_size.h"
#include "shoal/option.h"

static const struct option_value *get_value(enum option_id id)
{
    assert((unsigned)id < OPTION_COUNT);
    const struct option_value *values = option_values();
    if (option_has_problems()) {
        log_tell_problems();
    }
    return &values[id];
}

int64_t option_int(enum option_id id)
{
    assert(option_rows[id].type == OPTION_TYPE_int || option_rows[id].type == OPTION_TYPE_bytes);
    return get_value(id)->integer;
}

double option_seconds(enum option_id id)
{
    assert(option_rows[id].type == OPTION_TYPE_seconds);
    return get_value(id)->seconds;
}

double option_seconds_most(enum option_id id)
{
    assert(option_rows[id].type == OPTION_TYPE_seconds);
    return option_rows[id].high_seconds;
}

int option_choice(enum option_id id)
{
    assert(option_rows[id].type == OPTION_TYPE_choice);
    return (int)get_value(id)->integer;
}

const char *option_text(enum option_id id)
{
    assert(option_rows[id].type == OPTION_TYPE_text);
    return get_value(id)->text;
}

bool shoal_option_get(size_t index, shoal_option_info *info_out)
{
    static const char *const source_names[] = {
        [OPTION_SOURCE_DEFAULT] = "default",
        [OPTION_SOURCE_ENVIRONMENT] = "environment",
        [OPTION_SOURCE_BAD] = "default (bad value in environment)",
    };
    if (index >= OPTION_COUNT || !info_out) {
        return false;
    }
    const struct option_value *value = get_value((enum option_id)index);
    const shoal_option_info info = {
        .name = option_rows[index].name,
        .type = option_rows[index].type_name,
        .range = value->range,
        .default_value = option_rows[index].default_text,
        .value = value->text,
        .source = index == OPTION_LOG && value->source == OPTION_SOURCE_BAD ? "bad value in environment"
                                                                            : source_names[value->source],
        .doc = option_rows[index].doc,
    };
    return struct_size_write("option_get: info", info_out, sizeof(size_t), &info, sizeof(info)) == SHOAL_OK;
}
