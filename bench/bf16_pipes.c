/* SPDX-License-Identifier: MIT */
/*
 * Measures how many issue slots BFCVTN takes on this processor: runs it with 0 to 6 independent additions. With four
 * vector pipes, each full slot costs a quarter of a cycle. docs/design/kernels.md uses the result. Does not need the
 * library:
 *
 *     cc -O2 -D_GNU_SOURCE -march=armv8.2-a+bf16 -o bf16_pipes bench/bf16_pipes.c && ./bf16_pipes
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum {
    ROUNDS = 50,
    ITERATIONS = 10000,
    GROUPS = 4 /* in the loop body, each with registers of its own */
};

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

#define CLOBBERS                                                                                          \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", \
        "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "x9", "cc"

/* Seven registers per group. Sources were written a little earlier: constants would be limited by the
   register file instead, which supplies old values at a lower rate. */
#define CONVERT(d, s) "bfcvtn v" #d ".4h, v" #s ".4s\n"
#define ADD(d, s) "add v" #d ".4s, v" #s ".4s, v" #s ".4s\n"
#define ADDS_0(a, b, c, d, e, f, s)
#define ADDS_1(a, b, c, d, e, f, s) ADD(a, s)
#define ADDS_2(a, b, c, d, e, f, s) ADD(a, s) ADD(b, s)
#define ADDS_3(a, b, c, d, e, f, s) ADDS_2(a, b, c, d, e, f, s) ADD(c, s)
#define ADDS_4(a, b, c, d, e, f, s) ADDS_3(a, b, c, d, e, f, s) ADD(d, s)
#define ADDS_5(a, b, c, d, e, f, s) ADDS_4(a, b, c, d, e, f, s) ADD(e, s)
#define ADDS_6(a, b, c, d, e, f, s) ADDS_5(a, b, c, d, e, f, s) ADD(f, s)
#define BODY(adds)                                                                           \
    CONVERT(0, 8)                                                                            \
    adds(1, 2, 3, 4, 5, 6, 15) CONVERT(7, 15) adds(8, 9, 10, 11, 12, 13, 22) CONVERT(14, 22) \
        adds(15, 16, 17, 18, 19, 20, 1) CONVERT(21, 1) adds(22, 23, 24, 25, 26, 27, 8)

#define RUN(adds)                                                                                   \
    static void run_##adds(void)                                                                    \
    {                                                                                               \
        uint64_t left = ITERATIONS;                                                                 \
        __asm__ volatile("1:\n" BODY(adds) "subs %0, %0, #1\nb.ne 1b\n" : "+r"(left) : : CLOBBERS); \
    }
RUN(ADDS_0)
RUN(ADDS_1)
RUN(ADDS_2)
RUN(ADDS_3)
RUN(ADDS_4)
RUN(ADDS_5)
RUN(ADDS_6)

/* A chain of additions takes one cycle each and so gives the length of a cycle. */
static void run_chain(void)
{
    uint64_t left = ITERATIONS;
    __asm__ volatile("1:\nadd x9, x9, #1\nadd x9, x9, #1\nadd x9, x9, #1\nadd x9, x9, #1\n"
                     "subs %0, %0, #1\nb.ne 1b\n"
                     : "+r"(left)
                     :
                     : CLOBBERS);
}

/* The least time of a group, in ns. */
static double measure(void (*run)(void))
{
    double best_ns = 1e18;
    for (int i = 0; i < ROUNDS; i++) {
        double begin_ns = now_ns();
        run();
        double took_ns = now_ns() - begin_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    return best_ns / ITERATIONS / GROUPS;
}

int main(void)
{
    static void (*const runs[])(void) = {run_ADDS_0, run_ADDS_1, run_ADDS_2, run_ADDS_3,
                                         run_ADDS_4, run_ADDS_5, run_ADDS_6};
    double cycle_ns = measure(run_chain);
    printf("%.2f GHz\nadds  cycles for BFCVTN and them\n", 1 / cycle_ns);
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        printf("%4zu  %.2f\n", i, measure(runs[i]) / cycle_ns);
    }
    return 0;
}
