/* SPDX-License-Identifier: MIT */
/*
 * A oneDNN of 2.6 as far as libshoal_nn calls it, for tests on machines where the real one has no bf16. Products are
 * plain loops in f32. It keeps what the tests ask about: how many kernels were made and freed, how many threads OpenMP
 * would have used in a call, and the largest number of rows or columns of a call. FAKE_VERSION and FAKE_RUNTIME make
 * versions that must be refused.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 2, 6, 99
#endif
#ifndef FAKE_RUNTIME
#define FAKE_RUNTIME 2
#endif

struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct matrix {
    int64_t shape[2];
    int64_t strides[2];
    int dtype;
};

struct matmul {
    struct matrix a, b, bias, c;
    int has_bias;
};

struct kernel {
    struct matmul matmul;
    int adds;
};

struct memory {
    char *data;
};

struct argument {
    int which;
    struct memory *memory;
};

_Atomic int fake_kernels, fake_kernels_made, fake_most_threads, fake_calls, fake_fails;
static _Thread_local int n_threads = 4;
static const struct matrix scratch = {.shape = {1, 96}, .strides = {96, 1}, .dtype = 3};

void omp_set_num_threads(int n)
{
    n_threads = n;
}

int omp_get_max_threads(void)
{
    return n_threads;
}

const struct version *dnnl_version(void)
{
    static const struct version version = {FAKE_VERSION, "fake", FAKE_RUNTIME, 0};
    return &version;
}

int dnnl_get_effective_cpu_isa(void)
{
    return 0xe7;
}

int dnnl_engine_create(void **engine, int kind, size_t index)
{
    static char the_engine;
    *engine = &the_engine;
    return kind == 1 && index == 0 ? 0 : 2;
}

int dnnl_stream_create(void **stream, void *engine, unsigned flags)
{
    *stream = malloc(1);
    return *stream && engine && flags == 1 ? 0 : 1;
}

int dnnl_stream_wait(void *stream)
{
    return stream ? 0 : 2;
}

int dnnl_stream_destroy(void *stream)
{
    free(stream);
    return 0;
}

int dnnl_memory_desc_init_by_strides(struct matrix *desc, int n_dims, const int64_t *shape, int dtype,
                                     const int64_t *strides)
{
    if (n_dims != 2 || (dtype != 2 && dtype != 3)) {
        return 2;
    }
    *desc =
        (struct matrix){.shape = {shape[0], shape[1]}, .strides = {strides[0], strides[1]}, .dtype = dtype};
    return 0;
}

size_t dnnl_memory_desc_get_size(const struct matrix *desc)
{
    return (size_t)(desc->shape[0] * desc->shape[1]) * (desc->dtype == 2 ? 2 : 4);
}

int dnnl_memory_create(void **memory, const struct matrix *desc, void *engine, void *data)
{
    struct memory *made = malloc(sizeof(*made));
    (void)desc;
    if (!made || !engine) {
        return 1;
    }
    made->data = data;
    *memory = made;
    return 0;
}

int dnnl_memory_set_data_handle(void *memory, void *data)
{
    ((struct memory *)memory)->data = data;
    return 0;
}

int dnnl_memory_destroy(void *memory)
{
    free(memory);
    return 0;
}

int dnnl_matmul_desc_init(struct matmul *desc, const struct matrix *a, const struct matrix *b,
                          const struct matrix *bias, const struct matrix *c)
{
    *desc = (struct matmul){.a = *a, .b = *b, .c = *c, .has_bias = bias != NULL};
    return a->shape[1] == b->shape[0] && a->shape[0] == c->shape[0] && b->shape[1] == c->shape[1] ? 0 : 2;
}

/* Attributes, and what follows a product: a flag each. */
int dnnl_primitive_attr_create(void **attributes)
{
    *attributes = calloc(2, sizeof(int));
    return *attributes ? 0 : 1;
}

int dnnl_primitive_attr_set_scratchpad_mode(void *attributes, int mode)
{
    ((int *)attributes)[1] = mode;
    return 0;
}

int dnnl_primitive_attr_set_post_ops(void *attributes, const void *post_ops)
{
    ((int *)attributes)[0] = *(const int *)post_ops;
    return 0;
}

int dnnl_primitive_attr_destroy(void *attributes)
{
    free(attributes);
    return 0;
}

int dnnl_post_ops_create(void **post_ops)
{
    *post_ops = calloc(1, sizeof(int));
    return *post_ops ? 0 : 1;
}

