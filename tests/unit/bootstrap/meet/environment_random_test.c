/* SPDX-License-Identifier: MIT */
/*
 * Random environments: any variables of any launchers, with good, bad and absurd values. Whatever is there,
 * reading it gives a place that makes sense or an error that names a variable of the family that counts; ranks of
 * one job agree on the key, and jobs that differ in what makes the key do not.
 */
#include "bootstrap/meet/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "shoal/status.h"

enum {
    ROUNDS = 20000,
    LONG_VALUE_BYTES = 3000
};

/* Written down here a second time, in the order in which families count. */
static const struct family {
    const char *launcher;
    const char *rank;
    const char *size;
    const char *others[4]; /* of these, the first makes the key */
} families[] = {
    {"SHOAL", "SHOAL_RANK", "SHOAL_RANKS", {"SHOAL_KEY"}},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     {"MASTER_PORT", "MASTER_ADDR", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {"PMI (MPICH)", "PMI_RANK", "PMI_SIZE", {"PMI_FD", "MPI_LOCALNRANKS"}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_NNODES"}},
};

#define N_FAMILIES (sizeof families / sizeof families[0])
#define N_OTHERS (sizeof families[0].others / sizeof families[0].others[0])

static void clear_environment(void)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        (void)unsetenv(families[i].rank);
        (void)unsetenv(families[i].size);
        for (size_t j = 0; j < N_OTHERS && families[i].others[j]; j++) {
            (void)unsetenv(families[i].others[j]);
        }
    }
    (void)unsetenv("TORCHELASTIC_RUN_ID");
    (void)unsetenv("OMPI_MCA_orte_ess_jobid");
    (void)unsetenv("SLURM_RESTART_COUNT");
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

/* Values ----------------------------------------------------------------------------------------------- */

static const char *random_value(struct test_random *random)
{
    static const char *const odd[] = {
        "",    "-1",   "+1",  " 1",   "1 ",       "0x1",        "01",
        "1e3", "4096", "999", "4097", "%s%n%d",   "2147483648", "18446744073709551617",
        "\n",  "\xff", "|",   "nan",  "127.0.0.1"};
    static char text[LONG_VALUE_BYTES + 1];
    uint64_t kind = test_random_below(random, 20);
    if (kind < 12) {
        (void)snprintf(text, sizeof text, "%d", (int)test_random_below(random, 4));
    } else if (kind < 18) {
        (void)snprintf(text, sizeof text, "%s", odd[test_random_below(random, sizeof odd / sizeof odd[0])]);
    } else {
        size_t bytes = (size_t)test_random_below(random, LONG_VALUE_BYTES);
        for (size_t i = 0; i < bytes; i++) {
            text[i] = (char)(1 + test_random_below(random, 255));
        }
        text[bytes] = '\0';
    }
    return text;
}

static void set_sometimes(struct test_random *random, const char *name)
{
    if (test_random_below(random, 4) < 3) {
        (void)setenv(name, random_value(random), 1);
    }
}

/* One or two families, so that each of them comes to count now and then. */
static void random_environment(struct test_random *random)
{
    clear_environment();
    uint64_t n_families = test_random_below(random, 3);
    for (uint64_t i = 0; i < n_families; i++) {
        const struct family *family = &families[test_random_below(random, N_FAMILIES)];
        set_sometimes(random, family->rank);
        set_sometimes(random, family->size);
        for (size_t j = 0; j < N_OTHERS && family->others[j]; j++) {
            set_sometimes(random, family->others[j]);
        }
    }
}

/* What must hold --------------------------------------------------------------------------------------- */

/* The family that counts; NULL when there is none. Whether Slurm's does is a matter of more than one variable. */
static const struct family *family_that_counts(void)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const struct family *family = &families[i];
        bool is_slurm = strcmp(family->launcher, "Slurm") == 0;
        bool is_there = is_slurm ? is_set(family->rank) &&
                                       (is_set("SLURM_STEP_ID") || strcmp(getenv(family->rank), "0") != 0)
                                 : is_set(family->rank) || is_set(family->size);
        if (is_there || (i == 0 && is_set("SHOAL_KEY"))) {
            return family;
        }
    }
    return NULL;
}

static bool names_variable(const struct family *family, const char *text)
{
    bool is_named = strstr(text, family->rank) || strstr(text, family->size);
    for (size_t i = 0; i < N_OTHERS && family->others[i]; i++) {
        is_named = is_named || strstr(text, family->others[i]);
    }
    return is_named || strstr(text, "the key of the job is longer than");
}

