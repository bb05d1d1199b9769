/* SPDX-License-Identifier: MIT */
/* Finds and loads modules. */
#include "base/module.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
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

#define MODULE_FOLDER "shoal"

/* Names ------------------------------------------------------------------------------------------------ */

static bool is_name(const char *name)
{
    size_t length = strnlen(name, MODULE_NAME_CHARACTERS + 1);
    return length > 0 && length <= MODULE_NAME_CHARACTERS &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

shoal_status module_check_name(const struct module_kind *kind, const char *name)
{
    return is_name(name) && kind->prefix_of(name)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "\"%.64s\" cannot be the name of a %s: 1 to %d letters a to z, "
                           "digits and '_' expected; built-in %ss are:%s",
                           name, kind->what, MODULE_NAME_CHARACTERS, kind->what, kind->built_in);
}

/* Where modules are looked for -------------------------------------------------------------------------- */

/* Whether this code is part of the program, not of a shared library. */
static bool is_in_program(const Dl_info *own)
{
    Dl_info program;
    /* The one way from a number to a pointer: where the program begins to run. */
    void *entry = (void *)(uintptr_t)getauxval(AT_ENTRY);
    return dladdr(entry, &program) != 0 && program.dli_fbase == own->dli_fbase;
}

static const char own_place;

