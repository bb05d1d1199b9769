/* SPDX-License-Identifier: MIT */
/* Compares the names in a file with those that its case needs, before anything is run. */
#include "fsdp_plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds ----------------------------------------------------------------------------------------------- */

enum {
    SINGLE,
    HALF,
    BRAIN,
    ROUNDED
};

static int precision_of(const struct fsdp_case *run)
{
    if (run->param_dtype == SHOAL_BF16 || run->reduce_dtype == SHOAL_BF16) {
        return BRAIN;
    }
    return run->param_dtype == SHOAL_F16 || run->reduce_dtype == SHOAL_F16 ? HALF : SINGLE;
}

static double bound_of(const struct fsdp_case *run, enum fsdp_kind kind, int step)
{
    static const double bounds[][5] = {
        [SINGLE] = {1e-5, 1e-5, 1e-5, 1e-5, 1e-5},
        [HALF] = {4e-3, 4e-3, 4e-3, 4e-3, 4e-3},
        [BRAIN] = {[FSDP_LOSS] = 1e-3,
                   [FSDP_GRAD] = 6e-2,
                   [FSDP_PARAM] = 5e-3,
                   [FSDP_NORM] = 1e-3,
                   [FSDP_FINAL] = 5e-3},
        /* After the first step an element on a boundary may be rounded to the other side. */
        [ROUNDED] = {[FSDP_LOSS] = 2e-3,
                     [FSDP_GRAD] = 2e-2,
                     [FSDP_PARAM] = 5e-3,
                     [FSDP_NORM] = 2e-3,
                     [FSDP_FINAL] = 5e-3},
    };
    bool is_rounded = run->gather != FSDP_PLAIN_GATHER && (step > 0 || kind == FSDP_FINAL);
    return bounds[is_rounded ? ROUNDED : precision_of(run)][kind];
}

/* Numbers ---------------------------------------------------------------------------------------------- */

/* Of a step: losses, gradients, parameters, the norm. Final parameters come after all steps. */
static size_t slots_per_step(const struct fsdp_case *run)
{
    return (size_t)run->n_micro + 2 * (size_t)run->n_names + 1;
}

static size_t slot_of(const struct fsdp_case *run, enum fsdp_kind kind, int step, int index)
{
    size_t begins[] = {[FSDP_LOSS] = 0,
                       [FSDP_GRAD] = (size_t)run->n_micro,
                       [FSDP_PARAM] = (size_t)run->n_micro + (size_t)run->n_names,
                       [FSDP_NORM] = (size_t)run->n_micro + 2 * (size_t)run->n_names,
                       [FSDP_FINAL] = 0};
    int steps = kind == FSDP_FINAL ? run->n_steps : step;
    return (size_t)steps * slots_per_step(run) + begins[kind] + (size_t)index;
}

size_t fsdp_plan_number(const struct fsdp_plan *self, enum fsdp_kind kind, int step, int index)
{
    return self->numbers[slot_of(self->run, kind, step, index)];
}

/* What must be there ----------------------------------------------------------------------------------- */

/* While a plan is made. */
struct making {
    struct fsdp_plan *plan;
    bool *is_known; /* tensors of the file that are used */
};

static void format_shape(char *text, size_t text_bytes, int n_dims, const int64_t *shape)
{
    size_t length = (size_t)snprintf(text, text_bytes, "[");
    for (int i = 0; i < n_dims && length < text_bytes; i++) {
        length += (size_t)snprintf(text + length, text_bytes - length, "%s%" PRId64, i ? ", " : "", shape[i]);
    }
    if (length < text_bytes) {
        (void)snprintf(text + length, text_bytes - length, "]");
    }
}

/* The number of a tensor in the file; below 0 if it is not there. */
static int64_t find_tensor(const struct fsdp_plan *plan, const char *name)
{
    char whole[2 * FSDP_TENSOR_BYTES];
    (void)snprintf(whole, sizeof whole, "%s%s", plan->prefix, name);
    return shoal_safetensors_find(plan->file, whole);
}

static void need_input(struct making *making, const char *name, int n_dims, const int64_t *shape)
{
    struct fsdp_plan *plan = making->plan;
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    int64_t at = find_tensor(plan, name);
    if (at < 0 || shoal_safetensors_get(plan->file, at, &info) != SHOAL_OK) {
        fsdp_checks_add_wrong(plan->checks, name, "is missing");
        plan->can_run = false;
        return;
    }
    making->is_known[at] = true;
    size_t bytes = (size_t)n_dims * sizeof shape[0];
    if (info.dtype != SHOAL_F32 || info.n_dims != n_dims || memcmp(info.shape, shape, bytes) != 0) {
        char is[200];
        char needed[200];
        format_shape(is, sizeof is, info.n_dims, info.shape);
        format_shape(needed, sizeof needed, n_dims, shape);
        fsdp_checks_add_wrong(plan->checks, name, "is %s %s, the case needs f32 %s",
                              shoal_dtype_name(info.dtype), is, needed);
        plan->can_run = false;
    }
}

static void need_inputs(struct making *making)
{
    const struct fsdp_case *run = making->plan->run;
    const int64_t x_shape[] = {run->batch, run->sizes[0]};
    const int64_t y_shape[] = {run->batch, run->sizes[run->n_layers]};
    char name[FSDP_TENSOR_BYTES];
    for (int i = 0; i < run->n_names; i++) {
        (void)snprintf(name, sizeof name, "init.%s", run->names[i].text);
        need_input(making, name, run->names[i].n_dims, run->names[i].shape);
    }
    for (int i = 0; i < run->n_ranks * run->n_steps * run->n_micro; i++) {
        int rank = i / (run->n_steps * run->n_micro);
        int step = i / run->n_micro % run->n_steps;
        (void)snprintf(name, sizeof name, "rank%d.x.%d.%d", rank, step, i % run->n_micro);
        need_input(making, name, 2, x_shape);
        (void)snprintf(name, sizeof name, "rank%d.y.%d.%d", rank, step, i % run->n_micro);
        need_input(making, name, 2, y_shape);
    }
}

