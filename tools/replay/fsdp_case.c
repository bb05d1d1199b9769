/* SPDX-License-Identifier: MIT */
/* Reads the JSON of a case. A table has the options; what is not in it is wrong. */
#include "fsdp_case.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "fsdp_reading.h"

bool fsdp_refuse(struct fsdp_reading *reading, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(reading->reason, sizeof reading->reason, format, arguments);
    va_end(arguments);
    return false;
}

/* Values ----------------------------------------------------------------------------------------------- */

bool fsdp_read_integer(struct fsdp_reading *reading, const json_t *value, int64_t low, int64_t high,
                       int64_t *number_out)
{
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high) {
        return fsdp_refuse(reading, "is not an integer from %" PRId64 " to %" PRId64, low, high);
    }
    *number_out = json_integer_value(value);
    return true;
}

static bool read_count(struct fsdp_reading *reading, int low, int *number_out)
{
    int64_t number = low;
    if (!fsdp_read_integer(reading, reading->value, low, FSDP_MAX_COUNT, &number)) {
        return false;
    }
    *number_out = (int)number;
    return true;
}

static bool read_real(struct fsdp_reading *reading, double *number_out)
{
    if (!json_is_number(reading->value)) {
        return fsdp_refuse(reading, "is not a number");
    }
    *number_out = json_number_value(reading->value);
    return true;
}

static bool read_dtype(struct fsdp_reading *reading, shoal_dtype *dtype_out)
{
    static const struct {
        const char *name;
        shoal_dtype dtype;
    } rows[] = {{"bfloat16", SHOAL_BF16}, {"float16", SHOAL_F16}, {"float32", SHOAL_F32}};
    const char *name = json_string_value(reading->value);
    for (size_t i = 0; name && i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *dtype_out = rows[i].dtype;
            return true;
        }
    }
    return fsdp_refuse(reading, "is not bfloat16, float16 or float32");
}

/* Options ---------------------------------------------------------------------------------------------- */

static bool read_world(struct fsdp_reading *reading)
{
    return read_count(reading, 1, &reading->self->n_ranks);
}

bool fsdp_read_ranks(struct fsdp_reading *reading, const json_t *value, struct fsdp_ranks *ranks_out)
{
    int64_t sizes[2] = {0};
    size_t n_dims = json_array_size(value);
    if (n_dims != 1 && n_dims != 2) {
        return fsdp_refuse(reading, "is not a list of one or two numbers");
    }
    for (size_t i = 0; i < n_dims; i++) {
        if (!fsdp_read_integer(reading, json_array_get(value, i), 1, FSDP_MAX_COUNT, &sizes[i])) {
            return false;
        }
    }
    *ranks_out = (struct fsdp_ranks){.n_replicas = n_dims == 2 ? (int)sizes[0] : 0,
                                     .n_shards = (int)sizes[n_dims - 1]};
    return true;
}

bool fsdp_read_flag(struct fsdp_reading *reading, bool *flag_out)
{
    *flag_out = json_is_true(reading->value);
    return json_is_boolean(reading->value) ? true : fsdp_refuse(reading, "is not true or false");
}

static bool read_mesh(struct fsdp_reading *reading)
{
    return fsdp_read_ranks(reading, reading->value, &reading->self->ranks);
}

static bool read_sizes(struct fsdp_reading *reading)
{
    struct fsdp_case *self = reading->self;
    size_t n_sizes = json_array_size(reading->value);
    if (n_sizes < 2 || n_sizes > FSDP_MAX_COUNT) {
        return fsdp_refuse(reading, "is not a list of at least two numbers");
    }
    self->sizes = calloc(n_sizes, sizeof self->sizes[0]);
    if (!self->sizes) {
        return fsdp_refuse(reading, "no memory");
    }
    self->n_layers = (int)n_sizes - 1;
    for (size_t i = 0; i < n_sizes; i++) {
        if (!fsdp_read_integer(reading, json_array_get(reading->value, i), 1, FSDP_MAX_SIZE,
                               &self->sizes[i])) {
            return false;
        }
    }
    return true;
}

static bool read_batch(struct fsdp_reading *reading)
{
    return fsdp_read_integer(reading, reading->value, 1, FSDP_MAX_SIZE, &reading->self->batch);
}

static bool read_steps(struct fsdp_reading *reading)
{
    return read_count(reading, 0, &reading->self->n_steps);
}

static bool read_micro(struct fsdp_reading *reading)
{
    return read_count(reading, 1, &reading->self->n_micro);
}

