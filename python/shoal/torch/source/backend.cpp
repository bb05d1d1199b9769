// SPDX-License-Identifier: MIT
// A backend of torch.distributed: translates the calls of c10d into calls of Shoal. CPU tensors.
//
// shoal/torch/building.py compiles this file when it is first needed.
#include "elements.h"
#include "members.h"
#include "monitored.h"
#include "operation.h"
#include "sparse.h"
#include "versions.h"

namespace shoal_torch {

class Backend : public Base {
  public:
    Backend(std::shared_ptr<Membership> membership, int rank, int size, Milliseconds timeout)
        : Base(rank, size), membership_(std::move(membership)), timeout_(timeout)
    {
#if TORCH2
        options_ = c10::make_intrusive<c10d::Backend::Options>("shoal", timeout);
#endif
        init();
    }

    ~Backend() override = default;

    const Membership &membership() const
    {
        return *membership_;
    }

    // The group itself ------------------------------------------------------------------------------------

    const std::string getBackendName() const override
    {
        return "shoal";
    }

    void setSequenceNumberForGroup() override
    {
        // Shoal counts by itself, from 0 on every rank.
    }

    uint64_t getSequenceNumberForGroup() override
    {
        return shoal_group_sequence(group());
    }

#if TORCH2
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions()
    {
        return options_;
    }

    void setTimeout(Milliseconds timeout)
    {
        check(shoal_group_set_timeout(group(), seconds_of(timeout)));
        timeout_ = timeout;
        options_->timeout = timeout;
    }

    // Calls can be coalesced, but batch_isend_irecv, which asks this, never ends what it has begun if one of its calls
    // is refused. Otherwise it makes the same calls one by one.
    bool supportsCoalescing() const
    {
        return false;
    }

    bool supportsSplitting() const
    {
        return true;
    }

    // `ranks` are ranks of this group; those that are not among them get nullptr.
    c10::intrusive_ptr<c10d::Backend> split(const StorePtr &, const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options)
    {
        auto place = std::find(ranks.begin(), ranks.end(), rank_);
        if (place == ranks.end()) {
            return nullptr;
        }
        std::string name = group_name_of(*options, 0);
        if (name.empty()) {
            name = std::string(shoal_group_name(group())) + ":split:" + std::to_string(n_splits_++);
        }
        std::vector<int> world_ranks;
        for (int rank : ranks) {
            world_ranks.push_back(shoal_group_world_rank(group(), rank));
        }
        int rank = int(place - ranks.begin());
        auto part = membership_->make_group(world_ranks, name, rank, options->timeout);
        return c10::make_intrusive<Backend>(std::move(part), rank, int(ranks.size()), options->timeout);
    }

#if TORCH_AT_LEAST(2, 7)
    c10d::ErrorType getError()
    {
        switch (shoal_group_error(group())) {
        case SHOAL_OK:
            return c10d::ErrorType::SUCCESS;
        case SHOAL_ERR_TIMEOUT:
            return c10d::ErrorType::TIMEOUT;
        case SHOAL_ERR_PEER:
            return c10d::ErrorType::REMOTE_ERROR;
        default:
            return c10d::ErrorType::COMM_ERROR;
        }
    }
#endif

    void abort()
    {
        (void)shoal_group_abort(group(), "torch.distributed: abort");
    }

    void shutdown()
    {
        membership_->leave();
    }

    bool supportsTensorAlloc(c10::DeviceIndex)
    {
        return Arena::configured_bytes() > 0;
    }

    at::Tensor allocateTensor(long size, at::TensorOptions options)
    {
        return membership_->allocate(size, options);
    }
#endif

    // A group of some ranks of this one's world, which is the world of the default group.
    c10::intrusive_ptr<Base> make_group(const std::vector<int> &ranks, const std::string &name, int rank,
                                        Milliseconds timeout)
    {
        auto part = membership_->make_group(ranks, name, rank, timeout);
        return c10::make_intrusive<Backend>(std::move(part), rank, int(ranks.size()), timeout);
    }

