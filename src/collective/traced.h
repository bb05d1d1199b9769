/* SPDX-License-Identifier: MIT */
/*
 * Under a tracer every collective is followed by its wait, so that a graph shows where data is needed. The exceptions
 * are sends, and in a capture receives.
 */
#ifndef COLLECTIVE_TRACED_H
#define COLLECTIVE_TRACED_H

#include "tensor/tensor.h"

/* Returns the tensor, or under a tracer the result of wait_tensor on it. NULL stays NULL; the error is in the scope. */
shoal_tensor *traced_wait(shoal_tensor *tensor);
shoal_tensor *const *traced_wait_list(shoal_tensor *const *tensors, size_t n_tensors);
/* traced_wait for a tensor that is received. A capture waits where the tensor is used, because ranks may receive
   before they send. */
shoal_tensor *traced_wait_received(shoal_tensor *tensor);
shoal_tensor *const *traced_wait_received_list(shoal_tensor *const *tensors, size_t n_tensors);

#endif
