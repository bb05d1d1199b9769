/* SPDX-License-Identifier: MIT */
/* Passes by name, and what happens around them. Registered passes stay for the life of the process. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "ddp_graph.h"
#include "graph/ir/observer.h"

static shoal_graph *two_averages(void)
{
    shoal_graph *graph = build_graph(8);
    shoal_node *first = ddp_average(graph, 3);
    shoal_node *second = ddp_average(graph, 4);
    build_output(graph, 2, first, second);
    return graph;
}

static shoal_status run(shoal_graph *graph, const char *pass, const shoal_pass_options *options,
                        shoal_pass_report *report)
{
    return shoal_graph_run_passes(graph, &pass, 1, options, report);
}

/* Names ----------------------------------------------------------------------------------------------------- */

TEST(unknown_names_run_nothing)
{
    shoal_graph *graph = two_averages();
    size_t n_nodes = shoal_graph_n_nodes(graph);
    const char *passes[] = {CONCAT, "schedule_com_wait"};
    CHECK_STATUS(shoal_graph_run_passes(graph, passes, 2, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is no pass \"schedule_com_wait\"; the nearest is \"schedule_comm_wait\"");
    CHECK_INT(shoal_graph_n_nodes(graph), n_nodes);
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    options.disabled = SCHEDULE ", fuse_ddp_with_cat_op";
    CHECK_STATUS(run(graph, CONCAT, &options, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("disabled: there is no pass \"fuse_ddp_with_cat_op\"");
    options.disabled = NULL;
    options.ddp_passes = DRIVER;
    CHECK_STATUS(run(graph, DRIVER, &options, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cannot contain itself");
    options.ddp_passes = "nothing";
    CHECK_STATUS(run(graph, CONCAT, &options, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_graph_n_nodes(graph), n_nodes);
    shoal_graph_free(graph);
}

TEST(bad_arguments)
{
    shoal_graph *graph = two_averages();
    const char *none = NULL;
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = {0};
    CHECK_STATUS(run(NULL, CONCAT, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_run_passes(graph, NULL, 1, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_run_passes(graph, &none, 1, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("passes[0] is NULL");
    CHECK_OK(shoal_graph_run_passes(graph, NULL, 0, NULL, NULL));
    CHECK_STATUS(run(graph, CONCAT, &options, &report), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("struct_size 0 of report_out");
    options.struct_size = 0;
    CHECK_STATUS(run(graph, CONCAT, &options, NULL), SHOAL_ERR_INVALID);
    options.struct_size = sizeof options;
    options.bucket_size_mb = (double)NAN;
    CHECK_STATUS(run(graph, CONCAT, &options, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("bucket_size_mb");
    shoal_graph_free(graph);
}

TEST(graph_that_is_not_whole)
{
    shoal_graph *graph = build_graph(8);
    ddp_average(graph, 3);
    ddp_average(graph, 4);
    CHECK_STATUS(run(graph, CONCAT, NULL, NULL), SHOAL_ERR_STATE);
    shoal_graph_free(graph);
}

TEST(rows_are_listed)
{
    shoal_pass_definition definition = SHOAL_PASS_DEFINITION_INIT;
    size_t n_found = 0;
    for (size_t i = 0; shoal_pass_at(i, &definition) == SHOAL_OK; i++) {
        CHECK(definition.name && definition.doc && definition.run);
        n_found += strcmp(definition.name, CONCAT) == 0 || strcmp(definition.name, COALESCED) == 0 ||
                   strcmp(definition.name, SCHEDULE) == 0 || strcmp(definition.name, DRIVER) == 0;
    }
    CHECK_INT(n_found, 4);
    CHECK_STATUS(shoal_pass_at(100000, &definition), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_pass_at(0, NULL), SHOAL_ERR_INVALID);
}

/* Registered passes ------------------------------------------------------------------------------------------ */

static shoal_status remove_dead(shoal_graph *graph, const shoal_pass_options *options,
                                shoal_pass_report *report, void *context)
{
    ++*(int *)context;
    if (options->struct_size != sizeof *options || report->struct_size != sizeof *report) {
        return shoal_fail(SHOAL_ERR_INTERNAL, "structs of other sizes");
    }
    return shoal_graph_remove_dead(graph, NULL);
}

static shoal_status give_up(shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                            void *context)
{
    return shoal_fail(SHOAL_ERR_UNSUPPORTED, "not today");
}

static shoal_status break_it(shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                             void *context)
{
    return shoal_node_move_before(shoal_graph_last(graph), shoal_graph_first(graph));
}

static void add_pass(const char *name, shoal_pass_function function, void *context)
{
    shoal_pass_definition definition = SHOAL_PASS_DEFINITION_INIT;
    definition.name = name;
    definition.run = function;
    definition.context = context;
    CHECK_OK(shoal_pass_register(&definition));
    test_keep_blocks(3);
}

TEST(passes_of_the_users)
{
    static int n_calls;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    BUILD_CALL(graph, "neg", arg_node(x));
    build_output(graph, 1, x);
    add_pass("test_remove_dead", remove_dead, &n_calls);
    add_pass("test_give_up", give_up, NULL);
    add_pass("test_break_it", break_it, NULL);
    CHECK_OK(run(graph, "test_remove_dead", NULL, &report));
    CHECK_INT(n_calls, 1);
    CHECK_INT(report.n_erased, 1);
    CHECK_INT(report.n_created, 0);
    CHECK_STATUS(run(graph, "test_give_up", NULL, &report), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("pass test_give_up: ");
    CHECK_ERROR_TEXT("not today");
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    options.disabled = " test_give_up ,,test_remove_dead";
    const char *both[] = {"test_give_up", "test_remove_dead"};
    CHECK_OK(shoal_graph_run_passes(graph, both, 2, &options, &report));
    CHECK_INT(n_calls, 1);
    options.disabled = NULL;
    options.ddp_passes = "test_remove_dead, test_remove_dead";
    CHECK_OK(run(graph, DRIVER, &options, &report));
    CHECK_INT(n_calls, 3);
    CHECK_STATUS(run(graph, "test_break_it", NULL, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("pass test_break_it: ");
    shoal_graph_free(graph);
}

TEST(registering_badly)
{
    shoal_pass_definition definition = SHOAL_PASS_DEFINITION_INIT;
    CHECK_STATUS(shoal_pass_register(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_pass_register(&definition), SHOAL_ERR_INVALID);
    definition.name = "1st";
    CHECK_STATUS(shoal_pass_register(&definition), SHOAL_ERR_INVALID);
    definition.name = "a,b";
    CHECK_STATUS(shoal_pass_register(&definition), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("contains ','");
    definition.name = "test_without_function";
    CHECK_STATUS(shoal_pass_register(&definition), SHOAL_ERR_INVALID);
    definition.name = CONCAT;
    definition.run = give_up;
    CHECK_STATUS(shoal_pass_register(&definition), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is a pass \"" CONCAT "\" already");
}

/* The driver -------------------------------------------------------------------------------------------------- */

TEST(driver_runs_its_list)
{
    shoal_graph *graph = two_averages();
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    CHECK_OK(run(graph, DRIVER, NULL, &report));
    CHECK_INT(report.n_buckets, 1);
    CHECK_INT(report.n_created, 2 + 4 + 1 + 4);
    CHECK_INT(report.n_erased, 6);
    CHECK_NODES(
        graph,
        "p neg p_1 neg_1 flatten flatten_1 cat div_scalar_2 all_reduce_2 wait_tensor_2 split_with_sizes "
        "getitem reshape getitem_1 reshape_1 output");
    shoal_graph_free(graph);
    graph = two_averages();
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    options.ddp_passes = COALESCED;
    CHECK_OK(run(graph, DRIVER, &options, NULL));
    CHECK_INT(ddp_count(graph, "all_reduce_coalesced"), 1);
    shoal_graph_free(graph);
    graph = two_averages();
    options.ddp_passes = NULL;
    options.disabled = CONCAT;
    CHECK_OK(run(graph, DRIVER, &options, NULL));
    CHECK_INT(ddp_count(graph, "all_reduce"), 2);
    shoal_graph_free(graph);
}

/* D33 --------------------------------------------------------------------------------------------------------- */

TEST(d33_provenance)
{
    shoal_graph *graph = two_averages();
    CHECK_OK(run(graph, CONCAT, NULL, NULL));
    const shoal_node *cat = ddp_find(graph, "cat", 0);
    const shoal_node *result = ddp_find(graph, "reshape", 1);
    REQUIRE(cat && cat->origins && result && result->origins);
    CHECK_STRING(cat->origins->pass, CONCAT);
    CHECK_INT(cat->origins->kind, ORIGIN_CREATE);
    CHECK_INT(result->origins->kind, ORIGIN_CREATE | ORIGIN_REPLACE);
    CHECK_STRING(result->origins->old, "wait_tensor_1");
    CHECK(shoal_graph_first(graph)->origins == NULL);
    shoal_graph_free(graph);
}

/* The bytes of PREFIXpass_<any number>_PASS_WHICH_graph.dot; false when there is no such file. */
static bool read_picture(const char *prefix, const char *pass, const char *which, char *text, size_t capacity)
{
    for (unsigned number = 0; number < 1000; number++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%spass_%u_%s_%s_graph.dot", prefix, number, pass, which);
        FILE *file = fopen(path, "r");
        if (file) {
            text[fread(text, 1, capacity - 1, file)] = '\0';
            (void)fclose(file);
            (void)unlink(path);
            return true;
        }
    }
    return false;
}

TEST(d33_pictures)
{
    char folder[] = "/tmp/shoal_passes_XXXXXX";
    char prefix[64];
    char text[65536];
    REQUIRE(mkdtemp(folder) != NULL);
    (void)snprintf(prefix, sizeof prefix, "%s/x_", folder);
    shoal_graph *graph = two_averages();
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    options.dot_prefix = prefix;
    const char *passes[] = {SCHEDULE, COALESCED, COALESCED};
    CHECK_OK(shoal_graph_run_passes(graph, passes, 3, &options, NULL));
    CHECK(!read_picture(prefix, SCHEDULE, "input", text, sizeof text));
    if (read_picture(prefix, COALESCED, "input", text, sizeof text)) {
        CHECK(strstr(text, "digraph") != NULL);
        CHECK(strstr(text, "div_scalar_1") != NULL);
        CHECK(strstr(text, "foreach_div") == NULL);
        CHECK(strstr(text, "[fillcolor=yellow];\n}\n") != NULL);
    } else {
        test_failed(__FILE__, __LINE__, "there is a picture of the input");
    }
    if (read_picture(prefix, COALESCED, "output", text, sizeof text)) {
        CHECK(strstr(text, "foreach_div") != NULL);
        CHECK(strstr(text, "yellow") != NULL);
    } else {
        test_failed(__FILE__, __LINE__, "there is a picture of the output");
    }
    CHECK(!read_picture(prefix, COALESCED, "output", text, sizeof text));
    CHECK_INT(rmdir(folder), 0);
    /* Nowhere to write: the second pass fails, and says why. */
    options.dot_prefix = prefix;
    shoal_graph *other = two_averages();
    CHECK_STATUS(run(other, CONCAT, &options, NULL), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("dot_prefix: /tmp/shoal_passes_");
    shoal_graph_free(other);
    shoal_graph_free(graph);
}

/* Memory ------------------------------------------------------------------------------------------------------- */

static shoal_status fuse_scarcely(void *context)
{
    shoal_graph *graph = context;
    const char *passes[] = {CONCAT, SCHEDULE, COALESCED};
    return shoal_graph_run_passes(graph, passes, 3, NULL, NULL);
}

/* The k-th allocation of the passes fails: the graph can be walked and freed whatever they have done to it. */
static void sweep(bool has_copies)
{
    for (size_t k = 1; k < 5000; k++) {
        shoal_graph *graph = build_graph(8);
        shoal_node *results[4];
        for (size_t i = 0; i < 4; i++) {
            shoal_node *grad = build_input(graph, "grad", 3);
            shoal_node *wait =
                ddp_chain(graph, ddp_gradient(graph, 3), (struct ddp_chain){.divisor = i < 3 ? 8 : 4});
            results[i] = has_copies ? BUILD_CALL(graph, "copy_", arg_node(grad), arg_node(wait)) : wait;
        }
        ddp_output(graph, results, 4);
        test_fail_allocation(k, false);
        shoal_status status = fuse_scarcely(graph);
        bool was_clean = test_count_allocations() < k;
        test_fail_allocation(0, false);
        CHECK_STATUS(status, was_clean ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
        size_t n_nodes = 0;
        for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
            n_nodes++;
        }
        CHECK_INT(n_nodes, shoal_graph_n_nodes(graph));
        shoal_graph_free(graph);
        if (was_clean || test_has_failed()) {
            CHECK(k > 20);
            return;
        }
    }
    test_failed(__FILE__, __LINE__, "the passes come to an end");
}

TEST(allocations_that_fail)
{
    sweep(false);
    sweep(true);
}

static shoal_status register_scarcely(void *context)
{
    shoal_pass_definition definition = SHOAL_PASS_DEFINITION_INIT;
    definition.name = context;
    definition.run = give_up;
    shoal_status status = shoal_pass_register(&definition);
    return status == SHOAL_ERR_INVALID ? SHOAL_OK : status;
}

TEST(registering_without_memory)
{
    CHECK_INT(test_sweep_allocations(register_scarcely, (void *)CONCAT), 3);
}
