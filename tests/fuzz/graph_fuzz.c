/* SPDX-License-Identifier: MIT */
/*
 * Graph text that was good, changed at random, into its reader: it must answer, with line and column where it refuses, never
 * read where it may not (the address sanitizer), and lose no memory; what it accepts reads back as the same graph.
 */
#include <string.h>

#include "fixtures/graph_text.h"
#include "fuzz/fuzz.h"
#include "harness/test.h"
#include "shoal/graph.h"

static const char *const words[] = {
    "%x",
    "%y = neg(%x)",
    "%sum",
    "@g",
    "group @h = [[0], [1]]",
    "return [%x]",
    "placeholder : f32[2, 3]",
    "constant [1, -2.5, inf] : f32[3]",
    "constant hex \"0102\" : u8[2]",
    "constant : f32[2, 3]{1, 2}",
    "constant storage \"0001020304050607\" + 1 : f32[1]",
    "constant of %a + 1 : u8[3]",
    "opaque \"f\"(%x, [1, [none]]) : [f32[2], i8[]]",
    "rank(@g) * 2 - 1",
    "nan(0x7ff8000000000001)",
    "add(%x, %x)",
    "unit \"layers.0\"",
    "neg(%x) unit \"a\"",
    "view(%x, [6])",
    "transpose(%x, 0, 1)",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "1e308",
    "1e-320",
    "0x",
    "c128",
    "bool",
    "\"a\\n\\x7f\"",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "# x\n",
    "\n",
    " ",
};

static const char *const texts[] = {
    "graph { }",
    "graph {\n    group @g = [[0, 1], [2, 3]]\n    %x = placeholder : f32[2, 3]\n"
    "    %w = constant [1.5, -2.0, inf, nan, 0.1, -0.0] : f32[2, 3]{1, 2}\n    %mm = add(%x, %w) unit \"u\" "
    ": f32[2, "
    "3]\n"
    "    %sum = all_reduce(%mm, \"sum\", @g, nan) : f32[2, 3]\n    %done = wait_tensor(%sum) : f32[2, 3]\n"
    "    %parts = split_with_sizes(%done, [1, 1], 0) : [f32[1, 3], f32[1, 3]]\n"
    "    %first = getitem(%parts, 0) : f32[1, 3]\n    %n = narrow(%x, 0, rank(@g), 1) : f32[1, 3]\n"
    "    %o = opaque \"aten.mul.Tensor\"(%x, 2, [true, f32, \"\\x01\"]) : f32[4, 4]\n    return [%first, "
    "[%n, %o]]\n}\n",
    "graph { %a = constant [1, 2] : i64[2] %b = constant [(1, -1)] : c64[1] %c = constant hex \"ff7f\" : "
    "f16[1]\n"
    "%d = constant [true, false] : bool[2] %e = constant : bf16[1000, 1000] %f = opaque \"g\"() : none\n"
    "%output = opaque \"h\"(rank(@g) * -2 + 7) : [] %end = return [] group @g = [[0]] }",
};

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    shoal_graph *graph = NULL;
    shoal_status status = shoal_graph_parse((const char *)bytes, n_bytes, &graph);
    if (status != SHOAL_OK) {
        /* A type may ask for more than the machine has. */
        CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_NO_MEMORY);
        CHECK(!graph && strncmp(shoal_error_text(), "line ", 5) == 0);
        return;
    }
    graph_text_check_round_trip(graph);
    shoal_graph_free(graph);
}

static void make_input(struct test_random *random, struct fuzz_input *input)
{
    const char *text = texts[test_random_below(random, sizeof texts / sizeof texts[0])];
    input->n_bytes = strlen(text);
    memcpy(input->bytes, text, input->n_bytes);
    fuzz_mutate(input, random, words, sizeof words / sizeof words[0]);
}

const struct fuzz_target fuzz_target = {.name = "graph", .make = make_input, .try_input = try_bytes};
