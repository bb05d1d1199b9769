/* SPDX-License-Identifier: MIT */
/* Graphs as text: what is written reads back as the same graph, to the bit. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/graph_text.h"
#include "graph/text/float_text.h"
#include "harness/test.h"
#include "kernel/kernel.h"
#include "shoal/graph.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

static shoal_arg node_arg(shoal_node *node)
{
    return (shoal_arg){.kind = SHOAL_ARG_NODE, .as.node = node};
}

static shoal_arg int_arg(int64_t integer)
{
    return (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = integer};
}

static shoal_arg real_arg(double real)
{
    return (shoal_arg){.kind = SHOAL_ARG_FLOAT, .as.real = real};
}

static shoal_arg string_arg(const char *string)
{
    return (shoal_arg){.kind = SHOAL_ARG_STRING, .as.string = string};
}

static shoal_arg list_arg(const shoal_arg *items, size_t count)
{
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {items, count}};
}

/* The dialect ------------------------------------------------------------------------------------------ */

static const char example[] =
    "graph {\n"
    "    group @shard = [[0, 1], [2, 3]]\n"
    "    %x = placeholder : f32[4, 4]\n"
    "    %w = constant [1.5, -2.0, inf, 0.1] : f32[4]\n"
    "    %mm = add(%x, %w) : f32[4, 4]\n"
    "    %sum = all_reduce(%mm, \"sum\", @shard, nan) : f32[4, 4]\n"
    "    %done = wait_tensor(%sum) : f32[4, 4]\n"
    "    %parts = split_with_sizes(%done, [2, 2], 0) : [f32[2, 4], f32[2, 4]]\n"
    "    %first = getitem(%parts, 0) : f32[2, 4]\n"
    "    %t = transpose(%x, 0, 1) : f32[4, 4]\n"
    "    %o = opaque \"aten.mul.Tensor\"(%x, 2, [none, true, f32], rank(@shard) * 2 - 1) : f32[4, 4]{1, 4}\n"
    "    return [%first, [%o, %t]]\n"
    "}\n";

/* Reads the text and prints it. */
static void check_prints(const char *text, const char *expected)
{
    shoal_graph *graph = NULL;
    if (!CHECK_OK(shoal_graph_parse(text, strlen(text), &graph))) {
        test_failed(__FILE__, __LINE__, "%s in %s", shoal_error_text(), text);
        return;
    }
    char *printed = graph_text_print(graph);
    REQUIRE(printed);
    CHECK_STRING(printed, expected);
    free(printed);
    graph_text_check_round_trip(graph);
    shoal_graph_free(graph);
}

TEST(example_reads_and_prints)
{
    check_prints(example, example);
}

TEST(what_may_be_left_out_is_written)
{
    check_prints("# a comment\ngraph{group@g=[[1],[0]]%x=placeholder:f32[2] # another\r\n"
                 "\t%y=all_reduce(%x,\"sum\",@g)%z=wait_tensor(%y)return %z}",
                 "graph {\n"
                 "    group @g = [[1], [0]]\n"
                 "    %x = placeholder : f32[2]\n"
                 "    %y = all_reduce(%x, \"sum\", @g, nan) : f32[2]\n"
                 "    %z = wait_tensor(%y) : f32[2]\n"
                 "    return %z\n"
                 "}\n");
    check_prints("graph { }", "graph {\n}\n");
    check_prints("graph { return [] } # the end", "graph {\n    return []\n}\n");
}

TEST(return_has_a_name_when_it_is_another_one)
{
    check_prints("graph { %output = placeholder : f32[] return %output }",
                 "graph {\n    %output = placeholder : f32[]\n    %output_1 = return %output\n}\n");
    check_prints("graph { %x = placeholder : f32[] %end = return [%x] }",
                 "graph {\n    %x = placeholder : f32[]\n    %end = return [%x]\n}\n");
}

TEST(absent_outputs)
{
    check_prints("graph { return none }", "graph {\n    return none\n}\n");
    check_prints("graph { %x = placeholder : f32[] return [none, [%x, none], []] }",
                 "graph {\n    %x = placeholder : f32[]\n    return [none, [%x, none], []]\n}\n");
}

/* In front of '(' words of the language are ops. */
TEST(words_of_the_language_name_nodes)
{
    check_prints("graph { %return = placeholder : f32[] %nan = neg(%return) : f32[] return [%nan] }",
                 "graph {\n    %return = placeholder : f32[]\n    %nan = neg(%return) : f32[]\n"
                 "    return [%nan]\n}\n");
}

