/* SPDX-License-Identifier: MIT */
/*
 * Libraries that are loaded at run time: transports and devices. They lie in a folder of SHOAL_MODULE_PATH, or in the
 * folder "shoal" beside the library. Each exports one function. A module is never unloaded: threads or other libraries
 * may have kept what is there.
 */
#ifndef BASE_MODULE_H
#define BASE_MODULE_H

#include <stdbool.h>

#include "shoal/status.h"

#define MODULE_NAME_CHARACTERS 64 /* at most */
#define MODULE_PATH_BYTES 4096

/* What files of modules end with, for interface number 1: "-1.so". */
#define MODULE_SUFFIX_OF(interface) MODULE_SUFFIX_TEXT(interface)
#define MODULE_SUFFIX_TEXT(interface) "-" #interface ".so"

struct module_kind {
    const char *what;            /* "transport" */
    const char *entry;           /* the function that modules of this kind export */
    const char *suffix;          /* MODULE_SUFFIX_OF: the file of a module is <prefix><name><suffix> */
    const char *built_in;        /* the names that need no module, each with a space in front */
    const char *const *prefixes; /* that modules of this kind can have; NULL ends the list */
    /* The prefix of a name, one of them; NULL if no module of this kind can have the name. */
    const char *(*prefix_of)(const char *name);
};

struct module {
    void *library; /* of dlopen */
    void *entry;   /* the address of the function */
    char path[MODULE_PATH_BYTES];
};

/* SHOAL_ERR_INVALID for a name that no module can have. Names become part of a path. */
shoal_status module_check_name(const struct module_kind *kind, const char *name);

/* Whether there is a file that module_open would try. */
bool module_is_there(const struct module_kind *kind, const char *name);

/*
 * Loads a module; the caller has checked its name. SHOAL_ERR_INVALID when there is no such file; SHOAL_ERR_UNSUPPORTED
 * when it cannot be loaded, or has no such function: then module_out->library is set.
 */
shoal_status module_open(const struct module_kind *kind, const char *name, struct module *module_out);

/*
 * Visits the modules of a kind in the folders where they are looked for, in the order of their names. If several have one
 * name, the one that would be loaded is visited. Nothing is loaded. A folder that cannot be read counts as empty. The
 * visitor's first failure ends the visit.
 */
typedef shoal_status module_visitor(void *context, const char *name, const char *path);
shoal_status module_list(const struct module_kind *kind, module_visitor *visit, void *context);

#endif
