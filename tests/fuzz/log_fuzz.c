/* SPDX-License-Identifier: MIT */
/*
 * Logs that were good, changed at random, into the reader of `shoal report`: it must answer, never read where it may not
 * (the address sanitizer), and lose no memory. Of what it reads, it draws all charts.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/log.h"

static const char *const words[] = {
    "{\"shoal_log\":1,\"type\":\"run\",\"after\":2}\n",
    "{\"step\":3,\"loss\":1}\n",
    "\"step\":9223372036854775807",
    "\"step\":-1",
    "\"after\":-9223372036854775808",
    "\"hosts\":[null,1,\"\"]",
    "\"type\":\"ranks\"",
    "\"type\":\"memory\"",
    "\"type\":\"end\"",
    "\"to\":1e308",
    "\"loss\":1e308",
    "\"step_ms\":-1e308",
    "1e-320",
    "null",
    "true",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\n",
    "\\u0000",
    "\xff",
};

/* What a log is told of goes nowhere; the sanitizers write to the descriptor itself. */
static FILE *nowhere;

static void read_log(const char *path)
{
    struct log log;
    if (log_read("shoal report", path, &log)) {
        for (size_t i = 0; i < n_charts; i++) {
            if (chart_has_values(&charts[i], &log)) {
                CHECK(chart_draw(nowhere, &charts[i], &log));
            }
        }
        for (size_t i = 1; i < log.n_steps; i++) {
            CHECK(log.steps[i] > log.steps[i - 1]);
        }
        for (size_t i = 0; i < log.n_ranks; i++) {
            html_text(nowhere, log.ranks[i].host);
            html_json(nowhere, log.ranks[i].host);
        }
    }
    log_free(&log);
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    char path[64];
    int fd = memfd_create("log", MFD_CLOEXEC);
    REQUIRE(nowhere && fd >= 0 && write(fd, bytes, n_bytes) == (ssize_t)n_bytes);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FILE *err = stderr;
    stderr = nowhere;
    read_log(path);
    stderr = err;
    (void)close(fd);
}

/* Before the descriptors are counted. */
__attribute__((constructor)) static void begin(void)
{
    nowhere = fopen("/dev/null", "we");
}

const struct fuzz_target fuzz_target = {.name = "log",
                                        .try_input = try_bytes,
                                        .words = words,
                                        .n_words = sizeof words / sizeof words[0],
                                        .n_rounds = 4000};
