/* SPDX-License-Identifier: MIT */
/*
 * Every form of every collective, dtype, operator, count, number of ranks, alignment, in place or not, kind of memory
 * and algorithm, against the scalar oracle of collectives/fold.h, bit for bit.
 *
 * `make test` runs a seeded sample. `make sweep` runs everything (SHOAL_TEST_SWEEP=whole): ranks as processes under
 * the address sanitizer, as threads under the thread sanitizer. SHOAL_TEST_SWEEP_OP and SHOAL_TEST_SWEEP_DTYPE, each a
 * name of collectives/sweep_ops.def or src/tensor/dtypes.def, restrict the whole to a part. With
 * SHOAL_TEST_SWEEP_TURNS=1 every op, dtype, operator and count comes once, and the variants (alignments, in place or
 * not) take turns.
 *
 * On a device (SHOAL_TEST_DEVICE) all calls are by descriptor, and the choice of the tables carries them.
 */
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "conformance/collectives/sweep.h"
#include "harness/harness.h"
#include "harness/test.h"

enum {
    REDUCE_COUNT = SHOAL_PREMUL_SUM + 1,
    NO_REDUCE = -1,
    /* What the sample draws for each dtype and operator, as threads and again, others, as processes. */
    SAMPLE_CASES = 2,
    /* The sample's largest counts, with few ranks and with many. */
    SAMPLE_MAX_COUNT = 65537,
    SAMPLE_MAX_COUNT_CROWDED = 4097,
    CROWD = 5,
    WHOLE_SECONDS = 6 * 3600
};

/* Which cases of a dtype and operator. */
struct stage {
    shoal_dtype dtype;
    int reduce; /* NO_REDUCE: those that move only */
};

static size_t counts[64]; /* sorted, each once */
static size_t n_counts;

/* {0,1,2,3,7,8,9,63,64,65,1000} and 2^k - 1, 2^k + 1. Before main, and so before there are ranks. */
__attribute__((constructor)) static void list_counts(void)
{
    static const size_t listed[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000};
    static bool is_in[SWEEP_MAX_COUNT + 1];
    for (size_t i = 0; i < sizeof listed / sizeof listed[0]; i++) {
        is_in[listed[i]] = true;
    }
    for (int k = 0; k <= 16; k++) {
        is_in[((size_t)1 << k) - 1] = true;
        is_in[((size_t)1 << k) + 1] = true;
    }
    for (size_t count = 0; count <= SWEEP_MAX_COUNT; count++) {
        if (is_in[count]) {
            counts[n_counts++] = count;
        }
    }
}

/* Opening and closing -------------------------------------------------------------------------------------- */

static size_t arena_bytes(size_t max_count, int n_ranks)
{
    struct sweep_case largest = {.count = max_count};
    return sweep_elements(&largest, n_ranks) * 16 + 8 * SWEEP_GUARD + 2 * SWEEP_MAX_SHIFT;
}

static struct sweep_arena make_arena(void *memory, size_t bytes)
{
    struct sweep_arena arena = {.to_device = 0};
    arena.buffers[0] = test_reach(test_device(), address_of(memory), 2 * bytes);
    arena.buffers[1] = arena.buffers[0] + bytes;
    arena.to_device = (unsigned char *)memory - arena.buffers[0];
    return arena;
}