TEST(ranks_in_integers)
{
    static const char *const written[][2] = {
        {"rank(@g)", "rank(@g)"},
        {"rank ( @g ) * 1 + 0", "rank(@g)"},
        {"rank(@g)*-3", "rank(@g) * -3"},
        {"rank(@g)*0", "rank(@g) * 0"},
        {"rank(@g)+7", "rank(@g) + 7"},
        {"rank(@g)-7", "rank(@g) - 7"},
        {"rank(@g) * -9223372036854775808 - 9223372036854775808",
         "rank(@g) * -9223372036854775808 - 9223372036854775808"},
        {"rank(@g) * 9223372036854775807 + 9223372036854775807",
         "rank(@g) * 9223372036854775807 + 9223372036854775807"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"-0", "0"},
    };
    char text[256];
    char expected[256];
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) {
        (void)snprintf(text, sizeof text, "graph { group @g = [[0]] %%o = opaque \"f\"(%s) : f32[] }",
                       written[i][0]);
        (void)snprintf(expected, sizeof expected,
                       "graph {\n    group @g = [[0]]\n    %%o = opaque \"f\"(%s) : f32[]\n}\n",
                       written[i][1]);
        check_prints(text, expected);
    }
}

/* Every block of the page that is a graph. */
TEST(examples_of_the_page_are_read)
{
    char path[1024];
    static char page[1 << 16];
    (void)snprintf(path, sizeof path, "%s/docs/graph.md", getenv("SHOAL_TEST_SOURCE_DIR"));
    FILE *file = fopen(path, "rb");
    REQUIRE(file);
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    (void)fclose(file);
    int n_graphs = 0;
    for (const char *at = page; (at = strstr(at, "```\ngraph {")) != NULL; n_graphs++) {
        at += 4;
        const char *end = strstr(at, "```");
        REQUIRE(end);
        shoal_graph *graph = NULL;
        if (CHECK_OK(shoal_graph_parse(at, (size_t)(end - at), &graph))) {
            graph_text_check_round_trip(graph);
            shoal_graph_free(graph);
        } else {
            test_failed(__FILE__, __LINE__, "%s", shoal_error_text());
        }
        at = end + 3;
    }
    CHECK(n_graphs > 0);
}

/* Numbers ---------------------------------------------------------------------------------------------- */

TEST(floats_are_short)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {-2.5, "-2.5"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e16"},
        {1e22, "1e22"},
        {123456789012345680.0, "1.2345678901234568e17"},
        {1e-5, "0.00001"},
        {1.5e-6, "1.5e-6"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e308"},
        {9007199254740993.0, "9007199254740992.0"},
    };
    char text[FLOAT_TEXT_BYTES];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_STRING(float_text_write(text, SHOAL_F64, rows[i].value), rows[i].text);
    }
    CHECK_STRING(float_text_write(text, SHOAL_F64, (double)INFINITY), "inf");
    CHECK_STRING(float_text_write(text, SHOAL_F64, -(double)INFINITY), "-inf");
    CHECK_STRING(float_text_write(text, SHOAL_F64, (double)NAN), "nan");
    CHECK_STRING(float_text_write(text, SHOAL_F32, (double)0.1f), "0.1");
    CHECK_STRING(float_text_write(text, SHOAL_F32, (double)16777216.0f), "16777216.0");
    CHECK_STRING(float_text_write(text, SHOAL_F32, (double)1e-45f), "1e-45");
    CHECK_STRING(float_text_write(text, SHOAL_F16, 65504), "65500.0");
    CHECK_STRING(float_text_write(text, SHOAL_BF16, 0.10009765625), "0.1");
}

/* Any bits, NaNs with theirs, as an argument. */
TEST(random_floats_read_back)
{
    struct test_random random = test_random_begin(1);
    shoal_graph *graph;
    shoal_arg args[64];
    REQUIRE_OK(shoal_graph_create(&graph));
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < 64; i++) {
            uint64_t bits = test_random_u64(&random);
            bits |= i % 16 == 0 ? 0x7ff0000000000000u : 0;
            bits &= i % 16 == 1 ? 0x800fffffffffffffu : UINT64_MAX;
            args[i].kind = SHOAL_ARG_FLOAT;
            memcpy(&args[i].as.real, &bits, sizeof bits);
            if (i % 16 == 2) {
                args[i].as.real = (double)(int64_t)test_random_below(&random, 1u << 20) / 1024;
            }
        }
        REQUIRE_OK(shoal_graph_opaque(graph, "f", args, 64, NULL, 0, true, NULL, NULL));
    }
    graph_text_check_round_trip(graph);
    shoal_graph_free(graph);
}

