/* SPDX-License-Identifier: MIT */
/* Loads transports: finds the file, asks it for its table, and checks the table. */
#include "transport/module.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "transport/streams.h"

#define PATH_BYTES 4096
#define MODULE_FOLDER "shoal"
#define MAX_NAME_CHARACTERS 64
#define FILE_PREFIX "libshoal_transport_"
#define FILE_SUFFIX TRANSPORT_MODULE_SUFFIX
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
    char name[MAX_NAME_CHARACTERS + 1];
    void *library;
    const struct transport *transport;
};
static struct loaded loaded[MAX_MODULES]; /* under the lock; until the process ends */
static size_t n_loaded;

static const char known_names[] =
#define TRANSPORT(name, variable) " " #name
#define CROSSING(name)
#include "transport/transports.def"
#undef CROSSING
#undef TRANSPORT
    ;

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

static bool is_name(const char *name)
{
    size_t length = strnlen(name, MAX_NAME_CHARACTERS + 1);
    return length > 0 && length <= MAX_NAME_CHARACTERS &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

/* Names become part of a path. */
static shoal_status check_name(const char *name)
{
    return is_name(name) ? SHOAL_OK
                         : error_set(SHOAL_ERR_INVALID,
                                     "\"%.64s\" cannot be the name of a transport: 1 to %d letters a to z, "
                                     "digits and '_' expected; built-in transports are:%s",
                                     name, MAX_NAME_CHARACTERS, known_names);
}

static bool is_mpi(const char *name)
{
    return strncmp(name, MPI_MODULE_PREFIX, strlen(MPI_MODULE_PREFIX)) == 0;
}

static const char *prefix_of(const char *name)
{
    return is_mpi(name) ? MPI_PREFIX : FILE_PREFIX;
}

/* Whether this code is part of the program, not of a shared library. */
static bool is_in_program(const Dl_info *own)
{
    Dl_info program;
    /* The one way from a number to a pointer: where the program begins to run. */
    void *entry = (void *)(uintptr_t)getauxval(AT_ENTRY);
    return dladdr(entry, &program) != 0 && program.dli_fbase == own->dli_fbase;
}

/* The folder of the file that holds this code: the library's, or that of a program it is linked into. "" if unknown. */
static void find_own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    char program[PATH_BYTES];
    const char *file = NULL;
    if (dladdr(&lock, &info) != 0) {
        file = info.dli_fname;
        /* The name of a program is what it was called by: without a folder if it was found in PATH. */
        if (is_in_program(&info)) {
            ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
            program[length > 0 ? length : 0] = '\0';
            file = length > 0 ? program : file;
        }
    }
    const char *slash = file ? strrchr(file, '/') : NULL;
    int length = slash ? (int)(slash - file) : 0;
    int n_characters = snprintf(folder, bytes, "%.*s", length, slash ? file : "");
    if (n_characters < 0 || (size_t)n_characters >= bytes) {
        folder[0] = '\0';
    }
}

/* Where modules are looked for -------------------------------------------------------------------------- */

/* Whoever starts a program that may do more than he may does not choose the code that it loads. */
static bool is_path_used(void)
{
    return getauxval(AT_SECURE) == 0;
}

/* Appends to the path of a folder; it becomes "" if that is too long. */
static void append(char folder[PATH_BYTES], const char *below)
{
    size_t length = strlen(folder);
    int n_characters = snprintf(folder + length, PATH_BYTES - length, "/%s", below);
    if (n_characters < 0 || (size_t)n_characters >= PATH_BYTES - length) {
        folder[0] = '\0';
    }
}

/*
 * Returns folder number `index` of those where modules are looked for: the folders of SHOAL_MODULE_PATH, the folder
 * "shoal" beside the library, and the folder of installed modules relative to a program that is installed with them. A
 * folder that is unknown is "". Returns false if there are no more.
 */
static bool get_folder(size_t index, char folder[PATH_BYTES])
{
    const char *at = is_path_used() ? option_text(OPTION_MODULE_PATH) : "";
    folder[0] = '\0';
    for (; *at != '\0'; index--) {
        size_t length = strcspn(at, ":");
        if (index == 0) {
            (void)snprintf(folder, PATH_BYTES, "%.*s", length < PATH_BYTES ? (int)length : 0, at);
            return true;
        }
        at += length + (at[length] == ':');
    }
    if (index <= 1) {
        find_own_folder(folder, PATH_BYTES);
    }
    if (folder[0] != '\0') {
        append(folder, index == 0 ? MODULE_FOLDER : MODULE_LIBRARY_FOLDER "/" MODULE_FOLDER);
    }
    return index <= 1;
}

