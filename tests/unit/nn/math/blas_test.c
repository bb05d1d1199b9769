/* SPDX-License-Identifier: MIT */
/* Finding a BLAS: what is loaded, and that it computes on one thread. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "unit/nn/fixture.h"

/* Before anything has loaded one in this process. */
static void load_without_descriptors(void *context)
{
    struct rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit lowered = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    shoal_nn_blas info = {.struct_size = sizeof(info)};
    CHECK_STATUS(shoal_nn_blas_info(&info), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("Too many open files (RLIMIT_NOFILE is 0 files)");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST(without_descriptors_there_is_no_other_blas)
{
    test_in_child(load_without_descriptors, NULL);
}

/* Ranks as threads: some compute products that are cut into panels, some batches of products. */
static void *multiply_and_look(void *context)
{
    const bool is_batch = *(const bool *)context;
    for (int i = 0; i < 40; i++) {
        CHECK_OK(shoal_scope_begin());
        shoal_tensor *x =
            is_batch ? shoal_zeros(INTS(9, 2, 2), 3, SHOAL_F32) : shoal_zeros(INTS(257, 257), 2, SHOAL_F32);
        shoal_tensor *y = is_batch ? shoal_nn_bmm(x, x) : shoal_nn_matmul(x, x);
        const float *numbers = shoal_data(y);
        for (int64_t k = 0; numbers && k < shoal_tensor_count(y) && !test_has_failed(); k++) {
            CHECK_DOUBLE((double)numbers[k], 1);
        }
        CHECK_OK(shoal_scope_end());
    }
    return NULL;
}

static void multiply_on_threads(void *context)
{
    enum {
        APPLICATION = 7
    };
    pthread_t threads[4];
    void (*set_number)(int n_threads);
    int (*get_number)(void);
    const bool is_batch[4] = {false, true, false, true};
    REQUIRE(setenv("SHOAL_NN_BLAS", TEST_FAKE_BLAS, 1) == 0);
    REQUIRE(setenv("SHOAL_PRODUCTS", "openblas", 1) == 0);
    void *fake = dlopen(TEST_FAKE_BLAS, RTLD_NOW);
    REQUIRE(fake != NULL);
    *(void **)&set_number = dlsym(fake, "openblas_set_num_threads");
    *(void **)&get_number = dlsym(fake, "openblas_get_num_threads");
    set_number(APPLICATION);
    begin_nn();
    REQUIRE_OK(shoal_nn_set_threads(3));
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, multiply_and_look, (void *)(uintptr_t)&is_batch[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_INT(get_number(), APPLICATION);
}

/* First of all: no BLAS has been loaded in this process. */
TEST(a_blas_has_one_thread_while_products_run)
{
#if defined(__SANITIZE_THREAD__)
    test_skip("the thread sanitizer allows no threads in forked children");
    return;
#endif
    test_in_child(multiply_on_threads, NULL);
}

static shoal_nn_blas get_info(void)
{
    shoal_nn_blas info = {.struct_size = sizeof(info), .library = "?", .core = "?"};
    CHECK_OK(shoal_nn_blas_info(&info));
    return info;
}

TEST(the_info_names_a_library)
{
    begin_nn();
    shoal_nn_blas info = get_info();
    CHECK(info.library[0] != '\0');
    CHECK(strcmp(info.library, "none") != 0 || info.n_threads == 1);
    CHECK(info.core != NULL);
    CHECK_STATUS(shoal_nn_blas_info(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_blas_info(&(shoal_nn_blas){.struct_size = 3}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_blas_info: info_out: struct_size 3 is not");
}

/* What is loaded for the tests is what a program gets by default, or they would show nothing about it. */
TEST(openblas_is_found_with_its_core)
{
    bool was_core_set = getenv("OPENBLAS_CORETYPE") != NULL;
    shoal_nn_blas info = get_info();
    if (!strstr(info.library, "openblas")) {
        test_skip("OpenBLAS is not installed");
        return;
    }
    CHECK(info.core[0] != '\0');
    CHECK(info.n_threads >= 1);
    /* What OpenBLAS calls processors it does not know, or that have no vectors worth the name. */
    const char *const worst[] = {"Prescott", "prescott", "Unknown", "unknown", "Core2", "ATOM"};
    for (size_t i = 0; i < sizeof(worst) / sizeof(worst[0]); i++) {
        CHECK(strcmp(info.core, worst[i]) != 0);
    }
    CHECK((getenv("OPENBLAS_CORETYPE") != NULL) == was_core_set);
}

TEST(threads_can_be_set)
{
    begin_nn();
    CHECK_OK(shoal_nn_set_threads(3));
    shoal_nn_blas info = get_info();
    CHECK(info.n_threads == 3 || strcmp(info.library, "none") == 0 || info.n_threads == 0);
    CHECK_STATUS(shoal_nn_set_threads(-1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_set_threads: n_threads: -1 is not within 0..65536");
    CHECK_OK(shoal_nn_set_threads(0));
}

static shoal_tensor *make_numbers(int64_t rows, int64_t cols, shoal_dtype dtype, uint64_t seed)
{
    struct test_random random = test_random_begin(seed);
    shoal_tensor *tensor = shoal_empty(INTS(rows, cols), 2, dtype);
    void *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < rows * cols; i++) {
        double value = test_random_unit(&random) - 0.5;
        if (dtype == SHOAL_F64) {
            ((double *)data)[i] = value;
        } else {
            ((float *)data)[i] = (float)value;
        }
    }
    return tensor;
}

/*
 * Whatever computes them: products with other numbers of threads have the same bits. OpenBLAS itself adds in another order
 * on other numbers of threads, at most of these sizes, and at other ones on other processors.
 */
NN_TEST(threads_compute_the_same_product)
{
    const int64_t sizes[][3] = {{300, 300, 300}, {128, 1024, 256}, {517, 129, 333}, {129, 517, 333},
                                {640, 640, 77},  {33, 2000, 400},  {2000, 33, 400}, {1031, 257, 64},
                                {1, 1500, 900},  {768, 384, 512}};
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64};
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]) && !test_has_failed(); i++) {
        const int64_t *size = sizes[i / 2];
        shoal_dtype dtype = dtypes[i % 2];
        shoal_tensor *a = make_numbers(size[0], size[2], dtype, 2 * i + 1);
        shoal_tensor *b = make_numbers(size[2], size[1], dtype, 2 * i + 2);
        const void *first = NULL;
        for (int n = 1; n <= 7; n++) {
            CHECK_OK(shoal_nn_set_threads(n));
            const void *data = shoal_data(shoal_nn_matmul(a, b));
            REQUIRE(data != NULL);
            first = first ? first : data;
            if (memcmp(data, first, (size_t)(size[0] * size[1]) * shoal_dtype_bytes(dtype)) != 0) {
                test_failed(__FILE__, __LINE__, "%s, %d x %d, inner %d: other bits on %d threads",
                            shoal_dtype_name(dtype), (int)size[0], (int)size[1], (int)size[2], n);
            }
        }
    }
    CHECK_OK(shoal_nn_set_threads(0));
}

/* The names of these begin with "planted_": they run in a program of their own, with another environment. */
TEST(planted_none)
{
    begin_nn();
    shoal_nn_blas info = get_info();
    CHECK_STRING(info.library, "none");
    CHECK_STRING(info.core, "");
    CHECK_INT(info.n_threads, 1);
}

TEST(planted_missing)
{
    size_t n_before = test_live_blocks();
    shoal_status status = shoal_nn_init();
    test_keep_blocks(test_live_blocks() - n_before);
    CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("SHOAL_NN_BLAS: ");
    CHECK_ERROR_TEXT("/nowhere/libblas.so");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full(INTS(2, 2), 2, 1, SHOAL_F32);
    CHECK(shoal_nn_tanh(x) != NULL); /* needs no BLAS */
    CHECK_SCOPE_ERROR(shoal_nn_matmul(x, x), SHOAL_ERR_SYSTEM, "nn.matmul: SHOAL_NN_BLAS: ");
    CHECK_OK(shoal_scope_end());
}

TEST(planted_no_blas)
{
    shoal_nn_blas info = {.struct_size = sizeof(info)};
    CHECK_STATUS(shoal_nn_blas_info(&info), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("libm.so.6 has no cblas_sgemm and cblas_dgemm");
}

TEST(planted_core)
{
    shoal_nn_blas info = get_info();
    if (!strstr(info.library, "openblas")) {
        return;
    }
    CHECK(getenv("OPENBLAS_CORETYPE") != NULL); /* what was set stays set */
}

static void run_planted(const char *name, const char *variable)
{
    const char *const arguments[] = {test_program(), name, NULL};
    const char *const environment[] = {variable, NULL};
    char output[4096];
    int code = test_run_program(arguments, environment, output, sizeof(output));
    if (code != 0) {
        test_failed(__FILE__, __LINE__, "%s, %s: exit %d: %s", name, variable, code, output);
    }
}

TEST(the_environment_chooses_the_blas)
{
    run_planted("planted_none", "SHOAL_NN_BLAS=none");
    run_planted("planted_missing", "SHOAL_NN_BLAS=/nowhere/libblas.so");
    run_planted("planted_no_blas", "SHOAL_NN_BLAS=libm.so.6");
    run_planted("planted_core", "OPENBLAS_CORETYPE=GENERIC");
}

TEST(openblas_too_has_the_same_bits_on_any_threads)
{
    if (strcmp(get_info().library, "none") == 0) {
        test_skip("no BLAS is installed");
        return;
    }
    run_planted("threads_compute_the_same_product", "SHOAL_PRODUCTS=openblas");
}
