// Plain operations of a simulated program, run and rounded without Python; see plain.py for which these are.
//
// PyTorch hands every operation of a thread with a dispatch mode to the key `Python`, whose fallback calls the mode's
// `__torch_dispatch__`. Here stands a kernel of ATen's operations for that key. Where the innermost mode is a
// simulation that has described the operation as plain, and the arguments are plain, it calls PyTorch's kernel and the
// loop that numba has compiled for the format. In all other cases it calls the fallback. No key of any thread changes.
//
// Called by library.py through ctypes, which knows the structures by their fields.

#include <ATen/core/TensorBase.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "places.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;
using Modes = c10::impl::TorchDispatchModeTLS;

// Declared here, since their headers take seconds to compile, or want those of Python.
PyObject* THPVariable_Wrap(const at::TensorBase& x);
namespace at {
int get_num_threads();
}

namespace {

const DispatchKeySet below(DispatchKeySet::FULL_AFTER, DispatchKey::Python);
const DispatchKeySet python_and_above = DispatchKeySet(DispatchKeySet::FULL) ^ below;
uint64_t of_plain_tensors;  // the keys of an ordinary tensor

// What `numba.cfunc` makes of a loop: source, target, number of elements, parameters.
using Run = void (*)(const void*, void*, int64_t, const void*);

struct Loop {
  Run run;  // null: numbers of that dtype are not rounded here
  const void* parameters;
};

// The same of square roots: source, target, first and behind the last.
using Root = void (*)(const void*, void*, int64_t, int64_t);

// Masks of arguments, or of results: bit i is that of position i.
struct Description {
  Loop single, twofold;  // for float32 and float64
  int64_t rounds;        // whether anything is rounded
  uint64_t results;      // those that are rounded
  uint64_t written;      // arguments that are overwritten, and rounded
  uint64_t dtypes;       // arguments that choose a dtype: they must be left out, or be a carrier's
  int64_t data;          // the argument that must be a floating-point tensor, or a list that begins with one; or -1
  int64_t heeds;         // marks that must not be on its arguments: 1: of whole numbers; 2: of those that are noted
  int64_t heeds_in_gradients;  // the same where autograd computes gradients, which count nothing
  int64_t counts;        // 1: adds a number, which must not be a whole one added to one number; 2: or in place
  int64_t counts_up;     // whether it adds a number in place, which may be a step of a count
  int64_t reads;         // whether it reads a number, of which nothing is said if it is finite
  int64_t power;         // whether it takes powers, of which square roots are computed elsewhere
  int64_t root;          // 1: square roots, rounded to the nearest by these loops; 2: in place
  Root single_root, twofold_root;
  int64_t no_integers;   // whether arguments that are tensors of integers (16 to 64 bits) are something to be noted
  int64_t no_single;     // whether results with one element are looked at
  // When it is an exact move; see `Moves` in aten/moves.py.
  int64_t moves;
  uint64_t numbers, combining, windows, types, tensors;
  int64_t one_source;  // there is one tensor whose numbers come into the results
  int64_t large;       // tensors with so many elements are rounded by several threads, if there are
  int64_t product;     // the first of two matrices that another library may multiply, if they are large; or -1
  int64_t multiplications;  // that is so from here on
  // Arguments that the operation sees rounded: copies, made by these loops from one place to another.
  uint64_t operands;
  Loop single_operand, twofold_operand;
};

struct Counts {
  int64_t calls, moved, rounded, left_whole;
};

struct Plain {
  const Description how;
  std::atomic<int64_t> calls{0}, moved{0}, rounded{0}, left_whole{0};
  std::vector<std::atomic<int64_t>> seen;  // how often each argument was seen rounded
  Plain(const Description& description, size_t arguments)
      : how(description), seen(description.operands ? arguments : 0) {}
};

class Lock {  // a forked child can open it, which a mutex does not allow
 public:
  void lock() {
    while (taken.test_and_set(std::memory_order_acquire)) taken.wait(true);
  }
  void unlock() {
    taken.clear(std::memory_order_release);
    taken.notify_one();
  }

