// SPDX-License-Identifier: MIT
// monitored_barrier: a barrier that names the ranks that do not arrive, and after which the group can be used whatever
// happened.
//
// Every rank tells rank 0 that it has arrived, and waits for rank 0's verdict. A rank that gives up tells that, too, so
// that its arrival does not count for the next barrier. A verdict carries the number of the arrival that it answers: one
// that comes too late answers no later arrival.
#ifndef SHOAL_TORCH_MONITORED_H
#define SHOAL_TORCH_MONITORED_H

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "versions.h"

namespace shoal_torch {

class MonitoredBarrier {
  public:
    void run(shoal_group *group, double timeout_s, bool wait_all_ranks)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        Deadline deadline(timeout_s);
        if (shoal_group_rank(group) == 0) {
            lead(group, deadline, wait_all_ranks);
        } else {
            follow(group, deadline);
        }
    }

  private:
    // Tags that a program is unlikely to use.
    static constexpr int ARRIVAL_TAG = 0x7ffffffe;
    static constexpr int VERDICT_TAG = 0x7fffffff;

    struct Message {
        int64_t number;  // of the arrival
        int64_t missing; // in verdicts: the first rank that did not arrive, or -1; or GIVES_UP
    };
    static constexpr int64_t GIVES_UP = -2;

    struct Deadline {
        explicit Deadline(double seconds) : timeout_s(seconds), begin(std::chrono::steady_clock::now())
        {
        }
        double left() const
        {
            double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            return std::max(timeout_s - passed, 1e-3);
        }
        std::string text() const
        {
            return std::to_string(int64_t(timeout_s * 1e3)) + " ms";
        }
        double timeout_s;
        std::chrono::steady_clock::time_point begin;
    };

    static shoal_status transfer(shoal_group *group, shoal_direction direction, Message &message, int peer,
                                 int tag, double timeout_s)
    {
        shoal_transfer transfer = {direction, &message, sizeof(message), SHOAL_U8, peer, tag};
        shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
        options.timeout_s = timeout_s;
        return shoal_group_transfer_with(group, &transfer, 1, &options);
    }

    // Waits until `peer` has arrived and has not given up again: what it has sent is read to the end.
    static shoal_status await_arrival(shoal_group *group, Message &message, int peer,
                                      const Deadline &deadline)
    {
        for (bool has_arrived = false;;) {
            Message next;
            shoal_status status = transfer(group, SHOAL_RECV, next, peer, ARRIVAL_TAG,
                                           has_arrived ? AT_ONCE_S : deadline.left());
            if (status == SHOAL_ERR_TIMEOUT && has_arrived) {
                return SHOAL_OK;
            }
            if (status != SHOAL_OK) {
                return status;
            }
            has_arrived = next.missing != GIVES_UP;
            message = next;
        }
    }

    void lead(shoal_group *group, const Deadline &deadline, bool wait_all_ranks)
    {
        std::vector<std::pair<int, Message>> arrived;
        std::vector<int> missing;
        std::string reason;
        for (int peer = 1; peer < shoal_group_n_ranks(group) && (missing.empty() || wait_all_ranks); peer++) {
            Message message;
            shoal_status status = await_arrival(group, message, peer, deadline);
            if (status == SHOAL_OK) {
                arrived.emplace_back(peer, message);
            } else if (status == SHOAL_ERR_TIMEOUT) {
                missing.push_back(peer);
                reason = shoal_error_text();
            } else {
                raise(status, "Rank 0 waited in monitoredBarrier for rank " + std::to_string(peer) + ": " +
                                  shoal_error_text());
            }
        }
        for (auto &answered : arrived) {
            answered.second.missing = missing.empty() ? -1 : missing[0];
            (void)!transfer(group, SHOAL_SEND, answered.second, answered.first, VERDICT_TAG, 1);
        }
        if (!missing.empty()) {
            raise(SHOAL_ERR_TIMEOUT, "Rank 0 timed out in monitoredBarrier: " + describe(missing) +
                                         " failed to pass monitoredBarrier in " + deadline.text() + " (" +
                                         reason + ")");
        }
    }

    void follow(shoal_group *group, const Deadline &deadline)
    {
        const Message arrival = {++number_, -1};
        Message message = arrival;
        shoal_status status = transfer(group, SHOAL_SEND, message, 0, ARRIVAL_TAG, deadline.left());
        do {
            if (status == SHOAL_OK) {
                status = transfer(group, SHOAL_RECV, message, 0, VERDICT_TAG, deadline.left());
            }
        } while (status == SHOAL_OK && message.number != arrival.number);
        // Programs look for these words, which are Gloo's.
        std::string text = "Rank " + std::to_string(shoal_group_rank(group)) +
                           " successfully reached monitoredBarrier, but received errors while waiting for "
                           "send/recv from rank 0";
        if (status != SHOAL_OK) {
            text += " for " + deadline.text() + ": " + shoal_error_text();
            message = {arrival.number, GIVES_UP};
            (void)!transfer(group, SHOAL_SEND, message, 0, ARRIVAL_TAG, 1);
            raise(status, text);
        }
        if (message.missing >= 0) {
            raise(SHOAL_ERR_TIMEOUT, text + ": Rank " + std::to_string(message.missing) +
                                         " failed to pass monitoredBarrier in time");
        }
    }

    static std::string describe(const std::vector<int> &ranks)
    {
        std::string text = ranks.size() > 1 ? "Ranks " : "Rank ";
        for (size_t i = 0; i < ranks.size(); i++) {
            text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
        }
        return text;
    }

    // Enough for what has been sent already.
    static constexpr double AT_ONCE_S = 1e-6;
    std::mutex mutex_;
    int64_t number_ = 0;
};

} // namespace shoal_torch

#endif
