/* SPDX-License-Identifier: MIT */
/* Texts that are no graph: errors say where, what was found and what belongs there; nothing is lost, nothing recurses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/graph_text.h"
#include "graph/text/dot.h"
#include "harness/test.h"
#include "shoal/graph.h"

struct bad {
    const char *text;
    const char *words; /* of the error */
};

static void check_bad(const char *text, size_t bytes, const char *words)
{
    shoal_graph *graph = (shoal_graph *)(void *)&graph;
    if (!CHECK_STATUS(shoal_graph_parse(text, bytes, &graph), SHOAL_ERR_INVALID) ||
        !CHECK_ERROR_TEXT(words)) {
        test_failed(__FILE__, __LINE__, "\"%s\" in %.200s", shoal_error_text(), text);
    }
    CHECK((void *)graph == (void *)&graph);
}

static void check_all_bad(const struct bad *rows, size_t n_rows)
{
    for (size_t i = 0; i < n_rows; i++) {
        check_bad(rows[i].text, strlen(rows[i].text), rows[i].words);
    }
}

#define CHECK_ALL_BAD(rows) check_all_bad(rows, sizeof(rows) / sizeof(rows)[0])

/* Around a statement that stands in line 2 behind four blanks. */
#define IN_GRAPH(statement) "graph { group @g = [[0, 1]] %x = placeholder : f32[4, 4]\n    " statement "\n}"

TEST(structure)
{
    static const struct bad rows[] = {
        {"", "line 1, column 1: expected graph, found the end of the text"},
        {"\n\n  grap {", "line 3, column 3: expected graph, found 'grap'"},
        {"graph", "line 1, column 6: expected '{', found the end of the text"},
        {"graph [", "line 1, column 7: expected '{', found '['"},
        {"graph {",
         "line 1, column 8: expected %name = ..., group, return or '}', found the end of the text"},
        {"graph {\n  add(%x)\n}",
         "line 2, column 3: expected %name = ..., group, return or '}', found 'add'"},
        {"graph { } }", "line 1, column 11: expected the end of the text, found '}'"},
        {"graph { } graph { }", "line 1, column 11: expected the end of the text, found 'graph'"},
        {IN_GRAPH("return %x %y = neg(%x)"), "line 2, column 15: expected '}', found '%y'"},
        {IN_GRAPH("%y neg(%x)"), "line 2, column 8: expected '=', found 'neg'"},
        {IN_GRAPH("%y = %x"),
         "line 2, column 10: expected an op, placeholder, constant, opaque or return, found '%x'"},
        {IN_GRAPH("%y = neg %x"), "line 2, column 14: expected '(' after the name of an op, found '%x'"},
        {IN_GRAPH("%y = neg(%x"), "line 3, column 1: expected ',' or ')', found '}'"},
        {IN_GRAPH("%y = neg(%x,)"), "line 2, column 17: expected an argument, found ')'"},
        {IN_GRAPH("%y = neg(%x)) "), "line 2, column 17: expected %name"},
        {IN_GRAPH("% = neg(%x)"), "line 2, column 5: expected a name after '%'"},
        {IN_GRAPH("%y = neg(@)"), "line 2, column 14: expected a name after '@'"},
        {IN_GRAPH("%y = neg(%x) ; "), "line 2, column 18: unexpected ';'"},
        {IN_GRAPH("%y = neg(\x01)"), "line 2, column 14: unexpected byte 0x01"},
        {IN_GRAPH("%y = neg(\xc3\xa4)"), "line 2, column 14: unexpected byte 0xc3"},
        {IN_GRAPH("return"), "line 3, column 1: expected an argument, found '}'"},
        {IN_GRAPH("return 3"), "line 2, column 5: "},
        {IN_GRAPH("return [%x, [1.5]]"), "line 2, column 5: "},
    };
    CHECK_ALL_BAD(rows);
}

