// What is remembered of the memory of tensors where rules are about operands of some role: which of it was computed
// inside, and whether an operation leaves the weights that are known as they are; see operands/weights.py.

#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>

#include <mutex>
#include <unordered_map>

#include "exact.h"
#include "values.h"

namespace memory {

// Marks on memory, as in plain.py: of weights, by how sure it is that they are; of random numbers; of what forward products
// have multiplied, and what of it with a weight.
enum Mark : int64_t {
  kParameter = 4, kLeaf = 8, kBuffer = 16, kPerhaps = 32, kNoise = 64, kActivation = 128, kWeighted = 256,
};
constexpr int64_t weights = kParameter | kLeaf | kBuffer | kPerhaps;

// What is done with an operation's arguments and results.
enum Following : int64_t {
  kNothing,
  kInside,          // its results are noted as computed inside
  kUnlessGradient,  // and what it makes of weights, unless it computes gradients
  kWeights,         // and what it makes of weights
};

// Pieces of memory, remembered without keeping them alive. What is dead keeps its address until it is forgotten.
template <class Lock>
class Storages {
 public:
  void add(const c10::TensorImpl& x) {
    if (!x.has_storage()) return;
    const c10::Storage& storage = x.storage();
    std::lock_guard<Lock> guard(lock_);
    auto [place, is_new] = known_.try_emplace(storage.unsafeGetStorageImpl());
    if (!is_new) return;
    place->second = storage.getWeakStorageImpl();
    if (known_.size() <= purge_at_) return;
    std::erase_if(known_, [](const auto& one) { return one.second->expired(); });
    purge_at_ = 2 * known_.size() + purge_every;
  }

  bool has(const void* storage) const {
    std::lock_guard<Lock> guard(lock_);
    return known_.contains(static_cast<const c10::StorageImpl*>(storage));
  }

 private:
  static constexpr size_t purge_every = 1 << 12;
  std::unordered_map<const c10::StorageImpl*, std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>> known_;
  size_t purge_at_ = purge_every;
  mutable Lock lock_;
};

// What is done with the parameters among the operands of an operation: nothing; a call with one is left to Python; or the
// operation sees copies that were rounded.
enum Parameters : int64_t { kAsTheyAre, kInPython, kRounded };

enum Kind { kData, kOfParameter, kOfLeaf, kUnknown };

// What autograd and its class say of a tensor: as `_look_at` in weights.py.
inline Kind kind_of(const c10::TensorImpl& x) {
  auto by_class = [](const c10::TensorImpl& x) {
    const void* type = exact::class_of(x);
    return !type || type == exact::tensor_class ? kData : type == exact::parameter_class ? kOfParameter : kUnknown;
  };
  if (!const_cast<c10::TensorImpl&>(x).autograd_meta()) return by_class(x);
  at::TensorBase tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::unsafe_reclaim_from_nonowning(
          const_cast<c10::TensorImpl*>(&x)));
  at::TensorBase base = tensor.is_view() ? tensor._base() : tensor;
  Kind kind = by_class(*base.unsafeGetTensorImpl());
  if (kind != kData) return kind;
  return base.is_leaf() && (base.requires_grad() || tensor.requires_grad()) ? kOfLeaf : kData;
}

// The arguments of a call, as weights.py looks at them, to find out whether there is something to be noted of it.
class Operands {
 public:
  // `notes_weights`: whether it is noted what is made of weights; `parameters`: what is done with parameters.
  Operands(bool notes_weights, Parameters parameters) : notes_weights_(notes_weights), parameters_(parameters) {}

  // Adds an argument with its marks; `changed`: the operation writes to it. False if Python is to look at it first.
  // `is_parameter` says whether the operation sees it rounded, if parameters are.
  bool add(const c10::TensorImpl& x, int64_t marks, bool changed, bool* is_parameter) {
    if (!notes_weights_ && parameters_ == kAsTheyAre) return true;
    Kind kind = kind_of(x);
    if (kind == kUnknown) return false;
    bool known = marks & (kParameter | kLeaf);
    if (parameters_ != kAsTheyAre && kind != kData && !known) return false;
    if (parameters_ == kInPython && known) return false;
    *is_parameter = known;
    if (!notes_weights_) return true;
    if ((kind == kOfParameter && !(marks & kParameter)) || (kind == kOfLeaf && !(marks & weights))) return false;
    if (marks & (weights | kNoise)) (changed ? changed_ : marked_) = true;
    else if (!changed && x.dim() && values::is_carrier(values::type_of(x))) data_ = true;
    return true;
  }

  // Whether nothing is to be noted: there are no weights and no random numbers, or nothing but views is made of them, or
  // what is made of them is data, since data are among them, and nothing that was marked is written over.
  bool say_nothing(bool only_views) const { return only_views || (!changed_ && (!marked_ || data_)); }

 private:
  const bool notes_weights_;
  const Parameters parameters_;
  bool marked_ = false, changed_ = false, data_ = false;
};

}  // namespace memory
