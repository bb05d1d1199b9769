/* SPDX-License-Identifier: MIT */
/* Which launcher, and what ranks of other hosts get from the environment. See run/remote.h. */
#include "run/remote.h"

#include "common/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether a command is found on the path. */
static bool is_installed(const char *command)
{
    char path[4096];
    const char *at = getenv("PATH");
    while (at && *at) {
        size_t length = strcspn(at, ":");
        (void)snprintf(path, sizeof path, "%.*s/%s", (int)length, at, command);
        if (access(path, X_OK) == 0) {
            return true;
        }
        at += length + (at[length] == ':');
    }
    return false;
}

/* Given as NAME=VALUE: it is set here, and passed on like the others. */
static bool set_variables(struct run_remote *remote)
{
    static char names[RUN_MAX_VARIABLES][128];
    for (int i = 0; i < remote->n_variables; i++) {
        const char *equals = strchr(remote->variables[i], '=');
        if (!equals) {
            continue;
        }
        (void)snprintf(names[i], sizeof names[i], "%.*s", (int)(equals - remote->variables[i]),
                       remote->variables[i]);
        if (setenv(names[i], equals + 1, /*overwrite=*/1) != 0) {
            return false;
        }
        remote->variables[i] = names[i];
    }
    return true;
}

int run_remote(struct run_remote *remote, const struct run_plan *plan)
{
    ssize_t length = readlink("/proc/self/exe", remote->self, sizeof remote->self - 1);
    if (length < 0 || !set_variables(remote)) {
        fprintf(stderr, "%s: cannot start: %s\n", plan->command, strerror(errno));
        return TOOL_FAILED;
    }
    remote->self[length] = '\0';
    const char *launcher = remote->launcher                           ? remote->launcher
                           : remote->mpirun || is_installed("mpirun") ? "mpirun"
                                                                      : "ssh";
    if (!run_hosts_read(remote->hosts_path, plan->n_ranks, &remote->hosts)) {
        return TOOL_USAGE;
    }
    int exit_code = strcmp(launcher, "ssh") == 0 ? run_agents(remote, plan) : run_mpirun(remote, plan);
    run_hosts_free(&remote->hosts);
    return exit_code;
}
