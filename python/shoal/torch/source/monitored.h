// SPDX-License-Identifier: MIT
// monitored_barrier: a barrier that names the ranks that do not arrive, and after which the group can be used whatever
// happened.
//
// Every rank tells rank 0 that it has arrived, and waits for rank 0's verdict. Messages carry the number of the barrier,
// so that one that was given up leaves nothing behind that the next could take for its own.
#ifndef SHOAL_TORCH_MONITORED_H
#define SHOAL_TORCH_MONITORED_H

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "versions.h"

namespace shoal_torch {

class MonitoredBarrier {
  public:
    void run(shoal_group *group, double timeout_s, bool wait_all_ranks)
    {
        Deadline deadline(timeout_s);
        number_++;
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
        int64_t number;
        int64_t missing; // in verdicts: the first rank that did not arrive, or -1
    };

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
                                 int tag, const Deadline &deadline)
    {
        shoal_transfer transfer = {direction, &message, sizeof(message), SHOAL_U8, peer, tag};
        shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
        options.timeout_s = deadline.left();
        return shoal_group_transfer_with(group, &transfer, 1, &options);
    }

    // Receives the message of this barrier; those of earlier ones are dropped.
    shoal_status receive(shoal_group *group, Message &message, int peer, int tag,
                         const Deadline &deadline) const
    {
        do {
            shoal_status status = transfer(group, SHOAL_RECV, message, peer, tag, deadline);
            if (status != SHOAL_OK) {
                return status;
            }
        } while (message.number < number_);
        return SHOAL_OK;
    }

    void lead(shoal_group *group, const Deadline &deadline, bool wait_all_ranks)
    {
        std::vector<int> arrived;
        std::vector<int> missing;
        std::string reason;
        for (int peer = 1; peer < shoal_group_n_ranks(group) && (missing.empty() || wait_all_ranks); peer++) {
            Message message;
            if (receive(group, message, peer, ARRIVAL_TAG, deadline) == SHOAL_OK) {
                arrived.push_back(peer);
            } else {
                missing.push_back(peer);
                reason = shoal_error_text();
            }
        }
        for (int peer : arrived) {
            Message verdict = {number_, missing.empty() ? -1 : missing[0]};
            (void)!transfer(group, SHOAL_SEND, verdict, peer, VERDICT_TAG, Deadline(1));
        }
        if (!missing.empty()) {
            raise(SHOAL_ERR_TIMEOUT, describe(missing) + " failed to pass monitoredBarrier in " +
                                         deadline.text() + " (" + reason + ")");
        }
    }

    void follow(shoal_group *group, const Deadline &deadline)
    {
        Message message = {number_, -1};
        shoal_status status = transfer(group, SHOAL_SEND, message, 0, ARRIVAL_TAG, deadline);
        if (status == SHOAL_OK) {
            status = receive(group, message, 0, VERDICT_TAG, deadline);
        }
        std::string rank = "Rank " + std::to_string(shoal_group_rank(group));
        if (status != SHOAL_OK) {
            raise(status, rank + " waited in monitoredBarrier for rank 0, which waits for the others, for " +
                              deadline.text() + ": " + shoal_error_text());
        }
        if (message.missing >= 0) {
            raise(SHOAL_ERR_TIMEOUT, rank + " reached monitoredBarrier, and rank 0 says: Rank " +
                                         std::to_string(message.missing) +
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

    int64_t number_ = 0;
};

} // namespace shoal_torch

#endif
