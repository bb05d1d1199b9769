// SPDX-License-Identifier: MIT
// What torch.profiler shows of an operation: its name ("shoal:all_reduce"), the shapes of its inputs, and its time.
#ifndef SHOAL_TORCH_RECORDING_H
#define SHOAL_TORCH_RECORDING_H

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <vector>

#include "versions.h"

namespace shoal_torch {

// How profiles name a collective. Those with counts have the name of those without, as in torch.distributed.
inline const char *name_of(shoal_collective_kind kind)
{
    static const char *const names[] = {"shoal:collective", "shoal:barrier",        "shoal:broadcast",
                                        "shoal:all_reduce", "shoal:reduce",         "shoal:all_gather",
                                        "shoal:all_gather", "shoal:reduce_scatter", "shoal:reduce_scatter",
                                        "shoal:all_to_all", "shoal:all_to_all",     "shoal:gather",
                                        "shoal:gather",     "shoal:scatter",        "shoal:scatter"};
    static_assert(sizeof names / sizeof names[0] == SHOAL_KIND_COUNT, "one name for each kind");
    return names[kind];
}

class Recording {
  public:
    Recording()
    {
        auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
        if (callbacks.has_value()) {
            function_ = std::make_shared<at::RecordFunction>(std::move(*callbacks));
        }
    }

    // Whether somebody records. Without, the other functions do nothing.
    bool is_on() const
    {
        return bool(function_);
    }

    void add_input(const at::Tensor &tensor)
    {
        if (function_) {
            inputs_.emplace_back(tensor);
        }
    }

    // An operation that was started ends on another thread: it is an asynchronous event. One that blocks is part of the
    // event of its caller.
    void begin(const char *name, bool is_started)
    {
        if (!function_) {
            return;
        }
        if (is_started) {
            function_->_setAsync();
        }
        function_->before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()));
        inputs_.clear();
        end_ = at::wrapPropagateTLSState([function = function_] { function->end(); });
    }

    void end()
    {
        if (end_) {
            end_();
        }
    }

  private:
    std::shared_ptr<at::RecordFunction> function_;
    std::vector<c10::IValue> inputs_;
    std::function<void()> end_;
};

} // namespace shoal_torch

#endif
