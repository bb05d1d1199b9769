/* SPDX-License-Identifier: MIT */
/*
 * The kernels: each call copies its arguments into a job, in which addresses of the device have become those of the
 * second mapping, and the job calls the CPU's kernel. What that refuses is found out at once, by a call without elements.
 */
#include "modules/apart/apart.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "shoal/tensor.h"
#include "tensor/dtype.h"

/* The arguments of all kernels over a shape. */
struct shape_job {
    struct job job;
    enum kernel_binary op;
    shoal_dtype dtype;
    shoal_dtype src_dtype;
    struct kernel_operand operands[3];
    int64_t strides[3][SHOAL_MAX_DIMS];
    struct kernel_scalar number;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    bool is_reduced[SHOAL_MAX_DIMS];
    int64_t divisor;
};

static const int64_t no_elements[] = {0};
static const struct kernel_operand nothing = {.strides = no_elements};

/* The text of an error is in this module's copy of the library. */
static shoal_status pass_on(shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK : apart_services->set_error(status, "%s", shoal_error_text());
}

static void must(shoal_status status)
{
    if (status != SHOAL_OK) {
        apart_fail("a kernel: %s", shoal_error_text());
    }
}

static bool has_elements(int n_dims, const int64_t *shape)
{
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] == 0) {
            return false;
        }
    }
    return true;
}

/* The lowest address of an operand, and the bytes from there to its end. */
static struct address reach_operand(struct kernel_operand operand, shoal_dtype dtype, int n_dims,
                                    const int64_t *shape)
{
    int64_t low = 0;
    int64_t high = 0;
    for (int i = 0; i < n_dims; i++) {
        int64_t extent = operand.strides[i] * (shape[i] - 1);
        *(extent < 0 ? &low : &high) += extent;
    }
    int64_t size = (int64_t)dtype_bytes(dtype);
    const char *lowest = (const char *)address_pointer(operand.data) + low * size;
    char *reached = apart_reach(lowest, (size_t)((high - low + 1) * size));
    return address_of(reached ? reached - low * size : NULL);
}

/* A job for a shape with elements; NULL if there is nothing to do, or the device has failed. */
static struct shape_job *make_job(const char *name, void (*run)(struct job *job), shoal_dtype dtype,
                                  int n_dims, const int64_t *shape)
{
    struct shape_job *made =
        apart_call(name) && has_elements(n_dims, shape) ? apart_job(sizeof *made, run) : NULL;
    if (made) {
        struct job job = made->job;
        *made = (struct shape_job){.job = job, .dtype = dtype, .src_dtype = dtype, .n_dims = n_dims};
        for (int i = 0; i < n_dims; i++) {
            made->shape[i] = shape[i];
        }
    }
    return made;
}

static void set_operand(struct shape_job *job, int index, shoal_dtype dtype, struct kernel_operand operand)
{
    for (int i = 0; i < job->n_dims; i++) {
        job->strides[index][i] = operand.strides[i];
    }
    job->operands[index].data = reach_operand(operand, dtype, job->n_dims, job->shape);
    job->operands[index].strides = job->strides[index];
}

static void enqueue(struct job *job)
{
    if (apart_failure() == SHOAL_OK) {
        apart_enqueue(apart_services->stream(&apart_row), job);
    } else {
        free(job);
    }
}

/* Kernels over a shape ----------------------------------------------------------------------------------- */

#define SHAPE_JOB const struct shape_job *work = (const struct shape_job *)job

static void run_copy_nd(struct job *job)
{
    SHAPE_JOB;
    kernel_copy_nd(work->dtype, work->operands[0], work->src_dtype, work->operands[1], work->n_dims,
                   work->shape);
}

static void copy_nd(shoal_dtype dst_dtype, struct kernel_operand dst, shoal_dtype src_dtype,
                    struct kernel_operand src, int n_dims, const int64_t *shape)
{
    struct shape_job *job = make_job("copy_nd", run_copy_nd, dst_dtype, n_dims, shape);
    if (job) {
        job->src_dtype = src_dtype;
        set_operand(job, 0, dst_dtype, dst);
        set_operand(job, 1, src_dtype, src);
        enqueue(&job->job);
    }
}

