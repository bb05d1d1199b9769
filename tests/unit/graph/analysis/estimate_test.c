/* SPDX-License-Identifier: MIT */
/* Machines as files, and what graphs take on one whose numbers are easy to add up. */
#include "fixtures/graph_build.h"
#include "fixtures/scratch.h"
#include "graph/analysis/estimate.h"
#include "harness/test.h"

#define HEAD                                                                                    \
    "\"name\": \"m\", \"call_ns\": 10, \"touched_bytes_per_ns\": 2, \"operations_per_ns\": 4, " \
    "\"functions_per_ns\": 0.5, \"start_ns\": 100, "
#define ROW(transport, ranks, op, latency)                                                                  \
    "{\"transport\": \"" transport "\", \"ranks\": " ranks ", \"op\": \"" op "\", \"latency_ns\": " latency \
    ", \"bytes_per_ns\": 1}"
#define GOOD_ROW ROW("shm", "2", "all_reduce", "1000")
#define FILE_OF(hidden, rows) \
    "{\"shoal_machine\": 1, " HEAD "\"hidden\": " hidden ", \"collectives\": [" rows "]}"

static shoal_status load(const char *text, struct machine *machine)
{
    struct scratch scratch = scratch_make();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/m.json", scratch.path);
    FILE *file = fopen(path, "w");
    if (!file) {
        test_failed(__FILE__, __LINE__, "%s cannot be written", path);
        return SHOAL_ERR_INTERNAL;
    }
    CHECK(fputs(text, file) >= 0);
    CHECK(fclose(file) == 0);
    shoal_status status = machine_load(path, machine);
    CHECK(remove(path) == 0);
    CHECK(rmdir(scratch.path) == 0);
    return status;
}

TEST(files_that_are_no_machine)
{
    static const struct {
        const char *text;
        const char *error;
    } rows[] = {
        {"", "this is not valid JSON"},
        {"[1]", "there is no number \"shoal_machine\""},
        {"{\"shoal_machine\": 2}", "its format is 2, but this library reads 1"},
        {"{\"shoal_machine\": 1}", "\"name\" must be a word"},
        {"{\"shoal_machine\": 1, \"name\": \"\"}", "\"name\" must be a word of 1 to 63 characters"},
        {"{\"shoal_machine\": 1, \"name\": \"a\\nb\"}", "\"name\" must be a word"},
        {"{\"shoal_machine\": 1, \"name\": \"m\", \"call_ns\": -1}", "\"call_ns\" must be a number above 0"},
        {"{\"shoal_machine\": 1, \"name\": \"m\", \"call_ns\": \"1\"}", "\"call_ns\" must be a number"},
        {"{\"shoal_machine\": 1, \"name\": \"m\", \"call_ns\": 1e300}", "at most 1e+12"},
        {FILE_OF("1.5", GOOD_ROW), "\"hidden\" must be a number from 0, at most 1"},
        {FILE_OF("0", ""), "\"collectives\" must be a list of 1 to"},
        {FILE_OF("0", "7"), "row 1 of \"collectives\": an object expected"},
        {FILE_OF("0", GOOD_ROW ", " ROW("shm", "2.5", "all_gather", "1")),
         "row 2 of \"collectives\": \"ranks\" 2.5 is not a whole number"},
        {FILE_OF("0", ROW("shm", "2", "all_reduce", "0")), "\"latency_ns\" must be a number above 0"},
        {FILE_OF("0", GOOD_ROW ", " ROW("socket", "2", "all_gather", "1")),
         "transport socket has no row for all_reduce"},
    };
    struct machine machine;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_STATUS(load(rows[i].text, &machine), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].error);
    }
    CHECK_STATUS(machine_load("/nowhere/at/all", &machine), SHOAL_ERR_SYSTEM);
    CHECK_STATUS(machine_load("/", &machine), SHOAL_ERR_INVALID);
}

TEST(rows_are_found)
{
    struct machine machine;
    REQUIRE_OK(load(FILE_OF("0", ROW("shm", "2", "all_reduce", "1") ", " ROW(
                                     "shm", "8", "all_reduce", "2") ", " ROW("shm", "4", "all_gather", "3")),
                    &machine));
    CHECK(machine_find(&machine, "all_reduce", 1)->latency_ns == 1);
    CHECK(machine_find(&machine, "all_reduce", 2)->latency_ns == 1);
    CHECK(machine_find(&machine, "all_reduce", 3)->latency_ns == 2);
    CHECK(machine_find(&machine, "all_reduce", 100)->latency_ns == 2);
    CHECK(machine_find(&machine, "all_gather", 2)->latency_ns == 3);
    CHECK(machine_find(&machine, "broadcast", 8)->latency_ns == 2);
}