TEST(names)
{
    static const struct bad rows[] = {
        {IN_GRAPH("%y = neg(%z)"), "line 2, column 14: there is no node %z"},
        {IN_GRAPH("%y = neg(%z)\n    %z = neg(%x)"),
         "line 2, column 14: %z is used before it is defined, in line 3"},
        {IN_GRAPH("%y = neg(%y)"), "line 2, column 14: there is no node %y"},
        {IN_GRAPH("%x = neg(%x)"), "line 2, column 5: %x is defined twice"},
        {IN_GRAPH("%.z = neg(%x)"), "line 2, column 5: \".z\" cannot be the name of a node; %_z could"},
        {IN_GRAPH("%3 = neg(%x)"), "line 2, column 5: \"3\" cannot be the name of a node"},
        {IN_GRAPH("%y = sum(%x, 3)"), "sum: dims: the value is of kind int, ints expected"},
        {IN_GRAPH("%y = negg(%x)"),
         "line 2, column 10: there is no op negg; the nearest are \"neg\" and \"neg_\""},
        {IN_GRAPH("%y = nn.tanh(%x)"),
         "there is no op nn.tanh; the ops of libshoal_nn exist after shoal_nn_init()"},
        {IN_GRAPH("%y = broadcast(%x, 0, @h)"), "line 2, column 27: there is no group @h; the nearest"},
        {"graph { %x = placeholder : f32[4] %y = broadcast(%x, 0, @h) }",
         "there is no group @h; there are no groups"},
        {IN_GRAPH("%y = narrow(%x, 0, rank(@shard), 1)"), "line 2, column 29: there is no group @shard"},
        {IN_GRAPH("%y = narrow(%x, 0, rank(%x), 1)"), "line 2, column 29: expected a group, found '%x'"},
        {IN_GRAPH("%y = narrow(%x, 0, rank + 1, 1)"), "line 2, column 29: expected '(', found '+'"},
        {IN_GRAPH("%y = to_dtype(%x, f33)"), "line 2, column 23: expected an argument, found 'f33'"},
    };
    CHECK_ALL_BAD(rows);
}

TEST(groups)
{
    static const struct bad rows[] = {
        {"graph { group = [[0]] }", "line 1, column 15: expected a name such as @shard, found '='"},
        {"graph { group @g [[0]] }", "line 1, column 18: expected '=', found '['"},
        {"graph { group @g = [0] }", "line 1, column 21: expected '[', found '0'"},
        {"graph { group @g = [] }", "line 1, column 21: expected '[', found ']'"},
        {"graph { group @g = [[]] }", "line 1, column 15: "},
        {"graph { group @g = [[0], [1, 2]] }",
         "line 1, column 26: the list has 2 ranks, but the first one has 1"},
        {"graph { group @g = [[0, -1]] }", "line 1, column 25: expected a rank, found '-'"},
        {"graph { group @g = [[0, 2147483648]] }", "line 1, column 25: 2147483648 is too large"},
        {"graph { group @g = [[0, 1], [2, 0]] }", "line 1, column 15: "},
        {"graph { group @g = [[0]]\n group @g = [[0]] }", "line 2, column 8: the group @g is defined twice"},
        {"graph { group @g = [[0]", "line 1, column 24: expected ',' or ']', found the end of the text"},
        {"graph { group @g.h = [[0]] }", "line 1, column 15: "},
    };
    CHECK_ALL_BAD(rows);
}

