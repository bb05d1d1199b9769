/* SPDX-License-Identifier: MIT */
/* Loads transports: asks a module for its table, and checks the table. */
#include "transport/module.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/module.h"
#include "base/try.h"
#include "transport/streams.h"

#define FILE_PREFIX "libshoal_transport_"
/* The flavours of one transport (transport/mpi_flavour.h) lie in libshoal_mpi_<flavour>-<interface>.so, and all hold
   transport "mpi". */
#define MPI_PREFIX "libshoal_"

enum {
    N_BUILT_IN = 0
#define TRANSPORT(name, variable) +1
#define CROSSING(name)
#include "transport/transports.def"
#undef CROSSING
#undef TRANSPORT
};
#define MAX_MODULES (TRANSPORTS_MOST - N_BUILT_IN)
_Static_assert(MAX_MODULES > 0, "no room for a module");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct loaded {
    char name[MODULE_NAME_CHARACTERS + 1];
    void *library;
    const struct transport *transport;
};
static struct loaded loaded[MAX_MODULES]; /* under the lock; until the process ends */
static size_t n_loaded;

/* Checking --------------------------------------------------------------------------------------------- */

static shoal_status check_member(const char *name, const char *member, bool is_set)
{
    return is_set ? SHOAL_OK
                  : error_set(SHOAL_ERR_UNSUPPORTED, "transport \"%s\" has no %s, which is required", name,
                              member);
}

static shoal_status check_streams(const char *name, const struct transport_streams *streams)
{
    if (!streams) {
        return SHOAL_OK;
    }
#define CHECK_MEMBER(member) TRY(check_member(name, "streams->" #member, streams->member != NULL))
    CHECK_MEMBER(connect);
    CHECK_MEMBER(disconnect);
    CHECK_MEMBER(free);
    CHECK_MEMBER(open);
    CHECK_MEMBER(put);
    CHECK_MEMBER(take);
    CHECK_MEMBER(can_put);
    CHECK_MEMBER(can_take);
    CHECK_MEMBER(fail);
    CHECK_MEMBER(failure);
    CHECK_MEMBER(poison);
    CHECK_MEMBER(reason);
#undef CHECK_MEMBER
    return SHOAL_OK;
}

shoal_status transport_check(const struct transport *transport)
{
    if (transport->interface != TRANSPORT_INTERFACE || transport->struct_size != sizeof *transport) {
        return error_set(
            SHOAL_ERR_UNSUPPORTED,
            "its table has interface %u and %zu bytes, this library has interface %d and %zu bytes",
            (unsigned)transport->interface, transport->struct_size, TRANSPORT_INTERFACE, sizeof *transport);
    }
    if (transport->layout != TRANSPORT_LAYOUT) {
        return error_set(
            SHOAL_ERR_UNSUPPORTED,
            "it was built with other structs than this library (layout %u, %u expected): build both "
            "together",
            (unsigned)transport->layout, (unsigned)TRANSPORT_LAYOUT);
    }
    const char *name = transport->name ? transport->name : "?";
#define CHECK_MEMBER(member) TRY(check_member(name, #member, transport->member != NULL))
    CHECK_MEMBER(name);
    CHECK_MEMBER(doc);
    CHECK_MEMBER(connect);
    CHECK_MEMBER(disconnect);
    CHECK_MEMBER(post);
    CHECK_MEMBER(is_ready);
    CHECK_MEMBER(finish);
    CHECK_MEMBER(run);
    CHECK_MEMBER(poison);
    CHECK_MEMBER(failure);
#undef CHECK_MEMBER
    TRY(check_member(name, "close", !transport->open || transport->close));
    TRY(check_member(name, "memory->open", !transport->memory || transport->memory->open));
    TRY(check_member(name, "memory->drop", !transport->memory || transport->memory->drop));
    return check_streams(name, transport->streams);
}

/* Finding ---------------------------------------------------------------------------------------------- */

