/* SPDX-License-Identifier: MIT */
/* What has made the device unusable: the first failure, which every later call gives again. */
#ifndef CUDA_FAILURE_H
#define CUDA_FAILURE_H

#include <stdbool.h>

#include "cuda/driver_types.h"
#include "shoal/status.h"

/* Notes a failure, unless one is known. `call` is a function of the driver; `what` says for what it was called, a kernel for
   example, and may be NULL. */
void cuda_fail(const char *call, cuda_result result, const char *what);
bool cuda_has_failed(void);
/* Whether a result says that the driver does not take the arguments of the call, or does not do such a thing here: what was
   done before is not harmed. */
bool cuda_is_refusal(cuda_result result);

/* For the row: SHOAL_OK, or what has made the device unusable, with its text. */
shoal_status cuda_failure(void);

/* For what the CPU's kernels refuse: gives the text that they have set in this module's copy of the library to the caller. */
shoal_status cuda_pass_on(shoal_status status);

#endif
