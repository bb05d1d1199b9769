/* SPDX-License-Identifier: MIT */
/* The public calls that draw into memory and tensors. Everything is checked before the first element is written. */
#include "modules/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "ops/ops.h"
#include "shoal/fp_mode.h"
#include "shoal/scope.h"
#include "common/struct_size.h"
#include "common/try.h"

/* Words of an element are counted in 64 bits. */
#define MAX_ELEMENTS (UINT64_C(1) << 62)

uint64_t shoal_nn_stream(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *next = name ? name : ""; *next; next++) {
        hash = (hash ^ (unsigned char)*next) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Distributions ----------------------------------------------------------------------------------------- */

shoal_status shoal_nn_gain(shoal_nn_nonlinearity nonlinearity, double slope, double *gain_out)
{
    static const double gains[] = {
        [SHOAL_NN_LINEAR] = 1,     [SHOAL_NN_SIGMOID] = 1,    [SHOAL_NN_TANH] = 5.0 / 3,
        [SHOAL_NN_RELU] = M_SQRT2, [SHOAL_NN_LEAKY_RELU] = 0, /* by its slope */
        [SHOAL_NN_SELU] = 0.75};
    if (!gain_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_gain: gain_out is NULL");
    }
    if ((int)nonlinearity < 0 || (size_t)nonlinearity >= sizeof(gains) / sizeof(gains[0])) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_gain: %d is not a shoal_nn_nonlinearity", (int)nonlinearity);
    }
    if (nonlinearity == SHOAL_NN_LEAKY_RELU && !isfinite(slope)) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_gain: slope: %g is not a number", slope);
    }
    uint64_t mode = shoal_fp_mode_enter();
    *gain_out = nonlinearity == SHOAL_NN_LEAKY_RELU ? nn_leaky_gain(slope) : gains[nonlinearity];
    shoal_fp_mode_leave(mode);
    return SHOAL_OK;
}

static shoal_status check_finite(const char *name, const char *field, double value)
{
    return isfinite(value) ? SHOAL_OK
                           : shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %g is not a number", name, field, value);
}

static shoal_status check_uniform(const char *name, double low, double high)
{
    NN_TRY(check_finite(name, "low", low));
    NN_TRY(check_finite(name, "high", high));
    if (low > high || !isfinite(high - low)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: uniform from low %g to high %g: %s", name, low, high,
                          low > high ? "low is above high" : "the difference is not a finite number");
    }
    return SHOAL_OK;
}

static shoal_status check_fan(const char *name, const shoal_nn_distribution *distribution)
{
    if (!isfinite(distribution->gain) || distribution->gain < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: gain: %g is not a number from 0 up", name,
                          distribution->gain);
    }
    if (distribution->fan != SHOAL_NN_FAN_IN && distribution->fan != SHOAL_NN_FAN_OUT) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: fan: %d is not a shoal_nn_fan", name,
                          (int)distribution->fan);
    }
    return SHOAL_OK;
}

static shoal_status check_distribution(const char *name, const shoal_nn_distribution *distribution)
{
    switch ((int)distribution->kind) {
    case SHOAL_NN_KIND_UNIFORM:
        return check_uniform(name, distribution->low, distribution->high);
    case SHOAL_NN_KIND_NORMAL:
        NN_TRY(check_finite(name, "mean", distribution->mean));
        if (!isfinite(distribution->std) || distribution->std < 0) {
            return shoal_fail(SHOAL_ERR_INVALID, "%s: std: %g is not a number from 0 up", name,
                              distribution->std);
        }
        return SHOAL_OK;
    case SHOAL_NN_KIND_XAVIER_UNIFORM:
    case SHOAL_NN_KIND_XAVIER_NORMAL:
    case SHOAL_NN_KIND_KAIMING_UNIFORM:
    case SHOAL_NN_KIND_KAIMING_NORMAL:
        return check_fan(name, distribution);
    default:
        return shoal_fail(SHOAL_ERR_INVALID, "%s: distribution: kind is %d, which is none of SHOAL_NN_KIND_*",
                          name, (int)distribution->kind);
    }
}

shoal_status nn_read_distribution(const char *name, const shoal_nn_distribution *given,
                                  shoal_nn_distribution *distribution_out)
{
    *distribution_out =
        (shoal_nn_distribution){.struct_size = sizeof(*distribution_out), .fan = SHOAL_NN_FAN_IN};
    NN_TRY(nn_struct_read(name, "distribution", given, distribution_out, sizeof(*distribution_out)));
    return check_distribution(name, distribution_out);
}