static bool is_mpi(const char *name)
{
    return strncmp(name, MPI_MODULE_PREFIX, strlen(MPI_MODULE_PREFIX)) == 0;
}

static const char *prefix_of(const char *name)
{
    return is_mpi(name) ? MPI_PREFIX : FILE_PREFIX;
}

static const struct module_kind kind = {
    .what = "transport",
    .entry = TRANSPORT_MODULE_ENTRY,
    .suffix = TRANSPORT_MODULE_SUFFIX,
    .built_in = ""
#define TRANSPORT(name, variable) " " #name
#define CROSSING(name)
#include "transport/transports.def"
#undef CROSSING
#undef TRANSPORT
    ,
    .prefixes = (const char *const[]){FILE_PREFIX, MPI_PREFIX, NULL},
    .prefix_of = prefix_of,
};

bool transport_module_is_there(const char *name)
{
    return module_is_there(&kind, name);
}

shoal_status transport_module_list(module_visitor *visit, void *context)
{
    return module_list(&kind, visit, context);
}

/* Loading ---------------------------------------------------------------------------------------------- */

static shoal_status ask_module(const struct module *module, const char *name,
                               const struct transport_services *services,
                               const struct transport **transport_out)
{
    transport_module_function *ask = NULL;
    /* The one way from an object pointer to a function pointer that POSIX blesses. */
    *(void **)&ask = module->entry;
    error_clear();
    const struct transport *transport = ask(services);
    if (!transport) {
        const char *text = shoal_error_text();
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s",
                         *text ? text : "it returned no transport, and no reason");
    }
    TRY(transport_check(transport));
    if (strcmp(transport->name, is_mpi(name) ? "mpi" : name) != 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "it holds transport \"%s\"", transport->name);
    }
    *transport_out = transport;
    return SHOAL_OK;
}

static shoal_status load(const char *name, const struct transport_services *services, struct loaded *row_out)
{
    struct module module;
    TRY(module_open(&kind, name, &module));
    *row_out = (struct loaded){.library = module.library};
    (void)snprintf(row_out->name, sizeof row_out->name, "%s", name);
    shoal_status status = ask_module(&module, name, services, &row_out->transport);
    if (status != SHOAL_OK) {
        return error_prefix(status, "transport module %.200s", module.path);
    }
    LOG(SHOAL_LOG_INFO, "transport %s loaded from %s", name, module.path);
    return SHOAL_OK;
}

/* Under the lock. */
static shoal_status find_or_load(const char *name, const struct transport_services *services,
                                 const struct loaded **row_out)
{
    for (size_t i = 0; i < n_loaded; i++) {
        if (strcmp(loaded[i].name, name) == 0) {
            *row_out = &loaded[i];
            return SHOAL_OK;
        }
    }
    if (n_loaded == MAX_MODULES) {
        return error_set(
            SHOAL_ERR_UNSUPPORTED,
            "transport \"%s\" is one too many: a process can have %d, %d are built in and %d were "
            "loaded already",
            name, TRANSPORTS_MOST, N_BUILT_IN, MAX_MODULES);
    }
    TRY(load(name, services, &loaded[n_loaded]));
    *row_out = &loaded[n_loaded++];
    return SHOAL_OK;
}

shoal_status transport_module_load(const char *name, const struct transport_services *services,
                                   const struct transport **transport_out)
{
    const struct loaded *row = NULL;
    TRY(module_check_name(&kind, name));
    (void)pthread_mutex_lock(&lock);
    shoal_status status = find_or_load(name, services, &row);
    (void)pthread_mutex_unlock(&lock);
    if (status == SHOAL_OK) {
        *transport_out = row->transport;
    }
    return status;
}

void *transport_module_symbol(const struct transport *transport, const char *symbol)
{
    void *found = NULL;
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_loaded && !found; i++) {
        found = loaded[i].transport == transport ? dlsym(loaded[i].library, symbol) : NULL;
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}
