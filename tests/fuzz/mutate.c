/* SPDX-License-Identifier: MIT */
/* The random changes of the fuzz targets, how one input is tried, and how seeds are written. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz/fuzz.h"

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
    if (change->n_words == 0) {
        return;
    }
    const char *word = change->words[test_random_below(change->random, change->n_words)];
    insert(change->input, change->at, word, strlen(word));
}

/* In the place of what is there, so that the size stays. */
static void overwrite_with_word(struct change *change)
{
    if (change->n_words == 0) {
        return;
    }
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

/* Trying ----------------------------------------------------------------------------------------------- */

/* The lowest descriptor that is free: a descriptor that was lost moves it. */
static int lowest_free(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd;
}

void fuzz_try_one(const unsigned char *bytes, size_t n_bytes)
{
    unsigned char *copy = malloc(n_bytes ? n_bytes : 1);
    if (!copy) {
        test_failed(__FILE__, __LINE__, "no memory");
        return;
    }
    memcpy(copy, bytes, n_bytes);
    size_t n_blocks = test_live_blocks();
    int fd = lowest_free();
    fuzz_target.try_input(copy, n_bytes);
    CHECK_INT(test_live_blocks(), n_blocks);
    CHECK_INT(lowest_free(), fd);
    free(copy);
}

/* Seeds ------------------------------------------------------------------------------------------------- */

const char *fuzz_capture_folder(void)
{
    const char *folder = getenv("SHOAL_FUZZ_CAPTURE");
    if (!folder) {
        test_skip("SHOAL_FUZZ_CAPTURE names no folder for seeds");
    }
    return folder;
}

void fuzz_write_seed(const char *name, const struct fuzz_input *input)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", fuzz_capture_folder(), name);
    FILE *file = fopen(path, "wbe");
    REQUIRE(file != NULL);
    CHECK(fwrite(input->bytes, 1, input->n_bytes, file) == input->n_bytes);
    (void)fclose(file);
}

bool fuzz_read_seed(const char *target, const char *name, struct fuzz_input *input)
{
    const char *source = getenv("SHOAL_TEST_SOURCE_DIR");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/tests/fuzz/seeds/%s/%s", source ? source : ".", target, name);
    FILE *file = fopen(path, "rbe");
    if (!file) {
        test_failed(__FILE__, __LINE__, "%s cannot be read (SHOAL_TEST_SOURCE_DIR is where the tree is)",
                    path);
        return false;
    }
    input->n_bytes = fread(input->bytes, 1, sizeof input->bytes, file);
    (void)fclose(file);
    return true;
}