static void run_fill_nd(struct job *job)
{
    SHAPE_JOB;
    kernel_fill_nd(work->dtype, work->operands[0], work->n_dims, work->shape, work->number);
}

static void fill_nd(shoal_dtype dtype, struct kernel_operand dst, int n_dims, const int64_t *shape,
                    struct kernel_scalar value)
{
    struct shape_job *job = make_job("fill_nd", run_fill_nd, dtype, n_dims, shape);
    if (job) {
        job->number = value;
        set_operand(job, 0, dtype, dst);
        enqueue(&job->job);
    }
}

static void run_binary_nd(struct job *job)
{
    SHAPE_JOB;
    must(kernel_binary_nd(work->op, work->dtype, work->operands[0], work->operands[1], work->operands[2],
                          work->n_dims, work->shape));
}

static shoal_status binary_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                              struct kernel_operand a, struct kernel_operand b, int n_dims,
                              const int64_t *shape)
{
    shoal_status status = kernel_binary_nd(op, dtype, nothing, nothing, nothing, 1, no_elements);
    struct shape_job *job =
        status == SHOAL_OK ? make_job("binary_nd", run_binary_nd, dtype, n_dims, shape) : NULL;
    if (job) {
        job->op = op;
        set_operand(job, 0, dtype, dst);
        set_operand(job, 1, dtype, a);
        set_operand(job, 2, dtype, b);
        enqueue(&job->job);
    }
    return pass_on(status);
}

static void run_number_nd(struct job *job)
{
    SHAPE_JOB;
    must(kernel_number_nd(work->op, work->dtype, work->operands[0], work->operands[1], work->number,
                          work->n_dims, work->shape));
}

static shoal_status number_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                              struct kernel_operand a, struct kernel_scalar number, int n_dims,
                              const int64_t *shape)
{
    shoal_status status = kernel_binary_nd(op, dtype, nothing, nothing, nothing, 1, no_elements);
    struct shape_job *job =
        status == SHOAL_OK ? make_job("number_nd", run_number_nd, dtype, n_dims, shape) : NULL;
    if (job) {
        job->op = op;
        job->number = number;
        set_operand(job, 0, dtype, dst);
        set_operand(job, 1, dtype, a);
        enqueue(&job->job);
    }
    return pass_on(status);
}

static void run_negate_nd(struct job *job)
{
    SHAPE_JOB;
    must(kernel_negate_nd(work->dtype, work->operands[0], work->operands[1], work->n_dims, work->shape));
}

static shoal_status negate_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand a,
                              int n_dims, const int64_t *shape)
{
    shoal_status status = kernel_negate_nd(dtype, nothing, nothing, 1, no_elements);
    struct shape_job *job =
        status == SHOAL_OK ? make_job("negate_nd", run_negate_nd, dtype, n_dims, shape) : NULL;
    if (job) {
        set_operand(job, 0, dtype, dst);
        set_operand(job, 1, dtype, a);
        enqueue(&job->job);
    }
    return pass_on(status);
}

static void run_sum_nd(struct job *job)
{
    SHAPE_JOB;
    must(kernel_sum_nd(work->dtype, work->operands[0], work->operands[1], work->n_dims, work->shape,
                       work->is_reduced, work->divisor));
}

/* The result may have elements when the source has none: then they become 0. */
static shoal_status sum_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand src,
                           int n_dims, const int64_t *shape, const bool *is_reduced, int64_t divisor)
{
    const bool none_reduced[] = {false};
    shoal_status status = kernel_sum_nd(dtype, nothing, nothing, 1, no_elements, none_reduced, divisor);
    int64_t dst_shape[SHOAL_MAX_DIMS];
    int64_t dst_strides[SHOAL_MAX_DIMS];
    for (int i = 0; i < n_dims; i++) {
        dst_shape[i] = is_reduced[i] ? 1 : shape[i];
        dst_strides[i] = is_reduced[i] ? 0 : dst.strides[i];
    }
    struct shape_job *job =
        status == SHOAL_OK ? make_job("sum_nd", run_sum_nd, dtype, n_dims, dst_shape) : NULL;
    if (job) {
        dst.strides = dst_strides;
        set_operand(job, 0, dtype, dst);
        for (int i = 0; i < n_dims; i++) {
            job->shape[i] = shape[i];
            job->is_reduced[i] = is_reduced[i];
        }
        job->divisor = divisor;
        if (has_elements(n_dims, shape)) {
            set_operand(job, 1, dtype, src);
        } else {
            job->operands[1].strides = memcpy(job->strides[1], src.strides, (size_t)n_dims * sizeof(int64_t));
        }
        enqueue(&job->job);
    }
    return pass_on(status);
}

