/* SPDX-License-Identifier: MIT */
/* A module with two children, a and b, whose parameters a test adds by path: "scale", "a.weight". */
#ifndef TREE_H
#define TREE_H

#include "fixtures/module_bench.h"

struct tree {
    shoal_module *root;
    shoal_module *a;
    shoal_module *b;
};

static inline shoal_status tree_pass_on(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                        shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return SHOAL_OK;
}

static inline struct tree tree_begin(void)
{
    return (struct tree){.root = net_make_module("root", tree_pass_on, NULL),
                         .a = net_make_module("a", tree_pass_on, NULL),
                         .b = net_make_module("b", tree_pass_on, NULL)};
}

static inline void tree_add(const struct tree *tree, const char *path, shoal_tensor *parameter)
{
    shoal_module *owner = path[0] == 'a' ? tree->a : path[0] == 'b' ? tree->b : tree->root;
    (void)CHECK_OK(shoal_set_requires_grad(parameter, true));
    (void)CHECK_OK(shoal_module_add_parameter(owner, owner == tree->root ? path : path + 2, parameter));
}

/* a.tied is a.weight. The children belong to the root from here on. */
static inline void tree_end(const struct tree *tree, bool is_turned)
{
    (void)CHECK_OK(shoal_module_add_parameter(tree->a, "tied", shoal_module_parameter(tree->a, "weight")));
    (void)CHECK_OK(shoal_module_add_child(tree->root, is_turned ? "b" : "a", is_turned ? tree->b : tree->a));
    (void)CHECK_OK(shoal_module_add_child(tree->root, is_turned ? "a" : "b", is_turned ? tree->a : tree->b));
    shoal_module_unref(tree->a);
    shoal_module_unref(tree->b);
}

#endif