int dnnl_post_ops_append_sum(void *post_ops, float scale)
{
    *(int *)post_ops = scale == 1.0f;
    return 0;
}

int dnnl_post_ops_destroy(void *post_ops)
{
    free(post_ops);
    return 0;
}

int dnnl_primitive_desc_create(void **desc, const struct matmul *of, const int *attributes, void *engine,
                               const void *hint)
{
    struct kernel *made = malloc(sizeof(*made));
    if (!made || !engine || hint || attributes[1] != 1) {
        free(made);
        return 1;
    }
    *made = (struct kernel){.matmul = *of, .adds = attributes[0]};
    *desc = made;
    return 0;
}

int dnnl_primitive_desc_query(const void *desc, int what, int index, void *result)
{
    static const char name[] = "fake:avx512_core_bf16";
    const char *text = name;
    memcpy(result, &text, sizeof(text));
    return desc && what == 8 && index == 0 ? 0 : 2;
}

const struct matrix *dnnl_primitive_desc_query_md(const void *desc, int what, int index)
{
    return desc && what == 136 && index == 0 ? &scratch : NULL;
}

int dnnl_primitive_desc_destroy(void *desc)
{
    free(desc);
    return 0;
}

int dnnl_primitive_create(void **primitive, const void *desc)
{
    if (atomic_load(&fake_fails)) {
        return 1;
    }
    *primitive = malloc(sizeof(struct kernel));
    memcpy(*primitive, desc, sizeof(struct kernel));
    atomic_fetch_add(&fake_kernels, 1);
    atomic_fetch_add(&fake_kernels_made, 1);
    return 0;
}

int dnnl_primitive_destroy(void *primitive)
{
    atomic_fetch_sub(&fake_kernels, 1);
    free(primitive);
    return 0;
}

static float read_element(const struct matrix *matrix, const char *data, int64_t i, int64_t j)
{
    int64_t at = i * matrix->strides[0] + j * matrix->strides[1];
    float value = 0;
    if (matrix->dtype == 3) {
        memcpy(&value, data + 4 * at, 4);
    } else {
        memcpy((char *)&value + 2, data + 2 * at, 2); /* the high half: little-endian */
    }
    return value;
}

static void write_element(const struct matrix *matrix, char *data, int64_t i, int64_t j, float value)
{
    int64_t at = i * matrix->strides[0] + j * matrix->strides[1];
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t half = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    memcpy(data + (matrix->dtype == 3 ? 4 : 2) * at, matrix->dtype == 3 ? (void *)&value : (void *)&half,
           matrix->dtype == 3 ? 4 : 2);
}

static char *find_argument(const struct argument *arguments, int n, int which)
{
    for (int i = 0; i < n; i++) {
        if (arguments[i].which == which) {
            return arguments[i].memory->data;
        }
    }
    return NULL;
}

int dnnl_primitive_execute(const struct kernel *kernel, void *stream, int n, const struct argument *arguments)
{
    const struct matmul *of = &kernel->matmul;
    const struct matrix bias_matrix = {.shape = {1, of->c.shape[1]}, .strides = {0, 1}, .dtype = of->c.dtype};
    const char *a = find_argument(arguments, n, 1);
    const char *b = find_argument(arguments, n, 33);
    const char *bias = find_argument(arguments, n, 41);
    char *c = find_argument(arguments, n, 17);
    char *space = find_argument(arguments, n, 80);
    int most = atomic_load(&fake_most_threads);
    while (n_threads > most && !atomic_compare_exchange_weak(&fake_most_threads, &most, n_threads)) {
    }
    atomic_fetch_add(&fake_calls, 1);
    if (!a || !b || !c || !space || !stream || (bias != NULL) != (of->has_bias != 0)) {
        return 2;
    }
    memset(space, 0x55, dnnl_memory_desc_get_size(&scratch));
    for (int64_t i = 0; i < of->c.shape[0]; i++) {
        for (int64_t j = 0; j < of->c.shape[1]; j++) {
            float sum = kernel->adds ? read_element(&of->c, c, i, j) : 0;
            for (int64_t k = 0; k < of->a.shape[1]; k++) {
                sum += read_element(&of->a, a, i, k) * read_element(&of->b, b, k, j);
            }
            sum += bias ? read_element(&bias_matrix, bias, 0, j) : 0;
            write_element(&of->c, c, i, j, sum);
        }
    }
    return 0;
}
