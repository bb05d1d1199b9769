/* SPDX-License-Identifier: MIT */
/* Parameters with extensions: who encodes and decodes what, for each way to gather; encoded.h has the picture. */
#include "parallel/fsdp/engine/gather/encoded.h"

#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "device/device.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/gather/full.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"

shoal_status fsdp_encode(const struct fsdp_unit *unit, const struct fsdp_param *param, struct address encoded)
{
    struct fsdp_context *context = unit->context;
    context->n_callbacks++;
    shoal_status status = fsdp_extension_encode(param, unit->mesh->gather, address_pointer(encoded));
    context->n_callbacks--;
    return status;
}

/* Windows ------------------------------------------------------------------------------------------------ */

/* Whether encoded shards go to ranks that do not read this rank's window. The same on all ranks. */
static bool crosses_hosts(const struct fsdp_unit *unit)
{
    const struct fsdp_mesh *mesh = unit->mesh;
    return mesh->n_shards > 1 && group_n_local(mesh->gather) < mesh->n_shards;
}

void fsdp_encoded_lay_out(struct fsdp_unit *unit)
{
    bool is_crossing = fsdp_has_extension(unit) && crosses_hosts(unit);
    size_t staged = 0;
    unit->gather.window_bytes = unit->gather.bytes;
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_extension *extension = unit->params[i].extension;
        if (extension) {
            extension->staged_offset = staged;
            staged += fsdp_round_up(extension->bytes);
            extension->window_offset = unit->gather.window_bytes;
            unit->gather.window_bytes +=
                is_crossing ? fsdp_round_up((size_t)extension->n_shards * extension->bytes) : 0;
        }
    }
    unit->gather.encoded_bytes = staged;
}

/* Extensions are refused where the host has no access. */
static char *staged_of(const struct fsdp_unit *unit)
{
    return address_pointer(unit->gather.staged);
}

static shoal_status encode_all(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->extension) {
            ptrdiff_t at = (ptrdiff_t)param->extension->staged_offset;
            TRY(fsdp_encode(unit, param, address_add(unit->gather.staged, at)));
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_encoded_stage(struct fsdp_unit *unit)
{
    if (unit->state == FSDP_KEPT || !fsdp_has_extension(unit)) {
        return SHOAL_OK;
    }
    size_t bytes = unit->gather.encoded_bytes;
    shoal_status status = device_memory_allocate(unit->device, bytes, &unit->gather.staged);
    if (status != SHOAL_OK) {
        return fsdp_mark_failure(unit, error_prefix(status, "memory to encode parameters"));
    }
    unit->gather.staged_bytes = bytes;
    unit->gather.undecoded = SHOAL_OK;
    fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
    status = encode_all(unit);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_mark_failure(unit, status);
}

void fsdp_encoded_drop(struct fsdp_unit *unit)
{
    if (!address_is_none(unit->gather.staged)) {
        fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, unit->gather.staged_bytes);
        device_memory_free(unit->device, unit->gather.staged);
        unit->gather.staged = ADDRESS_NONE;
    }
}

/* Where the encoded shard of a member is in the window, in bytes. */
static size_t place_of(const struct fsdp_extension *extension, int member)
{
    return extension->window_offset + (size_t)member * extension->bytes;
}

size_t fsdp_encoded_piece(const struct fsdp_unit *unit, const struct fsdp_param *param,
                          shoal_window_piece *piece)
{
    const struct fsdp_extension *extension = param->extension;
    if (!crosses_hosts(unit)) {
        return 0;
    }
    *piece = (shoal_window_piece){.data = staged_of(unit) + extension->staged_offset,
                                  .count = extension->bytes,
                                  .data_dtype = SHOAL_U8,
                                  .window_dtype = SHOAL_U8,
                                  .offset = place_of(extension, unit->mesh->shard)};
    return 1;
}

static shoal_status decode_member(const struct fsdp_unit *unit, int member, char *window)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        const struct fsdp_extension *extension = param->extension;
        if (!extension) {
            continue;
        }
        const char *encoded = member == unit->mesh->shard ? staged_of(unit) + extension->staged_offset
                                                          : window + place_of(extension, member);
        TRY(fsdp_extension_decode(param, member, encoded, window + param->window_offset));
    }
    return SHOAL_OK;
}

/* As for ranks that differ, so that each rank that meets the failure tells it on its other lanes. */
shoal_status fsdp_encoded_decode(void *context, int member, char *window)
{
    char text[ERROR_TEXT_BYTES];
    struct fsdp_unit *unit = context;
    shoal_status status = decode_member(unit, member, window);
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    unit->gather.undecoded = status; /* read once the work has ended */
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    return error_set(SHOAL_ERR_MISMATCH, "%s", text);
}

shoal_status fsdp_encoded_tell(struct fsdp_unit *unit, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    if (unit->gather.undecoded == SHOAL_OK) {
        return status;
    }
    (void)fsdp_tell_every_lane(unit->context, SHOAL_ERR_MISMATCH);
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    status = unit->gather.undecoded;
    unit->gather.undecoded = SHOAL_OK;
    return error_set(status, "%s", text);
}

/* One shard ---------------------------------------------------------------------------------------------- */

shoal_status fsdp_encoded_alone(struct fsdp_unit *unit)
{
    shoal_status status = fsdp_encoded_stage(unit);
    for (size_t i = 0; i < unit->n_params && status == SHOAL_OK; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->extension) {
            status = fsdp_extension_decode_all(param, staged_of(unit) + param->extension->staged_offset, 0,
                                               address_pointer(fsdp_full_at(unit, param)));
            status = status == SHOAL_OK ? SHOAL_OK : fsdp_mark_failure(unit, status);
        }
    }
    fsdp_encoded_drop(unit);
    return status;
}
