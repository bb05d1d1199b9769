/* SPDX-License-Identifier: MIT */
/*
 * Checks, before anything is gathered, that all ranks have the same units. Each rank sends one number for every unit: a
 * hash of everything that must be equal. Otherwise gathers and reductions would find a difference later, or not at all
 * if only shapes differ.
 *
 * Every rank of a group sees the numbers of all ranks, so all know which unit is the first that differs. Together they
 * then look for the difference: they exchange a number for each part of the unit, then a description of that part.
 */
#include "parallel/fsdp/engine/step/same_units.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "op/basis.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/step/transfer.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

static uint64_t mix(uint64_t seed, int64_t value)
{
    return hash_bytes(seed, &value, sizeof value);
}

static uint64_t mix_double(uint64_t seed, double value)
{
    return hash_bytes(seed, &value, sizeof value);
}

static uint64_t number_of_extension(uint64_t number, const struct fsdp_extension *extension)
{
    if (!extension) {
        return mix(number, 0);
    }
    const shoal_gather_extension *given = &extension->given;
    number = mix(mix(mix(number, 1), given->is_by_rows), (int64_t)given->n_buffers);
    for (size_t i = 0; i < given->n_buffers; i++) {
        number = mix(mix(number, (int64_t)given->buffers[i].dtype), (int64_t)given->buffers[i].count);
    }
    number = hash_bytes(number, extension->metadata, given->metadata_bytes);
    return hash_bytes(number, extension->name, strlen(extension->name));
}

static uint64_t number_of_param(uint64_t seed, const struct fsdp_param *param)
{
    uint64_t number = mix(mix(seed, (int64_t)param->dtype), param->requires_grad);
    number = mix(mix(number, param->dim), param->n_dims);
    for (int i = 0; i < param->n_dims; i++) {
        number = mix(number, param->shape[i]);
    }
    number = number_of_extension(number, param->extension);
    return hash_bytes(number, param->name, strlen(param->name));
}

/* The number of everything except parameters. */
static uint64_t number_of_options(const struct fsdp_unit *unit)
{
    uint64_t number = mix(mix(0, (int64_t)unit->config.reshard), unit->config.reshard_ranks);
    number = mix(mix(number, (int64_t)unit->config.param_dtype), (int64_t)unit->config.reduce_dtype);
    number = mix_double(mix(number, unit->config.force_sum), unit->config.divide_factor);
    number = mix(mix(number, unit->hooks.all_gather.call != NULL), unit->hooks.reduce_scatter.call != NULL);
    number = mix(number, option_choice(OPTION_FSDP_GATHER));
    number = mix(mix(number, unit->config.reshard_after_backward), unit->config.unshard_in_backward);
    number = mix(mix(number, unit->config.sync), unit->config.all_reduce);
    number = mix(mix(number, unit->config.reduce_unused), (int64_t)unit->config.sharded);
    const char *device = device_name(unit->device); /* its number is the process's own */
    return hash_bytes(number, device, strlen(device));
}

static uint64_t number_of_unit(const struct fsdp_unit *unit)
{
    uint64_t number = mix(number_of_options(unit), (int64_t)unit->n_params);
    for (size_t i = 0; i < unit->n_params; i++) {
        number = number_of_param(number, &unit->params[i]);
    }
    return number;
}

/* Exchanging --------------------------------------------------------------------------------------------- */

/* Exchanges n numbers of every rank, and finds the first that differs on any rank. `mine` is NULL if this rank has no
   memory for them: all ranks are told. Call agree_free_records also after a failure. */
static shoal_status exchange(shoal_group *group, const uint64_t *mine, size_t n,
                             struct agree_records *all_out, struct agree_difference *other_out)
{
    const struct agreement agreement = agreement_on(group);
    *other_out = (struct agree_difference){.rank = -1};
    TRY(agree_gather(&agreement, mine, n * sizeof mine[0], (struct agree_room){.data = NULL}, all_out));
    *other_out = agree_find_difference(all_out, mine, AGREE_BY_NUMBER, 0, n);
    return SHOAL_OK;
}

static shoal_status find_difference(shoal_group *group, const uint64_t *mine, size_t n,
                                    struct agree_difference *other_out)
{
    struct agree_records all;
    shoal_status status = exchange(group, mine, n, &all, other_out);
    agree_free_records(&all);
    return status;
}

