/* SPDX-License-Identifier: MIT */
/* All headers of libshoal. Each of them can be included alone. The headers of libshoal_nn are in shoal_nn/, those of
   libshoal_compat (PyTorch's other names) in shoal_compat/. */
#ifndef SHOAL_H
#define SHOAL_H

#include "shoal/api.h"
#include "shoal/autograd.h"
#include "shoal/checkpoint.h"
#include "shoal/clock.h"
#include "shoal/collective.h"
#include "shoal/compile.h"
#include "shoal/cuda.h"
#include "shoal/ddp.h"
#include "shoal/dlpack.h"
#include "shoal/dtype.h"
#include "shoal/fp_mode.h"
#include "shoal/fsdp.h"
#include "shoal/fsdp_comm.h"
#include "shoal/fsdp_unit.h"
#include "shoal/fully_shard.h"
#include "shoal/graph.h"
#include "shoal/group.h"
#include "shoal/items.h"
#include "shoal/log.h"
#include "shoal/memory.h"
#include "shoal/mesh.h"
#include "shoal/module.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/option.h"
#include "shoal/safetensors.h"
#include "shoal/scope.h"
#include "shoal/status.h"
#include "shoal/store.h"
#include "shoal/tensor.h"
#include "shoal/trace.h"
#include "shoal/update.h"
#include "shoal/version.h"
#include "shoal/window.h"
#include "shoal/work.h"
#include "shoal/world.h"

#endif
