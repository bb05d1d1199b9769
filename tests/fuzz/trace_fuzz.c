/* SPDX-License-Identifier: MIT */
/*
 * Traces that were good, changed at random, into `shoal trace`: it must answer, never read where it may not (the address
 * sanitizer), and lose no memory. Of what it reads, it prints the tables and draws a step.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "trace/trace.h"

static const char *const words[] = {
    "\"ph\":\"X\"",
    "\"ph\":\"M\"",
    "\"ph\":\"i\"",
    "\"cat\":\"collective\"",
    "\"cat\":\"wait\"",
    "\"cat\":\"step\"",
    "\"pid\":2147483647",
    "\"tid\":9223372036854775807",
    "\"ts\":1e308",
    "\"dur\":-1",
    "\"name\":\"shoal_ranks\"",
    "\"name\":\"thread_name\"",
    "\"args\":{\"count\":18446744073709551615}",
    "{\"name\":\"a\",\"cat\":\"op\",\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":0,\"dur\":1,\"args\":{}},\n",
    "9223372036854775807",
    "-9223372036854775808",
    "1e-320",
    "1e309",
    "},\n",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\u001b",
    "null",
    "true",
};

/* What a trace is told of goes nowhere; the sanitizers write to the descriptor itself. */
static FILE *nowhere;

static void read_trace(const char *path)
{
    struct trace trace = {0};
    if (trace_read(path, &trace) && trace_sum_up(&trace)) {
        int64_t step = trace_median_step(&trace);
        (void)trace_print_table(&trace, path, NULL);
        (void)trace_print_table(&trace, path, &step);
        trace_print_steps(&trace);
        CHECK(trace_draw_svg(nowhere, &trace, step, true));
    }
    trace_free(&trace);
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    char path[64];
    int fd = memfd_create("trace", MFD_CLOEXEC);
    REQUIRE(nowhere && fd >= 0 && write(fd, bytes, n_bytes) == (ssize_t)n_bytes);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FILE *out = stdout;
    FILE *err = stderr;
    stdout = nowhere;
    stderr = nowhere;
    read_trace(path);
    stdout = out;
    stderr = err;
    (void)close(fd);
}

/* Before the descriptors are counted. */
__attribute__((constructor)) static void begin(void)
{
    nowhere = fopen("/dev/null", "we");
}

const struct fuzz_target fuzz_target = {.name = "trace",
                                        .try_input = try_bytes,
                                        .words = words,
                                        .n_words = sizeof words / sizeof words[0],
                                        .n_rounds = 4000};