/* A decimal comma is the business of those who set it. */
TEST(locale_does_not_matter)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    bool is_set = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !is_set; i++) {
        is_set = setlocale(LC_NUMERIC, names[i]) != NULL;
    }
    if (!is_set) {
        test_skip("there is no locale with a decimal comma");
        return;
    }
    check_prints(example, example);
    (void)setlocale(LC_NUMERIC, "C");
}

TEST(strings_keep_every_byte)
{
    char all[256];
    shoal_graph *graph;
    for (int i = 0; i < 255; i++) {
        all[i] = (char)(i + 1);
    }
    all[255] = '\0';
    shoal_arg args[] = {string_arg(all), string_arg(""), string_arg("\\\"\n"), string_arg("\xc3\xa4%@#}")};
    REQUIRE_OK(shoal_graph_create(&graph));
    REQUIRE_OK(shoal_graph_opaque(graph, all, args, 4, NULL, 0, false, NULL, NULL));
    graph_text_check_round_trip(graph);
    char *text = graph_text_print(graph);
    REQUIRE(text);
    CHECK(strstr(text, "\"\\\\\\\"\\n\"") && strstr(text, "\"\\x01\\x02"));
    free(text);
    shoal_graph_free(graph);
}

/* Constants -------------------------------------------------------------------------------------------- */

/* A constant with random bytes; now and then a few of them only, so that numbers can be written. */
static shoal_tensor *make_constant(struct test_random *random, shoal_dtype dtype, int64_t count)
{
    size_t bytes = (size_t)count * shoal_dtype_bytes(dtype);
    shoal_tensor *tensor = shoal_empty(&count, 1, dtype);
    unsigned char *data = shoal_mutable_data(tensor);
    bool is_plain = test_random_below(random, 2) == 0;
    for (size_t i = 0; data && i < bytes; i++) {
        data[i] = (unsigned char)(is_plain && dtype == SHOAL_BOOL ? test_random_below(random, 2)
                                                                  : test_random_below(random, 256));
    }
    return tensor;
}

static void check_same_data(const shoal_node *a, const shoal_node *b)
{
    const shoal_tensor *left = shoal_node_value(a, 0);
    const shoal_tensor *right = shoal_node_value(b, 0);
    REQUIRE(shoal_tensor_count(left) == shoal_tensor_count(right));
    if (shoal_tensor_is_contiguous(left)) {
        CHECK_BYTES(shoal_data(right), shoal_data(left), tensor_bytes(left));
    }
}

TEST(constants_of_all_dtypes_keep_their_bits)
{
    static const int64_t counts[] = {0, 1, 2, 5, 64, 65, 300};
    struct test_random random = test_random_begin(2);
    shoal_graph *graph;
    shoal_graph *again = NULL;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_graph_create(&graph));
    for (int dtype = SHOAL_F64; dtype <= SHOAL_F8_E5M2; dtype++) {
        for (size_t i = 0; i < 4 * sizeof counts / sizeof counts[0]; i++) {
            shoal_tensor *tensor = make_constant(&random, (shoal_dtype)dtype, counts[i / 4]);
            REQUIRE_OK(shoal_graph_constant(graph, "c", tensor, NULL));
        }
    }
    graph_text_check_round_trip(graph);
    char *text = graph_text_print(graph);
    REQUIRE(text);
    REQUIRE_OK(shoal_graph_parse(text, strlen(text), &again));
    const shoal_node *node = shoal_graph_first(again);
    for (const shoal_node *old = shoal_graph_first(graph); old && node; old = shoal_node_next(old)) {
        check_same_data(old, node);
        node = shoal_node_next(node);
    }
    free(text);
    shoal_graph_free(again);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* Each in a storage of its own. */
