/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_collective and shoal_group_collective_start: collectives by descriptor. Which fields a kind uses is a row of
 * comm/call/descriptor.def; here they are checked and put into a struct collective.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/work.h"
#include "device/device.h"
#include "shoal/group.h"

enum field_id {
#define FIELD(name, type) FIELD_##name,
#include "comm/call/descriptor.def"
#undef FIELD
    FIELD_COUNT
};

enum field_type {
    FIELD_INT,
    FIELD_SIZE,
    FIELD_REAL,
    FIELD_POINTER
};

static const struct field {
    const char *name;
    size_t offset;
    size_t bytes;
    enum field_type type;
} fields[FIELD_COUNT] = {
#define FIELD(name_, type_)                                           \
    [FIELD_##name_] = {.name = #name_,                                \
                       .offset = offsetof(shoal_collective, name_),   \
                       .bytes = sizeof((shoal_collective *)0)->name_, \
                       .type = FIELD_##type_},
#include "comm/call/descriptor.def"
#undef FIELD
};

#define FIELD(name, type)                                                       \
    _Static_assert(sizeof((shoal_collective *)0)->name == sizeof(uint32_t) ||   \
                       sizeof((shoal_collective *)0)->name == sizeof(uint64_t), \
                   "is_zero reads 4 or 8 bytes");
#include "comm/call/descriptor.def"
#undef FIELD

#define F(name) (1u << FIELD_##name)

static const struct kind {
    const char *name;
    enum collective_kind collective;
    unsigned fields;
} kinds[SHOAL_KIND_COUNT] = {
#define DESCRIPTOR(name_, text, collective_, fields_) \
    [SHOAL_KIND_##name_] = {.name = (text), .collective = COLLECTIVE_##collective_, .fields = (fields_)},
#include "comm/call/descriptor.def"
#undef DESCRIPTOR
};

/* Fields ----------------------------------------------------------------------------------------------- */

static bool is_zero(const shoal_collective *call, const struct field *field)
{
    const char *at = (const char *)call + field->offset;
    uint32_t low = 0;
    uint64_t whole = 0;
    if (field->bytes == sizeof low) {
        memcpy(&low, at, sizeof low);
        return low == 0;
    }
    memcpy(&whole, at, sizeof whole);
    return whole == 0;
}

static const char *write_value(const shoal_collective *call, const struct field *field, char *text,
                               size_t text_bytes)
{
    const void *at = (const char *)call + field->offset;
    int number = 0;
    size_t size = 0;
    double real = 0.0;
    const void *pointer = NULL;
    switch (field->type) {
    case FIELD_INT:
        memcpy(&number, at, sizeof number);
        (void)snprintf(text, text_bytes, "%d", number);
        break;
    case FIELD_SIZE:
        memcpy(&size, at, sizeof size);
        (void)snprintf(text, text_bytes, "%zu", size);
        break;
    case FIELD_REAL:
        memcpy(&real, at, sizeof real);
        (void)snprintf(text, text_bytes, "%g", real);
        break;
    case FIELD_POINTER:
        memcpy(&pointer, at, sizeof pointer);
        (void)snprintf(text, text_bytes, "%p", pointer);
        break;
    }
    return text;
}

static shoal_status fail_unused(const shoal_collective *call, const struct field *field, const char *why)
{
    char value[32];
    return error_set(SHOAL_ERR_INVALID, "%s: %s is %s, but must be 0: %s", kinds[call->kind].name,
                     field->name, write_value(call, field, value, sizeof value), why);
}

/* Those among `wanted` that must be 0, and are not. */
static shoal_status check_unused(const shoal_collective *call, unsigned wanted, const char *why)
{
    for (unsigned left = wanted & ((1u << FIELD_COUNT) - 1); left != 0; left &= left - 1) {
        const struct field *field = &fields[__builtin_ctz(left)];
        if (!is_zero(call, field)) {
            return fail_unused(call, field, why);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_counts(const shoal_collective *call)
{
    unsigned used = kinds[call->kind].fields;
    const char *missing = NULL;
    if ((used & F(counts)) && !call->counts) {
        missing = "counts";
    } else if ((used & F(send_counts)) && !call->send_counts) {
        missing = "send_counts";
    } else if ((used & F(recv_counts)) && !call->recv_counts) {
        missing = "recv_counts";
    }
    return missing ? error_set(SHOAL_ERR_INVALID, "%s: %s is NULL", kinds[call->kind].name, missing)
                   : SHOAL_OK;
}

/* The device of the buffers. Lists without parts are refused later. */
static shoal_device find_device(const shoal_collective *call)
{
    return call->parts && call->n_parts > 0 ? call->parts[0].device : call->device;
}

static shoal_status check_known(const shoal_collective *call, shoal_device device)
{
    char argument[48];
    (void)snprintf(argument, sizeof argument, "%s: device", kinds[call->kind].name);
    return device_check(device, argument);
}

static shoal_status check_parts_device(const shoal_collective *call)
{
    shoal_device first = call->parts[0].device;
    for (size_t i = 1; i < call->n_parts; i++) {
        shoal_device other = call->parts[i].device;
        if (other != first) {
            TRY(check_known(call, first));
            TRY(check_known(call, other));
            return error_set(
                SHOAL_ERR_INVALID,
                "%s: part 0 is on device %s, part %zu on device %s: the parts of a call are on one device",
                kinds[call->kind].name, device_name(first), i, device_name(other));
        }
    }
    return SHOAL_OK;
}

static shoal_status check_device(const shoal_collective *call)
{
    shoal_device device = find_device(call);
    if (call->parts && call->n_parts > 1) {
        TRY(check_parts_device(call));
    }
    if (device == SHOAL_CPU) {
        return SHOAL_OK;
    }
    TRY(check_known(call, device));
    return device_has_data(device)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED, "%s: buffers on device %s, which has no data",
                           kinds[call->kind].name, device_name(device));
}

/* A broadcast has one buffer a part. */
static shoal_status check_parts(const shoal_collective *call)
{
    TRY(check_unused(call, F(send) | F(recv) | F(count) | F(send_blocks) | F(recv_blocks) | F(device),
                     "the buffers are in parts"));
    for (size_t i = 0; i < call->n_parts && call->parts && call->kind == SHOAL_KIND_BROADCAST; i++) {
        if (call->parts[i].send) {
            return error_set(SHOAL_ERR_INVALID,
                             "broadcast: part %zu: send is %p, but must be 0: recv is the buffer", i,
                             call->parts[i].send);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_timeout(const shoal_collective *call)
{
    double most = option_seconds_most(OPTION_TIMEOUT);
    return call->timeout_s >= 0.0 && call->timeout_s <= most
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: timeout_s is %g, 0 (the group's) to %g expected",
                           kinds[call->kind].name, call->timeout_s, most);
}

static shoal_status check_fields(const shoal_collective *call)
{
    if ((int)call->kind < 1 || (int)call->kind >= (int)SHOAL_KIND_COUNT) {
        return error_set(SHOAL_ERR_INVALID, "shoal_collective: kind is %d, 1 to %d expected", (int)call->kind,
                         (int)SHOAL_KIND_COUNT - 1);
    }
    const struct kind *kind = &kinds[call->kind];
    TRY(check_unused(call, ~kind->fields, "this kind does not use it"));
    TRY(check_counts(call));
    if (call->parts || call->n_parts > 0) {
        TRY(check_parts(call));
    }
    if (call->send_blocks) {
        TRY(check_unused(call, F(send), "send_blocks has the buffers"));
    }
    if (call->recv_blocks) {
        TRY(check_unused(call, F(recv), "recv_blocks has the buffers"));
    }
    if ((kind->fields & F(factor)) && call->reduce != SHOAL_PREMUL_SUM) {
        TRY(check_unused(call, F(factor), "only SHOAL_PREMUL_SUM has a factor"));
    }
    if (call->context && !call->on_done && !call->release) {
        return error_set(SHOAL_ERR_INVALID, "%s: context is given, but neither on_done nor release",
                         kind->name);
    }
    TRY(check_device(call));
    return call->timeout_s == 0.0 ? SHOAL_OK : check_timeout(call);
}

/* Calls ------------------------------------------------------------------------------------------------ */

/* Converts a descriptor to what a lane takes. Lists stay the caller's. */
static struct collective translate(const shoal_collective *call)
{
    const struct kind *kind = &kinds[call->kind];
    bool is_broadcast = call->kind == SHOAL_KIND_BROADCAST;
    const size_t *send_counts = call->counts ? call->counts : call->send_counts;
    const size_t *recv_counts = call->counts ? call->counts : call->recv_counts;
    return (struct collective){
        .kind = kind->collective,
        .dtype = (kind->fields & F(dtype)) ? call->dtype : SHOAL_U8,
        .reduce = call->reduce,
        .factor = call->factor,
        .root = call->root,
        .timeout_s = call->timeout_s,
        .single = {is_broadcast ? call->recv : call->send, call->recv, call->count},
        .send_counts = send_counts,
        .recv_counts = recv_counts,
        .send_blocks = call->send_blocks,
        .recv_blocks = call->recv_blocks,
        .device = find_device(call),
    };
}

static shoal_status read_descriptor(const shoal_collective *given, shoal_collective *call_out)
{
    *call_out = (shoal_collective){.struct_size = sizeof *call_out};
    TRY(struct_size_read("shoal_collective", given, sizeof(size_t) + sizeof(shoal_collective_kind), call_out,
                         sizeof *call_out));
    return check_fields(call_out);
}

/* A blocking call has no hooks: its caller knows when it ends. */
static shoal_status check_no_hooks(const shoal_collective *call)
{
    const char *name = call->on_done   ? "on_done"
                       : call->release ? "release"
                       : call->context ? "context"
                                       : NULL;
    return name ? error_set(SHOAL_ERR_INVALID,
                            "%s: %s is given, but must be 0: only shoal_group_collective_start calls back",
                            kinds[call->kind].name, name)
                : SHOAL_OK;
}

shoal_status shoal_group_collective(shoal_group *group, const shoal_collective *call)
{
    error_clear();
    shoal_collective known;
    TRY(read_descriptor(call, &known));
    TRY(check_no_hooks(&known));
    struct collective collective = translate(&known);
    return known.parts || known.n_parts > 0
               ? collectives_run_list(group, &collective, known.parts, known.n_parts)
               : collectives_run(group, &collective);
}

shoal_status shoal_group_collective_start(shoal_group *group, const shoal_collective *call,
                                          shoal_work **work_out)
{
    error_clear();
    shoal_collective known;
    TRY(read_descriptor(call, &known));
    struct collective collective = translate(&known);
    if (!known.on_done && !known.release) {
        return collectives_start_with(group, &collective, known.parts, known.n_parts, NULL, work_out);
    }
    const struct work_hooks hooks = {
        .on_done = known.on_done, .release = known.release, .context = known.context};
    shoal_work *work = NULL;
    TRY(collectives_start_with(group, &collective, known.parts, known.n_parts, &hooks, &work));
    if (work_out) {
        *work_out = work;
    } else {
        shoal_work_free(work);
    }
    return SHOAL_OK;
}
