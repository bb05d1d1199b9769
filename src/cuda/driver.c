/* SPDX-License-Identifier: MIT */
/* Opens the CUDA driver. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

#include "base/options.h"
#include "base/try.h"
#include "cuda/services.h"

#define DRIVER_FILE "libcuda.so.1"
#define INTERFACE_VERSION 12000

struct cuda_driver cuda;
static const char *driver_path;

/* The driver ------------------------------------------------------------------------------------------- */

typedef cuda_result find_function(const char *name, void **function_out, int version, uint64_t flags,
                                  int *status_out);

static void *find(void *library, find_function *ask, const char *name)
{
    void *function = NULL;
    int status = 0;
    return ask(name, &function, INTERFACE_VERSION, 0, &status) == CUDA_OK ? function : NULL;
}

/* Where each lies in the struct, as an address: the way from those to pointers of functions that POSIX blesses. */
static const struct {
    const char *name;
    size_t at;
} functions[] = {
#define CUDA_CALL(name, parameters) {#name, offsetof(struct cuda_driver, name)},
#include "cuda/driver.def"
#undef CUDA_CALL
};

static shoal_status find_functions(void *library)
{
    find_function *ask = NULL;
    *(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
    if (!ask) {
        return cuda_services->set_error(
            SHOAL_ERR_UNSUPPORTED, "%s is older than version 12.0 of CUDA: it has no cuGetProcAddress_v2",
            driver_path);
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = find(library, ask, functions[i].name);
        if (!function) {
            return cuda_services->set_error(SHOAL_ERR_UNSUPPORTED, "%s has no %s", driver_path,
                                            functions[i].name);
        }
        memcpy((char *)&cuda + functions[i].at, &function, sizeof function);
    }
    return SHOAL_OK;
}

shoal_status cuda_driver_open(void)
{
    const char *path = option_text(OPTION_CUDA);
    if (strcmp(path, "off") == 0) {
        return cuda_services->set_error(SHOAL_ERR_UNSUPPORTED, "SHOAL_CUDA is off");
    }
    driver_path = *path ? path : DRIVER_FILE;
    void *library = dlopen(driver_path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return cuda_services->set_error(SHOAL_ERR_UNSUPPORTED, "no CUDA driver: %s",
                                        reason ? reason : driver_path);
    }
    return find_functions(library);
}

const char *cuda_driver_path(void)
{
    return driver_path;
}
