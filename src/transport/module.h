/* SPDX-License-Identifier: MIT */
/*
 * Transports that are loaded: libshoal_transport_<name>-<interface>.so (base/module.h). docs/design/transport.md says where
 * exactly it is looked for, and how to write one.
 *
 * A module may use the public headers, the inline functions of src/transport, and the services that it is given. It
 * sees no other symbol of the library, which may be linked statically. A module is never unloaded.
 */
#ifndef TRANSPORT_MODULE_H
#define TRANSPORT_MODULE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/module.h"
#include "shoal/dtype.h"
#include "shoal/log.h"
#include "shoal/status.h"
#include "transport/collective.h"
#include "transport/fingerprint.h"
#include "transport/transport.h"

struct endpoint_kind; /* transport/message/endpoint.h */
struct wait_options;  /* base/wait.h */

/* What the library does for a module. All functions may be called from any thread, after start-up and before it. */
struct transport_services {
    size_t struct_size; /* these four come first in every version */
    uint32_t interface; /* TRANSPORT_INTERFACE */
    uint32_t layout;    /* TRANSPORT_LAYOUT */
    /* Sets the calling thread's error text and returns `status`. */
    shoal_status (*set_error)(shoal_status status, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

    /* Error text: base/error.h. */
    shoal_status (*set_error_v)(shoal_status status, const char *format, va_list arguments)
        __attribute__((format(printf, 2, 0)));
    shoal_status (*prefix_error)(shoal_status status, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
    const char *(*error_text)(void);
    void (*error_clear)(void);

    /* Memory: base/mem.h. A failure sets the error text. */
    void *(*alloc)(size_t bytes);
    void *(*alloc_zeroed)(size_t count, size_t size);
    shoal_status (*grow)(void **array, size_t *capacity, size_t needed, size_t element_bytes);
    void (*free)(void *memory);

    /* Clock: base/clock.h. */
    int64_t (*now_ns)(void);
    int64_t (*deadline_after)(double seconds);

    /* Waiting, with deadline and liveness: base/wait.h. */
    shoal_status (*wait_while_equal)(_Atomic uint32_t *word, uint32_t value,
                                     const struct wait_options *options);
    void (*wake_all)(_Atomic uint32_t *word, bool is_shared);
    void (*sleep)(int64_t ns);

    /* Log. Lower case, no newline, "name value" pairs. */
    void (*log)(shoal_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

    /* The variable SHOAL_TRANSPORT_<name> of the environment; "" when it is not set. The text stays. */
    const char *(*variable)(const char *name);

    /* Kernels (kernel/kernel.h): the ordered fold of n sources, rank 0's first; copies; casts. */
    shoal_status (*reduce)(shoal_reduce_op reduce, shoal_dtype dtype, void *result,
                           const void *const *sources, size_t n_sources, size_t count, double factor);
    void (*copy)(void *target, const void *source, size_t bytes);
    void (*cast)(shoal_dtype target_dtype, void *target, shoal_dtype source_dtype, const void *source,
                 size_t count);

    /* Calls: transport/fingerprint.h, transport/collective.h, transport/transport.h. */
    struct fingerprint (*fingerprint_take)(const struct collective *collective, int n_ranks,
                                           int64_t *details);
    void (*fingerprint_take_words)(const struct collective *collective, char words[PURPOSE_WORDS_BYTES]);
    shoal_status (*fingerprint_fail)(const struct transport_peers *peers, const struct fingerprint_call *own,
                                     int peer, const struct fingerprint_call *theirs);
    const char *(*collective_describe)(const struct collective *collective, char *text, size_t text_bytes);
    const char *(*describe_timeout)(const struct transport_peers *peers, const struct collective *collective,
                                    char *text, size_t text_bytes);

    /* A transport that is built in, by its name; NULL if there is none. For inner and companion channels. */
    const struct transport *(*built_in)(const char *name);
    /* Compares a call on a companion channel: transport/companion.h. */
    shoal_status (*companion_meet)(struct channel *companion, const struct collective *collective);

    /*
     * Makes a transport of an endpoint that only sends, receives, tests, cancels and progresses; the library adds
     * channels, streams, comparison, ordered fold and poison. The transport lives as long as the process. Returns NULL,
     * with the error text set, if the kind does not fit or there are too many.
     */
    const struct transport *(*message_transport)(const struct endpoint_kind *kind);
};

/*
 * The function that a module exports: const struct transport *shoal_transport_module(const struct transport_services
 * *services). It is called once, with services that stay valid, and must check them first (transport_services_fit). It
 * returns NULL, with the error text set, if the module cannot be used.
 */
#define TRANSPORT_MODULE_ENTRY "shoal_transport_module"
#define TRANSPORT_MODULE_EXPORT __attribute__((visibility("default")))
typedef const struct transport *transport_module_function(const struct transport_services *services);
TRANSPORT_MODULE_EXPORT transport_module_function shoal_transport_module;

/* Whether the library has the services that this module was built for; otherwise the error text says both. */
static inline bool transport_services_fit(const struct transport_services *services)
{
    if (services->interface == TRANSPORT_INTERFACE && services->layout == TRANSPORT_LAYOUT &&
        services->struct_size >= sizeof *services) {
        return true;
    }
    (void)services->set_error(
        SHOAL_ERR_UNSUPPORTED,
        "it was built for interface %d (layout %u) with services of %zu bytes, the library has "
        "interface %u (layout %u) and %zu bytes",
        TRANSPORT_INTERFACE, (unsigned)TRANSPORT_LAYOUT, sizeof *services, (unsigned)services->interface,
        (unsigned)services->layout, services->struct_size);
    return false;
}

/* services.c: the library's, but for built_in, which registry.c adds. */
extern const struct transport_services transport_services;

/*
 * Returns the transport of a module. The first call loads it and gives it the services, which must stay valid.
 * SHOAL_ERR_INVALID when there is no such file; SHOAL_ERR_UNSUPPORTED when the module does not fit, with what was
 * expected and what was found.
 */
shoal_status transport_module_load(const char *name, const struct transport_services *services,
                                   const struct transport **transport_out);

#define TRANSPORT_MODULE_SUFFIX MODULE_SUFFIX_OF(TRANSPORT_INTERFACE)

/* Modules whose names begin with this are the flavours of transport "mpi", in libshoal_<name>-<interface>.so
   (transport/mpi_flavour.h). */
#define MPI_MODULE_PREFIX "mpi_"

/* Whether there is a file that transport_module_load would try. */
bool transport_module_is_there(const char *name);

/* Returns what else the module of a transport exports; NULL if it has nothing of this name, or the transport is built
   in. */
void *transport_module_symbol(const struct transport *transport, const char *symbol);

/* Visits the modules in the folders where they are looked for (base/module.h). */
shoal_status transport_module_list(module_visitor *visit, void *context);

/* SHOAL_OK if a table can be used: size, interface, and all that is required. */
shoal_status transport_check(const struct transport *transport);

#endif