static void need_result(struct making *making, size_t number, const char *name)
{
    struct fsdp_plan *plan = making->plan;
    int64_t at = find_tensor(plan, name);
    if (at < 0) {
        fsdp_checks_set_reason(plan->checks, number, "%s is missing", name);
    } else {
        making->is_known[at] = true;
    }
}

/* One check, and the pieces of all ranks. */
static void need_results(struct making *making, enum fsdp_kind kind, int step, int index, const char *name)
{
    struct fsdp_plan *plan = making->plan;
    size_t number = fsdp_checks_add(plan->checks, name, bound_of(plan->run, kind, step));
    plan->numbers[slot_of(plan->run, kind, step, index)] = number;
    if (plan->checks->has_no_memory) {
        return;
    }
    if (kind == FSDP_FINAL) {
        need_result(making, number, name);
        return;
    }
    for (int rank = 0; rank < plan->run->n_ranks; rank++) {
        char piece[FSDP_TENSOR_BYTES];
        (void)snprintf(piece, sizeof piece, "rank%d.%s", rank, name);
        need_result(making, number, piece);
    }
}

static void need_step(struct making *making, int step)
{
    const struct fsdp_case *run = making->plan->run;
    char name[FSDP_TENSOR_BYTES];
    for (int i = 0; i < run->n_micro; i++) {
        (void)snprintf(name, sizeof name, "loss.%d.%d", step, i);
        need_results(making, FSDP_LOSS, step, i, name);
    }
    for (int i = 0; i < run->n_names; i++) {
        if (!run->names[i].is_frozen) {
            (void)snprintf(name, sizeof name, "grad.%d.%s", step, run->names[i].text);
            need_results(making, FSDP_GRAD, step, i, name);
        }
    }
    if (run->clips) {
        (void)snprintf(name, sizeof name, "norm.%d", step);
        need_results(making, FSDP_NORM, step, 0, name);
    }
    for (int i = 0; i < run->n_names && fsdp_case_has_params(run, step); i++) {
        (void)snprintf(name, sizeof name, "param.%d.%s", step, run->names[i].text);
        need_results(making, FSDP_PARAM, step, i, name);
    }
}

static void need_final(struct making *making)
{
    const struct fsdp_case *run = making->plan->run;
    for (int i = 0; i < run->n_names && !run->is_one_of_many; i++) {
        char name[FSDP_TENSOR_BYTES];
        (void)snprintf(name, sizeof name, "final.%s", run->names[i].text);
        need_results(making, FSDP_FINAL, 0, i, name);
    }
}

/* Tensors of this case that it does not need. */
static void refuse_others(const struct making *making)
{
    const struct fsdp_plan *plan = making->plan;
    size_t length = strlen(plan->prefix);
    for (int64_t i = 0; i < shoal_safetensors_count(plan->file); i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        if (!making->is_known[i] && shoal_safetensors_get(plan->file, i, &info) == SHOAL_OK &&
            strncmp(info.name, plan->prefix, length) == 0) {
            fsdp_checks_add_wrong(plan->checks, info.name + length, "the case has no such tensor");
        }
    }
}

bool fsdp_plan_make(struct fsdp_plan *self, const struct fsdp_case *run, const shoal_safetensors *file,
                    const char *prefix, struct fsdp_checks *checks)
{
    int64_t n_tensors = shoal_safetensors_count(file);
    *self = (struct fsdp_plan){
        .run = run, .file = file, .prefix = prefix, .checks = checks, .can_run = !run->is_refused};
    struct making making = {.plan = self, .is_known = calloc((size_t)n_tensors + 1, sizeof(bool))};
    size_t n_slots = (size_t)run->n_steps * slots_per_step(run) + (size_t)run->n_names;
    self->numbers = calloc(n_slots, sizeof self->numbers[0]);
    if (!self->numbers || !making.is_known) {
        free(making.is_known);
        return false;
    }
    if (!run->is_refused) {
        need_inputs(&making);
        for (int step = 0; step < run->n_steps && !checks->has_no_memory; step++) {
            need_step(&making, step);
        }
        need_final(&making);
    }
    refuse_others(&making);
    free(making.is_known);
    return !checks->has_no_memory;
}

void fsdp_plan_free(struct fsdp_plan *self)
{
    free(self->numbers);
}

/* Reading ---------------------------------------------------------------------------------------------- */

shoal_tensor *fsdp_plan_read(const struct fsdp_plan *self, const char *format, ...)
{
    char name[FSDP_TENSOR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    return shoal_safetensors_tensor(self->file, find_tensor(self, name));
}

shoal_tensor *fsdp_plan_want(const struct fsdp_plan *self, size_t number, enum fsdp_kind kind, int rank)
{
    char name[FSDP_TENSOR_BYTES];
    const char *text = self->checks->checks[number].name;
    if (kind == FSDP_FINAL) {
        (void)snprintf(name, sizeof name, "%s", text);
    } else {
        (void)snprintf(name, sizeof name, "rank%d.%s", rank, text);
    }
    int64_t at = find_tensor(self, name);
    return at < 0 ? NULL : shoal_safetensors_tensor(self->file, at);
}
