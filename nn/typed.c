/* SPDX-License-Identifier: MIT */
/* The typed functions of shoal_nn/nn.h: they box their arguments. */
#include "ops.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/random.h"

shoal_tensor *shoal_nn_matmul(shoal_tensor *a, shoal_tensor *b)
{
    const shoal_value arguments[] = {nn_tensor(a), nn_tensor(b)};
    return nn_call(NN_OP_matmul, arguments, 2);
}

shoal_tensor *shoal_nn_linear(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias)
{
    const shoal_value arguments[] = {nn_tensor(input), nn_tensor(weight), nn_optional(bias)};
    return nn_call(NN_OP_linear, arguments, 3);
}

shoal_tensor *shoal_nn_tanh(shoal_tensor *self)
{
    const shoal_value argument = nn_tensor(self);
    return nn_call(NN_OP_tanh, &argument, 1);
}

shoal_tensor *shoal_nn_relu(shoal_tensor *self)
{
    const shoal_value argument = nn_tensor(self);
    return nn_call(NN_OP_relu, &argument, 1);
}

shoal_tensor *shoal_nn_gelu(shoal_tensor *self)
{
    const shoal_value argument = nn_tensor(self);
    return nn_call(NN_OP_gelu, &argument, 1);
}

shoal_tensor *shoal_nn_mse(shoal_tensor *input, shoal_tensor *target)
{
    const shoal_value arguments[] = {nn_tensor(input), nn_tensor(target)};
    return nn_call(NN_OP_mse, arguments, 2);
}

shoal_tensor *shoal_nn_cross_entropy(shoal_tensor *logits, shoal_tensor *targets)
{
    const shoal_value arguments[] = {nn_tensor(logits), nn_tensor(targets)};
    return nn_call(NN_OP_cross_entropy, arguments, 2);
}

shoal_tensor *shoal_nn_embedding(shoal_tensor *indices, shoal_tensor *weight)
{
    const shoal_value arguments[] = {nn_tensor(indices), nn_tensor(weight)};
    return nn_call(NN_OP_embedding, arguments, 2);
}

shoal_tensor *shoal_nn_layer_norm(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias, double eps)
{
    const shoal_value arguments[] = {nn_tensor(input), nn_optional(weight), nn_optional(bias), nn_float(eps)};
    return nn_call(NN_OP_layer_norm, arguments, 4);
}

shoal_tensor *shoal_nn_dropout(shoal_tensor *self, shoal_tensor *position, uint64_t stream, double p)
{
    /* The gradient reads the position again: it has a copy, for the caller may have changed or freed his memory. */
    if (self && position && shoal_requires_grad(self)) {
        position = shoal_clone(position);
    }
    const shoal_value arguments[] = {nn_tensor(self), nn_tensor(position), nn_int((int64_t)stream),
                                     nn_float(p)};
    return nn_call(NN_OP_dropout, arguments, 4);
}
