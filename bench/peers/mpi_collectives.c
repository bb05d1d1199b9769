/* SPDX-License-Identifier: MIT */
/*
 * Measures the collectives of an MPI library as `shoal bench` measures ours: see bench/measure/measure.h. bench/run.sh
 * builds it once for Open MPI and once for MPICH:
 *
 *     mpirun -n 2 mpi_collectives all_reduce --page FILE [--sizes 1K:64M:4 ...]
 *
 * FILE is the page on which the ranks meet. It must not exist before, and is removed.
 */
#include "measure/measure.h"

#include <mpi.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(OPEN_MPI)
#define LIBRARY_NAME "openmpi"
#elif defined(MPICH_VERSION)
#define LIBRARY_NAME "mpich"
#else
#define LIBRARY_NAME "mpi"
#endif

/* What MPI calls a dtype; MPI_DATATYPE_NULL where it has none, as for f16 and bf16. */
static MPI_Datatype find_datatype(const char *name)
{
    const struct {
        const char *name;
        MPI_Datatype datatype;
    } rows[] = {
        {"f64", MPI_DOUBLE},   {"f32", MPI_FLOAT},    {"i8", MPI_INT8_T},  {"i16", MPI_INT16_T},
        {"i32", MPI_INT32_T},  {"i64", MPI_INT64_T},  {"u8", MPI_UINT8_T}, {"u16", MPI_UINT16_T},
        {"u32", MPI_UINT32_T}, {"u64", MPI_UINT64_T},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows[i].datatype;
        }
    }
    return MPI_DATATYPE_NULL;
}

/* MPI_OP_NULL where MPI has none, as for averages. */
static MPI_Op find_op(enum measure_redop redop)
{
    switch (redop) {
    case MEASURE_REDOP_sum:
        return MPI_SUM;
    case MEASURE_REDOP_product:
        return MPI_PROD;
    case MEASURE_REDOP_min:
        return MPI_MIN;
    case MEASURE_REDOP_max:
        return MPI_MAX;
    case MEASURE_REDOP_band:
        return MPI_BAND;
    case MEASURE_REDOP_bor:
        return MPI_BOR;
    case MEASURE_REDOP_bxor:
        return MPI_BXOR;
    case MEASURE_REDOP_avg:
    case MEASURE_N_REDOPS:
        break;
    }
    return MPI_OP_NULL;
}

/* Errors end the job: that is MPI's default. */
static bool run(void *context, const struct measure_call *call)
{
    MPI_Datatype datatype = *(MPI_Datatype *)context;
    int count = (int)call->count;
    MPI_Op op = find_op(call->redop);
    switch (call->op) {
    case MEASURE_all_reduce:
        MPI_Allreduce(call->send, call->recv, count, datatype, op, MPI_COMM_WORLD);
        break;
    case MEASURE_all_gather:
        MPI_Allgather(call->send, count, datatype, call->recv, count, datatype, MPI_COMM_WORLD);
        break;
    case MEASURE_reduce_scatter:
        MPI_Reduce_scatter_block(call->send, call->recv, count, datatype, op, MPI_COMM_WORLD);
        break;
    case MEASURE_all_to_all:
        MPI_Alltoall(call->send, count, datatype, call->recv, count, datatype, MPI_COMM_WORLD);
        break;
    case MEASURE_broadcast:
        MPI_Bcast(call->recv, count, datatype, call->root, MPI_COMM_WORLD);
        break;
    case MEASURE_barrier:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case MEASURE_N_OPS:
        break;
    }
    return true;
}

static int usage(const char *why)
{
    fprintf(stderr, "mpi_collectives: %s\nusage: mpi_collectives OP --page FILE [options]\n%s", why,
            measure_usage);
    return 2;
}

static bool parse(int argc, char **argv, struct measure_request *request, const char **path_out)
{
    measure_request_init(request);
    *path_out = NULL;
    if (argc < 2 || !measure_op_find(argv[1], &request->op)) {
        return false;
    }
    for (int i = 2; i < argc;) {
        if (strcmp(argv[i], "--page") == 0 && i + 1 < argc) {
            *path_out = argv[i + 1];
            i += 2;
            continue;
        }
        int n_words = measure_parse(request, argc - i, argv + i);
        if (n_words <= 0) {
            return false;
        }
        i += n_words;
    }
    return *path_out;
}

static int measure(int argc, char **argv)
{
    struct measure_request request;
    const char *path;
    if (!parse(argc, argv, &request, &path)) {
        return usage("bad arguments");
    }
    MPI_Datatype datatype = request.dtype ? find_datatype(request.dtype->name) : MPI_DATATYPE_NULL;
    if (datatype == MPI_DATATYPE_NULL || find_op(request.redop) == MPI_OP_NULL ||
        request.to_bytes / request.dtype->bytes > INT_MAX) {
        return usage("MPI has no such dtype, reduction or count");
    }
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &request.n_ranks);
    const char *misfit = measure_misfit(&request);
    if (misfit) {
        return usage(misfit);
    }
    struct measure_page *page = measure_page_map(&request, path);
    if (!page) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        unlink(path);
    }
    const struct measure_library library = {
        .transport = LIBRARY_NAME, .buffers = "heap", .context = &datatype, .run = run};
    bool is_good = measure_run(&request, page, rank, &library);
    measure_page_unmap(page);
    return is_good ? 0 : 1;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int exit_status = measure(argc, argv);
    MPI_Finalize();
    return exit_status;
}
