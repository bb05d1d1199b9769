/* SPDX-License-Identifier: MIT */
/*
 * All passes: the rows of passes.def, then registered ones in the order of registration. Passes are only added, so a
 * pointer to one stays valid, and readers need no lock.
 */
#include "graph/passes/passes.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/name.h"
#include "base/nearest.h"
#include "base/struct_size.h"
#include "base/try.h"

static shoal_status run_part(struct shoal_graph *graph, const char *name, size_t bytes, const char *label,
                             const shoal_pass_options *options, shoal_pass_report *report);

static struct pass_services services = {.run = run_part};

static const struct pass rows[] = {
#define PASS(name, function, doc) {#name, doc, pass_##function, &services},
#include "graph/passes/passes.def"
#undef PASS
};

enum {
    N_ROWS = sizeof(rows) / sizeof(rows[0])
};

/* All that shoal_compile does to a captured graph before it makes a plan: options that these passes are not given are
   chosen by the passes themselves, so `shoal opt --passes=default` does the same. */
#define DEFAULT_PASSES "remove_dead,dedupe_waits,fuse_ddp_communication,bucket_fsdp_units,simple_overlap"

const char *shoal_default_passes(void)
{
    return DEFAULT_PASSES;
}

/* Registered passes: a list that only grows. -------------------------------------------------------------- */

struct registered {
    struct pass pass;
    _Atomic(struct registered *) next;
};

static _Atomic(struct registered *) first_registered;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER; /* taken by writers only */

static struct registered *follow(_Atomic(struct registered *) *link)
{
    /* Acquire: pairs with the release store in append, which comes after the pass was filled in. */
    return atomic_load_explicit(link, memory_order_acquire);
}

static const struct pass *pass_at(size_t index)
{
    if (index < N_ROWS) {
        return &rows[index];
    }
    struct registered *entry = follow(&first_registered);
    for (index -= N_ROWS; entry && index > 0; index--) {
        entry = follow(&entry->next);
    }
    return entry ? &entry->pass : NULL;
}

static const struct pass *find_by_name(const char *name, size_t bytes)
{
    const struct pass *pass;
    for (size_t i = 0; (pass = pass_at(i)) != NULL; i++) {
        if (strncmp(pass->name, name, bytes) == 0 && pass->name[bytes] == '\0') {
            return pass;
        }
    }
    return NULL;
}

shoal_status pass_find(const char *name, size_t bytes, const struct pass **pass_out)
{
    char shown[NAME_MAX_CHARS + 1];
    const struct pass *pass = find_by_name(name, bytes);
    if (pass) {
        *pass_out = pass;
        return SHOAL_OK;
    }
    (void)snprintf(shown, sizeof(shown), "%.*s", (int)(bytes < sizeof(shown) ? bytes : sizeof(shown)), name);
    char words[NEAREST_BYTES];
    struct nearest nearest;
    nearest_begin(&nearest, shown);
    for (size_t i = 0; (pass = pass_at(i)) != NULL; i++) {
        nearest_add(&nearest, pass->name);
    }
    nearest_describe(&nearest, "passes", words);
    return error_set(SHOAL_ERR_INVALID, "there is no pass \"%s\"; %s", shown, words);
}

/* Registering --------------------------------------------------------------------------------------------- */

static shoal_status check_definition(const shoal_pass_definition *definition)
{
    const char *name = definition->name;
    if (!name || !isalpha((unsigned char)name[0])) {
        return error_set(SHOAL_ERR_INVALID, "pass_register: name \"%.64s\" must begin with a letter",
                         name ? name : "(NULL)");
    }
    for (const char *c = name; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '_') {
            return error_set(SHOAL_ERR_INVALID,
                             "pass_register: name \"%.64s\" contains '%c'; letters, digits and '_' expected",
                             name, *c);
        }
    }
    if (!definition->run) {
        return error_set(SHOAL_ERR_INVALID, "pass_register: %.64s has no function", name);
    }
    return SHOAL_OK;
}

static void free_registered(struct registered *entry)
{
    mem_free((char *)entry->pass.name);
    mem_free((char *)entry->pass.doc);
    mem_free(entry);
}

/* The lock is held. */
static shoal_status append(struct registered *entry)
{
    if (find_by_name(entry->pass.name, strlen(entry->pass.name))) {
        return error_set(SHOAL_ERR_INVALID, "pass_register: there is a pass \"%.64s\" already",
                         entry->pass.name);
    }
    _Atomic(struct registered *) *link = &first_registered;
    for (struct registered *at; (at = follow(link)) != NULL;) {
        link = &at->next;
    }
    /* Release: pairs with the acquire load in follow. */
    atomic_store_explicit(link, entry, memory_order_release);
    return SHOAL_OK;
}