/* Kernels over lists ------------------------------------------------------------------------------------- */

struct move_job {
    struct job job;
    size_t n_moves;
    struct kernel_move moves[];
};

static void run_move(struct job *job)
{
    const struct move_job *work = (const struct move_job *)job;
    kernel_move(work->moves, work->n_moves);
}

static bool overlaps(struct address a, size_t a_bytes, struct address b, size_t b_bytes)
{
    return !address_is_none(b) && address_number(a) < address_number(b) + b_bytes &&
           address_number(b) < address_number(a) + a_bytes;
}

/* What one move of a list writes, no other one may read or write: a GPU makes them in any order. */
static bool moves_meet(const struct kernel_move *a, const struct kernel_move *b)
{
    size_t written = a->count * dtype_bytes(a->dst_dtype);
    return overlaps(a->dst, written, b->dst, b->count * dtype_bytes(b->dst_dtype)) ||
           overlaps(a->dst, written, b->src, b->count * dtype_bytes(b->src_dtype));
}

static void check_apart(const struct kernel_move *moves, size_t n_moves)
{
    for (size_t i = 0; i < n_moves; i++) {
        for (size_t k = 0; k < n_moves; k++) {
            if (i != k && moves_meet(&moves[i], &moves[k])) {
                apart_fail("move %zu of a list writes what move %zu uses", i, k);
                return;
            }
        }
    }
}

static void move(const struct kernel_move *moves, size_t n_moves)
{
    check_apart(moves, n_moves);
    struct move_job *job =
        apart_call("move") ? apart_job(sizeof *job + n_moves * sizeof job->moves[0], run_move) : NULL;
    if (!job) {
        return;
    }
    job->n_moves = 0;
    for (size_t i = 0; i < n_moves; i++) {
        struct kernel_move reached = moves[i];
        if (reached.count == 0) {
            continue;
        }
        size_t dst_bytes = reached.count * dtype_bytes(reached.dst_dtype);
        size_t src_bytes = reached.count * dtype_bytes(reached.src_dtype);
        reached.dst = address_of(apart_reach(address_pointer(reached.dst), dst_bytes));
        if (!address_is_none(reached.src)) {
            reached.src = address_of(apart_reach(address_pointer(reached.src), src_bytes));
        }
        job->moves[job->n_moves++] = reached;
    }
    enqueue(&job->job);
}

struct divide_job {
    struct job job;
    shoal_dtype dtype;
    struct address data;
    size_t count;
    double divisor;
};

static void run_divide(struct job *job)
{
    const struct divide_job *work = (const struct divide_job *)job;
    kernel_divide(work->dtype, work->data, work->count, work->divisor);
}

static void divide(shoal_dtype dtype, struct address data, size_t count, double divisor)
{
    struct divide_job *job = count > 0 && apart_call("divide") ? apart_job(sizeof *job, run_divide) : NULL;
    if (!job) {
        return;
    }
    job->dtype = dtype;
    job->data = address_of(apart_reach(address_pointer(data), count * dtype_bytes(dtype)));
    job->count = count;
    job->divisor = divisor;
    enqueue(&job->job);
}

struct reduce_job {
    struct job job;
    shoal_reduce_op op;
    shoal_dtype dtype;
    void *dst;
    double factor;
    size_t count;
    size_t n_srcs;
    const void *srcs[];
};

static void run_reduce(struct job *job)
{
    const struct reduce_job *work = (const struct reduce_job *)job;
    must(
        kernel_reduce(work->op, work->dtype, work->dst, work->srcs, work->n_srcs, work->count, work->factor));
}

