/* SPDX-License-Identifier: MIT */
/* A BLAS whose products are the number of threads that it was told, and which take their time. */
#include <sched.h>
#include <stdatomic.h>

void cblas_sgemm(int order, int a_form, int b_form, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc);
void cblas_dgemm(int order, int a_form, int b_form, int m, int n, int k, double alpha, const double *a,
                 int lda, const double *b, int ldb, double beta, double *c, int ldc);
void openblas_set_num_threads(int n_threads);
int openblas_get_num_threads(void);

static _Atomic int number = 1;

void openblas_set_num_threads(int n_threads)
{
    atomic_store(&number, n_threads);
}

int openblas_get_num_threads(void)
{
    return atomic_load(&number);
}

/* The number, looked at for a while, as a product takes: 100 for one that changed. */
static int find_number(void)
{
    int before = atomic_load(&number);
    for (int i = 0; i < 50; i++) {
        (void)sched_yield();
        if (atomic_load(&number) != before) {
            return 100;
        }
    }
    return before;
}

void cblas_sgemm(int order, int a_form, int b_form, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc)
{
    float found = (float)find_number();
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            c[i * ldc + j] = found;
        }
    }
}

void cblas_dgemm(int order, int a_form, int b_form, int m, int n, int k, double alpha, const double *a,
                 int lda, const double *b, int ldb, double beta, double *c, int ldc)
{
    double found = find_number();
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            c[i * ldc + j] = found;
        }
    }
}
