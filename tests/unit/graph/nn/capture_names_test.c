/* SPDX-License-Identifier: MIT */
/* Placeholders of a captured step are called as the model calls its tensors; names are unique, and can be read back. */
#include "fixtures/graph_text.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/nn.h"
#include "unit/graph/capturing.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static void begin_nn(void)
{
    size_t n_before = test_live_blocks();
    CHECK_OK(shoal_nn_init());
    test_keep_blocks(test_live_blocks() - n_before);
}

static shoal_graph *capture(shoal_step_function step, void *context, shoal_tensor *input)
{
    shoal_graph *graph = NULL;
    (void)CHECK_OK(shoal_capture(step, context, &input, 1, 1, &graph));
    return graph;
}

/* The placeholder of a tensor; NULL if there is none. */
static const shoal_node *find_placeholder(const shoal_graph *graph, const shoal_tensor *tensor)
{
    size_t index = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node), index++) {
        if (shoal_node_get_kind(node) != SHOAL_NODE_PLACEHOLDER) {
            return NULL;
        }
        if (shoal_graph_bound_input(graph, index) == tensor) {
            return node;
        }
    }
    return NULL;
}

static void check_unique(const shoal_graph *graph)
{
    for (const shoal_node *a = shoal_graph_first(graph); a; a = shoal_node_next(a)) {
        CHECK(shoal_graph_find(graph, shoal_node_name(a)) == a);
    }
    graph_text_check_round_trip(graph);
}

static shoal_status train(void *gpt, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                          size_t n_outputs)
{
    (void)n_inputs, (void)n_outputs;
    outputs[0] = shoal_nn_cross_entropy(shoal_module_call_one(gpt, inputs[0]), inputs[0]);
    return shoal_backward(outputs[0], NULL);
}

struct compared {
    const shoal_graph *graph;
    size_t n_found;
};

static shoal_status compare_name(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct compared *compared = context;
    const shoal_node *node = find_placeholder(compared->graph, entry->tensor);
    (void)next;
    if (node) {
        CHECK_STRING(shoal_node_name(node), entry->path);
        compared->n_found++;
    }
    return SHOAL_OK;
}

/* In the first step, and in one that adds to the gradients of the first. */
TEST(gpt)
{
    shoal_nn_gpt_options shape = {sizeof shape, .n_layers = 2,   .width = 8,  .n_heads = 2,
                                  .context = 4, .vocabulary = 8, .eps = 1e-5, .dtype = SHOAL_F32};
    shoal_module *gpt = NULL;
    size_t n_parameters = 0;
    begin_nn();
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_nn_gpt_create(&shape, &gpt));
    (void)shoal_module_parameters(gpt, &n_parameters);
    shoal_tensor *tokens = shoal_zeros(SHAPE(1, 4), 2, SHOAL_U8);
    for (int round = 0; round < 2; round++) {
        shoal_graph *graph = capture(train, gpt, tokens);
        REQUIRE(graph);
        struct compared compared = {.graph = graph};
        CHECK_OK(shoal_module_walk(gpt, SHOAL_WALK_PARAMETERS, compare_name, &compared));
        CHECK_INT(compared.n_found, n_parameters);
        CHECK(shoal_graph_find(graph, "transformer.h.0.attn.c_proj.bias") != NULL);
        CHECK((shoal_graph_find(graph, "transformer.h.0.attn.c_proj.bias_grad") != NULL) == (round == 1));
        CHECK(shoal_graph_find(graph, "tensor") == NULL);
        check_unique(graph);
        struct graph_text picture = {.bytes = NULL};
        CHECK_OK(shoal_graph_print_dot(graph, graph_text_write, &picture));
        CHECK(picture.bytes && strstr(picture.bytes, "label=\"%transformer.h.0.attn.c_proj.bias\\n"));
        free(picture.bytes);
        shoal_graph_free(graph);
        shoal_tensor *loss = NULL;
        CHECK_OK(train(gpt, &tokens, 1, &loss, 1));
    }
    shoal_module_unref(gpt);
    CHECK_OK(shoal_scope_end());
}

/* Modules without a common root, odd names, a name of its own, a tied tensor, a tensor that is a part of a storage. */
struct odd {
    shoal_module *parts[2];
    shoal_tensor *flat;
};

static shoal_status add_up(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                           shoal_tensor **outputs, size_t n_outputs)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(module, &n_parameters);
    (void)n_inputs, (void)n_outputs;
    outputs[0] = inputs[0];
    for (size_t i = 0; i < n_parameters; i++) {
        outputs[0] = shoal_add(outputs[0], parameters[i]);
    }
    return shoal_scope_error();
}

static shoal_status call_parts(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    const struct odd *odd = context;
    (void)n_inputs, (void)n_outputs;
    outputs[0] = shoal_module_call_one(odd->parts[1], shoal_module_call_one(odd->parts[0], inputs[0]));
    return shoal_scope_error();
}

static void add_parameter(shoal_module *module, const char *name, int seed, const char *own_name)
{
    shoal_tensor *tensor = capture_leaf(SHAPE(3), 1, seed, own_name);
    CHECK_OK(shoal_module_add_parameter(module, name, tensor));
    shoal_tensor_unref(tensor);
}

TEST(odd_modules)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "sum", .forward = add_up, .n_outputs = 1};
    struct odd odd = {.flat = capture_tensor(SHAPE(6), 1, SHOAL_F32, 9, NULL)};
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        shoal_module *child = NULL;
        REQUIRE_OK(shoal_module_create(&definition, &odd.parts[i]));
        REQUIRE_OK(shoal_module_create(&definition, &child));
        add_parameter(odd.parts[i], "weight", i, NULL);
        add_parameter(odd.parts[i], "own", 3 + i, i == 0 ? "called so" : NULL);
        add_parameter(child, "b_1", 5 + i, NULL);
        CHECK_OK(shoal_module_add_child(odd.parts[i], "0", child));
        shoal_tensor *half = shoal_narrow(odd.flat, 0, 3 * i, 3);
        CHECK_OK(shoal_module_add_parameter(child, "half", half));
        CHECK_OK(shoal_module_add_parameter(child, "tied", shoal_module_parameter(odd.parts[0], "weight")));
        shoal_module_unref(child);
    }
    shoal_graph *graph = capture(call_parts, &odd, shoal_zeros(SHAPE(3), 1, SHOAL_F32));
    REQUIRE(graph);
    static const char *const names[] = {"input",  "weight",   "called_so", "_0.b_1",
                                        "tensor", "weight_1", "own",       "_0.b_2"};
    const shoal_node *node = shoal_graph_first(graph);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++, node = shoal_node_next(node)) {
        REQUIRE(node);
        CHECK_STRING(shoal_node_name(node), names[i]);
    }
    CHECK(shoal_node_get_kind(node) == SHOAL_NODE_CALL);
    check_unique(graph);
    shoal_graph_free(graph);
    shoal_module_unref(odd.parts[0]);
    shoal_module_unref(odd.parts[1]);
    CHECK_OK(shoal_scope_end());
    shoal_tensor_unref(odd.flat);
}
