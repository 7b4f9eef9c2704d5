// Elementwise arithmetic whose exact results are rounded once to float32, by the loops of rounded_once/loops.py: the
// usual calls, of contiguous float32 tensors of one shape and of numbers. All others are left to Python.

#pragma once

#include <c10/util/SmallVector.h>

#include <utility>

#include "loops.h"
#include "values.h"

namespace exact {

using c10::IValue;
using values::number_of;

enum Form : int64_t {  // what is made of the arguments; see _CALLS in rounded_once/operations.py
  kNone, kAdd, kSub, kRsub, kMul, kDiv, kReciprocal, kSqrt, kPow, kAddcmul, kAddcdiv, kLerp,
};

enum Formula { kSum, kProduct, kQuotient, kRoot, kFused, kDivided, kInterpolation, kFormulas };

using Run = void (*)(const void*, const void*, const void*, int64_t, double, void*, int64_t, int64_t, const void*,
                     int64_t, int64_t);

struct Way {
  Run run;               // null until Python has had it compiled
  const void* settings;  // of its mode
  int64_t draws;         // whether it takes random bits
  int64_t asked;         // whether the exact result is asked for; else PyTorch's kernel will do
};

struct Description {
  int64_t form;
  int64_t of_lists, in_place;
  const Way* ways;  // for each formula, of tensors alone; behind them, where a number takes part
};

// One computation.
struct Row {
  const Way* way = nullptr;
  const c10::TensorImpl* tensors[3] = {};
  float numbers[3] = {};
  int operands = 0;
  int64_t steps = 0;  // a bit for each operand with a number for each element
  const at::Tensor* model = nullptr;
  float factor = 1;
};

using Rows = c10::SmallVector<Row, 1>;

enum Answer { kExact, kKernel, kPython };

// The place of the type in a Python object, and the two classes whose tensors are computed with; see `classes`.
inline int64_t type_at = -1;
inline const void* tensor_class = nullptr;
inline const void* parameter_class = nullptr;

// The class of a tensor in Python; null if it has none there. Where classes cannot be found, one that is no tensor's.
inline const void* class_of(const c10::TensorImpl& x) {
  const void* object = const_cast<c10::TensorImpl&>(x).pyobj_slot()->load_pyobj();
  if (!object || type_at < 0) return object;
  return static_cast<const void* const*>(object)[type_at];
}

// Whether a tensor is of PyTorch's own class in Python, or of none.
inline bool is_of_torch(const c10::TensorImpl& x) {
  const void* type = class_of(x);
  return !type || type == tensor_class || type == parameter_class;
}

// Adds an operand; false if it is left to Python.
inline bool add(Row& row, const IValue& value) {
  double number;
  int place = row.operands++;
  if (number_of(value, &number)) {
    row.numbers[place] = static_cast<float>(number);
    return true;
  }
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& x = value.toTensor();
  const auto& impl = *x.unsafeGetTensorImpl();
  if (values::type_of(impl) != at::kFloat || !values::lies_in_order(impl) || !impl.numel() || !impl.data()) return false;
  if (impl.is_wrapped_number() || !is_of_torch(impl)) return false;
  row.tensors[place] = &impl;
  if (!row.model || (row.model->dim() == 0 && impl.dim())) row.model = &x;
  return true;
}

// What is computed of one tuple of arguments.
inline Answer make(const Description& how, const IValue* const* given, size_t count, Row& row) {
  Formula formula;
  double factor = 1, number;
  auto alike = [&](std::initializer_list<const IValue*> operands) {
    for (const IValue* operand : operands)
      if (!add(row, *operand)) return false;
    return true;
  };
  const IValue one(1.0);
  bool sound = false;
  switch (how.form) {
    case kAdd:
    case kSub:
    case kRsub: {
      double alpha = 1;
      if (count > 2 && !number_of(*given[2], &alpha)) return kPython;
      if (how.form != kAdd) alpha = -alpha;
      const IValue *x = given[how.form == kRsub ? 1 : 0], *a = given[how.form == kRsub ? 0 : 1];
      if (alpha == 1 || alpha == -1) {
        formula = kSum;
        factor = alpha;
        sound = alike({x, a});
      } else {
        formula = kFused;
        const IValue times(alpha);
        sound = alike({x, a, &times});
      }
      break;
    }
    case kMul:
    case kDiv:
      formula = how.form == kMul ? kProduct : kQuotient;
      sound = alike({given[0], given[1]});
      break;
    case kReciprocal:
      formula = kQuotient;
      sound = alike({&one, given[0]});
      break;
    case kSqrt:
      formula = kRoot;
      sound = alike({given[0]});
      break;
    case kPow:
      if (!number_of(*given[1], &number)) return how.of_lists ? kPython : kKernel;
      if (number == 2) {
        formula = kProduct;
        sound = alike({given[0], given[0]});
      } else if (number == 0.5) {
        formula = kRoot;
        sound = alike({given[0]});
      } else if (number == -1) {
        formula = kQuotient;
        sound = alike({&one, given[0]});
      } else {
        return kKernel;
      }
      break;
    case kAddcmul:
    case kAddcdiv:
      formula = how.form == kAddcmul ? kFused : kDivided;
      if (count > 3 && !number_of(*given[3], &factor)) return kPython;
      sound = alike({given[0], given[1], given[2]});
      break;
    case kLerp:
      formula = kInterpolation;
      sound = alike({given[0], given[1], given[2]});
      break;
    default:
      return kPython;
  }
  if (!sound || !row.model) return kPython;
  bool has_number = std::abs(factor) != 1;
  for (int i = 0; i < row.operands; ++i) has_number = has_number || !row.tensors[i];
  row.way = how.ways + (has_number ? kFormulas : 0) + formula;
  if (!row.way->asked) return kKernel;
  row.factor = static_cast<float>(factor);
  const auto& model = *row.model->unsafeGetTensorImpl();
  for (int i = 0; i < row.operands; ++i) {
    const auto* x = row.tensors[i];
    if (!x || (x->dim() == 0 && model.dim())) continue;  // one number for all elements
    if (!x->sizes().equals(model.sizes())) return kPython;
    row.steps |= int64_t(1) << i;
  }
  if (!row.way->run) return kPython;
  if (!how.in_place) return kExact;
  // The results go where the first argument is: over no number that is still to be read.
  const auto& target = *given[0]->unsafeToTensorImpl();
  if (!target.sizes().equals(model.sizes())) return kPython;
  auto begin = reinterpret_cast<uintptr_t>(target.data());
  auto size = static_cast<uintptr_t>(target.numel()) * sizeof(float);
  for (int i = 0; i < row.operands; ++i) {
    if (!row.tensors[i]) continue;
    auto at = reinterpret_cast<uintptr_t>(row.tensors[i]->data());
    bool each = row.steps >> i & 1;
    if (each && at == begin) continue;
    auto length = each ? size : sizeof(float);
    if (at < begin + size && begin < at + length) return kPython;
  }
  return kExact;
}

// Whether exact results are computed here, or by PyTorch's kernel, or in Python.
inline Answer rows_of(const Description& how, const IValue* given, size_t count, Rows& rows) {
  constexpr size_t most = 6;
  if (count > most) return kPython;
  if (!how.of_lists) {
    const IValue* each[most];
    for (size_t i = 0; i < count; ++i) each[i] = given + i;
    rows.emplace_back();
    return make(how, each, count, rows.back());
  }
  if (!given[0].isTensorList()) return kPython;
  size_t length = given[0].toListRef().size();
  for (size_t i = 0; i < count; ++i) {
    if (given[i].isList() && given[i].toListRef().size() != length) return kPython;
    if (given[i].isTensor() && given[i].toTensor().defined() && given[i].toTensor().dim()) return kPython;
  }
  Answer answer = kPython;
  for (size_t row = 0; row < length; ++row) {
    const IValue* each[most];
    for (size_t i = 0; i < count; ++i) each[i] = given[i].isList() ? &given[i].toListRef()[row] : given + i;
    rows.emplace_back();
    Answer mine = make(how, each, count, rows.back());
    if (mine == kPython || (row && mine != answer)) return kPython;
    answer = mine;
  }
  return answer;
}

// Computes a row, into its first argument or into a new tensor.
inline at::Tensor compute(const Row& row, const at::Tensor* target, const loops::Random& random) {
  at::Tensor made = target ? *target : values::unwritten_result(*row.model);
  void* into = made.unsafeGetTensorImpl()->mutable_data();  // its own from here on, if it was a lazy copy
  const void* places[3];
  for (int i = 0; i < 3; ++i) {
    int operand = i < row.operands ? i : 0;
    places[i] = row.tensors[operand] ? row.tensors[operand]->data() : static_cast<const void*>(&row.numbers[operand]);
  }
  row.way->run(places[0], places[1], places[2], row.steps, row.factor, into, 0, row.model->numel(), row.way->settings,
               static_cast<int64_t>(random.seed), static_cast<int64_t>(random.step));
  return made;
}

}  // namespace exact