    // Reductions ------------------------------------------------------------------------------------------

    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override
    {
        if (tensors.size() == 1 && tensors[0].layout() != at::kStrided) {
            return all_reduce_sparse(tensors, options);
        }
        auto operation = begin(options);
        at::Tensor memory = operation->update(only(tensors, "all_reduce"));
        operation->set_outputs(tensors);
        shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(
            memory.data_ptr(), memory.data_ptr(), size_t(memory.numel()), to_reduce(memory).dtype, SHOAL_SUM);
        set_reduce_op(call, options.reduceOp);
        return run(std::move(operation), call, options, OpType::ALLREDUCE);
    }

    WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override
    {
        auto make_part = [&](Operation &operation, size_t i) {
            at::Tensor memory = operation.update(tensors[i]);
            return shoal_part{memory.data_ptr(), memory.data_ptr(), size_t(memory.numel())};
        };
        return reduce_by_dtype(SHOAL_KIND_ALL_REDUCE, tensors, tensors, options, OpType::ALLREDUCE_COALESCED,
                               make_part);
    }

    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override
    {
        auto operation = begin(options);
        at::Tensor memory = operation->update(only(tensors, "reduce"));
        operation->set_outputs(tensors);
        shoal_collective call =
            SHOAL_COLLECTIVE_REDUCE(memory.data_ptr(), memory.data_ptr(), size_t(memory.numel()),
                                    to_reduce(memory).dtype, SHOAL_SUM, int(options.rootRank));
        set_reduce_op(call, options.reduceOp);
        return run(std::move(operation), call, options, OpType::REDUCE);
    }

    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override
    {
        check_scattered(output, input);
        auto operation = begin(options);
        at::Tensor from = operation->read(input), to = operation->write(output);
        operation->set_outputs(output);
        shoal_collective call = SHOAL_COLLECTIVE_REDUCE_SCATTER(
            from.data_ptr(), to.data_ptr(), size_t(to.numel()), to_reduce(from).dtype, SHOAL_SUM);
        set_reduce_op(call, options.reduceOp);
        return run(std::move(operation), call, options, OpType::_REDUCE_SCATTER_BASE);
    }

    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override
    {
        const at::Tensor &output = only(outputs, "reduce_scatter");
        const Tensors &parts = only(inputs, "reduce_scatter");
        check_list(parts, size_, "the input of reduce_scatter");
        check_dtypes(parts, output);
        check_own_part(parts[size_t(rank_)], output, "reduce_scatter");
        auto operation = begin(options);
        auto blocks = operation->read_all(parts);
        at::Tensor to = operation->write(output);
        Elements elements = to_reduce(output);
        auto counts = counts_of(parts, elements);
        operation->set_outputs(outputs);
        shoal_collective call = SHOAL_COLLECTIVE_REDUCE_SCATTER(nullptr, to.data_ptr(), size_t(to.numel()),
                                                                elements.dtype, SHOAL_SUM);
        if (!have_one_size(parts)) {
            call = SHOAL_COLLECTIVE_REDUCE_SCATTER_V(nullptr, to.data_ptr(), counts.data(), elements.dtype,
                                                     SHOAL_SUM);
        }
        call.send_blocks = blocks.data();
        set_reduce_op(call, options.reduceOp);
        return run(std::move(operation), call, options, OpType::REDUCE_SCATTER);
    }

    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &options) TORCH2_OVERRIDE
    {
        check_pairs(outputs, inputs);
        auto make_part = [&](Operation &operation, size_t i) {
            check_scattered(outputs[i], inputs[i]);
            at::Tensor from = operation.read(inputs[i]), to = operation.write(outputs[i]);
            return shoal_part{from.data_ptr(), to.data_ptr(), size_t(to.numel())};
        };
        return reduce_by_dtype(SHOAL_KIND_REDUCE_SCATTER, inputs, outputs, options, COALESCED, make_part);
    }