/* Why folders could not be looked into. */
struct search {
    char path[PATH_BYTES]; /* of what was looked for last */
    char trouble[160];     /* of the first folder; "" if the file is nowhere */
};

/* Whether the folder has the module; then search->path is its path. */
static bool find_in(const char *folder, const char *name, struct search *search)
{
    int n_characters =
        snprintf(search->path, PATH_BYTES, "%s/%s%s" FILE_SUFFIX, folder, prefix_of(name), name);
    if (folder[0] == '\0') {
        return false;
    }
    int code = n_characters < 0 || n_characters >= PATH_BYTES ? ENAMETOOLONG
               : access(search->path, F_OK) == 0              ? 0
                                                              : errno;
    if (code != 0 && code != ENOENT && code != ENOTDIR && search->trouble[0] == '\0') {
        (void)snprintf(search->trouble, sizeof search->trouble, "; %.100s: %s", folder,
                       error_errno_text(code));
    }
    return code == 0;
}

static bool is_found(const char *name, struct search *search)
{
    char folder[PATH_BYTES];
    search->trouble[0] = '\0';
    for (size_t i = 0; get_folder(i, folder); i++) {
        if (find_in(folder, name, search)) {
            return true;
        }
    }
    return false;
}

bool transport_module_is_there(const char *name)
{
    struct search search;
    return is_name(name) && is_found(name, &search);
}

/* Whether a file is the module of this name for another interface, or without one in its name. */
static bool is_for_other_interface(const char *file, const char *name)
{
    const char *at = file;
    for (const char *part = prefix_of(name); part; part = part == name ? NULL : name) {
        if (strncmp(at, part, strlen(part)) != 0) {
            return false;
        }
        at += strlen(part);
    }
    if (*at == '-') {
        at += 1 + strspn(at + 1, "0123456789");
    }
    return strcmp(at, ".so") == 0;
}

/* Gives the name of the first such file of a folder. Returns false if there is none. */
static bool find_other(const char *folder, const char *name, char file[NAME_MAX + 1])
{
    DIR *stream = folder[0] != '\0' ? opendir(folder) : NULL;
    const struct dirent *entry;
    bool is_there = false;
    while (stream && !is_there && (entry = readdir(stream)) != NULL) {
        is_there = is_for_other_interface(entry->d_name, name);
        if (is_there) {
            (void)snprintf(file, NAME_MAX + 1, "%s", entry->d_name);
        }
    }
    if (stream) {
        (void)closedir(stream);
    }
    return is_there;
}

/* An error about a module that would have been found with another interface in its name; SHOAL_OK if there is none. */
static shoal_status check_others(const char *name)
{
    char folder[PATH_BYTES];
    char file[NAME_MAX + 1];
    for (size_t i = 0; get_folder(i, folder); i++) {
        if (find_other(folder, name, file)) {
            return error_set(
                SHOAL_ERR_INVALID,
                "there is no transport \"%s\": %.150s has %.100s, which is for another version of "
                "the library; this one needs %s%s" FILE_SUFFIX,
                name, folder, file, prefix_of(name), name);
        }
    }
    return SHOAL_OK;
}

static shoal_status find_path(const char *name, struct search *search)
{
    char folder[PATH_BYTES];
    if (is_found(name, search)) {
        return SHOAL_OK;
    }
    TRY(check_others(name));
    find_own_folder(folder, sizeof folder);
    const char *set = is_path_used() ? option_text(OPTION_MODULE_PATH) : "";
    const char *none = is_path_used() ? "not set, or too long"
                                      : "not used: the program is set-uid, set-gid or has capabilities";
    return error_set(SHOAL_ERR_INVALID,
                     "there is no transport \"%s\": built in are:%s, and %s%s" FILE_SUFFIX
                     " is neither in %.120s/" MODULE_FOLDER ", in " MODULE_LIBRARY_FOLDER "/" MODULE_FOLDER
                     " from there, nor in SHOAL_MODULE_PATH (%.120s)%s",
                     name, known_names, prefix_of(name), name, folder, *set != '\0' ? set : none,
                     search->trouble);
}

