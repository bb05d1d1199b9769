/* SPDX-License-Identifier: MIT */
/*
 * Gradient scalers. An unscale first checks all gradients of this rank, then asks the other ranks, and multiplies only
 * when all ranks agree that they can. So a call that fails has changed nothing on any rank, unless a device fails while it
 * multiplies.
 */
#include "optim/scaler.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/struct_size.h"
#include "optim/named_items.h"
#include "optim/optim.h"
#include "shoal/fully_shard.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "common/try.h"

#define MIN_SCALE 0x1p-126
#define MAX_SCALE 0x1p126

/* Making ----------------------------------------------------------------------------------------------- */

static bool is_scale(double scale)
{
    return scale >= MIN_SCALE && scale <= MAX_SCALE;
}

static shoal_status check_scale(const char *call, double scale)
{
    return is_scale(scale)
               ? SHOAL_OK
               : shoal_fail(SHOAL_ERR_INVALID, "%s: scale: %g is not within 2^-126..2^126", call, scale);
}

static shoal_status check_options(const char *call, const shoal_nn_scaler_options *options)
{
    if (options->scale == 0) {
        return shoal_fail(
            SHOAL_ERR_INVALID,
            "%s: scale is 0, perhaps forgotten; begin with SHOAL_NN_SCALER_OPTIONS_INIT (65536)", call);
    }
    NN_TRY(check_scale(call, options->scale));
    if (!(options->growth > 1) || !isfinite(options->growth)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: growth: %g is not a number above 1", call, options->growth);
    }
    if (!(options->backoff > 0 && options->backoff < 1)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: backoff: %g is not between 0 and 1", call,
                          options->backoff);
    }
    if (options->growth_interval < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: growth_interval: %" PRId64 " is not at least 1", call,
                          options->growth_interval);
    }
    return SHOAL_OK;
}

/* A tensor of one number, referenced. */
static shoal_status make_scale(double scale, shoal_tensor **tensor_out)
{
    NN_TRY(shoal_scope_begin());
    shoal_tensor *tensor = shoal_tensor_ref(shoal_full(NULL, 0, scale, SHOAL_F64));
    shoal_status status = shoal_scope_end();
    if (status != SHOAL_OK) {
        shoal_tensor_unref(tensor);
        return status;
    }
    *tensor_out = tensor;
    return SHOAL_OK;
}

shoal_status shoal_nn_scaler_create(const shoal_nn_scaler_options *given, shoal_nn_scaler **scaler_out)
{
    static const char call[] = "nn_scaler_create";
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    if (!scaler_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: scaler_out is NULL", call);
    }
    if (given) {
        NN_TRY(nn_struct_read(call, "options", given, &options, sizeof(options)));
    }
    NN_TRY(check_options(call, &options));
    shoal_nn_scaler *scaler = calloc(1, sizeof(*scaler));
    if (!scaler) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for a scaler", call);
    }
    atomic_init(&scaler->n_references, 1);
    scaler->options = options;
    shoal_status status = make_scale(options.scale, &scaler->scale);
    if (status != SHOAL_OK) {
        shoal_nn_scaler_free(scaler);
        return status;
    }
    *scaler_out = scaler;
    return SHOAL_OK;
}

void shoal_nn_scaler_free(shoal_nn_scaler *scaler)
{
    if (scaler && atomic_fetch_sub(&scaler->n_references, 1) == 1) {
        shoal_tensor_unref(scaler->scale);
        free(scaler->entries);
        free(scaler);
    }
}

/* A captured step knows the tensor of the scale, and reads it in each run. In f64 there is one rounding, the last. */
shoal_tensor *shoal_nn_scaler_scale(shoal_nn_scaler *scaler, shoal_tensor *loss)
{
    shoal_tensor *wide = shoal_to_dtype(loss, SHOAL_F64);
    shoal_tensor *scale = scaler ? scaler->scale : NULL;
    if (loss && scale && shoal_tensor_device(loss) != SHOAL_CPU) {
        scale = shoal_to_device(scale, shoal_tensor_device(loss));
    }
    return shoal_to_dtype(shoal_mul(wide, scale), shoal_tensor_dtype(loss));
}

