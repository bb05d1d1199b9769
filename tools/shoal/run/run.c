/* SPDX-License-Identifier: MIT */
/* `shoal run -n N [--] PROGRAM ARGUMENTS`: its command line. run/job.c runs the ranks, for several hosts
   with run/remote.c. */
#include "common/commands.h"
#include "common/tool.h"

#include "base/option_parse.h"
#include "run/job.h"
#include "run/remote.h"
#include "run/worker.h"

#include <stdio.h>
#include <string.h>

#define GRACE_DEFAULT_S 2.0
/* Longer than others need to notice that a host is cut off. */
#define GRACE_HOSTS_S 10.0
#define GRACE_MAX_S 86400.0

/* The command line. */
struct run_line {
    struct run_plan plan;
    struct run_remote remote;
};

static int print_usage(FILE *out, int exit_status)
{
    fprintf(
        out,
        "usage: shoal run -n N [--transport NAME] [--grace SECONDS] [--no-label] [--] PROGRAM [ARGUMENT...]\n"
        "       shoal run --hosts FILE [-n N] [--launcher ssh|mpirun] [OPTION...] [--] PROGRAM "
        "[ARGUMENT...]\n"
        "  -n N             number of ranks, 1 to %d (also -np N)\n"
        "  --transport NAME transport of the ranks (SHOAL_TRANSPORT); shoal info lists the names\n"
        "  --grace SECONDS  from telling ranks to end until they are killed; default %g, with --hosts %g\n"
        "  --no-label       prints lines as the ranks write them, without [RANK]\n"
        "  --hosts FILE     starts ranks on these hosts, lines NAME [slots=N]; default of -n: all slots\n"
        "  --launcher NAME  ssh (or the command SHOAL_RSH), or mpirun; default mpirun if there is one\n"
        "  --mpirun CMD     the mpirun to use, with options for it\n"
        "  --address A      with ssh: where rank 0 listens, HOST or HOST:PORT; default the first host\n"
        "  -x NAME[=VALUE]  passes this variable on to other hosts, as SHOAL_* are\n"
        "                   (but not those that describe a launcher's own job)\n"
        "Starts the ranks of a program. shoal_world_open finds its rank in SHOAL_RANK, SHOAL_RANKS and\n"
        "SHOAL_KEY, which are set for each rank, or under mpirun in the variables of MPI. Rank 0 reads the\n"
        "standard input. When a rank fails, the others are ended, and the exit code is the one of the rank\n"
        "that failed first.\n",
        RUN_MAX_RANKS, GRACE_DEFAULT_S, GRACE_HOSTS_S);
    return exit_status;
}

static bool parse_ranks(struct run_line *line, const char *value)
{
    int64_t n_ranks;
    if (!option_parse_int(value, &n_ranks) || n_ranks < 1 || n_ranks > RUN_MAX_RANKS) {
        fprintf(stderr, "shoal run: -n: '%s' is not a number of ranks from 1 to %d\n", value, RUN_MAX_RANKS);
        return false;
    }
    line->plan.n_ranks = (int)n_ranks;
    return true;
}

static bool parse_grace(struct run_line *line, const char *value)
{
    double *grace_s = &line->plan.grace_s;
    if (!option_parse_seconds(value, grace_s) || *grace_s < 0 || *grace_s > GRACE_MAX_S) {
        fprintf(stderr, "shoal run: --grace: '%s' is not a number of seconds from 0 to %g\n", value,
                GRACE_MAX_S);
        return false;
    }
    return true;
}

static bool parse_transport(struct run_line *line, const char *value)
{
    (void)line;
    return tool_set_transport(value);
}

static bool parse_hosts(struct run_line *line, const char *value)
{
    line->remote.hosts_path = value;
    return true;
}

static bool parse_launcher(struct run_line *line, const char *value)
{
    if (strcmp(value, "ssh") != 0 && strcmp(value, "mpirun") != 0) {
        fprintf(stderr, "shoal run: --launcher: '%s' is neither ssh nor mpirun\n", value);
        return false;
    }
    line->remote.launcher = value;
    return true;
}

static bool parse_mpirun(struct run_line *line, const char *value)
{
    if (value[strspn(value, " \t")] == '\0') {
        fprintf(stderr, "shoal run: --mpirun: '%s' is not a command\n", value);
        return false;
    }
    line->remote.mpirun = value;
    return true;
}

static bool parse_address(struct run_line *line, const char *value)
{
    if (value[0] == '\0' || strlen(value) >= RUN_HOST_BYTES) {
        fprintf(stderr, "shoal run: --address: '%.80s' is not HOST or HOST:PORT\n", value);
        return false;
    }
    line->remote.address = value;
    return true;
}