 private:
  std::atomic_flag taken;
};

// What is known of one simulation.
struct Simulation {
  const uint64_t number;  // never given again
  const bool follows;     // an operation depends on its place; else its role and module are 0
  std::atomic<uint64_t> round{0};  // how often all threads have left it
  std::vector<std::atomic<Plain*>> operations;     // where it does not follow
  std::unordered_map<uint64_t, Plain*> by_place;  // where it does
  std::atomic<bool> holds{false};  // nothing is plain for the time being
  // Memory of which something is known, as in `heeds`.
  std::unordered_map<const void*, int64_t> marked;
  std::atomic<size_t> marks{0};
  mutable Lock lock;

  Simulation(uint64_t number, bool follows, size_t count)
      : number(number), follows(follows), operations(follows ? 0 : count) {}
  ~Simulation() {
    for (auto& plain : operations) delete plain.load();
    for (auto& [key, plain] : by_place) delete plain;
  }

  static uint64_t key_of(size_t operation, places::Place place) {
    return uint64_t(place.module) << 20 | uint64_t(place.role) << 16 | operation;
  }

  // What is known of an operation where this thread is; null if Python is to be asked.
  Plain* find(size_t operation) const {
    if (!follows) return operations[operation].load(std::memory_order_acquire);
    places::Place place;
    if (!places::find(places::whereabouts(number, round.load(std::memory_order_relaxed)), &place)) return nullptr;
    std::lock_guard<Lock> guard(lock);
    auto found = by_place.find(key_of(operation, place));
    return found == by_place.end() ? nullptr : found->second;
  }

  // Describes an operation at a place; null if it has been described before.
  Plain* describe(size_t operation, places::Place place, const Description& description, size_t arguments) {
    std::lock_guard<Lock> guard(lock);
    auto plain = std::make_unique<Plain>(description, arguments);
    if (follows) return by_place.emplace(key_of(operation, place), plain.get()).second ? plain.release() : nullptr;
    Plain* nothing = nullptr;
    return operations[operation].compare_exchange_strong(nothing, plain.get()) ? plain.release() : nullptr;
  }

