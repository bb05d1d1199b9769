/* SPDX-License-Identifier: MIT */
/* Options of runs with more settings: of reductions, of communication, and of single units and parameters. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fsdp_reading.h"

/* Values ----------------------------------------------------------------------------------------------- */

bool fsdp_read_word(struct fsdp_reading *reading, const char *const *words, size_t n_words,
                    size_t *number_out)
{
    const char *text = json_string_value(reading->value);
    char known[128] = "";
    for (size_t i = 0; i < n_words; i++) {
        if (text && strcmp(text, words[i]) == 0) {
            *number_out = i;
            return true;
        }
        size_t length = strlen(known);
        (void)snprintf(known + length, sizeof known - length, "%s%s", i > 0 ? " or " : "", words[i]);
    }
    return fsdp_refuse(reading, "is not %s", known);
}

static bool keep_object(struct fsdp_reading *reading, const json_t **object)
{
    *object = reading->value;
    return json_is_object(reading->value) ? true : fsdp_refuse(reading, "is not an object");
}

/* Options ---------------------------------------------------------------------------------------------- */

static bool read_error(struct fsdp_reading *reading)
{
    reading->self->is_refused = true;
    return json_is_string(reading->value) ? true : fsdp_refuse(reading, "is not a text");
}

static bool read_force_sum(struct fsdp_reading *reading)
{
    return fsdp_read_flag(reading, &reading->self->force_sum);
}

static bool read_divides(struct fsdp_reading *reading)
{
    return keep_object(reading, &reading->divides);
}

static bool read_custom(struct fsdp_reading *reading)
{
    static const char *const words[] = {"plain", "premul"};
    size_t number = 0;
    bool is_known = fsdp_read_word(reading, words, 2, &number);
    reading->self->custom = number == 0 ? FSDP_CUSTOM_COMM : FSDP_CUSTOM_PREMUL;
    return is_known;
}

static bool read_hook(struct fsdp_reading *reading)
{
    static const char *const words[] = {"half", "all_reduce"};
    size_t number = 0;
    bool is_known = fsdp_read_word(reading, words, 2, &number);
    reading->self->hook = number == 0 ? FSDP_HALVE : FSDP_AVERAGE_GROUPS;
    return is_known;
}

static bool read_gather(struct fsdp_reading *reading)
{
    static const char *const words[] = {"bf16", "int8"};
    size_t number = 0;
    bool is_known = fsdp_read_word(reading, words, 2, &number);
    reading->self->gather = number == 0 ? FSDP_GATHER_BF16 : FSDP_GATHER_INT8;
    return is_known;
}

static bool read_meshes(struct fsdp_reading *reading)
{
    reading->self->has_meshes = true;
    return keep_object(reading, &reading->meshes);
}

static bool read_by_parameter(struct fsdp_reading *reading)
{
    const json_t *meshes;
    reading->self->is_by_parameter = true;
    return keep_object(reading, &meshes);
}

static bool read_cube(struct fsdp_reading *reading)
{
    return keep_object(reading, &reading->cubes);
}

static bool read_shard(struct fsdp_reading *reading)
{
    return keep_object(reading, &reading->cuts);
}

static bool read_keep(struct fsdp_reading *reading)
{
    return fsdp_read_flag(reading, &reading->self->keeps_gathered);
}

static bool read_is_last(struct fsdp_reading *reading)
{
    return fsdp_read_flag(reading, &reading->self->says_last);
}

static bool read_no_sync_units(struct fsdp_reading *reading)
{
    reading->no_sync_units = reading->value;
    return json_is_array(reading->value) ? true : fsdp_refuse(reading, "is not a list of names");
}

/* What rank 0 issued is told, and not compared: the order is that of PyTorch's prefetching. */
static bool read_calls(struct fsdp_reading *reading)
{
    const json_t *calls;
    return keep_object(reading, &calls);
}

