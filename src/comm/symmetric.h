/* SPDX-License-Identifier: MIT */
/* Symmetric memory as tensors see it. */
#ifndef COMM_SYMMETRIC_H
#define COMM_SYMMETRIC_H

#include "shoal/status.h"

struct shoal_symmetric;
struct storage;

/* The storage of the caller's block, borrowed: the same for all tensors over it. */
shoal_status symmetric_storage(struct shoal_symmetric *symmetric, struct storage **storage_out);

#endif
