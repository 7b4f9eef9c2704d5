// Operands of products that are seen rounded, each by what it is: a weight, an activation or a gradient, told apart as in
// operands/roles.py, and in blocks along what the product sums over.

#pragma once

#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/transpose_ops.h>

#include <array>

#include "loops.h"
#include "memory.h"
#include "values.h"

namespace products {

using c10::IValue;
using loops::Loop;
using values::has;

// As in `_OF_PRODUCTS` and `_PRODUCTS` of plain.py; the last of each: none.
enum Role : int64_t { kWeight, kActivation, kGradient, kNoRole };
enum Product : int64_t { kOutput, kGradInput, kGradWeight, kNoProduct };
constexpr int64_t roles = 3, kinds = 4;
constexpr int64_t by_role = 2 * roles * kinds;  // how many places a table of roundings has

// One rounding of an operand; of these loops the second pair is for blocks that do not lie along memory.
struct Rounding {
  Loop single, twofold, single_strided, twofold_strided;
  int64_t passes;      // 1: float32 numbers are of the format, and left as they are; 2: float64
  int64_t along;       // whether its blocks lie along what is contracted
  int64_t as_forward;  // they lie as they did in the forward product
};

struct Description {
  const Rounding* roundings;  // null: nothing of all this
  int64_t tells;              // whether operands are told apart
  int64_t in_backward;        // whether it runs in the backward pass
  int64_t about_weights;      // whether a rule is about weights, which may miss one
  int64_t matrix;             // whether backward products sum over the other axis of the last two
  uint64_t operands, multiplied;
  uint64_t columns;         // operands of which the last axis but one is contracted, not the last
  int64_t convolves;        // 1: it is a convolution; 2: its backward products
  int64_t separates;        // whether these see operands in different ways, and are computed one by one
  int64_t always;           // the rounding of every operand; -1: none
  int64_t table[by_role];  // the roundings in the forward product (and behind them in the backward) of each role in each product; -1: none
};

constexpr size_t most_arguments = 11;

// What is known of one call.
struct Call {
  std::array<int8_t, most_arguments> role;
  Product product = kNoProduct;
  bool backward = false;
  // Of convolutions.
  bool transposed = false, in_groups = false;
  bool over_positions = false;  // it sums over the batch and all positions, for each channel

  Call() { role.fill(kNoRole); }
};

inline bool is_number(const IValue& value) {
  if (!value.isTensor()) return false;
  const auto* x = value.unsafeToTensorImpl();
  return values::is_defined(x) && values::is_carrier(values::type_of(*x));
}

// A tensor that is multiplied: how sure it is a weight (the lower, the surer; 4: it is data), and whether autograd has it
// as a parameter itself.
struct Known {
  int64_t sure = 4;
  bool registered = false;
};

inline bool look_at(const c10::TensorImpl& x, int64_t marks, Known* known) {
  memory::Kind kind = memory::kind_of(x);
  if (kind == memory::kUnknown || (kind == memory::kOfParameter && !(marks & memory::kParameter)) ||
      (kind == memory::kOfLeaf && !(marks & memory::weights)))
    return false;
  known->registered = kind == memory::kOfParameter;
  for (known->sure = 0; known->sure < 4; ++known->sure)
    if (marks & (memory::kParameter << known->sure)) break;
  return true;
}

// Finds out what the operands of a call are; false if that is left to Python. `notes_weights`: whether it is noted what is
// made of weights.
template <class Lock>
bool tell(const Description& how, const memory::Marks<Lock>& marks, const IValue* given, size_t count, bool notes_weights,
          Call* call) {
  call->backward = how.in_backward && !at::GradMode::is_enabled();
  Known known[most_arguments];
  auto marks_of = [&](const c10::TensorImpl& x) { return marks.of(x); };
  int64_t data = 0, noise = 0, floats = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!is_number(given[i])) continue;
    const auto& x = *given[i].unsafeToTensorImpl();
    int64_t bits = marks_of(x);
    if (call->backward) {
      if (!has(how.multiplied, i)) continue;
      if (bits & memory::kActivation) {
        call->role[i] = kActivation;
        continue;
      }
    }
    if (!look_at(x, bits, &known[i])) return false;
    if (!x.dim()) continue;
    ++floats;
    data += known[i].sure == 4;
    noise += known[i].sure == 4 && bits & memory::kNoise;
  }
  // Of weights alone, or of random numbers alone, it is noted what the product is.
  if (!call->backward && notes_weights && (!data || noise == floats)) return false;
  if (call->backward) {
    bool weights = false, weighted = false;
    for (size_t i = 0; i < count; ++i) {
      if (!has(how.multiplied, i) || !is_number(given[i])) continue;
      const auto& x = *given[i].unsafeToTensorImpl();
      if (call->role[i] == kActivation) {
        weighted = weighted || marks_of(x) & memory::kWeighted;
      } else if (known[i].sure < 4) {
        call->role[i] = kWeight;
        weights = true;
      } else if (x.requires_grad()) {
        call->role[i] = kActivation;
        weighted = true;  // of a product that a checkpoint has not come to
      } else {
        call->role[i] = kGradient;
      }
    }
    call->product = weights ? kGradInput : weighted ? kGradWeight : kNoProduct;
    return true;
  }
  int64_t surest = 4, multiplied = 0, as_sure = 0;
  bool registered = false;
  for (size_t i = 0; i < count; ++i)
    if (has(how.multiplied, i) && is_number(given[i])) {
      ++multiplied;
      surest = std::min(surest, known[i].sure);
    }
  auto is_surest = [&](size_t i) { return has(how.multiplied, i) && is_number(given[i]) && known[i].sure == surest; };
  for (size_t i = 0; i < count; ++i)
    if (is_surest(i)) {
      ++as_sure;
      registered = registered || known[i].registered;
    }
  bool weights = surest < 4 && !(surest == 3 && as_sure == multiplied);
  for (size_t i = 0; i < count; ++i)
    if (has(how.multiplied, i) && is_number(given[i]))
      call->role[i] = weights && is_surest(i) && (known[i].registered || !registered) ? kWeight : kActivation;
  call->product = weights ? kOutput : kNoProduct;
  if (weights || !how.about_weights) return true;
  for (size_t i = 0; i < count; ++i)  // a rule about weights may have missed one that came from outside
    if (has(how.multiplied, i) && given[i].isTensor() && !(marks_of(*given[i].unsafeToTensorImpl()) & memory::kComputedInside))
      return false;
  return true;
}

