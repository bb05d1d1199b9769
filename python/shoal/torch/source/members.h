// SPDX-License-Identifier: MIT
// What a process group stands on: a world that is opened through a store of c10d, a group of it, and symmetric memory
// that tensors are allocated from.
#ifndef SHOAL_TORCH_MEMBERS_H
#define SHOAL_TORCH_MEMBERS_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "operation.h"
#include "pool.h"
#include "versions.h"

namespace shoal_torch {

// Seconds that Shoal accepts as a timeout.
inline double seconds_of(Milliseconds timeout)
{
    return std::min(std::max(double(timeout.count()) / 1e3, 1e-3), 1e9);
}

// How long the end of a rank waits for others: destroying a process group is not collective, and they may do it much
// later.
constexpr double CLOSE_S = 10;

// The all-gather by which ranks meet, over a store.
struct Exchange {
    StorePtr store;
    int rank;
    int n_ranks;
    std::string error;

    static int run(void *context, const void *in, void *out_all, size_t bytes)
    {
        auto *exchange = static_cast<Exchange *>(context);
        try {
            exchange->all_gather(static_cast<const uint8_t *>(in), static_cast<uint8_t *>(out_all), bytes);
            return 0;
        } catch (const c10::Error &error) {
            exchange->error = error.what_without_backtrace();
        } catch (const std::exception &error) {
            exchange->error = error.what();
        }
        return 1;
    }

  private:
    void all_gather(const uint8_t *in, uint8_t *out_all, size_t bytes)
    {
        // A store may outlive groups (torchrun's does): a number of each rank keeps its openings apart.
        std::string turn = std::to_string(store->add("shoal/turn/" + std::to_string(rank), 1));
        store->set(key(turn, rank), std::vector<uint8_t>(in, in + bytes));
        for (int peer = 0; peer < n_ranks; peer++) {
            std::vector<uint8_t> value = get(key(turn, peer), peer);
            TORCH_CHECK(value.size() == bytes, "rank ", peer, " gave ", value.size(), " bytes, not ", bytes,
                        ": do all ranks use the same version of Shoal?");
            std::memcpy(out_all + size_t(peer) * bytes, value.data(), bytes);
        }
    }

    // Waits as long as the store's timeout.
    std::vector<uint8_t> get(const std::string &name, int peer)
    {
        try {
            return store->get(name);
        } catch (const c10::Error &error) {
            TORCH_CHECK(false, "rank ", peer, " has not arrived: ", error.what_without_backtrace());
        }
    }

    static std::string key(const std::string &turn, int peer)
    {
        return "shoal/card/" + turn + "/" + std::to_string(peer);
    }
};

class World {
  public:
    World(const StorePtr &store, int rank, int n_ranks, Milliseconds timeout)
    {
        Exchange exchange{store, rank, n_ranks, ""};
        shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
        options.n_ranks = n_ranks;
        options.rank = rank;
        options.exchange = Exchange::run;
        options.exchange_context = &exchange;
        options.timeout_s = seconds_of(timeout);
        options.startup_timeout_s = seconds_of(timeout);
        options.close_timeout_s = CLOSE_S;
        shoal_status status = shoal_world_open(&options, &world_);
        if (status != SHOAL_OK) {
            raise(status,
                  std::string(shoal_error_text()) + (exchange.error.empty() ? "" : ": " + exchange.error));
        }
    }
    World(const World &) = delete;

    ~World()
    {
        WithoutGil without_gil;
        shoal_status status = shoal_world_close(world_);
        // In a child of fork() it is SHOAL_ERR_STATE; SHOAL_ERR_TIMEOUT only says that another rank goes on.
        if (status != SHOAL_OK && status != SHOAL_ERR_STATE && status != SHOAL_ERR_TIMEOUT) {
            TORCH_WARN("shoal: closing the world: ", shoal_error_text());
        }
    }

    shoal_world *get() const
    {
        return world_;
    }

  private:
    shoal_world *world_ = nullptr;
};

// Symmetric memory of a group that tensors are allocated from, first fit. Making it is collective; allocating is not.
class Arena {
  public:
    Arena(std::shared_ptr<World> world, shoal_group *group, size_t bytes)
        : world_(std::move(world)), bytes_(bytes)
    {
        check(shoal_symmetric_create(group, bytes, &memory_));
        data_ = static_cast<char *>(shoal_symmetric_data(memory_));
    }
    Arena(const Arena &) = delete;

    ~Arena()
    {
        shoal_symmetric_free(memory_);
    }

    // NULL: there is no room.
    void *take(size_t bytes)
    {
        size_t size = (std::max(bytes, size_t(1)) + PAGE - 1) / PAGE * PAGE;
        std::lock_guard<std::mutex> lock(mutex_);
        size_t place = 0;
        for (auto &used : used_) {
            if (used.first - place >= size) {
                break;
            }
            place = used.first + used.second;
        }
        if (place + size > bytes_) {
            return nullptr;
        }
        used_[place] = size;
        return data_ + place;
    }

