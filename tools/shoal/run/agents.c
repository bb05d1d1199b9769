/* SPDX-License-Identifier: MIT */
/* An agent for each host. See run/remote.h and run/worker.h. */
#include "run/remote.h"

#include "run/job.h"
#include "run/worker.h"
#include "shoal/version.h"
#include "common/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_AGENT_WORDS = 64,
    /* Below the ports that the kernel gives to whoever connects. */
    FIRST_PORT = 20000,
    N_PORTS = 12000
};

/* No agent may ask for a password: its standard input is ours. */
#define DEFAULT_AGENT "ssh -x -o BatchMode=yes"

extern char **environ;

/* Agents of all hosts, and what they have in common. */
struct agents {
    const struct run_remote *remote;
    const struct run_plan *plan;
    char key[RUN_KEY_BYTES];
    char token[RUN_KEY_BYTES];
    char address[RUN_HOST_BYTES + 8];
    char directory[4096];
    char *agent_text; /* SHOAL_RSH, split into words */
    char *agent_words[MAX_AGENT_WORDS];
    int n_agent_words;
    struct run_agent *rows;
};

/* What a worker gets ------------------------------------------------------------------------------------- */

static void put_string(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put_string(FILE *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(out, format, arguments);
    va_end(arguments);
    (void)fputc('\0', out);
}

static int count_words(char *const *words)
{
    int n_words = 0;
    while (words[n_words]) {
        n_words++;
    }
    return n_words;
}

static int count_variables(const struct agents *agents)
{
    int n_variables = 2; /* the address and the token */
    for (char **variable = environ; *variable; variable++) {
        n_variables += run_remote_passes(agents->remote, *variable);
    }
    return n_variables;
}

static void put_plan(const struct agents *agents, const struct run_host *host, FILE *out)
{
    const struct run_plan *plan = agents->plan;
    put_string(out, "%s", shoal_version());
    put_string(out, "%s", agents->directory);
    put_string(out, "%s", host->name);
    put_string(out, "%s", agents->key);
    put_string(out, "%d", host->first_rank);
    put_string(out, "%d", host->n_ranks);
    put_string(out, "%d", agents->remote->hosts.n_ranks);
    put_string(out, "%d", plan->has_labels);
    put_string(out, "%.6f", plan->grace_s);
    put_string(out, "%d", count_variables(agents));
    put_string(out, "%d", count_words(plan->program));
    put_string(out, "SHOAL_ADDRESS=%s", agents->address);
    put_string(out, "SHOAL_TOKEN=%s", agents->token);
    for (char **variable = environ; *variable; variable++) {
        if (run_remote_passes(agents->remote, *variable)) {
            put_string(out, "%s", *variable);
        }
    }
    for (char **word = plan->program; *word; word++) {
        put_string(out, "%s", *word);
    }
}

/* The header, and then the strings. False, with errno, when there is no memory. */
static bool make_input(const struct agents *agents, const struct run_host *host, struct run_agent *row)
{
    char *strings = NULL, *input = NULL;
    size_t strings_bytes = 0, input_bytes = 0;
    FILE *out = open_memstream(&strings, &strings_bytes);
    if (!out) {
        return false;
    }
    put_plan(agents, host, out);
    bool is_right = fclose(out) == 0;
    out = is_right ? open_memstream(&input, &input_bytes) : NULL;
    if (out) {
        fprintf(out, RUN_WORKER_MAGIC "%zu\n", strings_bytes);
        (void)fwrite(strings, 1, strings_bytes, out);
        is_right = fclose(out) == 0;
    }
    free(strings);
    row->input = input;
    row->input_bytes = input_bytes;
    return is_right && input;
}

/* The commands --------------------------------------------------------------------------------------------- */

/* A word that any shell reads as it is. */
static void put_quoted(FILE *out, const char *word)
{
    (void)fputc('\'', out);
    for (; *word; word++) {
        if (*word == '\'') {
            fprintf(out, "'\\''");
        } else {
            (void)fputc(*word, out);
        }
    }
    (void)fputc('\'', out);
}

static char *make_command(const struct agents *agents)
{
    char *command = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&command, &n_bytes);
    if (!out) {
        return NULL;
    }
    fprintf(out, "exec ");
    put_quoted(out, agents->remote->self);
    fprintf(out, " run --worker stdin");
    return fclose(out) == 0 ? command : NULL;
}

