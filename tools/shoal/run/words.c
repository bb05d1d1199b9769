/* SPDX-License-Identifier: MIT */
/* Words of commands, and which variables go to other hosts. See run/remote.h. */
#include "run/remote.h"

#include <string.h>

int run_remote_split(char *text, char **words, int n_words, int max_words)
{
    char *rest = NULL;
    for (char *word = strtok_r(text, " \t", &rest); word && n_words < max_words;
         word = strtok_r(NULL, " \t", &rest)) {
        words[n_words++] = word;
    }
    return n_words;
}

/* Those of one job, or of one host: a launcher sets them. */
static bool is_of_a_job(const char *variable)
{
    static const char *const names[] = {
        "SHOAL_RANK=", "SHOAL_RANKS=", "SHOAL_KEY=", "SHOAL_ADDRESS=", "SHOAL_TOKEN=", "SHOAL_RSH="};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(variable, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

bool run_remote_passes(const struct run_remote *remote, const char *variable)
{
    if (strncmp(variable, "SHOAL_", 6) == 0) {
        return !is_of_a_job(variable);
    }
    for (int i = 0; i < remote->n_variables; i++) {
        size_t length = strlen(remote->variables[i]);
        if (strncmp(variable, remote->variables[i], length) == 0 && variable[length] == '=') {
            return true;
        }
    }
    return false;
}