static bool parse_variable(struct run_line *line, const char *value)
{
    size_t length = strcspn(value, "=");
    if (length == 0 || length >= 128) {
        fprintf(stderr, "shoal run: -x: '%.80s' is not NAME or NAME=VALUE\n", value);
        return false;
    }
    if (line->remote.n_variables == RUN_MAX_VARIABLES) {
        fprintf(stderr, "shoal run: -x: more than %d variables\n", RUN_MAX_VARIABLES);
        return false;
    }
    line->remote.variables[line->remote.n_variables++] = value;
    return true;
}

static const struct run_option {
    const char *name;
    bool (*parse)(struct run_line *line, const char *value);
    bool is_of_hosts; /* says nothing without --hosts */
} run_options[] = {
    {"-n", parse_ranks, false},
    {"-np", parse_ranks, false}, /* what mpirun calls it */
    {"--grace", parse_grace, false},
    {"--hosts", parse_hosts, false},
    {"--transport", parse_transport, false},
    {"--launcher", parse_launcher, true},
    {"--mpirun", parse_mpirun, true},
    {"--address", parse_address, true},
    {"-x", parse_variable, true},
};

#define N_RUN_OPTIONS (sizeof run_options / sizeof run_options[0])

/* Only to find what a mistyped option is nearest to. */
static const struct tool_choice option_names[] = {
    {.name = "-n"},      {.name = "--transport"}, {.name = "--grace"},  {.name = "--no-label"},
    {.name = "--hosts"}, {.name = "--launcher"},  {.name = "--mpirun"}, {.name = "--address"},
    {.name = "-x"},      {.name = "--help"}};

/* Reads the option at argv[i], and its value; how many words these were, 0 after an error. */
static int parse_option(struct run_line *line, int argc, char **argv, int i)
{
    if (strcmp(argv[i], "--no-label") == 0) {
        line->plan.has_labels = false;
        return 1;
    }
    for (size_t k = 0; k < N_RUN_OPTIONS; k++) {
        if (strcmp(argv[i], run_options[k].name) != 0) {
            continue;
        }
        if (i + 1 >= argc) {
            fprintf(stderr, "shoal run: %s needs a value\n", argv[i]);
            return 0;
        }
        return run_options[k].parse(line, argv[i + 1]) ? 2 : 0;
    }
    /* -n4 */
    if (strncmp(argv[i], "-n", 2) == 0) {
        return parse_ranks(line, argv[i] + 2) ? 1 : 0;
    }
    (void)tool_choice_unknown("option", argv[i], option_names, sizeof option_names / sizeof option_names[0]);
    return 0;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* The first option that is only for several hosts; NULL if there is none. */
static const char *find_hosts_option(char **argv, int n_words)
{
    for (int i = 1; i < n_words; i++) {
        for (size_t k = 0; k < N_RUN_OPTIONS; k++) {
            if (run_options[k].is_of_hosts && strcmp(argv[i], run_options[k].name) == 0) {
                return argv[i];
            }
        }
    }
    return NULL;
}

static int check_line(const struct run_line *line, int argc, char **argv, int n_words)
{
    const char *option = find_hosts_option(argv, n_words);
    const char *missing = line->plan.n_ranks == 0 && !line->remote.hosts_path ? "-n N is missing"
                          : n_words >= argc                                   ? "the program is missing"
                                                                              : NULL;
    if (missing) {
        fprintf(stderr, "shoal run: %s\n", missing);
        return print_usage(stderr, TOOL_USAGE);
    }
    if (option && !line->remote.hosts_path) {
        fprintf(stderr, "shoal run: %s is for several hosts, and there is no --hosts FILE\n", option);
        return TOOL_USAGE;
    }
    return TOOL_DONE;
}

int command_run(int argc, char **argv)
{
    static struct run_line line;
    line = (struct run_line){
        .plan = {.command = "shoal run", .tells_codes = true, .has_labels = true, .grace_s = -1}};
    int i = 1;
    if (argc > 2 && strcmp(argv[1], "--worker") == 0) {
        return run_worker(argc - 2, argv + 2);
    }
    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0) {
        if (is_help(argv[i])) {
            return print_usage(stdout, TOOL_DONE);
        }
        int n_words = parse_option(&line, argc, argv, i);
        if (n_words == 0) {
            return TOOL_USAGE;
        }
        i += n_words;
    }
    i += i < argc && strcmp(argv[i], "--") == 0;
    int exit_code = check_line(&line, argc, argv, i);
    if (exit_code != TOOL_DONE) {
        return exit_code;
    }
    line.plan.program = argv + i;
    if (line.plan.grace_s < 0) {
        line.plan.grace_s = line.remote.hosts_path ? GRACE_HOSTS_S : GRACE_DEFAULT_S;
    }
    tool_report_options();
    return line.remote.hosts_path ? run_remote(&line.remote, &line.plan) : run_job(&line.plan);
}
