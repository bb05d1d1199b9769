/* SPDX-License-Identifier: MIT */
/* `shoal opt FILE`: its command line, and the libraries it loads. What happens then is in opt/run.c. */
#include "opt/opt.h"
#include "common/commands.h"
#include "common/paths.h"
#include "common/place.h"
#include "common/tool.h"

#include "base/nearest.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_RANKS = 128 /* they are threads */
};

/* Options ---------------------------------------------------------------------------------------------- */

static int to_status(bool is_good)
{
    return is_good ? TOOL_DONE : TOOL_FAILED;
}

static int take_passes(void *arguments, const char *value)
{
    struct opt_plan *plan = arguments;
    bool is_good = true;
    while (is_good && *value) {
        size_t bytes = strcspn(value, ",");
        if (bytes == strlen("default") && strncmp(value, "default", bytes) == 0) {
            is_good = opt_names_split(&plan->passes, shoal_default_passes());
        } else if (bytes > 0) {
            is_good = opt_names_add(&plan->passes, value, bytes);
        }
        value += bytes + (value[bytes] == ',');
    }
    return to_status(is_good);
}

static int take_print_after(void *arguments, const char *value)
{
    return to_status(opt_names_split(&((struct opt_plan *)arguments)->print_after, value));
}

static int take_disable(void *arguments, const char *value)
{
    return to_status(opt_names_split(&((struct opt_plan *)arguments)->disabled, value));
}

static int take_load(void *arguments, const char *value)
{
    return to_status(opt_names_add(&((struct opt_plan *)arguments)->libraries, value, strlen(value)));
}

#define AT(field) offsetof(struct opt_plan, field)

/* The words of --list; before them `default`, of --passes. */
static const char *pass_at(size_t index)
{
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    return shoal_pass_at(index, &pass) == SHOAL_OK ? pass.name : NULL;
}

static const char *pass_or_default_at(size_t index)
{
    return index == 0 ? "default" : pass_at(index - 1);
}

static const struct tool_option rows[] = {
    {"FILE", "file", TOOL_OPTION_TEXT, AT(path), .help = "the graph; - is standard input"},
    {"--passes", "A,B", TOOL_OPTION_OTHER, .take = take_passes, .name_at = pass_or_default_at,
     .help = "passes to run, in order: those of --list, or default, which is what shoal_compile runs"},
    {"--bucket-mb", "X", TOOL_OPTION_REAL, AT(bucket_size_mb), -HUGE_VAL, HUGE_VAL,
     .help = "MiB of a bucket of gradients; default: by all of them and the machine"},
    {"--comm-bucket-mb", "X", TOOL_OPTION_REAL, AT(comm_bucket_mb), 0, HUGE_VAL,
     .help = "most MiB of a bucket of the passes bucket_*; default 2000"},
    {"--disable", "A,B", TOOL_OPTION_OTHER, .take = take_disable, .name_at = pass_at,
     .help = "passes to skip, also if others would run them"},
    {"--print-after", "A", TOOL_OPTION_OTHER, .take = take_print_after, .name_at = pass_at,
     .help = "prints the graph after this pass, too"},
    {"--stats", NULL, TOOL_OPTION_FLAG, AT(has_stats),
     .help = "prints collectives and their bytes, and estimates of time and memory after each pass"},
    {"--machine", "FILE", TOOL_OPTION_TEXT, AT(machine),
     .help = "machine to estimate times for: a file of shoal bench probe, or a name; default: SHOAL_MACHINE"},
    {"--lower", NULL, TOOL_OPTION_FLAG, AT(is_lowered),
     .help = "prints the plan of rank 0 instead of the graph"},
    {"--one-shot", "BYTES", TOOL_OPTION_BYTES, AT(lowering.one_shot_max_bytes), 1, HUGE_VAL,
     .may_stand_alone = true, .help = "makes small sums blocking calls; default: up to 131072 bytes"},
    {"--no-reuse", NULL, TOOL_OPTION_FLAG, AT(lowering.no_reuse),
     .help = "no two buffers of a plan share bytes"},
    {"--no-comm-buffers", NULL, TOOL_OPTION_FLAG, AT(lowering.no_comm_buffers),
     .help = "collectives of a plan use ordinary memory"},
    {"--run", NULL, TOOL_OPTION_FLAG, AT(is_run),
     .help = "runs the graph and the result (or its plan), and compares the bits"},
    {"-n", "N", TOOL_OPTION_INT, AT(n_ranks), 1, MAX_RANKS, .alias = "--ranks",
     .help = "ranks of --run; default: those of the graph's groups"},
    {"--time", "N", TOOL_OPTION_INT, AT(n_times), 1, 100000,
     .help = "runs the result of --run so often again, and prints the median of its time"},
    {"--memory", "BYTES", TOOL_OPTION_BYTES, AT(max_bytes), 1, HUGE_VAL,
     .help = "most memory of all ranks of --run together; default: half of what is free"},
    {"--dot", "FILE", TOOL_OPTION_TEXT, AT(dot_path), .may_stand_alone = true,
     .help = "writes a picture for Graphviz (dot) instead of text"},
    {"--dot-prefix", "P", TOOL_OPTION_TEXT, AT(dot_prefix),
     .help = "draws the graph before and after each pass that changes it, to files P*"},
    {"--load", "LIB", TOOL_OPTION_OTHER, .take = take_load,
     .help = "loads a library with further ops and passes"},
    {"--list", NULL, TOOL_OPTION_FLAG, AT(is_list), .help = "lists all passes"},
};