    void give_back(void *memory)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        used_.erase(size_t(static_cast<char *>(memory) - data_));
    }

    // How many bytes each member has for this: SHOAL_TORCH_SYMMETRIC_MB, by default 256; 0 turns it off.
    static size_t configured_bytes()
    {
        const char *text = std::getenv("SHOAL_TORCH_SYMMETRIC_MB");
        return size_t(text ? std::strtoull(text, nullptr, 10) : 256) << 20;
    }

  private:
    static constexpr size_t PAGE = 4096;
    std::shared_ptr<World> world_; // tensors may live longer than their process group
    shoal_symmetric *memory_ = nullptr;
    char *data_ = nullptr;
    size_t bytes_;
    std::mutex mutex_;
    std::map<size_t, size_t> used_; // offset -> bytes
};

// A group and its world. It is given back when the last that uses it lets go.
struct Group {
    Group(std::shared_ptr<World> world, shoal_group *handle) : world(std::move(world)), handle(handle)
    {
    }
    Group(const Group &) = delete;

    ~Group()
    {
        WithoutGil without_gil;
        if (handle != shoal_world_group(world->get())) {
            (void)!shoal_group_abandon(handle); // what fails here goes with the world
        }
        world.reset();
    }

    std::shared_ptr<World> world;
    shoal_group *handle;
};

// A rank's part of a process group: leaving it is not collective.
//
// Another thread may leave while calls are made on the group. A call holds a Use until it returns; leaving refuses new
// ones, waits for those that there are, and aborts the group if they do not end. A call that still goes on then gives
// the group back itself.
class Membership {
  public:
    class Use {
      public:
        explicit Use(const Membership &membership) : membership_(membership)
        {
            if (membership_.uses_.fetch_add(1) & LEFT) {
                membership_.end_use();
                membership_.check_in();
            }
        }
        Use(const Use &) = delete;

        ~Use()
        {
            membership_.end_use();
        }

        operator shoal_group *() const
        {
            return membership_.group_->handle;
        }

        const std::shared_ptr<Group> &shared() const
        {
            return membership_.group_;
        }

      private:
        const Membership &membership_;
    };

    explicit Membership(std::shared_ptr<Group> group) : group_(std::move(group))
    {
    }
    Membership(const Membership &) = delete;

    ~Membership()
    {
        leave();
    }

    static std::shared_ptr<Membership> open(const StorePtr &store, int rank, int n_ranks,
                                            Milliseconds timeout)
    {
        auto world = std::make_shared<World>(store, rank, n_ranks, timeout);
        shoal_group *group = shoal_world_group(world->get());
        return enlist(std::make_shared<Group>(std::move(world), group));
    }

    // The group of some ranks of this group's world.
    std::shared_ptr<Membership> make_group(const std::vector<int> &world_ranks, const std::string &name,
                                           int rank, Milliseconds timeout)
    {
        Use use(*this);
        const std::shared_ptr<World> &world = use.shared()->world;
        shoal_group *handle = nullptr;
        check(shoal_group_create(world->get(), world_ranks.data(), int(world_ranks.size()), name.c_str(),
                                 &handle));
        auto group = std::make_shared<Group>(world, handle);
        check(shoal_group_set_timeout(handle, seconds_of(timeout)));
        TORCH_CHECK(shoal_group_rank(handle) == rank, "shoal: rank ", rank, " of group ", name, " is rank ",
                    shoal_group_rank(handle), " for Shoal");
        return enlist(std::move(group));
    }

    // Raises if this rank has left.
    void check_in() const
    {
        TORCH_CHECK(!(uses_.load() & LEFT), "shoal: the process group was destroyed");
    }

    // The group, for the call in whose expression this stands.
    Use group() const
    {
        return Use(*this);
    }

    // Keeps the group and its world, also when the process group is destroyed.
    std::shared_ptr<Group> share() const
    {
        return Use(*this).shared();
    }

    // Remembers the last collective that was started. Those of one group end in order.
    void note(const OperationPtr &operation)
    {
        std::lock_guard<std::mutex> lock(last_mutex_);
        last_ = operation;
    }

    // Gives the group back; what was made of it stays usable. The world is closed when nobody uses it any more. As Gloo
    // does, it first waits for collectives that were started; a negative limit waits until their own deadline.
    void leave(double limit_s = -1)
    {
        WithoutGil without_gil;
        if (uses_.fetch_or(LEFT) & LEFT) {
            return;
        }
        wait_for_last(limit_s);
        wait_for_uses();
        drop_arena();
        std::shared_ptr<Group> group; // outlives the lock
        std::lock_guard<std::mutex> lock(use_mutex_);
        if (is_unused()) {
            group.swap(group_);
        } else {
            is_left_to_last_ = true;
        }
    }

