/* SPDX-License-Identifier: MIT */
/* Finding oneDNN; see onednn.h. Its interface of 2.6 is what onednn.def declares: other versions are refused by name. */
#include "math/onednn.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/try.h"
#include "shoal/op.h"

enum {
    RUNTIME_NONE = 1, /* of processors: no threads */
    RUNTIME_OPENMP = 2
};

struct onednn onednn;

static const char default_library[] = "libdnnl.so.2";

/* Versions whose interface is the one of onednn.def. */
static const struct {
    int major;
    int minor;
} accepted[] = {{2, 6}};

/* What get_effective_cpu_isa returns. */
static const struct {
    int number;
    const char *name;
} instruction_sets[] = {{0x1, "sse41"},
                        {0x3, "avx"},
                        {0x7, "avx2"},
                        {0x407, "avx2_vnni"},
                        {0x27, "avx512_core"},
                        {0x67, "avx512_core_vnni"},
                        {0xe7, "avx512_core_bf16"},
                        {0x3e7, "avx512_core_amx"}};

static struct {
    pthread_once_t once;
    shoal_status status;
    char error[512];
} loading = {.once = PTHREAD_ONCE_INIT};

static shoal_status check_version(void)
{
    const struct onednn_version *found = onednn.version();
    for (size_t i = 0; i < sizeof(accepted) / sizeof(accepted[0]); i++) {
        if (found->major == accepted[i].major && found->minor == accepted[i].minor) {
            (void)snprintf(onednn.version_text, sizeof(onednn.version_text), "%d.%d.%d", found->major,
                           found->minor, found->patch);
            return SHOAL_OK;
        }
    }
    return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%.300s is oneDNN %d.%d.%d, but only 2.6 can be used",
                      onednn.library, found->major, found->minor, found->patch);
}

/* A library that starts threads in another way than by OpenMP cannot be kept on one. */
static shoal_status check_threads(void *library)
{
    unsigned runtime = onednn.version()->cpu_runtime;
    if (runtime == RUNTIME_OPENMP) {
        void *set = dlsym(library, "omp_set_num_threads");
        void *get = dlsym(library, "omp_get_max_threads");
        memcpy(&onednn.omp_set_num_threads, &set, sizeof(set));
        memcpy(&onednn.omp_get_max_threads, &get, sizeof(get));
    }
    bool can_be_one = runtime == RUNTIME_NONE || (onednn.omp_set_num_threads && onednn.omp_get_max_threads);
    return can_be_one ? SHOAL_OK
                      : shoal_fail(SHOAL_ERR_UNSUPPORTED,
                                   "%.300s has threads (runtime %u) that are not those of OpenMP",
                                   onednn.library, runtime);
}

static shoal_status find_functions(void *library)
{
    static const char *const names[] = {
#define FUNCTION(result, name, parameters) "dnnl_" #name,
#include "math/onednn.def"
#undef FUNCTION
    };
    void *found[sizeof(names) / sizeof(names[0])];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        found[i] = dlsym(library, names[i]);
        if (!found[i]) {
            return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%.300s has no %s", onednn.library, names[i]);
        }
    }
    size_t next = 0;
    /* POSIX says that dlsym's pointer may be one to a function; ISO C has no such cast. */
#define FUNCTION(result, name, parameters) memcpy(&onednn.name, &found[next++], sizeof(found[0]));
#include "math/onednn.def"
#undef FUNCTION
    return SHOAL_OK;
}

static void find_instructions(void)
{
    int number = onednn.get_effective_cpu_isa();
    onednn.instructions = "other";
    for (size_t i = 0; i < sizeof(instruction_sets) / sizeof(instruction_sets[0]); i++) {
        if (instruction_sets[i].number == number) {
            onednn.instructions = instruction_sets[i].name;
        }
    }
#if !defined(__x86_64__)
    onednn.instructions = "generic"; /* elsewhere the number says nothing */
#endif
}

/* Without file descriptors nobody knows whether it is there; see blas.c. */
static shoal_status fail_opening(bool is_asked)
{
    const char *reason = dlerror();
    bool is_unknown = is_asked || (reason && strstr(reason, strerror(EMFILE)));
    return shoal_fail(is_unknown ? SHOAL_ERR_SYSTEM : SHOAL_ERR_UNSUPPORTED, "%s%.400s",
                      is_asked ? "SHOAL_NN_ONEDNN: " : "", reason ? reason : "the library cannot be opened");
}

static shoal_status use_library(void *library)
{
    Dl_info place;
    void *symbol = dlsym(library, "dnnl_version");
    if (symbol && dladdr(symbol, &place) != 0 && place.dli_fname) {
        (void)snprintf(onednn.library, sizeof(onednn.library), "%s", place.dli_fname);
    }
    if (symbol) { /* first of all: other versions have other functions */
        memcpy(&onednn.version, &symbol, sizeof(symbol));
        NN_TRY(check_version());
    }
    NN_TRY(find_functions(library));
    NN_TRY(check_threads(library));
    int before = onednn_enter();
    int status = onednn.engine_create(&onednn.engine, ONEDNN_CPU, 0);
    find_instructions();
    onednn_leave(before);
    return status == 0
               ? SHOAL_OK
               : shoal_fail(SHOAL_ERR_SYSTEM, "oneDNN: no engine for the processor: status %d", status);
}

static shoal_status open_library(void)
{
    const char *asked = getenv("SHOAL_NN_ONEDNN");
    bool is_asked = asked && asked[0] != '\0';
    if (is_asked && strcmp(asked, "none") == 0) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "SHOAL_NN_ONEDNN is none");
    }
    const char *name = is_asked ? asked : default_library;
    (void)snprintf(onednn.library, sizeof(onednn.library), "%s", name);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return fail_opening(is_asked);
    }
    shoal_status status = use_library(library);
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    (void)dlclose(library);
    return is_asked ? shoal_fail(SHOAL_ERR_SYSTEM, "SHOAL_NN_ONEDNN: %s", shoal_error_text()) : status;
}

static void load(void)
{
    loading.status = open_library();
    if (loading.status != SHOAL_OK) {
        (void)snprintf(loading.error, sizeof(loading.error), "%s", shoal_error_text());
    }
}

shoal_status onednn_load(void)
{
    (void)pthread_once(&loading.once, load);
    return loading.status == SHOAL_OK ? SHOAL_OK : shoal_fail(loading.status, "%s", loading.error);
}

int onednn_enter(void)
{
    int n_threads = onednn.omp_get_max_threads ? onednn.omp_get_max_threads() : 1;
    if (n_threads != 1) {
        onednn.omp_set_num_threads(1);
    }
    return n_threads;
}

void onednn_leave(int n_threads)
{
    if (n_threads != 1) {
        onednn.omp_set_num_threads(n_threads);
    }
}
