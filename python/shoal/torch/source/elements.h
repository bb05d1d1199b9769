// SPDX-License-Identifier: MIT
// How tensors look to Shoal: dtypes, reduce operators, and contiguous memory.
#ifndef SHOAL_TORCH_ELEMENTS_H
#define SHOAL_TORCH_ELEMENTS_H

#include "versions.h"

namespace shoal_torch {

// Shoal's dtype, or 0.
inline shoal_dtype find_dtype(at::ScalarType type)
{
    switch (type) {
    case at::ScalarType::Double:
        return SHOAL_F64;
    case at::ScalarType::Float:
        return SHOAL_F32;
    case at::ScalarType::Half:
        return SHOAL_F16;
    case at::ScalarType::BFloat16:
        return SHOAL_BF16;
    case at::ScalarType::Char:
        return SHOAL_I8;
    case at::ScalarType::Short:
        return SHOAL_I16;
    case at::ScalarType::Int:
        return SHOAL_I32;
    case at::ScalarType::Long:
        return SHOAL_I64;
    case at::ScalarType::Byte:
        return SHOAL_U8;
    case at::ScalarType::Bool:
        return SHOAL_BOOL;
    case at::ScalarType::ComplexFloat:
        return SHOAL_C64;
    case at::ScalarType::ComplexDouble:
        return SHOAL_C128;
#if TORCH2
    case at::ScalarType::UInt16:
        return SHOAL_U16;
    case at::ScalarType::UInt32:
        return SHOAL_U32;
    case at::ScalarType::UInt64:
        return SHOAL_U64;
    case at::ScalarType::Float8_e4m3fn:
        return SHOAL_F8_E4M3FN;
    case at::ScalarType::Float8_e5m2:
        return SHOAL_F8_E5M2;
#endif
    default:
        return shoal_dtype(0);
    }
}

// What Shoal is told about the elements of a call. Dtypes that it does not know are moved as bytes.
struct Elements {
    shoal_dtype dtype;
    size_t factor; // Shoal's elements for each element of the tensor
    size_t count(const at::Tensor &tensor) const
    {
        return size_t(tensor.numel()) * factor;
    }
};

inline Elements to_move(const at::Tensor &tensor)
{
    shoal_dtype dtype = find_dtype(tensor.scalar_type());
    return dtype != 0 ? Elements{dtype, 1} : Elements{SHOAL_U8, size_t(tensor.element_size())};
}

inline Elements to_reduce(const at::Tensor &tensor)
{
    shoal_dtype dtype = find_dtype(tensor.scalar_type());
    TORCH_CHECK_NOT_IMPLEMENTED(dtype != 0, "shoal: tensors of ", tensor.scalar_type(), " cannot be reduced");
    return {dtype, 1};
}

inline shoal_reduce_op find_reduce_op(const ReduceOp &op)
{
    switch (op.op_) {
    case ReduceOp::SUM:
        return SHOAL_SUM;
    case ReduceOp::AVG:
        return SHOAL_AVG;
    case ReduceOp::PRODUCT:
        return SHOAL_PRODUCT;
    case ReduceOp::MIN:
        return SHOAL_MIN;
    case ReduceOp::MAX:
        return SHOAL_MAX;
    case ReduceOp::BAND:
        return SHOAL_BAND;
    case ReduceOp::BOR:
        return SHOAL_BOR;
    case ReduceOp::BXOR:
        return SHOAL_BXOR;
    case ReduceOp::PREMUL_SUM:
        return SHOAL_PREMUL_SUM;
    default:
        TORCH_CHECK(false, "shoal: there is no reduce operator ", int(op.op_));
    }
}

inline void set_reduce_op(shoal_collective &call, const ReduceOp &op)
{
    call.reduce = find_reduce_op(op);
    if (call.reduce == SHOAL_PREMUL_SUM) {
        auto *supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
        TORCH_CHECK(supplement, "shoal: PREMUL_SUM without a factor");
        call.factor = factor_of(*supplement);
    }
}

inline void check_tensor(const at::Tensor &tensor)
{
    TORCH_CHECK(tensor.device().is_cpu(), "shoal: the tensor is on ", tensor.device(), ", not on the CPU");
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "shoal: a tensor of layout ",
                                tensor.layout(), ": only dense tensors can be communicated");
    TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(),
                "shoal: the tensor is a lazy conjugate: use resolve_conj() and resolve_neg()");
}

inline void check_list(const Tensors &tensors, int n_ranks, const char *what)
{
    TORCH_CHECK_VALUE(int(tensors.size()) == n_ranks, "shoal: ", what, " has ", tensors.size(),
                      " tensors for ", n_ranks, " ranks");
}

inline void check_dtypes(const Tensors &tensors, const at::Tensor &like)
{
    for (auto &tensor : tensors) {
        TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), "shoal: tensors of one call have dtypes ",
                    tensor.scalar_type(), " and ", like.scalar_type());
    }
}

inline bool have_one_size(const Tensors &tensors)
{
    for (auto &tensor : tensors) {
        if (tensor.numel() != tensors[0].numel()) {
            return false;
        }
    }
    return true;
}

inline std::vector<size_t> counts_of(const Tensors &tensors, const Elements &elements)
{
    std::vector<size_t> counts;
    for (auto &tensor : tensors) {
        counts.push_back(elements.count(tensor));
    }
    return counts;
}

// The counts of all_to_all_single: parts of dimension 0, one for each rank; equal ones if `splits` is empty.
inline std::vector<size_t> split_counts(const at::Tensor &tensor, const std::vector<int64_t> &splits,
                                        int n_ranks, const Elements &elements, const char *what)
{
    int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
    size_t row = rows > 0 ? elements.count(tensor) / size_t(rows) : 0;
    std::vector<size_t> counts;
    int64_t sum = 0;
    TORCH_CHECK(splits.empty() || int(splits.size()) == n_ranks, "shoal: ", what, " has ", splits.size(),
                " split sizes for ", n_ranks, " ranks");
    TORCH_CHECK(!splits.empty() || rows % n_ranks == 0, "shoal: the ", rows, " rows of ", what,
                " do not divide by the ", n_ranks, " ranks");
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t part = splits.empty() ? rows / n_ranks : splits[size_t(rank)];
        TORCH_CHECK(part >= 0, "shoal: ", what, " has the split size ", part);
        counts.push_back(size_t(part) * row);
        sum += part;
    }
    TORCH_CHECK(sum == rows, "shoal: the split sizes of ", what, " sum up to ", sum, ", and dimension 0 is ",
                rows);
    return counts;
}

} // namespace shoal_torch

#endif