static bool read_lr(struct fsdp_reading *reading)
{
    return read_real(reading, &reading->self->lr);
}

static bool read_opt(struct fsdp_reading *reading)
{
    const char *name = json_string_value(reading->value);
    if (!name || (strcmp(name, "sgd") != 0 && strcmp(name, "adamw") != 0)) {
        return fsdp_refuse(reading, "is not sgd or adamw");
    }
    reading->self->is_adamw = strcmp(name, "adamw") == 0;
    return true;
}

static bool read_param_dtype(struct fsdp_reading *reading)
{
    return read_dtype(reading, &reading->self->param_dtype);
}

static bool read_reduce_dtype(struct fsdp_reading *reading)
{
    return read_dtype(reading, &reading->self->reduce_dtype);
}

static bool read_reshard(struct fsdp_reading *reading)
{
    struct fsdp_case *self = reading->self;
    if (json_is_boolean(reading->value)) {
        self->reshard = json_is_true(reading->value) ? SHOAL_RESHARD_ALWAYS : SHOAL_RESHARD_NEVER;
        return true;
    }
    if (!json_is_integer(reading->value)) {
        return fsdp_refuse(reading, "is not true, false or an integer");
    }
    self->reshard = SHOAL_RESHARD_PARTLY;
    return read_count(reading, 1, &self->reshard_ranks);
}

static bool read_tied(struct fsdp_reading *reading)
{
    return fsdp_read_flag(reading, &reading->self->is_tied);
}

static bool read_accum(struct fsdp_reading *reading)
{
    const char *name = json_string_value(reading->value);
    if (!name || (strcmp(name, "no_sync") != 0 && strcmp(name, "no_all_reduce") != 0)) {
        return fsdp_refuse(reading, "is not no_sync or no_all_reduce");
    }
    reading->self->accumulation = strcmp(name, "no_sync") == 0 ? FSDP_NO_SYNC : FSDP_NO_ALL_REDUCE;
    return true;
}

static bool read_clip(struct fsdp_reading *reading)
{
    reading->self->clips = true;
    return read_real(reading, &reading->self->max_norm);
}

static bool read_divide(struct fsdp_reading *reading)
{
    if (!read_real(reading, &reading->self->divide)) {
        return false;
    }
    return reading->self->divide > 0 ? true : fsdp_refuse(reading, "is not larger than 0");
}

static bool keep_list(struct fsdp_reading *reading, const json_t **list)
{
    *list = reading->value;
    return json_is_array(reading->value) ? true : fsdp_refuse(reading, "is not a list of names");
}

static bool read_frozen(struct fsdp_reading *reading)
{
    return keep_list(reading, &reading->frozen);
}

static bool read_cut_along_1(struct fsdp_reading *reading)
{
    return keep_list(reading, &reading->cut_along_1);
}

static const struct fsdp_option option_rows[] = {
    {"world", read_world, true},
    {"mesh", read_mesh, true},
    {"sizes", read_sizes, true},
    {"batch", read_batch, true},
    {"steps", read_steps, true},
    {"lr", read_lr, true},
    {"opt", read_opt, true},
    {"param_dtype", read_param_dtype, false},
    {"reduce_dtype", read_reduce_dtype, false},
    {"reshard", read_reshard, false},
    {"shard1", read_cut_along_1, false},
    {"frozen", read_frozen, false},
    {"tied", read_tied, false},
    {"micro", read_micro, false},
    {"accum", read_accum, false},
    {"clip", read_clip, false},
    {"divide", read_divide, false},
    {"name", NULL, false},
    {"port", NULL, false},
    {"seed", NULL, false},
};
#define N_OPTIONS (sizeof option_rows / sizeof option_rows[0])

static const struct fsdp_option *find_option(const char *key)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strcmp(key, option_rows[i].key) == 0) {
            return &option_rows[i];
        }
    }
    return fsdp_find_more(key);
}

void fsdp_add_wrong_option(struct fsdp_checks *checks, const char *key, const char *format, ...)
{
    char name[128];
    char reason[FSDP_REASON_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    (void)snprintf(name, sizeof name, "option \"%.100s\"", key);
    fsdp_checks_add_wrong(checks, name, "%s", reason);
}

static bool is_absent(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return !value || json_is_null(value);
}

static bool read_options(const json_t *json, struct fsdp_reading *reading, struct fsdp_checks *checks)
{
    bool is_right = true;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        const struct fsdp_option *row = find_option(key);
        reading->value = value;
        if (!row) {
            fsdp_add_wrong_option(checks, key, "is unknown");
            is_right = false;
        } else if (row->read && !json_is_null(value) && !row->read(reading)) {
            fsdp_add_wrong_option(checks, key, "%s", reading->reason);
            is_right = false;
        }
    }
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (option_rows[i].is_required && is_absent(json, option_rows[i].key)) {
            fsdp_add_wrong_option(checks, option_rows[i].key, "is missing");
            is_right = false;
        }
    }
    return is_right;
}