static shoal_status reduce(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *const *srcs,
                           size_t n_srcs, size_t count, double factor)
{
    shoal_status status = kernel_reduce_check(op, dtype);
    struct reduce_job *job = status == SHOAL_OK && count > 0 && apart_call("reduce")
                                 ? apart_job(sizeof *job + n_srcs * sizeof srcs[0], run_reduce)
                                 : NULL;
    if (job) {
        size_t bytes = count * dtype_bytes(dtype);
        job->op = op;
        job->dtype = dtype;
        job->dst = apart_reach(dst, bytes);
        job->factor = factor;
        job->count = count;
        job->n_srcs = n_srcs;
        for (size_t i = 0; i < n_srcs; i++) {
            job->srcs[i] = apart_reach(srcs[i], bytes);
        }
        enqueue(&job->job);
    }
    return pass_on(status);
}

struct where_job {
    struct job job;
    shoal_dtype dtype;
    struct address data[4];
    size_t count;
};

static void run_where_equal(struct job *job)
{
    const struct where_job *work = (const struct where_job *)job;
    kernel_where_equal(work->dtype, work->data[0], work->data[1], work->data[2], work->data[3], work->count);
}

static void where_equal(shoal_dtype dtype, struct address dst, struct address src, struct address a,
                        struct address b, size_t count)
{
    struct where_job *job =
        count > 0 && apart_call("where_equal") ? apart_job(sizeof *job, run_where_equal) : NULL;
    if (job) {
        const struct address given[] = {dst, src, a, b};
        for (int i = 0; i < 4; i++) {
            job->data[i] = address_of(apart_reach(address_pointer(given[i]), count * dtype_bytes(dtype)));
        }
        job->dtype = dtype;
        job->count = count;
        enqueue(&job->job);
    }
}

struct pack_job {
    struct job job;
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    struct address dst;
    int64_t n_ranks;
    int64_t first_rank;
    int64_t n_rows;
    size_t n_items;
    struct kernel_pack_item items[];
};

static void run_pack(struct job *job)
{
    const struct pack_job *work = (const struct pack_job *)job;
    kernel_pack(work->dst_dtype, work->dst, work->src_dtype, work->items, work->n_items, work->n_ranks,
                work->first_rank, work->n_rows);
}

static void pack(shoal_dtype dst_dtype, struct address dst, shoal_dtype src_dtype,
                 const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks, int64_t first_rank,
                 int64_t n_rows)
{
    int64_t n_elements = n_rows * kernel_pack_row_elems(items, n_items, n_ranks);
    struct pack_job *job = n_elements > 0 && apart_call("pack")
                               ? apart_job(sizeof *job + n_items * sizeof items[0], run_pack)
                               : NULL;
    if (!job) {
        return;
    }
    for (size_t i = 0; i < n_items; i++) {
        job->items[i] = items[i];
        int64_t count = items[i].rows * items[i].row_elems;
        if (count > 0) {
            void *data = address_pointer(items[i].data);
            job->items[i].data = address_of(apart_reach(data, (size_t)count * dtype_bytes(src_dtype)));
        }
    }
    job->dst_dtype = dst_dtype;
    job->dst = address_of(apart_reach(address_pointer(dst), (size_t)n_elements * dtype_bytes(dst_dtype)));
    job->src_dtype = src_dtype;
    job->n_items = n_items;
    job->n_ranks = n_ranks;
    job->first_rank = first_rank;
    job->n_rows = n_rows;
    enqueue(&job->job);
}

struct unpack_job {
    struct job job;
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    struct address src;
    int64_t n_rows;
    size_t n_items;
    struct kernel_unpack_item items[];
};

static void run_unpack(struct job *job)
{
    const struct unpack_job *work = (const struct unpack_job *)job;
    kernel_unpack(work->dst_dtype, work->items, work->n_items, work->src_dtype, work->src, work->n_rows);
}