static shoal_tensor *make_rows(void)
{
    static float values[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    return shoal_from_memory(values, (int64_t[]){3, 4}, 2, SHOAL_F32, NULL, NULL, NULL);
}

TEST(constants_with_strides_and_without_data)
{
    shoal_graph *graph;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_graph_create(&graph));
    shoal_tensor *wide = shoal_expand(shoal_narrow(make_rows(), 1, 0, 1), (int64_t[]){3, 5}, 2);
    REQUIRE_OK(shoal_graph_constant(graph, "columns", shoal_transpose(make_rows(), 0, 1), NULL));
    REQUIRE_OK(shoal_graph_constant(graph, "part", shoal_narrow(make_rows(), 1, 1, 2), NULL));
    REQUIRE_OK(shoal_graph_constant(graph, "wide", wide, NULL));
    shoal_tensor *empty = NULL;
    REQUIRE_OK(tensor_create_empty(SHOAL_META, SHOAL_BF16, 1, (int64_t[]){1000000}, &empty));
    REQUIRE_OK(shoal_graph_constant(graph, "shape", empty, NULL));
    shoal_tensor_unref(empty);
    graph_text_check_round_trip(graph);
    char *text = graph_text_print(graph);
    REQUIRE(text);
    CHECK(strstr(text, "%columns = constant [1.0, 5.0, 9.0, 2.0, 6.0, 10.0, 3.0, 7.0, 11.0, 4.0, 8.0, 12.0]"
                       " : f32[4, 3]{1, 4}\n"));
    CHECK(strstr(text, "%part = constant [2.0, 3.0, 6.0, 7.0, 10.0, 11.0] : f32[3, 2]{4, 1}\n"));
    CHECK(strstr(text, "%shape = constant : bf16[1000000]\n"));
    free(text);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* Constants that look at one storage do so again, in whatever order and dtype. */
TEST(constants_that_share_a_storage)
{
    static uint32_t values[6] = {1, 2, 3, 4, 5, 0x3f800000};
    shoal_graph *graph;
    shoal_graph *again = NULL;
    shoal_tensor *shapes[2];
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_graph_create(&graph));
    shoal_tensor *whole = shoal_from_memory(values, (int64_t[]){2, 3}, 2, SHOAL_U32, NULL, NULL, NULL);
    REQUIRE_OK(shoal_graph_constant(graph, "last", shoal_narrow(whole, 1, 2, 1), NULL));
    REQUIRE_OK(shoal_graph_constant(graph, "whole", whole, NULL));
    REQUIRE_OK(shoal_graph_constant(graph, "again", whole, NULL));
    REQUIRE_OK(shoal_graph_constant(graph, "other", shoal_zeros((int64_t[]){2}, 1, SHOAL_F32), NULL));
    REQUIRE_OK(shoal_graph_constant(graph, "floats", shoal_view_dtype(whole, SHOAL_F32), NULL));
    REQUIRE_OK(tensor_create_empty(SHOAL_META, SHOAL_F32, 1, (int64_t[]){4}, &shapes[0]));
    REQUIRE_OK(tensor_create_view(
        shapes[0], &(struct layout){.n_dims = 1, .shape = {2}, .strides = {1}, .offset = 1}, &shapes[1]));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_graph_constant(graph, i ? "part" : "shape", shapes[i], NULL));
        shoal_tensor_unref(shapes[i]);
    }
    graph_text_check_round_trip(graph);
    char *text = graph_text_print(graph);
    REQUIRE(text);
    CHECK_STRING(text, "graph {\n"
                       "    %last = constant storage \"010000000200000003000000040000000500"
                       "00000000803f\" + 2 : u32[2, 1]{3, 1}\n"
                       "    %whole = constant of %last + 0 : u32[2, 3]\n"
                       "    %again = constant of %last + 0 : u32[2, 3]\n"
                       "    %other = constant [0.0, 0.0] : f32[2]\n"
                       "    %floats = constant of %last + 0 : f32[2, 3]\n"
                       "    %shape = constant storage 16 + 0 : f32[4]\n"
                       "    %part = constant of %shape + 1 : f32[2]\n"
                       "}\n");
    REQUIRE_OK(shoal_graph_parse(text, strlen(text), &again));
    free(text);
    const shoal_tensor *last = shoal_node_value(shoal_graph_find(again, "last"), 0);
    const shoal_tensor *floats = shoal_node_value(shoal_graph_find(again, "floats"), 0);
    CHECK(shoal_tensor_shares_storage(last, floats));
    CHECK_DOUBLE((double)((const float *)shoal_data(floats))[5], 1);
    CHECK(!shoal_tensor_shares_storage(last, shoal_node_value(shoal_graph_find(again, "other"), 0)));
    shoal_graph_free(again);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

