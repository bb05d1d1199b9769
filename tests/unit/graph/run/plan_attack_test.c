/* SPDX-License-Identifier: MIT */
/* What ranks do wrong to each other with plans: options of one rank alone, deaths and failures in the middle, ends out of order. */
#include "unit/graph/planning.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEAD                                                                                       \
    "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[96]\n%shard = placeholder : f32[96]\n" \
    "%gather = all_gather_into_tensor(%shard, @g)\n%a = mul(%x, %x)\n"                             \
    "%one = all_reduce(%a, \"sum\", @g)\n%n = neg(%x)\n%two = all_reduce(%n, \"max\", @g)\n"
#define TAIL                                                                           \
    "%w1 = wait_tensor(%one)\n%w2 = wait_tensor(%two)\n%full = wait_tensor(%gather)\n" \
    "%m = sum(%full, [0], true)\n%b = add(%w1, %w2)\n%c = mul(%b, %m)\n"               \
    "%three = all_reduce(%c, \"sum\", @g)\n%w3 = wait_tensor(%three)\nreturn [%w1, %w3, %m]\n}\n"

static const char step_text[] = HEAD TAIL;
static const char shaky_text[] = HEAD "%q = test.attack(%a)\n%q2 = test.attack(%q)\n" TAIL;

/* Options of one rank alone -------------------------------------------------------------------------------- */

/* no_reuse is about memory of each rank: offsets differ, results do not. */
TEST_RANKS(memory_that_is_laid_out_differently, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(step_text, self->n_ranks);
    for (int other = 0; other < self->n_ranks; other++) {
        shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
        options.no_reuse = self->rank == other;
        plan_rounds(world, graph, graph, &options, 3, 4);
    }
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(every_option_of_one_rank_alone, 2)
{
    static const shoal_compile_options others[] = {
        {.struct_size = sizeof others[0], .one_shot = true},
        {.struct_size = sizeof others[0], .one_shot_max_bytes = 5},
        {.struct_size = sizeof others[0], .no_comm_buffers = true},
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(step_text, self->n_ranks);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        shoal_plan *plan = NULL;
        CHECK_STATUS(shoal_plan_create(graph, world, self->rank == 1 ? &others[i] : NULL, &plan),
                     SHOAL_ERR_MISMATCH);
        CHECK(plan == NULL);
    }
    plan_rounds(world, graph, graph, NULL, 3, 2);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* In the middle -------------------------------------------------------------------------------------------- */

static enum {
    ATTACK_NONE,
    ATTACK_FAIL,
    ATTACK_DIE,
    ATTACK_FREE_OUTPUT
} attack;
static int n_attacked;
static shoal_tensor *attacked_output;

static shoal_status meta_attack(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output(call, shoal_tensor_shape(arguments[0].as.tensor),
                           shoal_tensor_n_dims(arguments[0].as.tensor), SHOAL_F32);
}

static shoal_status run_attack(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    n_attacked++;
    if (attack == ATTACK_FAIL && n_attacked % 2 == 0) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "in the middle");
    }
    if (attack == ATTACK_DIE && n_attacked % 2 == 0) {
        (void)raise(SIGKILL);
    }
    if (attack == ATTACK_FREE_OUTPUT) {
        shoal_tensor_unref(attacked_output);
        attacked_output = NULL;
    }
    return shoal_copy_(outputs[0], arguments[0].as.tensor) ? SHOAL_OK : SHOAL_ERR_STATE;
}

static void register_attack(void)
{
    static bool is_registered;
    if (!is_registered) {
        size_t n_before = test_live_blocks();
        shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
        definition.name = "test.attack";
        definition.signature = "tensor self -> tensor";
        definition.meta = meta_attack;
        definition.kernel = run_attack;
        CHECK_OK(shoal_op_register(&definition, NULL));
        is_registered = true;
        test_keep_blocks(test_live_blocks() - n_before);
    }
}

struct running {
    shoal_world *world;
    shoal_graph *graph;
    shoal_plan *plan;
    shoal_tensor *inputs[RUN_MAX];
    shoal_tensor *outputs[3];
    size_t n_inputs;
};

static bool begin(struct running *running, struct rank *self, const char *text)
{
    if (text == shaky_text) { /* in processes, so that nobody else does */
        register_attack();
        attack = ATTACK_NONE;
        n_attacked = 0;
    }
    *running = (struct running){.world = rank_world_open(self, 0)};
    running->graph = running->world ? run_parse(text, self->n_ranks) : NULL;
    if (!running->graph ||
        !CHECK_OK(shoal_plan_create(running->graph, running->world, NULL, &running->plan))) {
        return false;
    }
    running->n_inputs = run_inputs(running->graph, self->rank, running->inputs);
    return CHECK_OK(shoal_plan_run(running->plan, running->inputs, running->n_inputs, running->outputs, 3));
}

static shoal_status run_again(struct running *running)
{
    return shoal_plan_run(running->plan, running->inputs, running->n_inputs, running->outputs, 3);
}

static void drop_outputs(struct running *running)
{
    run_unref(running->outputs, 3);
    memset(running->outputs, 0, sizeof running->outputs);
}

static void end(struct running *running)
{
    drop_outputs(running);
    shoal_plan_free(running->plan);
    run_unref(running->inputs, running->n_inputs);
    shoal_graph_free(running->graph);
}