static void unpack(shoal_dtype dst_dtype, const struct kernel_unpack_item *items, size_t n_items,
                   shoal_dtype src_dtype, struct address src, int64_t n_rows)
{
    struct unpack_job *job =
        apart_call("unpack") ? apart_job(sizeof *job + n_items * sizeof items[0], run_unpack) : NULL;
    if (!job) {
        return;
    }
    int64_t n_elements = 0;
    for (size_t i = 0; i < n_items; i++) {
        int64_t count = items[i].elems * n_rows;
        job->items[i] = items[i];
        if (count > 0) {
            void *data = address_pointer(items[i].data);
            job->items[i].data = address_of(apart_reach(data, (size_t)count * dtype_bytes(dst_dtype)));
        }
        n_elements += count;
    }
    job->dst_dtype = dst_dtype;
    job->src_dtype = src_dtype;
    job->src =
        n_elements > 0
            ? address_of(apart_reach(address_pointer(src), (size_t)n_elements * dtype_bytes(src_dtype)))
            : ADDRESS_NONE;
    job->n_rows = n_rows;
    job->n_items = n_items;
    enqueue(&job->job);
}

/* Lists of pieces ---------------------------------------------------------------------------------------- */

struct list_job {
    struct job job;
    double number;         /* factor, limit or power */
    struct address result; /* the largest number, or bins */
    size_t n_pieces;
    struct kernel_piece pieces[];
};

/* A job whose pieces are reached; NULL if there is nothing to do, or the device has failed. */
static struct list_job *list_job_of(const char *name, void (*run)(struct job *job),
                                    const struct kernel_piece *pieces, size_t n_pieces, double number)
{
    struct list_job *job =
        apart_call(name) ? apart_job(sizeof *job + n_pieces * sizeof pieces[0], run) : NULL;
    if (!job) {
        return NULL;
    }
    job->number = number;
    job->n_pieces = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        struct kernel_piece reached = pieces[i];
        if (reached.count > 0) {
            size_t bytes = reached.count * dtype_bytes(reached.dtype);
            reached.data = address_of(apart_reach(address_pointer(reached.data), bytes));
            job->pieces[job->n_pieces++] = reached;
        }
    }
    return job;
}

/* That the CPU's kernel takes the dtypes: calls it without elements, whose result nobody reads. */
static shoal_status check_pieces(shoal_status (*call)(const struct kernel_piece *pieces, double number),
                                 const struct kernel_piece *pieces, size_t n_pieces, double number)
{
    for (size_t i = 0; i < n_pieces; i++) {
        const struct kernel_piece empty = {.data = ADDRESS_NONE, .dtype = pieces[i].dtype};
        shoal_status status = call(&empty, number);
        if (status != SHOAL_OK) {
            return pass_on(status);
        }
    }
    return SHOAL_OK;
}

#define LIST_JOB const struct list_job *work = (const struct list_job *)job

static void run_scale_list(struct job *job)
{
    LIST_JOB;
    must(kernel_scale_list(work->pieces, work->n_pieces, work->number));
}

static shoal_status check_scale(const struct kernel_piece *empty, double factor)
{
    return kernel_scale_list(empty, 1, factor);
}

static shoal_status scale_list(const struct kernel_piece *pieces, size_t n_pieces, double factor)
{
    shoal_status status = check_pieces(check_scale, pieces, n_pieces, factor);
    struct list_job *job =
        status == SHOAL_OK ? list_job_of("scale_list", run_scale_list, pieces, n_pieces, factor) : NULL;
    if (job) {
        enqueue(&job->job);
    }
    return status;
}

static void run_clamp_list(struct job *job)
{
    LIST_JOB;
    must(kernel_clamp_list(work->pieces, work->n_pieces, work->number));
}

static shoal_status check_clamp(const struct kernel_piece *empty, double limit)
{
    return kernel_clamp_list(empty, 1, limit);
}

static shoal_status clamp_list(const struct kernel_piece *pieces, size_t n_pieces, double limit)
{
    shoal_status status = check_pieces(check_clamp, pieces, n_pieces, limit);
    struct list_job *job =
        status == SHOAL_OK ? list_job_of("clamp_list", run_clamp_list, pieces, n_pieces, limit) : NULL;
    if (job) {
        enqueue(&job->job);
    }
    return status;
}

