/* SPDX-License-Identifier: MIT */
/* Writes the purposes of FSDP's collectives: numbers that ranks compare, and words for error texts. */
#include "parallel/fsdp/engine/agree/purpose.h"

#include <string.h>

#include "base/label.h"
#include "base/text.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"

struct purpose fsdp_unit_purpose(const struct fsdp_unit *unit, enum purpose_id id)
{
    return (struct purpose){.id = id,
                            .root = unit->domain->root,
                            .unit = (uint32_t)unit->number + 1,
                            .words = unit->name,
                            .label = label_of(unit->name),
                            .bytes = unit->gather.bytes};
}

struct purpose fsdp_context_purpose(const struct fsdp_context *context, enum purpose_id id)
{
    /* The root of modules is the first unit, and named after its module. */
    bool is_module = context->n_units > 0 && context->units[0]->watch;
    const char *words = is_module ? context->units[0]->name : "the context";
    return (struct purpose){
        .id = id, .root = context->domains[0]->root, .words = words, .label = label_of(words)};
}

/* Settings of a unit that change what a reduction means, and that may change between steps. */
enum {
    SETTING_NO_ALL_REDUCE = 1,
    SETTING_HOOK = 2,
    SETTING_SUM = 4,
    SETTING_UNUSED = 8,
    SETTING_CUSTOM = 16,
    SETTING_ADDS = 32
};

static const struct setting {
    uint32_t bit;
    const char *words;
} settings[] = {{SETTING_NO_ALL_REDUCE, " not over replicas"},
                {SETTING_HOOK, " with an all-reduce hook"},
                {SETTING_SUM, " as a sum"},
                {SETTING_UNUSED, " with unused parameters"},
                {SETTING_CUSTOM, " by a custom call"},
                {SETTING_ADDS, " onto gradients that were not cleared"}};

/* Whether the reduced gradients are added to gradients that the program has not cleared. Only told with the explicit
   calls, where one call clears the gradients of all parameters. */
static bool adds_to_gradients(const struct fsdp_unit *unit)
{
    bool adds = false;
    for (size_t i = 0; !unit->watch && i < unit->n_params; i++) {
        adds = adds || (unit->params[i].is_reduced && unit->params[i].has_grad);
    }
    return adds;
}

static uint32_t settings_of(const struct fsdp_unit *unit)
{
    uint32_t bits = unit->config.all_reduce ? 0 : SETTING_NO_ALL_REDUCE;
    bits |= unit->hooks.all_reduce ? SETTING_HOOK : 0;
    bits |= unit->config.force_sum ? SETTING_SUM : 0;
    bits |= unit->config.reduce_unused ? SETTING_UNUSED : 0;
    bits |= adds_to_gradients(unit) ? SETTING_ADDS : 0;
    return bits | (unit->hooks.reduce_scatter.call ? SETTING_CUSTOM : 0);
}

/* The part of a purpose's argument above the bits of settings: how many newer forward passes are pending. */
static uint32_t newer_forwards(const struct fsdp_context *context)
{
    return (uint32_t)context->backward.n_newer << 8;
}

/* " for an older forward pass (1 newer left)" */
static void add_newer(struct text *text, const struct fsdp_context *context)
{
    if (context->backward.n_newer > 0) {
        text_add(text, " for an older forward pass (%zu newer left)", context->backward.n_newer);
    }
}

/* Gradients of parameters that were frozen since the forward pass are reduced and then dropped. Ranks that freeze
   different ones must not succeed: only some of them would update their shards. */
static bool gets_gradient(const struct fsdp_param *param)
{
    return param->is_reduced && !param->is_dropped;
}

/* "layers.3 as a sum without weight, bias (frozen)" */
static void write_words(const struct fsdp_unit *unit, uint32_t bits, char *words)
{
    const char *between = " without ";
    struct text text = text_begin(words, PURPOSE_WORDS_BYTES);
    text_add(&text, "%.40s", unit->name);
    add_newer(&text, unit->context);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        text_add(&text, "%s", bits & settings[i].bit ? settings[i].words : "");
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (!gets_gradient(param)) {
            text_add_name(&text, between, param->name);
            text_add(&text, "%s", param->is_dropped ? " (frozen)" : "");
            between = ", ";
        }
    }
}