/* With a gather into a window and two sums in flight. Those who live hear of it, and can end everything. */
TEST_PROCESSES(a_rank_that_dies_in_the_middle, 3)
{
    struct running running;
    REQUIRE(begin(&running, self, shaky_text));
    drop_outputs(&running);
    test_expect_death(1, SIGKILL);
    attack = self->rank == 1 ? ATTACK_DIE : ATTACK_NONE;
    CHECK_STATUS(run_again(&running), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("plan_run: %");
    CHECK(running.outputs[0] == NULL);
    CHECK_STATUS(run_again(&running), SHOAL_ERR_PEER);
    end(&running);
    (void)!shoal_world_close(running.world);
}

/* As an eager rank that fails alone: the others wait as long as they must. Then everything can be ended. */
TEST_PROCESSES(a_rank_that_fails_in_the_middle, 2)
{
    struct running running;
    shoal_group *group = NULL;
    REQUIRE(begin(&running, self, shaky_text));
    drop_outputs(&running);
    REQUIRE_OK(shoal_group_create(running.world, (const int[]){0, 1}, 2, "graph:g", &group));
    REQUIRE_OK(shoal_group_set_timeout(group, 0.2));
    attack = self->rank == 1 ? ATTACK_FAIL : ATTACK_NONE;
    shoal_status status = run_again(&running);
    if (self->rank == 1) {
        CHECK(status == SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT("plan_run: %q2: test.attack: in the middle");
    } else {
        CHECK(status == SHOAL_ERR_TIMEOUT || status == SHOAL_ERR_PEER);
    }
    end(&running);
    (void)!shoal_world_close(running.world);
}

/* The last reference on an output of the run before is given up while the next one runs. */
TEST_PROCESSES(an_output_that_is_dropped_in_the_middle, 2)
{
    struct running running;
    REQUIRE(begin(&running, self, shaky_text));
    attacked_output = shoal_tensor_ref(running.outputs[0]);
    drop_outputs(&running);
    attack = ATTACK_FREE_OUTPUT;
    CHECK_OK(run_again(&running));
    attack = ATTACK_NONE;
    drop_outputs(&running);
    CHECK_OK(run_again(&running));
    end(&running);
    CHECK_OK(shoal_world_close(running.world));
}

/* Ends ----------------------------------------------------------------------------------------------------- */

/* One rank frees its plan, and goes on without it, while the other has it: freeing is no matter of the others. */
TEST_RANKS(plans_are_freed_at_other_times, 2)
{
    struct running running;
    REQUIRE(begin(&running, self, step_text));
    shoal_tensor *kept = shoal_tensor_ref(running.outputs[1]);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *copy = shoal_clone(kept);
    if (self->rank == 0) {
        end(&running);
    }
    test_barrier(self);
    float number = (float)self->rank;
    CHECK_OK(
        shoal_group_all_reduce(shoal_world_group(running.world), &number, &number, 1, SHOAL_F32, SHOAL_SUM));
    CHECK(number == 1);
    if (self->rank == 1) {
        run_check_same("output", 1, kept, copy);
        end(&running);
    }
    run_check_same("output", 1, kept, copy);
    shoal_tensor_unref(kept);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(running.world));
}

/* The group of a plan is closed by all: the plan says so, its outputs stay, and it can be freed. */
TEST_RANKS(the_group_of_a_plan_is_closed, 2)
{
    struct running running;
    shoal_group *group = NULL;
    REQUIRE(begin(&running, self, step_text));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *copy = shoal_clone(running.outputs[0]);
    REQUIRE_OK(shoal_group_create(running.world, (const int[]){0, 1}, 2, "graph:g", &group));
    CHECK_OK(shoal_group_close(group));
    shoal_tensor *none[3] = {NULL};
    CHECK_STATUS(shoal_plan_run(running.plan, running.inputs, running.n_inputs, none, 3), SHOAL_ERR_STATE);
    CHECK(none[0] == NULL);
    run_check_same("output", 0, running.outputs[0], copy);
    shoal_tensor *kept = shoal_tensor_ref(running.outputs[0]);
    end(&running);
    run_check_same("output", 0, kept, copy);
    shoal_tensor_unref(kept);
    /* The same graph again, on a new group. */
    shoal_graph *graph = run_parse(step_text, self->n_ranks);
    plan_rounds(running.world, graph, graph, NULL, 3, 2);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(running.world));
}

/* A child can read what it was left, is refused a run, and ends what it has without a trace in its parent. */
TEST_PROCESSES(a_child_frees_what_it_was_left, 2)
{
    struct running running;
    REQUIRE(begin(&running, self, step_text));
    float first = *(const float *)shoal_data(running.outputs[0]);
    pid_t child = fork();
    if (child == 0) {
        shoal_tensor *none[3] = {NULL};
        bool is_same = *(const float *)shoal_data(running.outputs[0]) == first;
        bool is_refused =
            shoal_plan_run(running.plan, running.inputs, running.n_inputs, none, 3) == SHOAL_ERR_STATE;
        shoal_plan_free(running.plan);
        is_same = is_same && *(const float *)shoal_data(running.outputs[0]) == first;
        _exit(is_same && is_refused ? 0 : 1);
    }
    int status = 1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    CHECK(*(const float *)shoal_data(running.outputs[0]) == first);
    drop_outputs(&running);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(run_again(&running));
        CHECK(*(const float *)shoal_data(running.outputs[0]) == first);
        drop_outputs(&running);
    }
    end(&running);
    CHECK_OK(shoal_world_close(running.world));
}
