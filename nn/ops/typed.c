/* SPDX-License-Identifier: MIT */
/* The typed functions of shoal_nn/nn.h: they box their arguments. */
#include "common/struct_size.h"
#include "ops/ops.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/random.h"

shoal_tensor *shoal_nn_matmul(shoal_tensor *a, shoal_tensor *b)
{
    const shoal_value arguments[] = {nn_tensor(a), nn_tensor(b)};
    return nn_call(NN_OP_matmul, arguments, 2);
}

shoal_tensor *shoal_nn_bmm(shoal_tensor *a, shoal_tensor *b)
{
    const shoal_value arguments[] = {nn_tensor(a), nn_tensor(b)};
    return nn_call(NN_OP_bmm, arguments, 2);
}

shoal_tensor *shoal_nn_linear(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias)
{
    const shoal_value arguments[] = {nn_tensor(input), nn_tensor(weight), nn_optional(bias)};
    return nn_call(NN_OP_linear, arguments, 3);
}

shoal_tensor *shoal_nn_projection(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias)
{
    const shoal_value arguments[] = {nn_tensor(input), nn_tensor(weight), nn_optional(bias)};
    return nn_call(NN_OP_projection, arguments, 3);
}

static shoal_tensor *call_one(enum nn_op op, shoal_tensor *self)
{
    const shoal_value argument = nn_tensor(self);
    return nn_call(op, &argument, 1);
}

shoal_tensor *shoal_nn_tanh(shoal_tensor *self)
{
    return call_one(NN_OP_tanh, self);
}

shoal_tensor *shoal_nn_relu(shoal_tensor *self)
{
    return call_one(NN_OP_relu, self);
}

shoal_tensor *shoal_nn_gelu(shoal_tensor *self)
{
    return call_one(NN_OP_gelu, self);
}

shoal_tensor *shoal_nn_gelu_tanh(shoal_tensor *self)
{
    return call_one(NN_OP_gelu_tanh, self);
}

shoal_tensor *shoal_nn_exp(shoal_tensor *self)
{
    return call_one(NN_OP_exp, self);
}

shoal_tensor *shoal_nn_log(shoal_tensor *self)
{
    return call_one(NN_OP_log, self);
}

shoal_tensor *shoal_nn_sqrt(shoal_tensor *self)
{
    return call_one(NN_OP_sqrt, self);
}

shoal_tensor *shoal_nn_sigmoid(shoal_tensor *self)
{
    return call_one(NN_OP_sigmoid, self);
}

shoal_tensor *shoal_nn_silu(shoal_tensor *self)
{
    return call_one(NN_OP_silu, self);
}

shoal_tensor *shoal_nn_softmax(shoal_tensor *self, int dim)
{
    const shoal_value arguments[] = {nn_tensor(self), nn_int(dim)};
    return nn_call(NN_OP_softmax, arguments, 2);
}

shoal_tensor *shoal_nn_log_softmax(shoal_tensor *self, int dim)
{
    const shoal_value arguments[] = {nn_tensor(self), nn_int(dim)};
    return nn_call(NN_OP_log_softmax, arguments, 2);
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

shoal_tensor *shoal_nn_cross_entropy_with(shoal_tensor *logits, shoal_tensor *targets,
                                          const shoal_nn_cross_entropy_options *given)
{
    shoal_nn_cross_entropy_options options = SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT;
    if (!given) {
        return shoal_nn_cross_entropy(logits, targets);
    }
    shoal_status status =
        nn_struct_read("nn_cross_entropy_with", "options", given, &options, sizeof(options));
    if (status != SHOAL_OK) {
        (void)shoal_scope_fail(status);
        return NULL;
    }
    const shoal_value arguments[] = {nn_tensor(logits), nn_tensor(targets), nn_int(options.ignore_index),
                                     nn_float(options.label_smoothing)};
    return nn_call(NN_OP_cross_entropy, arguments, 4);
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

shoal_tensor *shoal_nn_rms_norm(shoal_tensor *input, shoal_tensor *weight, double eps)
{
    const shoal_value arguments[] = {nn_tensor(input), nn_optional(weight), nn_float(eps)};
    return nn_call(NN_OP_rms_norm, arguments, 3);
}

shoal_tensor *shoal_nn_rotary(shoal_tensor *self, int64_t first_position, double base)
{
    const shoal_value arguments[] = {nn_tensor(self), nn_int(first_position), nn_float(base)};
    return nn_call(NN_OP_rotary, arguments, 3);
}

shoal_tensor *shoal_nn_where(shoal_tensor *condition, shoal_tensor *a, shoal_tensor *b)
{
    const shoal_value arguments[] = {nn_tensor(condition), nn_tensor(a), nn_tensor(b)};
    return nn_call(NN_OP_where, arguments, 3);
}

shoal_tensor *shoal_nn_masked_fill(shoal_tensor *self, shoal_tensor *mask, double value)
{
    const shoal_value arguments[] = {nn_tensor(self), nn_tensor(mask), nn_float(value)};
    return nn_call(NN_OP_masked_fill, arguments, 3);
}

shoal_tensor *shoal_nn_max(shoal_tensor *self, int dim, bool keeps_dim)
{
    const shoal_value arguments[] = {nn_tensor(self), nn_int(dim), nn_bool(keeps_dim)};
    return nn_call(NN_OP_max, arguments, 3);
}

shoal_tensor *shoal_nn_argmax(shoal_tensor *self, int dim, bool keeps_dim)
{
    /* Places have no gradient: that of self ends here. */
    shoal_tensor *values = self && shoal_requires_grad(self) ? shoal_detach(self) : self;
    const shoal_value arguments[] = {nn_tensor(values), nn_int(dim), nn_bool(keeps_dim)};
    return nn_call(NN_OP_argmax, arguments, 3);
}

shoal_tensor *shoal_nn_index_select(shoal_tensor *self, int dim, shoal_tensor *indices)
{
    const shoal_value arguments[] = {nn_tensor(self), nn_int(dim), nn_tensor(indices)};
    return nn_call(NN_OP_index_select, arguments, 3);
}

shoal_tensor *shoal_nn_dropout(shoal_tensor *self, shoal_tensor *position, uint64_t stream, double p)
{
    /* The gradient reads the position again, from a copy: the caller may have changed or freed the memory by then. */
    if (self && position && shoal_requires_grad(self)) {
        position = shoal_clone(position);
    }
    const shoal_value arguments[] = {nn_tensor(self), nn_tensor(position), nn_int((int64_t)stream),
                                     nn_float(p)};
    return nn_call(NN_OP_dropout, arguments, 4);
}
