// SPDX-License-Identifier: MIT
// Threads that complete futures and drop tensors.
//
// Shoal's callbacks run on threads that carry operations. They must not wait for the GIL, nor run Python's callbacks,
// which may wait for other operations. A thread is added when all are busy, because such a callback may itself wait for
// a future that another thread of the pool completes.
#ifndef SHOAL_TORCH_POOL_H
#define SHOAL_TORCH_POOL_H

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "versions.h"

namespace shoal_torch {

// Releases the GIL while it lives, if this thread holds it: for calls that wait for other ranks.
class WithoutGil {
  public:
    WithoutGil()
    {
        if (Py_IsInitialized() && PyGILState_Check()) {
            released_.emplace();
        }
    }

  private:
    std::optional<py::gil_scoped_release> released_;
};

class Pool {
  public:
    static Pool &get()
    {
        static std::mutex mutex;
        static Pool *pool = nullptr; // never freed: its threads may outlive main
        std::lock_guard<std::mutex> lock(mutex);
        if (!pool || pool->process_ != getpid()) {
            pool = new Pool; // a child of fork() has none of its parent's threads
        }
        return *pool;
    }

    void push(std::function<void()> job)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        jobs_.push_back(std::move(job));
        if (n_idle_ < jobs_.size() && n_threads_ < MAX_THREADS) {
            n_threads_++;
            std::thread([this] { run(); }).detach();
        } else {
            arrived_.notify_one();
        }
    }

    // Waits until no job is left or running, or until the time is over. Python must not end before.
    void drain(std::chrono::seconds limit)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        rested_.wait_for(lock, limit, [this] { return jobs_.empty() && n_idle_ == n_threads_; });
    }

  private:
    static constexpr size_t MAX_THREADS = 64;

    void run()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            n_idle_++;
            rested_.notify_all();
            bool has_job =
                arrived_.wait_for(lock, std::chrono::seconds(30), [this] { return !jobs_.empty(); });
            n_idle_--;
            if (!has_job) {
                break;
            }
            {
                std::function<void()> job = std::move(jobs_.front());
                jobs_.pop_front();
                lock.unlock();
                job();
            } // what the job holds is dropped without the lock
            lock.lock();
        }
        n_threads_--;
    }

    std::mutex mutex_;
    std::condition_variable arrived_; // a job
    std::condition_variable rested_;  // a thread
    std::deque<std::function<void()>> jobs_;
    size_t n_idle_ = 0;
    size_t n_threads_ = 0;
    pid_t process_ = getpid();
};

} // namespace shoal_torch

#endif
