/* SPDX-License-Identifier: MIT */
/*
 * A fuzz target as a test program: its seeds, and random changes of good inputs, for the seconds of SHOAL_FUZZ_SECONDS, or
 * a number of them.
 */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

#define MAX_SEEDS 256

/* What is being tried, for whoever has to report that it ended the process. */
static const struct fuzz_input *tried;
static char crash_path[128];

static void save_tried(void)
{
    FILE *file = tried ? fopen(crash_path, "wb") : NULL;
    if (file) {
        (void)fwrite(tried->bytes, 1, tried->n_bytes, file);
        (void)fclose(file);
        (void)fprintf(stderr, "the input is in %s\n", crash_path);
    }
}

/* Of the sanitizers' run-time library, where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static bool try_one(const struct fuzz_input *input)
{
    tried = input;
    fuzz_try_one(input->bytes, input->n_bytes);
    if (test_has_failed()) {
        save_tried();
    }
    tried = NULL;
    return !test_has_failed();
}

/* Seeds ------------------------------------------------------------------------------------------------- */

static char *seeds[MAX_SEEDS];
static size_t n_seeds;

static void add_seed(const char *name)
{
    if (name[0] != '.' && n_seeds < MAX_SEEDS) {
        seeds[n_seeds] = strdup(name);
        n_seeds += seeds[n_seeds] != NULL;
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* In the order of their names, so that a random seed gives the same inputs everywhere. */
static void find_seeds(void)
{
    const char *source = getenv("SHOAL_TEST_SOURCE_DIR");
    char folder[2048];
    (void)snprintf(folder, sizeof folder, "%s/tests/fuzz/seeds/%s", source ? source : ".", fuzz_target.name);
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream)) != NULL;) {
        add_seed(entry->d_name);
    }
    if (stream) {
        (void)closedir(stream);
    }
    if (n_seeds > 0) {
        qsort(seeds, n_seeds, sizeof seeds[0], compare_names);
    }
    CHECK(n_seeds > 0 || fuzz_target.make);
}

static void free_seeds(void)
{
    while (n_seeds > 0) {
        free(seeds[--n_seeds]);
    }
}

/* The loop ---------------------------------------------------------------------------------------------- */

static bool try_seeds(struct fuzz_input *input)
{
    for (size_t i = 0; i < n_seeds; i++) {
        if (!fuzz_read_seed(fuzz_target.name, seeds[i], input) || !try_one(input)) {
            printf("%s\n", seeds[i]);
            return false;
        }
    }
    return true;
}

static bool make_input(struct test_random *random, struct fuzz_input *input)
{
    if (fuzz_target.make) {
        fuzz_target.make(random, input);
        return true;
    }
    bool is_read = fuzz_read_seed(fuzz_target.name, seeds[test_random_below(random, n_seeds)], input);
    fuzz_mutate(input, random, fuzz_target.words, fuzz_target.n_words);
    if (fuzz_target.repair && test_random_below(random, 8) > 0) {
        fuzz_target.repair(input->bytes, input->n_bytes);
    }
    return is_read;
}

static void run(void)
{
    struct test_random random = test_random_begin(0);
    static struct fuzz_input input;
    uint64_t n_rounds = fuzz_target.n_rounds ? fuzz_target.n_rounds : FUZZ_DEFAULT_ROUNDS;
    uint64_t n_tried = 0;
    const char *text = getenv("SHOAL_FUZZ_SECONDS");
    double seconds = text ? strtod(text, NULL) : 0;
    int64_t begin_ns = harness_now_ns();
    (void)snprintf(crash_path, sizeof crash_path, "%s.crash", fuzz_target.name);
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(save_tried);
    }
    if (seconds > 0) {
        test_deadline(seconds + 60);
    }
    bool is_good = try_seeds(&input) && !test_has_failed();
    double past_s = 0;
    while (is_good && (seconds > 0 ? past_s < seconds : n_tried < n_rounds)) {
        is_good = make_input(&random, &input) && try_one(&input);
        n_tried++;
        past_s = (double)(harness_now_ns() - begin_ns) * 1e-9;
        if (seconds > 0) {
            test_progress((uint64_t)(past_s * 1e3), (uint64_t)(seconds * 1e3));
        }
    }
    printf("%s: %zu seeds and %llu changed inputs tried\n", fuzz_target.name, n_seeds,
           (unsigned long long)n_tried);
}

TEST(inputs)
{
    find_seeds();
    if (!test_has_failed()) {
        run();
    }
    free_seeds();
}
