/* SPDX-License-Identifier: MIT */
/* `shoal run -n N [--] PROGRAM ARGUMENTS`: its command line. run/job.c runs the ranks, for several hosts
   with run/remote.c. */
#include "common/commands.h"
#include "common/tool.h"

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
    bool has_no_labels;
};

static int take_transport(void *arguments, const char *value)
{
    (void)arguments;
    return tool_set_transport(value) ? TOOL_DONE : TOOL_USAGE;
}

static const char *launcher_at(size_t index)
{
    static const char *const names[] = {"ssh", "mpirun"};
    return index < sizeof names / sizeof names[0] ? names[index] : NULL;
}

static int take_mpirun(void *arguments, const char *value)
{
    struct run_line *line = arguments;
    if (value[strspn(value, " \t")] == '\0') {
        fprintf(stderr, "shoal run: --mpirun: '%s' is not a command\n", value);
        return TOOL_USAGE;
    }
    line->remote.mpirun = value;
    return TOOL_DONE;
}

static int take_address(void *arguments, const char *value)
{
    struct run_line *line = arguments;
    if (strlen(value) >= RUN_HOST_BYTES) {
        fprintf(stderr, "shoal run: --address: '%.80s' is not HOST or HOST:PORT\n", value);
        return TOOL_USAGE;
    }
    line->remote.address = value;
    return TOOL_DONE;
}

static int take_variable(void *arguments, const char *value)
{
    struct run_line *line = arguments;
    size_t length = strcspn(value, "=");
    if (length == 0 || length >= 128) {
        fprintf(stderr, "shoal run: -x: '%.80s' is not NAME or NAME=VALUE\n", value);
        return TOOL_USAGE;
    }
    if (line->remote.n_variables == RUN_MAX_VARIABLES) {
        fprintf(stderr, "shoal run: -x: more than %d variables\n", RUN_MAX_VARIABLES);
        return TOOL_USAGE;
    }
    line->remote.variables[line->remote.n_variables++] = value;
    return TOOL_DONE;
}

#define AT(field) offsetof(struct run_line, field)

static const struct tool_option rows[] = {
    {"-n", "N", TOOL_OPTION_INT, AT(plan.n_ranks), 1, RUN_MAX_RANKS, .alias = "-np",
     .help = "number of ranks, 1 to 1024; with --hosts, all slots by default"},
    {"--transport", "NAME", TOOL_OPTION_OTHER, .take = take_transport, .name_at = tool_transport_at,
     .help = "transport of the ranks (SHOAL_TRANSPORT); shoal info lists the names"},
    {"--grace", "SECONDS", TOOL_OPTION_REAL, AT(plan.grace_s), 0, GRACE_MAX_S,
     .help = "from telling ranks to end until they are killed; default 2, with --hosts 10"},
    {"--no-label", NULL, TOOL_OPTION_FLAG, AT(has_no_labels),
     .help = "prints lines as the ranks write them, without [RANK]"},
    {"--hosts", "FILE", TOOL_OPTION_TEXT, AT(remote.hosts_path),
     .help = "starts ranks on these hosts, lines NAME [slots=N]"},
    {"--launcher", "NAME", TOOL_OPTION_NAME, AT(remote.launcher), .name_at = launcher_at,
     .help = "how to start ranks there; default mpirun if there is one, else ssh (or the command SHOAL_RSH)"},
    {"--mpirun", "CMD", TOOL_OPTION_OTHER, .take = take_mpirun,
     .help = "the mpirun to use, with options for it"},
    {"--address", "A", TOOL_OPTION_OTHER, .take = take_address,
     .help = "with ssh: where rank 0 listens, HOST or HOST:PORT; default the first host"},
    {"-x", "NAME[=VALUE]", TOOL_OPTION_OTHER, .take = take_variable,
     .help = "passes this variable on to other hosts, as SHOAL_* are (but not those of a launcher's job)"},
    {"PROGRAM", "program", TOOL_OPTION_REST, AT(plan.program), .help = "the program, and its arguments"},
};

_Static_assert(RUN_MAX_RANKS == 1024, "the help of -n says how many");

const struct tool_options command_run_options = {
    .synopsis =
        "shoal run -n N [--transport NAME] [--grace SECONDS] [--no-label] [--] PROGRAM [ARGUMENT...]\n"
        "       shoal run --hosts FILE [-n N] [--launcher ssh|mpirun] [OPTION...] [--] PROGRAM [ARGUMENT...]",
    TOOL_OPTIONS_ROWS(rows),
    .notes =
        "Starts the ranks of a program. shoal_world_open finds its rank in SHOAL_RANK, SHOAL_RANKS and\n"
        "SHOAL_KEY, which are set for each rank, or under mpirun in the variables of MPI. Rank 0 reads the\n"
        "standard input. When a rank fails, the others are ended, and the exit code is the one of the rank\n"
        "that failed first.\n",
};

/* The first option that is only for several hosts; NULL if none was given. */
static const char *find_hosts_option(const struct tool_given *given)
{
    static const char *const names[] = {"--launcher", "--mpirun", "--address", "-x"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (tool_option_is_given(&command_run_options, given, names[i])) {
            return names[i];
        }
    }
    return NULL;
}

static int check_line(const struct run_line *line, const struct tool_given *given)
{
    const char *option = find_hosts_option(given);
    const char *missing = line->plan.n_ranks == 0 && !line->remote.hosts_path ? "-n N is missing"
                          : !line->plan.program                               ? "the program is missing"
                                                                              : NULL;
    if (missing) {
        return tool_options_refuse(&command_run_options, missing);
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
    struct tool_given given;
    line = (struct run_line){.plan = {.command = "shoal run", .tells_codes = true, .grace_s = -1}};
    if (argc > 2 && strcmp(argv[1], "--worker") == 0) {
        return run_worker(argc - 2, argv + 2);
    }
    int exit_code;
    if (!tool_options_read(&command_run_options, argc, argv, &line, &given, &exit_code)) {
        return exit_code;
    }
    exit_code = check_line(&line, &given);
    if (exit_code != TOOL_DONE) {
        return exit_code;
    }
    line.plan.has_labels = !line.has_no_labels;
    if (line.plan.grace_s < 0) {
        line.plan.grace_s = line.remote.hosts_path ? GRACE_HOSTS_S : GRACE_DEFAULT_S;
    }
    tool_report_options();
    return line.remote.hosts_path ? run_remote(&line.remote, &line.plan) : run_job(&line.plan);
}
