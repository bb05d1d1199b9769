/* SPDX-License-Identifier: MIT */
#include "base/changes.h"

_Atomic uint64_t changes_latest_number;