/* Both buffers are one tensor. */
static bool open_device_memory(struct sweep *sweep, size_t bytes)
{
    const int64_t shape = (int64_t)(2 * bytes);
    struct address address;
    if (!CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    sweep->device_memory = shoal_tensor_ref(shoal_empty_on(&shape, 1, SHOAL_U8, test_device()));
    if (!CHECK_OK(shoal_scope_end()) || !CHECK_OK(tensor_address(sweep->device_memory, &address))) {
        return false;
    }
    sweep->heap = make_arena(address_pointer(address), bytes);
    return true;
}

static bool open_sweep(struct sweep *sweep, shoal_world **world_out, size_t max_count,
                       unsigned char **scratch_out)
{
    struct rank *self = sweep->self;
    *world_out = rank_world_open(self, 0);
    if (!*world_out) {
        return false;
    }
    sweep->group = shoal_world_group(*world_out);
    size_t bytes = (arena_bytes(max_count, self->n_ranks) + 63) & ~(size_t)63;
    /* Without it, where the transport has none, everything lies on the heap. */
    shoal_status status =
        shoal_symmetric_create_on(sweep->group, 2 * bytes, test_device(), &sweep->symmetric);
    if (status != SHOAL_ERR_UNSUPPORTED && !CHECK_OK(status)) {
        return false;
    }
    if (sweep->symmetric) {
        sweep->block = make_arena(shoal_symmetric_data(sweep->symmetric), bytes);
    }
    *scratch_out = aligned_alloc(64, bytes);
    if (test_device() != SHOAL_CPU) {
        return open_device_memory(sweep, bytes) && *scratch_out;
    }
    sweep->heap.buffers[0] = aligned_alloc(64, bytes);
    sweep->heap.buffers[1] = aligned_alloc(64, bytes);
    return sweep->heap.buffers[0] && sweep->heap.buffers[1] && *scratch_out;
}

static void close_sweep(struct sweep *sweep, shoal_world *world, unsigned char *scratch)
{
    free(scratch);
    if (sweep->device_memory) {
        shoal_tensor_unref(sweep->device_memory);
    } else {
        free(sweep->heap.buffers[0]);
        free(sweep->heap.buffers[1]);
    }
    shoal_symmetric_free(sweep->symmetric);
    CHECK_OK(shoal_world_close(world));
}

/* Stages --------------------------------------------------------------------------------------------------- */

/* All ranks fill their pools and fold their share. */
static void prepare_stage(struct sweep *sweep, const struct stage *stage, size_t n_elements)
{
    struct rank *self = sweep->self;
    struct test_random random = test_random_begin((uint64_t)stage->dtype * 100 + (uint64_t)self->rank);
    test_barrier(self);
    sweep_fill_pool(&random, stage->dtype, sweep_pools[self->rank], n_elements);
    test_barrier(self);
    if (stage->reduce == NO_REDUCE) {
        return;
    }
    struct fold fold = {.reduce = (shoal_reduce_op)stage->reduce,
                        .dtype = stage->dtype,
                        .factor = 1.0 / 3,
                        .n_ranks = self->n_ranks};
    for (int r = 0; r < self->n_ranks; r++) {
        fold.sources[r] = sweep_pools[r];
    }
    size_t from = n_elements * (size_t)self->rank / (size_t)self->n_ranks;
    size_t to = n_elements * ((size_t)self->rank + 1) / (size_t)self->n_ranks;
    fold_elements(&fold, from, to, sweep_folded);
    test_barrier(self);
}

/* Everybody is between two collectives. */
static void choose_algorithm(struct sweep *sweep, enum shm_algorithm algorithm)
{
    test_barrier(sweep->self);
    algorithm_override_all(&shm_algorithms, (int)algorithm);
    test_barrier(sweep->self);
}

static bool is_in_stage(const struct stage *stage, enum sweep_op op)
{
    return sweep_rows[op].reduces == (stage->reduce != NO_REDUCE);
}

static struct sweep_case case_of(const struct stage *stage, enum sweep_op op, size_t count)
{
    return (struct sweep_case){.op = op,
                               .dtype = stage->dtype,
                               .reduce =
                                   stage->reduce == NO_REDUCE ? SHOAL_SUM : (shoal_reduce_op)stage->reduce,
                               .factor = 1.0 / 3,
                               .count = count};
}

/* The sample ----------------------------------------------------------------------------------------------- */

static struct sweep_case draw_case(struct test_random *random, const struct stage *stage, int n_ranks,
                                   size_t max_count)
{
    enum sweep_op op;
    do {
        op = (enum sweep_op)test_random_below(random, SWEEP_OP_COUNT);
    } while (!is_in_stage(stage, op));
    size_t count;
    do {
        count = counts[test_random_below(random, n_counts)];
    } while (count > max_count);
    struct sweep_case one = case_of(stage, op, count);
    one.send_shift = test_random_below(random, 2) ? test_random_below(random, SWEEP_MAX_SHIFT - 16) : 0;
    one.recv_shift = test_random_below(random, 2) ? test_random_below(random, SWEEP_MAX_SHIFT - 16) : 0;
    one.is_skewed = test_random_below(random, 4) == 0;
    one.is_in_place = test_random_below(random, 2) == 0;
    one.is_started = test_random_below(random, 2) == 0;
    one.root = (int)test_random_below(random, (uint64_t)n_ranks);
    one.memory = (enum sweep_memory)test_random_below(random, SWEEP_MEMORY_COUNT);
    return one;
}

static void sample_stage(struct sweep *sweep, const struct stage *stage, struct test_random *random,
                         size_t max_count, unsigned char *scratch)
{
    struct sweep_case cases[SAMPLE_CASES];
    size_t n_elements = 0;
    for (int i = 0; i < SAMPLE_CASES; i++) {
        cases[i] = draw_case(random, stage, sweep->self->n_ranks, max_count);
        size_t needed = sweep_elements(&cases[i], sweep->self->n_ranks);
        n_elements = needed > n_elements ? needed : n_elements;
    }
    prepare_stage(sweep, stage, n_elements);
    uint64_t algorithm = test_random_below(random, SHM_ALGORITHM_COUNT + 1);
    bool is_refused = test_device() != SHOAL_CPU && algorithm == SHM_ALGORITHM_ONESHOT;
    choose_algorithm(sweep, is_refused ? SHM_ALGORITHM_COUNT : (enum shm_algorithm)algorithm);
    for (int i = 0; i < SAMPLE_CASES && sweep_run_case(sweep, &cases[i], scratch); i++) {
    }
}

/* The whole ------------------------------------------------------------------------------------------------ */

static bool is_wanted(const char *variable, const char *name)
{
    const char *wanted = getenv(variable);
    return !wanted || *wanted == '\0' || strcmp(wanted, name) == 0;
}

/*
 * Whether an algorithm makes a difference to a case: no slot holds more than SHM_SLOT_BYTES, and only `direct` minds
 * where memory lies. SHM_ALGORITHM_COUNT is the choice of the tables. Transports without symmetric memory do not look
 * at the algorithms of shm.
 */
static bool is_algorithm_for(const struct sweep *sweep, enum shm_algorithm algorithm,
                             const struct sweep_case *one)
{
    size_t bytes = one->count * dtype_bytes(one->dtype);
    if (!sweep->symmetric && algorithm != SHM_ALGORITHM_COUNT) {
        return false;
    }
    switch ((int)algorithm) {
    case SHM_ALGORITHM_ONESHOT:
        return bytes <= SHM_SLOT_BYTES && one->memory == SWEEP_HEAP && test_device() == SHOAL_CPU;
    case SHM_ALGORITHM_DIRECT:
        return one->memory != SWEEP_HEAP;
    case SHM_ALGORITHM_LOCAL:
    case SHM_ALGORITHM_WINDOW:
        return false;
    case SHM_ALGORITHM_SINGLE:
        return one->memory == SWEEP_HEAP && test_device() == SHOAL_CPU;
    default:
        return one->memory == SWEEP_HEAP;
    }
}

enum {
    N_SHIFTS = 4,
    N_VARIANTS = N_SHIFTS * 2 * SWEEP_MEMORY_COUNT, /* alignments, in place or not, kinds of memory */
    /* Larger counts take nearly all of the time. Under the thread sanitizer, which makes days of it, their variants take
       turns over operators, dtypes and ranks. */
    MAX_FULL_COUNT = HARNESS_HAS_TSAN ? 1025 : SWEEP_MAX_COUNT
};

/* False when the op or the algorithm has no such variant. Blocking calls and roots take turns. */
static bool choose_variant(const struct sweep *sweep, struct sweep_case *one, enum shm_algorithm algorithm,
                           size_t variant)
{
    size_t element_bytes = dtype_bytes(one->dtype);
    const size_t shifts[N_SHIFTS][2] = {{0, 0}, {1, 0}, {0, 33}, {element_bytes, 2 * element_bytes}};
    enum sweep_in_place in_place = sweep_rows[one->op].in_place;
    one->send_shift = shifts[variant % N_SHIFTS][0];
    one->recv_shift = shifts[variant % N_SHIFTS][1];
    one->is_skewed = variant % N_SHIFTS == N_SHIFTS - 1;
    one->is_in_place = variant / N_SHIFTS % 2 == 1;
    one->memory = (enum sweep_memory)(variant / N_SHIFTS / 2);
    one->is_started = sweep->n_cases % 2 == 1;
    one->root = (int)(sweep->n_cases / 2 % (size_t)sweep->self->n_ranks);
    bool is_possible = !one->is_in_place || (in_place != SWEEP_NEVER && in_place != SWEEP_ALWAYS);
    return is_possible && is_algorithm_for(sweep, algorithm, one);
}

/* Of the variants that a case has, the `chosen`-th; false: there are fewer. */
static bool find_variant(const struct sweep *sweep, struct sweep_case *one, enum shm_algorithm algorithm,
                         size_t chosen)
{
    for (size_t i = 0; i < N_VARIANTS; i++) {
        if (choose_variant(sweep, one, algorithm, i) && chosen-- == 0) {
            return true;
        }
    }
    return false;
}

/* Whose turn it is: any order that has nothing to do with that of roots and of blocking calls. */
static size_t choose_turn(const struct sweep *sweep, struct sweep_case one, enum shm_algorithm algorithm)
{
    size_t n_possible = 0;
    while (find_variant(sweep, &one, algorithm, n_possible)) {
        n_possible++;
    }
    uint64_t mixed = (uint64_t)sweep->n_cases * UINT64_C(0x9e3779b97f4a7c15);
    return n_possible > 0 ? (size_t)((mixed >> 32) % n_possible) : 0;
}

static bool run_variants(struct sweep *sweep, struct sweep_case one, enum shm_algorithm algorithm,
                         unsigned char *scratch)
{
    bool is_full = one.count <= MAX_FULL_COUNT && !getenv("SHOAL_TEST_SWEEP_TURNS");
    if (!is_full) {
        bool is_there = find_variant(sweep, &one, algorithm, choose_turn(sweep, one, algorithm));
        return !is_there || sweep_run_case(sweep, &one, scratch);
    }
    for (size_t i = 0; i < N_VARIANTS; i++) {
        if (choose_variant(sweep, &one, algorithm, i) && !sweep_run_case(sweep, &one, scratch)) {
            return false;
        }
    }
    return true;
}

static void run_stage(struct sweep *sweep, const struct stage *stage, unsigned char *scratch)
{
    struct sweep_case largest = case_of(stage, SWEEP_ALL_REDUCE_LIST, SWEEP_MAX_COUNT);
    if (!is_wanted("SHOAL_TEST_SWEEP_DTYPE", shoal_dtype_name(stage->dtype))) {
        return;
    }
    prepare_stage(sweep, stage, sweep_elements(&largest, sweep->self->n_ranks));
    for (int algorithm = 0; algorithm <= SHM_ALGORITHM_COUNT; algorithm++) {
        choose_algorithm(sweep, (enum shm_algorithm)algorithm);
        for (int op = 0; op < SWEEP_OP_COUNT; op++) {
            if (!is_in_stage(stage, (enum sweep_op)op) ||
                !is_wanted("SHOAL_TEST_SWEEP_OP", sweep_rows[op].name)) {
                continue;
            }
            for (size_t i = 0; i < n_counts; i++) {
                struct sweep_case one = case_of(stage, (enum sweep_op)op, counts[i]);
                if (!run_variants(sweep, one, (enum shm_algorithm)algorithm, scratch)) {
                    return;
                }
            }
        }
    }
}

/* Both ----------------------------------------------------------------------------------------------------- */

static void sweep_all(struct rank *self)
{
    bool is_whole = test_is_whole();
    test_deadline(is_whole ? WHOLE_SECONDS : 60);
    struct sweep sweep = {.self = self};
    shoal_world *world = NULL;
    unsigned char *scratch = NULL;
    size_t max_sampled = self->n_ranks < CROWD ? SAMPLE_MAX_COUNT : SAMPLE_MAX_COUNT_CROWDED;
    struct test_random random = test_random_begin((uint64_t)(2 * self->n_ranks + self->is_process));
    REQUIRE(open_sweep(&sweep, &world, is_whole ? SWEEP_MAX_COUNT : max_sampled, &scratch));
    for (int dtype = 1; dtype < DTYPE_COUNT && !test_has_failed(); dtype++) {
        for (int reduce = NO_REDUCE; reduce < REDUCE_COUNT && !test_has_failed(); reduce++) {
            struct stage stage = {.dtype = (shoal_dtype)dtype, .reduce = reduce};
            if (reduce != NO_REDUCE && !fold_has_meaning((shoal_reduce_op)reduce, stage.dtype)) {
                continue;
            }
            if (is_whole) {
                run_stage(&sweep, &stage, scratch);
            } else {
                sample_stage(&sweep, &stage, &random, max_sampled, scratch);
            }
        }
        if (is_whole && self->rank == 0) {
            harness_print("%d ranks: %s done, %zu cases so far\n", self->n_ranks,
                          shoal_dtype_name((shoal_dtype)dtype), sweep.n_cases);
        }
    }
    choose_algorithm(&sweep, SHM_ALGORITHM_COUNT);
    close_sweep(&sweep, world, scratch);
}

#define SWEEP(n)             \
    TEST_RANKS(ranks_##n, n) \
    {                        \
        sweep_all(self);     \
    }
SWEEP(1)
SWEEP(2)
SWEEP(3)
SWEEP(4)
SWEEP(5)
SWEEP(6)
SWEEP(7)
SWEEP(8)
SWEEP(9)

/* The oracle's fast rounding against the slow one of ops/scalar.h. */
TEST(oracle_rounds_halves_like_the_definition)
{
    for (int i = 0; i < 2 && !test_has_failed(); i++) {
        shoal_dtype dtype = i == 0 ? SHOAL_F16 : SHOAL_BF16;
        struct test_random random = test_random_begin(5);
        for (int trial = 0; trial < 20000; trial++) {
            uint32_t bits = (uint32_t)test_random_u64(&random);
            if (trial % 4 == 0) { /* near the middle between two numbers */
                bits = (bits & 0xffff0000u) | (0x7fff + (uint32_t)test_random_below(&random, 3));
            } else if (trial % 4 == 1) { /* where f16 is subnormal, and where it ends */
                bits = (bits & 0x807fffffu) | (uint32_t)(100 + test_random_below(&random, 44)) << 23;
            }
            float value;
            memcpy(&value, &bits, sizeof value);
            uint16_t expected = encode_half(dtype, round_to(dtype, (double)value));
            uint16_t actual = fold_encode_half(dtype, value);
            bool is_nan = isnan(value);
            if (!is_nan && actual != expected) {
                test_failed(__FILE__, __LINE__, "%a as %s is %04x, expected %04x", (double)value,
                            shoal_dtype_name(dtype), actual, expected);
                return;
            }
        }
    }
}
