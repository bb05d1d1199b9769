/* SPDX-License-Identifier: MIT */
#include "cuda/services.h"

/* Both are set once, before anything else of this module is called. */
const struct device_services *cuda_services;
const struct device_row *cuda_row;
