/* SPDX-License-Identifier: MIT */
/*
 * Times collectives of MPI, and of Shoal over the same MPI, in the same processes and in turns, so that both see the
 * same machine. bench/mpi.sh builds and runs it:
 *
 *     mpirun -n 2 mpi_beside FROM TO      sizes in bytes of a rank's result or contribution, times 8 from FROM to TO
 *
 * Prints a line per op and size: the medians over rounds of both times and of their quotient. A round is a number of
 * calls of one library and as many of the other; its time is that of the slowest rank. MPI is initialized with
 * MPI_THREAD_MULTIPLE, for both.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/shoal.h"

enum {
    ROUNDS = 21,
    CALLS_MOST = 200
};

enum op {
    OP_ALL_REDUCE,
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    N_OPS
};

static const char *const op_names[N_OPS] = {"all_reduce", "all_gather", "reduce_scatter"};

struct bench {
    shoal_group *all;
    int rank;
    int n_ranks;
    float *send;
    float *recv;
};

static void fail(const char *what)
{
    fprintf(stderr, "mpi_beside: %s: %s\n", what, shoal_error_text());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void call_mpi(const struct bench *bench, enum op op, size_t count)
{
    int n = (int)count;
    switch (op) {
    case OP_ALL_REDUCE:
        MPI_Allreduce(bench->send, bench->recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case OP_ALL_GATHER:
        MPI_Allgather(bench->send, n, MPI_FLOAT, bench->recv, n, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case OP_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(bench->send, bench->recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case N_OPS:
        break;
    }
}

static void call_shoal(const struct bench *bench, enum op op, size_t count)
{
    shoal_status status = SHOAL_OK;
    switch (op) {
    case OP_ALL_REDUCE:
        status = shoal_group_all_reduce(bench->all, bench->send, bench->recv, count, SHOAL_F32, SHOAL_SUM);
        break;
    case OP_ALL_GATHER:
        status = shoal_group_all_gather(bench->all, bench->send, bench->recv, count, SHOAL_F32);
        break;
    case OP_REDUCE_SCATTER:
        status =
            shoal_group_reduce_scatter(bench->all, bench->send, bench->recv, count, SHOAL_F32, SHOAL_SUM);
        break;
    case N_OPS:
        break;
    }
    if (status != SHOAL_OK) {
        fail(op_names[op]);
    }
}

/* Microseconds of a call, on the slowest rank. */
static double measure(const struct bench *bench, enum op op, size_t count, int n_calls,
                      void (*call)(const struct bench *bench, enum op op, size_t count))
{
    MPI_Barrier(MPI_COMM_WORLD);
    call(bench, op, count);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int i = 0; i < n_calls; i++) {
        call(bench, op, count);
    }
    double own = (MPI_Wtime() - begin) * 1e6 / n_calls;
    double slowest;
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int compare(const void *a, const void *b)
{
    double first = *(const double *)a;
    double second = *(const double *)b;
    return (first > second) - (first < second);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

static void run(const struct bench *bench, enum op op, size_t bytes)
{
    double mpi[ROUNDS];
    double shoal[ROUNDS];
    double ratio[ROUNDS];
    /* All-gather and reduce-scatter: `bytes` are of one rank's part. */
    size_t count = bytes / sizeof(float);
    size_t n_calls = (4u << 20) / bytes;
    n_calls = n_calls < 1 ? 1 : n_calls > CALLS_MOST ? CALLS_MOST : n_calls;
    for (int round = 0; round < ROUNDS; round++) {
        mpi[round] = measure(bench, op, count, (int)n_calls, call_mpi);
        shoal[round] = measure(bench, op, count, (int)n_calls, call_shoal);
        ratio[round] = shoal[round] / mpi[round];
    }
    if (bench->rank == 0) {
        printf("%-15s %9zu B  mpi %10.1f us  shoal %10.1f us  ratio %5.2f  least %.1f %.1f\n", op_names[op],
               bytes, median(mpi), median(shoal), median(ratio), mpi[0], shoal[0]);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int level;
    struct bench bench = {.rank = 0};
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    size_t from = argc > 1 ? strtoul(argv[1], NULL, 10) : 8;
    size_t to = argc > 2 ? strtoul(argv[2], NULL, 10) : 4096;
    MPI_Comm comm = MPI_COMM_WORLD;
    shoal_world_options options = {.struct_size = sizeof options, .transport = "mpi", .mpi_comm = &comm};
    shoal_world *world;
    if (shoal_world_open(&options, &world) != SHOAL_OK) {
        fail("open");
    }
    bench.all = shoal_world_group(world);
    bench.rank = shoal_world_rank(world);
    bench.n_ranks = shoal_world_n_ranks(world);
    bench.send = malloc(to * (size_t)bench.n_ranks);
    bench.recv = malloc(to * (size_t)bench.n_ranks);
    if (!bench.send || !bench.recv) {
        fail("memory");
    }
    memset(bench.send, 0, to * (size_t)bench.n_ranks);
    memset(bench.recv, 0, to * (size_t)bench.n_ranks);
    for (int op = 0; op < N_OPS; op++) {
        for (size_t bytes = from; bytes <= to; bytes *= 8) {
            run(&bench, (enum op)op, bytes);
        }
    }
    free(bench.send);
    free(bench.recv);
    if (shoal_world_close(world) != SHOAL_OK) {
        fail("close");
    }
    MPI_Finalize();
    return 0;
}