static const struct fsdp_option more_rows[] = {
    {"error", read_error, false},
    {"force_sum", read_force_sum, false},
    {"divides", read_divides, false},
    {"custom", read_custom, false},
    {"hook", read_hook, false},
    {"gather", read_gather, false},
    {"meshes", read_meshes, false},
    {"by_parameter", read_by_parameter, false},
    {"cube", read_cube, false},
    {"shard", read_shard, false},
    {"keep", read_keep, false},
    {"is_last", read_is_last, false},
    {"no_sync_units", read_no_sync_units, false},
    {"calls", read_calls, false},
};

const struct fsdp_option *fsdp_find_more(const char *key)
{
    for (size_t i = 0; i < sizeof more_rows / sizeof more_rows[0]; i++) {
        if (strcmp(key, more_rows[i].key) == 0) {
            return &more_rows[i];
        }
    }
    return NULL;
}

/* Parameters ------------------------------------------------------------------------------------------- */

/* "1": 3 makes layers.1.weight [3, out / 3, in]. */
static bool apply_cube(struct fsdp_reading *reading, const char *layer, const json_t *value,
                       struct fsdp_checks *checks)
{
    char text[FSDP_NAME_BYTES];
    int64_t n_parts = 1;
    (void)snprintf(text, sizeof text, "layers.%.20s.weight", layer);
    struct fsdp_name *name = fsdp_find_name(reading->self, text);
    if (!name) {
        fsdp_add_wrong_option(checks, "cube", "there is no parameter \"%s\"", text);
        return false;
    }
    if (!fsdp_read_integer(reading, value, 1, name->shape[0], &n_parts)) {
        fsdp_add_wrong_option(checks, "cube", "%s: %s", layer, reading->reason);
        return false;
    }
    if (name->shape[0] % n_parts != 0) {
        fsdp_add_wrong_option(checks, "cube", "%s has %" PRId64 " rows, which %" PRId64 " does not divide",
                              text, name->shape[0], n_parts);
        return false;
    }
    name->n_dims = 3;
    name->shape[2] = name->shape[1];
    name->shape[1] = name->shape[0] / n_parts;
    name->shape[0] = n_parts;
    return true;
}

static bool apply_cut(struct fsdp_reading *reading, const char *text, const json_t *value,
                      struct fsdp_checks *checks)
{
    struct fsdp_name *name = fsdp_find_name(reading->self, text);
    int64_t dim = 0;
    if (!name) {
        fsdp_add_wrong_option(checks, "shard", "there is no parameter \"%.80s\"", text);
        return false;
    }
    if (!fsdp_read_integer(reading, value, 0, name->n_dims - 1, &dim)) {
        fsdp_add_wrong_option(checks, "shard", "%s: %s", text, reading->reason);
        return false;
    }
    name->cut_dim = (int)dim;
    return true;
}

typedef bool (*apply_function)(struct fsdp_reading *reading, const char *key, const json_t *value,
                               struct fsdp_checks *checks);

static bool apply_each(struct fsdp_reading *reading, const json_t *object, apply_function apply,
                       struct fsdp_checks *checks)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!apply(reading, key, value, checks)) {
            return false;
        }
    }
    return true;
}

bool fsdp_apply_names(struct fsdp_reading *reading, struct fsdp_checks *checks)
{
    return apply_each(reading, reading->cubes, apply_cube, checks) &&
           apply_each(reading, reading->cuts, apply_cut, checks);
}

/* Units ------------------------------------------------------------------------------------------------ */

/* "layers.1"; of tied layers the first names the unit of both. */
static struct fsdp_unit_case *find_unit(const struct fsdp_case *self, const char *text)
{
    char name[32];
    for (int i = 0; text && i < self->n_layers; i++) {
        (void)snprintf(name, sizeof name, "layers.%d", i);
        if (strcmp(text, name) == 0 && !fsdp_case_shares_weight(self, i)) {
            return &self->units[i];
        }
    }
    return NULL;
}

