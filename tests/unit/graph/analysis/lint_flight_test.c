/* SPDX-License-Identifier: MIT */
/* What shoal_graph_lint says of memory in flight: every way to touch it between a start and its wait. */
#include "fixtures/graph_build.h"
#include "graph/ir/graph.h"
#include "harness/test.h"
#include "shoal/graph.h"
#include "shoal/ops.h"

/* A graph x, y, START..., `late`..., WAIT, output, in which `late` moves behind the wait, where it is allowed. */
struct subject {
    shoal_graph *graph;
    shoal_node *x;
    shoal_node *y;
    shoal_node *start;
    shoal_node *late;
    shoal_node *wait;
};

static struct subject begin(void)
{
    struct subject s = {.graph = build_graph(2)};
    s.x = build_input(s.graph, "x", 4);
    s.y = build_input(s.graph, "y", 4);
    return s;
}

static shoal_node *slice(shoal_graph *graph, shoal_node *of, int64_t first, int64_t count)
{
    return BUILD_CALL(graph, "narrow", arg_node(of), arg_int(0), arg_int(first), arg_int(count));
}

static shoal_node *reduce_in_place(shoal_graph *graph, shoal_node *node)
{
    return BUILD_CALL(graph, "all_reduce_", arg_node(node), arg_string("sum"), arg_group(BUILD_GROUP));
}

static shoal_node *double_in_place(shoal_graph *graph, shoal_node *node)
{
    return BUILD_CALL(graph, "mul_scalar_", arg_node(node), arg_float(2));
}

static void check_refused(int line, const shoal_graph *graph, const char *words)
{
    if (test_check_status(__FILE__, line, "shoal_graph_lint", shoal_graph_lint(graph), SHOAL_ERR_STATE)) {
        (void)test_check_error_text(__FILE__, line, words);
    }
}

/* Waits, returns, and checks: refused with these words (NULL: not at all), and allowed behind the wait. */
static void finish(int line, struct subject *s, const char *words)
{
    s->wait = s->wait ? s->wait : build_wait(s->graph, s->start);
    REQUIRE(s->late && s->wait && build_output(s->graph, 1, s->wait));
    if (words) {
        check_refused(line, s->graph, words);
        CHECK_OK(shoal_node_move_after(s->late, s->wait));
    }
    (void)test_check_status(__FILE__, line, "shoal_graph_lint", shoal_graph_lint(s->graph), SHOAL_OK);
    shoal_graph_free(s->graph);
}

#define FINISH(subject, words) finish(__LINE__, subject, words)

/* Out of place ------------------------------------------------------------------------------------------ */

TEST(an_input_may_be_read)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    s.late = BUILD_CALL(s.graph, "neg", arg_node(s.x));
    FINISH(&s, NULL);
}

TEST(an_input_is_not_written)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    s.late = BUILD_CALL(s.graph, "copy_", arg_node(s.x), arg_node(s.y));
    FINISH(&s,
           "node all_reduce: node copy_ writes node x, whose memory is read until node wait_tensor waits");
}

TEST(an_input_may_be_copied_from)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    s.late = BUILD_CALL(s.graph, "copy_", arg_node(s.y), arg_node(s.x));
    FINISH(&s, NULL);
}

TEST(an_input_is_not_written_through_views_of_views)
{
    struct subject s = begin();
    shoal_node *before = BUILD_CALL(s.graph, "view", arg_node(s.x), ARG_LIST(arg_int(2), arg_int(2)));
    s.start = build_all_reduce(s.graph, before);
    shoal_node *flat = BUILD_CALL(s.graph, "flatten", arg_node(before));
    shoal_node *part = slice(s.graph, flat, 3, 1);
    s.late = double_in_place(s.graph, part);
    FINISH(&s, "node all_reduce: node mul_scalar_ writes node narrow, whose memory is read until node "
               "wait_tensor waits");
}

TEST(a_part_that_is_apart_may_be_written)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, slice(s.graph, s.x, 0, 2));
    s.late = double_in_place(s.graph, slice(s.graph, s.x, 2, 2));
    FINISH(&s, NULL);
}

TEST(a_part_in_common_may_not_be_written)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, slice(s.graph, s.x, 0, 3));
    shoal_node *part = slice(s.graph, s.x, 2, 2);
    s.late = double_in_place(s.graph, part);
    FINISH(&s, "node all_reduce: node mul_scalar_ writes node narrow_1");
}

TEST(a_result_is_not_read_through_a_view)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    shoal_node *view = BUILD_CALL(s.graph, "view", arg_node(s.start), ARG_LIST(arg_int(2), arg_int(2)));
    shoal_node *again = BUILD_CALL(s.graph, "flatten", arg_node(view));
    s.late = BUILD_CALL(s.graph, "neg", arg_node(again));
    FINISH(
        &s,
        "node all_reduce: node neg reads node flatten, whose memory is written until node wait_tensor waits");
}