enum {
    WORDS_BYTES = 448
};

/* Every rank sends a text of WORDS_BYTES. Gives the text of `rank`. */
static shoal_status exchange_words(shoal_group *group, const char *mine, int rank, char *theirs_out)
{
    const struct agreement agreement = agreement_on(group);
    struct agree_records all;
    shoal_status status =
        agree_gather(&agreement, mine, WORDS_BYTES, (struct agree_room){.data = NULL}, &all);
    if (status == SHOAL_OK) {
        memcpy(theirs_out, agree_record(&all, rank), WORDS_BYTES);
        theirs_out[WORDS_BYTES - 1] = 0;
    }
    agree_free_records(&all);
    return status;
}

/* Words -------------------------------------------------------------------------------------------------- */

/* "partly over 2 ranks", "never"; and a number of ranks that means nothing there, because it is compared as well. */
static void describe_reshard(const struct fsdp_unit_config *config, char *words, size_t bytes)
{
    struct text text = text_begin(words, bytes);
    text_add(&text, "%s", fsdp_reshard_name(config->reshard));
    if (config->reshard == SHOAL_RESHARD_PARTLY) {
        text_add(&text, " over %d ranks", config->reshard_ranks);
    } else if (config->reshard_ranks != 0) {
        text_add(&text, " with reshard_ranks %d", config->reshard_ranks);
    }
}

static void describe_options(const struct fsdp_unit *unit, char *words)
{
    const struct fsdp_unit_config *config = &unit->config;
    char reshard[48];
    describe_reshard(config, reshard, sizeof reshard);
    (void)snprintf(words, WORDS_BYTES,
                   "device %s, reshard %s, sharded %s, param_dtype %s, reduce_dtype %s, divide_factor %g, "
                   "force_sum %d, custom all-gather %d, custom reduce-scatter %d, reduce_unused %d, "
                   "reshard_after_backward %d, unshard_in_backward %d, sync %d, all_reduce %d, "
                   "SHOAL_FSDP_GATHER %s",
                   device_name(unit->device), reshard, fsdp_sharded_name(config->sharded),
                   config->param_dtype != 0 ? shoal_dtype_name(config->param_dtype) : "as stored",
                   config->reduce_dtype != 0 ? shoal_dtype_name(config->reduce_dtype) : "of the gradients",
                   config->divide_factor, config->force_sum, unit->hooks.all_gather.call != NULL,
                   unit->hooks.reduce_scatter.call != NULL, config->reduce_unused,
                   config->reshard_after_backward, config->unshard_in_backward, config->sync,
                   config->all_reduce, option_choice(OPTION_FSDP_GATHER) == 1 ? "copy" : "auto");
}

/* Leaves only the settings that differ. Both texts list the same settings in the same order, with ", " between them. */
static void keep_differences(char mine[WORDS_BYTES], char theirs[WORDS_BYTES])
{
    char kept[2][WORDS_BYTES];
    struct text texts[2] = {text_begin(kept[0], WORDS_BYTES), text_begin(kept[1], WORDS_BYTES)};
    const char *at[2] = {mine, theirs};
    while (*at[0] && *at[1]) {
        size_t lengths[2];
        for (int i = 0; i < 2; i++) {
            const char *end = strstr(at[i], ", ");
            lengths[i] = end ? (size_t)(end - at[i]) : strlen(at[i]);
        }
        bool is_same = lengths[0] == lengths[1] && memcmp(at[0], at[1], lengths[0]) == 0;
        for (int i = 0; i < 2; i++) {
            if (!is_same) {
                text_add(&texts[i], "%s%.*s", texts[i].length > 0 ? ", " : "", (int)lengths[i], at[i]);
            }
            at[i] += lengths[i];
            at[i] += *at[i] ? strlen(", ") : 0;
        }
    }
    if (kept[0][0]) {
        memcpy(mine, kept[0], WORDS_BYTES);
        memcpy(theirs, kept[1], WORDS_BYTES);
    }
}