    // Moves -----------------------------------------------------------------------------------------------

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override
    {
        auto operation = begin(options);
        at::Tensor memory = operation->update(only(tensors, "broadcast"));
        Elements elements = to_move(memory);
        operation->set_outputs(tensors);
        shoal_collective call = SHOAL_COLLECTIVE_BROADCAST(memory.data_ptr(), elements.count(memory),
                                                           elements.dtype, int(options.rootRank));
        return run(std::move(operation), call, options, OpType::BROADCAST);
    }

    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &options) override
    {
        auto operation = begin(options);
        start_gather_to_all(operation, only(outputs, "all_gather"), only(inputs, "all_gather"), options);
        return end(std::move(operation), OpType::ALLGATHER);
    }

    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &options) override
    {
        TORCH_CHECK_VALUE(int(outputs.size()) == size_, "shoal: the output of all_gather_coalesced has ",
                          outputs.size(), " lists for ", size_, " ranks");
        std::vector<Tensors> parts(inputs.size());
        for (size_t i = 0; i < inputs.size(); i++) { // all are checked before the first is started
            for (auto &list : outputs) {
                TORCH_CHECK_VALUE(list.size() == inputs.size(), "shoal: a list of the output of ",
                                  "all_gather_coalesced has ", list.size(), " tensors for ", inputs.size());
                parts[i].push_back(list[i]);
            }
            check_gathered_list(parts[i], inputs[i]);
        }
        Operations operations;
        for (size_t i = 0; i < inputs.size(); i++) {
            operations.push_back(begin(options));
            start_gather_to_all(operations.back(), parts[i], inputs[i], options);
        }
        return end_all(std::move(operations), OpType::ALLGATHER_COALESCED);
    }

    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &options) override
    {
        check_gathered(output, input);
        auto operation = begin(options);
        at::Tensor from = operation->read(input), to = operation->write(output);
        Elements elements = to_move(from);
        operation->set_outputs(output);
        shoal_collective call =
            SHOAL_COLLECTIVE_ALL_GATHER(from.data_ptr(), to.data_ptr(), elements.count(from), elements.dtype);
        return run(std::move(operation), call, options, OpType::_ALLGATHER_BASE);
    }

    // Tensors of several dtypes are moved as bytes, in one call. Ranks compare the sizes of its parts: those behind the
    // tensors have sizes that stand for their dtypes.
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &options) TORCH2_OVERRIDE
    {
        check_pairs(outputs, inputs);
        auto operation = begin(options);
        bool is_mixed = false;
        std::vector<shoal_part> parts;
        for (auto &input : inputs) {
            is_mixed = is_mixed || input.scalar_type() != inputs[0].scalar_type();
        }
        shoal_dtype dtype = is_mixed || inputs.empty() ? SHOAL_U8 : to_move(inputs[0]).dtype;
        for (size_t i = 0; i < inputs.size(); i++) {
            check_gathered(outputs[i], inputs[i]);
            at::Tensor from = operation->read(inputs[i]), to = operation->write(outputs[i]);
            size_t bytes = size_t(from.numel()) * size_t(from.element_size());
            parts.push_back({from.data_ptr(), to.data_ptr(), bytes / shoal_dtype_bytes(dtype)});
        }
        for (size_t i = 0; is_mixed && i < inputs.size(); i++) {
            auto n = int64_t(inputs[i].scalar_type()) + 1;
            at::Tensor from = operation->read(at::zeros({n}, at::kByte));
            at::Tensor to = operation->write(at::empty({n * size_}, at::kByte));
            parts.push_back({from.data_ptr(), to.data_ptr(), size_t(n)});
        }
        operation->set_outputs(outputs);
        shoal_collective call = SHOAL_COLLECTIVE_ALL_GATHER(nullptr, nullptr, 0, dtype);
        call.parts = parts.data();
        call.n_parts = parts.size();
        return parts.empty() ? end_all({}, COALESCED) : run(operation, call, options, COALESCED);
    }

    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options) override
    {
        TORCH_CHECK(output.scalar_type() == input.scalar_type(), "shoal: all_to_all_single from ",
                    input.scalar_type(), " to ", output.scalar_type());
        auto operation = begin(options);
        at::Tensor from = operation->read(input), to = operation->write(output);
        Elements elements = to_move(from);
        auto send_counts = split_counts(input, input_splits, size_, elements, "the input");
        auto recv_counts = split_counts(output, output_splits, size_, elements, "the output");
        operation->set_outputs(output);
        shoal_collective call = SHOAL_COLLECTIVE_ALL_TO_ALL_V(
            from.data_ptr(), send_counts.data(), to.data_ptr(), recv_counts.data(), elements.dtype);
        if (input_splits.empty() && output_splits.empty()) {
            TORCH_CHECK(input.numel() == output.numel(), "shoal: all_to_all_single of ", input.numel(),
                        " elements into ", output.numel());
            call =
                SHOAL_COLLECTIVE_ALL_TO_ALL(from.data_ptr(), to.data_ptr(), send_counts[0], elements.dtype);
        }
        return run(std::move(operation), call, options, OpType::ALLTOALL_BASE);
    }

    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override
    {
        check_list(inputs, size_, "the input of all_to_all");
        check_list(outputs, size_, "the output of all_to_all");
        check_dtypes(inputs, inputs[0]);
        check_dtypes(outputs, inputs[0]);
        auto operation = begin(options);
        Elements elements = to_move(inputs[0]);
        auto from = operation->read_all(inputs);
        auto to = operation->write_all(outputs);
        auto send_counts = counts_of(inputs, elements), recv_counts = counts_of(outputs, elements);
        operation->set_outputs(outputs);
        shoal_collective call = SHOAL_COLLECTIVE_ALL_TO_ALL_V(nullptr, send_counts.data(), nullptr,
                                                              recv_counts.data(), elements.dtype);
        call.send_blocks = from.data();
        call.recv_blocks = to.data();
        return run(std::move(operation), call, options, OpType::ALLTOALL);
    }

    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &options) override
    {
        const at::Tensor &input = only(inputs, "gather");
        auto operation = begin(options);
        at::Tensor from = operation->read(input);
        Elements elements = to_move(input);
        std::vector<void *> blocks;
        if (rank_ == options.rootRank) {
            const Tensors &parts = only(outputs, "gather");
            check_parts(parts, input, "the output of gather");
            blocks = operation->write_all(parts);
            operation->set_outputs(parts);
        }
        shoal_collective call = SHOAL_COLLECTIVE_GATHER(from.data_ptr(), nullptr, elements.count(from),
                                                        elements.dtype, int(options.rootRank));
        call.recv_blocks = blocks.empty() ? nullptr : blocks.data();
        return run(std::move(operation), call, options, OpType::GATHER);
    }

    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &options) override
    {
        const at::Tensor &output = only(outputs, "scatter");
        auto operation = begin(options);
        at::Tensor to = operation->write(output);
        Elements elements = to_move(output);
        std::vector<const void *> blocks;
        if (rank_ == options.rootRank) {
            const Tensors &parts = only(inputs, "scatter");
            check_parts(parts, output, "the input of scatter");
            blocks = operation->read_all(parts);
        }
        operation->set_outputs(outputs);
        shoal_collective call = SHOAL_COLLECTIVE_SCATTER(nullptr, to.data_ptr(), elements.count(to),
                                                         elements.dtype, int(options.rootRank));
        call.send_blocks = blocks.empty() ? nullptr : blocks.data();
        return run(std::move(operation), call, options, OpType::SCATTER);
    }

    WorkPtr barrier(const c10d::BarrierOptions &options) override
    {
        shoal_collective call = SHOAL_COLLECTIVE_BARRIER;
        return run(begin(options), call, options, OpType::BARRIER);
    }

    void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) override
    {
        Milliseconds timeout = options.timeout.count() >= 0 ? options.timeout : timeout_; // -1: not set
        monitored_.run(group(), seconds_of(timeout), wait_all_ranks);
    }

    // Point to point --------------------------------------------------------------------------------------

    WorkPtr send(Tensors &tensors, int peer, int tag) override
    {
        auto operation = begin();
        at::Tensor memory = operation->read(only(tensors, "send"));
        Elements elements = to_move(memory);
        operation->recording.begin("shoal:send", true);
        check(shoal_group_send_start(group(), memory.data_ptr(), elements.count(memory), elements.dtype, peer,
                                     tag, &operation->work));
        return end(std::move(operation), OpType::SEND);
    }

    WorkPtr recv(Tensors &tensors, int peer, int tag) override
    {
        auto operation = begin();
        at::Tensor memory = operation->write(only(tensors, "recv"));
        Elements elements = to_move(memory);
        operation->set_outputs(tensors);
        operation->source = peer;
        operation->recording.add_input(memory);
        operation->recording.begin("shoal:recv", true);
        check(shoal_group_recv_start(group(), memory.data_ptr(), elements.count(memory), elements.dtype, peer,
                                     tag, &operation->work));
        return end(std::move(operation), OpType::RECV);
    }

    WorkPtr recvAnysource(Tensors &tensors, int tag) override
    {
        auto operation = begin();
        at::Tensor memory = operation->write(only(tensors, "recv"));
        Elements elements = to_move(memory);
        operation->set_outputs(tensors);
        operation->recording.add_input(memory);
        operation->recording.begin("shoal:recv_any_source", true);
        check(shoal_group_recv_any_start(group(), memory.data_ptr(), elements.count(memory), elements.dtype,
                                         tag, &operation->source, &operation->work));
        return end(std::move(operation), OpType::RECVANYSOURCE);
    }

    // Coalescing: calls are started as they come, and one work stands for all of them ---------------------

    void startCoalescing() override
    {
        (void)end_list(); // of a block that an exception has left
        std::lock_guard<std::mutex> lock(coalescing_mutex_);
        is_coalescing_ = true;
    }