/* Names ------------------------------------------------------------------------------------------------ */

bool fsdp_case_shares_weight(const struct fsdp_case *self, int layer)
{
    return self->is_tied && layer == 2;
}

static struct fsdp_name *add_name(struct fsdp_case *self, int layer, const char *kind)
{
    struct fsdp_name *name = &self->names[self->n_names++];
    *name = (struct fsdp_name){.layer = layer, .n_dims = 1};
    (void)snprintf(name->text, sizeof name->text, "layers.%d.%s", layer, kind);
    name->shape[0] = self->sizes[layer + 1];
    return name;
}

static bool list_names(struct fsdp_case *self)
{
    self->names = calloc(2 * (size_t)self->n_layers + 1, sizeof self->names[0]);
    if (!self->names) {
        return false;
    }
    for (int i = 0; i < self->n_layers; i++) {
        if (!fsdp_case_shares_weight(self, i)) {
            struct fsdp_name *weight = add_name(self, i, "weight");
            weight->is_weight = true;
            weight->n_dims = 2;
            weight->shape[1] = self->sizes[i];
        }
        (void)add_name(self, i, "bias");
    }
    struct fsdp_name *scale = add_name(self, self->n_layers - 1, "scale");
    scale->layer = -1;
    (void)snprintf(scale->text, sizeof scale->text, "scale");
    return true;
}

struct fsdp_name *fsdp_find_name(const struct fsdp_case *self, const char *text)
{
    for (int i = 0; text && i < self->n_names; i++) {
        if (strcmp(self->names[i].text, text) == 0) {
            return &self->names[i];
        }
    }
    return NULL;
}

static bool mark_names(struct fsdp_case *self, const char *key, const json_t *list, bool is_frozen,
                       struct fsdp_checks *checks)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        struct fsdp_name *name = fsdp_find_name(self, text);
        if (!name) {
            fsdp_add_wrong_option(checks, key, "there is no parameter \"%.80s\"", text ? text : "");
            return false;
        }
        name->is_frozen = name->is_frozen || is_frozen;
        name->cut_dim = is_frozen ? name->cut_dim : 1;
    }
    return true;
}

/* What options mean together. */
static bool check_together(const struct fsdp_case *self, struct fsdp_checks *checks)
{
    int64_t n_replicas = self->ranks.n_replicas > 0 ? self->ranks.n_replicas : 1;
    if (n_replicas * self->ranks.n_shards != self->n_ranks) {
        fsdp_add_wrong_option(checks, "mesh", "has %" PRId64 " ranks, but the world has %d",
                              n_replicas * self->ranks.n_shards, self->n_ranks);
        return false;
    }
    bool fits = self->n_layers >= 3 && self->sizes[1] == self->sizes[2] && self->sizes[2] == self->sizes[3];
    if (self->is_tied && !fits) {
        fsdp_add_wrong_option(checks, "tied", "layers 1 and 2 cannot have the same weight");
        return false;
    }
    return true;
}

static bool read_case(const json_t *json, struct fsdp_case *self, struct fsdp_checks *checks)
{
    struct fsdp_reading reading = {.self = self};
    if (!read_options(json, &reading, checks) || !check_together(self, checks)) {
        return false;
    }
    self->units = calloc((size_t)self->n_layers + 1, sizeof self->units[0]);
    if (!self->units || !list_names(self)) {
        checks->has_no_memory = true;
        return false;
    }
    return mark_names(self, "frozen", reading.frozen, true, checks) &&
           mark_names(self, "shard1", reading.cut_along_1, false, checks) &&
           fsdp_apply_names(&reading, checks) && fsdp_apply_units(&reading, checks);
}

bool fsdp_case_read(const json_t *json, bool is_one_of_many, struct fsdp_case *self,
                    struct fsdp_checks *checks)
{
    *self =
        (struct fsdp_case){.n_micro = 1, .reshard = SHOAL_RESHARD_ALWAYS, .is_one_of_many = is_one_of_many};
    return read_case(json, self, checks);
}

void fsdp_case_free(struct fsdp_case *self)
{
    free(self->sizes);
    free(self->units);
    free(self->names);
}