/* ", gathered as int8 rows: i8 64 + f32 1 for each row, metadata of 4 bytes 0x1f00". Metadata are shown as a hash. */
static void describe_extension(const struct fsdp_extension *extension, char *words, size_t bytes)
{
    struct text text = text_begin(words, bytes);
    const shoal_gather_extension *given = &extension->given;
    text_add(&text, ", gathered as %.48s:", extension->name);
    for (size_t i = 0; i < given->n_buffers; i++) {
        text_add(&text, "%s %s %zu", i > 0 ? " +" : "", shoal_dtype_name(given->buffers[i].dtype),
                 given->buffers[i].count);
    }
    text_add(&text, given->is_by_rows ? " for each row" : " for each rank");
    if (given->metadata_bytes > 0) {
        text_add(&text, ", metadata of %zu bytes, %08x", given->metadata_bytes,
                 (unsigned)hash_bytes(0, extension->metadata, given->metadata_bytes));
    }
}

static void describe_param(const struct fsdp_param *param, char *words)
{
    size_t n =
        (size_t)snprintf(words, WORDS_BYTES, "%.80s %s [", param->name, shoal_dtype_name(param->dtype));
    for (int i = 0; i < param->n_dims && n < WORDS_BYTES; i++) {
        n += (size_t)snprintf(words + n, WORDS_BYTES - n, "%s%lld", i > 0 ? "," : "",
                              (long long)param->shape[i]);
    }
    if (n < WORDS_BYTES) {
        n += (size_t)snprintf(words + n, WORDS_BYTES - n, "] sharded along %d, %s gradients", param->dim,
                              param->requires_grad ? "with" : "without");
    }
    if (n < WORDS_BYTES && param->extension) {
        describe_extension(param->extension, words + n, WORDS_BYTES - n);
    }
}

/* What differs in a unit ----------------------------------------------------------------------------------- */

/* The parts are the options and each parameter. */
static shoal_status report_part(shoal_group *group, const struct fsdp_unit *unit, size_t part, int rank)
{
    char mine[WORDS_BYTES] = "";
    char theirs[WORDS_BYTES] = "";
    if (part == 0) {
        describe_options(unit, mine);
    } else {
        describe_param(&unit->params[part - 1], mine);
    }
    TRY(exchange_words(group, mine, rank, theirs));
    if (part == 0) {
        keep_differences(mine, theirs);
    }
    return error_set(SHOAL_ERR_MISMATCH, "%s: %s here: %s; on rank %d: %s", unit->name,
                     part == 0 ? "options" : "parameter", mine, shoal_group_world_rank(group, rank), theirs);
}

static shoal_status compare_parts(shoal_group *group, const struct fsdp_unit *unit, const uint64_t *parts)
{
    struct agree_difference other;
    TRY(find_difference(group, parts, unit->n_params + 1, &other));
    /* Some part should differ: the number of the unit is computed from the same values. */
    return other.rank < 0 ? error_set(SHOAL_ERR_MISMATCH, "%s differs between ranks", unit->name)
                          : report_part(group, unit, other.number, other.rank);
}

static shoal_status compare_counts(shoal_group *group, const struct fsdp_unit *unit)
{
    struct agree_records counts;
    struct agree_difference other;
    uint64_t n_params = unit->n_params;
    shoal_status status = exchange(group, &n_params, 1, &counts, &other);
    if (other.rank >= 0) {
        const uint64_t *theirs = agree_record(&counts, other.rank);
        status = error_set(SHOAL_ERR_MISMATCH, "%s: %zu parameters here, %zu on rank %d", unit->name,
                           unit->n_params, (size_t)theirs[0], shoal_group_world_rank(group, other.rank));
    }
    agree_free_records(&counts);
    return status;
}

/* Finds out what differs in a unit. Returns an error in any case. */
static shoal_status report_unit(shoal_group *group, const struct fsdp_unit *unit)
{
    TRY(compare_counts(group, unit));
    uint64_t *parts = mem_alloc_zeroed(unit->n_params + 1, sizeof *parts);
    for (size_t i = 0; parts && i <= unit->n_params; i++) {
        parts[i] = i == 0 ? number_of_options(unit) : number_of_param(0, &unit->params[i - 1]);
    }
    shoal_status status = compare_parts(group, unit, parts);
    mem_free(parts);
    return status;
}

static shoal_status compare_units(const struct fsdp_context *context, shoal_group *group)
{
    struct agree_difference other;
    uint64_t *mine = mem_alloc_zeroed(context->n_units, sizeof *mine);
    for (size_t i = 0; mine && i < context->n_units; i++) {
        mine[i] = number_of_unit(context->units[i]);
    }
    shoal_status status = find_difference(group, mine, context->n_units, &other);
    mem_free(mine);
    TRY(status);
    return other.rank < 0 ? SHOAL_OK : report_unit(group, context->units[other.number]);
}