/* Unscaling -------------------------------------------------------------------------------------------- */

static struct nn_scaler_entry *find_entry(const shoal_nn_scaler *scaler, const shoal_nn_optimizer *optimizer)
{
    for (size_t i = 0; i < scaler->n_entries; i++) {
        if (scaler->entries[i].optimizer == optimizer) {
            return &scaler->entries[i];
        }
    }
    return NULL;
}

static shoal_status make_room(const char *call, shoal_nn_scaler *scaler)
{
    if (scaler->n_entries < scaler->capacity) {
        return SHOAL_OK;
    }
    size_t capacity = scaler->capacity > 0 ? 2 * scaler->capacity : 4;
    struct nn_scaler_entry *entries = realloc(scaler->entries, capacity * sizeof(entries[0]));
    if (!entries) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for a list of %zu optimizers", call, capacity);
    }
    scaler->entries = entries;
    scaler->capacity = capacity;
    return SHOAL_OK;
}

/* How a rank fared: the largest number of all ranks counts. */
enum outcome {
    CLEAN = 0,
    NOT_FINITE = 1,
    FAILED = 2
};

/* What ranks compare. A number and its negative: if the largest of both are negatives of each other all are equal. */
enum {
    WORD_OUTCOME,
    WORD_SCALE,
    WORD_MINUS_SCALE,
    WORD_CLEAN,
    WORD_MINUS_CLEAN,
    WORD_CALLS,
    WORD_MINUS_CALLS,
    N_WORDS
};

/* Collective. Of ranks that agree in everything else. */
static shoal_status exchange(const char *call, const shoal_nn_scaler *scaler, enum outcome *outcome)
{
    double scale = scaler->options.scale;
    double n_clean = (double)scaler->n_clean;
    double n_calls = (double)scaler->n_entries;
    double words[N_WORDS] = {(double)*outcome, scale, -scale, n_clean, -n_clean, n_calls, -n_calls};
    if (!scaler->options.group) {
        return SHOAL_OK;
    }
    NN_TRY(shoal_group_all_reduce(scaler->options.group, words, words, N_WORDS, SHOAL_F64, SHOAL_MAX));
    static const char *const names[] = {[WORD_SCALE] = "the scale",
                                        [WORD_CLEAN] = "n_clean",
                                        [WORD_CALLS] = "the number of optimizers that were unscaled"};
    for (int i = WORD_SCALE; i < N_WORDS; i += 2) {
        if (words[i] != -words[i + 1]) {
            return shoal_fail(SHOAL_ERR_MISMATCH, "%s: ranks differ in %s: from %g to %g, here %g", call,
                              names[i], -words[i + 1], words[i],
                              i == WORD_SCALE   ? scale
                              : i == WORD_CLEAN ? n_clean
                                                : n_calls);
        }
    }
    *outcome = (enum outcome)words[WORD_OUTCOME];
    return SHOAL_OK;
}

/* `status` is that of what this rank did alone before; its text survives. */
static shoal_status agree(const char *call, const shoal_nn_scaler *scaler, shoal_status status,
                          enum outcome *outcome)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%s", shoal_error_text());
    *outcome = status != SHOAL_OK ? FAILED : *outcome;
    shoal_status exchanged = exchange(call, scaler, outcome);
    if (status != SHOAL_OK) {
        return shoal_fail(status, "%s", text);
    }
    NN_TRY(exchanged);
    return *outcome != FAILED
               ? SHOAL_OK
               : shoal_fail(SHOAL_ERR_STATE, "%s: it failed on another rank; the error is reported there",
                            call);
}