/* [R, S] with R * S ranks are replicas of shards; [N, S], of N ranks, groups of S neighbours. */
static bool read_unit_ranks(struct fsdp_reading *reading, const char *key, const json_t *value,
                            struct fsdp_ranks *ranks_out, struct fsdp_checks *checks)
{
    int n_ranks = reading->self->n_ranks;
    struct fsdp_ranks ranks;
    if (!fsdp_read_ranks(reading, value, &ranks)) {
        fsdp_add_wrong_option(checks, "meshes", "\"%.40s\": %s", key, reading->reason);
        return false;
    }
    int64_t n_replicas = ranks.n_replicas > 0 ? ranks.n_replicas : 1;
    if (n_replicas * ranks.n_shards != n_ranks) {
        if (n_replicas != n_ranks || n_ranks % ranks.n_shards != 0) {
            fsdp_add_wrong_option(
                checks, "meshes",
                "\"%.40s\": [%d, %d] is neither replicas of shards of %d ranks nor groups of them", key,
                ranks.n_replicas, ranks.n_shards, n_ranks);
            return false;
        }
        ranks = (struct fsdp_ranks){.n_shards = ranks.n_shards, .is_apart = true};
    }
    *ranks_out = ranks;
    return true;
}

static bool apply_mesh(struct fsdp_reading *reading, const char *key, const json_t *value,
                       struct fsdp_checks *checks)
{
    struct fsdp_unit_case *unit = find_unit(reading->self, key);
    if (key[0] == '\0') {
        return true; /* was applied to all before */
    }
    if (!unit) {
        fsdp_add_wrong_option(checks, "meshes", "there is no unit \"%.40s\"", key);
        return false;
    }
    return read_unit_ranks(reading, key, value, &unit->ranks, checks);
}

static bool apply_divide(struct fsdp_reading *reading, const char *key, const json_t *value,
                         struct fsdp_checks *checks)
{
    struct fsdp_unit_case *unit = find_unit(reading->self, key);
    if (!unit || !json_is_number(value) || json_number_value(value) <= 0) {
        fsdp_add_wrong_option(checks, "divides",
                              unit ? "\"%.40s\" is not larger than 0" : "there is no unit \"%.40s\"", key);
        return false;
    }
    unit->divide = json_number_value(value);
    return true;
}

static bool apply_no_sync(struct fsdp_reading *reading, struct fsdp_checks *checks)
{
    const struct fsdp_case *self = reading->self;
    if (!reading->no_sync_units) {
        return true;
    }
    if (self->accumulation != FSDP_NO_SYNC) {
        fsdp_add_wrong_option(checks, "no_sync_units", "needs accum no_sync");
        return false;
    }
    for (int i = 0; i <= self->n_layers; i++) {
        self->units[i].no_sync = false;
    }
    for (size_t i = 0; i < json_array_size(reading->no_sync_units); i++) {
        const char *text = json_string_value(json_array_get(reading->no_sync_units, i));
        struct fsdp_unit_case *unit =
            text && text[0] == '\0' ? &self->units[self->n_layers] : find_unit(self, text);
        if (!unit) {
            fsdp_add_wrong_option(checks, "no_sync_units", "there is no unit \"%.40s\"", text ? text : "");
            return false;
        }
        unit->no_sync = true;
    }
    return true;
}

bool fsdp_apply_units(struct fsdp_reading *reading, struct fsdp_checks *checks)
{
    struct fsdp_case *self = reading->self;
    struct fsdp_unit_case unit = {
        .ranks = self->ranks, .divide = self->divide, .no_sync = self->accumulation == FSDP_NO_SYNC};
    const json_t *others = json_object_get(reading->meshes, "");
    if (others && !read_unit_ranks(reading, "", others, &unit.ranks, checks)) {
        return false;
    }
    for (int i = 0; i <= self->n_layers; i++) {
        self->units[i] = unit;
    }
    return apply_each(reading, reading->meshes, apply_mesh, checks) &&
           apply_each(reading, reading->divides, apply_divide, checks) && apply_no_sync(reading, checks);
}

/* What is there ---------------------------------------------------------------------------------------- */

const char *fsdp_case_find_missing(const struct fsdp_case *self)
{
    return self->is_by_parameter ? "mesh for each parameter" : NULL;
}

bool fsdp_case_has_params(const struct fsdp_case *self, int step)
{
    bool is_new = self->has_meshes || self->is_by_parameter || self->gather != FSDP_PLAIN_GATHER;
    return !self->is_one_of_many || (is_new && step == self->n_steps - 1);
}