TEST(numbers_and_strings)
{
#define IN_CALL(argument) IN_GRAPH("%y = opaque \"f\"(" argument ") : f32[]")
    static const struct bad rows[] = {
        {IN_CALL("9223372036854775808"), "line 2, column 21: 9223372036854775808 is too large"},
        {IN_CALL("-9223372036854775809"), "line 2, column 22: 9223372036854775809 is too large"},
        {IN_CALL("99999999999999999999999999999999999999999999999999"), "line 2, column 21: "},
        {IN_CALL("rank(@g) * 9223372036854775808"), "line 2, column 32: "},
        {IN_CALL("rank(@g) + 9223372036854775808"), "line 2, column 32: "},
        {IN_CALL("rank(@g) * 1.5"), "line 2, column 32: expected an integer, found '1.5'"},
        {IN_CALL("1e309"), "line 2, column 21: 1e309 is too large for f64"},
        {IN_CALL("1e999999999999999999999"), "line 2, column 21: 1e999999999999999999999 is too large"},
        {IN_CALL("1e-400"), "line 2, column 21: 1e-400 is too small for f64"},
        {IN_CALL("1.5.2"), "line 2, column 21: '1.5.2' is not a number"},
        {IN_CALL("1."), "line 2, column 21: '1.' is not a number"},
        {IN_CALL("1e"), "line 2, column 21: '1e' is not a number"},
        {IN_CALL("0x10"), "line 2, column 21: '0x10' is not a number"},
        {IN_CALL("- x"), "line 2, column 23: expected a number or inf, found 'x'"},
        {IN_CALL("-nan"), "line 2, column 22: expected a number or inf, found 'nan'"},
        {IN_CALL("nan(5)"), "line 2, column 25: expected the 16 hexadecimal digits of a NaN"},
        {IN_CALL("nan(0x3ff0000000000000)"),
         "line 2, column 25: expected the 16 hexadecimal digits of a NaN"},
        {IN_CALL("nan(0x7ff0000000000000)"),
         "line 2, column 25: expected the 16 hexadecimal digits of a NaN"},
        {IN_CALL("\"abc"), "line 2, column 21: the string has no closing quote in its line"},
        {IN_CALL("\"ab\\"), "line 2, column 21: the string has no closing quote in its line"},
        {IN_CALL("\"ab\\q\""), "line 2, column 24: expected \\n"},
        {IN_CALL("\"ab\\x1\""), "line 2, column 24: expected \\n"},
        {IN_CALL("\"ab\\x00\""), "line 2, column 24: a string cannot have a zero byte"},
        /* Columns count characters. */
        {IN_CALL("\"\xc3\xa4\xe2\x82\xac\", x"), "line 2, column 27: expected an argument, found 'x'"},
    };
    CHECK_ALL_BAD(rows);
}

TEST(types)
{
    static const struct bad rows[] = {
        {IN_GRAPH("%y = placeholder"), "line 3, column 1: expected ':', found '}'"},
        {IN_GRAPH("%y = placeholder : "), "line 3, column 1: expected a type, found '}'"},
        {IN_GRAPH("%y = placeholder : f33[2]"), "line 2, column 24: "},
        {IN_GRAPH("%y = placeholder : f32"), "line 3, column 1: expected '[', found '}'"},
        {IN_GRAPH("%y = placeholder : f32[2, -1]"), "line 2, column 31: a dimension cannot be negative"},
        {IN_GRAPH("%y = placeholder : f32[2 3]"), "line 2, column 30: expected ',' or ']', found '3'"},
        {IN_GRAPH("%y = placeholder : f32[1, 1, 1, 1, 1, 1, 1, 1, 1]"),
         "line 2, column 52: more than 8 dimensions"},
        {IN_GRAPH("%y = placeholder : f32[9223372036854775807, 9223372036854775807]"), "line 2, column 24: "},
        {IN_GRAPH("%y = placeholder : f64[9223372036854775807]"), "line 2, column 24: "},
        {IN_GRAPH("%y = placeholder : f32[2, 2]{1, 2}"),
         "line 2, column 24: a placeholder cannot have strides"},
        {IN_GRAPH("%y = neg(%x) : f32[4]"),
         "line 2, column 20: the text says f32[4], but neg gives f32[4, 4]"},
        {IN_GRAPH("%y = neg(%x) : f64[4, 4]"),
         "line 2, column 20: the text says f64[4, 4], but neg gives f32[4, 4]"},
        {IN_GRAPH("%y = neg(%x) : f32[4, 4]{1, 4}"),
         "line 2, column 20: the text says f32[4, 4]{1, 4}, but neg"},
        {IN_GRAPH("%y = neg(%x) : [f32[4, 4]]"),
         "line 2, column 20: the text says a list of 1 tensors, but neg gives a tensor"},
        {IN_GRAPH("%y = neg(%x) : none"), "line 2, column 20: the text says nothing, but neg gives a tensor"},
        {IN_GRAPH("%y = split(%x, 2) : [f32[2, 4]]"),
         "the text says a list of 1 tensors, but split gives a list of 2"},
        {IN_GRAPH("%y = split(%x, 2) : [f32[2, 4], f32[2, 5]]"),
         "line 2, column 37: the text says f32[2, 5]"},
        {IN_GRAPH("%y = opaque \"f\"(%x)"), "line 3, column 1: expected ':', found '}'"},
        {IN_GRAPH("%y = opaque f(%x) : f32[]"),
         "line 2, column 17: expected a string that says what is called"},
        {IN_GRAPH("%y = opaque \"f\"(%x) : f32[2]{1, 2}"), "line 2, column 33: 2 strides for 1 dimensions"},
        {IN_GRAPH("%y = opaque \"f\"(%x) : f32[3]{9223372036854775807}"), "line 2, column 27: "},
    };
    CHECK_ALL_BAD(rows);
}

