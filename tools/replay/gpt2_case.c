/* SPDX-License-Identifier: MIT */
/* Reads the JSON of a case. A table has the options; others are passed over: if one matters, results are wrong. */
#include "gpt2_case.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "files.h"
#include "shoal_nn/modules.h"

#define MAX_SIZE (INT64_C(1) << 20)

/* Options: whole numbers from 1 on, or real ones. */
struct option {
    const char *key;
    bool is_real;
    size_t offset;
};

#define WHOLE(key, field)                             \
    {                                                 \
        key, false, offsetof(struct gpt2_case, field) \
    }
#define REAL(key, field)                             \
    {                                                \
        key, true, offsetof(struct gpt2_case, field) \
    }

static const struct option options[] = {
    WHOLE("layers", n_layers), WHOLE("width", width), WHOLE("heads", n_heads),   WHOLE("vocab", vocabulary),
    WHOLE("context", context), WHOLE("batch", batch), WHOLE("tokens", n_tokens), REAL("lr", lr),
    REAL("beta1", beta1),      REAL("beta2", beta2),  REAL("eps", eps),          REAL("decay", weight_decay)};

enum {
    N_OPTIONS = sizeof options / sizeof options[0]
};

static void add_wrong(struct fsdp_checks *checks, const char *key, const char *reason)
{
    char name[GPT2_NAME_BYTES];
    (void)snprintf(name, sizeof name, "option \"%.80s\"", key);
    fsdp_checks_add_wrong(checks, name, "%s", reason);
}

static bool read_option(const struct option *option, const json_t *value, struct gpt2_case *self,
                        struct fsdp_checks *checks)
{
    char *field = (char *)self + option->offset;
    int64_t whole = json_integer_value(value);
    double real = json_number_value(value);
    if (!value || json_is_null(value)) {
        add_wrong(checks, option->key, "is missing");
        return false;
    }
    if (option->is_real ? !json_is_number(value) : !json_is_integer(value) || whole < 1 || whole > MAX_SIZE) {
        add_wrong(checks, option->key,
                  option->is_real ? "is not a number" : "is not an integer from 1 to 2^20");
        return false;
    }
    memcpy(field, option->is_real ? (const void *)&real : (const void *)&whole, sizeof whole);
    return true;
}

static bool read_options(const json_t *json, struct gpt2_case *self, struct fsdp_checks *checks)
{
    bool is_right = true;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        is_right = read_option(&options[i], json_object_get(json, options[i].key), self, checks) && is_right;
    }
    return is_right;
}

/* Names ------------------------------------------------------------------------------------------------ */

shoal_status gpt2_case_make(const struct gpt2_case *self, shoal_device device, shoal_module **module_out)
{
    shoal_nn_gpt_options gpt = SHOAL_NN_GPT_OPTIONS_INIT;
    gpt.n_layers = self->n_layers;
    gpt.width = self->width;
    gpt.n_heads = self->n_heads;
    gpt.context = self->context;
    gpt.vocabulary = self->vocabulary;
    gpt.device = device;
    return shoal_nn_gpt_create(&gpt, module_out);
}

static shoal_status add_name(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct gpt2_case *self = context;
    (void)next;
    if (self->n_names == self->capacity) {
        size_t capacity = self->capacity > 0 ? 2 * self->capacity : 64;
        struct gpt2_name *names = realloc(self->names, capacity * sizeof *names);
        if (!names) {
            return SHOAL_ERR_NO_MEMORY;
        }
        self->names = names;
        self->capacity = capacity;
    }
    struct gpt2_name *name = &self->names[self->n_names++];
    *name = (struct gpt2_name){.n_dims = shoal_tensor_n_dims(entry->tensor)};
    (void)snprintf(name->text, sizeof name->text, "%s", entry->path);
    memcpy(name->shape, shoal_tensor_shape(entry->tensor), (size_t)name->n_dims * sizeof name->shape[0]);
    return SHOAL_OK;
}

static shoal_status list_names(struct gpt2_case *self)
{
    shoal_module *model = NULL;
    TRY(gpt2_case_make(self, SHOAL_META, &model));
    shoal_status status = shoal_module_walk(model, SHOAL_WALK_PARAMETERS, add_name, self);
    shoal_module_unref(model);
    return status;
}

bool gpt2_case_read(const char *text, struct gpt2_case *self, struct fsdp_checks *checks)
{
    *self = (struct gpt2_case){0};
    json_t *json = replay_read_case(text, checks);
    if (!json) {
        return false;
    }
    bool is_right = read_options(json, self, checks);
    json_decref(json);
    if (is_right && list_names(self) != SHOAL_OK) {
        fsdp_checks_add_wrong(checks, "case", "%s", shoal_error_text());
        return false;
    }
    return is_right;
}

void gpt2_case_free(struct gpt2_case *self)
{
    free(self->names);
}
