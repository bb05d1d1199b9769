// SPDX-License-Identifier: MIT
// An operation of Shoal with the tensors that it uses, and the c10d::Work that stands for one or several of them.
//
// No lock may be held while a tensor is copied or dropped: its count going from 1 to 2 or back takes the GIL if it has a
// Python object, and Python calls getFuture and ~Work with the GIL held.
#ifndef SHOAL_TORCH_OPERATION_H
#define SHOAL_TORCH_OPERATION_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include "elements.h"
#include "pool.h"
#include "recording.h"
#include "versions.h"

namespace shoal_torch {

class Operation : public std::enable_shared_from_this<Operation> {
  public:
    shoal_work *work = nullptr; // of an operation that was started
    bool is_started = true;     // false: the call blocks
    int source = -1;            // of a receive: who sent
    c10::SmallVector<at::Tensor, 1> outputs;
    Recording recording;

    // It is not freed while it is in flight, however it is dropped: Shoal uses the memory of its tensors.
    static std::shared_ptr<Operation> make()
    {
        return std::shared_ptr<Operation>(new Operation, drop);
    }

    ~Operation()
    {
        shoal_work_free(work);
    }

    void set_outputs(at::TensorList tensors)
    {
        outputs.assign(tensors.begin(), tensors.end());
    }

    // The memory of a tensor that is read: its own, or a contiguous copy.
    at::Tensor read(const at::Tensor &tensor)
    {
        check_tensor(tensor);
        recording.add_input(tensor);
        kept_.push_back(tensor.contiguous());
        return kept_.back();
    }

    // The memory of a tensor that is written: its own, or a contiguous stand-in that is copied back at the end.
    at::Tensor write(const at::Tensor &tensor)
    {
        return stand_in(tensor, false);
    }

    // The memory of a tensor that is read and written.
    at::Tensor update(const at::Tensor &tensor)
    {
        return stand_in(tensor, true);
    }

    std::vector<const void *> read_all(const Tensors &tensors)
    {
        std::vector<const void *> blocks;
        for (auto &tensor : tensors) {
            blocks.push_back(read(tensor).data_ptr());
        }
        return blocks;
    }

    std::vector<void *> write_all(const Tensors &tensors)
    {
        std::vector<void *> blocks;
        for (auto &tensor : tensors) {
            blocks.push_back(write(tensor).data_ptr());
        }
        return blocks;
    }

    bool is_done() const
    {
        return state_.load() == DONE;
    }

    // Why it failed; nullptr if it succeeded. Only when it is done.
    const std::exception_ptr &error() const
    {
        return error_;
    }

    bool test()
    {
        if (state_.load() != OPEN) {
            return is_done();
        }
        if (!shoal_work_test(work)) {
            return false;
        }
        shoal_status status = shoal_work_wait(work, -1);
        settle(status, shoal_error_text());
        return is_done();
    }

    // Waits for the end; a negative timeout waits as long as the operation's own deadline.
    void wait(double timeout_s)
    {
        if (state_.load() == OPEN) {
            shoal_status status = shoal_work_wait(work, timeout_s);
            std::string text = status == SHOAL_OK ? "" : shoal_error_text();
            if (status == SHOAL_ERR_TIMEOUT && timeout_s >= 0 && !shoal_work_test(work)) {
                raise(status, "the operation goes on; " + text);
            }
            settle(status, text);
        }
        if (!is_done()) {
            std::unique_lock<std::mutex> lock(mutex_);
            ended_.wait(lock, [this] { return is_done(); });
        }
        if (error_) {
            std::rethrow_exception(error_);
        }
    }

    // Ends the operation: copies out of stand-ins, drops the tensors, and calls those that want to know.
    void settle(shoal_status status, const std::string &text)
    {
        int open = OPEN;
        if (!state_.compare_exchange_strong(open, SETTLING)) {
            return;
        }
        std::exception_ptr error = let_go(status, text);
        std::vector<std::function<void()>> listeners;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            error_ = error;
            state_ = DONE;
            listeners.swap(listeners_);
            ended_.notify_all();
        }
        for (auto &listener : listeners) {
            listener();
        }
    }

