/* SPDX-License-Identifier: MIT */
/*
 * Binds ranks to cores. The system may wake a sleeping thread on any idle processor. Ranks sleep whenever they wait for
 * each other; two ranks that wake up on one core compute at half speed until the system moves one, and all ranks wait
 * for them. With --bind cores each rank keeps to cores of its own, shared with the threads that carry its
 * communication. A rank that a launcher has bound already, or that is alone, is not bound.
 */
#include "train/bind.h"

#include "base/cores.h"
#include "base/error.h"
#include "base/os/os.h"
#include "shoal/group.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LEAST_PROCESSORS = 2, /* one to compute, one for communication */
    HOST_BYTES = 64
};

/* What a rank tells the others. */
struct place {
    char host[HOST_BYTES];    /* of the machine since it was started */
    struct cores_set allowed; /* none: not known */
    int64_t n_least;
};

static void find_place(const struct train_job *job, struct place *place)
{
    int64_t n_threads = job->options->n_threads;
    *place = (struct place){.n_least = n_threads > LEAST_PROCESSORS ? n_threads : LEAST_PROCESSORS};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n_bytes = fd >= 0 ? read(fd, place->host, sizeof place->host - 1) : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    const size_t n_words = sizeof place->allowed.words / sizeof place->allowed.words[0];
    if (n_bytes <= 0 || os_get_processors(0, place->allowed.words, n_words) != 0) {
        place->allowed = (struct cores_set){{0}};
    }
}

/* Returns false if ranks of this machine do not all have the same processors, or this one does not know its own. */
static bool choose_share(const struct train_job *job, const struct place *places, struct cores_set *share)
{
    const struct place *mine = &places[job->rank];
    int64_t n_least = 1;
    int n_parts = 0;
    int part = 0;
    for (int i = 0; i < job->n_ranks; i++) {
        if (memcmp(places[i].host, mine->host, sizeof mine->host) != 0) {
            continue;
        }
        if (memcmp(&places[i].allowed, &mine->allowed, sizeof mine->allowed) != 0) {
            return false;
        }
        part += i < job->rank;
        n_parts++;
        n_least = places[i].n_least > n_least ? places[i].n_least : n_least;
    }
    return n_parts > 1 &&
           cores_divide(&mine->allowed, cores_ask_system, NULL, part, n_parts, (int)n_least, share);
}

/* Threads that are made later follow the one that makes them. */
static bool bind_threads(const struct cores_set *share)
{
    const size_t n_words = sizeof share->words / sizeof share->words[0];
    DIR *threads = opendir("/proc/self/task");
    bool is_bound = os_set_processors(0, share->words, n_words) == 0;
    for (struct dirent *entry = threads ? readdir(threads) : NULL; entry && is_bound;
         entry = readdir(threads)) {
        long thread = strtol(entry->d_name, NULL, 10);
        if (thread > 0) {
            (void)os_set_processors(thread, share->words, n_words); /* it may have ended meanwhile */
        }
    }
    if (threads) {
        (void)closedir(threads);
    }
    return is_bound;
}

shoal_status train_bind(struct train_job *job)
{
    struct place mine;
    struct cores_set share;
    if (job->n_ranks == 1 || job->options->binds != TRAIN_BIND_CORES) {
        return SHOAL_OK;
    }
    struct place *places = calloc((size_t)job->n_ranks, sizeof(places[0]));
    if (!places) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the places of %d ranks", job->n_ranks);
    }
    find_place(job, &mine);
    shoal_status status = shoal_group_all_gather(job->group, &mine, places, sizeof mine, SHOAL_U8);
    if (status == SHOAL_OK && choose_share(job, places, &share) && bind_threads(&share)) {
        job->n_bound = cores_set_count(&share);
    }
    free(places);
    return status;
}
