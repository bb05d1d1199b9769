/* SPDX-License-Identifier: MIT */
/*
 * Kernels of oneDNN by shape; see onednn.h. Each thread has its own: they need no locks, and the library's own cache
 * makes the code of a kernel once for all of them. A thread has memory for the scratch space of its largest kernel. A
 * call allocates nothing here; inside the library it makes a few small allocations (five in 2.6).
 */
#include "math/onednn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/try.h"
#include "shoal/op.h"

enum {
    N_SETS = 64, /* a power of two */
    N_WAYS = 4,  /* kernels of a set; the one that was not used for the longest time gives way to a new one */
    ALIGNMENT = 4096
};

struct kernel {
    struct onednn_key key;
    void *primitive; /* NULL if the place is free */
    void *a;
    void *b;
    void *bias;
    void *c;
    void *scratch;
    uint64_t last_use;
};

struct cache {
    struct kernel kernels[N_SETS][N_WAYS];
    void *stream;
    void *scratch; /* for the kernel that runs */
    size_t scratch_bytes;
    uint64_t n_uses;
};

static pthread_key_t cache_key;
static pthread_once_t has_key = PTHREAD_ONCE_INIT;
static bool is_keyless;

static shoal_status fail(const char *what, int status)
{
    const int out_of_memory = 1;
    return shoal_fail(status == out_of_memory ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_SYSTEM,
                      "oneDNN: %s: status %d", what, status);
}

/* Making a kernel -------------------------------------------------------------------------------------- */

/* Descriptions of the matrices. */
struct matrices {
    struct onednn_matrix a;
    struct onednn_matrix b;
    struct onednn_matrix bias;
    struct onednn_matrix c;
};

static int describe_matrix(struct onednn_matrix *matrix, int dtype, int64_t n_rows, int64_t n_cols,
                           int64_t row_stride, int64_t col_stride)
{
    const int64_t shape[ONEDNN_MAX_DIMS] = {n_rows, n_cols};
    const int64_t strides[ONEDNN_MAX_DIMS] = {row_stride, col_stride};
    return onednn.memory_desc_init_by_strides(matrix, 2, shape, dtype, strides);
}

static int describe_matrices(const struct onednn_key *key, struct matrices *matrices)
{
    int dtype = key->dtype;
    int status =
        describe_matrix(&matrices->a, dtype, key->n_rows, key->n_inner, key->a_strides[0], key->a_strides[1]);
    status = status ? status
                    : describe_matrix(&matrices->b, dtype, key->n_inner, key->n_cols, key->b_strides[0],
                                      key->b_strides[1]);
    status = status ? status : describe_matrix(&matrices->bias, dtype, 1, key->n_cols, key->n_cols, 1);
    return status ? status : describe_matrix(&matrices->c, dtype, key->n_rows, key->n_cols, key->c_stride, 1);
}

/* What a kernel does beside the product: where its scratch space comes from, and that it adds to c. */
static int make_attributes(const struct onednn_key *key, void **attributes_out)
{
    void *post_ops = NULL;
    int status = onednn.primitive_attr_create(attributes_out);
    status = status ? status
                    : onednn.primitive_attr_set_scratchpad_mode(*attributes_out, ONEDNN_SCRATCH_OF_CALLER);
    if (status || !key->adds) {
        return status;
    }
    status = onednn.post_ops_create(&post_ops);
    status = status ? status : onednn.post_ops_append_sum(post_ops, 1.0f);
    status = status ? status : onednn.primitive_attr_set_post_ops(*attributes_out, post_ops);
    if (post_ops) {
        (void)onednn.post_ops_destroy(post_ops);
    }
    return status;
}

