/* SPDX-License-Identifier: MIT */
#include "graph/analysis/estimate.h"

#include "tensor/tensor.h"

enum {
    START_NS = 10000,
    CALL_NS = 2000,
    BYTES_PER_NS_SENT = 10,
    BYTES_PER_NS_TOUCHED = 1000,
    OPERATIONS_PER_NS = 100000
};

#define LONGEST_NS 1e18

static double bytes_given(const struct shoal_node *node)
{
    double bytes = 0;
    for (size_t i = 0; i < node->n_values; i++) {
        const shoal_tensor *value = node->values[i];
        bytes += (double)shoal_tensor_count(value) * (double)shoal_dtype_bytes(shoal_tensor_dtype(value));
    }
    return bytes;
}

static double bytes_taken(const struct shoal_node *node)
{
    double bytes = 0;
    for (size_t i = 0; i < node->n_inputs; i++) {
        bytes += bytes_given(node->inputs[i]);
    }
    return bytes;
}

/* Returns the operations of an op with SHOAL_OP_COMPUTE, as of a matrix product: twice the elements of the result,
   times the length of the sums. */
static double operations(const struct shoal_node *node)
{
    bool is_product = (node_flags(node) & SHOAL_OP_COMPUTE) != 0;
    if (!is_product || node->n_inputs == 0 || node->n_values != 1 || node->inputs[0]->n_values != 1) {
        return 0;
    }
    const shoal_tensor *left = node->inputs[0]->values[0];
    int n_dims = shoal_tensor_n_dims(left);
    double length = n_dims > 0 ? (double)shoal_tensor_shape(left)[n_dims - 1] : 1;
    return 2 * length * (double)shoal_tensor_count(node->values[0]);
}

/* Limits the time, because shapes without data may have any size. */
static uint64_t whole_ns(double ns)
{
    return ns < LONGEST_NS ? (uint64_t)ns : (uint64_t)LONGEST_NS;
}

uint64_t graph_estimate_ns(const struct shoal_node *node)
{
    uint32_t flags = node_flags(node);
    if (node->kind != SHOAL_NODE_CALL || (flags & (SHOAL_OP_VIEW | SHOAL_OP_WAIT)) != 0) {
        return 0;
    }
    double taken = bytes_taken(node);
    double given = bytes_given(node);
    if ((flags & SHOAL_OP_COLLECTIVE) != 0) {
        return START_NS + whole_ns((taken > given ? taken : given) / BYTES_PER_NS_SENT);
    }
    return CALL_NS + whole_ns((taken + given) / BYTES_PER_NS_TOUCHED + operations(node) / OPERATIONS_PER_NS);
}
