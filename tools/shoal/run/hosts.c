/* SPDX-License-Identifier: MIT */
/* Reading a file of hosts. See run/hosts.h. */
#include "run/hosts.h"

#include "base/option_parse.h"
#include "run/rank.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\n"

/* Names go on command lines of agents: none may look like an option or hold what a shell reads. */
static bool is_name(const char *word)
{
    size_t length = strlen(word);
    return length < RUN_HOST_BYTES && word[0] != '-' &&
           strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@:") == length;
}

static bool parse_slots(const char *path, const char *word, struct run_host *host)
{
    int64_t slots;
    if (strncmp(word, "slots=", 6) != 0) {
        fprintf(stderr, "shoal run: %s:%d: '%s' is not slots=N\n", path, host->line, word);
        return false;
    }
    if (!option_parse_int(word + 6, &slots) || slots < 1 || slots > RUN_MAX_RANKS) {
        fprintf(stderr, "shoal run: %s:%d: '%s': 1 to %d slots expected\n", path, host->line, word,
                RUN_MAX_RANKS);
        return false;
    }
    host->slots = (int)slots;
    return true;
}

static bool add_host(struct run_hosts *hosts, const char *path, const struct run_host *host)
{
    for (int i = 0; i < hosts->n_hosts; i++) {
        if (strcmp(hosts->hosts[i].name, host->name) == 0) {
            fprintf(stderr, "shoal run: %s:%d: %s is there already, in line %d\n", path, host->line,
                    host->name, hosts->hosts[i].line);
            return false;
        }
    }
    if (hosts->n_hosts == RUN_MAX_RANKS) {
        fprintf(stderr, "shoal run: %s has more than %d hosts\n", path, RUN_MAX_RANKS);
        return false;
    }
    hosts->hosts[hosts->n_hosts++] = *host;
    return true;
}

static bool parse_line(struct run_hosts *hosts, const char *path, char *line, int number)
{
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
    char *name = strtok_r(line, BLANKS, &rest);
    if (!name) {
        return true;
    }
    if (!is_name(name)) {
        fprintf(stderr, "shoal run: %s:%d: '%.80s' is not the name of a host\n", path, number, name);
        return false;
    }
    struct run_host host = {.line = number, .slots = 1};
    (void)snprintf(host.name, sizeof host.name, "%s", name);
    char *word = strtok_r(NULL, BLANKS, &rest);
    if (word && !parse_slots(path, word, &host)) {
        return false;
    }
    word = word ? strtok_r(NULL, BLANKS, &rest) : NULL;
    if (word) {
        fprintf(stderr, "shoal run: %s:%d: '%s' is more than NAME slots=N\n", path, number, word);
        return false;
    }
    return add_host(hosts, path, &host);
}

static bool parse_file(struct run_hosts *hosts, const char *path, FILE *file)
{
    char *line = NULL;
    size_t line_bytes = 0;
    int number = 0;
    bool is_right = true;
    while (is_right && getline(&line, &line_bytes, file) >= 0) {
        is_right = parse_line(hosts, path, line, ++number);
    }
    free(line);
    if (is_right && ferror(file)) {
        fprintf(stderr, "shoal run: %s: %s\n", path, strerror(errno));
        return false;
    }
    if (is_right && hosts->n_hosts == 0) {
        fprintf(stderr, "shoal run: %s names no host\n", path);
        return false;
    }
    return is_right;
}

/* Hosts are filled in their order. */
static bool place_ranks(struct run_hosts *hosts, const char *path, int n_ranks)
{
    int n_slots = 0;
    for (int i = 0; i < hosts->n_hosts; i++) {
        n_slots += hosts->hosts[i].slots;
    }
    int wanted = n_ranks == 0 ? n_slots : n_ranks;
    if (wanted > n_slots || wanted > RUN_MAX_RANKS) {
        fprintf(stderr, "shoal run: %d ranks, but %s has %d slot%s, and there are at most %d ranks\n", wanted,
                path, n_slots, n_slots == 1 ? "" : "s", RUN_MAX_RANKS);
        return false;
    }
    for (int i = 0; i < hosts->n_hosts && hosts->n_ranks < wanted; i++) {
        struct run_host *host = &hosts->hosts[i];
        int left = wanted - hosts->n_ranks;
        host->first_rank = hosts->n_ranks;
        host->n_ranks = host->slots < left ? host->slots : left;
        hosts->n_ranks += host->n_ranks;
        hosts->n_used++;
    }
    return true;
}

bool run_hosts_read(const char *path, int n_ranks, struct run_hosts *hosts_out)
{
    struct run_hosts hosts = {.hosts = calloc(RUN_MAX_RANKS, sizeof *hosts.hosts)};
    FILE *file = fopen(path, "re");
    if (!file || !hosts.hosts) {
        fprintf(stderr, "shoal run: --hosts: %s: %s\n", path, strerror(errno));
    }
    bool is_right =
        file && hosts.hosts && parse_file(&hosts, path, file) && place_ranks(&hosts, path, n_ranks);
    if (file) {
        (void)fclose(file);
    }
    if (!is_right) {
        run_hosts_free(&hosts);
        return false;
    }
    *hosts_out = hosts;
    return true;
}

void run_hosts_free(struct run_hosts *hosts)
{
    free(hosts->hosts);
    *hosts = (struct run_hosts){0};
}