shoal_status shoal_pass_register(const shoal_pass_definition *given)
{
    shoal_pass_definition definition;
    error_clear();
    TRY(struct_size_read("pass_register: definition", given, sizeof(size_t), &definition,
                         sizeof(definition)));
    TRY(check_definition(&definition));
    struct registered *entry = mem_alloc_zeroed(1, sizeof(*entry));
    if (!entry) {
        return SHOAL_ERR_NO_MEMORY;
    }
    entry->pass = (struct pass){.name = mem_copy_string(definition.name),
                                .doc = mem_copy_string(definition.doc ? definition.doc : ""),
                                .run = definition.run,
                                .context = definition.context};
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (entry->pass.name && entry->pass.doc) {
        (void)pthread_mutex_lock(&registry_lock);
        status = append(entry);
        (void)pthread_mutex_unlock(&registry_lock);
    }
    if (status != SHOAL_OK) {
        free_registered(entry);
    }
    return status;
}

shoal_status shoal_pass_at(size_t index, shoal_pass_definition *definition_out)
{
    error_clear();
    const struct pass *pass = pass_at(index);
    if (!pass) {
        return error_set(SHOAL_ERR_INVALID, "pass_at: there is no pass %zu", index);
    }
    shoal_pass_definition definition = {.struct_size = sizeof(definition),
                                        .name = pass->name,
                                        .doc = pass->doc,
                                        .run = pass->run,
                                        .context = pass->context};
    return struct_size_write("pass_at: definition_out", definition_out, sizeof(size_t), &definition,
                             sizeof(definition));
}

/* Running ------------------------------------------------------------------------------------------------- */

static shoal_status run_part(struct shoal_graph *graph, const char *name, size_t bytes, const char *label,
                             const shoal_pass_options *options, shoal_pass_report *report)
{
    const struct pass *pass = NULL;
    struct pass_changes changes; /* not used: the changes of the outer pass include them */
    TRY(pass_find(name, bytes, &pass));
    return pass_run(graph, pass, label, /*is_part=*/true, options, report, &changes);
}

static shoal_status check_name(void *context, const char *name, size_t bytes)
{
    const struct pass *pass;
    (void)context;
    return pass_find(name, bytes, &pass);
}

static shoal_status check_part_name(void *context, const char *name, size_t bytes)
{
    const struct pass *pass = NULL;
    (void)context;
    TRY(pass_find(name, bytes, &pass));
    if (pass->run == pass_fuse_ddp_communication) {
        return error_set(SHOAL_ERR_INVALID, "%s cannot contain itself", pass->name);
    }
    return SHOAL_OK;
}

static shoal_status check_options(const shoal_pass_options *options)
{
    if (isnan(options->bucket_size_mb)) {
        return error_set(SHOAL_ERR_INVALID, "bucket_size_mb is nan, a number expected");
    }
    if (isnan(options->comm_bucket_mb) || options->comm_bucket_mb < 0) {
        return error_set(SHOAL_ERR_INVALID, "comm_bucket_mb %g must be 0 or more", options->comm_bucket_mb);
    }
    shoal_status status = pass_each_name(options->disabled, check_name, NULL);
    if (status != SHOAL_OK) {
        return error_prefix(status, "disabled");
    }
    status = pass_each_name(options->ddp_passes, check_part_name, NULL);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp_passes");
}

static shoal_status check_passes(const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; i++) {
        if (!names[i]) {
            return error_set(SHOAL_ERR_INVALID, "passes[%zu] is NULL", i);
        }
        TRY(check_name(NULL, names[i], strlen(names[i])));
    }
    return SHOAL_OK;
}

static shoal_status run_all(struct shoal_graph *graph, const char *const *names, size_t n_names,
                            const shoal_pass_options *options, shoal_pass_report *report)
{
    for (size_t i = 0; i < n_names; i++) {
        const struct pass *pass = NULL;
        struct pass_changes changes;
        TRY(pass_find(names[i], strlen(names[i]), &pass));
        TRY(pass_run(graph, pass, pass->name, /*is_part=*/false, options, report, &changes));
        report->n_created += changes.n_created;
        report->n_erased += changes.n_erased;
    }
    return SHOAL_OK;
}

shoal_status shoal_graph_run_passes(shoal_graph *graph, const char *const *passes, size_t n_passes,
                                    const shoal_pass_options *given, shoal_pass_report *report_out)
{
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    error_clear();
    if (!graph || (!passes && n_passes > 0)) {
        return error_set(SHOAL_ERR_INVALID, "graph_run_passes: %s is NULL", graph ? "passes" : "graph");
    }
    if (given) {
        TRY(struct_size_read("graph_run_passes: options", given, sizeof(size_t), &options, sizeof(options)));
    }
    if (report_out && report_out->struct_size < sizeof(size_t)) {
        return error_set(SHOAL_ERR_INVALID, "graph_run_passes: struct_size %zu of report_out is below %zu",
                         report_out->struct_size, sizeof(size_t));
    }
    shoal_status status = check_options(&options);
    if (status == SHOAL_OK) {
        status = check_passes(passes, n_passes);
    }
    if (status == SHOAL_OK && (!graph->last || graph->last->kind != SHOAL_NODE_OUTPUT)) {
        status = error_set(SHOAL_ERR_STATE, "the graph does not end with an output");
    }
    if (status == SHOAL_OK) {
        status = run_all(graph, passes, n_passes, &options, &report);
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "graph_run_passes");
    }
    return report_out ? struct_size_write("graph_run_passes: report_out", report_out, sizeof(size_t), &report,
                                          sizeof(report))
                      : SHOAL_OK;
}