// Remembers what a forward product multiplies.
template <class Lock>
void remember(const Description& how, const Call& call, memory::Marks<Lock>& marks, const IValue* given, size_t count) {
  if (!how.tells || call.backward) return;
  for (size_t i = 0; i < count; ++i) {
    if (call.role[i] != kActivation) continue;
    int64_t weighted = call.product == kNoProduct ? 0 : memory::kWeighted;
    marks.add(*given[i].unsafeToTensorImpl(), memory::kActivation | weighted);
  }
}

// The place of an operand's rounding in the table; -1: it has no role.
inline int64_t place_of(const Call& call, size_t i) {
  return call.role[i] == kNoRole ? -1 : (call.backward * roles + call.role[i]) * kinds + call.product;
}

// Where it is counted that an operand was rounded as all are, behind the places of the table.
inline size_t counted_always(const Call& call, size_t i) {
  return by_role + (i * (roles + 1) + call.role[i]) * kinds + call.product;
}

// How many counts there are.
inline size_t counts_of(size_t arguments) { return by_role + arguments * (roles + 1) * kinds; }

// Calls `each` with every rounding of an operand, and where it is counted.
template <class F>
bool all_roundings(const Description& how, const Call& call, size_t i, F each) {
  int64_t place = place_of(call, i);
  if (place >= 0 && how.table[place] >= 0 && !each(how.roundings[how.table[place]], place)) return false;
  return how.always < 0 || each(how.roundings[how.always], counted_always(call, i));
}

// The arguments of convolutions, and of their backward products.
enum Convolution : size_t { kInput, kWeightOf, kTransposed = 6, kGroups = 8 };
enum ConvolutionBackward : size_t { kGradOutput, kInputOf, kWeightThere, kTransposedThere = 7, kGroupsThere = 9, kMask };

// The axis that a convolution sums over, group by group; see of_convolution and of_input_gradient in contracted_axes.py.
inline int64_t axis_in_convolution(const Description& how, const Call& call, bool as_forward, size_t i) {
  if (how.convolves == 1) return i == kWeightOf && call.transposed ? 0 : 1;
  if (i != kWeightThere) return 1;
  return call.transposed == as_forward ? 0 : 1;
}

// The axis along which blocks lie in an operand that has some.
inline int64_t axis_of(const c10::TensorImpl& x, const Description& how, const Call& call, const Rounding& rounding,
                       size_t i) {
  if (how.convolves && has(how.multiplied, i)) return axis_in_convolution(how, call, rounding.as_forward, i);
  bool columns = has(how.columns, i);
  if (rounding.as_forward && how.matrix && x.dim() > 1) columns = !columns;
  return x.dim() - 1 - columns;
}

// Whether an operand is seen in squares, which are those of the transposed matrix, too.
inline bool has_squares(const Rounding& rounding, bool single) {
  return (single ? rounding.single : rounding.twofold).calling == loops::kSquares;
}

// How an operand lies along an axis, (outer, length, inner), see formats/base/memory.py; or the matrices in it.
inline loops::Shape shape_of(const c10::TensorImpl& x, const Description& how, const Call& call, const Rounding& rounding,
                             size_t i) {
  if (x.dim() > 1 && has_squares(rounding, values::type_of(x) == at::kFloat)) {
    bool as_it_is = x.is_contiguous();  // else it is one transposed matrix
    return {x.numel(), x.size(as_it_is ? -1 : -2), 1, x.size(as_it_is ? -2 : -1)};
  }
  if (!rounding.along || !x.dim()) return {x.numel(), x.dim() ? x.size(-1) : 1, 1};
  int64_t axis = axis_of(x, how, call, rounding, i), length = x.size(axis), inner = 1;
  if (x.is_contiguous()) {
    for (int64_t behind = axis + 1; behind < x.dim(); ++behind) inner *= x.size(behind);
  } else if (length > 1) {
    inner = x.stride(axis);
  }
  return {x.numel(), length, inner};
}

