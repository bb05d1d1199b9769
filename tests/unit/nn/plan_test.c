/* SPDX-License-Identifier: MIT */
/*
 * A training step with modules' ops, lowered and run: the bits of shoal_graph_run, and no call of malloc after the first runs. The
 * matrix products are a BLAS's, which allocates as it likes: they are not in the graph whose calls are counted.
 */
#include "fixture.h"

#include <stdatomic.h>

#include "unit/graph/planning.h"

/* malloc counted ------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_COUNT 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_COUNT 0
#endif
#endif
#ifndef HAS_COUNT
#define HAS_COUNT 1
#endif

static _Atomic bool is_counting;
static _Atomic size_t n_calls;

#if HAS_COUNT
void *__libc_malloc(size_t bytes);                     /* NOLINT */
void *__libc_calloc(size_t count, size_t bytes);       /* NOLINT */
void *__libc_realloc(void *memory, size_t bytes);      /* NOLINT */
void *__libc_memalign(size_t alignment, size_t bytes); /* NOLINT */

static void count_call(void)
{
    if (atomic_load_explicit(&is_counting, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    }
}

void *malloc(size_t bytes)
{
    count_call();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_call();
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count_call();
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_call();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    count_call();
    *memory_out = __libc_memalign(alignment, bytes);
    return *memory_out ? 0 : 12;
}
#endif

/* Steps ---------------------------------------------------------------------------------------------------- */

/* bf16 goes through scratch memory; so do transposed operands of ops that are no products. */
static const char elements_text[] = "graph {\n"
                                    "group @g = [[$RANKS]]\n"
                                    "%x = placeholder : bf16[6, 8]\n"
                                    "%w = placeholder : bf16[8]\n"
                                    "%shard = placeholder : f32[4, 8]\n"
                                    "%y = placeholder : f32[6, 8]\n"
                                    "%start = all_gather_into_tensor(%shard, @g)\n"
                                    "%n = nn.layer_norm(%x, %w, %w, 1e-5)\n"
                                    "%h = nn.gelu(%n)\n"
                                    "%full = wait_tensor(%start)\n"
                                    "%m = mean(%full, [0], true)\n"
                                    "%t = transpose(%y, 0, 1)\n"
                                    "%tt = nn.tanh(%t)\n"
                                    "%back = nn.tanh_backward(%t, %tt)\n"
                                    "%gw = nn.layer_norm_weight_backward(%h, %x, 1e-5)\n"
                                    "%s = nn.softmax(%h, 0)\n"
                                    "%sg = nn.softmax_backward(%h, %s, 0)\n"
                                    "%ls = nn.log_softmax(%sg, 1)\n"
                                    "%rn = nn.rms_norm(%ls, %w, 1e-5)\n"
                                    "%rw = nn.rms_norm_weight_backward(%rn, %x, 1e-5)\n"
                                    "%r3 = reshape(%rn, [3, 2, 8])\n"
                                    "%ro = nn.rotary(%r3, 3, 100.0)\n"
                                    "%mx = nn.max(%ro, 1)\n"
                                    "%at = nn.argmax(%y, 0)\n"
                                    "%ce = nn.cross_entropy(%t, %at, -100, 0.1)\n"
                                    "%one = nn.exp(%ce)\n"
                                    "%cg = nn.cross_entropy_backward(%one, %t, %at, -100, 0.1)\n"
                                    "%is = nn.index_select(%cg, 0, %at)\n"
                                    "%f = to_dtype(%h, f32)\n"
                                    "%z = mul(%f, %m)\n"
                                    "%c = chunk_cat([%z, %y], 2, f32)\n"
                                    "%loss = nn.mse(%z, %y)\n"
                                    "%g = all_reduce(%gw, \"avg\", @g)\n"
                                    "%gz = all_reduce(%z, \"sum\", @g)\n"
                                    "%gr = wait_tensor(%g)\n"
                                    "%gzr = wait_tensor(%gz)\n"
                                    "return [%loss, %gr, %gzr, %back, %c, %mx, %rw, %is]\n}\n";
#define ELEMENTS_OUTPUTS 8

static const char products_text[] = "graph {\n"
                                    "group @g = [[$RANKS]]\n"
                                    "%x = placeholder : f32[6, 8]\n"
                                    "%w = placeholder : f32[5, 8]\n"
                                    "%b = placeholder : f32[5]\n"
                                    "%h = nn.linear(%x, %w, %b)\n"
                                    "%r = nn.relu(%h)\n"
                                    "%t = transpose(%r, 0, 1)\n"
                                    "%gw = nn.matmul(%t, %x)\n"
                                    "%gb = sum(%r, [0])\n"
                                    "%p = nn.projection(%r, %w, none)\n"
                                    "%p3 = reshape(%p, [3, 2, 8])\n"
                                    "%pt = transpose(%p3, 1, 2)\n"
                                    "%bm = nn.bmm(%pt, %p3)\n"
                                    "%q = reshape(%bm, [2, 12, 2, 4])\n"
                                    "%a = nn.attention(%q, %q, %q)\n"
                                    "%ao = getitem(%a, 0)\n"
                                    "%al = getitem(%a, 1)\n"
                                    "%ag = nn.attention_backward(%ao, %ao, %al, %q, %q, %q)\n"
                                    "%agk = getitem(%ag, 1)\n"
                                    "%l = all_reduce_coalesced([%gw, %gb], \"avg\", @g)\n"
                                    "%wl = wait_tensors(%l)\n"
                                    "return [%r, %wl, %bm, %ao, %agk]\n}\n";

static void compare_steps(struct rank *self)
{
    begin_nn();
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    plan_compare(world, elements_text, ELEMENTS_OUTPUTS);
    plan_compare(world, products_text, 6);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(steps_on_one_rank, 1)
{
    compare_steps(self);
}

TEST_PROCESSES(steps_on_two_ranks, 2)
{
    compare_steps(self);
}

TEST_PROCESSES(runs_call_no_malloc, 2)
{
    if (!HAS_COUNT) {
        test_skip("a sanitizer has malloc");
        return;
    }
    begin_nn();
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(elements_text, self->n_ranks);
    shoal_plan *plan = NULL;
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    size_t n_inputs = run_inputs(graph, self->rank, inputs);
    for (int round = 0; round < 50; round++) {
        if (round == 5) {
            test_barrier(self);
            atomic_store(&is_counting, true);
        }
        shoal_tensor *outputs[ELEMENTS_OUTPUTS] = {NULL};
        CHECK_OK(shoal_plan_run(plan, inputs, n_inputs, outputs, ELEMENTS_OUTPUTS));
        run_unref(outputs, ELEMENTS_OUTPUTS);
    }
    atomic_store(&is_counting, false);
    CHECK_INT(atomic_load(&n_calls), 0);
    run_unref(inputs, n_inputs);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}
