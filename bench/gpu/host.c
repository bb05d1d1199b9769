/* SPDX-License-Identifier: MIT */
/*
 * What fully sharded training on a GPU costs the host: a world of one rank, explicit calls (shoal/fsdp.h), units so small that
 * the GPU is never waited for.
 *
 *   gpu_host [--units 64] [--steps 100] [--json FILE]    the host's time of a unit, forward and backward
 *   gpu_host --load yes [--json FILE]                    how long the kernels of a first step take to load
 *
 * A unit has one tensor of 64 x 64, or twelve as a layer of GPT-2 has. Its gradients are stored (shoal_fsdp_grad_to_store) or
 * added (shoal_fsdp_grad, which clears them). shoal_fsdp_zero_grad is called between steps, and its time does not count, or
 * never; then gradients are added to those of the steps before. A time is that of all calls of a step by the number of units,
 * the median over steps: of the thread, as the kernel counts it, and by the clock.
 *
 * With the driver that counts (counted.c) it says how often a unit calls the driver, and --load says how long images took to
 * load. The times of that run are no results.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "kernel/table.h"
#include "shoal/dlpack.h"
#include "shoal/shoal.h"

enum {
    SIZE = 64,
    TENSORS_MOST = 12,
    UNITS_MOST = 1024,
    STEPS_MOST = 10000,
    WARMUPS = 5
};

static struct {
    const char *json;
    int units;
    int steps;
    bool loads;
} request = {.units = 64, .steps = 100};

static shoal_device device;
static shoal_world *world;
static FILE *json;

/* Contexts ----------------------------------------------------------------------------------------------- */

struct context {
    shoal_fsdp *fsdp;
    int n_units;
    int n_tensors; /* of a unit */
};

#define NEED(call) gpu_need(call, #call)

static struct context make_context(int n_units, int n_tensors, int64_t size, shoal_dtype stored,
                                   shoal_dtype computed)
{
    struct context context = {.n_units = n_units, .n_tensors = n_tensors};
    shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
    options.device = device;
    options.param_dtype = computed;
    options.reduce_dtype = stored;
    NEED(shoal_fsdp_create(shoal_world_group(world), &options, &context.fsdp));
    for (int unit = 0; unit < n_units; unit++) {
        for (int i = 0; i < n_tensors; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "%d.%d", unit, i);
            NEED(shoal_fsdp_add_param(context.fsdp, unit, name, stored, i % 3 == 0 ? 2 : 1,
                                      (int64_t[]){size, size}, NULL, NULL));
        }
    }
    return context;
}

static void need_address(const void *address)
{
    if (!address) {
        gpu_end("%s", shoal_error_text());
    }
}

static void forward(const struct context *context)
{
    for (int unit = 0; unit < context->n_units; unit++) {
        NEED(shoal_fsdp_pre_forward(context->fsdp, unit));
        for (int i = 0; i < context->n_tensors; i++) {
            need_address(shoal_fsdp_full_param(context->fsdp, unit * context->n_tensors + i));
        }
        NEED(shoal_fsdp_post_forward(context->fsdp, unit));
    }
}

static void backward(const struct context *context, bool stores)
{
    for (int unit = context->n_units - 1; unit >= 0; unit--) {
        NEED(shoal_fsdp_pre_backward(context->fsdp, unit));
        for (int i = 0; i < context->n_tensors; i++) {
            const int id = unit * context->n_tensors + i;
            bool has_values;
            need_address(shoal_fsdp_full_param(context->fsdp, id));
            need_address(stores ? shoal_fsdp_grad_to_store(context->fsdp, id, &has_values)
                                : shoal_fsdp_grad(context->fsdp, id));
        }
        NEED(shoal_fsdp_post_backward(context->fsdp, unit));
    }
    NEED(shoal_fsdp_end_backward(context->fsdp));
}

/* Host time ---------------------------------------------------------------------------------------------- */

