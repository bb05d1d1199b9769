/* SPDX-License-Identifier: MIT */
/* What a launcher needs before it starts ranks: standard files, a key, and enough files; and their start. See run/begin.h
   and run/job.h. */
#include "run/begin.h"
#include "base/error.h"
#include "common/tool.h"
#include "run/job.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    EXIT_NOT_EXECUTABLE = 126, /* as shells have it */
    EXIT_NOT_FOUND = 127,
    OWN_FILES = 64
};

void run_fill_standard_files(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) {
        (void)close(fd);
    }
}

bool run_make_key(char *key_out)
{
    unsigned char bytes[(RUN_KEY_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return false;
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        (void)snprintf(key_out + 2 * i, 3, "%02x", bytes[i]);
    }
    return true;
}

void run_raise_file_limit(struct run_plan *plan)
{
    rlim_t needed = (rlim_t)plan->n_ranks * RUN_N_STREAMS + OWN_FILES;
    (void)getrlimit(RLIMIT_NOFILE, &plan->file_limit);
    if (plan->file_limit.rlim_cur < needed) {
        struct rlimit raised = plan->file_limit;
        raised.rlim_cur = needed < raised.rlim_max ? needed : raised.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &raised);
    }
}

/* "; did you mean './x'?" of a name that is looked for in PATH, and is a program of the working directory. */
static void suggest_here(const char *program, char *text, size_t bytes)
{
    char path[PATH_MAX];
    struct stat about;
    int length = snprintf(path, sizeof path, "./%s", program);
    bool is_here = !strchr(program, '/') && length < (int)sizeof path && access(path, X_OK) == 0 &&
                   stat(path, &about) == 0 && S_ISREG(about.st_mode);
    if (is_here) {
        (void)snprintf(text, bytes, "; did you mean '%s'?", path);
    }
}

int run_begin_rank(struct run_rank *rank, const struct run_plan *plan)
{
    bool is_program = false;
    int error = run_rank_start(rank, plan, &is_program);
    if (error != 0 && is_program) {
        const char *program = plan->agents ? plan->agents[rank->rank].program[0] : plan->program[0];
        char here[PATH_MAX + 32] = "";
        if (error == ENOENT) {
            suggest_here(program, here, sizeof here);
        }
        fprintf(stderr, "%s: %s%scannot start '%s': %s%s\n", plan->command, plan->host ? plan->host : "",
                plan->host ? ": " : "", program, error_errno_text(error), here);
        return error == ENOENT || error == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
    }
    if (error != 0) {
        fprintf(stderr, "%s: cannot start %s %d: %s\n", plan->command, plan->agents ? "agent" : "rank",
                plan->first_rank + rank->rank, error_errno_text(error));
        return TOOL_FAILED;
    }
    return TOOL_DONE;
}
