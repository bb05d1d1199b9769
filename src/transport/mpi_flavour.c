/* SPDX-License-Identifier: MIT */
/* Which MPI library the process uses: mpi_flavour.h. */
#include "transport/mpi_flavour.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "transport/module.h"

/* MPICH writes up to 8192 characters. */
#define VERSION_BYTES 16384
#define PATH_BYTES 1024

static const struct flavour {
    const char *name;
    const char *words;
    const char *variable;
} flavours[] = {
#define MPI_FLAVOUR(name, words, variable) {#name, words, variable},
#include "transport/mpi_flavours.def"
#undef MPI_FLAVOUR
};

#define N_FLAVOURS (sizeof flavours / sizeof flavours[0])

/* In the process ---------------------------------------------------------------------------------------- */

struct in_process {
    const struct flavour *flavour; /* NULL if there is none, or one that is not known */
    char path[PATH_BYTES];         /* of its library; "" if there is none */
    bool is_unknown;
    bool are_two;
    char other_path[PATH_BYTES];
};

typedef int version_function(char *text, int *length);

static const struct flavour *ask_library(void *library)
{
    version_function *version = NULL;
    /* The one way from an object pointer to a function pointer that POSIX blesses. */
    *(void **)&version = dlsym(library, "MPI_Get_library_version");
    char *text = mem_alloc_zeroed(1, VERSION_BYTES);
    int length = 0;
    const struct flavour *found = NULL;
    if (text && version && version(text, &length) == 0) {
        text[VERSION_BYTES - 1] = '\0';
        for (size_t i = 0; i < N_FLAVOURS && !found; i++) {
            found = strstr(text, flavours[i].words) ? &flavours[i] : NULL;
        }
    }
    mem_free(text);
    return found;
}

static bool is_mpi_library(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    return strncmp(file, "libmpi.so", 9) == 0 || strncmp(file, "libmpich.so", 11) == 0;
}

/* A loaded object. Libraries that were loaded RTLD_LOCAL are among them. */
static int visit_object(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct in_process *found = context;
    (void)bytes;
    if (!info->dlpi_name || !is_mpi_library(info->dlpi_name)) {
        return 0;
    }
    bool is_second = found->path[0] != '\0';
    char *path = is_second ? found->other_path : found->path;
    found->are_two = is_second;
    (void)snprintf(path, PATH_BYTES, "%s", info->dlpi_name);
    return is_second;
}

static void look_at_process(struct in_process *found)
{
    *found = (struct in_process){.flavour = NULL};
    (void)dl_iterate_phdr(visit_object, found);
    void *library = found->path[0] ? dlopen(found->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library) {
        found->flavour = ask_library(library);
        found->is_unknown = !found->flavour;
        (void)dlclose(library);
        return;
    }
    /* One that is linked into the program itself. */
    if (dlsym(RTLD_DEFAULT, "MPI_Get_library_version")) {
        found->flavour = ask_library(RTLD_DEFAULT);
        found->is_unknown = !found->flavour;
        (void)snprintf(found->path, sizeof found->path, "the program");
    }
}

static shoal_status check_process(const struct in_process *found, const struct flavour *asked)
{
    if (found->are_two) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "the process has loaded two MPI libraries, %.150s and %.150s: only one can work",
                         found->path, found->other_path);
    }
    if (found->is_unknown) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "the process has loaded an MPI (%.150s) for which there is no module: Open MPI and "
                         "MPICH have one",
                         found->path);
    }
    if (found->flavour && asked && asked != found->flavour) {
        return error_set(SHOAL_ERR_INVALID, "SHOAL_MPI is %s, but the process has loaded %s (%.150s)",
                         asked->name, found->flavour->words, found->path);
    }
    return SHOAL_OK;
}

/* What else says it --------------------------------------------------------------------------------------- */

static shoal_status read_option(const struct flavour **asked_out)
{
    const char *text = option_text(OPTION_MPI);
    *asked_out = NULL;
    for (size_t i = 0; i < N_FLAVOURS; i++) {
        if (strcmp(text, flavours[i].name) == 0) {
            *asked_out = &flavours[i];
        }
    }
    return *text == '\0' || *asked_out
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "SHOAL_MPI is \"%.60s\", openmpi or mpich expected", text);
}

static const struct flavour *find_launcher(void)
{
    for (size_t i = 0; i < N_FLAVOURS; i++) {
        const char *value = getenv(flavours[i].variable);
        if (value && value[0]) {
            return &flavours[i];
        }
    }
    return NULL;
}

bool mpi_flavour_is_launched(void)
{
    return find_launcher() != NULL;
}

static void name_module(const struct flavour *flavour, char module[MPI_FLAVOUR_BYTES])
{
    (void)snprintf(module, MPI_FLAVOUR_BYTES, MPI_MODULE_PREFIX "%s", flavour->name);
}

static shoal_status find_installed(const struct flavour **flavour_out)
{
    const struct flavour *only = NULL;
    size_t n_there = 0;
    for (size_t i = 0; i < N_FLAVOURS; i++) {
        char module[MPI_FLAVOUR_BYTES];
        name_module(&flavours[i], module);
        if (transport_module_is_there(module)) {
            only = &flavours[i];
            n_there++;
        }
    }
    if (n_there == 1) {
        *flavour_out = only;
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID,
                     "it is not known which MPI to use: the process has loaded none, SHOAL_MPI (openmpi or "
                     "mpich) is not set, the process was not started by mpirun, and %s",
                     n_there == 0 ? "neither libshoal_mpi_openmpi" TRANSPORT_MODULE_SUFFIX
                                    " nor libshoal_mpi_mpich" TRANSPORT_MODULE_SUFFIX " is installed"
                                  : "modules for both are installed");
}

shoal_status mpi_flavour_find(char module[MPI_FLAVOUR_BYTES])
{
    const struct flavour *asked = NULL;
    struct in_process found;
    TRY(read_option(&asked));
    look_at_process(&found);
    TRY(check_process(&found, asked));
    const struct flavour *flavour = found.flavour ? found.flavour : asked ? asked : find_launcher();
    if (!flavour) {
        TRY(find_installed(&flavour));
    }
    name_module(flavour, module);
    return SHOAL_OK;
}