inline const Loop& loop_of(const Rounding& rounding, bool single, int64_t inner) {
  if (inner == 1) return single ? rounding.single : rounding.twofold;
  return single ? rounding.single_strided : rounding.twofold_strided;
}

inline bool passes(const Rounding& rounding, bool single) { return rounding.passes & (single ? 1 : 2); }

// Whether an operand can be rounded here.
inline bool can_be_seen(const IValue& value, const Description& how, const Call& call, size_t i) {
  if (!is_number(value)) return true;
  const auto& x = *value.unsafeToTensorImpl();
  bool single = values::type_of(x) == at::kFloat, convolved = how.convolves && has(how.multiplied, i);
  return all_roundings(how, call, i, [&](const Rounding& rounding, size_t) {
    constexpr int64_t most = int64_t(1) << 32;
    int64_t fewest = convolved ? 2 : 1 + has(how.columns, i);
    if (x.dim() < fewest || x.numel() >= most || (x.numel() && !x.data())) return false;
    if (convolved && rounding.along && (call.in_groups || !x.numel())) return false;
    if (how.convolves == 2 && rounding.as_forward && i == kGradOutput) return false;
    if (passes(rounding, single)) return true;
    if (has_squares(rounding, single) && (how.convolves || (x.dim() > 2 && !x.is_contiguous()))) return false;
    return loop_of(rounding, single, 1).run && loop_of(rounding, single, 2).run;
  });
}

// Calls `each` with what is known of every product of a call, and a mask of the operands that it sees rounded; ends where
// `each` returns false.
template <class F>
bool all_products(const Description& how, const Call& call, const IValue* given, F each) {
  if (!how.separates) return each(call, how.operands);
  const auto mask = given[kMask].toBoolList();
  constexpr uint64_t one = 1;
  if (mask.get(0) && !each(call, one << kGradOutput | one << kWeightThere)) return false;
  if (!mask.get(1) && !mask.get(2)) return true;
  Call of_weight = call;
  of_weight.over_positions = true;
  if (call.product != kNoProduct) of_weight.product = kGradWeight;
  return each(of_weight, one << kGradOutput | (mask.get(1) ? one << kInputOf : 0));
}

// Notes what kind of convolution a call is.
inline void look_at_convolution(const Description& how, const IValue* given, Call* call) {
  if (!how.convolves) return;
  call->transposed = given[how.convolves == 1 ? kTransposed : kTransposedThere].toBool();
  call->in_groups = given[how.convolves == 1 ? kGroups : kGroupsThere].toInt() != 1;
}

// A copy of an operand, rounded; it lies as the operand does where that is dense. `next`: gives the random bits.
template <class Next>
at::Tensor seen(const at::Tensor& x, const Description& how, const Call& call, const Rounding& rounding, size_t i,
                Next next) {
  bool single = x.scalar_type() == at::kFloat;
  bool draws = loop_of(rounding, single, 1).draws;
  loops::Random random = next(draws);
  bool dense = x.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
  if (passes(rounding, single)) {  // kernels may sum in another order where memory begins elsewhere than that of a copy
    bool aligned = reinterpret_cast<uintptr_t>(x.unsafeGetTensorImpl()->data()) % 64 == 0;
    return dense && aligned ? x : at::_ops::clone::call(x, at::MemoryFormat::Preserve);
  }
  at::Tensor target = dense ? values::unwritten_like(x)
                            : at::_ops::clone::call(x, at::MemoryFormat::Preserve);
  if (!x.numel()) return target;
  if (call.over_positions && rounding.along && !rounding.as_forward) {  // the batch and all positions as one axis
    at::Tensor rows = at::_ops::clone::call(at::_ops::transpose_int::call(x, 0, 1), at::MemoryFormat::Contiguous);
    at::Tensor into = values::unwritten_like(rows);
    loops::Shape shape{x.numel(), x.numel() / x.size(1), 1};
    loops::run(loop_of(rounding, single, 1), single, rows.unsafeGetTensorImpl()->data(),
               into.unsafeGetTensorImpl()->mutable_data(), shape, random);
    at::_ops::copy_::call(target, at::_ops::transpose_int::call(into, 0, 1), false);
    return target;
  }
  auto run = [&](const at::Tensor& from, const at::Tensor& into) {
    loops::Shape shape = shape_of(*from.unsafeGetTensorImpl(), how, call, rounding, i);
    loops::run(loop_of(rounding, single, shape.inner), single, from.unsafeGetTensorImpl()->data(),
               into.unsafeGetTensorImpl()->mutable_data(), shape, random);
  };
  const at::Tensor& source = dense ? x : target;
  if (!draws || source.is_contiguous()) {
    run(source, target);
    return target;
  }
  at::Tensor rows = at::_ops::clone::call(source, at::MemoryFormat::Contiguous);
  run(rows, rows);
  at::_ops::copy_::call(target, rows, false);
  return target;
}

}  // namespace products
