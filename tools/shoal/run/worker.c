/* SPDX-License-Identifier: MIT */
/* The ranks of one host, for a launcher on another. See run/worker.h. */
#include "run/worker.h"

#include "base/option_parse.h"
#include "run/job.h"
#include "run/report.h"
#include "shoal/version.h"
#include "common/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* As much as a pipe can hold: the launcher sends no more. */
    MAX_PLAN_BYTES = 1 << 20,
    EXIT_NO_DIRECTORY = 126
};

static char host_name[RUN_HOST_BYTES];

static int complain(const char *what)
{
    fprintf(stderr, "shoal run: worker on %s: %s\n", host_name, what);
    return TOOL_FAILED;
}

static bool read_all(char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n_read = read(STDIN_FILENO, bytes, n_bytes);
        if (n_read == 0 || (n_read < 0 && errno != EINTR)) {
            return false;
        }
        n_read = n_read < 0 ? 0 : n_read;
        bytes += n_read;
        n_bytes -= (size_t)n_read;
    }
    return true;
}

/* The first line, byte by byte: what follows it is not ours yet. How many bytes follow; 0 after an error. */
static size_t read_size(void)
{
    char line[64] = "";
    size_t length = 0;
    int64_t n_bytes;
    while (length < sizeof line - 1 && read_all(line + length, 1) && line[length] != '\n') {
        length++;
    }
    line[length] = '\0';
    size_t magic_bytes = strlen(RUN_WORKER_MAGIC);
    bool is_right = strncmp(line, RUN_WORKER_MAGIC, magic_bytes) == 0 &&
                    option_parse_int(line + magic_bytes, &n_bytes) && n_bytes > 0 &&
                    n_bytes <= MAX_PLAN_BYTES;
    return is_right ? (size_t)n_bytes : 0;
}

/* Strings of what came, one after the other. */
struct strings {
    char *at;
    char *end;
};

static char *take_string(struct strings *strings)
{
    char *zero =
        strings->at < strings->end ? memchr(strings->at, '\0', (size_t)(strings->end - strings->at)) : NULL;
    char *string = strings->at;
    if (!zero) {
        return NULL;
    }
    strings->at = zero + 1;
    return string;
}

static bool read_int(const char *text, int low, int high, int *number_out)
{
    int64_t number;
    if (!option_parse_int(text, &number) || number < low || number > high) {
        return false;
    }
    *number_out = (int)number;
    return true;
}

/* What the launcher set for the ranks: SHOAL_ADDRESS and the like. */
static bool set_variables(struct strings *strings, int n_variables)
{
    for (int i = 0; i < n_variables; i++) {
        char *variable = take_string(strings);
        char *equals = variable ? strchr(variable, '=') : NULL;
        if (!equals) {
            return false;
        }
        *equals = '\0';
        if (setenv(variable, equals + 1, /*overwrite=*/1) != 0) {
            return false;
        }
    }
    return true;
}

/* Of the launcher's making: it is checked so that another version's cannot do harm, and no more is said about it. */
static bool read_plan(struct strings *strings, struct run_plan *plan)
{
    char *fixed[WORKER_N_STRINGS];
    int n_variables, n_words, has_labels;
    for (int i = 0; i < WORKER_N_STRINGS; i++) {
        fixed[i] = take_string(strings);
        if (!fixed[i]) {
            return false;
        }
    }
    (void)snprintf(host_name, sizeof host_name, "%.255s", fixed[WORKER_HOST]);
    (void)snprintf(plan->key, sizeof plan->key, "%.32s", fixed[WORKER_KEY]);
    bool is_right = read_int(fixed[WORKER_FIRST_RANK], 0, RUN_MAX_RANKS, &plan->first_rank) &&
                    read_int(fixed[WORKER_N_RANKS], 1, RUN_MAX_RANKS, &plan->n_ranks) &&
                    read_int(fixed[WORKER_N_RANKS_ALL], 1, RUN_MAX_RANKS, &plan->n_ranks_all) &&
                    read_int(fixed[WORKER_HAS_LABELS], 0, 1, &has_labels) &&
                    read_int(fixed[WORKER_N_VARIABLES], 0, MAX_PLAN_BYTES, &n_variables) &&
                    read_int(fixed[WORKER_N_WORDS], 1, MAX_PLAN_BYTES, &n_words) &&
                    option_parse_seconds(fixed[WORKER_GRACE], &plan->grace_s) &&
                    set_variables(strings, n_variables);
    plan->program = is_right ? calloc((size_t)n_words + 1, sizeof *plan->program) : NULL;
    for (int i = 0; plan->program && i < n_words; i++) {
        plan->program[i] = take_string(strings);
        is_right = is_right && plan->program[i];
    }
    plan->has_labels = is_right && has_labels;
    return is_right && plan->program;
}