TEST(a_result_is_not_written_through_a_view)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    shoal_node *view = slice(s.graph, s.start, 0, 1);
    s.late = double_in_place(s.graph, view);
    FINISH(&s,
           "node all_reduce: node mul_scalar_ writes node narrow, whose memory is written until node wait");
}

/* contiguous of what is contiguous gives the same tensor: no kernel runs. */
TEST(an_op_that_gives_its_argument_reads_nothing)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    shoal_node *view = slice(s.graph, s.start, 0, 2);
    s.late = BUILD_CALL(s.graph, "contiguous", arg_node(view));
    FINISH(&s, NULL);
}

TEST(a_result_is_not_the_input_of_another_start)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    shoal_node *view = slice(s.graph, s.start, 0, 2);
    s.late = build_all_reduce(s.graph, view);
    shoal_node *second = build_wait(s.graph, s.late);
    s.wait = build_wait(s.graph, s.start);
    REQUIRE(second && build_output(s.graph, 2, s.wait, second));
    check_refused(__LINE__, s.graph,
                  "node all_reduce: node all_reduce_1 reads node narrow, whose memory is written until node "
                  "wait_tensor_1 waits");
    CHECK_OK(shoal_node_move_before(s.wait, s.late));
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

TEST(an_input_of_two_starts_is_free_after_both)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, s.x);
    shoal_node *second = build_all_reduce(s.graph, s.x);
    shoal_node *first_wait = build_wait(s.graph, s.start);
    s.late = double_in_place(s.graph, s.x);
    s.wait = build_wait(s.graph, second);
    REQUIRE(first_wait);
    FINISH(
        &s,
        "node all_reduce_1: node mul_scalar_ writes node x, whose memory is read until node wait_tensor_1");
}

/* In place ---------------------------------------------------------------------------------------------- */

TEST(an_operand_in_place_is_not_read)
{
    struct subject s = begin();
    s.start = reduce_in_place(s.graph, s.x);
    s.late = BUILD_CALL(s.graph, "neg", arg_node(s.x));
    FINISH(&s,
           "node all_reduce_: node neg reads node x, whose memory is written until node wait_tensor waits");
}

TEST(an_operand_in_place_is_not_written)
{
    struct subject s = begin();
    shoal_node *view = BUILD_CALL(s.graph, "view", arg_node(s.x), ARG_LIST(arg_int(2), arg_int(2)));
    s.start = reduce_in_place(s.graph, s.x);
    s.late = double_in_place(s.graph, view);
    FINISH(&s, "node all_reduce_: node mul_scalar_ writes node view, whose memory is written until node "
               "wait_tensor");
}