    // A tensor in symmetric memory, or elsewhere if there is no room. The first call is collective.
    at::Tensor allocate(int64_t size, const at::TensorOptions &options)
    {
        std::shared_ptr<Arena> arena = find_arena();
        void *memory = arena ? arena->take(size_t(size) * options.dtype().itemsize()) : nullptr;
        if (!memory) {
            return at::empty({size}, options);
        }
        return at::from_blob(
            memory, {size}, [arena](void *given) { arena->give_back(given); }, options);
    }

    // Leaves every group and closes every world, because the process ends.
    static void leave_all()
    {
        std::vector<std::weak_ptr<Membership>> all;
        {
            std::lock_guard<std::mutex> lock(list_mutex());
            all = list();
        }
        for (auto &listed : all) {
            if (auto membership = listed.lock()) {
                membership->leave(CLOSE_S);
            }
        }
        Pool::get().drain(std::chrono::seconds(5));
    }

  private:
    // How long calls of other threads may take before they are aborted.
    static constexpr std::chrono::seconds PATIENCE{2};

    // Set in `uses_` when this rank has left; the rest is the number of uses.
    static constexpr uint64_t LEFT = uint64_t(1) << 63;

    bool is_unused() const
    {
        return (uses_.load() & ~LEFT) == 0;
    }

    void end_use() const
    {
        if (uses_.fetch_sub(1) == LEFT + 1) {
            end_last_use();
        }
    }

    // A thread that leaves waits for this, or has given up and left the group to the last use.
    void end_last_use() const
    {
        std::shared_ptr<Group> group; // outlives the lock
        std::lock_guard<std::mutex> lock(use_mutex_);
        unused_.notify_all();
        if (is_left_to_last_ && is_unused()) {
            group.swap(group_);
        }
    }

    void wait_for_uses()
    {
        std::unique_lock<std::mutex> lock(use_mutex_);
        auto is_over = [this] { return is_unused(); };
        if (!unused_.wait_for(lock, PATIENCE, is_over)) {
            lock.unlock();
            (void)!shoal_group_abort(group_->handle, "torch.distributed: the process group was destroyed");
            lock.lock();
            unused_.wait_for(lock, PATIENCE, is_over);
        }
    }

    void wait_for_last(double limit_s)
    {
        OperationPtr last;
        {
            std::lock_guard<std::mutex> lock(last_mutex_);
            last = last_.lock();
        }
        try {
            if (last && !last->test()) {
                last->wait(limit_s);
            }
        } catch (const std::exception &) {
            // Whoever has its work is told.
        }
    }

    void drop_arena()
    {
        std::lock_guard<std::mutex> lock(arena_mutex_);
        arena_.reset();
    }

    std::shared_ptr<Arena> find_arena()
    {
        WithoutGil without_gil; // before the lock: others may want both
        Use use(*this);
        std::lock_guard<std::mutex> lock(arena_mutex_);
        if (!arena_ && !has_no_arena_) {
            try {
                arena_ = std::make_shared<Arena>(use.shared()->world, use, Arena::configured_bytes());
            } catch (const c10::Error &error) {
                // It fails on all members alike: a transport without shared memory, or too little memory.
                has_no_arena_ = true;
                TORCH_WARN("shoal: tensors are not in symmetric memory: ", error.what_without_backtrace());
            }
        }
        return arena_;
    }

    static std::vector<std::weak_ptr<Membership>> &list()
    {
        static auto *memberships = new std::vector<std::weak_ptr<Membership>>;
        return *memberships;
    }

    static std::mutex &list_mutex()
    {
        static auto *mutex = new std::mutex;
        return *mutex;
    }

    static std::shared_ptr<Membership> enlist(std::shared_ptr<Group> group)
    {
        auto membership = std::make_shared<Membership>(std::move(group));
        std::lock_guard<std::mutex> lock(list_mutex());
        auto &all = list();
        all.erase(std::remove_if(all.begin(), all.end(), [](auto &listed) { return listed.expired(); }),
                  all.end());
        all.push_back(membership);
        return membership;
    }

    mutable std::shared_ptr<Group> group_; // does not change while there is a use
    mutable std::atomic<uint64_t> uses_{0};
    mutable std::mutex use_mutex_;
    mutable std::condition_variable unused_;
    bool is_left_to_last_ = false;
    std::mutex last_mutex_;
    std::weak_ptr<Operation> last_;
    std::mutex arena_mutex_;
    std::shared_ptr<Arena> arena_;
    bool has_no_arena_ = false;
};

// The group of a process group, for calls of the library from Python (checkpoints). It stays open meanwhile.
struct Borrowed {
    explicit Borrowed(const Membership &from) : group(from.share()), handle(uintptr_t(group->handle))
    {
    }

    std::shared_ptr<Group> group;
    uintptr_t handle;
};

} // namespace shoal_torch

#endif