shoal_status nn_law_of(const char *name, const shoal_nn_distribution *distribution, const int64_t *shape,
                       int n_dims, struct nn_law *law_out)
{
    bool needs_fan =
        distribution->kind != SHOAL_NN_KIND_UNIFORM && distribution->kind != SHOAL_NN_KIND_NORMAL;
    if (needs_fan && n_dims < 2) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %d dimensions: a fan needs two or more", name, n_dims);
    }
    uint64_t mode = shoal_fp_mode_enter();
    nn_compute_law(distribution, shape, n_dims, law_out);
    shoal_fp_mode_leave(mode);
    return SHOAL_OK;
}

/* Parts ------------------------------------------------------------------------------------------------- */

static shoal_status check_shape(const char *name, const shoal_nn_part *part)
{
    uint64_t count = 1;
    if (!part->shape || part->n_dims < 1 || part->n_dims > SHOAL_MAX_DIMS) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: part: %s %d dimensions, not 1 to %d", name,
                          part->shape ? "a shape of" : "no shape, and", part->n_dims, SHOAL_MAX_DIMS);
    }
    for (int i = 0; i < part->n_dims; i++) {
        if (part->shape[i] < 0) {
            return shoal_fail(SHOAL_ERR_INVALID, "%s: part: shape[%d] is %" PRId64, name, i, part->shape[i]);
        }
        if (__builtin_mul_overflow(count, (uint64_t)part->shape[i], &count) || count > MAX_ELEMENTS) {
            return shoal_fail(SHOAL_ERR_INVALID, "%s: part: the shape has more than 2^62 elements", name);
        }
    }
    return SHOAL_OK;
}

shoal_status nn_runs_of(const char *name, const shoal_nn_part *part, struct nn_runs *runs_out)
{
    if (!part) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: part is NULL", name);
    }
    NN_TRY(check_shape(name, part));
    if (part->dim < 0 || part->dim >= part->n_dims) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: part: dim %d is outside of the %d dimensions", name,
                          part->dim, part->n_dims);
    }
    int64_t size = part->shape[part->dim];
    if (part->offset < 0 || part->length < 0 || part->offset > size || part->length > size - part->offset) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: part: %" PRId64 " indices from %" PRId64 " on are not among %" PRId64, name,
                          part->length, part->offset, size);
    }
    uint64_t inner = 1;
    uint64_t outer = 1;
    for (int i = 0; i < part->n_dims; i++) {
        *(i < part->dim ? &outer : &inner) *= i == part->dim ? 1 : (uint64_t)part->shape[i];
    }
    *runs_out = (struct nn_runs){.first = (uint64_t)part->offset * inner,
                                 .stride = (uint64_t)size * inner,
                                 .n_runs = (size_t)outer,
                                 .run = (size_t)((uint64_t)part->length * inner)};
    return SHOAL_OK;
}

/* Filling ----------------------------------------------------------------------------------------------- */

/* One run. Chunks end at multiples of their size, so that all but the first begin where a block of words does. */
static char *fill_run(const struct nn_sequence *sequence, const struct nn_law *law, uint64_t first,
                      size_t count, shoal_dtype dtype, char *data)
{
    float scratch[NN_DRAWS_CHUNK];
    bool is_real = dtype == SHOAL_F32 || dtype == SHOAL_F64;
    while (count > 0) {
        size_t n = NN_DRAWS_CHUNK - (size_t)(first % NN_DRAWS_CHUNK);
        n = n < count ? n : count;
        nn_draw_reals(sequence, law, nn_real(dtype), first, n, is_real ? data : (char *)scratch);
        if (!is_real) {
            nn_convert(n, scratch, SHOAL_F32, data, dtype);
        }
        data += n * shoal_dtype_bytes(dtype);
        first += n;
        count -= n;
    }
    return data;
}

void nn_fill_runs(const struct nn_sequence *sequence, const struct nn_law *law, const struct nn_runs *runs,
                  shoal_dtype dtype, void *data)
{
    char *next = data;
    uint64_t mode = shoal_fp_mode_enter();
    for (size_t i = 0; i < runs->n_runs && runs->run > 0; i++) {
        next = fill_run(sequence, law, runs->first + i * runs->stride, runs->run, dtype, next);
    }
    shoal_fp_mode_leave(mode);
}

