// The table of marks on the memory of tensors, see marks/table.py; and whether an operation leaves the marks of weights as
// they are, see operands/weights.py.

#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "exact.h"
#include "values.h"

namespace memory {

// Bits of the table, as in marks/table.py.
enum Mark : int64_t {
  kIntegers = 1, kParameter = 4, kLeaf = 8, kBuffer = 16, kPerhaps = 32, kNoise = 64, kActivation = 128, kWeighted = 256,
  kComputedInside = 512, kMeasure = 4096,
};
constexpr int64_t weights = kParameter | kLeaf | kBuffer | kPerhaps;

// What is done with an operation's arguments and results.
enum Following : int64_t {
  kNothing,
  kInside,          // its results are noted as computed inside
  kUnlessGradient,  // and what it makes of weights, unless it computes gradients
  kWeights,         // and what it makes of weights
};

// Bits by storage. A weak reference keeps the address of a dead storage from being given to another one.
template <class Lock>
class Marks {
 public:
  int64_t of(const c10::TensorImpl& x) const {
    if (!used_.load(std::memory_order_relaxed) || !x.has_storage()) return 0;
    return of(x.unsafe_storage().unsafeGetStorageImpl());
  }

  int64_t of(const c10::StorageImpl* storage) const {
    std::lock_guard<Lock> guard(lock_);
    auto found = marked_.find(storage);
    return found == marked_.end() ? 0 : found->second.bits;
  }

  void add(const c10::TensorImpl& x, int64_t bits) {
    if (x.has_storage()) set(x.unsafe_storage().unsafeGetStorageImpl(), bits, 0);
  }

  // Sets some bits of a storage, which is alive, and clears others.
  void set(c10::StorageImpl* storage, int64_t on, int64_t off) {
    std::lock_guard<Lock> guard(lock_);
    auto found = marked_.find(storage);
    if (found != marked_.end()) {
      found->second.bits = (found->second.bits | on) & ~off;
    } else if (on) {
      c10::raw::weak_intrusive_ptr::incref(storage);
      marked_.emplace(storage, Marked{on, Weak::reclaim(storage)});
      if (marked_.size() > purge_at_) purge();
    }
    used_.fetch_or(on, std::memory_order_relaxed);
  }

  // Whether some memory may have one of these bits.
  bool may_have(int64_t bits) const { return used_.load(std::memory_order_relaxed) & bits; }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Marked {
    int64_t bits;
    Weak kept;
  };
  void purge() {
    std::erase_if(marked_, [](const auto& one) { return one.second.kept.expired(); });
    purge_at_ = 2 * marked_.size() + purge_every;
  }

  static constexpr size_t purge_every = 1 << 12;
  std::unordered_map<const c10::StorageImpl*, Marked> marked_;
  size_t purge_at_ = purge_every;
  std::atomic<int64_t> used_{0};
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
