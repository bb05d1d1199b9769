/* SPDX-License-Identifier: MIT */
/*
 * A kernel of the program's own on a GPU, between the explicit calls of FSDP. Every rank has numbers of its own, and the
 * weights become their mean. The forward pass, the gradient and the update are launches of one kernel, which lies in
 * this file as PTX: nothing of CUDA is needed to build this, and only the driver to run it.
 *
 *     shoal run --no-label -n 2 ./18_cuda_kernel
 */
#include <math.h>
#include <shoal/shoal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_WEIGHTS 1000
#define N_STEPS 40
#define SKIPPED 77 /* what tests take for "not here" */

/* The kernel -------------------------------------------------------------------------------------------- */

/*
 *     struct example_add { float *out; const float *a, *b; float factor; int count; };
 *
 *     extern "C" __global__ void example_add(struct example_add of)
 *     {
 *         int at = blockIdx.x * blockDim.x + threadIdx.x;
 *         if (at < of.count) {
 *             of.out[at] = of.a[at] + of.factor * of.b[at];
 *         }
 *     }
 *
 * What clang 14 makes of it for compute capability 8.0 and newer, with -O3 -ffp-contract=off; `nvcc -ptx` does as well.
 */
static const char image[] = ".version 7.4\n"
                            ".target sm_80\n"
                            ".address_size 64\n"
                            ".visible .entry example_add(\n"
                            "    .param .align 8 .b8 example_add_param_0[32]\n"
                            ")\n"
                            "{\n"
                            "    .reg .pred %p<2>;\n"
                            "    .reg .b32 %r<6>;\n"
                            "    .reg .f32 %f<6>;\n"
                            "    .reg .b64 %rd<13>;\n"
                            "    mov.u32 %r2, %ctaid.x;\n"
                            "    mov.u32 %r3, %ntid.x;\n"
                            "    mov.u32 %r4, %tid.x;\n"
                            "    mad.lo.s32 %r1, %r2, %r3, %r4;\n"
                            "    ld.param.u32 %r5, [example_add_param_0+28];\n"
                            "    setp.ge.s32 %p1, %r1, %r5;\n"
                            "    @%p1 bra LBB0_2;\n"
                            "    mov.b64 %rd2, example_add_param_0;\n"
                            "    mov.u64 %rd1, %rd2;\n"
                            "    ld.param.u64 %rd3, [%rd1+8];\n"
                            "    cvta.to.global.u64 %rd4, %rd3;\n"
                            "    mul.wide.s32 %rd5, %r1, 4;\n"
                            "    add.s64 %rd6, %rd4, %rd5;\n"
                            "    ld.global.f32 %f1, [%rd6];\n"
                            "    ld.param.f32 %f2, [%rd1+24];\n"
                            "    ld.param.u64 %rd7, [%rd1+16];\n"
                            "    cvta.to.global.u64 %rd8, %rd7;\n"
                            "    add.s64 %rd9, %rd8, %rd5;\n"
                            "    ld.global.f32 %f3, [%rd9];\n"
                            "    mul.rn.f32 %f4, %f2, %f3;\n"
                            "    add.rn.f32 %f5, %f1, %f4;\n"
                            "    ld.param.u64 %rd10, [%rd1];\n"
                            "    cvta.to.global.u64 %rd11, %rd10;\n"
                            "    add.s64 %rd12, %rd11, %rd5;\n"
                            "    st.global.f32 [%rd12], %f5;\n"
                            "LBB0_2:\n"
                            "    ret;\n"
                            "}\n";

/* The kernel's argument: pointers are addresses of the device. */
struct example_add {
    float *out;
    const float *a, *b;
    float factor;
    int count;
};

/* Behind the library's work so far, and before its later work. Nothing waits. */
static void launch(shoal_cuda_program *program, struct example_add of)
{
    const shoal_cuda_grid grid = {.blocks = {(uint32_t)(of.count + 255) / 256, 1, 1}, .threads = {256, 1, 1}};
    if (of.count > 0) {
        DO(shoal_cuda_launch(program, "example_add", &grid, (void *[]){&of}));
    }
}

/* The program ------------------------------------------------------------------------------------------- */

static float number_of(int rank, int i)
{
    return sinf((float)(i * (rank + 1)));
}