/* No agent is needed to come to where we are. */
static bool is_here(const char *host)
{
    char name[RUN_HOST_BYTES] = "";
    (void)gethostname(name, sizeof name - 1);
    return strcmp(host, "localhost") == 0 || strcmp(host, name) == 0;
}

static bool make_row(const struct agents *agents, const struct run_host *host, struct run_agent *row)
{
    static char run[] = "run", worker[] = "--worker", input[] = "stdin";
    int n_words = 0;
    row->n_ranks = host->n_ranks;
    row->program = calloc(MAX_AGENT_WORDS + 4, sizeof *row->program);
    if (!row->program || !make_input(agents, host, row)) {
        return false;
    }
    if (is_here(host->name)) {
        row->program[n_words++] = strdup(agents->remote->self);
        row->program[n_words++] = run;
        row->program[n_words++] = worker;
        row->program[n_words++] = input;
        return row->program[0] && asprintf(&row->name, "the worker on %s", host->name) > 0;
    }
    for (int i = 0; i < agents->n_agent_words; i++) {
        row->program[n_words++] = agents->agent_words[i];
    }
    row->program[n_words++] = strdup(host->name);
    row->program[n_words++] = make_command(agents);
    return row->program[n_words - 2] && row->program[n_words - 1] &&
           asprintf(&row->name, "the agent of %s (%s)", host->name, agents->agent_words[0]) > 0;
}

static void free_row(const struct agents *agents, struct run_agent *row)
{
    bool has_agent = row->program && row->program[0] == agents->agent_words[0];
    if (row->program && has_agent) {
        free(row->program[agents->n_agent_words]);
        free(row->program[agents->n_agent_words + 1]);
    } else if (row->program) {
        free(row->program[0]);
    }
    free(row->program);
    free(row->name);
    free((char *)row->input);
}

/* Where the ranks meet ------------------------------------------------------------------------------------- */

/* HOST:PORT. An address with a colon and without a port (IPv6) is in brackets. */
static void make_address(struct agents *agents)
{
    const struct run_remote *remote = agents->remote;
    const char *host = remote->address ? remote->address : remote->hosts.hosts[0].name;
    const char *at = remote->address ? NULL : strrchr(host, '@'); /* ssh's user@host */
    host = at ? at + 1 : host;
    const char *bracket = strrchr(host, ']');
    if (strchr(bracket ? bracket : host, ':')) {
        (void)snprintf(agents->address, sizeof agents->address, "%s", host);
        return;
    }
    unsigned long number = strtoul(agents->key + 24, NULL, 16);
    (void)snprintf(agents->address, sizeof agents->address, "%.255s:%lu", host,
                   FIRST_PORT + number % N_PORTS);
}

static bool prepare(struct agents *agents)
{
    const char *text = getenv("SHOAL_RSH");
    agents->agent_text = strdup(text && text[0] ? text : DEFAULT_AGENT);
    agents->rows = calloc((size_t)agents->remote->hosts.n_used, sizeof *agents->rows);
    if (!agents->agent_text || !agents->rows || !run_make_key(agents->key) || !run_make_key(agents->token) ||
        !getcwd(agents->directory, sizeof agents->directory)) {
        return false;
    }
    agents->n_agent_words = run_remote_split(agents->agent_text, agents->agent_words, 0, MAX_AGENT_WORDS - 1);
    if (agents->n_agent_words == 0) {
        errno = EINVAL;
        return false;
    }
    make_address(agents);
    for (int i = 0; i < agents->remote->hosts.n_used; i++) {
        if (!make_row(agents, &agents->remote->hosts.hosts[i], &agents->rows[i])) {
            return false;
        }
    }
    return true;
}

int run_agents(const struct run_remote *remote, const struct run_plan *plan)
{
    struct agents agents = {.remote = remote, .plan = plan};
    struct run_plan all = *plan;
    int exit_code = TOOL_FAILED;
    if (prepare(&agents)) {
        all.agents = agents.rows;
        all.n_ranks = remote->hosts.n_used;
        all.n_ranks_all = remote->hosts.n_ranks;
        all.is_patient = true;
        memcpy(all.key, agents.key, sizeof all.key);
        exit_code = run_job(&all);
    } else {
        fprintf(stderr, "%s: cannot start: %s\n", plan->command, strerror(errno));
    }
    for (int i = 0; agents.rows && i < remote->hosts.n_used; i++) {
        free_row(&agents, &agents.rows[i]);
    }
    free(agents.rows);
    free(agents.agent_text);
    return exit_code;
}