/* Ranks that have parts of a parameter see different gradients: without the others this rank would skip steps alone. */
static shoal_status check_group(const char *call, const shoal_nn_scaler *scaler,
                                const shoal_nn_optimizer *optimizer)
{
    const shoal_group *group = scaler->options.group;
    if (group && shoal_group_n_ranks(group) > 1) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        const struct nn_parameter *parameter = &optimizer->parameters[i];
        if (shoal_is_shard(parameter->tensor)) {
            return shoal_fail(SHOAL_ERR_STATE,
                              "%s: parameter %zu (%.200s) is a shard, but the scaler was made %s: ranks "
                              "would skip different steps; "
                              "set `group` of its options to all ranks that share the model",
                              call, i,
                              parameter->path ? parameter->path : shoal_tensor_name(parameter->tensor),
                              group ? "for a group of one rank" : "without a group");
        }
    }
    return SHOAL_OK;
}

/* Collective, also if `status`, that of the shards, is an error, with its text. */
static shoal_status unscale(const char *call, shoal_nn_scaler *scaler, const shoal_nn_optimizer *optimizer,
                            const shoal_nn_shard *shards, shoal_status status)
{
    struct nn_gradients gradients = {.targets = NULL};
    enum outcome outcome = CLEAN;
    if (status == SHOAL_OK) {
        status = check_group(call, scaler, optimizer);
    }
    if (status == SHOAL_OK) {
        status = make_room(call, scaler);
    }
    if (status == SHOAL_OK) {
        status = nn_gradients_open(call, optimizer, shards, &gradients);
    }
    if (status == SHOAL_OK) {
        bool are_finite = true;
        status = nn_gradients_are_finite(&gradients, &are_finite);
        outcome = are_finite ? CLEAN : NOT_FINITE;
    }
    status = agree(call, scaler, status, &outcome);
    if (status == SHOAL_OK) {
        status = nn_gradients_scale(&gradients, 1.0 / scaler->options.scale);
    }
    if (status == SHOAL_OK) {
        scaler->entries[scaler->n_entries++] =
            (struct nn_scaler_entry){.optimizer = optimizer, .is_clean = outcome == CLEAN};
    }
    nn_gradients_close(&gradients);
    return status;
}

/* Calls ------------------------------------------------------------------------------------------------ */

static shoal_status check_call(const char *call, const shoal_nn_scaler *scaler,
                               const shoal_nn_optimizer *optimizer, bool is_raw, bool is_step)
{
    if (!scaler) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: scaler is NULL", call);
    }
    NN_TRY(nn_check_kind(call, optimizer, is_raw));
    const struct nn_scaler_entry *entry = find_entry(scaler, optimizer);
    if (entry && (entry->has_stepped || !is_step)) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: the optimizer %s already; call shoal_nn_scaler_update first",
                          call, entry->has_stepped ? "has made its step" : "was unscaled");
    }
    return SHOAL_OK;
}

/* What a step would find wrong with shards is wrong before they are unscaled. */
static shoal_status check_shards(const char *call, const shoal_nn_optimizer *optimizer,
                                 const shoal_nn_shard *shards, size_t n_shards)
{
    if (n_shards != optimizer->n_parameters || !shards) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %zu shards%s, but it was made with %zu", call, n_shards,
                          shards ? "" : " at NULL", optimizer->n_parameters);
    }
    for (size_t i = 0; i < n_shards; i++) {
        NN_TRY(nn_check_shard(call, optimizer, i, &shards[i]));
    }
    return SHOAL_OK;
}

shoal_status shoal_nn_scaler_unscale(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer)
{
    static const char call[] = "nn_scaler_unscale";
    NN_TRY(check_call(call, scaler, optimizer, /*is_raw=*/false, /*is_step=*/false));
    return unscale(call, scaler, optimizer, NULL, SHOAL_OK);
}

