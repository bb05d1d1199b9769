/* SPDX-License-Identifier: MIT */
/*
 * Starts all ranks through one mpirun. See run/remote.h.
 *
 * Open MPI ends a job when one of its processes fails, unless --enable-recovery is given; with that option it may wait
 * for ever after the last process has ended. MPICH has -disable-auto-cleanup, but still kills the other ranks of a host
 * when one was killed by a signal. So each rank runs under a worker, which always ends with an exit code and reports
 * how its rank ended. The launcher ends mpirun when all workers have reported.
 */
#include "run/remote.h"

#include "run/job.h"
#include "common/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MAX_OWN_WORDS = 64
};

extern char **environ;

enum flavour {
    FLAVOUR_NONE,
    FLAVOUR_OPENMPI,
    FLAVOUR_MPICH
};

/* The command line that is being made. Words that were made for it are freed with it. */
struct command {
    char **words;
    int n_words;
    char **made;
    int n_made;
    char *text; /* of --mpirun */
    bool has_failed;
};

static void add(struct command *command, const char *word)
{
    command->words[command->n_words++] = (char *)word;
}

static void add_made(struct command *command, char *word)
{
    command->has_failed = command->has_failed || !word;
    if (word) {
        command->made[command->n_made++] = word;
        command->words[command->n_words++] = word;
    }
}

static void add_count(struct command *command, int count)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", count);
    add_made(command, strdup(text));
}

static void add_seconds(struct command *command, double number)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%.6f", number);
    add_made(command, strdup(text));
}

/* What `mpirun --version` says. */
static enum flavour ask_flavour(const char *mpirun)
{
    char command[4096], line[256];
    enum flavour flavour = FLAVOUR_NONE;
    (void)snprintf(command, sizeof command, "%.4000s --version 2>/dev/null </dev/null", mpirun);
    FILE *answer = popen(command, "re"); /* NOLINT(cert-env33-c): the command is the user's own */
    while (answer && fgets(line, sizeof line, answer)) {
        if (flavour == FLAVOUR_NONE && (strstr(line, "Open MPI") || strstr(line, "OpenRTE"))) {
            flavour = FLAVOUR_OPENMPI;
        } else if (flavour == FLAVOUR_NONE && (strstr(line, "HYDRA") || strstr(line, "MPICH"))) {
            flavour = FLAVOUR_MPICH;
        }
    }
    if (answer) {
        (void)pclose(answer);
    }
    return flavour;
}

/* The hosts that have ranks, in the words of the flavour. A file without a name: it ends with the launcher. */
static int make_hosts_file(const struct run_hosts *hosts, enum flavour flavour)
{
    const char *between = flavour == FLAVOUR_OPENMPI ? " slots=" : ":";
    int fd = memfd_create("shoal hosts", 0);
    for (int i = 0; fd >= 0 && i < hosts->n_used; i++) {
        if (dprintf(fd, "%s%s%d\n", hosts->hosts[i].name, between, hosts->hosts[i].n_ranks) < 0) {
            (void)close(fd);
            return -1;
        }
    }
    return fd;
}

/* The name of a variable NAME=VALUE. */
static char *name_of(const char *variable)
{
    return strndup(variable, strcspn(variable, "="));
}

/* Open MPI passes on no variables by itself, and does not run for root. */
static void add_openmpi(struct command *command, const struct run_remote *remote)
{
    const char *agent = getenv("SHOAL_RSH");
    if (geteuid() == 0) {
        add(command, "--allow-run-as-root");
    }
    add(command, "--enable-recovery");
    add(command, "--bind-to");
    add(command, "none");
    if (agent && agent[0]) {
        add(command, "--mca");
        add(command, "plm_rsh_agent");
        add(command, agent);
    }
    for (char **variable = environ; *variable; variable++) {
        if (run_remote_passes(remote, *variable)) {
            add(command, "-x");
            add_made(command, name_of(*variable));
        }
    }
    add(command, "--hostfile");
}

static void add_mpich(struct command *command)
{
    const char *agent = getenv("SHOAL_RSH");
    add(command, "-disable-auto-cleanup");
    if (agent && agent[0]) {
        add(command, "-launcher");
        add(command, "ssh");
        add(command, "-launcher-exec");
        add(command, agent);
    }
    add(command, "-f");
}

static void add_program(struct command *command, const struct run_remote *remote, const struct run_plan *plan,
                        const char *key)
{
    add(command, "-n");
    add_count(command, remote->hosts.n_ranks);
    add(command, "-wdir");
    add_made(command, getcwd(NULL, 0));
    add(command, remote->self);
    add(command, "run");
    add(command, "--worker");
    add(command, "mpirun");
    add(command, key);
    add_seconds(command, plan->grace_s);
    add(command, plan->has_labels ? "1" : "0");
    add(command, "--");
    for (char **word = plan->program; *word; word++) {
        add(command, *word);
    }
}

static size_t count_words(char *const *words)
{
    size_t n_words = 0;
    while (words[n_words]) {
        n_words++;
    }
    return n_words;
}

static bool make_command(struct command *command, const struct run_remote *remote,
                         const struct run_plan *plan, enum flavour flavour, int hosts_fd)
{
    char path[64];
    const char *mpirun = remote->mpirun ? remote->mpirun : "mpirun";
    size_t max_words =
        MAX_OWN_WORDS + strlen(mpirun) / 2 + 2 * count_words(environ) + count_words(plan->program);
    command->words = calloc(max_words + 1, sizeof *command->words);
    command->made = calloc(max_words + 1, sizeof *command->made);
    command->text = strdup(mpirun);
    if (!command->words || !command->made || !command->text) {
        return false;
    }
    command->n_words = run_remote_split(command->text, command->words, 0, (int)max_words);
    if (flavour == FLAVOUR_OPENMPI) {
        add_openmpi(command, remote);
    } else {
        add_mpich(command);
    }
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), hosts_fd);
    add_made(command, strdup(path));
    add_program(command, remote, plan, plan->key);
    return !command->has_failed;
}

static void free_command(struct command *command)
{
    for (int i = 0; i < command->n_made; i++) {
        free(command->made[i]);
    }
    free(command->made);
    free(command->words);
    free(command->text);
}

int run_mpirun(const struct run_remote *remote, const struct run_plan *plan)
{
    static char name[] = "mpirun";
    struct run_plan all = *plan;
    struct command command = {0};
    enum flavour flavour = ask_flavour(remote->mpirun ? remote->mpirun : name);
    if (flavour == FLAVOUR_NONE) {
        fprintf(stderr, "%s: '%s --version' names neither Open MPI nor MPICH; --launcher ssh needs no MPI\n",
                plan->command, remote->mpirun ? remote->mpirun : name);
        return TOOL_FAILED;
    }
    int hosts_fd = make_hosts_file(&remote->hosts, flavour);
    int exit_code = TOOL_FAILED;
    if (hosts_fd >= 0 && run_make_key(all.key) && make_command(&command, remote, &all, flavour, hosts_fd)) {
        struct run_agent agent = {.name = name, .program = command.words, .n_ranks = remote->hosts.n_ranks};
        all.agents = &agent;
        all.n_ranks = 1;
        all.n_ranks_all = remote->hosts.n_ranks;
        all.is_patient = true;
        exit_code = run_job(&all);
    } else {
        fprintf(stderr, "%s: cannot start: %s\n", plan->command, strerror(errno));
    }
    free_command(&command);
    if (hosts_fd >= 0) {
        (void)close(hosts_fd);
    }
    return exit_code;
}