#if TORCH2
    WorkPtr endCoalescing() override
    {
        return c10::make_intrusive<Work>(rank_, COALESCED, end_list());
    }
#else
    void endCoalescing(std::vector<WorkPtr> &) override
    {
        (void)end_list(); // the caller has the works
    }
#endif

  private:
    Membership::Use group() const
    {
        return membership_->group();
    }

    OperationPtr begin() const
    {
        membership_->check_in();
        return Operation::make();
    }

    template <class Options> OperationPtr begin(const Options &options) const
    {
        auto operation = begin();
        operation->is_started = is_async(options, 0) || is_coalescing_;
        return operation;
    }

    template <class Options>
    void issue(const OperationPtr &operation, shoal_collective &call, const Options &options)
    {
        call.timeout_s = options.timeout.count() > 0 ? seconds_of(options.timeout) : 0;
        operation->is_started = operation->is_started && !(size_ == 1 && is_small(call));
        operation->recording.begin(name_of(call.kind), operation->is_started);
        check(operation->is_started ? shoal_group_collective_start(group(), &call, &operation->work)
                                    : shoal_group_collective(group(), &call));
        if (operation->is_started) {
            membership_->note(operation);
        } else {
            operation->settle_blocked();
        }
    }

    // In a group of one rank there is nobody to wait for: such a call ends in less time than it takes to start it.
    static bool is_small(const shoal_collective &call)
    {
        constexpr size_t SMALL_BYTES = 65536;
        bool is_counted = !call.parts && !call.counts && !call.send_counts;
        return is_counted && (call.count == 0 || call.count <= SMALL_BYTES / shoal_dtype_bytes(call.dtype));
    }

    WorkPtr end(OperationPtr operation, OpType type)
    {
        operation->watch_if_recorded();
        if (is_coalescing_) {
            std::lock_guard<std::mutex> lock(coalescing_mutex_);
            coalesced_.push_back(operation);
        }
        return c10::make_intrusive<Work>(rank_, type, std::move(operation));
    }

    WorkPtr end_all(Operations operations, OpType type)
    {
        for (auto &operation : operations) {
            operation->watch_if_recorded();
        }
        if (is_coalescing_) {
            std::lock_guard<std::mutex> lock(coalescing_mutex_);
            coalesced_.insert(coalesced_.end(), operations.begin(), operations.end());
        }
        return c10::make_intrusive<Work>(rank_, type, std::move(operations));
    }

    Operations end_list()
    {
        std::lock_guard<std::mutex> lock(coalescing_mutex_);
        is_coalescing_ = false;
        Operations operations;
        operations.swap(coalesced_);
        return operations;
    }

    template <class Options>
    WorkPtr run(OperationPtr operation, shoal_collective &call, const Options &options, OpType type)
    {
        issue(operation, call, options);
        return end(std::move(operation), type);
    }

    // Ends before it returns: what is gathered depends on the numbers of values, and the sum on what is gathered.
    WorkPtr all_reduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options)
    {
        TORCH_CHECK_NOT_IMPLEMENTED(find_reduce_op(options.reduceOp) == SHOAL_SUM,
                                    "shoal: all_reduce of sparse tensors can only sum");
        at::NoGradGuard without_grad;
        auto operation = begin();
        operation->is_started = false;
        operation->recording.add_input(tensors[0]);
        operation->recording.begin(name_of(SHOAL_KIND_ALL_REDUCE), false);
        double timeout_s = options.timeout.count() > 0 ? seconds_of(options.timeout) : 0;
        tensors[0].copy_(SparseSum(group(), timeout_s).run(tensors[0]));
        operation->set_outputs(tensors);
        operation->settle_blocked();
        return end(std::move(operation), OpType::ALLREDUCE);
    }

    template <class Options>
    void start_gather_to_all(const OperationPtr &operation, const Tensors &outputs, const at::Tensor &input,
                             const Options &options)
    {
        check_gathered_list(outputs, input);
        at::Tensor from = operation->read(input);
        Elements elements = to_move(input);
        auto blocks = operation->write_all(outputs);
        auto counts = counts_of(outputs, elements);
        operation->set_outputs(outputs);
        shoal_collective call =
            SHOAL_COLLECTIVE_ALL_GATHER(from.data_ptr(), nullptr, elements.count(from), elements.dtype);
        if (!have_one_size(outputs)) {
            call = SHOAL_COLLECTIVE_ALL_GATHER_V(from.data_ptr(), nullptr, counts.data(), elements.dtype);
        }
        call.recv_blocks = blocks.data();
        issue(operation, call, options);
    }

    // A list of tensors of any dtypes: one call for each dtype.
    template <class Options, class MakePart>
    WorkPtr reduce_by_dtype(shoal_collective_kind kind, const Tensors &inputs, const Tensors &outputs,
                            const Options &options, OpType type, MakePart &&make_part)
    {
        std::map<at::ScalarType, std::vector<size_t>> places;
        for (size_t i = 0; i < inputs.size(); i++) {
            places[inputs[i].scalar_type()].push_back(i);
        }
        struct Call {
            OperationPtr operation;
            std::vector<shoal_part> parts;
            shoal_collective call;
        };
        std::vector<Call> calls; // all are checked before the first is started
        for (auto &listed : places) {
            Call one{begin(options), {}, SHOAL_COLLECTIVE_INIT};
            for (size_t i : listed.second) {
                one.parts.push_back(make_part(*one.operation, i));
                one.operation->outputs.push_back(outputs[i]);
            }
            one.call.kind = kind;
            one.call.dtype = to_reduce(inputs[listed.second[0]]).dtype;
            set_reduce_op(one.call, options.reduceOp);
            calls.push_back(std::move(one));
        }
        Operations operations;
        for (auto &one : calls) {
            one.call.parts = one.parts.data();
            one.call.n_parts = one.parts.size();
            issue(one.operation, one.call, options);
            operations.push_back(std::move(one.operation));
        }
        return end_all(std::move(operations), type);
    }

    template <class Value> static const Value &only(const std::vector<Value> &values, const char *what)
    {
        TORCH_CHECK_VALUE(values.size() == 1, "shoal: ", what, " takes one tensor or list a rank, not ",
                          values.size());
        return values[0];
    }

    void check_gathered_list(const Tensors &outputs, const at::Tensor &input) const
    {
        check_list(outputs, size_, "the output of all_gather");
        check_dtypes(outputs, input);
        check_own_part(outputs[size_t(rank_)], input, "all_gather");
    }

    static void check_own_part(const at::Tensor &part, const at::Tensor &whole, const char *what)
    {
        TORCH_CHECK(part.numel() == whole.numel(), "shoal: ", what, ": this rank's part has ", part.numel(),
                    " elements in the list, and ", whole.numel(), " outside");
    }

    void check_parts(const Tensors &parts, const at::Tensor &one, const char *what) const
    {
        check_list(parts, size_, what);
        check_dtypes(parts, one);
        TORCH_CHECK(have_one_size(parts) && parts[0].numel() == one.numel(), "shoal: the tensors of ", what,
                    " must have ", one.numel(), " elements each, as on the other ranks");
    }

    static void check_pairs(const Tensors &outputs, const Tensors &inputs)
    {
        TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "shoal: ", inputs.size(), " inputs and ",
                          outputs.size(), " outputs");
    }

    void check_gathered(const at::Tensor &output, const at::Tensor &input) const
    {
        TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                    "shoal: output tensor must have the same type as input tensor: ", output.scalar_type(),
                    " and ", input.scalar_type());
        TORCH_CHECK(output.numel() == input.numel() * size_, "shoal: output tensor size must be equal to ",
                    "world_size times input tensor size: ", output.numel(), ", ", size_, " and ",
                    input.numel());
    }

    void check_scattered(const at::Tensor &output, const at::Tensor &input) const
    {
        TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                    "shoal: input tensor must be the same type as the output tensor: ", input.scalar_type(),
                    " and ", output.scalar_type());
        TORCH_CHECK(input.numel() == output.numel() * size_, "shoal: input tensor must be the same size as ",
                    "output size times world size: ", input.numel(), ", ", output.numel(), " and ", size_);
    }

    std::shared_ptr<Membership> membership_;
    Milliseconds timeout_;
    MonitoredBarrier monitored_;