/* Exactly ------------------------------------------------------------------------------------------------ */

/*
 * The numbers above lead to a text that says what differs, but different units might have the same number. So each unit
 * is compared once more as a whole, by the details of a purpose (transport/purpose.h).
 */
struct unit_details {
    int64_t *numbers;
    size_t n;
    size_t capacity;
};

static shoal_status add_number(struct unit_details *details, int64_t number)
{
    TRY(mem_grow((void **)&details->numbers, &details->capacity, details->n + 1, sizeof details->numbers[0]));
    details->numbers[details->n++] = number;
    return SHOAL_OK;
}

static shoal_status add_bytes(struct unit_details *details, const char *text, size_t length)
{
    TRY(add_number(details, (int64_t)length));
    for (size_t i = 0; i < length; i += sizeof(int64_t)) {
        int64_t word = 0;
        memcpy(&word, text + i, length - i < sizeof word ? length - i : sizeof word);
        TRY(add_number(details, word));
    }
    return SHOAL_OK;
}

static shoal_status add_text(struct unit_details *details, const char *text)
{
    return add_bytes(details, text, strlen(text));
}

static shoal_status add_extension(struct unit_details *details, const struct fsdp_extension *extension)
{
    if (!extension) {
        return add_number(details, 0);
    }
    const shoal_gather_extension *given = &extension->given;
    TRY(add_number(details, (int64_t)given->n_buffers)); /* at least 1 */
    TRY(add_number(details, given->is_by_rows));
    for (size_t i = 0; i < given->n_buffers; i++) {
        TRY(add_number(details, (int64_t)given->buffers[i].dtype));
        TRY(add_number(details, (int64_t)given->buffers[i].count));
    }
    TRY(add_bytes(details, extension->metadata, given->metadata_bytes));
    return add_text(details, extension->name);
}

static shoal_status add_param(struct unit_details *details, const struct fsdp_param *param)
{
    const int64_t numbers[] = {(int64_t)param->dtype, param->requires_grad, param->dim, param->n_dims};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        TRY(add_number(details, numbers[i]));
    }
    for (int i = 0; i < param->n_dims; i++) {
        TRY(add_number(details, param->shape[i]));
    }
    TRY(add_extension(details, param->extension));
    return add_text(details, param->name);
}

static shoal_status add_unit(struct unit_details *details, const struct fsdp_unit *unit)
{
    int64_t factor;
    memcpy(&factor, &unit->config.divide_factor, sizeof factor);
    const int64_t numbers[] = {DETAIL_SET,
                               0, /* how many follow: filled in at the end */
                               (int64_t)unit->config.reshard,
                               unit->config.reshard_ranks,
                               (int64_t)unit->config.param_dtype,
                               (int64_t)unit->config.reduce_dtype,
                               unit->config.force_sum,
                               factor,
                               unit->hooks.all_gather.call != NULL,
                               unit->hooks.reduce_scatter.call != NULL,
                               unit->config.reduce_unused,
                               unit->config.reshard_after_backward,
                               unit->config.unshard_in_backward,
                               unit->config.sync,
                               unit->config.all_reduce,
                               (int64_t)unit->config.sharded,
                               (int64_t)unit->n_params};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        TRY(add_number(details, numbers[i]));
    }
    TRY(add_text(details, device_name(unit->device)));
    for (size_t i = 0; i < unit->n_params; i++) {
        TRY(add_param(details, &unit->params[i]));
    }
    details->numbers[1] = (int64_t)details->n - 2;
    return SHOAL_OK;
}

static shoal_status compare_exactly(const struct fsdp_unit *unit)
{
    struct unit_details details = {.numbers = NULL};
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_AGREE);
    shoal_status status = add_unit(&details, unit);
    if (status == SHOAL_OK) {
        purpose.details = details.numbers;
        purpose.n_details = details.n;
        status = fsdp_compare_all(unit->context, &purpose);
    }
    mem_free(details.numbers);
    return status;
}

/* Values ------------------------------------------------------------------------------------------------- */

