/* SPDX-License-Identifier: MIT */
/*
 * Rows of products: which one is chosen and forced, what the row of oneDNN does with threads, kernels and failures. Each
 * case runs in a program of its own, because the rows are loaded once. shoal_test_fake_onednn (modules/fake_onednn.c)
 * stands in for the library; where the real one is installed, it is tried, too.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "nn/math/products.h"
#include "unit/nn/fixture.h"

/* A number that the library in place of oneDNN keeps. */
static _Atomic int *find_counter(const char *name)
{
    void *library = dlopen(TEST_FAKE_ONEDNN, RTLD_NOW | RTLD_LOCAL);
    static _Atomic int none;
    _Atomic int *counter = library ? dlsym(library, name) : NULL;
    CHECK(counter != NULL);
    return counter ? counter : &none;
}

static shoal_nn_products get_info(void)
{
    shoal_nn_products info = SHOAL_NN_PRODUCTS_INIT;
    CHECK_OK(shoal_nn_products_info(&info));
    return info;
}

/* Small whole numbers: their sums are exact in any order. */
static shoal_tensor *make_numbers(uint32_t seed, int64_t n_rows, int64_t n_cols, shoal_dtype dtype)
{
    struct test_random random = test_random_begin(seed);
    shoal_tensor *tensor = shoal_zeros(INTS(n_rows, n_cols), 2, SHOAL_F32);
    float *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; i < n_rows * n_cols; i++) {
        data[i] = (float)test_random_below(&random, 7) - 3;
    }
    return shoal_to_dtype(tensor, dtype);
}

static double multiply_element(const shoal_tensor *a, const shoal_tensor *b, int64_t i, int64_t j)
{
    const int64_t n_inner = shoal_tensor_shape(a)[1];
    const int64_t n_cols = shoal_tensor_shape(b)[1];
    const float *left = shoal_data(a);
    const float *right = shoal_data(b);
    double sum = 0;
    for (int64_t k = 0; k < n_inner; k++) {
        sum += (double)left[i * n_inner + k] * (double)right[k * n_cols + j];
    }
    return sum;
}

/* A product that is cut, with 1, 2 and 4 threads: the same bits, and the right ones in every corner of it. */
static void multiply_in_panels(int64_t n_rows, int64_t n_cols)
{
    shoal_tensor *a = make_numbers(1, n_rows, 200, SHOAL_F32);
    shoal_tensor *b = make_numbers(2, 200, n_cols, SHOAL_F32);
    shoal_tensor *first = NULL;
    for (int n_threads = 1; n_threads <= 4; n_threads *= 2) {
        CHECK_OK(shoal_nn_set_threads(n_threads));
        shoal_tensor *c = shoal_nn_matmul(a, b);
        first = first ? first : c;
        REQUIRE(c);
        CHECK(memcmp(shoal_data(c), shoal_data(first), (size_t)(n_rows * n_cols) * sizeof(float)) == 0);
    }
    const float *data = shoal_data(first);
    for (int64_t i = 0; i < n_rows; i += 37) {
        for (int64_t j = i % 31; j < n_cols; j += 31) {
            CHECK_DOUBLE((double)data[i * n_cols + j], multiply_element(a, b, i, j));
        }
    }
}

NN_TEST(planted_panels)
{
    multiply_in_panels(150, 2300); /* two panels of columns, the last one of an odd number */
    multiply_in_panels(2300, 150);
    CHECK_OK(shoal_nn_set_threads(0));
}

NN_TEST(planted_calls)
{
    CHECK_INT(atomic_load(find_counter("fake_calls")), 0);
    multiply_in_panels(150, 2300);
    CHECK_INT(atomic_load(find_counter("fake_calls")), 3 * 2);
    CHECK_INT(atomic_load(find_counter("fake_most_threads")), 1);
    /* The caller's own setting of OpenMP is as it was. */
    int (*get_threads)(void);
    void *symbol = dlsym(dlopen(TEST_FAKE_ONEDNN, RTLD_NOW | RTLD_LOCAL), "omp_get_max_threads");
    memcpy(&get_threads, &symbol, sizeof symbol);
    CHECK_INT(get_threads(), 4);
}

