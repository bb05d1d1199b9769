/* SPDX-License-Identifier: MIT */
/*
 * Finding a BLAS, loading it with the right core type, and calling it.
 *
 * Debian's OpenBLAS does not know processors newer than itself: it takes a Sapphire Rapids for a Prescott, which has
 * no AVX, and runs at a quarter of the speed. OPENBLAS_CORETYPE says what the processor can do; it is read while the
 * library is loaded and is taken out of the environment again afterwards.
 */
#include "math/operand.h"
#include "math/panels.h"
#include "math/products.h"
#include "math/pool.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "shoal/op.h"
#include "shoal_nn/nn.h"
#include "common/struct_size.h"
#include "common/try.h"

#define TEXT_BYTES 512

enum {
    ROW_MAJOR = 101,
    AS_IT_IS = 111,
    TRANSPOSED = 112
};

typedef void (*sgemm_function)(int order, int a_form, int b_form, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c,
                               int ldc);
typedef void (*dgemm_function)(int order, int a_form, int b_form, int m, int n, int k, double alpha,
                               const double *a, int lda, const double *b, int ldb, double beta, double *c,
                               int ldc);

/* Constant once it is loaded. */
static struct {
    sgemm_function sgemm; /* NULL if the plain loops are used */
    dgemm_function dgemm;
    void (*set_threads)(int n_threads); /* NULL, as get_threads, when the library has no such call */
    int (*get_threads)(void);
    char library[TEXT_BYTES];
    char core[64];
    char version[64]; /* the file's name if the library does not say */
    shoal_status status;
    char error[TEXT_BYTES];
} blas;

static pthread_once_t is_loaded = PTHREAD_ONCE_INIT;

static const char *const default_libraries[] = {"libopenblas.so.0", "libopenblas.so", "libblas.so.3",
                                                "libcblas.so.3"};

/* Threads ---------------------------------------------------------------------------------------------- */

/*
 * The bits of a product may depend on the number of threads that a BLAS computes it with, so every call of it runs on one
 * thread, and those of nn's pool compute panels (panels.h). A BLAS has one number of threads for the whole process. It is
 * 1 while products run, and what the application had chosen otherwise.
 */
static struct {
    pthread_mutex_t lock;
    int n_running;
    int n_threads; /* the application's */
} calls = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The calls of the parent's other threads do not run in a forked child. */
static void forget_calls(void)
{
    (void)pthread_mutex_init(&calls.lock, NULL);
    if (calls.n_running > 0) {
        calls.n_running = 0;
        blas.set_threads(calls.n_threads);
    }
}

static void begin_call(void)
{
    if (!blas.set_threads) {
        return;
    }
    (void)pthread_mutex_lock(&calls.lock);
    int n_threads = blas.get_threads();
    calls.n_threads = calls.n_running++ == 0 ? n_threads : calls.n_threads;
    if (n_threads != 1) {
        blas.set_threads(1);
    }
    (void)pthread_mutex_unlock(&calls.lock);
}

static void end_call(void)
{
    if (!blas.set_threads) {
        return;
    }
    (void)pthread_mutex_lock(&calls.lock);
    if (--calls.n_running == 0 && calls.n_threads != 1) {
        blas.set_threads(calls.n_threads);
    }
    (void)pthread_mutex_unlock(&calls.lock);
}

/* Loading ---------------------------------------------------------------------------------------------- */

/* Returns what OpenBLAS should take this processor for; NULL if it may decide itself. */
static const char *better_core(void)
{
#if defined(__x86_64__)
    /* Half-precision AVX-512 came with Sapphire Rapids, and all that have it run Skylake's AVX-512 kernels. */
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    bool has_half = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1u << 23)) != 0;
    if (has_half && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return "SKYLAKEX";
    }
#endif
    return NULL;
}

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    (void)snprintf(to, to_bytes, "%s", from ? from : "");
}

/* POSIX says that dlsym's pointer may be one to a function; ISO C has no such cast. */
static void find_function(void *library, const char *name, void *function_out)
{
    void *symbol = dlsym(library, name);
    memcpy(function_out, &symbol, sizeof(symbol));
}

