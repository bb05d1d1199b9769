/* SPDX-License-Identifier: MIT */
/*
 * The table of targets. PyTorch names an op by its overload ("aten.cat.default") or by the packet of overloads
 * ("aten.cat"). The table has the name without ".default".
 *
 * aten.div.Scalar is not in the table although it corresponds to div_scalar: PyTorch's passes recognize only
 * aten.div.Tensor as the division of a gradient, and ours recognize div_scalar.
 */
#include "ddp_fusion_targets.h"

#include <string.h>

static const struct fusion_target targets[] = {
    {"_c10d_functional.all_reduce", "all_reduce", FUSION_COLLECTIVE, {"input", "reduce_op", "group_name"}},
    {"_c10d_functional.all_reduce_", "all_reduce_", FUSION_COLLECTIVE, {"input", "reduce_op", "group_name"}},
    {"_c10d_functional.all_reduce_coalesced",
     "all_reduce_coalesced",
     FUSION_COLLECTIVE,
     {"inputs", "reduce_op", "group_name"}},
    {"_c10d_functional.all_reduce_coalesced_",
     "all_reduce_coalesced_",
     FUSION_COLLECTIVE,
     {"inputs", "reduce_op", "group_name"}},
    {"_c10d_functional.wait_tensor", "wait_tensor", FUSION_PLAIN, {"tensor"}},
    {"aten.div.Tensor", "div_scalar", FUSION_DIV, {"self", "other"}},
    {"aten._foreach_div.Scalar", "foreach_div", FUSION_PLAIN, {"self", "scalar"}},
    {"aten.flatten", "flatten", FUSION_PLAIN, {"self", "start_dim", "end_dim"}},
    {"aten.flatten.using_ints", "flatten", FUSION_PLAIN, {"self", "start_dim", "end_dim"}},
    {"aten.reshape", "reshape", FUSION_PLAIN, {"self", "shape"}},
    {"aten.view", "view", FUSION_PLAIN, {"self", "size"}},
    {"aten.cat", "cat", FUSION_PLAIN, {"tensors", "dim"}},
    {"aten.split", "split", FUSION_SPLIT, {"self", "split_size", "dim"}},
    {"aten.split.Tensor", "split", FUSION_SPLIT, {"self", "split_size", "dim"}},
    {"aten.split.sizes", "split", FUSION_SPLIT, {"self", "split_size", "dim"}},
    {"aten.split_with_sizes", "split_with_sizes", FUSION_PLAIN, {"self", "split_sizes", "dim"}},
    {"aten.copy_", "copy_", FUSION_COPY, {"self", "src", "non_blocking"}},
    {"<built-in function getitem>", "getitem", FUSION_GETITEM, {"a", "b"}},
    {"_operator.getitem", "getitem", FUSION_GETITEM, {"a", "b"}},
    {"operator.getitem", "getitem", FUSION_GETITEM, {"a", "b"}},
};

const struct fusion_target *fusion_target_find(const char *name)
{
    static const char suffix[] = ".default";
    size_t length = strlen(name);
    size_t n_suffix = sizeof suffix - 1;
    if (length > n_suffix && strcmp(name + length - n_suffix, suffix) == 0) {
        length -= n_suffix;
    }
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        if (strlen(targets[i].name) == length && strncmp(name, targets[i].name, length) == 0) {
            return &targets[i];
        }
    }
    return NULL;
}

/* The op by which a target is known here; "" for an opaque one. */
static const char *op_of(const char *name)
{
    const struct fusion_target *target = fusion_target_find(name);
    return target ? target->op : "";
}

bool fusion_target_is_wait(const char *name)
{
    return strcmp(op_of(name), "wait_tensor") == 0;
}

bool fusion_target_is_look(const char *name)
{
    static const char *const looks[] = {"split", "split_with_sizes", "getitem", "reshape"};
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        if (strcmp(op_of(name), looks[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_list_node(const shoal_arg *arg)
{
    return arg->kind == SHOAL_ARG_NODE && shoal_node_is_list(arg->as.node);
}

bool fusion_target_adapt(struct fusion_call *call)
{
    call->op = call->target->op;
    call->group = NULL;
    switch (call->target->form) {
    case FUSION_DIV:
        call->op = call->args[1].kind == SHOAL_ARG_NODE ? "div" : "div_scalar";
        break;
    case FUSION_SPLIT:
        call->op = call->args[1].kind == SHOAL_ARG_LIST ? "split_with_sizes" : "split";
        break;
    case FUSION_GETITEM:
        return is_list_node(&call->args[0]);
    case FUSION_COLLECTIVE:
        if (call->args[2].kind == SHOAL_ARG_STRING) {
            call->args[2].kind = SHOAL_ARG_GROUP;
            call->group = call->args[2].as.string;
        }
        break;
    case FUSION_COPY:
        if (call->n_args == 3 && call->args[2].kind == SHOAL_ARG_BOOL) {
            call->n_args = 2;
        }
        break;
    case FUSION_PLAIN:
        break;
    }
    return true;
}