/* Writes which parameters get a gradient, as one bit each, and returns how many numbers that are. Returns 0 in the usual
   case that all do. */
static size_t list_set(const struct fsdp_unit *unit, int64_t *set)
{
    size_t n_words = (unit->n_params + 63) / 64;
    size_t n_set = 0;
    memset(set, 0, (2 + n_words) * sizeof *set);
    set[0] = DETAIL_SET;
    set[1] = (int64_t)n_words;
    for (size_t i = 0; i < unit->n_params; i++) {
        uint64_t bit = (uint64_t)gets_gradient(&unit->params[i]) << (i % 64);
        set[2 + i / 64] = (int64_t)((uint64_t)set[2 + i / 64] | bit);
        n_set += gets_gradient(&unit->params[i]);
    }
    return n_set == unit->n_params ? 0 : 2 + n_words;
}

struct purpose fsdp_reduction_purpose(struct fsdp_unit *unit, enum purpose_id id)
{
    struct purpose purpose = fsdp_unit_purpose(unit, id);
    int64_t *details = unit->grads.purpose_details;
    purpose.argument = settings_of(unit) | newer_forwards(unit->context);
    purpose.details = details;
    if (unit->config.divide_factor != 0.0) {
        details[0] = DETAIL_REAL;
        memcpy(&details[1], &unit->config.divide_factor, sizeof unit->config.divide_factor);
        purpose.n_details = 2;
    }
    purpose.n_details += list_set(unit, details + purpose.n_details);
    if (purpose.n_details > 0 || purpose.argument != 0) {
        write_words(unit, purpose.argument, unit->grads.purpose_words);
        purpose.words = unit->grads.purpose_words;
    }
    return purpose;
}

struct purpose fsdp_reduction_mark(const struct fsdp_unit *unit, enum purpose_id id)
{
    struct purpose purpose = fsdp_unit_purpose(unit, id);
    purpose.argument = newer_forwards(unit->context);
    return purpose;
}

/* Each replica counts models on its own group of shards, and one of them may have more than the others. */
struct purpose fsdp_replica_purpose(const struct fsdp_mesh *mesh, struct purpose purpose)
{
    purpose.root = mesh->replica_root;
    return purpose;
}

/* Passes ------------------------------------------------------------------------------------------------- */

static bool reduces(const struct fsdp_context *context, bool over_replicas)
{
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        if (unit->config.sync && (unit->config.all_reduce || !over_replicas)) {
            return true;
        }
    }
    return false;
}

static bool has_replicas(const struct fsdp_context *context)
{
    bool has = false;
    for (size_t i = 0; i < context->n_domains; i++) {
        has = has || context->domains[i]->mesh.replicate;
    }
    return has;
}

/* What the backward pass does with gradients. It must be the same on all ranks. */
enum {
    PASS_KEEPS = 1,
    PASS_KEEPS_OVER_REPLICAS = 2,
    PASS_IS_NOT_LAST = 4
};

static const struct {
    uint32_t bit;
    const char *words;
} passes[] = {{PASS_KEEPS, ", which reduces no gradients (set_sync)"},
              {PASS_KEEPS_OVER_REPLICAS, ", which reduces no gradients over replicas (set_all_reduce)"},
              {PASS_IS_NOT_LAST, ", which is not the last (set_is_last_backward)"}};

static uint32_t pass_of(const struct fsdp_context *context)
{
    uint32_t pass = context->backward.is_not_last ? PASS_IS_NOT_LAST : 0;
    if (!reduces(context, false)) {
        return pass | PASS_KEEPS;
    }
    return has_replicas(context) && !reduces(context, true) ? pass | PASS_KEEPS_OVER_REPLICAS : pass;
}

struct purpose fsdp_pass_purpose(const struct fsdp_context *context, enum purpose_id id, char *words)
{
    struct purpose purpose = fsdp_context_purpose(context, id);
    struct text text = text_begin(words, PURPOSE_WORDS_BYTES);
    text_add(&text, "%.32s", purpose.words);
    add_newer(&text, context);
    purpose.argument = pass_of(context);
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        text_add(&text, "%s", purpose.argument & passes[i].bit ? passes[i].words : "");
    }
    purpose.words = words;
    purpose.argument |= newer_forwards(context);
    return purpose;
}
