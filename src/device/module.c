/* SPDX-License-Identifier: MIT */
/* Loads devices: asks a module for its row, and checks the row. */
#include "device/module.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "device/stream.h"

#define FILE_PREFIX "libshoal_"

/* Modules of transports have such names, too (transport/module.h). */
static const char *prefix_of(const char *name)
{
    bool is_transport =
        strncmp(name, "transport_", strlen("transport_")) == 0 || strncmp(name, "mpi_", strlen("mpi_")) == 0;
    return is_transport ? NULL : FILE_PREFIX;
}

static const struct module_kind kind = {
    .what = "device",
    .entry = DEVICE_MODULE_ENTRY,
    .suffix = DEVICE_MODULE_SUFFIX,
    .built_in = " cpu meta",
    .prefixes = (const char *const[]){FILE_PREFIX, NULL},
    .prefix_of = prefix_of,
};

/* Services --------------------------------------------------------------------------------------------- */

static void *give_stream(const struct device_row *row)
{
    for (int i = 0; i < device_count_loaded(); i++) {
        if (device_slots[i].row == row) {
            return stream_current((shoal_device)(DEVICE_FIRST_MODULE + i));
        }
    }
    return NULL;
}

static const struct device_services services = {
    .struct_size = sizeof services,
    .interface = DEVICE_INTERFACE,
    .stream = give_stream,
    .set_error = error_set,
    .error_text = shoal_error_text,
    .alloc = mem_alloc,
    .free = mem_free,
    .log = log_write,
};

/* Loading ---------------------------------------------------------------------------------------------- */

shoal_status device_module_check_name(const char *name)
{
    return module_check_name(&kind, name);
}

shoal_status device_module_list(module_visitor *visit, void *context)
{
    return module_list(&kind, visit, context);
}

static shoal_status check_member(const char *member, bool is_set)
{
    return is_set ? SHOAL_OK
                  : error_set(SHOAL_ERR_UNSUPPORTED, "its row has no %s, which is required", member);
}

static shoal_status check_row(const struct device_row *row, const char *name)
{
    if (row->interface != DEVICE_INTERFACE || row->struct_size != sizeof *row) {
        return error_set(
            SHOAL_ERR_UNSUPPORTED,
            "its row has interface %u and %zu bytes, this library has interface %d and %zu bytes",
            (unsigned)row->interface, row->struct_size, DEVICE_INTERFACE, sizeof *row);
    }
#define CHECK_MEMBER(member) TRY(check_member(#member, row->member != NULL))
    CHECK_MEMBER(name);
    CHECK_MEMBER(doc);
    CHECK_MEMBER(kernels);
    CHECK_MEMBER(allocate);
    CHECK_MEMBER(release);
    CHECK_MEMBER(copy_in);
    CHECK_MEMBER(copy_out);
    CHECK_MEMBER(failure);
    for (const struct device_row *lending = row->take_host ? row : NULL; lending; lending = NULL) {
        CHECK_MEMBER(give_host);
    }
    for (const struct device_row *sharing = row->share_create ? row : NULL; sharing; sharing = NULL) {
        CHECK_MEMBER(share_map);
        CHECK_MEMBER(share_drop);
    }
    for (const struct device_streams *streams = row->streams; streams; streams = NULL) {
        CHECK_MEMBER(streams->create);
        CHECK_MEMBER(streams->destroy);
        CHECK_MEMBER(streams->record);
        CHECK_MEMBER(streams->follow);
        CHECK_MEMBER(streams->query);
        CHECK_MEMBER(streams->drop);
    }
#undef CHECK_MEMBER
    if (strcmp(row->name, name) != 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "it holds device \"%s\"", row->name);
    }
    return check_member("data", row->has_data);
}

static shoal_status ask_module(const struct module *module, const char *name,
                               const struct device_row **row_out)
{
    device_module_function *ask = NULL;
    /* The one way from an object pointer to a function pointer that POSIX blesses. */
    *(void **)&ask = module->entry;
    error_clear();
    const struct device_row *row = ask(&services);
    if (!row) {
        const char *text = shoal_error_text();
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s", *text ? text : "it returned no row, and no reason");
    }
    TRY(check_row(row, name));
    *row_out = row;
    return SHOAL_OK;
}

shoal_status device_module_load(const char *name, const struct device_row **row_out)
{
    struct module module;
    TRY(module_open(&kind, name, &module));
    shoal_status status = ask_module(&module, name, row_out);
    if (status != SHOAL_OK) {
        return error_prefix(status, "device module %.200s", module.path);
    }
    LOG(SHOAL_LOG_INFO, "device %s loaded from %s", name, module.path);
    return SHOAL_OK;
}