static int work_for_plan(struct strings strings)
{
    struct run_plan plan = {
        .command = "shoal run", .is_patient = true, .has_control = true, .host = host_name};
    struct strings look = strings;
    const char *version = take_string(&look);
    const char *directory = take_string(&look);
    if (!version || strcmp(version, shoal_version()) != 0) {
        fprintf(stderr, "shoal run: the launcher is shoal %.40s, %s has %s\n", version ? version : "?",
                host_name, shoal_version());
        return TOOL_FAILED;
    }
    if (!directory || !read_plan(&strings, &plan)) {
        free(plan.program);
        return complain("what the launcher sent is not a plan");
    }
    if (chdir(directory) != 0) {
        fprintf(stderr, "shoal run: %s: directory %s: %s\n", host_name, directory, strerror(errno));
        free(plan.program);
        return EXIT_NO_DIRECTORY;
    }
    int exit_code = run_job(&plan);
    free(plan.program);
    return exit_code;
}

static int work_for_agent(void)
{
    size_t n_bytes = read_size();
    char *bytes = n_bytes > 0 ? calloc(1, n_bytes) : NULL;
    if (!bytes || !read_all(bytes, n_bytes)) {
        free(bytes);
        return complain(
            "no plan was received on standard input; a worker is started by shoal run, not by hand");
    }
    int exit_code = work_for_plan((struct strings){bytes, bytes + n_bytes});
    free(bytes);
    return exit_code;
}

/* mpirun KEY GRACE LABELS -- PROGRAM... */
static int work_for_mpirun(int argc, char **argv)
{
    enum {
        KEY = 1,
        GRACE,
        LABELS,
        DASHES,
        PROGRAM
    };
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank ? rank : getenv("PMI_RANK");
    struct run_plan plan = {.command = "shoal run", .n_ranks = 1, .host = host_name, .is_rank_foreign = true};
    if (argc <= PROGRAM || !option_parse_seconds(argv[GRACE], &plan.grace_s)) {
        return complain("a worker is started by shoal run, not by hand");
    }
    if (!rank || !read_int(rank, 0, RUN_MAX_RANKS, &plan.first_rank)) {
        return complain("mpirun gave no rank: neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set");
    }
    (void)snprintf(plan.key, sizeof plan.key, "%.32s", argv[KEY]);
    plan.has_labels = strcmp(argv[LABELS], "1") == 0;
    plan.program = argv + PROGRAM;
    /* Of another job, which started this one. */
    (void)unsetenv("SHOAL_RANK");
    (void)unsetenv("SHOAL_RANKS");
    (void)unsetenv("SHOAL_KEY");
    /* Ranks on the launcher's own host inherit these, and the others do not: they would meet in two places. */
    (void)unsetenv("SHOAL_ADDRESS");
    (void)unsetenv("SHOAL_TOKEN");
    return run_job(&plan);
}

int run_worker(int argc, char **argv)
{
    (void)gethostname(host_name, sizeof host_name - 1);
    if (argc > 0 && strcmp(argv[0], "mpirun") == 0) {
        return work_for_mpirun(argc, argv);
    }
    return work_for_agent();
}
