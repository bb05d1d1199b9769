/* SPDX-License-Identifier: MIT */
/* `shoal opt FILE`: its command line, and the libraries it loads. What happens then is in opt/run.c. */
#include "opt/opt.h"
#include "common/commands.h"
#include "common/tool.h"

#include "base/mem.h"
#include "base/name.h"
#include "base/nearest.h"
#include "base/option_parse.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_RANKS = 128 /* they are threads */
};

static int print_usage(FILE *out, int exit_status)
{
    fputs("usage: shoal opt [options] FILE\n"
          "       shoal opt [--load=LIB] --list\n"
          "  --passes=A,B         passes to run, in order; default: none\n"
          "  --bucket-mb=X        MiB of a bucket of gradients; default 25\n"
          "  --comm-bucket-mb=X   most MiB of a bucket of the passes bucket_*; default 2000\n"
          "  --disable=A,B        passes to skip, also if others would run them\n"
          "  --print-after=A      prints the graph after this pass, too\n"
          "  --stats              prints how much communication there is, before and after\n"
          "  --lower              prints the plan of rank 0 instead of the graph\n"
          "  --one-shot[=BYTES]   makes small sums blocking calls; default: up to 131072 bytes\n"
          "  --no-reuse           no two buffers of a plan share bytes\n"
          "  --no-comm-buffers    collectives of a plan use ordinary memory\n"
          "  --run                runs the graph and the result (or its plan), and compares the bits\n"
          "  -n N                 ranks of --run; default: those of the graph's groups\n"
          "  --memory=BYTES       most memory of all ranks of --run together; default: half of what is free\n"
          "  --dot[=FILE]         prints the graph for Graphviz instead of as text\n"
          "  --dot-prefix=P       draws the graph before and after each pass that changes it, to files P*\n"
          "  --load=LIB           loads a library with further ops and passes\n"
          "  --list               lists all passes\n"
          "Reads a graph (- is standard input), checks it, runs passes over it, and prints the result.\n"
          "An option and its value may be two words: --passes A,B.\n",
          out);
    return exit_status;
}

/* Options: an exit status each, TOOL_DONE if it was understood ------------------------------------------ */

static int to_status(bool is_good)
{
    return is_good ? TOOL_DONE : TOOL_FAILED;
}

static int parse_passes(struct opt_plan *plan, const char *value)
{
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

static int parse_print_after(struct opt_plan *plan, const char *value)
{
    return to_status(opt_names_split(&plan->print_after, value));
}

static int parse_disable(struct opt_plan *plan, const char *value)
{
    return to_status(opt_names_split(&plan->disabled, value));
}

static int parse_load(struct opt_plan *plan, const char *value)
{
    return to_status(opt_names_add(&plan->libraries, value, strlen(value)));
}

static int parse_bucket(struct opt_plan *plan, const char *value)
{
    bool is_negative = value[0] == '-';
    if (!option_parse_seconds(value + is_negative, &plan->bucket_size_mb)) {
        fprintf(stderr, "shoal opt: --bucket-mb: '%s' is not a number\n", value);
        return TOOL_USAGE;
    }
    plan->bucket_size_mb = is_negative ? -plan->bucket_size_mb : plan->bucket_size_mb;
    return TOOL_DONE;
}

static int parse_comm_bucket(struct opt_plan *plan, const char *value)
{
    if (!option_parse_seconds(value, &plan->comm_bucket_mb)) {
        fprintf(stderr, "shoal opt: --comm-bucket-mb: '%s' is not a number from 0 on\n", value);
        return TOOL_USAGE;
    }
    return TOOL_DONE;
}

static int parse_dot_prefix(struct opt_plan *plan, const char *value)
{
    plan->dot_prefix = value;
    return TOOL_DONE;
}

static int parse_dot(struct opt_plan *plan, const char *value)
{
    plan->is_dot = true;
    plan->dot_path = value;
    return TOOL_DONE;
}

static int parse_stats(struct opt_plan *plan, const char *value)
{
    (void)value;
    plan->has_stats = true;
    return TOOL_DONE;
}

static int parse_lower(struct opt_plan *plan, const char *value)
{
    (void)value;
    plan->is_lowered = true;
    return TOOL_DONE;
}

static int parse_one_shot(struct opt_plan *plan, const char *value)
{
    int64_t bytes = 0;
    if (value && (!option_parse_bytes(value, &bytes) || bytes < 1)) {
        fprintf(stderr, "shoal opt: --one-shot: '%s' is not a number of bytes\n", value);
        return TOOL_USAGE;
    }
    plan->lowering.one_shot = true;
    plan->lowering.one_shot_max_bytes = (size_t)bytes;
    return TOOL_DONE;
}

static int parse_no_reuse(struct opt_plan *plan, const char *value)
{
    (void)value;
    plan->lowering.no_reuse = true;
    return TOOL_DONE;
}

static int parse_no_comm_buffers(struct opt_plan *plan, const char *value)
{
    (void)value;
    plan->lowering.no_comm_buffers = true;
    return TOOL_DONE;
}

static int parse_run(struct opt_plan *plan, const char *value)
{
    (void)value;
    plan->is_run = true;
    return TOOL_DONE;
}

static int parse_ranks(struct opt_plan *plan, const char *value)
{
    int64_t n_ranks = 0;
    if (!option_parse_int(value, &n_ranks) || n_ranks < 1 || n_ranks > MAX_RANKS) {
        fprintf(stderr, "shoal opt: -n: '%s' is not a number from 1 to %d\n", value, MAX_RANKS);
        return TOOL_USAGE;
    }
    plan->n_ranks = (int)n_ranks;
    return TOOL_DONE;
}

static int parse_memory(struct opt_plan *plan, const char *value)
{
    int64_t bytes = 0;
    if (!option_parse_bytes(value, &bytes) || bytes < 1) {
        fprintf(stderr, "shoal opt: --memory: '%s' is not a number of bytes (4096, 64K, 8M, 2G)\n", value);
        return TOOL_USAGE;
    }
    plan->max_bytes = (uint64_t)bytes;
    return TOOL_DONE;
}

static int parse_list(struct opt_plan *plan, const char *value)
{
    (void)value;
    plan->is_list = true;
    return TOOL_DONE;
}

enum value_kind {
    VALUE_NONE,
    VALUE_MAYBE, /* only behind a "=" */
    VALUE_NEEDED
};

static const struct opt_option {
    const char *name;
    enum value_kind value;
    int (*parse)(struct opt_plan *plan, const char *value); /* NULL where there is none */
} opt_options[] = {
    {"--passes", VALUE_NEEDED, parse_passes},
    {"--bucket-mb", VALUE_NEEDED, parse_bucket},
    {"--comm-bucket-mb", VALUE_NEEDED, parse_comm_bucket},
    {"--disable", VALUE_NEEDED, parse_disable},
    {"--print-after", VALUE_NEEDED, parse_print_after},
    {"--stats", VALUE_NONE, parse_stats},
    {"--lower", VALUE_NONE, parse_lower},
    {"--one-shot", VALUE_MAYBE, parse_one_shot},
    {"--no-reuse", VALUE_NONE, parse_no_reuse},
    {"--no-comm-buffers", VALUE_NONE, parse_no_comm_buffers},
    {"--run", VALUE_NONE, parse_run},
    {"-n", VALUE_NEEDED, parse_ranks},
    {"--memory", VALUE_NEEDED, parse_memory},
    {"--dot", VALUE_MAYBE, parse_dot},
    {"--dot-prefix", VALUE_NEEDED, parse_dot_prefix},
    {"--load", VALUE_NEEDED, parse_load},
    {"--list", VALUE_NONE, parse_list},
};

#define N_OPTIONS (sizeof opt_options / sizeof opt_options[0])

/* Of "--pass=x" only what stands before the value is compared. */
static int tell_unknown_option(const char *word)
{
    char name[NAME_MAX_CHARS + 1];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    struct tool_choice names[N_OPTIONS + 1] = {{.name = "--help"}};
    for (size_t i = 0; i < N_OPTIONS; i++) {
        names[i + 1].name = opt_options[i].name;
    }
    return tool_choice_unknown("option", name, names, N_OPTIONS + 1);
}

static const struct opt_option *find_option(const char *word)
{
    size_t chars = strcspn(word, "=");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strlen(opt_options[i].name) == chars && strncmp(opt_options[i].name, word, chars) == 0) {
            return &opt_options[i];
        }
    }
    return NULL;
}