TEST(calls)
{
    static const struct bad rows[] = {
        {IN_GRAPH("%y = neg()"), "line 2, column 10: "},
        {IN_GRAPH("%y = neg(%x, 1)"), "line 2, column 10: "},
        {IN_GRAPH("%y = neg(3)"), "line 2, column 10: "},
        {IN_GRAPH("%y = narrow(%x, 0, 3, 2)"), "line 2, column 10: "},
        {IN_GRAPH("%y = reshape(%x, [5, 5])"), "line 2, column 10: "},
        {IN_GRAPH("%y = opaque \"\"(%x) : f32[]"), "line 2, column 10: "},
    };
    CHECK_ALL_BAD(rows);
}

TEST(constants)
{
    static const struct bad rows[] = {
        {IN_GRAPH("%y = constant [1, 2] : f32[3]"),
         "line 2, column 20: 2 elements in the list, 3 in the type"},
        {IN_GRAPH("%y = constant [1, 2] : f32[1000000000000]"), "line 2, column 20: 2 elements in the list"},
        {IN_GRAPH("%y = constant [1, x] : f32[2]"),
         "line 2, column 23: expected a number, inf or nan, found 'x'"},
        {IN_GRAPH("%y = constant [1 2] : f32[1]"), "line 2, column 22: expected ',' or ']', found '2'"},
        {IN_GRAPH("%y = constant [1, ] : f32[2]"),
         "line 2, column 23: expected a number, inf or nan, found ']'"},
        {IN_GRAPH("%y = constant [1e39] : f32[1]"), "line 2, column 20: 1e39 is too large for f32"},
        {IN_GRAPH("%y = constant [65520] : f16[1]"), "line 2, column 20: 65520 is too large for f16"},
        {IN_GRAPH("%y = constant [465] : f8_e4m3fn[1]"), "line 2, column 20: 465 is too large for f8_e4m3fn"},
        {IN_GRAPH("%y = constant [-inf] : f8_e4m3fn[1]"), "line 2, column 21: f8_e4m3fn has no infinity"},
        {IN_GRAPH("%y = constant [1e-50] : f32[1]"), "line 2, column 20: 1e-50 is too small for f32"},
        {IN_GRAPH("%y = constant [128] : i8[1]"), "line 2, column 20: 128 is too large: at most 127"},
        {IN_GRAPH("%y = constant [-129] : i8[1]"), "line 2, column 21: 129 is too large: at most 128"},
        {IN_GRAPH("%y = constant [-1] : u8[1]"), "line 2, column 20: a negative number in a constant of u8"},
        {IN_GRAPH("%y = constant [1.5] : i32[1]"), "line 2, column 20: expected an integer, found '1.5'"},
        {IN_GRAPH("%y = constant [18446744073709551616] : u64[1]"), "line 2, column 20: "},
        {IN_GRAPH("%y = constant [1] : bool[1]"), "line 2, column 20: expected true or false, found '1'"},
        {IN_GRAPH("%y = constant [1] : c64[1]"), "line 2, column 20: expected '(', found '1'"},
        {IN_GRAPH("%y = constant [(1)] : c64[1]"), "line 2, column 22: expected ',', found ')'"},
        {IN_GRAPH("%y = constant [1 : f32[1]"), "line 2, column 22: expected ',' or ']', found ':'"},
        {"graph { %y = constant [1", "line 1, column 25: expected ',' or ']', found the end of the text"},
        {IN_GRAPH("%y = constant hex 00 : u8[1]"),
         "line 2, column 23: expected a string of hexadecimal digits"},
        {IN_GRAPH("%y = constant hex \"0\" : u8[1]"),
         "line 2, column 23: 1 hexadecimal digits, but the type has 1"},
        {IN_GRAPH("%y = constant hex \"0000\" : f32[1]"), "line 2, column 23: 4 hexadecimal digits"},
        {IN_GRAPH("%y = constant hex \"0g\" : u8[1]"), "line 2, column 25: expected a hexadecimal digit"},
        {IN_GRAPH("%y = constant [1, 2] : f32[2]{1000000000000}"), "line 2, column 28: "},
        {IN_GRAPH("%y = constant of %x : f32[2]"),
         "line 2, column 22: there is no constant %x before this one"},
        {IN_GRAPH("%y = constant of %z : f32[2]"),
         "line 2, column 22: there is no constant %z before this one"},
        {IN_GRAPH("%y = constant of 3 : f32[2]"), "line 2, column 22: expected a node, found '3'"},
        {IN_GRAPH("%y = constant storage %x : f32[2]"),
         "line 2, column 27: expected a string of hexadecimal digits"},
        {IN_GRAPH("%y = constant storage \"000\" : u8[1]"),
         "line 2, column 27: an odd number of hexadecimal digits"},
        {IN_GRAPH("%y = constant storage \"0x\" : u8[1]"), "line 2, column 29: expected a hexadecimal digit"},
        {IN_GRAPH("%y = constant storage \"0000\" : f32[1]"), "line 2, column 36: "},
        {IN_GRAPH("%y = constant storage \"00000000\" + 1 : f32[1]"), "line 2, column 44: "},
        {IN_GRAPH("%y = constant storage 7 + 1 : f32[1]"), "line 2, column 35: "},
        {IN_GRAPH("%y = constant storage 7 + x : f32[1]"),
         "line 2, column 31: expected an integer, found 'x'"},
        {IN_GRAPH("%y = constant storage 9223372036854775808 : u8[1]"), "line 2, column 27: "},
        {IN_GRAPH("%y = constant"), "line 3, column 1: expected ':', found '}'"},
    };
    CHECK_ALL_BAD(rows);
}