shoal_status shoal_nn_scaler_unscale_raw(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer,
                                         const shoal_nn_shard *shards, size_t n_shards)
{
    static const char call[] = "nn_scaler_unscale_raw";
    NN_TRY(check_call(call, scaler, optimizer, /*is_raw=*/true, /*is_step=*/false));
    return unscale(call, scaler, optimizer, shards, check_shards(call, optimizer, shards, n_shards));
}

/* `status` is that of the shards. */
static shoal_status step(const char *call, shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer,
                         const shoal_nn_shard *shards, size_t n_shards, shoal_status status)
{
    if (!find_entry(scaler, optimizer)) {
        status = unscale(call, scaler, optimizer, shards, status);
    }
    NN_TRY(status);
    struct nn_scaler_entry *entry = find_entry(scaler, optimizer);
    if (entry->is_clean) {
        NN_TRY(optimizer->is_raw ? shoal_nn_optimizer_step_raw(optimizer, shards, n_shards)
                                 : shoal_nn_optimizer_step(optimizer));
    }
    entry->has_stepped = true;
    return SHOAL_OK;
}

shoal_status shoal_nn_scaler_step(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer)
{
    static const char call[] = "nn_scaler_step";
    NN_TRY(check_call(call, scaler, optimizer, /*is_raw=*/false, /*is_step=*/true));
    return step(call, scaler, optimizer, NULL, 0, SHOAL_OK);
}

shoal_status shoal_nn_scaler_step_raw(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer,
                                      const shoal_nn_shard *shards, size_t n_shards)
{
    static const char call[] = "nn_scaler_step_raw";
    NN_TRY(check_call(call, scaler, optimizer, /*is_raw=*/true, /*is_step=*/true));
    return step(call, scaler, optimizer, shards, n_shards, check_shards(call, optimizer, shards, n_shards));
}

bool shoal_nn_scaler_skips(const shoal_nn_scaler *scaler, const shoal_nn_optimizer *optimizer)
{
    const struct nn_scaler_entry *entry = scaler ? find_entry(scaler, optimizer) : NULL;
    return entry && !entry->is_clean;
}

/* Scale and counters ----------------------------------------------------------------------------------- */

static bool is_clean(const shoal_nn_scaler *scaler)
{
    bool result = true;
    for (size_t i = 0; i < scaler->n_entries; i++) {
        result = result && scaler->entries[i].is_clean;
    }
    return result;
}

static shoal_status set_scale(shoal_nn_scaler *scaler, double scale)
{
    double *place = shoal_mutable_data(scaler->scale);
    if (!place) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    *place = scale;
    scaler->options.scale = scale;
    return SHOAL_OK;
}

static void set_counters(shoal_nn_scaler *scaler, int64_t n_clean, int64_t n_skipped)
{
    scaler->n_clean = scaler->kept_clean = n_clean;
    scaler->n_skipped = scaler->kept_skipped = n_skipped;
}

shoal_status shoal_nn_scaler_update(shoal_nn_scaler *scaler)
{
    static const char call[] = "nn_scaler_update";
    if (!scaler) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: scaler is NULL", call);
    }
    if (scaler->n_entries == 0) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: no optimizer has made a step since the last update", call);
    }
    for (size_t i = 0; i < scaler->n_entries; i++) {
        if (!scaler->entries[i].has_stepped) {
            return shoal_fail(SHOAL_ERR_STATE, "%s: an optimizer that was unscaled has not made its step",
                              call);
        }
    }
    bool was_clean = is_clean(scaler);
    bool grows = was_clean && scaler->n_clean + 1 >= scaler->options.growth_interval;
    double factor = !was_clean ? scaler->options.backoff : grows ? scaler->options.growth : 1;
    double scale = scaler->options.scale * factor;
    if (factor != 1 && is_scale(scale)) {
        NN_TRY(set_scale(scaler, scale));
    }
    set_counters(scaler, was_clean && !grows ? scaler->n_clean + 1 : 0, scaler->n_skipped + !was_clean);
    scaler->n_entries = 0;
    return SHOAL_OK;
}

