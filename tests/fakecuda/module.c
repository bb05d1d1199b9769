/* SPDX-License-Identifier: MIT */
/*
 * Modules. An image is PTX text, of which the names of kernels and the sizes of their arguments are read. The kernels
 * that run are those that this library was built with. An image in which one of them takes an argument of another
 * size was made of other sources, and is refused.
 */
#include "fakecuda/fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULES_MOST 256
#define FUNCTIONS_MOST 4096
#define ARGUMENT_BYTES_MOST 4096 /* of PTX before 8.1 */
#define THREADS_MOST 1024
#define SHARED_MOST 166912 /* of a GPU of compute capability 8.0 */

struct CUmod_st {
    _Atomic uint32_t state;
    char *text;
};

struct CUfunc_st {
    _Atomic uint32_t state;
    const struct CUmod_st *module;
    struct fake_function function;
    _Atomic unsigned shared_most;
};

static struct CUmod_st all_modules[MODULES_MOST];
static struct CUfunc_st all_functions[FUNCTIONS_MOST];
static struct fake_slots modules = FAKE_SLOTS(all_modules);
static struct fake_slots functions = FAKE_SLOTS(all_functions);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is in functions */

/* Text --------------------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at)
{
    while (isspace((unsigned char)*at)) {
        at++;
    }
    return at;
}

static const char *skip_comments(const char *at)
{
    at = skip_blanks(at);
    while (at[0] == '/' && at[1] == '/') {
        at = skip_blanks(at + strcspn(at, "\n"));
    }
    return at;
}

/* What stands behind `words`; NULL if something else stands there. */
static const char *behind(const char *at, const char *words)
{
    at = at ? skip_blanks(at) : NULL;
    return at && strncmp(at, words, strlen(words)) == 0 ? at + strlen(words) : NULL;
}

static const char *behind_name(const char *at)
{
    at = at ? skip_blanks(at) : NULL;
    while (at && (isalnum((unsigned char)*at) || *at == '_' || *at == '$')) {
        at++;
    }
    return at;
}

static const char *behind_number(const char *at, unsigned long *number_out)
{
    at = at ? skip_blanks(at) : NULL;
    if (!at || !isdigit((unsigned char)*at)) {
        return NULL;
    }
    char *end;
    *number_out = strtoul(at, &end, 10);
    return end;
}

struct entry {
    const char *name;
    size_t length;
    const char *parameters; /* behind the bracket that opens them */
};

/* The next kernel of the text from `at` on. */
static bool next_entry(const char *at, struct entry *entry)
{
    for (at = strstr(at, ".entry"); at; at = strstr(at, ".entry")) {
        at += strlen(".entry");
        const char *name = skip_blanks(at);
        const char *end = behind_name(name);
        const char *parameters = behind(end, "(");
        if (name > at && end > name && parameters) {
            *entry = (struct entry){.name = name, .length = (size_t)(end - name), .parameters = parameters};
            return true;
        }
    }
    return false;
}

/* The bytes of a kernel's only parameter; 0 if its parameters are not one struct. */
static size_t argument_bytes(const struct entry *entry)
{
    unsigned long alignment = 0;
    unsigned long bytes = 0;
    const char *at = behind(behind(entry->parameters, ".param"), ".align");
    at = behind(behind_number(at, &alignment), ".b8");
    at = behind(behind_number(behind(behind_name(at), "["), &bytes), "]");
    return behind(at, ")") ? bytes : 0;
}

/* What its blocks are bounded to. */
static unsigned threads_most(const struct entry *entry)
{
    const char *end = strchr(entry->parameters, '{');
    const char *bound = strstr(entry->parameters, ".maxntid");
    unsigned long most = THREADS_MOST;
    if (bound && end && bound < end) {
        (void)behind_number(bound + strlen(".maxntid"), &most);
    }
    return (unsigned)most;
}

/* Modules ------------------------------------------------------------------------------------------------ */

static cuda_result check_text(const char *text)
{
    struct entry entry = {.parameters = text};
    size_t n_entries = 0;
    if (strncmp(text, "\177ELF", 4) == 0) {
        return FAKE_NO_BINARY_FOR_GPU; /* no machine code is for this device */
    }
    if (!behind(skip_comments(text), ".version")) {
        return CUDA_INVALID_IMAGE;
    }
    if (!strstr(text, "\n.target") || !strstr(text, "\n.address_size 64")) {
        return FAKE_INVALID_PTX;
    }
    for (; next_entry(entry.parameters, &entry); n_entries++) {
        const struct fake_kernel *kernel = fake_kernel_find(entry.name, entry.length);
        if (kernel && argument_bytes(&entry) != kernel->argument_bytes) {
            (void)fprintf(
                stderr,
                "fakecuda: kernel %s has an argument of %zu bytes, and one of %zu in PTX that is old\n",
                kernel->name, kernel->argument_bytes, argument_bytes(&entry));
            return FAKE_INVALID_PTX;
        }
        if (argument_bytes(&entry) > ARGUMENT_BYTES_MOST) {
            return FAKE_INVALID_PTX;
        }
    }
    return n_entries > 0 ? CUDA_OK : FAKE_INVALID_PTX;
}