static void run_largest_list(struct job *job)
{
    LIST_JOB;
    must(kernel_largest_list(work->pieces, work->n_pieces, work->result));
}

static shoal_status check_largest(const struct kernel_piece *empty, double number)
{
    (void)number;
    double largest = 0.0;
    return kernel_largest_list(empty, 1, address_of(&largest));
}

static shoal_status largest_list(const struct kernel_piece *pieces, size_t n_pieces, struct address largest)
{
    shoal_status status = check_pieces(check_largest, pieces, n_pieces, 0.0);
    struct list_job *job =
        status == SHOAL_OK ? list_job_of("largest_list", run_largest_list, pieces, n_pieces, 0.0) : NULL;
    if (job) {
        job->result = address_of(apart_reach(address_pointer(largest), sizeof(double)));
        enqueue(&job->job);
    }
    return status;
}

static void run_powers_list(struct job *job)
{
    LIST_JOB;
    must(kernel_powers_list(work->pieces, work->n_pieces, work->number, work->result));
}

static shoal_status check_powers(const struct kernel_piece *empty, double power)
{
    struct kernel_squares sums;
    kernel_squares_init(&sums);
    return kernel_powers_list(empty, 1, power, address_of(&sums));
}

static shoal_status powers_list(const struct kernel_piece *pieces, size_t n_pieces, double power,
                                struct address bins)
{
    shoal_status status = check_pieces(check_powers, pieces, n_pieces, power);
    struct list_job *job =
        status == SHOAL_OK ? list_job_of("powers_list", run_powers_list, pieces, n_pieces, power) : NULL;
    if (job) {
        job->result = address_of(apart_reach(address_pointer(bins), sizeof(struct kernel_squares)));
        enqueue(&job->job);
    }
    return status;
}

/* Updates ------------------------------------------------------------------------------------------------ */

struct update_job {
    struct job job;
    enum kernel_rule rule;
    size_t n_updates;
    struct kernel_update updates[];
};

static void run_update(struct job *job)
{
    const struct update_job *work = (const struct update_job *)job;
    must(kernel_update(work->rule, work->updates, work->n_updates));
}

static struct kernel_update reach_update(enum kernel_rule rule, const struct kernel_update *update)
{
    struct kernel_update reached = *update;
    const size_t moment_bytes = update->count * (update->dtype == SHOAL_F64 ? sizeof(double) : sizeof(float));
    reached.data =
        address_of(apart_reach(address_pointer(update->data), update->count * dtype_bytes(update->dtype)));
    reached.gradient = address_of(
        apart_reach(address_pointer(update->gradient), update->count * dtype_bytes(update->gradient_dtype)));
    for (int i = 0; i < 2 && rule == KERNEL_ADAMW; i++) {
        reached.moments[i] = address_of(apart_reach(address_pointer(update->moments[i]), moment_bytes));
    }
    return reached;
}

static shoal_status check_updates(enum kernel_rule rule, const struct kernel_update *updates,
                                  size_t n_updates)
{
    for (size_t i = 0; i < n_updates; i++) {
        struct kernel_update empty = updates[i];
        empty.count = 0;
        shoal_status status = kernel_update(rule, &empty, 1);
        if (status != SHOAL_OK) {
            return pass_on(status);
        }
    }
    return SHOAL_OK;
}

static shoal_status update(enum kernel_rule rule, const struct kernel_update *updates, size_t n_updates)
{
    shoal_status status = check_updates(rule, updates, n_updates);
    struct update_job *job = status == SHOAL_OK && apart_call("update")
                                 ? apart_job(sizeof *job + n_updates * sizeof updates[0], run_update)
                                 : NULL;
    if (job) {
        job->rule = rule;
        job->n_updates = 0;
        for (size_t i = 0; i < n_updates; i++) {
            if (updates[i].count > 0) {
                job->updates[job->n_updates++] = reach_update(rule, &updates[i]);
            }
        }
        enqueue(&job->job);
    }
    return status;
}

const struct kernel_table apart_kernels = {
#define KERNEL(type, name, parameters) .name = name,
#include "kernel/tables.def"
#undef KERNEL
};