TEST(zero_bytes)
{
    static const char in_blank[] = "graph {\n \0 }";
    static const char in_string[] = "graph { %x = opaque \"a\0b\"() : f32[] }";
    static const char in_comment[] = "graph { # a\0b\n }";
    static const char behind[] = "graph { }";
    check_bad(in_blank, sizeof in_blank - 1, "line 2, column 2: the text contains a zero byte");
    check_bad(in_string, sizeof in_string - 1, "line 1, column 23: the text contains a zero byte");
    check_bad(in_comment, sizeof in_comment - 1, "line 1, column 12: the text contains a zero byte");
    check_bad(behind, sizeof behind, "line 1, column 10: the text contains a zero byte");
}

TEST(arguments_of_the_call)
{
    shoal_graph *graph = NULL;
    CHECK_STATUS(shoal_graph_parse(NULL, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("text is NULL");
    CHECK_STATUS(shoal_graph_parse("graph { }", 9, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_out is NULL");
    CHECK_STATUS(shoal_graph_parse(NULL, 0, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("line 1, column 1");
}

/* Every beginning of a good text is a bad one, and so is nearly every text in which a byte is missing. */
TEST(truncated)
{
    static const char whole[] =
        "graph { # begin\n group @g = [[0, 1]]\n %x = placeholder : f32[4, 4]\n"
        " %c = constant [1.5, (2)] : f32[2]\n"
        " %y = opaque \"a\\n\\x41\"(%x, [1, -2.5e3, rank(@g) * 2 - 1], nan) : [f32[1]{1}]\n"
        " %z = all_reduce(%x, \"sum\", @g) : f32[4, 4]\n return [%z]\n}";
    char *text = malloc(sizeof whole);
    REQUIRE(text);
    for (size_t n = 0; n < sizeof whole - 1 && !test_has_failed(); n++) {
        char *exact = malloc(n ? n : 1);
        REQUIRE(exact);
        memcpy(exact, whole, n);
        check_bad(exact, n, "line ");
        free(exact);
        memcpy(text, whole, n);
        memcpy(text + n, whole + n + 1, sizeof whole - n - 1);
        shoal_graph *graph = NULL;
        if (shoal_graph_parse(text, sizeof whole - 2, &graph) == SHOAL_OK) {
            shoal_graph_free(graph);
        } else {
            CHECK_ERROR_TEXT("line ");
        }
    }
    free(text);
}

/* Nesting ---------------------------------------------------------------------------------------------- */

/* A call whose argument is so many lists in each other. */
static char *nest(size_t depth)
{
    static const char head[] = "graph {\n%x = opaque \"f\"(";
    static const char tail[] = ") : f32[] }";
    char *text = malloc(sizeof head + 2 * depth + sizeof tail);
    if (text) {
        memcpy(text, head, sizeof head);
        memset(text + sizeof head - 1, '[', depth);
        memset(text + sizeof head - 1 + depth, ']', depth);
        memcpy(text + sizeof head - 1 + 2 * depth, tail, sizeof tail);
    }
    return text;
}

TEST(nested_lists)
{
    shoal_graph *graph = NULL;
    char *text = nest(64);
    REQUIRE(text);
    if (CHECK_OK(shoal_graph_parse(text, strlen(text), &graph))) {
        graph_text_check_round_trip(graph);
        shoal_graph_free(graph);
    }
    free(text);
    text = nest(65);
    REQUIRE(text);
    check_bad(text, strlen(text), "line 2, column 81: lists are nested more than 64 deep");
    free(text);
    text = nest(1000000);
    REQUIRE(text);
    check_bad(text, strlen(text), "line 2, column 81: lists are nested more than 64 deep");
    free(text);
}

/* Pictures --------------------------------------------------------------------------------------------- */

TEST(dot)
{
    static const char text[] =
        "graph { group @g = [[0, 1]] %x = placeholder : f32[4, 4] %c = constant : f32[4]\n"
        "%s = all_reduce(%x, \"sum\", @g) %w = wait_tensor(%s) %p = split(%w, 1)\n"
        "%o = opaque \"a\\\"\\\\b\\n\"([%w, %p], %w) : none return [%o] }";
    static const char expected[] =
        "digraph {\n"
        "    node [shape=box, style=filled, fontname=monospace];\n"
        "    n0 [label=\"%x\\nplaceholder\\nf32[4, 4]\", fillcolor=lightgrey];\n"
        "    n1 [label=\"%c\\nconstant\\nf32[4]\", fillcolor=yellow];\n"
        "    n2 [label=\"%s\\nall_reduce\\nf32[4, 4]\", fillcolor=lightsalmon];\n"
        "    n0 -> n2;\n"
        "    n3 [label=\"%w\\nwait_tensor\\nf32[4, 4]\", fillcolor=lightblue];\n"
        "    n2 -> n3;\n"
        "    n4 [label=\"%p\\nsplit\\n[f32[1, 4], f32[1, 4], f32[1, 4], f32[1, 4]]\", fillcolor=white];\n"
        "    n3 -> n4;\n"
        "    n5 [label=\"%o\\na\\\"\\\\b?\\nnone\", fillcolor=white];\n"
        "    n3 -> n5;\n"
        "    n4 -> n5;\n"
        "    n6 [label=\"%output\\noutput\", fillcolor=lightgrey];\n"
        "    n5 -> n6;\n"
        "    subgraph cluster_legend {\n"
        "        label=\"legend\";\n"
        "        legend0 [label=\"input, constant or output\", fillcolor=lightgrey];\n"
        "        legend1 [label=\"starts communication\", fillcolor=lightsalmon];\n"
        "        legend2 [label=\"waits for communication\", fillcolor=lightblue];\n"
        "        legend3 [label=\"compute that can hide communication\", fillcolor=palegreen];\n"
        "        legend4 [label=\"other calls\", fillcolor=white];\n"
        "        legend_marked [label=\"made\", fillcolor=yellow];\n"
        "    }\n"
        "}\n";
    shoal_graph *graph = NULL;
    struct graph_text picture = {.bytes = NULL};
    struct graph_text plain = {.bytes = NULL};
    REQUIRE_OK(shoal_graph_parse(text, strlen(text), &graph));
    const struct dot_marks marks = {.is_marked = (bool[]){false, true}, .n_marks = 2, .what = "made"};
    CHECK_OK(graph_print_dot_marked(graph, &marks, graph_text_write, &picture));
    CHECK_STRING(picture.bytes, expected);
    CHECK_OK(shoal_graph_print_dot(graph, graph_text_write, &plain));
    CHECK(plain.bytes && strstr(plain.bytes, "%c\\nconstant\\nf32[4]\", fillcolor=lightgrey"));
    free(plain.bytes);
    free(picture.bytes);
    shoal_graph_free(graph);
}