/* What options say, of which a driver knows more. */
struct options {
    char *errors;
    size_t errors_bytes;
};

static bool read_options(unsigned n_options, const int *options, void *const *values, struct options *read)
{
    *read = (struct options){.errors_bytes = 0};
    for (unsigned i = 0; i < n_options; i++) {
        if (!options || !values) {
            return false;
        }
        if (options[i] == CUDA_JIT_ERRORS) {
            read->errors = values[i];
        } else if (options[i] == CUDA_JIT_ERRORS_BYTES) {
            read->errors_bytes = (uintptr_t)values[i];
        } else if (options[i] != CUDA_JIT_OPTIMIZATION || (uintptr_t)values[i] > 4) {
            return false;
        }
    }
    return true;
}

cuda_result cuModuleLoadDataEx(struct CUmod_st **module_out, const void *image, unsigned n_options,
                               int *options, void **values)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    struct options read;
    if (!module_out || !image || !read_options(n_options, options, values, &read)) {
        return CUDA_INVALID_VALUE;
    }
    result = check_text(image);
    if (result != CUDA_OK) {
        if (result == FAKE_INVALID_PTX && read.errors && read.errors_bytes > 0) {
            (void)snprintf(read.errors, read.errors_bytes, "ptxas : it is wrong\nptxas : and more");
        }
        return result;
    }
    char *text = strdup(image);
    struct CUmod_st *module = text ? fake_slot_take(&modules) : NULL;
    if (!module) {
        free(text);
        return CUDA_OUT_OF_MEMORY;
    }
    module->text = text;
    fake_slot_open(module);
    *module_out = module;
    return CUDA_OK;
}

/* Kernels that were launched still run. */
cuda_result cuModuleUnload(struct CUmod_st *module)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    if (!fake_slot_close(&modules, module)) {
        return FAKE_INVALID_HANDLE;
    }
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < FUNCTIONS_MOST; i++) {
        if (all_functions[i].module == module && fake_slot_close(&functions, &all_functions[i])) {
            fake_slot_give(&all_functions[i]);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    free(module->text);
    fake_slot_give(module);
    return result;
}

/* Functions ---------------------------------------------------------------------------------------------- */

/* Under the lock: the same function has the same handle. */
static struct CUfunc_st *need_function(const struct CUmod_st *module, struct fake_function wanted)
{
    for (size_t i = 0; i < FUNCTIONS_MOST; i++) {
        struct CUfunc_st *function = &all_functions[i];
        if (fake_slot_is_open(&functions, function) && function->module == module &&
            function->function.kernel == wanted.kernel) {
            return function;
        }
    }
    struct CUfunc_st *function = fake_slot_take(&functions);
    if (function) {
        function->module = module;
        function->function = wanted;
        atomic_store_explicit(&function->shared_most, CUDA_DYNAMIC_SHARED_PLAIN, memory_order_relaxed);
        fake_slot_open(function);
    }
    return function;
}

static struct fake_function find_kernel(const struct CUmod_st *module, const char *name)
{
    struct entry entry = {.parameters = module->text};
    struct fake_function found = {.kernel = NULL};
    while (next_entry(entry.parameters, &entry)) {
        if (strlen(name) == entry.length && memcmp(name, entry.name, entry.length) == 0) {
            found.kernel = fake_kernel_find(name, entry.length);
            found.threads_most = threads_most(&entry);
        }
    }
    return found;
}

cuda_result cuModuleGetFunction(struct CUfunc_st **function_out, struct CUmod_st *module, const char *name)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!function_out || !name || !fake_slot_is_open(&modules, module)) {
        return !function_out || !name ? CUDA_INVALID_VALUE : FAKE_INVALID_HANDLE;
    }
    const struct fake_function found = find_kernel(module, name);
    if (!found.kernel) {
        return CUDA_NOT_FOUND;
    }
    (void)pthread_mutex_lock(&lock);
    struct CUfunc_st *function = need_function(module, found);
    (void)pthread_mutex_unlock(&lock);
    if (!function) {
        return CUDA_OUT_OF_MEMORY;
    }
    *function_out = function;
    return CUDA_OK;
}

cuda_result cuFuncSetAttribute(struct CUfunc_st *function, int attribute, int value)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!fake_slot_is_open(&functions, function)) {
        return FAKE_INVALID_HANDLE;
    }
    if (attribute != CUDA_DYNAMIC_SHARED_MOST || value < 0 || value > SHARED_MOST) {
        return CUDA_INVALID_VALUE;
    }
    atomic_store_explicit(&function->shared_most, (unsigned)value, memory_order_relaxed);
    return CUDA_OK;
}

/* Who launches has the handle from whoever got it, and in that order. */
struct fake_function fake_function_of(const struct CUfunc_st *function)
{
    struct fake_function found = {.kernel = NULL};
    if (fake_slot_is_open(&functions, function)) {
        found = function->function;
        found.shared_most = atomic_load_explicit(&function->shared_most, memory_order_relaxed);
    }
    return found;
}