TEST(constants_by_hand)
{
    check_prints("graph { %a = constant [1, -0.0, 1e-3] : f32[3] %b = constant [true, false] : bool[2]\n"
                 "%c = constant [(1, -inf)] : c64[1] %d = constant [-128, 127] : i8[2]\n"
                 "%e = constant [18446744073709551615] : u64[] %f = constant hex \"00C07F7f\" : bf16[2]\n"
                 "%g = constant [] : i64[0] %h = constant [448, 0.3, -0.0, nan] : f8_e4m3fn[4]\n"
                 "%i = constant [inf, 0.3, 1e-5] : f8_e5m2[3] %j = constant hex \"FF7d\" : f8_e5m2[2] }",
                 "graph {\n"
                 "    %a = constant [1.0, -0.0, 0.001] : f32[3]\n"
                 "    %b = constant [true, false] : bool[2]\n"
                 "    %c = constant [(1.0, -inf)] : c64[1]\n"
                 "    %d = constant [-128, 127] : i8[2]\n"
                 "    %e = constant [18446744073709551615] : u64[]\n"
                 "    %f = constant [-2.0, 3.39e38] : bf16[2]\n"
                 "    %g = constant [] : i64[0]\n"
                 "    %h = constant [450.0, 0.3, -0.0, nan] : f8_e4m3fn[4]\n"
                 "    %i = constant [inf, 0.3, 0.00002] : f8_e5m2[3]\n"
                 "    %j = constant hex \"ff7d\" : f8_e5m2[2]\n"
                 "}\n");
}

/* Random graphs ---------------------------------------------------------------------------------------- */

struct making {
    struct test_random random;
    shoal_graph *graph;
    shoal_node *tensors[64]; /* of f32[4, 4] */
    size_t n_tensors;
};

static uint64_t below(struct making *making, uint64_t bound)
{
    return test_random_below(&making->random, bound);
}

static shoal_node *pick(struct making *making)
{
    return making->tensors[below(making, making->n_tensors)];
}

static shoal_arg random_arg(struct making *making, shoal_arg *room, size_t *n_room, int depth)
{
    static const char *const strings[] = {"", "sum", "a b", "\"", "\\", "\n\t\r", "\x7f\x01", "\xe2\x82\xac"};
    switch (below(making, depth > 0 && *n_room >= 4 ? 9 : 8)) {
    case 0:
        return node_arg(pick(making));
    case 1:
        return int_arg((int64_t)test_random_u64(&making->random) >> below(making, 64));
    case 2:
        return real_arg(ldexp(test_random_unit(&making->random) - 0.5, (int)below(making, 200) - 100));
    case 3:
        return (shoal_arg){.kind = SHOAL_ARG_BOOL, .as.boolean = below(making, 2) == 1};
    case 4:
        return (shoal_arg){.kind = SHOAL_ARG_DTYPE, .as.dtype = (shoal_dtype)(1 + below(making, 15))};
    case 5:
        return string_arg(strings[below(making, sizeof strings / sizeof strings[0])]);
    case 6:
        return (shoal_arg){.kind = SHOAL_ARG_GROUP, .as.string = below(making, 2) ? "all" : "pairs"};
    case 7:
        return (shoal_arg){
            .kind = SHOAL_ARG_RANK,
            .as.rank = {"pairs", (int64_t)below(making, 5) - 2, (int64_t)below(making, 5) - 2}};
    default:
        break;
    }
    size_t count = (size_t)below(making, 5);
    shoal_arg *items = room + (*n_room -= count);
    for (size_t i = 0; i < count; i++) {
        items[i] = random_arg(making, room, n_room, depth - 1);
    }
    return list_arg(items, count);
}

static shoal_status add_opaque(struct making *making)
{
    shoal_arg room[64];
    shoal_arg args[6];
    size_t n_room = 64;
    size_t n_args = (size_t)below(making, 7);
    size_t n_values = (size_t)below(making, 3);
    shoal_tensor *values[2];
    for (size_t i = 0; i < n_args; i++) {
        args[i] = random_arg(making, room, &n_room, 4);
    }
    values[0] = shoal_empty((int64_t[]){4, 4}, 2, SHOAL_F32);
    values[1] = shoal_transpose(values[0], 0, 1);
    return shoal_graph_opaque(making->graph, "other.op", args, n_args, values, n_values,
                              n_values != 1 || below(making, 2) == 0, NULL, NULL);
}