  int64_t marks_of(const c10::TensorImpl& x) const {
    if (!marks.load(std::memory_order_relaxed) || !x.has_storage()) return 0;
    std::lock_guard<Lock> guard(lock);
    auto found = marked.find(x.unsafe_storage().unsafeGetStorageImpl());
    return found == marked.end() ? 0 : found->second;
  }
};

std::vector<c10::OperatorHandle> operators;  // those with a kernel here
std::unordered_map<std::string, size_t> numbered;
std::unique_ptr<c10::SafeKernelFunction> fallback;  // what PyTorch has for the key `Python`

// Modes that let operations pass, by their addresses: simulations, and bystanders (null).
std::unordered_map<const void*, Simulation*> modes;
Lock modes_lock;
std::atomic<uint64_t> modes_changed{1};

std::atomic<int64_t> suspendable{0};  // blocks in generators and coroutines: who is at work is asked in Python
std::atomic<bool> reads_are_told{false};  // some simulation has read a number that was not finite
thread_local int64_t held = 0;        // this thread computes something for itself

// What an operation has computed that Python is to go on with.
using Told = void (*)();
Told told = nullptr;
thread_local std::vector<IValue>* computed = nullptr;
thread_local int64_t going_on = 0;  // operations of this thread that Python goes on with

std::unordered_map<uint64_t, const Simulation*> living;  // by their numbers; `modes_lock` is theirs, too
uint64_t latest_number = 0;

// What is at work in this thread for a simulation, to be told of what begins or ends.
places::Whereabouts& whereabouts(const Simulation& simulation) {
  uint64_t round = simulation.round;
  if (auto* found = places::whereabouts(simulation.number, round)) return *found;
  {
    std::lock_guard<Lock> guard(modes_lock);
    std::erase_if(places::here, [](const places::Whereabouts& one) {
      auto found = living.find(one.simulation);
      return found == living.end() || found->second->round != one.round;
    });
  }
  places::here.push_back({simulation.number, round});
  return places::here.back();
}

const void* address(int64_t index) {
  const auto& mode = Modes::get_stack_at(index);
  return mode->ptr(&mode->pyinterpreter());
}

bool find(const void* mode, Simulation** found) {
  thread_local struct {
    const void* mode = nullptr;
    Simulation* simulation = nullptr;
    bool known = false;
    uint64_t changed = 0;
  } last;
  if (last.mode != mode || last.changed != modes_changed.load(std::memory_order_acquire)) {
    std::lock_guard<Lock> guard(modes_lock);
    auto it = modes.find(mode);
    last = {mode, it == modes.end() ? nullptr : it->second, it != modes.end(), modes_changed.load()};
  }
  *found = last.simulation;
  return last.known;
}

// The simulation that this thread's operations are rounded by; null where that is to be found out in Python.
Simulation* at_work() {
  if (held || suspendable.load(std::memory_order_relaxed)) return nullptr;
  // In `__torch_dispatch__`, of whatever mode or class.
  if (c10::impl::tls_local_dispatch_key_set().excluded_.has(DispatchKey::PythonTLSSnapshot)) return nullptr;
  Simulation *simulation = nullptr, *other = nullptr;
  auto count = Modes::stack_len();
  for (int64_t i = 0; i + 1 < count; ++i)
    if (!find(address(i), &other)) return nullptr;
  if (count == 0 || !find(address(count - 1), &simulation) || !simulation) return nullptr;
  return simulation->holds.load(std::memory_order_relaxed) ? nullptr : simulation;
}

bool is_carrier(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

// Whether numbers lie in the CPU's memory as they are: no subclass, nothing lazy, fake, sparse, or inside a transform.
bool is_plain(const c10::TensorImpl& x) { return !(x.key_set().raw_repr() & ~of_plain_tensors); }

// Whether several threads are to round it, which is done elsewhere.
bool is_large(const c10::TensorImpl& x, const Description& how) {
  return x.numel() >= how.large && at::get_num_threads() > 1;
}

// As in watching/integers.py.
bool computes_gradients() { return !at::GradMode::is_enabled() && torch::autograd::get_current_node(); }

bool suits(const c10::TensorImpl* x, const Description& how, const Simulation& simulation) {
  if (x == c10::UndefinedTensorImpl::singleton()) return true;
  if (!is_plain(*x) || is_large(*x, how)) return false;
  switch (c10::typeMetaToScalarType(x->dtype())) {
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
    case at::kByte:
    case at::kChar:
      break;
    case at::kShort:
    case at::kInt:
    case at::kLong:
      if (how.no_integers && !x->is_wrapped_number()) return false;
      break;
    default:
      return false;
  }
  if (!how.heeds) return true;
  int64_t marks = simulation.marks_of(*x) & how.heeds;
  return !marks || (!(marks & how.heeds_in_gradients) && computes_gradients());
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
bool number_of(const IValue& value, double* number) {
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

bool is_data(const IValue& value) {
  const IValue* first = &value;
  if (value.isTensorList()) {
    if (value.toListRef().empty()) return false;
    first = &value.toListRef()[0];
  }
  if (!first->isTensor()) return false;
  const auto* x = first->unsafeToTensorImpl();
  return x != c10::UndefinedTensorImpl::singleton() && !x->is_wrapped_number() &&
         is_carrier(c10::typeMetaToScalarType(x->dtype()));
}

bool has(uint64_t mask, size_t position) { return mask >> position & 1; }

bool may_count(const IValue* given, const Description& how) {
  double number;
  if (!number_of(given[1], &number) || number == 0 || !(std::floor(number) == number)) return false;
  return how.counts == 2 || !given[0].isTensor() || given[0].unsafeToTensorImpl()->numel() == 1;
}

bool is_large_product(const IValue* given, const Description& how) {
  if (!given[how.product].isTensor() || !given[how.product + 1].isTensor()) return true;
  const auto &a = *given[how.product].unsafeToTensorImpl(), &b = *given[how.product + 1].unsafeToTensorImpl();
  if (a.dim() < 2 || b.dim() < 2) return false;  // an error, for PyTorch to raise
  int64_t columns = b.size(-1);
  return a.size(-2) * a.size(-1) * (columns < 4 ? 4 : columns) >= how.multiplications;
}

const void* numbers_of(const c10::TensorImpl& x) { return x.numel() ? x.data() : nullptr; }

bool is_finite(const IValue& value) {
  if (!value.isTensor()) return false;
  const auto& x = *value.unsafeToTensorImpl();
  auto type = c10::typeMetaToScalarType(x.dtype());
  if (x.numel() != 1 || reads_are_told.load(std::memory_order_relaxed)) return false;
  if (!is_carrier(type)) return true;  // nothing is said of integers
  const void* place = x.data();
  return place && std::isfinite(type == at::kFloat ? *static_cast<const float*>(place) : *static_cast<const double*>(place));
}

bool has_roots(const IValue& value, const Description& how) {
  return all_tensors(value, [&](const c10::TensorImpl* x) {
    auto type = c10::typeMetaToScalarType(x->dtype());
    if (x == c10::UndefinedTensorImpl::singleton() || !is_carrier(type) || !x->is_contiguous()) return false;
    return numbers_of(*x) && (type == at::kFloat ? how.single_root : how.twofold_root);
  });
}

// Whether a number is added in place to whole numbers that lie in the memory of a mark, and is one itself; in a backward
// pass they are data.
bool counts_up(const IValue* given, const Description& how, const Simulation& simulation) {
  constexpr double largest = 1 << 24;
  double number, factor;
  if (!how.counts_up || !given[0].isTensor()) return false;
  const auto* x = given[0].unsafeToTensorImpl();
  if (x == c10::UndefinedTensorImpl::singleton() || !is_plain(*x) || x->requires_grad()) return false;
  if (!is_carrier(c10::typeMetaToScalarType(x->dtype())) || !(simulation.marks_of(*x) & 1)) return false;
  if (!number_of(given[1], &number) || std::floor(number) != number || std::abs(number) > largest) return false;
  return number_of(given[2], &factor) && factor == 1 && torch::autograd::get_current_graph_task_id() == -1;
}

const Loop& of_operands(const c10::TensorImpl& x, const Description& how) {
  return c10::typeMetaToScalarType(x.dtype()) == at::kFloat ? how.single_operand : how.twofold_operand;
}

// Whether an operand is a tensor of numbers in a carrier; others are seen as they are.
bool is_seen_rounded(const IValue& value) {
  if (!value.isTensor()) return false;
  const auto* x = value.unsafeToTensorImpl();
  return x != c10::UndefinedTensorImpl::singleton() && !x->is_wrapped_number() &&
         is_carrier(c10::typeMetaToScalarType(x->dtype()));
}

bool can_be_seen(const IValue& value, const Description& how) {
  if (!is_seen_rounded(value)) return true;
  const auto& x = *value.unsafeToTensorImpl();
  return of_operands(x, how).run && x.is_non_overlapping_and_dense() && (x.numel() == 0 || x.data());
}

bool takes(const Plain& plain, const Simulation& simulation, const IValue* given, size_t count) {
  const Description& how = plain.how;
  auto fits = [&](const c10::TensorImpl* x) { return suits(x, how, simulation); };
  for (size_t i = 0; i < count; ++i)
    if (!all_tensors(given[i], fits)) return false;
  if (how.data >= 0 && !is_data(given[how.data])) return false;
  if (how.dtypes)
    for (size_t i = 0; i < count; ++i)
      if (has(how.dtypes, i) && !given[i].isNone() &&
          !is_carrier(static_cast<at::ScalarType>(given[i].toInt())))
        return false;
  if (how.product >= 0 && is_large_product(given, how)) return false;
  if (how.operands)
    for (size_t i = 0; i < count; ++i)
      if (has(how.operands, i) && !can_be_seen(given[i], how)) return false;
  if (how.reads && !is_finite(given[0])) return false;
  if (how.root && !has_roots(given[0], how)) return false;
  double power;
  if (how.power && (!number_of(given[1], &power) || power == 0.5)) return false;
  return !how.counts || !may_count(given, how);
}

// Zero in every format, which -0 is not; also what is left out.
bool is_zero(const IValue& value) {
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

bool is_set(const IValue& value) { return !value.isNone() && !(value.isBool() && !value.toBool()); }

bool is_one(const IValue& value) {
  if (value.isNone()) return true;
  if (value.isIntList()) {
    for (int64_t step : value.toIntVector())
      if (step != 1) return false;
    return true;
  }
  return value.isInt() && value.toInt() == 1;
}

bool moves(const Description& how, const IValue* given, size_t count) {
  if (!how.moves) return false;
  for (size_t i = 0; i < count; ++i) {
    if (has(how.numbers, i) && !is_zero(given[i])) return false;
    if (has(how.combining, i) && is_set(given[i])) return false;
    if (has(how.types, i) && !given[i].isNone()) return false;
    if (has(how.windows, i) && !is_one(given[i])) return false;
  }
  if (how.one_source) return true;
  bool any = false;
  at::ScalarType type{};
  auto is_alike = [&](const c10::TensorImpl* x) {
    if (x == c10::UndefinedTensorImpl::singleton() || x->is_wrapped_number()) return true;
    auto mine = c10::typeMetaToScalarType(x->dtype());
    if (any && mine != type) return false;
    any = true;
    type = mine;
    return true;
  };
  for (size_t i = 0; i < count; ++i)
    if (has(how.tensors, i) && !all_tensors(given[i], is_alike)) return false;
  return true;
}

bool can_round(const c10::TensorImpl* x, const Description& how) {
  if (x == c10::UndefinedTensorImpl::singleton()) return true;
  auto type = c10::typeMetaToScalarType(x->dtype());
  if (!at::isFloatingType(type) && !at::isComplexType(type)) return true;
  if (!is_plain(*x) || !is_carrier(type) || is_large(*x, how)) return false;
  if (!(type == at::kFloat ? how.single : how.twofold).run) return false;
  return x->is_non_overlapping_and_dense() && (x->numel() == 0 || x->data());
}

bool round(c10::TensorImpl* x, Plain& plain) {
  if (x == c10::UndefinedTensorImpl::singleton()) return true;
  auto type = c10::typeMetaToScalarType(x->dtype());
  if (!is_carrier(type)) return true;  // integers and truth
  const Loop& loop = type == at::kFloat ? plain.how.single : plain.how.twofold;
  void* numbers = x->mutable_data();  // its own from here on, if it was a lazy copy
  loop.run(numbers, numbers, x->numel(), loop.parameters);
  plain.rounded.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Has `work` done for every tensor that the operation computed, until it returns false.
template <class F>
bool all_computed(const Description& how, const IValue* given, size_t count, const IValue* results, size_t made, F work) {
  for (size_t i = 0; i < made; ++i)
    if (has(how.results, i) && !all_tensors(results[i], work)) return false;
  if (how.written)
    for (size_t i = 0; i < count; ++i)
      if (has(how.written, i) && !all_tensors(given[i], work)) return false;
  return true;
}

bool is_single(const IValue& result) {
  if (!result.isTensor()) return false;
  const auto* x = result.unsafeToTensorImpl();
  return x != c10::UndefinedTensorImpl::singleton() && x->numel() == 1 &&
         at::isFloatingType(c10::typeMetaToScalarType(x->dtype()));
}

void go_on_in_python(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, const IValue* given, size_t count,
                     size_t made) {
  std::vector<IValue> results(stack->end() - made, stack->end());
  stack->erase(stack->end() - made, stack->end());
  stack->insert(stack->end(), given, given + count);
  computed = &results;
  told();
  computed = nullptr;
  struct Going {
    Going() { ++going_on; }
    ~Going() { --going_on; }
  } going;
  fallback->callBoxed(op, keys, stack);
}

// Puts rounded copies in the place of operands; returns which.
uint64_t see(const Description& how, const IValue* given, size_t count, IValue* operands) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  uint64_t seen = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!has(how.operands, i) || !is_seen_rounded(given[i])) continue;
    const at::Tensor& x = given[i].toTensor();
    at::Tensor rounded = at::_ops::empty_like::call(x, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
                                                    std::nullopt);
    const Loop& loop = of_operands(*x.unsafeGetTensorImpl(), how);
    if (x.numel()) loop.run(x.const_data_ptr(), rounded.mutable_data_ptr(), x.numel(), loop.parameters);
    operands[i] = std::move(rounded);
    seen |= uint64_t(1) << i;
  }
  return seen;
}

// Has PyTorch's kernel, or a loop in its place, replace the arguments on the stack by the results.
void compute(const Description& how, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack,
             const IValue* given, size_t count, size_t made) {
  if (how.root == 2) {
    stack->erase(stack->end() - count, stack->end());
    if (made) stack->push_back(given[0]);
  } else {
    c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
    op.redispatchBoxed(keys & below, stack);
  }
  if (!how.root) return;
  const IValue& computed = how.root == 2 ? given[0] : stack->back();
  size_t number = 0;
  all_tensors(given[0], [&](const c10::TensorImpl* x) {
    const IValue& target = computed.isTensor() ? computed : computed.toListRef()[number++];
    auto root = c10::typeMetaToScalarType(x->dtype()) == at::kFloat ? how.single_root : how.twofold_root;
    void* into = target.unsafeToTensorImpl()->mutable_data();
    root(x->data(), into, 0, x->numel());
    return true;
  });
}

void run_whole(Plain& plain, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  plain.calls.fetch_add(1, std::memory_order_relaxed);
  {
    c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
    op.redispatchBoxed(keys & below, stack);
  }
  plain.left_whole.fetch_add(1, std::memory_order_relaxed);
}

void run(Plain& plain, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const Description& how = plain.how;
  size_t count = op.schema().arguments().size(), made = op.schema().returns().size();
  c10::SmallVector<IValue, 8> given(stack->end() - count, stack->end());
  uint64_t seen = how.operands ? see(how, given.data(), count, stack->data() + stack->size() - count) : 0;
  plain.calls.fetch_add(1, std::memory_order_relaxed);
  compute(how, op, keys, stack, given.data(), count, made);
  auto count_seen = [&] {
    for (size_t i = 0; seen && i < count; ++i)
      if (has(seen, i)) plain.seen[i].fetch_add(1, std::memory_order_relaxed);
  };
  if (!how.rounds || how.reads) {
    count_seen();
    if (moves(how, given.data(), count)) plain.moved.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const IValue* results = stack->data() + stack->size() - made;
  auto is_sound = [&](const c10::TensorImpl* x) { return can_round(x, how); };
  if ((how.no_single && made && is_single(results[0])) ||
      !all_computed(how, given.data(), count, results, made, is_sound)) {
    plain.calls.fetch_sub(1, std::memory_order_relaxed);
    go_on_in_python(op, keys, stack, given.data(), count, made);
    return;
  }
  count_seen();
  if (moves(how, given.data(), count)) plain.moved.fetch_add(1, std::memory_order_relaxed);
  all_computed(how, given.data(), count, results, made, [&](c10::TensorImpl* x) { return round(x, plain); });
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(size_t number) : number_(number) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (Simulation* simulation = at_work())
      if (Plain* plain = simulation->find(number_)) {
        size_t count = op.schema().arguments().size();
        const IValue* given = stack->data() + stack->size() - count;
        if (takes(*plain, *simulation, given, count)) return run(*plain, op, keys, stack);
        if (counts_up(given, plain->how, *simulation)) return run_whole(*plain, op, keys, stack);
      }
    fallback->callBoxed(op, keys, stack);
  }

 private:
  size_t number_;
};

}  // namespace

extern "C" {

// Registers the kernel for operations, by names and overloads of each; returns how many there are. `plain_keys` are
// those of an ordinary tensor; `tell` is called where Python is to fetch what was computed.
int64_t roundoff_start(const char* const* names, const char* const* overloads, int64_t count, uint64_t plain_keys,
                       Told tell) {
  of_plain_tensors = plain_keys;
  told = tell;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (int64_t i = 0; i < count; ++i) {
    c10::OperatorName name(names[i], overloads[i]);
    auto found = dispatcher.findSchema(name);
    if (!found || found->hasKernelForDispatchKey(DispatchKey::Python)) continue;
    if (!fallback)
      fallback = std::make_unique<c10::SafeKernelFunction>(found->getComputedKernelForDispatchKey(DispatchKey::Python));
    size_t number = operators.size();
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(number));
    // Never taken back: other libraries may be unloaded before this one at the end of the process.
    new c10::RegistrationHandleRAII(dispatcher.registerImpl(name, DispatchKey::Python, std::move(kernel), std::nullopt,
                                                            nullptr, "roundoff"));
    operators.push_back(*found);
    numbered[std::string(names[i]) + (*overloads[i] ? "." : "") + overloads[i]] = number;
  }
  return static_cast<int64_t>(operators.size());
}

// `follows`: an operation depends on its place, of which the functions below are told.
void* roundoff_simulation(int64_t follows) {
  std::lock_guard<Lock> guard(modes_lock);
  uint64_t number = ++latest_number;
  auto* simulation = new Simulation(number, follows != 0, operators.size());
  living[number] = simulation;
  return simulation;
}

// The modes of the simulation are gone, or it is never used again.
void roundoff_free(void* simulation) {
  {
    std::lock_guard<Lock> guard(modes_lock);
    for (auto it = modes.begin(); it != modes.end();)
      it = it->second == simulation ? modes.erase(it) : std::next(it);
    ++modes_changed;
    living.erase(static_cast<Simulation*>(simulation)->number);
  }
  delete static_cast<Simulation*>(simulation);
}

// Makes a mode known: of a simulation, or null for one that changes nothing.
void roundoff_know(const void* mode, void* simulation) {
  std::lock_guard<Lock> guard(modes_lock);
  modes[mode] = static_cast<Simulation*>(simulation);
  ++modes_changed;
}

void roundoff_forget(const void* mode) {
  std::lock_guard<Lock> guard(modes_lock);
  modes.erase(mode);
  ++modes_changed;
}

// Describes an operation as plain in a simulation, at a place; null if it has no kernel here.
void* roundoff_describe(void* simulation, int64_t role, int64_t module, const char* name,
                        const Description* description) {
  auto found = numbered.find(name);
  if (found == numbered.end()) return nullptr;
  size_t arguments = operators[found->second].schema().arguments().size();
  return static_cast<Simulation*>(simulation)->describe(found->second, {role, module}, *description, arguments);
}

// Of this thread: a module begins, or (-1) has ended, with so many around it.
void roundoff_module(void* simulation, int64_t module, int64_t around) {
  auto& thread = whereabouts(*static_cast<Simulation*>(simulation));
  if (module < 0) thread.end(around);
  else thread.begin(module, around);
}

// How many optimizers' steps this thread is in.
void roundoff_optimizers(void* simulation, int64_t count) {
  whereabouts(*static_cast<Simulation*>(simulation)).optimizers = count;
}

// What the code of this thread says that its role is; -1: nothing.
void roundoff_role(int64_t role) { places::said = role; }

// No thread is in the simulation any more.
void roundoff_left(void* simulation) { ++static_cast<Simulation*>(simulation)->round; }

// Where this thread is: 16 times the module, and the role; -1 if C++ does not know.
int64_t roundoff_here(void* simulation) {
  auto& of = *static_cast<Simulation*>(simulation);
  places::Place place;
  return places::find(places::whereabouts(of.number, of.round), &place) ? place.module << 4 | place.role : -1;
}

// Gives what was counted since it was asked last.
void roundoff_take_counts(void* plain, Counts* counts) {
  auto& from = *static_cast<Plain*>(plain);
  counts->calls = from.calls.exchange(0);
  counts->moved = from.moved.exchange(0);
  counts->rounded = from.rounded.exchange(0);
  counts->left_whole = from.left_whole.exchange(0);
}

// How often an argument was seen rounded since it was asked last.
int64_t roundoff_take_seen(void* plain, int64_t argument) { return static_cast<Plain*>(plain)->seen[argument].exchange(0); }

// Notes a kind of mark on memory, or that there is none.
void roundoff_mark(void* simulation, int64_t kind, const void* memory, int64_t on) {
  auto& of = *static_cast<Simulation*>(simulation);
  std::lock_guard<Lock> guard(of.lock);
  auto& marks = of.marked[memory];
  marks = on ? marks | kind : marks & ~kind;
  if (!marks) of.marked.erase(memory);
  of.marks = of.marked.size();
}

void roundoff_hold_simulation(void* simulation, int64_t hold) { static_cast<Simulation*>(simulation)->holds = hold != 0; }

void roundoff_hold_thread(int64_t more) { held += more; }

void roundoff_suspendable(int64_t count) { suspendable = count; }

// From now on every number that is read is looked at in Python.
void roundoff_tell_reads() { reads_are_told = true; }

// In `tell`: how many values the operation returned; of one of them, how many tensors (-1: it is one, -2: none).
int64_t roundoff_computed() { return static_cast<int64_t>(computed->size()); }

int64_t roundoff_computed_length(int64_t number) {
  const IValue& value = (*computed)[number];
  if (value.isTensorList()) return static_cast<int64_t>(value.toListRef().size());
  return value.isTensor() ? -1 : -2;
}

// Whether Python goes on with an operation of this thread; it may have been interrupted before it did.
int64_t roundoff_goes_on() { return going_on; }

PyObject* roundoff_computed_tensor(int64_t number, int64_t item) {
  const IValue& value = (*computed)[number];
  return THPVariable_Wrap((value.isTensorList() ? value.toListRef()[item] : value).toTensor());
}

// A child of a fork: what other threads had locked is nobody's.
void roundoff_forked() {
  modes_lock.unlock();
  for (auto& [mode, simulation] : modes)
    if (simulation) simulation->lock.unlock();
}

}  // extern "C"
