/* SPDX-License-Identifier: MIT */
/*
 * Under a tracer every collective is followed by its wait, so that a graph shows where data is needed. The exceptions
 * are sends, and in a capture receives.
 */
#ifndef COLLECTIVE_TRACED_H
#define COLLECTIVE_TRACED_H

#include "tensor/tensor.h"

/* The tensor, or its wait under a tracer. NULL stays NULL, with the error in the scope. */
shoal_tensor *traced_wait(shoal_tensor *tensor);
shoal_tensor *const *traced_wait_list(shoal_tensor *const *tensors, size_t n_tensors);
/* The same of what is received: a capture waits where it is used, because ranks may receive before they send. */
shoal_tensor *traced_wait_received(shoal_tensor *tensor);
shoal_tensor *const *traced_wait_received_list(shoal_tensor *const *tensors, size_t n_tensors);

#endif
