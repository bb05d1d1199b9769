/* SPDX-License-Identifier: MIT */
/*
 * A pass of one's own: neg(neg(x)) becomes x. Run it as a program, or let `shoal opt` load it:
 *     cc -std=c99 -shared -fPIC 13_pass.c -o libmy_pass.so $(pkg-config --cflags --libs shoal)
 *     shoal opt --load=./libmy_pass.so --passes=my_pass step.graph
 */
#include <shoal/shoal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

/* Nodes that are made and erased are counted by whoever runs the pass; it writes only its buckets to `report`. */
static shoal_status run(shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                        void *context)
{
    (void)options;
    (void)report;
    (void)context;
    const shoal_op *neg;
    shoal_status status = shoal_op_find("neg", &neg);
    shoal_node *node = status == SHOAL_OK ? shoal_graph_first(graph) : NULL;
    for (; node && status == SHOAL_OK; node = shoal_node_next(node)) {
        size_t n_inputs;
        shoal_node *inner = shoal_node_op(node) == neg ? shoal_node_inputs(node, &n_inputs)[0] : NULL;
        if (inner && shoal_node_op(inner) == neg) { /* who used `node` uses the input of `inner` instead */
            status = shoal_node_replace(node, shoal_node_inputs(inner, &n_inputs)[0], NULL, NULL, NULL);
        }
    }
    return status == SHOAL_OK ? shoal_graph_remove_dead(graph, NULL) : status;
}

/* Before main, or when the library is loaded. */
__attribute__((constructor)) static void register_pass(void)
{
    shoal_pass_definition definition = SHOAL_PASS_DEFINITION_INIT;
    definition.name = "my_pass";
    definition.doc = "Takes x for neg(neg(x)).";
    definition.run = run;
    DO(shoal_pass_register(&definition));
}

static int print(void *context, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, context) != bytes;
}

int main(void)
{
    static const char text[] = "graph { %x = placeholder : f32[4] %a = neg(%x) %b = neg(%a) "
                               "%c = add(%b, %x) return [%c] }";
    static const char *const passes[] = {"my_pass"};
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    shoal_graph *graph;
    DO(shoal_graph_parse(text, strlen(text), &graph));
    DO(shoal_graph_run_passes(graph, passes, 1, NULL, &report));
    printf("%zu nodes made, %zu erased\n", report.n_created, report.n_erased);
    DO(shoal_graph_print(graph, print, stdout)); /* %c = add(%x, %x) */
    shoal_graph_free(graph);
    return 0;
}