TEST(planted_names)
{
    begin_nn();
    shoal_nn_products info = get_info();
    CHECK(strncmp(info.f32, "onednn 2.6.99 ", 14) == 0);
    CHECK(strstr(info.f32, " fake:avx512_core_bf16") != NULL);
    CHECK_STRING(info.bf16, info.f32);
    CHECK(strncmp(info.f64, "onednn", 6) != 0); /* which it does not have */
    CHECK(strstr(info.all, info.f64) != NULL);
    shoal_nn_product_row row = SHOAL_NN_PRODUCT_ROW_INIT;
    CHECK_OK(shoal_nn_product_row_get(2, &row));
    CHECK_STRING(row.name, "onednn");
    CHECK(row.library && strstr(row.library, "fake_onednn"));
    CHECK(!row.reason && row.details);
    CHECK_STATUS(shoal_nn_product_row_get(3, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_product_row_get: index: 3 is not below 3");
    CHECK_STATUS(shoal_nn_product_row_get(0, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_products_info(NULL), SHOAL_ERR_INVALID);
}

/* More shapes than a thread keeps kernels for; the thread's end frees what is left. */
static void *multiply_many(void *unused)
{
    CHECK_OK(shoal_scope_begin());
    for (int64_t i = 1; i <= 600; i++) {
        shoal_tensor *a = make_numbers(1, i, 3, SHOAL_F32);
        CHECK(shoal_nn_matmul(a, make_numbers(2, 3, 2, SHOAL_F32)) != NULL);
    }
    CHECK_INT(atomic_load(find_counter("fake_kernels_made")), 600);
    CHECK(atomic_load(find_counter("fake_kernels")) <= 256);
    CHECK(shoal_nn_matmul(make_numbers(1, 600, 3, SHOAL_F32), make_numbers(2, 3, 2, SHOAL_F32)) != NULL);
    CHECK_INT(atomic_load(find_counter("fake_kernels_made")), 600); /* kept */
    CHECK_OK(shoal_scope_end());
    return unused;
}

TEST(planted_kernels)
{
    pthread_t thread;
    begin_nn();
    REQUIRE_OK(shoal_nn_set_threads(1));
    REQUIRE(pthread_create(&thread, NULL, multiply_many, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_INT(atomic_load(find_counter("fake_kernels")), 0);
}

TEST(planted_failure)
{
    begin_nn();
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *a = make_numbers(1, 12, 20, SHOAL_BF16);
    shoal_tensor *b = make_numbers(2, 20, 8, SHOAL_BF16);
    atomic_store(find_counter("fake_fails"), 1);
    CHECK_SCOPE_ERROR(shoal_nn_matmul(a, b), SHOAL_ERR_NO_MEMORY, "oneDNN: making a kernel: status 1");
    shoal_tensor *stack = shoal_zeros(INTS(9, 4, 4), 3, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_bmm(stack, stack), SHOAL_ERR_NO_MEMORY, "oneDNN: making a kernel: status 1");
    atomic_store(find_counter("fake_fails"), 0);
    CHECK(shoal_nn_matmul(a, b) != NULL);
    CHECK_OK(shoal_scope_end());
}

static void check_refused(shoal_status status, const char *text)
{
    size_t n_before = test_live_blocks();
    shoal_status actual = shoal_nn_init();
    test_keep_blocks(test_live_blocks() - n_before);
    CHECK_STATUS(actual, status);
    CHECK_ERROR_TEXT(text);
}

TEST(planted_version)
{
    check_refused(SHOAL_ERR_SYSTEM, "is oneDNN 3.1.4, but only 2.6 can be used");
}

TEST(planted_runtime)
{
    check_refused(SHOAL_ERR_SYSTEM, "has threads (runtime 4) that are not those of OpenMP");
}

TEST(planted_missing)
{
    check_refused(SHOAL_ERR_SYSTEM, "SHOAL_PRODUCTS=onednn: SHOAL_NN_ONEDNN: ");
    CHECK_ERROR_TEXT("/nowhere/libdnnl.so");
}

TEST(planted_unknown)
{
    check_refused(SHOAL_ERR_INVALID, "SHOAL_PRODUCTS: \"mkl\" is none of plain, openblas, onednn");
}

TEST(planted_plain)
{
    begin_nn();
    CHECK_STRING(get_info().f32, "plain");
    CHECK_STRING(get_info().f64, "plain");
    CHECK_STRING(get_info().bf16, "plain, widened to f32");
}

/* The real one, if it is here -------------------------------------------------------------------------- */

static int count_tasks(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

/* OpenMP would start a thread for each processor, and they would stay. */
NN_TEST(planted_threads)
{
    CHECK_OK(shoal_nn_set_threads(1));
    const int before = count_tasks();
    shoal_tensor *a = make_numbers(1, 256, 200, SHOAL_F32);
    shoal_tensor *b = make_numbers(2, 200, 2000, SHOAL_F32);
    CHECK(shoal_nn_matmul(a, b) != NULL);
    CHECK_INT(count_tasks(), before);
    CHECK_OK(shoal_nn_set_threads(3));
    CHECK(shoal_nn_matmul(a, b) != NULL);
    CHECK_INT(count_tasks(), before + 2); /* those of the pool */
    CHECK_OK(shoal_nn_set_threads(0));
}

static void run_planted(const char *name, const char *products, const char *library)
{
    char forced[64];
    char path[600];
    char output[4096];
    (void)snprintf(forced, sizeof forced, "SHOAL_PRODUCTS=%s", products);
    (void)snprintf(path, sizeof path, "SHOAL_NN_ONEDNN=%s", library);
    const char *const arguments[] = {test_program(), name, NULL};
    const char *const environment[] = {forced, path, NULL};
    int code = test_run_program(arguments, environment, output, sizeof(output));
    if (code != 0) {
        test_failed(__FILE__, __LINE__, "%s, %s, %s: exit %d: %s", name, forced, path, code, output);
    }
}

TEST(a_product_is_cut_by_its_size_alone)
{
    run_planted("planted_panels", "onednn", TEST_FAKE_ONEDNN);
    run_planted("planted_calls", "onednn", TEST_FAKE_ONEDNN);
    run_planted("planted_panels", "openblas", "");
}

TEST(onednn_is_named_with_its_version)
{
    run_planted("planted_names", "onednn", TEST_FAKE_ONEDNN);
}

TEST(kernels_are_kept_by_shape)
{
    run_planted("planted_kernels", "onednn", TEST_FAKE_ONEDNN);
    run_planted("planted_failure", "onednn", TEST_FAKE_ONEDNN);
}

TEST(other_libraries_are_refused_by_name)
{
    run_planted("planted_version", "onednn", TEST_FAKE_ONEDNN_3);
    run_planted("planted_runtime", "onednn", TEST_FAKE_ONEDNN_TBB);
    run_planted("planted_missing", "onednn", "/nowhere/libdnnl.so");
    run_planted("planted_unknown", "mkl", "");
    run_planted("planted_plain", "plain", "");
}

TEST(the_real_one_starts_no_threads)
{
    void *library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        test_skip("oneDNN 2 is not installed");
        return;
    }
    (void)dlclose(library);
    run_planted("planted_threads", "onednn", "");
    run_planted("planted_panels", "onednn", "");
}
