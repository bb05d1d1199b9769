// SPDX-License-Identifier: MIT
// The sum of sparse tensors: every rank gets the indices and values of all, and adds them in rank order.
//
// Ranks have different numbers of values, so they tell each other first. Shapes are compared before anything is
// gathered: a difference is an error on every rank.
#ifndef SHOAL_TORCH_SPARSE_H
#define SHOAL_TORCH_SPARSE_H

#include <cstdint>
#include <sstream>
#include <vector>

#include "elements.h"

namespace shoal_torch {

class SparseSum {
  public:
    SparseSum(shoal_group *group, double timeout_s)
        : group_(group), timeout_s_(timeout_s), size_(shoal_group_n_ranks(group))
    {
    }

    at::Tensor run(const at::Tensor &tensor)
    {
        TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kSparse,
                                    "shoal: all_reduce takes sparse tensors in COO layout only, not in ",
                                    tensor.layout());
        TORCH_CHECK_NOT_IMPLEMENTED(to_reduce(tensor).dtype != SHOAL_BOOL,
                                    "shoal: all_reduce of sparse tensors cannot sum booleans");
        at::Tensor mine = tensor.coalesce();
        std::vector<int64_t> n_values = compare(mine);
        at::Tensor indices = mine.indices().contiguous(), values = mine.values().contiguous();
        at::Tensor all_indices = gather(indices, n_values, size_t(mine.sparse_dim()));
        at::Tensor all_values = gather(values, n_values, row_elements(mine));
        return add(mine, n_values, all_indices, all_values);
    }

  private:
    static size_t row_elements(const at::Tensor &tensor)
    {
        size_t n = 1;
        for (int64_t dim = tensor.sparse_dim(); dim < tensor.dim(); dim++) {
            n *= size_t(tensor.size(dim));
        }
        return n;
    }

    void call(shoal_collective &collective)
    {
        collective.timeout_s = timeout_s_;
        check(shoal_group_collective(group_, &collective));
    }

    static std::string describe(const int64_t *form, size_t n)
    {
        std::ostringstream text;
        text << at::ScalarType(form[0]) << ", " << form[1] << " sparse dimensions, shape [";
        for (size_t i = 2; i < n; i++) {
            text << (i > 2 ? ", " : "") << form[i];
        }
        return text.str() + "]";
    }

    // The number of values of each rank. Ranks whose tensors have another number of dimensions differ in this call.
    std::vector<int64_t> compare(const at::Tensor &mine)
    {
        std::vector<int64_t> form{int64_t(mine.scalar_type()), mine.sparse_dim()};
        form.insert(form.end(), mine.sizes().begin(), mine.sizes().end());
        size_t n_form = form.size();
        form.push_back(mine._nnz());
        std::vector<int64_t> all(form.size() * size_t(size_));
        shoal_collective collective =
            SHOAL_COLLECTIVE_ALL_GATHER(form.data(), all.data(), form.size(), SHOAL_I64);
        call(collective);
        std::vector<int64_t> n_values;
        for (int rank = 0; rank < size_; rank++) {
            const int64_t *theirs = &all[size_t(rank) * form.size()];
            TORCH_CHECK(std::equal(theirs, theirs + n_form, all.begin()),
                        "shoal: sparse tensors of all_reduce differ: rank 0 has ",
                        describe(all.data(), n_form), ", rank ", rank, " has ", describe(theirs, n_form));
            n_values.push_back(theirs[n_form]);
        }
        return n_values;
    }

    // Rows of all ranks, of which `mine` has this rank's, one after the other.
    at::Tensor gather(const at::Tensor &mine, const std::vector<int64_t> &n_values, size_t row)
    {
        Elements elements = to_move(mine);
        std::vector<size_t> counts;
        size_t total = 0;
        for (int64_t n : n_values) {
            counts.push_back(size_t(n) * row * elements.factor);
            total += size_t(n) * row;
        }
        at::Tensor all = at::empty({int64_t(total)}, mine.options());
        shoal_collective collective =
            SHOAL_COLLECTIVE_ALL_GATHER_V(mine.data_ptr(), all.data_ptr(), counts.data(), elements.dtype);
        call(collective);
        return all;
    }

    at::Tensor add(const at::Tensor &mine, const std::vector<int64_t> &n_values, const at::Tensor &indices,
                   const at::Tensor &values)
    {
        auto value_sizes = mine.values().sizes().vec();
        int64_t n_dims = mine.sparse_dim(), row = int64_t(row_elements(mine)), place = 0;
        bool is_half = mine.scalar_type() == at::kHalf || mine.scalar_type() == at::kBFloat16;
        at::Tensor sum, addends = is_half ? values.to(at::kFloat) : values; // rounded once, at the end
        for (int64_t n : n_values) {
            value_sizes[0] = n;
            at::Tensor part =
                at::sparse_coo_tensor(indices.narrow(0, place * n_dims, n * n_dims).view({n_dims, n}),
                                      addends.narrow(0, place * row, n * row).view(value_sizes), mine.sizes(),
                                      mine.options().dtype(addends.scalar_type()));
            sum = sum.defined() ? (sum + part).coalesce() : part.coalesce();
            place += n;
        }
        return sum.to(mine.scalar_type());
    }

    shoal_group *group_;
    double timeout_s_;
    int size_;
};

} // namespace shoal_torch

#endif