static shoal_status add_op(struct making *making, const char *name, const shoal_arg *args, size_t n_args,
                           shoal_node **node_out)
{
    const shoal_op *op;
    shoal_status status = shoal_op_find(name, &op);
    return status == SHOAL_OK ? shoal_graph_call(making->graph, op, args, n_args, NULL, node_out) : status;
}

static shoal_status add_call(struct making *making, shoal_node **node_out)
{
    shoal_arg x = node_arg(pick(making));
    shoal_arg y = node_arg(pick(making));
    shoal_arg sum = string_arg("sum");
    shoal_arg group = {.kind = SHOAL_ARG_GROUP, .as.string = "pairs"};
    shoal_node *list;
    shoal_status status;
    switch (below(making, 5)) {
    case 0:
        return add_op(making, "add", (shoal_arg[]){x, y}, 2, node_out);
    case 1:
        return add_op(making, "all_reduce", (shoal_arg[]){x, sum, group}, 3, node_out);
    case 2:
        return add_op(making, "mul_scalar", (shoal_arg[]){x, real_arg(0.1)}, 2, node_out);
    case 3:
        return add_op(making, "mul_scalar", (shoal_arg[]){x, int_arg(3)}, 2, node_out);
    default:
        status = add_op(making, "all_reduce_coalesced",
                        (shoal_arg[]){list_arg((shoal_arg[]){x, y}, 2), sum, group}, 3, &list);
        return status == SHOAL_OK
                   ? add_op(making, "getitem", (shoal_arg[]){node_arg(list), int_arg(1)}, 2, node_out)
                   : status;
    }
}

static void make_random_graph(struct making *making)
{
    REQUIRE_OK(shoal_graph_create(&making->graph));
    REQUIRE_OK(shoal_graph_add_group(making->graph, "all", (int[]){3, 1, 2, 0}, 1, 4));
    REQUIRE_OK(shoal_graph_add_group(making->graph, "pairs", (int[]){0, 1, 2, 3}, 2, 2));
    REQUIRE_OK(
        shoal_graph_placeholder(making->graph, "x", (int64_t[]){4, 4}, 2, SHOAL_F32, &making->tensors[0]));
    making->n_tensors = 1;
    size_t n = (size_t)below(making, 63);
    for (size_t i = 0; i < n; i++) {
        shoal_node *node = NULL;
        if (below(making, 3) == 0) {
            REQUIRE_OK(add_opaque(making));
        } else {
            REQUIRE_OK(add_call(making, &node));
            making->tensors[making->n_tensors++] = node;
        }
    }
    if (below(making, 4) > 0) {
        shoal_arg results[] = {node_arg(pick(making)), node_arg(pick(making))};
        shoal_arg result = list_arg(results, 2);
        REQUIRE_OK(shoal_graph_output(making->graph, &result, NULL));
    }
}

TEST(random_graphs_round_trip)
{
    for (uint64_t seed = 0; seed < 300 && !test_has_failed(); seed++) {
        struct making making = {.random = test_random_begin(100 + seed)};
        REQUIRE_OK(shoal_scope_begin());
        make_random_graph(&making);
        if (!test_has_failed()) {
            graph_text_check_round_trip(making.graph);
        }
        shoal_graph_free(making.graph);
        CHECK_OK(shoal_scope_end());
    }
}

/* Names that were given away and taken back are kept as they are. */
TEST(names_with_gaps_are_kept)
{
    shoal_graph *graph;
    shoal_node *x;
    shoal_node *gone;
    const shoal_op *neg;
    REQUIRE_OK(shoal_graph_create(&graph));
    REQUIRE_OK(shoal_op_find("neg", &neg));
    REQUIRE_OK(shoal_graph_placeholder(graph, "x_7", (int64_t[]){1}, 1, SHOAL_F32, &x));
    shoal_arg arg = node_arg(x);
    for (int i = 0; i < 6; i++) {
        shoal_node **node_out = i % 2 ? NULL : &gone;
        REQUIRE_OK(shoal_graph_call(graph, neg, &arg, 1, i < 3 ? NULL : "x_7", node_out));
        if (i % 2 == 0) {
            REQUIRE_OK(shoal_node_erase(gone));
        }
    }
    REQUIRE_OK(shoal_graph_output(graph, &arg, NULL));
    graph_text_check_round_trip(graph);
    shoal_graph_free(graph);
}