/* Listing ---------------------------------------------------------------------------------------------- */

typedef char module_name[MAX_NAME_CHARACTERS + 1];

struct module_names {
    module_name *names;
    size_t n_names;
    size_t capacity;
};

/* Gives the name in "libshoal_transport_<name>-<interface>.so" or "libshoal_<mpi_flavour>-<interface>.so". Returns false
   if it is no such file, or one for another interface. */
static bool read_name(const char *file, module_name name)
{
    bool is_flavour = strncmp(file, MPI_PREFIX, strlen(MPI_PREFIX)) == 0 && is_mpi(file + strlen(MPI_PREFIX));
    const char *prefix = is_flavour ? MPI_PREFIX : FILE_PREFIX;
    size_t before = strlen(prefix);
    size_t after = strlen(FILE_SUFFIX);
    size_t length = strlen(file);
    if (length <= before + after || length - before - after > MAX_NAME_CHARACTERS ||
        strncmp(file, prefix, before) != 0 || strcmp(file + length - after, FILE_SUFFIX) != 0) {
        return false;
    }
    memcpy(name, file + before, length - before - after);
    name[length - before - after] = '\0';
    return is_name(name) && is_mpi(name) == is_flavour;
}

static shoal_status list_folder(struct module_names *list, const char *folder)
{
    DIR *stream = folder[0] != '\0' ? opendir(folder) : NULL;
    const struct dirent *entry;
    shoal_status status = SHOAL_OK;
    while (stream && status == SHOAL_OK && (entry = readdir(stream)) != NULL) {
        module_name name;
        if (read_name(entry->d_name, name)) {
            status =
                mem_grow((void **)&list->names, &list->capacity, list->n_names + 1, sizeof list->names[0]);
            if (status == SHOAL_OK) {
                memcpy(list->names[list->n_names++], name, sizeof name);
            }
        }
    }
    if (stream) {
        (void)closedir(stream);
    }
    return status;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static shoal_status visit_names(const struct module_names *list, transport_module_visitor *visit,
                                void *context)
{
    for (size_t i = 0; i < list->n_names; i++) {
        struct search search;
        bool is_known = i > 0 && strcmp(list->names[i], list->names[i - 1]) == 0;
        if (!is_known && find_path(list->names[i], &search) == SHOAL_OK) {
            TRY(visit(context, list->names[i], search.path));
        }
    }
    return SHOAL_OK;
}

shoal_status transport_module_list(transport_module_visitor *visit, void *context)
{
    struct module_names list = {0};
    char folder[PATH_BYTES];
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; status == SHOAL_OK && get_folder(i, folder); i++) {
        status = list_folder(&list, folder);
    }
    if (status == SHOAL_OK && list.n_names > 0) {
        qsort(list.names, list.n_names, sizeof list.names[0], compare_names);
        status = visit_names(&list, visit, context);
    }
    mem_free(list.names);
    return status;
}

/* Loading ---------------------------------------------------------------------------------------------- */

static shoal_status ask_module(void *library, const char *name, const struct transport_services *services,
                               const struct transport **transport_out)
{
    transport_module_function *module = NULL;
    /* The one way from an object pointer to a function pointer that POSIX blesses. */
    *(void **)&module = dlsym(library, TRANSPORT_MODULE_ENTRY);
    if (!module) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "it exports no " TRANSPORT_MODULE_ENTRY);
    }
    error_clear();
    const struct transport *transport = module(services);
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
    struct search search;
    TRY(find_path(name, &search));
    const char *path = search.path;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return error_set(SHOAL_ERR_UNSUPPORTED, "transport \"%s\" cannot be loaded: %.300s", name,
                         reason ? reason : path);
    }
    *row_out = (struct loaded){.library = library};
    (void)snprintf(row_out->name, sizeof row_out->name, "%s", name);
    shoal_status status = ask_module(library, name, services, &row_out->transport);
    /* Never unloaded: threads or other libraries may have kept what is there. */
    if (status != SHOAL_OK) {
        return error_prefix(status, "transport module %.200s", path);
    }
    LOG(SHOAL_LOG_INFO, "transport %s loaded from %s", name, path);
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
    TRY(check_name(name));
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
