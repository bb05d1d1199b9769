/* SPDX-License-Identifier: MIT */
/* The CUDA driver for tests (tests/fakecuda): launching kernels, by one that moves bytes. */
#include "cuda/kernels/move.h"
#include "fakecuda/opened.h"

__attribute__((constructor)) static void prepare(void)
{
    open_driver();
}

/* An image with a kernel that takes an argument of so many bytes. */
static cuda_result load_bounded(const char *name, size_t argument_bytes, const char *bounds,
                                struct CUmod_st **module_out)
{
    char text[512];
    (void)snprintf(
        text, sizeof text,
        ".version 7.4\n.target sm_80\n.address_size 64\n\n"
        ".visible .entry nobody()\n{\n\tret;\n}\n"
        "\t// .globl\t%s\n.visible .entry %s(\n\t.param .align 8 .b8 %s_param_0[%zu]\n)\n%s\n{\n\tret;\n}\n",
        name, name, name, argument_bytes, bounds);
    return cu.cuModuleLoadDataEx(module_out, text, 0, NULL, NULL);
}

static cuda_result load(const char *name, size_t argument_bytes, struct CUmod_st **module_out)
{
    return load_bounded(name, argument_bytes, "", module_out);
}

static struct CUfunc_st *find_move(struct CUmod_st *module)
{
    struct CUfunc_st *function = NULL;
    CHECK_CU(cu.cuModuleGetFunction(&function, module, "move_bytes"));
    return function;
}

/* All bytes of one piece of memory, moved to another one a byte at a time. */
static struct move_table table_of(cuda_address dst, cuda_address src)
{
    return (struct move_table){
        .n_items = 1,
        .n_tiles = (BYTES + MOVE_TILE_UNITS - 1) / MOVE_TILE_UNITS,
        .items = {
            {.dst = dst, .src = src, .n_filled = BYTES, .n_elems = BYTES, .row_units = BYTES, .shift = 31}}};
}

static cuda_result launch(struct CUfunc_st *function, struct move_table *table, struct CUstream_st *stream)
{
    void *parameters[] = {table};
    return cu.cuLaunchKernel(function, table->n_tiles, 1, 1, MOVE_THREADS, 1, 1, 0, stream, parameters, NULL);
}

TEST(kernels_run_in_the_order_of_the_stream)
{
    struct CUmod_st *module = NULL;
    begin();
    CHECK_CU(load("move_bytes", sizeof(struct move_table), &module));
    struct CUfunc_st *function = find_move(module);
    struct CUstream_st *stream = make_stream();
    CHECK(find_move(module) == function);
    for (unsigned char seed = 0; seed < 20; seed++) {
        atomic_store(&settings->seed, seed);
        cuda_address src = allocate(stream);
        cuda_address dst = allocate(stream);
        struct move_table table = table_of(dst, src);
        CHECK_CU(cu.cuMemsetD8Async(src, seed, BYTES, stream));
        hold(stream);
        CHECK_CU(launch(function, &table, stream));
        memset(&table, 0xff, sizeof table); /* the arguments were copied */
        CHECK_CU(cu.cuMemFreeAsync(src, stream));
        hold(NULL);
        CHECK(holds(stream, dst, seed));
        CHECK_CU(cu.cuMemFreeAsync(dst, stream));
    }
    CHECK_CU(cu.cuModuleUnload(module));
    CHECK_INT(launch(function, &(struct move_table){.n_tiles = 1}, stream), INVALID_HANDLE);
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

TEST(launches_have_limits)
{
    static const struct {
        unsigned blocks[3];
        unsigned threads[3];
        unsigned shared_bytes;
    } wrong[] = {
        {{0, 1, 1}, {1, 1, 1}, 0}, {{0x80000000u, 1, 1}, {1, 1, 1}, 0}, {{1, 2, 1}, {1, 1, 1}, 0},
        {{1, 1, 0}, {1, 1, 1}, 0}, {{1, 1, 1}, {0, 1, 1}, 0},           {{1, 1, 1}, {1025, 1, 1}, 0},
        {{1, 1, 1}, {1, 2, 1}, 0}, {{1, 1, 1}, {1, 1, 2}, 0},           {{1, 1, 1}, {1, 1, 1}, 49153},
    };
    struct CUmod_st *module = NULL;
    begin();
    CHECK_CU(load("move_bytes", sizeof(struct move_table), &module));
    struct CUfunc_st *function = find_move(module);
    struct CUstream_st *stream = make_stream();
    struct move_table nothing = table_of(0, 0);
    nothing.items[0].n_filled = nothing.items[0].n_elems = 0;
    void *parameters[] = {&nothing};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const unsigned *blocks = wrong[i].blocks;
        const unsigned *threads = wrong[i].threads;
        CHECK_INT(cu.cuLaunchKernel(function, blocks[0], blocks[1], blocks[2], threads[0], threads[1],
                                    threads[2], wrong[i].shared_bytes, stream, parameters, NULL),
                  CUDA_INVALID_VALUE);
    }
    CHECK_INT(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, parameters),
              CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuLaunchKernel(function, 1, 1, 1, 1024, 1, 1, 49152, stream, parameters, NULL));
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK_CU(cu.cuModuleUnload(module));
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

static cuda_result launch_nothing(struct CUfunc_st *function, unsigned n_threads, unsigned shared_bytes)
{
    struct move_table nothing = table_of(0, 0);
    void *parameters[] = {&nothing};
    nothing.items[0].n_filled = nothing.items[0].n_elems = 0;
    return cu.cuLaunchKernel(function, 1, 1, 1, n_threads, 1, 1, shared_bytes, NULL, parameters, NULL);
}

TEST(kernels_have_bounds_of_their_own)
{
    struct CUmod_st *module = NULL;
    begin();
    CHECK_CU(load_bounded("move_bytes", sizeof(struct move_table), ".maxntid 128, 1, 1\n.minnctapersm 8",
                          &module));
    struct CUfunc_st *function = find_move(module);
    CHECK_CU(launch_nothing(function, 128, 0));
    CHECK_INT(launch_nothing(function, 129, 0), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuFuncSetAttribute(function, CUDA_DYNAMIC_SHARED_MOST, 50000));
    CHECK_CU(launch_nothing(function, 1, 50000));
    CHECK_INT(launch_nothing(function, 1, 50001), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuFuncSetAttribute(function, CUDA_DYNAMIC_SHARED_MOST, 1 << 20), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuFuncSetAttribute(function, -1, 0), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuStreamSynchronize(NULL));
    CHECK_CU(cu.cuModuleUnload(module));
    CHECK_INT(cu.cuFuncSetAttribute(function, CUDA_DYNAMIC_SHARED_MOST, 0), INVALID_HANDLE);
    end();
}

TEST(images_of_other_sources_are_refused)
{
    struct CUmod_st *module = NULL;
    struct CUfunc_st *function = NULL;
    begin();
    CHECK_INT(load("move_bytes", sizeof(struct move_table) - 8, &module), INVALID_PTX);
    CHECK(!module);
    CHECK_INT(load("move_bytes_of_nobody", 4100, &module), INVALID_PTX);
    CHECK_CU(load("move_bytes_of_nobody", 8, &module));
    CHECK_INT(cu.cuModuleGetFunction(&function, module, "move_bytes_of_nobody"), CUDA_NOT_FOUND);
    CHECK_INT(cu.cuModuleGetFunction(&function, module, "move_bytes"), CUDA_NOT_FOUND);
    CHECK_CU(cu.cuModuleUnload(module));
    end();
}