TEST(an_operand_in_place_is_not_started_again)
{
    struct subject s = begin();
    s.start = reduce_in_place(s.graph, s.x);
    shoal_node *second = reduce_in_place(s.graph, s.x);
    s.wait = build_wait(s.graph, s.start);
    REQUIRE(build_output(s.graph, 2, s.wait, build_wait(s.graph, second)));
    check_refused(__LINE__, s.graph, "node all_reduce_: node all_reduce__1 writes node x");
    CHECK_OK(shoal_node_move_before(s.wait, second));
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

TEST(an_operand_in_place_is_not_returned)
{
    struct subject s = begin();
    s.start = reduce_in_place(s.graph, slice(s.graph, s.x, 0, 2));
    shoal_node *second = reduce_in_place(s.graph, slice(s.graph, s.x, 2, 2));
    shoal_node *wait = build_wait(s.graph, second);
    shoal_node *output = build_output(s.graph, 2, wait, s.x);
    REQUIRE(output);
    check_refused(__LINE__, s.graph, "node all_reduce_: starts communication that nobody waits for");
    CHECK_OK(shoal_graph_set_insert_point(s.graph, (shoal_insert_point){output, false}));
    REQUIRE(build_wait(s.graph, s.start));
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

/* out is written, self is read. */
TEST(out_and_self)
{
    for (int i = 0; i < 3; i++) {
        struct subject s = begin();
        shoal_node *out = build_input(s.graph, "out", 8);
        s.start = BUILD_CALL(s.graph, "all_gather_into_tensor_out", arg_node(out), arg_node(s.x),
                             arg_group(BUILD_GROUP));
        s.late = i == 0   ? BUILD_CALL(s.graph, "neg", arg_node(out))
                 : i == 1 ? double_in_place(s.graph, s.x)
                          : BUILD_CALL(s.graph, "neg", arg_node(s.x));
        static const char *const words[] = {
            "node all_gather_into_tensor_out: node neg reads node out, whose memory is written until",
            "node all_gather_into_tensor_out: node mul_scalar_ writes node x, whose memory is read until",
            NULL};
        FINISH(&s, words[i]);
    }
}

/* A gather into memory of which its input is a part. */
TEST(out_around_self)
{
    struct subject s = begin();
    shoal_node *out = build_input(s.graph, "out", 8);
    shoal_node *part = slice(s.graph, out, 4, 4);
    s.start = BUILD_CALL(s.graph, "all_gather_into_tensor_out", arg_node(out), arg_node(part),
                         arg_group(BUILD_GROUP));
    s.late = BUILD_CALL(s.graph, "neg", arg_node(slice(s.graph, out, 0, 1)));
    FINISH(&s,
           "node all_gather_into_tensor_out: node neg reads node narrow_1, whose memory is written until");
}

/* Constants look at one storage through one twin. */
TEST(a_constant_is_not_written)
{
    struct subject s = begin();
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *data = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    shoal_node *constants[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_graph_constant(s.graph, "c", data, &constants[i]));
    }
    REQUIRE_OK(shoal_scope_end());
    s.start = build_all_reduce(s.graph, BUILD_CALL(s.graph, "flatten", arg_node(constants[0])));
    s.late = double_in_place(s.graph, constants[1]);
    FINISH(&s,
           "node all_reduce: node mul_scalar_ writes node c_1, whose memory is read until node wait_tensor");
}

/* Lists ------------------------------------------------------------------------------------------------- */

static shoal_node *list_start(shoal_graph *graph, const char *op, shoal_node **nodes, size_t count)
{
    return build_of_list(graph, op, nodes, count, (shoal_arg[]){arg_string("sum"), arg_group(BUILD_GROUP)},
                         2);
}

/* What a start reads is free after the first wait, what it writes after its own. */
TEST(lists_out_of_place)
{
    for (int i = 0; i < 2; i++) {
        struct subject s = begin();
        s.start = list_start(s.graph, "all_reduce_coalesced", (shoal_node *[]){s.x, s.y}, 2);
        shoal_node *items[2] = {build_getitem(s.graph, s.start, 0), build_getitem(s.graph, s.start, 1)};
        shoal_node *view = slice(s.graph, items[1], 0, 2);
        s.late = i == 0 ? double_in_place(s.graph, s.y) : BUILD_CALL(s.graph, "neg", arg_node(view));
        shoal_node *waits[2] = {build_wait(s.graph, items[0]), build_wait(s.graph, items[1])};
        REQUIRE(waits[0] && waits[1]);
        s.wait = waits[i];
        static const char *const words[] = {"node all_reduce_coalesced: node mul_scalar_ writes node y, "
                                            "whose memory is read until node wait_tensor waits",
                                            "node all_reduce_coalesced: node neg reads node narrow, whose "
                                            "memory is written until node wait_tensor_1 waits"};
        FINISH(&s, words[i]);
    }
}

TEST(lists_in_place)
{
    struct subject s = begin();
    s.start = list_start(s.graph, "all_reduce_coalesced_", (shoal_node *[]){s.x, s.y}, 2);
    shoal_node *items[2] = {build_getitem(s.graph, s.start, 0), build_getitem(s.graph, s.start, 1)};
    REQUIRE(build_wait(s.graph, items[0]));
    s.late = BUILD_CALL(s.graph, "add", arg_node(s.x), arg_node(s.y));
    s.wait = build_wait(s.graph, items[1]);
    FINISH(&s, "node all_reduce_coalesced_: node add reads node y, whose memory is written until node "
               "wait_tensor_1");
}

TEST(lists_that_are_waited_for_as_a_whole)
{
    struct subject s = begin();
    s.start = list_start(s.graph, "all_reduce_coalesced_", (shoal_node *[]){s.x, s.y}, 2);
    s.late = BUILD_CALL(s.graph, "add", arg_node(s.x), arg_node(s.y));
    s.wait = BUILD_CALL(s.graph, "wait_tensors", arg_node(s.start));
    FINISH(
        &s,
        "node all_reduce_coalesced_: node add reads node x, whose memory is written until node wait_tensors");
}

TEST(an_element_that_nobody_waits_for)
{
    struct subject s = begin();
    s.start = list_start(s.graph, "all_reduce_coalesced_", (shoal_node *[]){s.x, s.y}, 2);
    shoal_node *wait = build_wait(s.graph, build_getitem(s.graph, s.start, 0));
    shoal_node *neg = BUILD_CALL(s.graph, "neg", arg_node(s.y));
    REQUIRE(build_output(s.graph, 2, wait, neg));
    check_refused(
        __LINE__, s.graph,
        "node all_reduce_coalesced_: node neg reads node y, whose memory is written, and nobody waits");
    shoal_graph_free(s.graph);
}

/* Point to point ---------------------------------------------------------------------------------------- */

TEST(sends_and_receives)
{
    for (int i = 0; i < 3; i++) {
        struct subject s = begin();
        bool sends = i < 2;
        s.start = BUILD_CALL(s.graph, sends ? "isend" : "irecv", arg_node(s.x), arg_int(0), arg_int(0),
                             arg_group(BUILD_GROUP));
        s.late = i == 0 ? double_in_place(s.graph, s.x) : BUILD_CALL(s.graph, "neg", arg_node(s.x));
        static const char *const words[] = {
            "node isend: node mul_scalar_ writes node x, whose memory is read until node wait_tensor waits",
            NULL, "node irecv: node neg reads node x, whose memory is written until node wait_tensor waits"};
        FINISH(&s, words[i]);
    }
}

TEST(batches)
{
    for (int i = 0; i < 4; i++) {
        struct subject s = begin();
        shoal_node *z = build_input(s.graph, "z", 4);
        s.start = build_of_list(s.graph, "batch_p2p_ops", (shoal_node *[]){s.x, s.y}, 2,
                                (shoal_arg[]){arg_string("isend irecv"), ARG_LIST(arg_int(1), arg_int(1)),
                                              ARG_LIST(arg_int(0), arg_int(0)), arg_group(BUILD_GROUP)},
                                4);
        shoal_node *view = slice(s.graph, s.y, 1, 2);
        s.late = i == 0   ? BUILD_CALL(s.graph, "copy_", arg_node(s.x), arg_node(z))
                 : i == 1 ? BUILD_CALL(s.graph, "copy_", arg_node(z), arg_node(s.x))
                 : i == 2 ? BUILD_CALL(s.graph, "neg", arg_node(view))
                          : double_in_place(s.graph, view);
        s.wait = BUILD_CALL(s.graph, "wait_tensors", arg_node(s.start));
        static const char *const words[] = {
            "node batch_p2p_ops: node copy_ writes node x, whose memory is read until node wait_tensors "
            "waits",
            NULL,
            "node batch_p2p_ops: node neg reads node narrow, whose memory is written until node wait_tensors "
            "waits",
            "node batch_p2p_ops: node mul_scalar_ writes node narrow, whose memory is written until"};
        FINISH(&s, words[i]);
    }
}

/* What a send gives has no elements: its wait frees what is sent all the same. */
TEST(tensors_without_elements)
{
    struct subject s = begin();
    shoal_node *empty = slice(s.graph, s.x, 2, 0);
    s.start = build_all_reduce(s.graph, empty);
    s.late = double_in_place(s.graph, s.x);
    FINISH(&s, NULL);
}

/* Memory and size --------------------------------------------------------------------------------------- */

static shoal_status lint_once(void *context)
{
    return shoal_graph_lint(context);
}

TEST(failing_allocations)
{
    struct subject s = begin();
    s.start = build_all_reduce(s.graph, slice(s.graph, s.x, 0, 2));
    shoal_node *view = slice(s.graph, s.start, 0, 2);
    shoal_node *same = BUILD_CALL(s.graph, "contiguous", arg_node(view)); /* looked at twice */
    s.wait = build_wait(s.graph, s.start);
    REQUIRE(same && build_output(s.graph, 1, s.wait));
    CHECK(test_sweep_allocations(lint_once, s.graph) >= 5);
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

/* Slices of one tensor, all in flight at once, and waited for in another order. */
TEST(many_slices)
{
    const int64_t n = (int64_t)(25000 / test_time_scale());
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4 * n);
    shoal_node **starts = calloc((size_t)n, sizeof(shoal_node *));
    REQUIRE(starts);
    for (int64_t i = 0; i < n && !test_has_failed(); i++) {
        starts[i] = reduce_in_place(graph, slice(graph, x, 4 * ((i * 7919) % n), 4));
    }
    shoal_node *wait = NULL;
    for (int64_t i = 0; i < n && !test_has_failed(); i++) {
        wait = build_wait(graph, starts[(i * 7919) % n]);
    }
    shoal_node *late = double_in_place(graph, x);
    REQUIRE(wait && late && build_output(graph, 1, x));
    CHECK_OK(shoal_graph_lint(graph));
    CHECK_OK(shoal_node_move_before(late, wait));
    check_refused(__LINE__, graph,
                  "node mul_scalar_ writes node x, whose memory is written until node wait_tensor");
    free(starts);
    shoal_graph_free(graph);
}