/* OpenBLAS describes itself: "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...". */
static void find_version(void *library)
{
    static const char begin[] = "OpenBLAS ";
    char *(*get_config)(void);
    find_function(library, "openblas_get_config", &get_config);
    const char *config = get_config ? get_config() : NULL;
    const char *slash = strrchr(blas.library, '/');
    if (config && strncmp(config, begin, strlen(begin)) == 0) {
        config += strlen(begin);
        (void)snprintf(blas.version, sizeof(blas.version), "%.*s", (int)strcspn(config, " "), config);
    } else {
        (void)snprintf(blas.version, sizeof(blas.version), "%.60s", slash ? slash + 1 : blas.library);
    }
}

/* True when the library is there and is a CBLAS; otherwise the reason is in `reason`. */
static bool load_library(const char *name, char *reason, size_t reason_bytes)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        copy_text(reason, reason_bytes, dlerror());
        return false;
    }
    find_function(library, "cblas_sgemm", &blas.sgemm);
    find_function(library, "cblas_dgemm", &blas.dgemm);
    if (!blas.sgemm || !blas.dgemm) {
        blas.sgemm = NULL;
        blas.dgemm = NULL;
        (void)dlclose(library);
        (void)snprintf(reason, reason_bytes, "%s has no cblas_sgemm and cblas_dgemm", name);
        return false;
    }
    find_function(library, "openblas_set_num_threads", &blas.set_threads);
    find_function(library, "openblas_get_num_threads", &blas.get_threads);
    if (!blas.set_threads || !blas.get_threads) {
        blas.set_threads = NULL;
        blas.get_threads = NULL;
    }
    char *(*get_core)(void);
    find_function(library, "openblas_get_corename", &get_core);
    copy_text(blas.core, sizeof(blas.core), get_core ? get_core() : "");
    Dl_info place;
    void *symbol = dlsym(library, "cblas_sgemm");
    copy_text(blas.library, sizeof(blas.library),
              dladdr(symbol, &place) != 0 && place.dli_fname ? place.dli_fname : name);
    find_version(library);
    return true;
}

/*
 * A BLAS that cannot be opened because there are no file descriptors left is an error. Falling back to the loops of
 * this library would give this rank other bits than the other ranks, without a message.
 */
static bool lacks_descriptors(const char *reason)
{
    struct rlimit limit = {.rlim_cur = 0};
    if (!strstr(reason, strerror(EMFILE))) {
        return false;
    }
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    blas.status = SHOAL_ERR_SYSTEM;
    (void)snprintf(blas.error, sizeof(blas.error), "looking for a BLAS: %.300s (RLIMIT_NOFILE is %llu files)",
                   reason, (unsigned long long)limit.rlim_cur);
    return true;
}

static void load_first(void)
{
    char reason[TEXT_BYTES];
    const char *asked = getenv("SHOAL_NN_BLAS");
    copy_text(blas.library, sizeof(blas.library), "none");
    if (asked && strcmp(asked, "none") == 0) {
        return;
    }
    if (asked && asked[0] != '\0') {
        if (!load_library(asked, reason, sizeof(reason))) {
            blas.status = SHOAL_ERR_SYSTEM;
            (void)snprintf(blas.error, sizeof(blas.error), "SHOAL_NN_BLAS: %.400s", reason);
        }
        return;
    }
    for (size_t i = 0; i < sizeof(default_libraries) / sizeof(default_libraries[0]); i++) {
        if (load_library(default_libraries[i], reason, sizeof(reason)) || lacks_descriptors(reason)) {
            return;
        }
    }
}

static void load(void)
{
    const char *core = getenv("OPENBLAS_CORETYPE") ? NULL : better_core();
    if (core) {
        (void)setenv("OPENBLAS_CORETYPE", core, /*overwrite=*/0);
    }
    load_first();
    (void)pthread_atfork(NULL, NULL, forget_calls);
    if (core) {
        (void)unsetenv("OPENBLAS_CORETYPE");
    }
}

/* Once. What went wrong the first time goes wrong every time, with the same text. */
static shoal_status ensure_loaded(void)
{
    (void)pthread_once(&is_loaded, load);
    return blas.status == SHOAL_OK ? SHOAL_OK : shoal_fail(blas.status, "%s", blas.error);
}

shoal_status shoal_nn_blas_info(shoal_nn_blas *info_out)
{
    static const char call[] = "nn_blas_info";
    NN_TRY(nn_struct_check(call, "info_out", info_out));
    NN_TRY(ensure_loaded());
    const shoal_nn_blas info = {.struct_size = sizeof(info),
                                .library = blas.library,
                                .core = blas.core,
                                .n_threads = !blas.sgemm        ? 1
                                             : blas.set_threads ? nn_threads()
                                                                : 0};
    return nn_struct_write(call, "info_out", info_out, &info, sizeof(info));
}