static int describe_kernel(const struct onednn_key *key, struct matrices *matrices, void **desc_out)
{
    struct onednn_matmul matmul;
    void *attributes = NULL;
    int status = describe_matrices(key, matrices);
    status = status ? status
                    : onednn.matmul_desc_init(&matmul, &matrices->a, &matrices->b,
                                              key->has_bias ? &matrices->bias : NULL, &matrices->c);
    status = status ? status : make_attributes(key, &attributes);
    status =
        status ? status : onednn.primitive_desc_create(desc_out, &matmul, attributes, onednn.engine, NULL);
    if (attributes) {
        (void)onednn.primitive_attr_destroy(attributes);
    }
    return status;
}

bool onednn_find_kernel(const struct onednn_key *key, char *name, size_t bytes)
{
    struct matrices matrices;
    const char *found = NULL;
    void *desc = NULL;
    int before = onednn_enter();
    bool is_there = describe_kernel(key, &matrices, &desc) == 0 &&
                    onednn.primitive_desc_query(desc, ONEDNN_QUERY_KERNEL, 0, &found) == 0 && found;
    if (is_there) {
        (void)snprintf(name, bytes, "%s", found);
    }
    if (desc) {
        (void)onednn.primitive_desc_destroy(desc);
    }
    onednn_leave(before);
    return is_there;
}

static void free_kernel(struct kernel *kernel)
{
    void *const memories[] = {kernel->a, kernel->b, kernel->bias, kernel->c, kernel->scratch};
    for (size_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++) {
        if (memories[i]) {
            (void)onednn.memory_destroy(memories[i]);
        }
    }
    if (kernel->primitive) {
        (void)onednn.primitive_destroy(kernel->primitive);
    }
    *kernel = (struct kernel){.primitive = NULL};
}

/* The space has to be there before the kernel is: it is not looked at again. */
static int reserve_scratch(struct cache *cache, const void *desc, struct kernel *kernel)
{
    const int no_memory = 1;
    const struct onednn_matrix *matrix = onednn.primitive_desc_query_md(desc, ONEDNN_QUERY_SCRATCH, 0);
    size_t bytes = matrix ? onednn.memory_desc_get_size(matrix) : 0;
    if (bytes > cache->scratch_bytes) {
        void *larger = NULL;
        if (posix_memalign(&larger, ALIGNMENT, bytes) != 0) {
            return no_memory;
        }
        free(cache->scratch);
        cache->scratch = larger;
        cache->scratch_bytes = bytes;
    }
    return bytes > 0 ? onednn.memory_create(&kernel->scratch, matrix, onednn.engine, cache->scratch) : 0;
}

static int make_parts(struct cache *cache, const void *desc, const struct matrices *matrices,
                      struct kernel *kernel)
{
    char placeholder[1]; /* memory needs an address when it is made; onednn_run sets those of the data */
    int status = reserve_scratch(cache, desc, kernel);
    status = status ? status : onednn.memory_create(&kernel->a, &matrices->a, onednn.engine, placeholder);
    status = status ? status : onednn.memory_create(&kernel->b, &matrices->b, onednn.engine, placeholder);
    status =
        status ? status : onednn.memory_create(&kernel->bias, &matrices->bias, onednn.engine, placeholder);
    status = status ? status : onednn.memory_create(&kernel->c, &matrices->c, onednn.engine, placeholder);
    return status ? status : onednn.primitive_create(&kernel->primitive, desc);
}

static shoal_status make_kernel(struct cache *cache, const struct onednn_key *key, struct kernel *kernel)
{
    struct matrices matrices;
    void *desc = NULL;
    int status = describe_kernel(key, &matrices, &desc);
    status = status ? status : make_parts(cache, desc, &matrices, kernel);
    if (desc) {
        (void)onednn.primitive_desc_destroy(desc);
    }
    if (status != 0) {
        free_kernel(kernel);
        return fail("making a kernel", status);
    }
    kernel->key = *key;
    return SHOAL_OK;
}

/* The cache of a thread -------------------------------------------------------------------------------- */

