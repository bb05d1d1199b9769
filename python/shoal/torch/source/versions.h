// SPDX-License-Identifier: MIT
// What differs between versions of torch, in one place: 1.13, where a backend is a c10d::ProcessGroup, and 2.x, where it
// is a c10d::Backend. Functions that only some 2.x have are written without `override`: where c10d declares them, they
// override it; elsewhere nobody calls them.
#ifndef SHOAL_TORCH_VERSIONS_H
#define SHOAL_TORCH_VERSIONS_H

#include <torch/version.h>
#define TORCH_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
#define TORCH2 TORCH_AT_LEAST(2, 0)
#if !TORCH_AT_LEAST(1, 13) || (TORCH2 && !TORCH_AT_LEAST(2, 3))
#error "shoal.torch needs torch 1.13, or 2.3 and later"
#endif

#if TORCH2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>
#include <pybind11/chrono.h>
#include <ATen/ATen.h>

#include <chrono>
#include <string>
#include <vector>

#include <shoal/shoal.h>

namespace shoal_torch {

using c10d::OpType;
using c10d::ReduceOp;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Tensors = std::vector<at::Tensor>;
using Milliseconds = std::chrono::milliseconds;

#if TORCH2
using Base = c10d::Backend;
constexpr OpType COALESCED = OpType::COALESCED;
#define TORCH2_OVERRIDE override
#else
using Base = c10d::ProcessGroup;
constexpr OpType COALESCED = OpType::UNKNOWN;
#define TORCH2_OVERRIDE
#endif

// opts.asyncOp: Python waits for the result anyway, so that the call may block. Without it every call is started.
template <class Options> auto is_async(const Options &options, int) -> decltype(bool(options.asyncOp))
{
    return options.asyncOp;
}
template <class Options> bool is_async(const Options &, long)
{
    return true;
}

// The name that torch gives to a group that is split from another.
template <class Options>
auto group_name_of(const Options &options, int) -> decltype(std::string(options.group_name))
{
    return options.group_name;
}
template <class Options> std::string group_name_of(const Options &, long)
{
    return "";
}

inline double factor_of(const c10d::NCCLPreMulSumSupplement &supplement)
{
#if TORCH2
    return supplement.tensor_factor.defined() ? supplement.tensor_factor.item<double>()
                                              : supplement.double_factor;
#else
    return supplement.tensor_factors.empty() ? supplement.double_factor
                                             : supplement.tensor_factors[0].item<double>();
#endif
}

// Raises the exception of a status: ValueError, NotImplementedError, or DistBackendError (1.13: RuntimeError). Programs,
// and PyTorch's own tests, look for "Timed out".
[[noreturn]] inline void raise(shoal_status status, const std::string &text)
{
    std::string what = std::string(shoal_status_name(status)) + ": " +
                       (status == SHOAL_ERR_TIMEOUT ? "Timed out (" + text + ")" : text);
    if (status == SHOAL_ERR_INVALID) {
        C10_THROW_ERROR(ValueError, what);
    }
    if (status == SHOAL_ERR_UNSUPPORTED) {
        C10_THROW_ERROR(NotImplementedError, what);
    }
#if TORCH2
    C10_THROW_ERROR(DistBackendError, what);
#else
    C10_THROW_ERROR(Error, what);
#endif
}

inline void check(shoal_status status)
{
    if (status != SHOAL_OK) {
        raise(status, shoal_error_text());
    }
}

} // namespace shoal_torch

#endif