static void check_place(const struct environment *found, const struct family *family)
{
    CHECK_STRING(found->launcher, family ? family->launcher : "alone");
    CHECK(found->n_ranks >= 1 && found->n_ranks <= ENVIRONMENT_RANKS_MAX);
    CHECK(found->rank >= 0 && found->rank < found->n_ranks);
    CHECK(memchr(found->key, '\0', sizeof found->key) != NULL);
    if (family) {
        CHECK_INT(found->rank, strtol(getenv(family->rank), NULL, 10));
        CHECK_INT(found->n_ranks, strtol(getenv(family->size), NULL, 10));
        CHECK(found->key[0] != '\0');
    }
}

/* Another rank of the same job. Families that do not count would contradict. */
static void check_same_key(const struct environment *found, const struct family *family)
{
    struct environment other;
    char text[16];
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (&families[i] != family) {
            (void)unsetenv(families[i].rank);
            (void)unsetenv(families[i].size);
        }
    }
    (void)snprintf(text, sizeof text, "%d", (found->rank + 1) % found->n_ranks);
    (void)setenv(family->rank, text, 1);
    REQUIRE_OK(environment_read(&other));
    CHECK_INT(other.rank, (found->rank + 1) % found->n_ranks);
    CHECK_STRING(other.key, found->key);
}

static void check_error(shoal_status status, const struct family *family)
{
    const char *text = shoal_error_text();
    CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_UNSUPPORTED);
    REQUIRE(family != NULL);
    if (!names_variable(family, text)) {
        test_failed(__FILE__, __LINE__, "%s: no variable of the family is named in: %s", family->launcher,
                    text);
    }
}

TEST(any_environment_is_understood_or_refused_by_name)
{
    struct test_random random = test_random_begin(1);
    int n_understood = 0;
    int n_refused = 0;
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        random_environment(&random);
        const struct family *family = family_that_counts();
        struct environment found = {.launcher = "untouched", .rank = -7};
        shoal_status status = environment_read(&found);
        if (status != SHOAL_OK) {
            n_refused++;
            check_error(status, family);
            CHECK_STRING(found.launcher, "untouched");
            CHECK_INT(found.rank, -7);
            continue;
        }
        n_understood += family != NULL;
        check_place(&found, family);
        if (family && found.n_ranks > 1 && !test_has_failed()) {
            check_same_key(&found, family);
        }
    }
    /* Otherwise nothing was tested. */
    CHECK(n_understood > ROUNDS / 100);
    CHECK(n_refused > ROUNDS / 10);
    clear_environment();
}

/* A description fits where it is put, whatever the environment. */
TEST(descriptions_fit)
{
    struct test_random random = test_random_begin(2);
    for (int round = 0; round < 1000 && !test_has_failed(); round++) {
        random_environment(&random);
        char text[64];
        size_t bytes = 1 + (size_t)test_random_below(&random, sizeof text - 1);
        memset(text, '#', sizeof text);
        environment_describe(text, bytes);
        CHECK(memchr(text, '\0', bytes) != NULL);
        for (size_t i = bytes; i < sizeof text; i++) {
            CHECK_INT(text[i], '#');
        }
    }
    clear_environment();
}

/* Jobs that differ in one of the variables that make the key are different jobs; so are those of two launchers. */
TEST(keys_tell_jobs_apart)
{
    static const char *const values[] = {"1", "12", "2"};
    static const char *const ports[] = {"2", "", "12"};
    char keys[4][ENVIRONMENT_KEY_BYTES];
    struct environment found;
    for (int i = 0; i < 3; i++) {
        clear_environment();
        (void)setenv("RANK", "0", 1);
        (void)setenv("WORLD_SIZE", "2", 1);
        (void)setenv("MASTER_ADDR", values[i], 1);
        (void)setenv("MASTER_PORT", ports[i][0] ? ports[i] : "22", 1);
        REQUIRE_OK(environment_read(&found));
        memcpy(keys[i], found.key, sizeof found.key);
    }
    clear_environment();
    (void)setenv("SHOAL_RANK", "0", 1);
    (void)setenv("SHOAL_RANKS", "2", 1);
    (void)setenv("SHOAL_KEY", "1\n2", 1);
    REQUIRE_OK(environment_read(&found));
    memcpy(keys[3], found.key, sizeof found.key);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(keys[i], keys[j]) != 0);
        }
    }
    clear_environment();
}
