/* SPDX-License-Identifier: MIT */
/*
 * Devices that are loaded: libshoal_<name>-<interface>.so (base/module.h), with one exported function that gives a row. A
 * module may use the public headers, the headers of src/device and src/kernel, and the services that it is given. It sees
 * no other symbol of the library, which may be linked statically. docs/extending.md says how to write one.
 */
#ifndef DEVICE_MODULE_H
#define DEVICE_MODULE_H

#include <stddef.h>
#include <stdint.h>

#include "base/module.h"
#include "device/row.h"
#include "shoal/log.h"

/* What the library does for a module. All functions may be called from any thread. */
struct device_services {
    size_t struct_size; /* these two come first in every version */
    uint32_t interface; /* DEVICE_INTERFACE */
    /* The stream that work of this thread goes to; NULL if the module has no streams. */
    void *(*stream)(const struct device_row *row);

    /* Sets the calling thread's error text and returns `status`: base/error.h. */
    shoal_status (*set_error)(shoal_status status, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
    const char *(*error_text)(void);
    /* Memory: base/mem.h. A failure sets the error text. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    /* Log. Lower case, no newline, "name value" pairs. */
    void (*log)(shoal_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

/*
 * The function that a module exports: const struct device_row *shoal_device_module(const struct device_services
 * *services). It is called once, with services that stay valid, and must check their first two members first. It returns
 * NULL, with the error text set, if the device cannot be used: SHOAL_ERR_UNSUPPORTED.
 */
#define DEVICE_MODULE_ENTRY "shoal_device_module"
#define DEVICE_MODULE_EXPORT __attribute__((visibility("default")))
typedef const struct device_row *device_module_function(const struct device_services *services);
DEVICE_MODULE_EXPORT device_module_function shoal_device_module;

#define DEVICE_MODULE_SUFFIX MODULE_SUFFIX_OF(DEVICE_INTERFACE)

/* SHOAL_ERR_INVALID for a name that no device can have. */
shoal_status device_module_check_name(const char *name);

/* Visits the modules that are found, without loading them (base/module.h). */
shoal_status device_module_list(module_visitor *visit, void *context);

/* Loads the module of a device. SHOAL_ERR_INVALID when there is no such file; SHOAL_ERR_UNSUPPORTED when it does not
   fit, or says that the device cannot be used. */
shoal_status device_module_load(const char *name, const struct device_row **row_out);

#endif