static double now_us(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static const struct host_row {
    const char *name;
    shoal_dtype stored;
    shoal_dtype computed;
    double bound_us;   /* of one row for each bar; 0: none */
    int most_launches; /* likewise */
} host_rows[] = {
    {"equal dtypes", SHOAL_F32, SHOAL_F32, 10, 0},
    {"f32 shards, bf16 compute", SHOAL_F32, SHOAL_BF16, 25, 3},
};

struct host_case {
    const struct host_row *row;
    int n_tensors;
    bool stores;
    bool zeroes; /* between steps */
};

struct host_result {
    double cpu_us;
    double wall_us;
    bool is_counted;
    double n_launches; /* of a unit */
    double n_copies;
    double n_allocations;
    double n_events;
};

static void take_counts(struct host_result *result, double n_units)
{
    struct counted *counted = gpu_counted();
    result->is_counted = counted != NULL;
    if (counted) {
        result->n_launches = (double)atomic_exchange(&counted->n_launches, 0) / n_units;
        result->n_copies = (double)atomic_exchange(&counted->n_copies, 0) / n_units;
        result->n_allocations = (double)atomic_exchange(&counted->n_allocations, 0) / n_units;
        result->n_events = (double)atomic_exchange(&counted->n_events, 0) / n_units;
    }
}

static void run_steps(const struct context *context, const struct host_case *one, struct host_result *result)
{
    static double cpu[STEPS_MOST];
    static double wall[STEPS_MOST];
    struct host_result between;
    for (int step = -WARMUPS; step < request.steps; step++) {
        take_counts(&between, 1);
        double wall_us = now_us(CLOCK_MONOTONIC);
        double cpu_us = now_us(CLOCK_THREAD_CPUTIME_ID);
        forward(context);
        backward(context, one->stores);
        cpu_us = now_us(CLOCK_THREAD_CPUTIME_ID) - cpu_us;
        wall_us = now_us(CLOCK_MONOTONIC) - wall_us;
        take_counts(result, context->n_units);
        if (step >= 0) {
            cpu[step] = cpu_us / context->n_units;
            wall[step] = wall_us / context->n_units;
        }
        NEED(shoal_device_synchronize(device));
        if (one->zeroes) {
            NEED(shoal_fsdp_zero_grad(context->fsdp));
        }
    }
    result->cpu_us = gpu_median(cpu, (size_t)request.steps);
    result->wall_us = gpu_median(wall, (size_t)request.steps);
}

static const char *judge(bool is_judged, bool is_met)
{
    return !is_judged ? "-" : is_met ? "met" : "missed";
}

static void print(const struct host_case *one, const struct host_result *result)
{
    /* The bars are about layers, whose gradients are stored where zero_grad has left room for them. */
    const bool is_judged = one->n_tensors == TENSORS_MOST && one->stores && one->zeroes;
    const char *time = judge(is_judged && !result->is_counted, result->cpu_us <= one->row->bound_us);
    const char *launches =
        judge(is_judged && result->is_counted, result->n_launches <= one->row->most_launches);
    const char *gradients = one->stores ? "stored" : "added";
    const char *zeroes = one->zeroes ? "outside" : "never";
    printf("%-26s %7d %-9s %-9s %9.2f %9.2f %8s", one->row->name, one->n_tensors, gradients, zeroes,
           result->cpu_us, result->wall_us, time);
    if (result->is_counted) {
        printf(" %9.2f %7.2f %7.2f %7.2f %8s", result->n_launches, result->n_copies, result->n_allocations,
               result->n_events, launches);
    }
    printf("\n");
    (void)fflush(stdout);
    if (json) {
        (void)fprintf(
            json,
            "{\"bench\": \"gpu_host\", \"case\": \"%s\", \"tensors\": %d, \"gradients\": \"%s\", "
            "\"zero_grad\": \"%s\", \"units\": %d, \"steps\": %d, \"cpu_us\": %.3f, \"wall_us\": %.3f, "
            "\"counted\": %s, \"launches\": %.3f, \"copies\": %.3f, \"allocations\": %.3f, \"events\": %.3f, "
            "\"bound_us\": %.0f, \"most_launches\": %d, \"time\": \"%s\", \"verdict\": \"%s\"}\n",
            one->row->name, one->n_tensors, gradients, zeroes, request.units, request.steps, result->cpu_us,
            result->wall_us, result->is_counted ? "true" : "false", result->n_launches, result->n_copies,
            result->n_allocations, result->n_events, one->row->bound_us, one->row->most_launches, time,
            launches);
    }
}

static void run_case(const struct host_case *one)
{
    struct host_result result = {.cpu_us = 0};
    struct context context =
        make_context(request.units, one->n_tensors, SIZE, one->row->stored, one->row->computed);
    run_steps(&context, one, &result);
    print(one, &result);
    shoal_fsdp_free(context.fsdp);
}

static void run_host(void)
{
    printf("%-26s %7s %-9s %-9s %9s %9s %8s %s\n", "dtypes", "tensors", "gradients", "zero_grad", "cpu us",
           "wall us", "time",
           gpu_counted() ? "launches, copies, allocations, events of a unit; launches" : "");
    for (size_t i = 0; i < 2 * 2 * 2 * sizeof host_rows / sizeof host_rows[0]; i++) {
        const struct host_case one = {.row = &host_rows[i / 8],
                                      .n_tensors = i % 8 < 4 ? TENSORS_MOST : 1,
                                      .stores = i % 4 < 2,
                                      .zeroes = i % 2 == 0};
        run_case(&one);
    }
}

/* Loading ------------------------------------------------------------------------------------------------ */

enum {
    LOAD_UNITS = 2,
    LOAD_SIZE = 256
};

struct load {
    const char *part;
    double first_ms;
    double again_ms; /* 0: it is not done again */
    uint64_t n_images;
    uint64_t n_functions;
    double image_ms; /* of what loads */
    double function_ms;
    double launch_ms;
};

static double take_ms(_Atomic uint64_t *ns)
{
    return (double)atomic_exchange(ns, 0) * 1e-6;
}

static void take_load(struct load *load)
{
    struct counted *counted = gpu_counted();
    if (counted) {
        load->n_images = atomic_exchange(&counted->n_images, 0);
        load->n_functions = atomic_exchange(&counted->n_functions, 0);
        load->image_ms = take_ms(&counted->image_ns);
        load->function_ms = take_ms(&counted->function_ns);
        load->launch_ms = take_ms(&counted->first_launch_ns);
    }
}

static void run_making(struct context *context)
{
    *context = make_context(LOAD_UNITS, TENSORS_MOST, LOAD_SIZE, SHOAL_F32, SHOAL_BF16);
}

static void run_step(struct context *context)
{
    forward(context);
    backward(context, /*stores=*/true);
}

/* What an optimizer with clipping does, as lists. The moments are the same for all tensors: nobody looks at the values. */
static void run_update(struct context *context)
{
    static const struct kernel_rates rates = {.beta1 = 0.9,
                                              .one_minus_beta1 = 0.1,
                                              .beta2 = 0.999,
                                              .one_minus_beta2 = 0.001,
                                              .step = 1e-3,
                                              .root = 1,
                                              .eps = 1};
    struct kernel_piece pieces[LOAD_UNITS * TENSORS_MOST];
    struct kernel_update updates[LOAD_UNITS * TENSORS_MOST];
    const size_t n = (size_t)(context->n_units * context->n_tensors);
    const size_t bytes = sizeof(float) * LOAD_SIZE * LOAD_SIZE;
    struct address bins = gpu_allocate(sizeof(struct kernel_squares));
    struct address moments = gpu_allocate(2 * bytes);
    for (size_t i = 0; i < n; i++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        NEED(shoal_fsdp_update_shard(context->fsdp, (int)i, &shard));
        pieces[i] = (struct kernel_piece){address_of(shard.grad), shard.count, SHOAL_F32};
        updates[i] = (struct kernel_update){.data = address_of(shard.data),
                                            .gradient = address_of(shard.grad),
                                            .moments = {moments, address_add(moments, (ptrdiff_t)bytes)},
                                            .count = shard.count,
                                            .dtype = SHOAL_F32,
                                            .gradient_dtype = SHOAL_F32,
                                            .rates = rates};
    }
    NEED(kernel_of(device)->powers_list(pieces, n, 2, bins));
    NEED(kernel_of(device)->scale_list(pieces, n, 0.5));
    NEED(kernel_of(device)->update(KERNEL_ADAMW, updates, n));
    gpu_free(moments);
    gpu_free(bins);
}

static double time_ms(struct context *context, void (*run)(struct context *context))
{
    double begin_us = now_us(CLOCK_MONOTONIC);
    run(context);
    NEED(shoal_device_synchronize(device));
    return (now_us(CLOCK_MONOTONIC) - begin_us) * 1e-3;
}

static void print_load(const struct load *load)
{
    const double loaded_ms = load->image_ms + load->function_ms + load->launch_ms;
    printf("%-8s first %8.2f ms, again %8.2f; loading %8.2f ms: %d images %8.2f, %d functions %6.2f, their "
           "first launches "
           "%6.2f\n",
           load->part, load->first_ms, load->again_ms, loaded_ms, (int)load->n_images, load->image_ms,
           (int)load->n_functions, load->function_ms, load->launch_ms);
    if (json) {
        (void)fprintf(json,
                      "{\"bench\": \"gpu_load\", \"part\": \"%s\", \"counted\": %s, \"first_ms\": %.3f, "
                      "\"again_ms\": %.3f, \"loading_ms\": %.3f, \"images\": %d, \"image_ms\": %.3f, "
                      "\"functions\": %d, \"function_ms\": %.3f, \"launch_ms\": %.3f}\n",
                      load->part, gpu_counted() ? "true" : "false", load->first_ms, load->again_ms, loaded_ms,
                      (int)load->n_images, load->image_ms, (int)load->n_functions, load->function_ms,
                      load->launch_ms);
    }
}

/* Pools, pinned memory and streams are made before the clock begins: they are not what is measured. */
static void make_ready(void)
{
    static char bytes[1 << 20];
    struct address memory = gpu_allocate((size_t)64 << 20);
    NEED(device_row(device)->copy_in(memory.pointer, bytes, sizeof bytes));
    gpu_download(bytes, memory, sizeof bytes);
    gpu_free(memory);
}

/* A context is made, a step is made, and parameters are updated with clipping: each loads what it is the first to need. */
static void run_load(void)
{
    static const struct {
        const char *part;
        void (*run)(struct context *context);
        bool is_repeated;
    } parts[] = {{"context", run_making, false}, {"step", run_step, true}, {"update", run_update, true}};
    struct context context;
    make_ready();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct load load = {.part = parts[i].part, .first_ms = time_ms(&context, parts[i].run)};
        load.again_ms = parts[i].is_repeated ? time_ms(&context, parts[i].run) : 0;
        take_load(&load);
        print_load(&load);
    }
    shoal_fsdp_free(context.fsdp);
}

