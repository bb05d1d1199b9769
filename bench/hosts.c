/* SPDX-License-Identifier: MIT */
/*
 * hosts INTERFACE RATE_MBIT ITERATIONS MIB...: times collectives between hosts and compares them with what the links
 * allow. bench/hosts.sh builds it and runs one process for each rank.
 *
 * A row has the median over iterations of the slowest rank's time, the bytes that the host which sends most has sent in
 * one iteration (headers of all packets included), and the time that these bytes take at the rate of the link. Sizes
 * are those of the whole vector: the input and result of an all-reduce, the result of an all-gather, the input of a
 * reduce-scatter. Every result is checked.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shoal/shoal.h"

enum {
    MAX_ITERATIONS = 1000
};

struct bench {
    shoal_group *group;
    int rank, n_ranks;
    const char *interface;
    double rate_mbit;
    int n_iterations;
    float *whole, *result;
};

static void check(shoal_status status)
{
    if (status != SHOAL_OK) {
        (void)fprintf(stderr, "hosts: %s\n", shoal_error_text());
        exit(1);
    }
}

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/*
 * Returns the bytes that this host has sent so far, as counted by the queue that limits the rate, which includes the
 * header of every packet. The interface's own counter sees up to 64 KiB with one header: 4.6 % less than crosses the
 * link in packets of 1500 bytes.
 */
static double read_bytes(const char *interface)
{
    char command[128], line[512];
    unsigned long long sent = 0;
    bool is_found = false;
    (void)snprintf(command, sizeof command, "tc -s qdisc show dev %s root", interface);
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe)) {
        is_found = is_found || sscanf(line, " Sent %llu bytes", &sent) == 1;
    }
    if (pipe) {
        (void)pclose(pipe);
    }
    if (!is_found) {
        (void)fprintf(stderr, "hosts: %s does not tell what was sent\n", command);
        exit(1);
    }
    return (double)sent;
}

/* Element i of rank r is i % 251 + r: sums of them are exact. */
static float value(size_t i, int rank)
{
    return (float)(i % 251) + (float)rank;
}

static float sum(size_t i, int n_ranks)
{
    return (float)n_ranks * (float)(i % 251) + (float)(n_ranks * (n_ranks - 1) / 2);
}

static void wrong(const char *op, size_t i)
{
    (void)fprintf(stderr, "hosts: %s: element %zu is wrong\n", op, i);
    exit(1);
}

static void all_reduce(struct bench *bench, size_t count)
{
    check(shoal_group_all_reduce(bench->group, bench->whole, bench->result, count, SHOAL_F32, SHOAL_SUM));
}

static void all_gather(struct bench *bench, size_t count)
{
    check(shoal_group_all_gather(bench->group, bench->whole, bench->result, count / (size_t)bench->n_ranks,
                                 SHOAL_F32));
}

static void reduce_scatter(struct bench *bench, size_t count)
{
    check(shoal_group_reduce_scatter(bench->group, bench->whole, bench->result,
                                     count / (size_t)bench->n_ranks, SHOAL_F32, SHOAL_SUM));
}

static void check_all_reduce(const struct bench *bench, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bench->result[i] != sum(i, bench->n_ranks)) {
            wrong("all_reduce", i);
        }
    }
}

static void check_all_gather(const struct bench *bench, size_t count)
{
    size_t share = count / (size_t)bench->n_ranks;
    for (size_t i = 0; i < count; i++) {
        if (bench->result[i] != value(i % share, (int)(i / share))) {
            wrong("all_gather", i);
        }
    }
}

static void check_reduce_scatter(const struct bench *bench, size_t count)
{
    size_t share = count / (size_t)bench->n_ranks;
    for (size_t i = 0; i < share; i++) {
        if (bench->result[i] != sum((size_t)bench->rank * share + i, bench->n_ranks)) {
            wrong("reduce_scatter", i);
        }
    }
}

static const struct row {
    const char *name;
    void (*run)(struct bench *bench, size_t count);
    void (*check)(const struct bench *bench, size_t count);
} rows[] = {{"all_reduce", all_reduce, check_all_reduce},
            {"all_gather", all_gather, check_all_gather},
            {"reduce_scatter", reduce_scatter, check_reduce_scatter}};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void max_over_ranks(struct bench *bench, double *values, size_t count)
{
    check(shoal_group_all_reduce(bench->group, values, values, count, SHOAL_F64, SHOAL_MAX));
}

static void measure(struct bench *bench, const struct row *row, size_t bytes)
{
    static double times[MAX_ITERATIONS];
    size_t count = bytes / sizeof(float);
    row->run(bench, count); /* connections and buffers are made */
    check(shoal_group_barrier(bench->group));
    double before = read_bytes(bench->interface);
    check(shoal_group_barrier(bench->group));
    for (int i = 0; i < bench->n_iterations; i++) {
        memset(bench->result, 0, bytes);
        check(shoal_group_barrier(bench->group));
        double begin_s = now_s();
        row->run(bench, count);
        times[i] = now_s() - begin_s;
        row->check(bench, count);
    }
    check(shoal_group_barrier(bench->group));
    double busiest = read_bytes(bench->interface) - before;
    max_over_ranks(bench, times, (size_t)bench->n_iterations);
    max_over_ranks(bench, &busiest, 1);
    qsort(times, (size_t)bench->n_iterations, sizeof times[0], compare);
    if (bench->rank == 0) {
        double median_s = times[bench->n_iterations / 2];
        double link_bytes = busiest / bench->n_iterations;
        double link_s = link_bytes * 8 / (bench->rate_mbit * 1e6);
        printf("| %s | %zu MiB | %.1f | %.2f | %.1f | %.2f |\n", row->name, bytes >> 20, median_s * 1e3,
               link_bytes / (double)bytes, link_s * 1e3, median_s / link_s);
        (void)fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    shoal_world *world;
    if (argc < 5) {
        (void)fprintf(stderr, "usage: hosts INTERFACE RATE_MBIT ITERATIONS MIB...\n");
        return 2;
    }
    check(shoal_world_open(NULL, &world));
    struct bench bench = {.group = shoal_world_group(world),
                          .rank = shoal_world_rank(world),
                          .n_ranks = shoal_world_n_ranks(world),
                          .interface = argv[1],
                          .rate_mbit = strtod(argv[2], NULL),
                          .n_iterations = (int)strtol(argv[3], NULL, 10)};
    size_t largest = 0;
    for (int i = 4; i < argc; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10) << 20;
        largest = bytes > largest ? bytes : largest;
    }
    bench.whole = malloc(largest);
    bench.result = malloc(largest);
    if (!bench.whole || !bench.result || largest == 0 || bench.n_iterations < 1 ||
        bench.n_iterations > MAX_ITERATIONS || bench.rate_mbit <= 0) {
        (void)fprintf(stderr, "hosts: a size, a rate or a number of iterations is wrong\n");
        return 2;
    }
    for (size_t i = 0; i < largest / sizeof(float); i++) {
        bench.whole[i] = value(i, bench.rank);
    }
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        for (int i = 4; i < argc; i++) {
            measure(&bench, &rows[k], strtoul(argv[i], NULL, 10) << 20);
        }
    }
    free(bench.whole);
    free(bench.result);
    check(shoal_world_close(world));
    return 0;
}