const struct tool_options command_opt_options = {
    .synopsis = "shoal opt [options] FILE\n"
                "       shoal opt [--load LIB] --list",
    .about = "Reads the graph of a training step, checks it, runs passes over it, and prints the result.\n"
             "Without --passes the graph stays as it is. shoal train --compile --graph FILE writes one.\n",
    TOOL_OPTIONS_ROWS(rows),
    .notes = "An option and its value are two words or one: --passes A,B or --passes=A,B.\n",
};

static bool read_line(struct opt_plan *plan, int argc, char **argv, int *exit_status_out)
{
    const struct tool_options *options = &command_opt_options;
    struct tool_given given;
    if (!tool_options_read(options, argc, argv, plan, &given, exit_status_out)) {
        return false;
    }
    plan->is_dot = tool_option_is_given(options, &given, "--dot");
    plan->lowering.one_shot = tool_option_is_given(options, &given, "--one-shot");
    if (!plan->path && !plan->is_list) {
        *exit_status_out = tool_options_refuse(options, "the file is missing");
        return false;
    }
    if (plan->path && plan->is_list) {
        fprintf(stderr, "shoal opt: --list takes no file, but got '%s'\n", plan->path);
        *exit_status_out = TOOL_USAGE;
        return false;
    }
    const struct tool_path paths[] = {{"--dot", plan->dot_path, true},
                                      {"the graph", plan->path, false},
                                      {"the file of --machine", plan->machine, false}};
    *exit_status_out = TOOL_USAGE;
    return tool_paths_check(paths, sizeof paths / sizeof paths[0]);
}

/* Libraries -------------------------------------------------------------------------------------------- */

static size_t count_passes(void)
{
    size_t n_passes = 0;
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    while (shoal_pass_at(n_passes, &pass) == SHOAL_OK) {
        n_passes++;
    }
    return n_passes;
}

static size_t count_ops(void)
{
    size_t n_ops = 0;
    while (shoal_op_at(n_ops)) {
        n_ops++;
    }
    return n_ops;
}

/* The loader's reason begins with the path or not. */
static void tell_not_loaded(const char *path, const char *reason)
{
    size_t length = strlen(path);
    bool is_named = strncmp(reason, path, length) == 0 && strncmp(reason + length, ": ", 2) == 0;
    fprintf(stderr, "shoal opt: --load: %s cannot be loaded: %s", path,
            is_named ? reason + length + 2 : reason);
    if (!strchr(path, '/')) {
        fprintf(stderr,
                "; a name without '/' is looked for among the installed libraries, so for a file in this "
                "directory use ./%s",
                path);
    }
    fputc('\n', stderr);
}

/*
 * Loads a library, whose constructors register ops and passes. They call this program's shoal_ functions, not those of
 * the libshoal that the library was linked with. libshoal_nn has no constructors, so that programs can set an allocator
 * first; its shoal_nn_init is called instead.
 */
static int load(const char *path)
{
    size_t n_before = count_passes() + count_ops();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        tell_not_loaded(path, dlerror());
        return TOOL_FAILED;
    }
    shoal_status (*init)(void) = NULL;
    *(void **)&init =
        dlsym(library, "shoal_nn_init"); /* as POSIX has it: a function's address in an object pointer */
    if (init && init() != SHOAL_OK) {
        fprintf(stderr, "shoal opt: --load: %s: %s\n", path, shoal_error_text());
        return TOOL_FAILED;
    }
    if (count_passes() + count_ops() == n_before) {
        fprintf(stderr, "shoal opt: --load: %s has registered neither an op nor a pass\n", path);
        return TOOL_FAILED;
    }
    return TOOL_DONE;
}

