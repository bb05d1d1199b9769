/* SPDX-License-Identifier: MIT */
/*
 * Extensions of gathers. bf16: elements are rounded, and computed with as f32. int8: each row has a scale s = max|row| / 127
 * and elements round-half-even(w / s) clamped to +-127, which are computed with as f32 q * s.
 */
#include "fsdp_extend.h"

#include <math.h>
#include <string.h>

#include "base/try.h"
#include "kernel/half.h"
#include "shoal/fsdp_comm.h"
#include "shoal/fsdp_unit.h"
#include "shoal/fully_shard.h"

static shoal_status round_rows(void *context, const shoal_gather_rows *rows, const void *shard,
                               void *const *buffers)
{
    const float *from = shard;
    uint16_t *to = buffers[0];
    (void)context;
    for (size_t i = 0; i < (size_t)rows->count * rows->row_count; i++) {
        to[i] = half_f32_to_bf16(from[i]);
    }
    return SHOAL_OK;
}

static shoal_status widen_rows(void *context, const shoal_gather_rows *rows, const void *const *buffers,
                               void *out)
{
    const uint16_t *from = buffers[0];
    float *to = out;
    (void)context;
    for (size_t i = 0; i < (size_t)rows->count * rows->row_count; i++) {
        to[i] = half_bf16_to_f32(from[i]);
    }
    return SHOAL_OK;
}

static shoal_status quantize_rows(void *context, const shoal_gather_rows *rows, const void *shard,
                                  void *const *buffers)
{
    int8_t *numbers = buffers[0];
    float *scales = buffers[1];
    (void)context;
    for (int64_t row = 0; row < rows->count; row++) {
        const float *from = (const float *)shard + (size_t)row * rows->row_count;
        float largest = 0;
        for (size_t i = 0; i < rows->row_count; i++) {
            largest = fmaxf(largest, fabsf(from[i]));
        }
        scales[row] = largest / 127;
        for (size_t i = 0; i < rows->row_count; i++) {
            float number = scales[row] > 0 ? rintf(from[i] / scales[row]) : 0;
            numbers[(size_t)row * rows->row_count + i] = (int8_t)fmaxf(-127, fminf(127, number));
        }
    }
    return SHOAL_OK;
}

static shoal_status multiply_rows(void *context, const shoal_gather_rows *rows, const void *const *buffers,
                                  void *out)
{
    const int8_t *numbers = buffers[0];
    const float *scales = buffers[1];
    float *to = out;
    (void)context;
    for (size_t i = 0; i < (size_t)rows->count * rows->row_count; i++) {
        to[i] = (float)numbers[i] * scales[i / rows->row_count];
    }
    return SHOAL_OK;
}

shoal_status fsdp_extend(const struct fsdp_case *run, shoal_module *net)
{
    bool is_int8 = run->gather == FSDP_GATHER_INT8;
    for (int i = 0; run->gather != FSDP_PLAIN_GATHER && i < run->n_names; i++) {
        const struct fsdp_name *name = &run->names[i];
        size_t row_count = 1;
        for (int dim = 1; dim < name->n_dims; dim++) {
            row_count *= (size_t)name->shape[dim];
        }
        const shoal_gather_buffer buffers[] = {{is_int8 ? SHOAL_I8 : SHOAL_BF16, row_count}, {SHOAL_F32, 1}};
        const shoal_gather_extension extension = {.struct_size = sizeof extension,
                                                  .name = is_int8 ? "int8" : "bf16",
                                                  .is_by_rows = true,
                                                  .n_buffers = is_int8 ? 2 : 1,
                                                  .buffers = buffers,
                                                  .encode = is_int8 ? quantize_rows : round_rows,
                                                  .decode = is_int8 ? multiply_rows : widen_rows};
        if (name->is_weight) {
            TRY(shoal_fsdp_set_gather_extension(shoal_fully_shard_param(net, name->text), &extension));
        }
    }
    return SHOAL_OK;
}