/* The program -------------------------------------------------------------------------------------------- */

static void read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && strcmp(argv[i], "--units") == 0) {
            request.units = (int)strtol(value, NULL, 10);
        } else if (value && strcmp(argv[i], "--steps") == 0) {
            request.steps = (int)strtol(value, NULL, 10);
        } else if (value && strcmp(argv[i], "--json") == 0) {
            request.json = value;
        } else if (value && strcmp(argv[i], "--load") == 0) {
            request.loads = strcmp(value, "yes") == 0;
        } else {
            gpu_end("usage: gpu_host [--units 64] [--steps 100] [--load yes] [--json FILE]");
        }
    }
    if (request.units < 1 || request.units > UNITS_MOST || request.steps < 1 || request.steps > STEPS_MOST) {
        gpu_end("gpu_host: --units from 1 to %d, --steps from 1 to %d", UNITS_MOST, STEPS_MOST);
    }
}

int main(int argc, char **argv)
{
    read_arguments(argc, argv);
    json = request.json ? fopen(request.json, "w") : NULL;
    if (request.json && !json) {
        gpu_end("%s cannot be written", request.json);
    }
    double begin_us = now_us(CLOCK_MONOTONIC);
    device = gpu_open();
    if (request.loads) {
        printf("%-8s %.1f ms\n", "device", (now_us(CLOCK_MONOTONIC) - begin_us) * 1e-3);
    }
    NEED(shoal_world_open(NULL, &world));
    if (request.loads) {
        run_load();
    } else {
        run_host();
    }
    NEED(shoal_world_close(world));
    if (json) {
        (void)fclose(json);
    }
    return 0;
}
