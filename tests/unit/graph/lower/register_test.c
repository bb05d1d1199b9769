/* SPDX-License-Identifier: MIT */
/* Lowerings of users' ops. */
#include "lowering.h"

static shoal_status meta_like(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static shoal_status run_nothing(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    return SHOAL_OK;
}

static const shoal_op *register_op(const char *name, uint32_t flags)
{
    const shoal_op *op = NULL;
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = name;
    definition.signature = "tensor self, group group -> tensor";
    definition.flags = flags;
    definition.meta = meta_like;
    definition.kernel = run_nothing;
    CHECK_OK(shoal_op_register(&definition, &op));
    return op;
}

static const shoal_op *find(const char *name)
{
    const shoal_op *op = NULL;
    CHECK_OK(shoal_op_find(name, &op));
    return op;
}

/* What the lowering shall try. */
struct wish {
    bool blocks;
    bool calls_stranger;
    bool calls_functional;
    bool realizes_input;
    shoal_status status; /* of what was tried */
    bool could_realize_input;
    bool skipped_before;
    bool skipped_behind;
};

static shoal_status lower_sum(shoal_lowering *lowering, shoal_node *node, void *context)
{
    struct wish *wish = context;
    size_t n_args;
    const shoal_arg *args = shoal_node_args(node, &n_args);
    shoal_arg self = {.kind = SHOAL_ARG_NODE, .as.node = node};
    shoal_arg copy[] = {self, args[0]};
    shoal_arg sum[] = {self, {.kind = SHOAL_ARG_STRING, .as.string = "sum"}, args[1]};
    wish->could_realize_input = shoal_lowering_can_realize(lowering, args[0].as.node);
    if (wish->calls_functional) {
        wish->status = shoal_lowering_call(lowering, find("neg"), &args[0], 1);
        return wish->status;
    }
    if (wish->calls_stranger) {
        copy[1].as.node = shoal_node_next(node);
        wish->status = shoal_lowering_call(lowering, find("copy_"), copy, 2);
        return wish->status;
    }
    if (wish->realizes_input) {
        wish->status = shoal_lowering_realize(lowering, args[0].as.node);
        return wish->status;
    }
    shoal_status status = shoal_lowering_call(lowering, find("copy_"), copy, 2);
    wish->skipped_before = shoal_lowering_should_skip_wait(lowering, node);
    if (status == SHOAL_OK && shoal_lowering_can_realize(lowering, node) && wish->blocks) {
        status = shoal_lowering_realize(lowering, node);
        shoal_lowering_mark_skip_wait(lowering);
    }
    wish->skipped_behind = shoal_lowering_should_skip_wait(lowering, node);
    return status == SHOAL_OK ? shoal_lowering_call(lowering, find("all_reduce_"), sum, 3) : status;
}

static struct wish wish;

static void register_all(void)
{
    static bool is_done;
    if (is_done) {
        return;
    }
    is_done = true;
    size_t n_blocks = test_live_blocks();
    shoal_lowering_definition definition = SHOAL_LOWERING_DEFINITION_INIT;
    (void)register_op("test.sum", SHOAL_OP_COLLECTIVE);
    (void)register_op("test.plain", SHOAL_OP_COLLECTIVE);
    (void)register_op("test.local", 0);
    definition.op = "test.sum";
    definition.doc = "A sum.";
    definition.lower = lower_sum;
    definition.context = &wish;
    CHECK_OK(shoal_lowering_register(&definition));
    CHECK_INT(shoal_lowering_register(&definition), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("test.sum has a lowering already");
    test_keep_blocks(test_live_blocks() - n_blocks);
}

#define BEGIN "graph {\n    group @w = [[0, 1]]\n    %x = placeholder : f32[4]\n    %a = neg(%x)\n"
static const char sum_text[] =
    BEGIN "    %r = test.sum(%a, @w)\n    %w = wait_tensor(%r)\n    %y = neg(%w)\n    return [%y]\n}\n";

TEST(starts_and_waits)
{
    register_all();
    wish = (struct wish){.blocks = false};
    lower_check(sum_text, NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 16 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = pool at 0, 16 bytes, 0..1\n"
                "    b2 %r = comm 1 of @w at 0, 16 bytes, 1..4\n"
                "    b3 %y = output at 0, 16 bytes, 4..5\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %r = copy_(b2:f32[4], b1:f32[4]) -> b2:f32[4]\n"
                "    2 %r = start all_reduce sum @w 0: in place on b2:f32[4]\n"
                "    3 %w = wait @w 0\n"
                "    4 %y = neg(b2:f32[4]) -> b3:f32[4]\n"
                "    return [b3:f32[4]]\n"
                "}\n");
    CHECK(wish.could_realize_input);
    CHECK(!wish.skipped_before && !wish.skipped_behind);
}

TEST(blocks)
{
    register_all();
    wish = (struct wish){.blocks = true};
    lower_check(sum_text, NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 16 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = pool at 0, 16 bytes, 0..1\n"
                "    b2 %r = comm 1 of @w at 0, 16 bytes, 1..3\n"
                "    b3 %y = output at 0, 16 bytes, 3..4\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %r = copy_(b2:f32[4], b1:f32[4]) -> b2:f32[4]\n"
                "    2 %r = block all_reduce sum @w 0: in place on b2:f32[4]\n"
                "    3 %y = neg(b2:f32[4]) -> b3:f32[4]\n"
                "    return [b3:f32[4]]\n"
                "}\n");
    CHECK(!wish.skipped_before && wish.skipped_behind);
}

/* Without a lowering it is called as it is. */
TEST(ops_without_one)
{
    register_all();
    lower_check(BEGIN "    %r = test.plain(%a, @w)\n    %w = wait_tensor(%r)\n    return [%w]\n}\n", NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 0 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 32 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = pool at 0, 16 bytes, 0..2\n"
                "    b2 %r = output at 0, 16 bytes, 1..3\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %r = eager test.plain(b1:f32[4], @w) -> b2:f32[4]\n"
                "    2 %w = eager wait_tensors([b1:f32[4], b2:f32[4]])\n"
                "    return [b2:f32[4]]\n"
                "}\n");
}

static void check_refused(const char *text, const char *expected)
{
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    struct plan_target target = {.rank = 0};
    struct shoal_plan *plan = NULL;
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_graph_parse(text, strlen(text), &graph));
    CHECK(plan_lower(graph, &options, &target, &plan) != SHOAL_OK);
    if (!strstr(shoal_error_text(), expected)) {
        test_failed(__FILE__, __LINE__, "\"%s\", expected \"%s\"", shoal_error_text(), expected);
    }
    shoal_graph_free(graph);
}

TEST(what_a_lowering_may_not)
{
    register_all();
    wish = (struct wish){.calls_functional = true};
    check_refused(sum_text,
                  "%r: the lowering of test.sum: lowering_call(neg): neg writes none of its arguments");
    CHECK_INT(wish.status, SHOAL_ERR_INVALID);
    wish = (struct wish){.calls_stranger = true};
    check_refused(sum_text, "lowering_call(copy_): %w is not an input of %r");
    wish = (struct wish){.realizes_input = true};
    check_refused(
        "graph {\n    group @w = [[0, 1]]\n    %x = placeholder : f32[4]\n    %r = test.sum(%x, @w)\n"
        "    %w = wait_tensor(%r)\n    return [%w]\n}\n",
        "lowering_realize: %x cannot be made in comm memory");
    CHECK_INT(wish.status, SHOAL_ERR_STATE);
    CHECK(!wish.could_realize_input);
}

TEST(definitions_are_checked)
{
    register_all();
    shoal_lowering_definition definition = SHOAL_LOWERING_DEFINITION_INIT;
    CHECK_INT(shoal_lowering_register(NULL), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_lowering_register(&definition), SHOAL_ERR_INVALID);
    definition.lower = lower_sum;
    definition.op = "all_reduce";
    CHECK_INT(shoal_lowering_register(&definition), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is built into the library");
    definition.op = "test.local";
    CHECK_INT(shoal_lowering_register(&definition), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("starts no communication");
    definition.op = "test.nobody";
    CHECK_INT(shoal_lowering_register(&definition), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_lowering_call(NULL, find("neg"), NULL, 0), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_lowering_realize(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK(!shoal_lowering_can_realize(NULL, NULL));
    CHECK(!shoal_lowering_should_skip_wait(NULL, NULL));
    shoal_lowering_mark_skip_wait(NULL);
}