/* Products --------------------------------------------------------------------------------------------- */

static bool fits(int64_t number)
{
    return number <= INT_MAX;
}

/* False when a BLAS cannot: then the plain loops do it. */
static bool can_multiply(const struct nn_product *product)
{
    const struct nn_matrix *left = &product->a;
    const struct nn_matrix *right = &product->b;
    struct nn_operand a;
    struct nn_operand b;
    bool is_empty = left->rows == 0 || right->cols == 0 || left->cols == 0;
    return !is_empty && blas.sgemm && nn_operand_of(left, &a) && nn_operand_of(right, &b) &&
           fits(left->rows) && fits(right->cols) && fits(left->cols) && fits(a.stride) && fits(b.stride);
}

static int form_of(const struct nn_operand *operand)
{
    return operand->is_transposed ? TRANSPOSED : AS_IT_IS;
}

/* Fewer rows or columns of a panel would cost too much: the side that is not cut is rearranged for each. */
#define PANEL_SIZE 256
/* Multiplications of a panel, and those of a product that is worth two panels of less than that size. */
#define PANEL_WORK ((double)(1 << 23))
#define PAIR_WORK ((double)(1 << 24))
#define MAX_PANELS 64

/* Such numbers as two, four and eight threads can share: halves, quarters, eighths, and even ones beyond these. */
static size_t count_panels(const struct nn_product *product)
{
    const double work = nn_panels_work(product);
    const int64_t by_side = nn_panels_side(product) / PANEL_SIZE;
    const double by_work = work / PANEL_WORK;
    size_t most = by_side < MAX_PANELS ? (size_t)by_side : MAX_PANELS;
    most = by_work < (double)most ? (size_t)by_work : most;
    if (most < 2) {
        return work >= PAIR_WORK ? 2 : 1;
    }
    return most < 4 ? 2 : most < 8 ? 4 : most / 2 * 2;
}

static shoal_status multiply_panel(const struct nn_panel *panel)
{
    const struct nn_product *product = panel->product;
    int m = (int)panel->n_rows;
    int n = (int)panel->n_cols;
    int k = (int)product->a.cols;
    int c_stride = (int)product->b.cols;
    /* Its rows have a bias already (nn_product_begin_rows). */
    bool adds = product->adds || product->bias;
    begin_call();
    if (product->dtype == SHOAL_F64) {
        blas.dgemm(ROW_MAJOR, form_of(&panel->a), form_of(&panel->b), m, n, k, 1.0, panel->a_data,
                   (int)panel->a.stride, panel->b_data, (int)panel->b.stride, adds ? 1.0 : 0.0, panel->c,
                   c_stride);
    } else {
        blas.sgemm(ROW_MAJOR, form_of(&panel->a), form_of(&panel->b), m, n, k, 1.0f, panel->a_data,
                   (int)panel->a.stride, panel->b_data, (int)panel->b.stride, adds ? 1.0f : 0.0f, panel->c,
                   c_stride);
    }
    end_call();
    return SHOAL_OK;
}

static shoal_status multiply(const struct nn_product *product, bool is_alone)
{
    if (!can_multiply(product)) {
        return product_plain.multiply(product, is_alone);
    }
    (void)nn_product_begin_rows(product);
    return nn_panels_run(product, count_panels(product), is_alone, multiply_panel);
}

/* The row ------------------------------------------------------------------------------------------------- */

static bool takes_reals(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 || dtype == SHOAL_F64;
}

static shoal_status load_row(void)
{
    NN_TRY(ensure_loaded());
    return blas.sgemm ? SHOAL_OK : shoal_fail(SHOAL_ERR_UNSUPPORTED, "no BLAS was found (SHOAL_NN_BLAS)");
}

static void describe_row(shoal_dtype dtype, char text[NN_PRODUCT_TEXT_BYTES])
{
    (void)dtype;
    (void)snprintf(text, NN_PRODUCT_TEXT_BYTES, "%.60s%s%.60s", blas.version, blas.core[0] ? " " : "",
                   blas.core);
}

static const char *get_library(void)
{
    return blas.library;
}

const struct nn_product_row product_openblas = {.name = "openblas",
                                                .load = load_row,
                                                .takes = takes_reals,
                                                .multiply = multiply,
                                                .describe = describe_row,
                                                .library = get_library};