shoal_status shoal_nn_scaler_get_state(const shoal_nn_scaler *scaler, shoal_nn_scaler_state *state_out)
{
    static const char call[] = "nn_scaler_get_state";
    if (!scaler || !state_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call, scaler ? "state_out" : "scaler");
    }
    const shoal_nn_scaler_state state = {.struct_size = sizeof(state),
                                         .scale = scaler->options.scale,
                                         .n_clean = scaler->n_clean,
                                         .n_skipped = scaler->n_skipped,
                                         .is_clean = is_clean(scaler)};
    return nn_struct_write(call, "state_out", state_out, &state, sizeof(state));
}

shoal_status shoal_nn_scaler_set_state(shoal_nn_scaler *scaler, const shoal_nn_scaler_state *given)
{
    static const char call[] = "nn_scaler_set_state";
    shoal_nn_scaler_state state = SHOAL_NN_SCALER_STATE_INIT;
    if (!scaler || !given) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call, scaler ? "state" : "scaler");
    }
    NN_TRY(nn_struct_read(call, "state", given, &state, sizeof(state)));
    NN_TRY(check_scale(call, state.scale));
    if (state.n_clean < 0 || state.n_skipped < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %" PRId64 " is negative", call,
                          state.n_clean < 0 ? "n_clean" : "n_skipped",
                          state.n_clean < 0 ? state.n_clean : state.n_skipped);
    }
    if (scaler->n_entries > 0) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: gradients were unscaled and wait for their update", call);
    }
    NN_TRY(set_scale(scaler, state.scale));
    set_counters(scaler, state.n_clean, state.n_skipped);
    return SHOAL_OK;
}

/* Items ------------------------------------------------------------------------------------------------ */

/* The numbers of a load are in place; the tensor of the scale has the old one yet. */
static shoal_status accept_loaded(void *context)
{
    shoal_nn_scaler *scaler = context;
    shoal_nn_scaler_state state = {.struct_size = sizeof(state),
                                   .scale = scaler->options.scale,
                                   .n_clean = scaler->n_clean,
                                   .n_skipped = scaler->n_skipped};
    shoal_status status = shoal_nn_scaler_set_state(scaler, &state);
    if (status != SHOAL_OK) { /* what was there before stays, all of it */
        char text[512];
        (void)snprintf(text, sizeof(text), "%s", shoal_error_text());
        const double *scale = shoal_data(scaler->scale);
        scaler->options.scale = scale ? *scale : 1;
        set_counters(scaler, scaler->kept_clean, scaler->kept_skipped);
        return shoal_fail(status, "nn_scaler_add_items: what was loaded: %s", text);
    }
    return SHOAL_OK;
}

static void release(void *context)
{
    shoal_nn_scaler_free(context);
}

static shoal_status collect(shoal_nn_scaler *scaler, const char *prefix, shoal_items *items)
{
    static const char call[] = "nn_scaler_add_items";
    NN_TRY(nn_add_real(call, items, prefix, "scale", &scaler->options.scale));
    NN_TRY(nn_add_integer(call, items, prefix, "n_clean", &scaler->n_clean));
    NN_TRY(nn_add_integer(call, items, prefix, "n_skipped", &scaler->n_skipped));
    NN_TRY(shoal_items_on_loaded(items, accept_loaded, scaler, release));
    atomic_fetch_add(&scaler->n_references, 1);
    return SHOAL_OK;
}

shoal_status shoal_nn_scaler_add_items(shoal_nn_scaler *scaler, shoal_items *items, const char *prefix)
{
    if (!scaler || !items || !prefix) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_scaler_add_items: %s is NULL",
                          !scaler  ? "scaler"
                          : !items ? "items"
                                   : "prefix");
    }
    shoal_items *added;
    NN_TRY(shoal_items_create(&added));
    shoal_status status = collect(scaler, prefix, added);
    if (status == SHOAL_OK) {
        status = shoal_items_append(items, added);
    }
    shoal_items_free(added);
    return status;
}