static shoal_status hash_shard(const struct fsdp_param *param, double timeout_s, uint64_t *hash_out)
{
    const struct fsdp_array values = fsdp_param_values(param);
    size_t bytes = param->shard_count * dtype_bytes(param->dtype);
    const void *data = address_pointer(param->shard);
    void *copy = NULL;
    if (!device_is_host(param->device)) {
        copy = mem_alloc(bytes + 1);
        data = copy;
        TRY(copy ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    }
    shoal_status status = copy ? fsdp_array_read(&values, copy, timeout_s) : SHOAL_OK;
    if (status == SHOAL_OK) {
        purpose_hash(data, bytes, (int64_t *)hash_out);
    }
    mem_free(copy);
    return status;
}

/* A hash of two numbers for the shard of each parameter of a domain, in the order of units. */
static shoal_status hash_values(const struct fsdp_context *context, const struct fsdp_domain *domain,
                                uint64_t *hashes)
{
    size_t at = 0;
    double timeout_s = fsdp_mesh_timeout(&domain->mesh);
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        for (size_t k = 0; k < unit->n_params && unit->domain == domain; k++, at += 2) {
            TRY(hash_shard(&unit->params[k], timeout_s, &hashes[at]));
        }
    }
    return SHOAL_OK;
}

static shoal_status fail_values(const struct fsdp_context *context, const struct fsdp_domain *domain,
                                size_t index, int rank)
{
    size_t i = 0;
    for (; context->units[i]->domain != domain || index >= context->units[i]->n_params; i++) {
        index -= context->units[i]->domain == domain ? context->units[i]->n_params : 0;
    }
    return error_set(SHOAL_ERR_MISMATCH,
                     "%s: parameter %s has other values on rank %d, but replicas must begin with the same "
                     "ones; load equal values, or broadcast those of one rank",
                     context->units[i]->name, context->units[i]->params[index].name, rank);
}

static shoal_status compare_values_of(const struct fsdp_context *context, const struct fsdp_domain *domain)
{
    shoal_group *group = domain->mesh.replicate;
    struct agree_difference other;
    size_t n_params = 0;
    for (size_t i = 0; i < context->n_units; i++) {
        n_params += context->units[i]->domain == domain ? context->units[i]->n_params : 0;
    }
    char text[ERROR_TEXT_BYTES] = "";
    uint64_t *mine = mem_alloc_zeroed(2 * n_params + 1, sizeof *mine);
    shoal_status own = mine ? hash_values(context, domain, mine) : SHOAL_ERR_NO_MEMORY;
    if (own != SHOAL_OK) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    }
    /* Without hashes the other ranks are told that this one has nothing to compare. */
    shoal_status status = find_difference(group, own == SHOAL_OK ? mine : NULL, 2 * n_params, &other);
    mem_free(mine);
    TRY(own == SHOAL_OK ? status : error_set(own, "%s", text));
    return other.rank < 0
               ? SHOAL_OK
               : fail_values(context, domain, other.number / 2, shoal_group_world_rank(group, other.rank));
}

