// Arguments as PyTorch's dispatcher has them: tensors, lists of them, numbers.

#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like_ops.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cmath>

namespace values {

using c10::IValue;

inline bool has(uint64_t mask, size_t position) { return mask >> position & 1; }

inline bool is_carrier(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

inline at::ScalarType type_of(const c10::TensorImpl& x) { return c10::typeMetaToScalarType(x.dtype()); }

inline bool is_defined(const c10::TensorImpl* x) { return x != c10::UndefinedTensorImpl::singleton(); }

// A tensor to write to in place of an operand, whose strides kernels may look at.
inline at::Tensor unwritten_like(const at::Tensor& x) {
  return at::_ops::empty_like::call(x, std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
}

// A tensor to write to, laid out as PyTorch lays out the result of an operation on a contiguous `x` alone: an axis of length
// one has the stride that it has in new memory, whatever its stride in `x`.
inline at::Tensor unwritten_result(const at::Tensor& x) {
  auto laid = at::MemoryFormat::Contiguous;
  return at::_ops::empty_like::call(x, std::nullopt, std::nullopt, std::nullopt, std::nullopt, laid);
}

// Whether axes of length one, too, have the strides of new memory. Others keep theirs where a number takes part.
inline bool lies_in_order(const c10::TensorImpl& x) {
  int64_t step = 1;
  for (int64_t axis = x.dim() - 1; axis >= 0; step *= x.size(axis--))
    if (x.stride(axis) != step) return false;
  return true;
}

// Calls `each` with every tensor of a value, until it returns false.
template <class F>
bool all_tensors(const IValue& value, F each) {
  if (value.isTensor()) return each(value.unsafeToTensorImpl());
  if (value.isTensorList() || value.isOptionalTensorList())
    for (const IValue& item : value.toListRef())
      if (item.isTensor() && !each(item.unsafeToTensorImpl())) return false;
  return true;
}

// A Python number, which may have come as a tensor.
inline bool number_of(const IValue& value, double* number) {
  if (value.isDouble() || value.isInt()) {
    *number = value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
    return true;
  }
  if (!value.isTensor() || !value.toTensor().defined() || !value.unsafeToTensorImpl()->is_wrapped_number()) return false;
  const at::TensorBase& x = value.toTensor();
  if (x.scalar_type() == at::kDouble) *number = *x.const_data_ptr<double>();
  else if (x.scalar_type() == at::kLong) *number = static_cast<double>(*x.const_data_ptr<int64_t>());
  else return false;
  return true;
}

// Zero in every format, which -0 is not; also what is left out.
inline bool is_zero(const IValue& value) {
  if (value.isNone()) return true;
  if (value.isList()) {
    for (const IValue& item : value.toListRef())
      if (!is_zero(item)) return false;
    return true;
  }
  double number;
  if (value.isBool()) return !value.toBool();
  return number_of(value, &number) && number == 0 && !std::signbit(number);
}

inline bool is_set(const IValue& value) { return !value.isNone() && !(value.isBool() && !value.toBool()); }

inline bool is_one(const IValue& value) {
  if (value.isNone()) return true;
  if (value.isIntList()) {
    for (int64_t step : value.toIntVector())
      if (step != 1) return false;
    return true;
  }
  return value.isInt() && value.toInt() == 1;
}

}  // namespace values