/* The folder of the file that holds this code: the library's, or that of a program it is linked into. "" if unknown. */
static void find_own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    char program[MODULE_PATH_BYTES];
    const char *file = NULL;
    if (dladdr(&own_place, &info) != 0) {
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

/* Whoever starts a program that may do more than he may does not choose the code that it loads. */
static bool is_path_used(void)
{
    return getauxval(AT_SECURE) == 0;
}

/* Appends to the path of a folder; it becomes "" if that is too long. */
static void append(char folder[MODULE_PATH_BYTES], const char *below)
{
    size_t length = strlen(folder);
    int n_characters = snprintf(folder + length, MODULE_PATH_BYTES - length, "/%s", below);
    if (n_characters < 0 || (size_t)n_characters >= MODULE_PATH_BYTES - length) {
        folder[0] = '\0';
    }
}

/*
 * Returns folder number `index` of those where modules are looked for: the folders of SHOAL_MODULE_PATH, the folder
 * "shoal" beside the library, and the folder of installed modules relative to a program that is installed with them. A
 * folder that is unknown is "". Returns false if there are no more.
 */
static bool get_folder(size_t index, char folder[MODULE_PATH_BYTES])
{
    const char *at = is_path_used() ? option_text(OPTION_MODULE_PATH) : "";
    folder[0] = '\0';
    for (; *at != '\0'; index--) {
        size_t length = strcspn(at, ":");
        if (index == 0) {
            (void)snprintf(folder, MODULE_PATH_BYTES, "%.*s", length < MODULE_PATH_BYTES ? (int)length : 0,
                           at);
            return true;
        }
        at += length + (at[length] == ':');
    }
    if (index <= 1) {
        find_own_folder(folder, MODULE_PATH_BYTES);
    }
    if (folder[0] != '\0') {
        append(folder, index == 0 ? MODULE_FOLDER : MODULE_LIBRARY_FOLDER "/" MODULE_FOLDER);
    }
    return index <= 1;
}

/* Why folders could not be looked into. */
struct search {
    char path[MODULE_PATH_BYTES]; /* of what was looked for last */
    char trouble[160];            /* of the first folder; "" if the file is nowhere */
};

/* Whether the folder has the module; then search->path is its path. */
static bool find_in(const struct module_kind *kind, const char *folder, const char *name,
                    struct search *search)
{
    int n_characters = snprintf(search->path, MODULE_PATH_BYTES, "%s/%s%s%s", folder, kind->prefix_of(name),
                                name, kind->suffix);
    if (folder[0] == '\0') {
        return false;
    }
    int code = n_characters < 0 || n_characters >= MODULE_PATH_BYTES ? ENAMETOOLONG
               : access(search->path, F_OK) == 0                     ? 0
                                                                     : errno;
    if (code != 0 && code != ENOENT && code != ENOTDIR && search->trouble[0] == '\0') {
        (void)snprintf(search->trouble, sizeof search->trouble, "; %.100s: %s", folder,
                       error_errno_text(code));
    }
    return code == 0;
}

static bool is_found(const struct module_kind *kind, const char *name, struct search *search)
{
    char folder[MODULE_PATH_BYTES];
    search->trouble[0] = '\0';
    for (size_t i = 0; get_folder(i, folder); i++) {
        if (find_in(kind, folder, name, search)) {
            return true;
        }
    }
    return false;
}

bool module_is_there(const struct module_kind *kind, const char *name)
{
    struct search search;
    return is_name(name) && kind->prefix_of(name) && is_found(kind, name, &search);
}

/* Whether a file is the module of this name for another interface, or without one in its name. */
static bool is_for_other_interface(const struct module_kind *kind, const char *file, const char *name)
{
    const char *at = file;
    for (const char *part = kind->prefix_of(name); part; part = part == name ? NULL : name) {
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
static bool find_other(const struct module_kind *kind, const char *folder, const char *name,
                       char file[NAME_MAX + 1])
{
    DIR *stream = folder[0] != '\0' ? opendir(folder) : NULL;
    const struct dirent *entry;
    bool is_there = false;
    while (stream && !is_there && (entry = readdir(stream)) != NULL) {
        is_there = is_for_other_interface(kind, entry->d_name, name);
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
static shoal_status check_others(const struct module_kind *kind, const char *name)
{
    char folder[MODULE_PATH_BYTES];
    char file[NAME_MAX + 1];
    for (size_t i = 0; get_folder(i, folder); i++) {
        if (find_other(kind, folder, name, file)) {
            return error_set(SHOAL_ERR_INVALID,
                             "there is no %s \"%s\": %.150s has %.100s, which is for another version of "
                             "the library; this one needs %s%s%s",
                             kind->what, name, folder, file, kind->prefix_of(name), name, kind->suffix);
        }
    }
    return SHOAL_OK;
}

static shoal_status find_path(const struct module_kind *kind, const char *name, struct search *search)
{
    char folder[MODULE_PATH_BYTES];
    if (is_found(kind, name, search)) {
        return SHOAL_OK;
    }
    TRY(check_others(kind, name));
    find_own_folder(folder, sizeof folder);
    const char *set = is_path_used() ? option_text(OPTION_MODULE_PATH) : "";
    const char *none = is_path_used() ? "not set, or too long"
                                      : "not used: the program is set-uid, set-gid or has capabilities";
    return error_set(SHOAL_ERR_INVALID,
                     "there is no %s \"%s\": built in are:%s, and %s%s%s"
                     " is neither in %.120s/" MODULE_FOLDER ", in " MODULE_LIBRARY_FOLDER "/" MODULE_FOLDER
                     " from there, nor in SHOAL_MODULE_PATH (%.120s)%s",
                     kind->what, name, kind->built_in, kind->prefix_of(name), name, kind->suffix, folder,
                     *set != '\0' ? set : none, search->trouble);
}

/* Listing ---------------------------------------------------------------------------------------------- */

typedef char module_name[MODULE_NAME_CHARACTERS + 1];

struct module_names {
    module_name *names;
    size_t n_names;
    size_t capacity;
};

/* Gives the name in "<prefix><name><suffix>". Returns false if it is no such file. */
static bool read_name_after(const struct module_kind *kind, const char *prefix, const char *file,
                            module_name name)
{
    size_t before = strlen(prefix);
    size_t after = strlen(kind->suffix);
    size_t length = strlen(file);
    if (length <= before + after || length - before - after > MODULE_NAME_CHARACTERS ||
        strncmp(file, prefix, before) != 0 || strcmp(file + length - after, kind->suffix) != 0) {
        return false;
    }
    memcpy(name, file + before, length - before - after);
    name[length - before - after] = '\0';
    const char *own = is_name(name) ? kind->prefix_of(name) : NULL;
    return own && strcmp(own, prefix) == 0;
}

static bool read_name(const struct module_kind *kind, const char *file, module_name name)
{
    bool is_read = false;
    for (const char *const *prefix = kind->prefixes; *prefix && !is_read; prefix++) {
        is_read = read_name_after(kind, *prefix, file, name);
    }
    return is_read;
}

static shoal_status list_folder(const struct module_kind *kind, struct module_names *list, const char *folder)
{
    DIR *stream = folder[0] != '\0' ? opendir(folder) : NULL;
    const struct dirent *entry;
    shoal_status status = SHOAL_OK;
    while (stream && status == SHOAL_OK && (entry = readdir(stream)) != NULL) {
        module_name name;
        if (read_name(kind, entry->d_name, name)) {
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

static shoal_status visit_names(const struct module_kind *kind, const struct module_names *list,
                                module_visitor *visit, void *context)
{
    for (size_t i = 0; i < list->n_names; i++) {
        struct search search;
        bool is_known = i > 0 && strcmp(list->names[i], list->names[i - 1]) == 0;
        if (!is_known && find_path(kind, list->names[i], &search) == SHOAL_OK) {
            TRY(visit(context, list->names[i], search.path));
        }
    }
    return SHOAL_OK;
}

shoal_status module_list(const struct module_kind *kind, module_visitor *visit, void *context)
{
    struct module_names list = {0};
    char folder[MODULE_PATH_BYTES];
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; status == SHOAL_OK && get_folder(i, folder); i++) {
        status = list_folder(kind, &list, folder);
    }
    if (status == SHOAL_OK && list.n_names > 0) {
        qsort(list.names, list.n_names, sizeof list.names[0], compare_names);
        status = visit_names(kind, &list, visit, context);
    }
    mem_free(list.names);
    return status;
}

/* Loading ---------------------------------------------------------------------------------------------- */

shoal_status module_open(const struct module_kind *kind, const char *name, struct module *module_out)
{
    struct search search;
    *module_out = (struct module){.library = NULL};
    TRY(find_path(kind, name, &search));
    (void)snprintf(module_out->path, sizeof module_out->path, "%s", search.path);
    module_out->library = dlopen(search.path, RTLD_NOW | RTLD_LOCAL);
    if (!module_out->library) {
        const char *reason = dlerror();
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s \"%s\" cannot be loaded: %.300s", kind->what, name,
                         reason ? reason : search.path);
    }
    module_out->entry = dlsym(module_out->library, kind->entry);
    if (!module_out->entry) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s module %.200s: it exports no %s", kind->what, search.path,
                         kind->entry);
    }
    return SHOAL_OK;
}