/* Goes on after a difference, because the other ranks of later domains would wait. */
static shoal_status compare_values(const struct fsdp_context *context)
{
    char text[ERROR_TEXT_BYTES] = "";
    shoal_status first = SHOAL_OK;
    for (size_t i = 0; i < context->n_domains; i++) {
        const struct fsdp_domain *domain = context->domains[i];
        shoal_status status = domain->mesh.replicate ? compare_values_of(context, domain) : SHOAL_OK;
        if (first == SHOAL_OK && status != SHOAL_OK) {
            first = status;
            (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        }
    }
    return first == SHOAL_OK ? SHOAL_OK : error_set(first, "%s", text);
}

static bool has_replicas(const struct fsdp_context *context)
{
    bool has = false;
    for (size_t i = 0; i < context->n_domains; i++) {
        has = has || context->domains[i]->mesh.replicate;
    }
    return has;
}

/* All ------------------------------------------------------------------------------------------------------ */

/* The numbers that ranks exchange first. A rank that has failed before takes part and says so, because the others would
   wait for it otherwise. */
enum {
    SAID_FAILED,
    SAID_UNITS,
    SAID_AHEAD,
    SAID_AT_ONCE,
    N_SAID
};

static int find_failed(const struct agree_records *said)
{
    for (int rank = 0; rank < said->n_ranks; rank++) {
        const uint64_t *theirs = agree_record(said, rank);
        if (theirs[SAID_FAILED]) {
            return rank;
        }
    }
    return -1;
}

/* `rank` of a group of replicas has failed before, when it compared units with the other shards of its replica. If this
   rank has failed as well, it returns its own failure, `failed` with `text`; otherwise it gets the text of `rank`. */
static shoal_status report_failed(shoal_group *group, int rank, shoal_status failed, const char *text)
{
    char mine[WORDS_BYTES] = "";
    char theirs[WORDS_BYTES] = "";
    (void)snprintf(mine, sizeof mine, "%.*s", WORDS_BYTES - 1, text);
    shoal_status status = exchange_words(group, mine, rank, theirs);
    if (failed != SHOAL_OK) { /* the first error is the one to tell */
        return error_set(failed, "%s", text);
    }
    TRY(status);
    return error_set(SHOAL_ERR_MISMATCH, "another replica, on rank %d: %s",
                     shoal_group_world_rank(group, rank), theirs);
}

static shoal_status fail_said(shoal_group *group, const struct agree_records *said, const uint64_t *here,
                              int rank)
{
    const uint64_t *there = agree_record(said, rank);
    return error_set(SHOAL_ERR_MISMATCH,
                     "there are %d units here, gathered %d ahead, %d reduced at once; on rank %d: %d units, "
                     "%d ahead, %d at once",
                     (int)here[SAID_UNITS], (int)here[SAID_AHEAD], (int)here[SAID_AT_ONCE],
                     shoal_group_world_rank(group, rank), (int)there[SAID_UNITS], (int)there[SAID_AHEAD],
                     (int)there[SAID_AT_ONCE]);
}

static shoal_status compare_basis(shoal_group *group)
{
    char basis[OP_BASIS_BYTES];
    const struct agreement agreement = agreement_on(group);
    op_basis_write(basis);
    return agree_on_known(&agreement, OP_BASIS_WORDS, basis);
}

static shoal_status agree_over(const struct fsdp_context *context, shoal_group *group, shoal_status failed)
{
    const uint64_t mine[N_SAID] = {failed != SHOAL_OK, context->n_units,
                                   (uint64_t)context->config.forward_prefetch,
                                   (uint64_t)context->config.max_reduces};
    char text[ERROR_TEXT_BYTES] = "";
    struct agree_records said;
    struct agree_difference other;
    if (!group) {
        return failed;
    }
    if (failed != SHOAL_OK) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    }
    shoal_status status = exchange(group, mine, N_SAID, &said, &other);
    int failed_rank = status == SHOAL_OK ? find_failed(&said) : -1;
    if (failed_rank < 0 && other.rank >= 0) {
        status = fail_said(group, &said, mine, other.rank);
    }
    agree_free_records(&said);
    if (failed_rank >= 0) {
        return report_failed(group, failed_rank, failed, text);
    }
    if (failed != SHOAL_OK) {
        return error_set(failed, "%s", text);
    }
    TRY(status);
    TRY(compare_units(context, group));
    return compare_basis(group);
}

/* Over the common lane or, with one domain, over the shards of each replica and then over replicas. */
static shoal_status agree_over_all(const struct fsdp_context *context)
{
    const struct fsdp_mesh *mesh = &context->domains[0]->mesh;
    if (context->common) {
        return agree_over(context, context->common, SHOAL_OK);
    }
    return agree_over(context, mesh->replicate, agree_over(context, mesh->gather, SHOAL_OK));
}

shoal_status fsdp_agree(struct fsdp_context *context)
{
    struct purpose purpose = fsdp_context_purpose(context, PURPOSE_FSDP_AGREE);
    TRY(fsdp_compare_all(context, &purpose));
    TRY(agree_over_all(context));
    for (size_t i = 0; i < context->n_units; i++) {
        TRY(compare_exactly(context->units[i]));
    }
    /* Each rank compares values with the replicas of its own shard only, so the result may differ between shards. */
    return has_replicas(context) ? fsdp_context_confirm(context, compare_values(context)) : SHOAL_OK;
}

shoal_status fsdp_agree_on_settings(struct fsdp_context *context)
{
    struct purpose purpose = fsdp_context_purpose(context, PURPOSE_FSDP_AGREE);
    TRY(fsdp_compare_all(context, &purpose));
    return agree_over_all(context);
}