    // Ends an operation that has blocked and succeeded. Nobody but the caller knows it yet.
    void settle_blocked()
    {
        error_ = let_go(SHOAL_OK, "");
        state_ = DONE;
    }

    // Calls `listener` when the operation has ended: now, or on a thread of the pool.
    void when_done(std::function<void()> listener)
    {
        bool must_wait;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            must_wait = !is_done();
            if (must_wait) {
                listeners_.push_back(listener);
            }
        }
        if (must_wait) {
            watch();
        } else {
            listener();
        }
    }

    // From now on the operation owns itself until it has ended: for a future, or because it was dropped.
    void watch()
    {
        if (state_.load() != OPEN || is_watched_.exchange(true)) {
            return;
        }
        auto *self = new std::shared_ptr<Operation>(shared_from_this());
        if (shoal_work_on_done(work, on_done, self) != SHOAL_OK) {
            std::string text = shoal_error_text();
            delete self;
            raise(SHOAL_ERR_STATE, text);
        }
    }

    // A profile has the time at which the operation has ended, not that at which somebody has waited for it.
    void watch_if_recorded()
    {
        if (recording.is_on()) {
            watch();
        }
    }

  private:
    Operation() = default;

    static void drop(Operation *operation)
    {
        bool is_in_flight = operation->work && operation->state_.load() == OPEN && !operation->test();
        if (is_in_flight && !operation->is_watched_) {
            std::shared_ptr<Operation> again(operation, drop); // drops it again if it cannot be watched
            try {
                again->watch();
            } catch (const std::exception &error) {
                TORCH_WARN("shoal: ", error.what());
            }
            return;
        }
        if (is_in_flight) { // fails at once in a child of fork()
            shoal_status status = shoal_work_wait(operation->work, -1);
            operation->settle(status, shoal_error_text());
        }
        delete operation;
    }

    enum {
        OPEN,
        SETTLING,
        DONE
    };

    at::Tensor stand_in(const at::Tensor &tensor, bool is_read)
    {
        check_tensor(tensor);
        if (is_read) {
            recording.add_input(tensor);
        }
        kept_.push_back(tensor);
        if (tensor.is_contiguous()) {
            return tensor;
        }
        at::Tensor copy = is_read ? tensor.contiguous() : at::empty(tensor.sizes(), tensor.options());
        kept_.push_back(copy);
        copied_back_.emplace_back(tensor, copy);
        return copy;
    }

    // Copies out of stand-ins and drops the tensors.
    std::exception_ptr let_go(shoal_status status, const std::string &text)
    {
        std::exception_ptr error;
        if (status != SHOAL_OK || !copied_back_.empty()) {
            error = finish_outputs(status, text);
        }
        recording.end();
        kept_.clear();
        return error;
    }

    std::exception_ptr finish_outputs(shoal_status status, const std::string &text)
    {
        auto copied_back = std::move(copied_back_);
        copied_back_.clear();
        try {
            if (status != SHOAL_OK) {
                raise(status, text);
            }
            at::NoGradGuard without_grad;
            for (auto &pair : copied_back) {
                c10::InferenceMode as_made(pair.first.is_inference()); // this may be another thread
                pair.first.copy_(pair.second);
            }
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

    static void on_done(void *context, shoal_status status)
    {
        auto *self = static_cast<std::shared_ptr<Operation> *>(context);
        std::shared_ptr<Operation> operation = std::move(*self);
        delete self;
        std::string text = shoal_error_text();
        Pool::get().push([operation = std::move(operation), status, text = std::move(text)] {
            operation->settle(status, text);
        });
    }

    c10::SmallVector<at::Tensor, 4> kept_;
    std::vector<std::pair<at::Tensor, at::Tensor>> copied_back_;
    std::atomic<int> state_{OPEN};
    std::atomic<bool> is_watched_{false};
    std::exception_ptr error_;
    std::mutex mutex_;
    std::condition_variable ended_;
    std::vector<std::function<void()>> listeners_;
};
using OperationPtr = std::shared_ptr<Operation>;
using Operations = c10::SmallVector<OperationPtr, 1>;

class Work : public c10d::Work {
  public:
    Work(int rank, OpType type, Operations operations)
        : c10d::Work(rank, type), operations_(std::move(operations))
    {
    }

    Work(int rank, OpType type, OperationPtr operation) : c10d::Work(rank, type)
    {
        operations_.push_back(std::move(operation));
    }

    ~Work() override
    {
        for (auto &operation : operations_) {
            try {
                if (!operation->test()) {
                    operation->watch(); // the tensors must live on
                }
            } catch (const std::exception &error) {
                TORCH_WARN("shoal: ", error.what());
            }
        }
    }

    bool isCompleted() override
    {
        for (auto &operation : operations_) {
            if (!operation->test()) {
                return false;
            }
        }
        return true;
    }

    bool isSuccess() const override
    {
        for (auto &operation : operations_) {
            if (!operation->is_done() || operation->error()) {
                return false;
            }
        }
        return true;
    }

    std::exception_ptr exception() const override
    {
        return first_error();
    }

    int sourceRank() const override
    {
        return operations_.empty() ? -1 : operations_[0]->source;
    }

    Tensors result() override
    {
        return outputs_of(operations_);
    }

    void synchronize() override
    {
        wait(kNoTimeout);
    }

    bool wait(Milliseconds timeout) override
    {
        if (timeout == kNoTimeout) {
            for (auto &operation : operations_) {
                operation->wait(-1);
            }
            return true;
        }
        auto begin = std::chrono::steady_clock::now();
        for (auto &operation : operations_) { // one limit for all of them
            std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
            operation->wait(std::max(double(timeout.count()) / 1e3 - passed.count(), 0.0));
        }
        return true;
    }

    void abort() override
    {
        TORCH_CHECK(false, "shoal: an operation cannot be aborted alone: abort its group");
    }

    // Completed when all operations have ended.
    FuturePtr getFuture() override
    {
        static auto *const tensors = new c10::TypePtr(c10::ListType::create(c10::TensorType::get()));
        FuturePtr future = c10::make_intrusive<c10::ivalue::Future>(*tensors);
        {
            std::lock_guard<std::mutex> lock(future_mutex_);
            if (future_) {
                return future_;
            }
            future_ = future;
        }
        if (isCompleted()) {
            complete(future, operations_);
            return future;
        }
        auto operations = std::make_shared<Operations>(operations_);
        auto n_left = std::make_shared<std::atomic<size_t>>(operations_.size() + 1);
        auto count = [future, operations, n_left] {
            if (n_left->fetch_sub(1) == 1) {
                complete(future, *operations);
            }
        };
        for (auto &operation : operations_) {
            operation->when_done(count);
        }
        count();
        return future;
    }

  private:
    static void complete(const FuturePtr &future, const Operations &operations)
    {
        for (auto &operation : operations) {
            if (operation->error()) {
                future->setError(operation->error());
                return;
            }
        }
        c10::List<at::Tensor> outputs;
        for (auto &operation : operations) {
            for (auto &output : operation->outputs) {
                outputs.push_back(output);
            }
        }
        future->markCompleted(c10::IValue(std::move(outputs)));
    }

    static Tensors outputs_of(const Operations &operations)
    {
        Tensors outputs;
        for (auto &operation : operations) {
            outputs.insert(outputs.end(), operation->outputs.begin(), operation->outputs.end());
        }
        return outputs;
    }

    std::exception_ptr first_error() const
    {
        for (auto &operation : operations_) {
            if (operation->is_done() && operation->error()) {
                return operation->error();
            }
        }
        return nullptr;
    }

    Operations operations_;
    std::mutex future_mutex_;
    FuturePtr future_;
};

} // namespace shoal_torch

#endif