/* Called at the end of a thread. */
static void free_cache(void *of_thread)
{
    struct cache *cache = of_thread;
    for (size_t i = 0; i < (size_t)N_SETS * N_WAYS; i++) {
        free_kernel(&cache->kernels[i / N_WAYS][i % N_WAYS]);
    }
    if (cache->stream) {
        (void)onednn.stream_destroy(cache->stream);
    }
    free(cache->scratch);
    free(cache);
}

static void make_key(void)
{
    is_keyless = pthread_key_create(&cache_key, free_cache) != 0;
}

/* NULL, with an error, if there is no memory. */
static struct cache *get_cache(void)
{
    (void)pthread_once(&has_key, make_key);
    struct cache *cache = is_keyless ? NULL : pthread_getspecific(cache_key);
    if (cache || is_keyless) {
        return cache;
    }
    cache = calloc(1, sizeof(*cache));
    if (cache && (onednn.stream_create(&cache->stream, onednn.engine, /*flags=*/1) != 0 ||
                  pthread_setspecific(cache_key, cache) != 0)) {
        free_cache(cache);
        cache = NULL;
    }
    return cache;
}

static size_t hash_key(const struct onednn_key *key)
{
    uint64_t words[sizeof(*key) / sizeof(uint64_t)];
    uint64_t hash = 0;
    memcpy(words, key, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return (size_t)hash % N_SETS;
}

static shoal_status find_kernel(struct cache *cache, const struct onednn_key *key, struct kernel **kernel_out)
{
    struct kernel *set = cache->kernels[hash_key(key)];
    struct kernel *oldest = &set[0];
    cache->n_uses++;
    for (int i = 0; i < N_WAYS; i++) {
        if (set[i].primitive && memcmp(&set[i].key, key, sizeof(*key)) == 0) {
            set[i].last_use = cache->n_uses;
            *kernel_out = &set[i];
            return SHOAL_OK;
        }
        oldest = set[i].last_use < oldest->last_use ? &set[i] : oldest;
    }
    free_kernel(oldest);
    NN_TRY(make_kernel(cache, key, oldest));
    oldest->last_use = cache->n_uses;
    *kernel_out = oldest;
    return SHOAL_OK;
}

static int execute(const struct cache *cache, const struct kernel *kernel, const struct onednn_data *data)
{
    struct onednn_argument arguments[5];
    int n = 0;
    const struct {
        int which;
        void *memory;
        const void *at;
    } given[] = {{ONEDNN_ARGUMENT_A, kernel->a, data->a},
                 {ONEDNN_ARGUMENT_B, kernel->b, data->b},
                 {ONEDNN_ARGUMENT_C, kernel->c, data->c},
                 {ONEDNN_ARGUMENT_BIAS, kernel->bias, data->bias},
                 {ONEDNN_ARGUMENT_SCRATCH, kernel->scratch, cache->scratch}};
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        if (given[i].memory && given[i].at) {
            int status = onednn.memory_set_data_handle(given[i].memory, (void *)(uintptr_t)given[i].at);
            if (status != 0) {
                return status;
            }
            arguments[n++] = (struct onednn_argument){.which = given[i].which, .memory = given[i].memory};
        }
    }
    int status = onednn.primitive_execute(kernel->primitive, cache->stream, n, arguments);
    return status ? status : onednn.stream_wait(cache->stream);
}

static shoal_status run(const struct onednn_key *key, const struct onednn_data *data)
{
    struct kernel *kernel = NULL;
    struct cache *cache = get_cache();
    if (!cache) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "oneDNN: no memory for the kernels of a thread");
    }
    NN_TRY(find_kernel(cache, key, &kernel));
    int status = execute(cache, kernel, data);
    return status == 0 ? SHOAL_OK : fail("computing a product", status);
}

shoal_status onednn_run(const struct onednn_key *key, const struct onednn_data *data)
{
    int before = onednn_enter();
    shoal_status status = run(key, data);
    onednn_leave(before);
    return status;
}