/* What is written down tells machines apart: any number, and the name. */
TEST(descriptions_differ)
{
    struct machine machine;
    struct machine other;
    char one[MACHINE_TEXT_BYTES];
    char two[MACHINE_TEXT_BYTES];
    REQUIRE_OK(load(FILE_OF("0.5", GOOD_ROW), &machine));
    REQUIRE_OK(load(FILE_OF("0.5", GOOD_ROW), &other));
    machine_describe(&machine, one);
    machine_describe(&other, two);
    CHECK_STRING(one, two);
    REQUIRE_OK(load(FILE_OF("0.25", GOOD_ROW), &other));
    machine_describe(&other, two);
    CHECK(strcmp(one, two) != 0);
    REQUIRE_OK(load(FILE_OF("0.5", ROW("shm", "3", "all_reduce", "1000")), &other));
    machine_describe(&other, two);
    CHECK(strcmp(one, two) != 0);
}

/* An all_reduce of 400 bytes takes 1000 + 400 ns, a neg of 400 bytes 10 + 800 / 2 = 410. */
static struct estimate estimate_chain(const char *hidden, int n_beside, int n_behind)
{
    struct machine machine;
    struct estimate estimate = {.compute_ns = 0};
    char text[2048];
    (void)snprintf(text, sizeof text,
                   "{\"shoal_machine\": 1, " HEAD "\"hidden\": %s, \"collectives\": [" GOOD_ROW "]}", hidden);
    if (!CHECK_OK(load(text, &machine))) {
        return estimate;
    }
    shoal_graph *graph = build_graph(2);
    shoal_node *a = build_input(graph, "a", 100);
    shoal_node *start = build_all_reduce(graph, a);
    shoal_node *chain = a;
    for (int i = 0; i < n_beside; i++) {
        chain = BUILD_CALL(graph, "neg", arg_node(chain));
    }
    shoal_node *wait = build_wait(graph, start);
    for (int i = 0; i < n_behind; i++) {
        chain = BUILD_CALL(graph, "neg", arg_node(chain));
    }
    build_output(graph, 2, chain, wait);
    CHECK_OK(estimate_graph(&machine, graph, &estimate));
    shoal_graph_free(graph);
    return estimate;
}

TEST(a_start_and_what_stands_beside_it)
{
    struct estimate none = estimate_chain("1", 0, 4);
    CHECK_INT(none.compute_ns, 1640);
    CHECK_INT(none.communication_ns, 1400);
    CHECK_INT(none.exposed_ns, 1500); /* with the start */
    CHECK(none.peak_bytes >= 800);
    CHECK_INT(estimate_chain("1", 2, 2).exposed_ns, 1500 - 820);
    CHECK_INT(estimate_chain("1", 4, 0).exposed_ns, 100);  /* all of it is hidden */
    CHECK_INT(estimate_chain("0", 4, 0).exposed_ns, 1500); /* nothing can be */
    CHECK_INT(estimate_chain("0.5", 4, 0).exposed_ns, 800);
}

/* Two tensors of 400 bytes in one call: latency once, bytes twice. The first wait, for an element of the list, takes it
   all; the second takes nothing. */
TEST(coalesced_starts_are_one_collective)
{
    static const char text[] = "graph {\n"
                               "group @w = [[0, 1]]\n"
                               "%a = placeholder : f32[100]\n"
                               "%b = placeholder : f32[100]\n"
                               "%s = all_reduce_coalesced([%a, %b], \"sum\", @w)\n"
                               "%i = getitem(%s, 0)\n"
                               "%j = getitem(%s, 1)\n"
                               "%c = wait_tensor(%i)\n"
                               "%d = wait_tensor(%j)\n"
                               "return [%c, %d]\n"
                               "}\n";
    struct machine machine;
    struct estimate estimate = {.compute_ns = 0};
    shoal_graph *graph = NULL;
    REQUIRE_OK(load(FILE_OF("1", GOOD_ROW), &machine));
    REQUIRE_OK(shoal_graph_parse(text, sizeof text - 1, &graph));
    CHECK_OK(estimate_graph(&machine, graph, &estimate));
    CHECK_INT(estimate.compute_ns, 0);
    CHECK_INT(estimate.communication_ns, 1800);
    CHECK_INT(estimate.exposed_ns, 1900);
    shoal_graph_free(graph);
}
