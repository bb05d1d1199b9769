/* SPDX-License-Identifier: MIT */
/* Compares pieces as they come from the ranks, and says what was wrong. */
#include "fsdp_checks.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE_BYTES 200

void fsdp_checks_init(struct fsdp_checks *self)
{
    *self = (struct fsdp_checks){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void fsdp_checks_free(struct fsdp_checks *self)
{
    for (size_t i = 0; i < self->n_checks; i++) {
        free(self->checks[i].name);
    }
    free(self->checks);
}

size_t fsdp_checks_add(struct fsdp_checks *self, const char *name, double bound)
{
    if (self->n_checks == self->capacity) {
        size_t capacity = self->capacity > 0 ? 2 * self->capacity : 64;
        struct fsdp_check *checks = realloc(self->checks, capacity * sizeof *checks);
        if (!checks) {
            self->has_no_memory = true;
            return 0;
        }
        self->checks = checks;
        self->capacity = capacity;
    }
    struct fsdp_check *check = &self->checks[self->n_checks];
    *check = (struct fsdp_check){.name = strdup(name), .bound = bound};
    if (!check->name) {
        self->has_no_memory = true;
        return 0;
    }
    return self->n_checks++;
}

static __attribute__((format(printf, 2, 0))) void set_reason(struct fsdp_check *check, const char *format,
                                                             va_list arguments)
{
    if (check->reason[0] == '\0') {
        (void)vsnprintf(check->reason, sizeof check->reason, format, arguments);
    }
}

void fsdp_checks_add_wrong(struct fsdp_checks *self, const char *name, const char *format, ...)
{
    size_t number = fsdp_checks_add(self, name, 0);
    va_list arguments;
    va_start(arguments, format);
    if (!self->has_no_memory) {
        set_reason(&self->checks[number], format, arguments);
    }
    va_end(arguments);
}

void fsdp_checks_set_reason(struct fsdp_checks *self, size_t number, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)pthread_mutex_lock(&self->lock);
    set_reason(&self->checks[number], format, arguments);
    (void)pthread_mutex_unlock(&self->lock);
    va_end(arguments);
}

bool fsdp_checks_has_reason(struct fsdp_checks *self, size_t number)
{
    (void)pthread_mutex_lock(&self->lock);
    bool has_reason = self->checks[number].reason[0] != '\0';
    (void)pthread_mutex_unlock(&self->lock);
    return has_reason;
}

/* Pieces ----------------------------------------------------------------------------------------------- */

static bool has_same_shape(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t bytes = (size_t)shoal_tensor_n_dims(a) * sizeof(int64_t);
    return shoal_tensor_n_dims(a) == shoal_tensor_n_dims(b) &&
           memcmp(shoal_tensor_shape(a), shoal_tensor_shape(b), bytes) == 0;
}

static void format_shape(char *text, const shoal_tensor *tensor)
{
    size_t length = (size_t)snprintf(text, SHAPE_BYTES, "%s [", shoal_dtype_name(shoal_tensor_dtype(tensor)));
    for (int i = 0; i < shoal_tensor_n_dims(tensor) && length < SHAPE_BYTES; i++) {
        length += (size_t)snprintf(text + length, SHAPE_BYTES - length, "%s%" PRId64, i ? ", " : "",
                                   shoal_tensor_shape(tensor)[i]);
    }
    if (length < SHAPE_BYTES) {
        (void)snprintf(text + length, SHAPE_BYTES - length, "]");
    }
}

/* A number that both have is no error, whatever it is. */
static void compare_elements(struct fsdp_check *check, int rank, const float *got, const float *want,
                             int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - (double)want[i]);
        bool is_same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i]));
        bool is_no_number = !is_same && !isfinite(error);
        error = is_same ? 0 : error;
        if (!check->is_no_number && (is_no_number || error > check->largest_error)) {
            check->is_no_number = is_no_number;
            check->largest_error = is_no_number ? (double)INFINITY : error;
            check->rank = rank;
            check->element = i;
            check->got = got[i];
            check->want = want[i];
        }
        if (isfinite(want[i])) {
            check->largest_want = fmax(check->largest_want, fabs((double)want[i]));
        }
    }
}

void fsdp_checks_compare(struct fsdp_checks *self, size_t number, int rank, const shoal_tensor *got,
                         const shoal_tensor *want)
{
    if (!got || !want) {
        return;
    }
    if (shoal_tensor_dtype(got) != shoal_tensor_dtype(want) || !has_same_shape(got, want)) {
        char a[SHAPE_BYTES];
        char b[SHAPE_BYTES];
        format_shape(a, got);
        format_shape(b, want);
        fsdp_checks_set_reason(self, number, "rank %d: got %s, expected %s", rank, a, b);
        return;
    }
    if (shoal_tensor_dtype(got) != SHOAL_F32) {
        fsdp_checks_set_reason(self, number, "rank %d: is %s, not f32", rank,
                               shoal_dtype_name(shoal_tensor_dtype(got)));
        return;
    }
    const float *got_data = shoal_data(got);
    const float *want_data = shoal_data(want);
    if (!got_data || !want_data) {
        fsdp_checks_set_reason(self, number, "rank %d: %s", rank, shoal_error_text());
        return;
    }
    (void)pthread_mutex_lock(&self->lock);
    struct fsdp_check *check = &self->checks[number];
    compare_elements(check, rank, got_data, want_data, shoal_tensor_count(got));
    check->n_pieces++;
    (void)pthread_mutex_unlock(&self->lock);
}

void fsdp_checks_end(struct fsdp_checks *self, int n_ranks)
{
    for (size_t i = 0; i < self->n_checks; i++) {
        if (self->checks[i].n_pieces < n_ranks) {
            fsdp_checks_set_reason(self, i, "was compared on %d of %d ranks", self->checks[i].n_pieces,
                                   n_ranks);
        }
    }
}

/* Reports ---------------------------------------------------------------------------------------------- */

/* The error as a part of its bound. */
static double part_of_bound(const struct fsdp_check *check)
{
    if (check->largest_error == 0) {
        return 0;
    }
    double bound = check->bound * check->largest_want;
    return bound > 0 && !check->is_no_number ? check->largest_error / bound : (double)INFINITY;
}

static bool is_wrong(const struct fsdp_check *check)
{
    return check->reason[0] != '\0' || part_of_bound(check) > 1;
}

static void say(const struct fsdp_check *check, const char *file)
{
    if (check->reason[0] != '\0') {
        printf("%s: %s: %s\n", file, check->name, check->reason);
        return;
    }
    printf("%s: %s: rank %d, element %" PRId64 ": got %.9g, expected %.9g; error %.3g, %.3g of its bound\n",
           file, check->name, check->rank, check->element, (double)check->got, (double)check->want,
           check->largest_error / check->largest_want, part_of_bound(check));
}

void fsdp_checks_report(const struct fsdp_checks *self, const char *file, int n_ranks,
                        struct fsdp_totals *totals)
{
    for (size_t i = 0; i < self->n_checks; i++) {
        const struct fsdp_check *check = &self->checks[i];
        if (check->reason[0] == '\0' && check->n_pieces < n_ranks) {
            continue; /* the run ended before: its failure has an entry */
        }
        totals->n_checked++;
        totals->worst = fmax(totals->worst, part_of_bound(check));
        if (is_wrong(check)) {
            totals->n_wrong++;
            say(check, file);
        }
    }
}