static shoal_tensor *make_numbers(int rank, shoal_device cuda)
{
    static float numbers[N_WEIGHTS];
    for (int i = 0; i < N_WEIGHTS; i++) {
        numbers[i] = number_of(rank, i);
    }
    shoal_tensor *here = shoal_from_memory(numbers, (int64_t[]){N_WEIGHTS}, 1, SHOAL_F32, NULL, NULL, NULL);
    return shoal_to_device(here, cuda);
}

static void train(shoal_fsdp *fsdp, shoal_cuda_program *program, int rank, shoal_device cuda)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    shoal_tensor *error = shoal_empty_on((int64_t[]){N_WEIGHTS}, 1, SHOAL_F32, cuda);
    const void *numbers = NULL;
    void *errors = NULL;
    DO(shoal_device_data(make_numbers(rank, cuda), &numbers));
    for (int step = 1; step <= N_STEPS; step++) {
        DO(shoal_device_mutable_data(error, &errors));
        DO(shoal_fsdp_pre_forward(fsdp, 0));
        launch(program,
               (struct example_add){errors, shoal_fsdp_full_param(fsdp, 0), numbers, -1.0F, N_WEIGHTS});
        DO(shoal_fsdp_post_forward(fsdp, 0));
        DO(shoal_fsdp_pre_backward(fsdp, 0));
        float *gradient = shoal_fsdp_grad(fsdp, 0); /* all zeros */
        launch(program, (struct example_add){gradient, gradient, errors, 1.0F, N_WEIGHTS});
        DO(shoal_fsdp_post_backward(fsdp, 0)); /* starts to average the gradients */
        DO(shoal_fsdp_end_backward(fsdp));
        DO(shoal_fsdp_update_shard(fsdp, 0, &shard));
        launch(program, (struct example_add){shard.data, shard.data, shard.grad, -0.25F, (int)shard.count});
        DO(shoal_fsdp_zero_grad(fsdp));
        if (step % 10 == 0 &&
            rank == 0) { /* ops of the library, and the first thing that the host waits for */
            float loss;
            DO(shoal_scope_begin());
            DO(shoal_read(shoal_mean(shoal_mul(error, error), NULL, 0, false), &loss, sizeof loss));
            printf("step %d: loss of rank 0 %.4f\n", step, (double)loss);
            DO(shoal_scope_end());
        }
    }
}

/* How far the weights are from the mean of all ranks' numbers. */
static float find_largest_error(shoal_fsdp *fsdp, int n_ranks)
{
    static float weights[N_WEIGHTS]; /* whole values lie in host memory */
    float largest = 0;
    DO(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, 0), weights, SHOAL_FSDP_ALL_RANKS));
    for (int i = 0; i < N_WEIGHTS; i++) {
        float sum = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            sum += number_of(rank, i);
        }
        largest = fmaxf(largest, fabsf(weights[i] - sum / (float)n_ranks));
    }
    return largest;
}

int main(void)
{
    shoal_world *world;
    shoal_device cuda;
    shoal_cuda_program *program;
    shoal_fsdp *fsdp;
    DO(shoal_world_open(NULL, &world));
    int rank = shoal_world_rank(world);
    if (shoal_device_find("cuda", &cuda) != SHOAL_OK) {
        printf("This example needs a GPU of NVIDIA: %s\n", shoal_error_text());
        DO(shoal_world_close(world));
        return SKIPPED;
    }
    DO(shoal_scope_begin());
    DO(shoal_cuda_load(image, &program));
    shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
    options.device = cuda;
    DO(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    DO(shoal_fsdp_add_param(fsdp, 0, "weights", SHOAL_F32, 1, (int64_t[]){N_WEIGHTS}, NULL, NULL));
    train(fsdp, program, rank, cuda);
    float error = find_largest_error(fsdp, shoal_world_n_ranks(world));
    if (rank == 0) {
        printf("the weights %s the mean of the ranks' numbers\n", error < 1e-4F ? "are" : "are not");
    }
    shoal_fsdp_free(fsdp);
    shoal_cuda_unload(program);
    DO(shoal_scope_end());
    DO(shoal_world_close(world));
    return error < 1e-4F ? 0 : 1;
}
