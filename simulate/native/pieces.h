// Elementwise operations on tensors that do not fit in the second-level cache: computed and rounded piece by piece, so that
// a piece is rounded while it lies there. The pieces are whole vectors of the kernels, whose bits are the same then.

#pragma once

#include <ATen/ops/as_strided_ops.h>
#include <c10/util/SmallVector.h>

#include "loops.h"
#include "values.h"

namespace pieces {

using c10::IValue;
using torch::jit::Stack;
using values::number_of;

constexpr int64_t length = 1 << 16;  // numbers
constexpr int64_t fewest = 4 * length;

// The first tensor that has axes; null if some argument does not lie as it does, or is something else than a number.
inline const at::Tensor* model_of(const IValue* given, size_t count) {
  const at::Tensor* model = nullptr;
  for (size_t i = 0; i < count; ++i) {
    double number;
    if (number_of(given[i], &number)) continue;
    if (!given[i].isTensor() || !given[i].toTensor().defined()) return nullptr;
    const at::Tensor& x = given[i].toTensor();
    if (x.numel() < fewest || !values::is_carrier(x.scalar_type())) return nullptr;
    if (!values::lies_in_order(*x.unsafeGetTensorImpl())) return nullptr;
    if (!model) model = &x;
    if (x.scalar_type() != model->scalar_type() || !x.sizes().equals(model->sizes())) return nullptr;
    // Memory that overlaps elsewhere than element by element is PyTorch's to judge.
    bool shared = x.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(model->unsafeGetTensorImpl()->unsafe_storage());
    if (shared && x.storage_offset() != model->storage_offset()) return nullptr;
  }
  return model;
}

inline at::Tensor piece_of(const at::Tensor& x, int64_t first, int64_t count) {
  return at::_ops::as_strided::call(x, c10::SymInt(count), c10::SymInt(1), c10::SymInt(x.storage_offset() + first));
}

// Has `compute` replace pieces of the arguments on a stack, and `round` what it has computed; returns the results.
// `writes`: `compute` takes the piece that it is to write to behind the arguments; else it writes to the first of them.
template <class Compute, class Round>
at::Tensor run(const at::Tensor& model, const IValue* given, size_t count, bool writes, Compute compute, Round round) {
  at::Tensor target = writes ? values::unwritten_result(model) : given[0].toTensor();
  int64_t numbers = model.numel();
  for (int64_t first = 0; first < numbers; first += length) {
    int64_t size = std::min(length, numbers - first);
    at::Tensor into = piece_of(target, first, size);
    Stack stack;
    stack.reserve(count + 1);
    for (size_t i = 0; i < count; ++i) {
      bool whole = !given[i].isTensor() || given[i].toTensor().unsafeGetTensorImpl()->is_wrapped_number();
      stack.push_back(whole ? given[i] : IValue(piece_of(given[i].toTensor(), first, size)));
    }
    if (!writes) stack[0] = into;
    else stack.push_back(into);
    compute(stack);
    round(*into.unsafeGetTensorImpl());
  }
  return target;
}

}  // namespace pieces
