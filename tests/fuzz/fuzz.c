/* SPDX-License-Identifier: MIT */
/* The loop and the random changes of the fuzz tests. */
#include "fuzz/fuzz.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CHANGES 5

/* Changes ---------------------------------------------------------------------------------------------- */

/* Puts `n` bytes in at `at`, as far as there is room. */
static void insert(struct fuzz_input *input, size_t at, const void *bytes, size_t n)
{
    if (n > FUZZ_MAX_BYTES - input->n_bytes) {
        return;
    }
    memmove(input->bytes + at + n, input->bytes + at, input->n_bytes - at);
    memcpy(input->bytes + at, bytes, n);
    input->n_bytes += n;
}

static void cut(struct fuzz_input *input, size_t at, size_t n)
{
    memmove(input->bytes + at, input->bytes + at + n, input->n_bytes - at - n);
    input->n_bytes -= n;
}

struct change {
    struct fuzz_input *input;
    struct test_random *random;
    size_t at; /* a place within the input */
    const char *const *words;
    size_t n_words;
};

static void flip_bit(struct change *change)
{
    change->input->bytes[change->at] ^= (unsigned char)(1u << test_random_below(change->random, 8));
}

static void set_byte(struct change *change)
{
    static const unsigned char odd[] = {0, 1, ' ', '"', '0', '9', '[', '{', 0x7F, 0x80, 0xFF};
    change->input->bytes[change->at] = odd[test_random_below(change->random, sizeof odd)];
}

static void set_random_byte(struct change *change)
{
    change->input->bytes[change->at] = (unsigned char)test_random_below(change->random, 256);
}

static size_t random_length(struct change *change)
{
    size_t most = change->input->n_bytes - change->at;
    return 1 + (size_t)test_random_below(change->random, most < 32 ? most : 32);
}

static void cut_piece(struct change *change)
{
    cut(change->input, change->at, random_length(change));
}

static void double_piece(struct change *change)
{
    unsigned char piece[32];
    size_t n = random_length(change);
    memcpy(piece, change->input->bytes + change->at, n);
    insert(change->input, (size_t)test_random_below(change->random, change->input->n_bytes), piece, n);
}

static void put_word(struct change *change)
{
    const char *word = change->words[test_random_below(change->random, change->n_words)];
    insert(change->input, change->at, word, strlen(word));
}

/* In the place of what is there, so that the size stays. */
static void overwrite_with_word(struct change *change)
{
    const char *word = change->words[test_random_below(change->random, change->n_words)];
    size_t room = change->input->n_bytes - change->at;
    size_t n = strlen(word) < room ? strlen(word) : room;
    memcpy(change->input->bytes + change->at, word, n);
}

static void cut_end(struct change *change)
{
    change->input->n_bytes = change->at;
}

static void (*const changes[])(struct change *change) = {
    flip_bit, set_byte, set_random_byte,     cut_piece, double_piece,
    put_word, put_word, overwrite_with_word, cut_end,
};

void fuzz_mutate(struct fuzz_input *input, struct test_random *random, const char *const *words,
                 size_t n_words)
{
    uint64_t n_changes = test_random_below(random, MAX_CHANGES + 1);
    for (uint64_t i = 0; i < n_changes && input->n_bytes > 0; i++) {
        struct change change = {.input = input,
                                .random = random,
                                .at = (size_t)test_random_below(random, input->n_bytes),
                                .words = words,
                                .n_words = n_words};
        changes[test_random_below(random, sizeof changes / sizeof changes[0])](&change);
    }
}

/* The loop --------------------------------------------------------------------------------------------- */

/* What is being tried, for whoever has to report that it ended the process. */
static const unsigned char *tried_bytes;
static size_t tried_n_bytes;
static char crash_path[128];

static void save_tried(void)
{
    FILE *file = tried_bytes ? fopen(crash_path, "wb") : NULL;
    if (file) {
        (void)fwrite(tried_bytes, 1, tried_n_bytes, file);
        (void)fclose(file);
        (void)fprintf(stderr, "the input is in %s\n", crash_path);
    }
}

/* Of the sanitizers' run-time library, where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool try_one(const struct fuzz_input *input, fuzz_try try_input)
{
    unsigned char *copy = malloc(input->n_bytes ? input->n_bytes : 1);
    if (!copy) {
        test_failed(__FILE__, __LINE__, "no memory");
        return false;
    }
    memcpy(copy, input->bytes, input->n_bytes);
    tried_bytes = copy;
    tried_n_bytes = input->n_bytes;
    try_input(copy, input->n_bytes);
    if (test_has_failed()) {
        save_tried();
    }
    tried_bytes = NULL;
    free(copy);
    return !test_has_failed();
}

void fuzz_run(const char *name, fuzz_make make, fuzz_try try_input)
{
    const char *text = getenv("SHOAL_FUZZ_SECONDS");
    double seconds = text ? strtod(text, NULL) : 0;
    struct test_random random = test_random_begin(0);
    static struct fuzz_input input;
    uint64_t n_tried = 0;
    (void)snprintf(crash_path, sizeof crash_path, "%s.crash", name);
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(save_tried);
    }
    if (seconds > 0) {
        test_deadline(seconds + 60);
    }
    double end_s = now_s() + seconds;
    bool is_good = true;
    while (is_good && (seconds > 0 ? now_s() < end_s : n_tried < FUZZ_DEFAULT_ROUNDS)) {
        make(&random, &input);
        is_good = try_one(&input, try_input);
        n_tried++;
        if (seconds > 0) {
            test_progress((uint64_t)((now_s() - end_s + seconds) * 1e3), (uint64_t)(seconds * 1e3));
        }
    }
    printf("%s: %llu inputs tried\n", name, (unsigned long long)n_tried);
}