shoal_status nn_target_open(const char *name, shoal_tensor *tensor, bool reads, struct nn_target *target_out)
{
    *target_out = (struct nn_target){.tensor = tensor, .dtype = shoal_tensor_dtype(tensor)};
    if (!shoal_dtype_is_floating(target_out->dtype)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: %s is not one of f64, f32, f16, bf16", name,
                          shoal_dtype_name(target_out->dtype));
    }
    if (shoal_tensor_device(tensor) == SHOAL_META) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: a tensor on the meta device has no values", name);
    }
    if (shoal_tensor_device(tensor) != SHOAL_CPU) {
        target_out->host_bytes = (size_t)shoal_tensor_count(tensor) * shoal_dtype_bytes(target_out->dtype);
        return SHOAL_OK;
    }
    if (!shoal_tensor_is_contiguous(tensor)) {
        NN_TRY(nn_open(NULL, tensor, reads, &target_out->values));
        target_out->data = target_out->values.data;
        target_out->dtype = nn_real(target_out->dtype);
        return SHOAL_OK;
    }
    target_out->data = shoal_mutable_data(tensor);
    return target_out->data ? SHOAL_OK : SHOAL_ERR_STATE; /* the text is there already */
}

shoal_status nn_target_store(const struct nn_target *target)
{
    if (target->host_bytes > 0) {
        return shoal_write(target->tensor, target->data, target->host_bytes);
    }
    nn_store(target->tensor, &target->values);
    return SHOAL_OK;
}

void nn_target_close(struct nn_target *target)
{
    nn_values_free(&target->values);
}

/* Public calls ------------------------------------------------------------------------------------------ */

static shoal_status check_memory(const char *name, uint64_t first, uint64_t count, uint64_t limit,
                                 const void *data)
{
    if (first > limit || count > limit - first) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %" PRIu64 " from %" PRIu64 " on: more than %" PRIu64, name,
                          count, first, limit);
    }
    return data || count == 0 ? SHOAL_OK : shoal_fail(SHOAL_ERR_INVALID, "%s: data is NULL", name);
}

static shoal_status check_fill(const char *name, const shoal_nn_draws *draws,
                               const shoal_nn_distribution *given, shoal_dtype dtype,
                               shoal_nn_distribution *distribution_out)
{
    if (!draws) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: draws is NULL", name);
    }
    if (!shoal_dtype_is_floating(dtype)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: %s is not one of f64, f32, f16, bf16", name,
                          shoal_dtype_name(dtype));
    }
    return nn_read_distribution(name, given, distribution_out);
}

shoal_status shoal_nn_words(const shoal_nn_draws *draws, uint64_t first, size_t count, uint32_t *words_out)
{
    if (!draws) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_words: draws is NULL");
    }
    NN_TRY(check_memory("nn_words", first, count, UINT64_C(1) << 63, words_out));
    struct nn_sequence sequence = nn_sequence_of(draws);
    nn_draw_words(&sequence, first, count, words_out);
    return SHOAL_OK;
}

shoal_status shoal_nn_fill_part(const shoal_nn_draws *draws, const shoal_nn_distribution *given,
                                shoal_dtype dtype, const shoal_nn_part *part, void *data)
{
    struct nn_runs runs = {.n_runs = 0};
    shoal_nn_distribution distribution = {.struct_size = sizeof(distribution)};
    struct nn_law law = {.is_normal = false};
    NN_TRY(check_fill("nn_fill_part", draws, given, dtype, &distribution));
    NN_TRY(nn_runs_of("nn_fill_part", part, &runs));
    NN_TRY(nn_law_of("nn_fill_part", &distribution, part->shape, part->n_dims, &law));
    NN_TRY(check_memory("nn_fill_part", 0, runs.n_runs * runs.run, MAX_ELEMENTS, data));
    struct nn_sequence sequence = nn_sequence_of(draws);
    nn_fill_runs(&sequence, &law, &runs, dtype, data);
    return SHOAL_OK;
}

shoal_status shoal_nn_fill(const shoal_nn_draws *draws, const shoal_nn_distribution *given,
                           shoal_tensor *tensor)
{
    struct nn_target target = {.tensor = NULL};
    shoal_nn_distribution distribution = {.struct_size = sizeof(distribution)};
    struct nn_law law = {.is_normal = false};
    if (!tensor) {
        return shoal_fail_null("nn_fill", "tensor");
    }
    NN_TRY(check_fill("nn_fill", draws, given, shoal_tensor_dtype(tensor), &distribution));
    NN_TRY(
        nn_law_of("nn_fill", &distribution, shoal_tensor_shape(tensor), shoal_tensor_n_dims(tensor), &law));
    void *host = NULL;
    NN_TRY(nn_target_open("nn_fill", tensor, /*reads=*/false, &target));
    if (target.host_bytes > 0) {
        NN_TRY(nn_scratch(NULL, target.host_bytes, 1, &host));
        target.data = host;
    }
    const struct nn_runs runs = {.n_runs = 1, .run = (size_t)shoal_tensor_count(tensor)};
    struct nn_sequence sequence = nn_sequence_of(draws);
    nn_fill_runs(&sequence, &law, &runs, target.dtype, target.data);
    shoal_status status = nn_target_store(&target);
    nn_target_close(&target);
    free(host);
    return status;
}