#if TORCH2
    c10::intrusive_ptr<c10d::Backend::Options> options_;
    int n_splits_ = 0;
#endif
    std::mutex coalescing_mutex_;
    std::atomic<bool> is_coalescing_{false};
    Operations coalesced_;
};

static Milliseconds to_milliseconds(double seconds)
{
    return Milliseconds(int64_t(std::min(seconds, 1e9) * 1e3));
}

// Opens a world of these ranks, which meet by the store.
static c10::intrusive_ptr<Base> open_world(const StorePtr &store, int rank, int n_ranks, double timeout_s)
{
    Milliseconds timeout = to_milliseconds(timeout_s);
    auto membership = Membership::open(store, rank, n_ranks, timeout);
    return c10::make_intrusive<Backend>(std::move(membership), rank, n_ranks, timeout);
}

static bool is_ours(const c10::intrusive_ptr<Base> &backend)
{
    return dynamic_cast<Backend *>(backend.get()) != nullptr;
}

static Borrowed borrow(const c10::intrusive_ptr<Base> &backend)
{
    auto *ours = dynamic_cast<Backend *>(backend.get());
    TORCH_CHECK_VALUE(ours, "shoal: this is a process group of another backend");
    return Borrowed(ours->membership());
}

// A group of some ranks of the world that `parent` is the group of.
static c10::intrusive_ptr<Base> make_group(const c10::intrusive_ptr<Base> &parent,
                                           const std::vector<int> &ranks, const std::string &name, int rank,
                                           double timeout_s)
{
    auto *backend = dynamic_cast<Backend *>(parent.get());
    TORCH_CHECK_VALUE(backend, "shoal: the parent is a process group of another backend");
    return backend->make_group(ranks, name, rank, to_milliseconds(timeout_s));
}

} // namespace shoal_torch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    using namespace shoal_torch;
    using without_gil = py::call_guard<py::gil_scoped_release>;
    module.def("open_world", &open_world, without_gil());
    module.def("make_group", &make_group, without_gil());
    module.def("is_ours", &is_ours);
    py::class_<Borrowed>(module, "Borrowed").def_readonly("handle", &Borrowed::handle);
    module.def("borrow", &borrow);
    module.def("leave_all", &Membership::leave_all, without_gil());
}