/* Passes ----------------------------------------------------------------------------------------------- */

static int list_passes(void)
{
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    for (size_t i = 0; shoal_pass_at(i, &pass) == SHOAL_OK; i++) {
        printf("%-28s %s\n", pass.name, pass.doc);
    }
    return TOOL_DONE;
}

static bool is_pass(const char *name)
{
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    for (size_t i = 0; shoal_pass_at(i, &pass) == SHOAL_OK; i++) {
        if (strcmp(pass.name, name) == 0) {
            return true;
        }
    }
    return false;
}

static int tell_unknown_pass(const char *option, const char *name)
{
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    char words[NEAREST_BYTES];
    struct nearest nearest;
    nearest_begin(&nearest, name);
    for (size_t i = 0; shoal_pass_at(i, &pass) == SHOAL_OK; i++) {
        nearest_add(&nearest, pass.name);
    }
    if (strcmp(option, "--passes") == 0) {
        nearest_add(&nearest, "default");
    }
    nearest_describe(&nearest, "passes", words);
    fprintf(stderr, "shoal opt: %s: there is no pass '%s'; %s, and --list shows all\n", option, name, words);
    return TOOL_USAGE;
}

static int check_names(const char *option, const struct opt_names *names)
{
    for (size_t i = 0; i < names->n_names; i++) {
        if (!is_pass(names->names[i])) {
            return tell_unknown_pass(option, names->names[i]);
        }
    }
    return TOOL_DONE;
}

/* Options that mean nothing without another, or with one. */
static int check_options(const struct opt_plan *plan)
{
    const shoal_compile_options *lowering = &plan->lowering;
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {lowering->one_shot && !plan->is_lowered, "--one-shot needs --lower"},
        {lowering->no_reuse && !plan->is_lowered, "--no-reuse needs --lower"},
        {lowering->no_comm_buffers && !plan->is_lowered, "--no-comm-buffers needs --lower"},
        {plan->n_ranks > 0 && !plan->is_run, "-n needs --run"},
        {plan->max_bytes > 0 && !plan->is_run, "--memory needs --run"},
        {plan->n_times > 0 && !plan->is_run, "--time needs --run"},
        {plan->is_lowered && plan->is_dot, "--dot is a picture of a graph: not with --lower"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].is_wrong) {
            fprintf(stderr, "shoal opt: %s\n", rules[i].text);
            return TOOL_USAGE;
        }
    }
    return TOOL_DONE;
}

/* Before anything is read. */
static int check_plan(const struct opt_plan *plan)
{
    int exit_status = check_options(plan);
    if (exit_status == TOOL_DONE) {
        exit_status = check_names("--passes", &plan->passes);
    }
    if (exit_status == TOOL_DONE) {
        exit_status = check_names("--print-after", &plan->print_after);
    }
    if (exit_status == TOOL_DONE) {
        exit_status = check_names("--disable", &plan->disabled);
    }
    for (size_t i = 0; i < plan->print_after.n_names && exit_status == TOOL_DONE; i++) {
        if (!opt_names_has(&plan->passes, plan->print_after.names[i])) {
            fprintf(stderr, "shoal opt: --print-after: '%s' is not among --passes\n",
                    plan->print_after.names[i]);
            exit_status = TOOL_USAGE;
        }
    }
    return exit_status;
}

static int run(const struct opt_plan *plan)
{
    for (size_t i = 0; i < plan->libraries.n_names; i++) {
        int exit_status = load(plan->libraries.names[i]);
        if (exit_status != TOOL_DONE) {
            return exit_status;
        }
    }
    struct tool_place place;
    int exit_status = check_plan(plan);
    if (exit_status != TOOL_DONE) {
        return exit_status;
    }
    if (!tool_place_read(&place)) {
        return TOOL_FAILED;
    }
    if (!tool_place_may_start(&place, plan->n_ranks > 0 ? "--ranks" : NULL)) {
        return TOOL_USAGE;
    }
    return plan->is_list ? list_passes() : opt_run(plan);
}

int command_opt(int argc, char **argv)
{
    struct opt_plan plan = {.lowering = SHOAL_COMPILE_OPTIONS_INIT};
    int exit_status;
    tool_report_options();
    if (read_line(&plan, argc, argv, &exit_status)) {
        exit_status = run(&plan);
    }
    opt_names_free(&plan.passes);
    opt_names_free(&plan.print_after);
    opt_names_free(&plan.disabled);
    opt_names_free(&plan.libraries);
    return exit_status;
}