/* Writing ---------------------------------------------------------------------------------------------- */

static int refuse(void *context, const char *text, size_t bytes)
{
    int *n_left = context;
    (void)text;
    (void)bytes;
    return (*n_left)-- == 0 ? 7 : 0;
}

TEST(writing_can_be_refused)
{
    shoal_graph *graph;
    REQUIRE_OK(shoal_graph_create(&graph));
    for (int i = 0; i < 1000; i++) {
        REQUIRE_OK(shoal_graph_placeholder(graph, "x", (int64_t[]){4}, 1, SHOAL_F32, NULL));
    }
    for (int i = 0; i < 5; i++) {
        int n_left = i;
        CHECK_STATUS(shoal_graph_print(graph, refuse, &n_left), SHOAL_ERR_CANCELLED);
        CHECK_INT(n_left, -1);
        CHECK_ERROR_TEXT("7");
        n_left = i;
        CHECK_STATUS(shoal_graph_print_dot(graph, refuse, &n_left), SHOAL_ERR_CANCELLED);
        CHECK_INT(n_left, -1);
    }
    CHECK_STATUS(shoal_graph_print(NULL, refuse, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_print(graph, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_print_dot(NULL, refuse, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_print_dot(graph, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("write is NULL");
    shoal_graph_free(graph);
}

/* A constant whose memory is gone cannot be printed. */
TEST(a_constant_without_memory_is_an_error)
{
    shoal_graph *graph;
    struct graph_text text = {.bytes = NULL};
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_graph_create(&graph));
    shoal_tensor *tensor = shoal_zeros((int64_t[]){3}, 1, SHOAL_F32);
    REQUIRE_OK(shoal_graph_constant(graph, "gone", tensor, NULL));
    CHECK_OK(shoal_tensor_release_data(tensor));
    CHECK_STATUS(shoal_graph_print(graph, graph_text_write, &text), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("%gone");
    free(text.bytes);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status read_and_print(void *context)
{
    shoal_graph *graph;
    struct graph_text text = {.bytes = NULL};
    shoal_status status = shoal_graph_parse(context, strlen(context), &graph);
    if (status == SHOAL_OK) {
        status = shoal_graph_print(graph, graph_text_write, &text);
        free(text.bytes);
        shoal_graph_free(graph);
    }
    return status;
}

TEST(every_allocation_may_fail)
{
    static const char lists[] = "graph { %a = constant [1, 2, 3, 4] : f32[2, 2]{1, 2}\n"
                                "%b = opaque \"f\"([[[%a], %a], 1]) : [f32[2], f32[2, 2]{1, 2}] }";
    static const char shared[] = "graph { %a = constant storage \"0000803f0000803f\" + 1 : f32[1]\n"
                                 "%b = constant of %a : f32[2] %c = constant storage 4 : f32[]\n"
                                 "%d = constant of %c : u8[4] }";
    CHECK(test_sweep_allocations(read_and_print, (void *)example) > 0);
    CHECK(test_sweep_allocations(read_and_print, (void *)lists) > 0);
    CHECK(test_sweep_allocations(read_and_print, (void *)shared) > 0);
}

TEST(a_hundred_thousand_nodes)
{
    enum {
        N_NODES = 100000
    };
    struct graph_text text = {.bytes = NULL};
    char line[128];
    REQUIRE(graph_text_write(&text, "graph {\n    %x0 = placeholder : f32[4]\n", 39) == 0);
    for (int i = 1; i < N_NODES; i++) {
        int length = snprintf(line, sizeof line, "    %%x%d = add(%%x%d, %%x%d) : f32[4]\n", i, i - 1, i / 2);
        REQUIRE(graph_text_write(&text, line, (size_t)length) == 0);
    }
    REQUIRE(graph_text_write(&text, "}\n", 2) == 0);
    shoal_graph *graph = NULL;
    if (CHECK_OK(shoal_graph_parse(text.bytes, text.length, &graph))) {
        CHECK_INT(shoal_graph_n_nodes(graph), N_NODES);
        char *printed = graph_text_print(graph);
        CHECK(printed && strcmp(printed, text.bytes) == 0);
        free(printed);
        shoal_graph_free(graph);
    }
    free(text.bytes);
}