/* Reads the option at argv[*at], and leaves *at on its last word. */
static int parse_option(struct opt_plan *plan, int argc, char **argv, int *at)
{
    const struct opt_option *option = find_option(argv[*at]);
    if (!option) {
        return tell_unknown_option(argv[*at]);
    }
    const char *equals = strchr(argv[*at], '=');
    const char *value = equals ? equals + 1 : NULL;
    if (!value && option->value == VALUE_NEEDED && *at + 1 < argc) {
        value = argv[++*at];
    }
    bool has_value = value && *value;
    if (value && option->value == VALUE_NONE) {
        fprintf(stderr, "shoal opt: %s takes no value, but got '%s'\n", option->name, value);
        return TOOL_USAGE;
    }
    if (!has_value && (value || option->value == VALUE_NEEDED)) {
        fprintf(stderr, "shoal opt: %s needs a value\n", option->name);
        return TOOL_USAGE;
    }
    return option->parse(plan, value);
}

static int parse(struct opt_plan *plan, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int exit_status = TOOL_DONE;
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            exit_status = parse_option(plan, argc, argv, &i);
        } else if (plan->path) {
            fprintf(stderr, "shoal opt: one file expected, but got '%s' and '%s'\n", plan->path, argv[i]);
            exit_status = TOOL_USAGE;
        } else {
            plan->path = argv[i];
        }
        if (exit_status != TOOL_DONE) {
            return exit_status;
        }
    }
    if (!plan->path && !plan->is_list) {
        fprintf(stderr, "shoal opt: the file is missing\n");
        return print_usage(stderr, TOOL_USAGE);
    }
    if (plan->path && plan->is_list) {
        fprintf(stderr, "shoal opt: --list takes no file, but got '%s'\n", plan->path);
        return TOOL_USAGE;
    }
    return TOOL_DONE;
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
    int exit_status = check_plan(plan);
    if (exit_status != TOOL_DONE) {
        return exit_status;
    }
    return plan->is_list ? list_passes() : opt_run(plan);
}

int command_opt(int argc, char **argv)
{
    struct opt_plan plan = {.lowering = SHOAL_COMPILE_OPTIONS_INIT};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return print_usage(stdout, TOOL_DONE);
        }
    }
    tool_report_options();
    int exit_status = parse(&plan, argc, argv);
    if (exit_status == TOOL_DONE) {
        exit_status = run(&plan);
    }
    opt_names_free(&plan.passes);
    opt_names_free(&plan.print_after);
    opt_names_free(&plan.disabled);
    opt_names_free(&plan.libraries);
    return exit_status;
}
