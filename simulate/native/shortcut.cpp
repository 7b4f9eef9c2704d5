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
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "exact.h"
#include "loops.h"
#include "memory.h"
#include "pieces.h"
#include "places.h"
#include "products.h"
#include "saved.h"
#include "values.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <unordered_map>
#include <unordered_set>
#include <vector>

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;
using Modes = c10::impl::TorchDispatchModeTLS;
using loops::Loop;
using values::all_tensors;
using values::has;
using values::is_carrier;
using values::is_defined;
using values::is_one;
using values::is_set;
using values::is_zero;
using values::number_of;
using values::type_of;

// Declared here, since their headers take seconds to compile, or want those of Python.
PyObject* THPVariable_Wrap(const at::TensorBase& x);
namespace at {
int get_num_threads();
}

namespace {

const DispatchKeySet below(DispatchKeySet::FULL_AFTER, DispatchKey::Python);
const DispatchKeySet python_and_above = DispatchKeySet(DispatchKeySet::FULL) ^ below;
uint64_t of_plain_tensors;  // the keys of an ordinary tensor

// What `numba.cfunc` makes of square roots: source, target, first and behind the last.
using Root = void (*)(const void*, void*, int64_t, int64_t);

// Masks of arguments, or of results: bit i is that of position i.
struct Description {
  Loop single, twofold;  // for float32 and float64
  int64_t rounds;        // whether anything is rounded
  uint64_t results;      // those that are rounded
  uint64_t written;      // arguments that are overwritten, and rounded
  uint64_t dtypes;       // arguments that choose a dtype: they must be left out, or be a carrier's
  int64_t data;          // the argument that must be a floating-point tensor, or a list that begins with one; or -1
  int64_t heeds;         // marks that must not be on its arguments; see memory.h
  int64_t heeds_in_gradients;  // the same where autograd computes gradients, which count nothing
  int64_t counts;        // 1: adds a number, which must not be a whole one added to one number; 2: or in place
  // 1: it makes whole numbers where its `numbers_given` are whole; 2: where the one of them is, and is 0, 1 or -1, or the
  // argument before it, a size or a tensor, has no axes.
  int64_t makes_whole;
  uint64_t numbers_given;
  uint64_t overwrites;   // the arguments that such a call overwrites, be it with zeros
  int64_t counts_up;     // whether it adds a number in place, which may be a step of a count
  int64_t reads;         // whether it reads a number, of which nothing is said if it is finite and not changed visibly
  int64_t asks;          // 1: it asks of numbers whether they are finite; 2: it compares, which may be such a question;
                         // 3: it makes a tensor of a number. Python adapts what derivatives do by 2, 3 and 4
  int64_t power;         // whether it takes powers, of which square roots are computed elsewhere
  int64_t root;          // 1: square roots, rounded to the nearest by these loops; 2: in place
  Root single_root, twofold_root;
  int64_t no_integers;   // whether arguments that are tensors of integers (16 to 64 bits) are something to be noted
  // 1: results with one element are looked at; 2: where one is, or is made of, a number that rounding has changed visibly.
  int64_t no_single;
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
  exact::Description exact;  // how exact results are computed, where PyTorch's kernel will not do
  int64_t draws;             // whether any of this takes random bits
  int64_t converts;          // the argument that must not be float64, whose conversion is computed elsewhere; or -1
  int64_t pieces;  // 1: it may be run piece by piece, in place; 2: by its variant that writes to a given tensor
  // Where rules are about operands of some role; see memory.h.
  int64_t following;
  int64_t parameters;  // what is done with those among its operands, which `operands` then is about
  uint64_t made, changed;  // results and arguments that it computes
  int64_t blank;           // they are memory to be filled, and not noted as computed inside
  products::Description products;
};

struct Counts {
  int64_t calls, moved, rounded, left_whole;
};

// What is known of a plain operation at a place, in all simulations of the same arithmetic.
struct Known {
  const Description how;
  const size_t arguments;
  std::optional<c10::OperatorHandle> writing;  // the variant that writes to a given tensor
  Known(const Description& how, size_t arguments) : how(how), arguments(arguments) {}

  size_t places() const {
    if (!how.products.roundings) return how.operands ? arguments : 0;
    return products::counts_of(arguments);
  }
};

// A plain operation at a place of one simulation.
struct Plain {
  const Description& how;
  const std::optional<c10::OperatorHandle>& writing;
  std::atomic<int64_t> calls{0}, moved{0}, rounded{0}, left_whole{0};
  std::vector<std::atomic<int64_t>> seen;  // how often each argument was seen rounded; or as `all_roundings` says
  explicit Plain(const Known& known) : how(known.how), writing(known.writing), seen(known.places()) {}
};

class Flag {
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

// A lock that `fork` takes first, so that what it guards is complete in the child. Who holds one neither makes nor frees
// one, and waits neither for another one nor for the interpreter.
class Lock : public Flag {
 public:
  Lock() {
    std::lock_guard<Flag> guard(list_lock);
    list.insert(this);
  }
  ~Lock() {
    std::lock_guard<Flag> guard(list_lock);
    list.erase(this);
  }
  static void lock_all() {
    list_lock.lock();
    for (Lock* one : list) one->lock();
  }
  static void unlock_all() {
    for (Lock* one : list) one->unlock();
    list_lock.unlock();
  }

 private:
  inline static Flag list_lock;
  inline static auto& list = *new std::unordered_set<Lock*>;  // threads may outlive what the process frees at its end
};

// The plain operations of all simulations of the same arithmetic, by the keys of operations at places; none is taken away.
class Descriptions {
 public:
  const Known* find(uint64_t key) const {
    std::lock_guard<Lock> guard(lock);
    auto found = known.find(key);
    return found == known.end() ? nullptr : found->second.get();
  }
  // The one that is kept, which another thread may have added.
  const Known* add(uint64_t key, std::unique_ptr<Known> one) {
    std::lock_guard<Lock> guard(lock);
    return known.emplace(key, std::move(one)).first->second.get();
  }
  mutable Lock lock;

 private:
  std::unordered_map<uint64_t, std::unique_ptr<Known>> known;
};

// What is known of one simulation.
struct Simulation {
  const std::shared_ptr<Descriptions> descriptions;
  const uint64_t number;  // never given again
  const bool follows;     // an operation depends on its place; else its role and module are 0
  const uint64_t draws;   // the number of what counts its stochastic roundings
  const uint64_t seed;    // of their random bits
  const uint32_t bits;    // how many of them an element has
  std::atomic<uint64_t> round{0};  // how often all threads have left it
  std::vector<std::atomic<Plain*>> operations;     // where it does not follow
  std::unordered_map<uint64_t, Plain*> by_place;  // where it does
  std::atomic<bool> holds{false};  // nothing is plain for the time being
  memory::Marks<Lock> marks;
  mutable Lock lock;

  Simulation(std::shared_ptr<Descriptions> descriptions, uint64_t number, bool follows, uint64_t draws, uint64_t seed,
             uint32_t bits, size_t count)
      : descriptions(std::move(descriptions)), number(number), follows(follows), draws(draws), seed(seed), bits(bits),
        operations(follows ? 0 : count) {}
  ~Simulation() {
    for (auto& plain : operations) delete plain.load();
    for (auto& [key, plain] : by_place) delete plain;
  }

  static uint64_t key_of(size_t operation, places::Place place) {
    return uint64_t(place.module) << 20 | uint64_t(place.role) << 16 | operation;
  }

  // What is known of an operation where this thread is; null if Python is to be asked.
  Plain* find(size_t operation) {
    places::Place place{};
    if (follows && !places::find(places::whereabouts(number, round.load(std::memory_order_relaxed)), &place)) return nullptr;
    if (Plain* begun = at(operation, place)) return begun;
    const Known* known = descriptions->find(key_of(operation, place));
    return known ? begin(operation, place, *known) : nullptr;
  }

  // What is counted of an operation at a place; null if nothing is yet.
  Plain* at(size_t operation, places::Place place) const {
    if (!follows) return operations[operation].load(std::memory_order_acquire);
    std::lock_guard<Lock> guard(lock);
    auto found = by_place.find(key_of(operation, place));
    return found == by_place.end() ? nullptr : found->second;
  }

  // Begins to count an operation at a place; another thread may have begun.
  Plain* begin(size_t operation, places::Place place, const Known& known) {
    auto plain = std::make_unique<Plain>(known);
    std::lock_guard<Lock> guard(lock);
    if (follows) {
      auto [found, is_new] = by_place.emplace(key_of(operation, place), plain.get());
      return is_new ? plain.release() : found->second;
    }
    Plain* begun = nullptr;
    return operations[operation].compare_exchange_strong(begun, plain.get()) ? plain.release() : begun;
  }

  bool has_changed(const c10::TensorImpl& x) const { return x.numel() == 1 && marks.may_have(memory::kMeasure) && marks.of(x) & memory::kMeasure; }
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
std::atomic<uint64_t> latest_number{0};

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

// Whether numbers lie in the CPU's memory as they are: no subclass, nothing lazy, fake, sparse, or inside a transform.
bool is_plain(const c10::TensorImpl& x) { return !(x.key_set().raw_repr() & ~of_plain_tensors); }

// Whether several threads are to round it, which is done elsewhere.
bool is_large(const c10::TensorImpl& x, const Description& how) {
  return x.numel() >= how.large && at::get_num_threads() > 1;
}

// As in watching/integers.py.
bool computes_gradients() { return !at::GradMode::is_enabled() && torch::autograd::get_current_node(); }

bool suits(const c10::TensorImpl* x, const Description& how, const Simulation& simulation) {
  if (!is_defined(x)) return true;
  if (!is_plain(*x) || is_large(*x, how)) return false;
  switch (type_of(*x)) {
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
  int64_t marks = simulation.marks.of(*x) & how.heeds;
  return !marks || (!(marks & how.heeds_in_gradients) && computes_gradients());
}

bool is_data(const IValue& value) {
  const IValue* first = &value;
  if (value.isTensorList()) {
    if (value.toListRef().empty()) return false;
    first = &value.toListRef()[0];
  }
  if (!first->isTensor()) return false;
  const auto* x = first->unsafeToTensorImpl();
  return is_defined(x) && !x->is_wrapped_number() &&
         is_carrier(type_of(*x));
}

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
  auto type = type_of(x);
  if (x.numel() != 1 || reads_are_told.load(std::memory_order_relaxed)) return false;
  if (!is_carrier(type)) return true;  // nothing is said of integers
  const void* place = x.data();
  return place && std::isfinite(type == at::kFloat ? *static_cast<const float*>(place) : *static_cast<const double*>(place));
}

bool is_unchanged(const Simulation& simulation, const IValue& value) {
  return !simulation.has_changed(*value.unsafeToTensorImpl());
}

bool are_finite(const c10::TensorImpl& x) {
  auto of = [&](const auto* numbers) {
    for (int64_t i = 0; i < x.numel(); ++i)
      if (!std::isfinite(numbers[i])) return false;
    return true;
  };
  if (!x.is_non_overlapping_and_dense() || !x.data()) return !x.numel();
  return type_of(x) == at::kFloat ? of(static_cast<const float*>(x.data())) : of(static_cast<const double*>(x.data()));
}

// Whether an operation that may ask for numbers that are not finite finds none, or asks something else: isfinite is made
// of x == x and abs(x) != inf. Python sees the comparisons of derivatives, and numbers as large as the dtype's limit.
bool asks_in_vain(const Description& how, const IValue* given) {
  if (how.asks > 1 && torch::autograd::get_current_node()) {
    constexpr double limit = 65504;  // float16's
    double number;
    if (how.asks != 3) return false;
    if (!number_of(given[0], &number) || std::abs(number) >= limit) return false;
  }
  if (how.asks >= 3) return true;
  if (!given[0].isTensor()) return false;
  const auto& x = *given[0].unsafeToTensorImpl();
  if (!is_defined(&x) || !is_carrier(type_of(x))) return is_defined(&x);
  if (how.asks == 2) {
    double number;
    bool of_infinity = number_of(given[1], &number) && std::isinf(number);
    if (!of_infinity && !(given[1].isTensor() && given[1].unsafeToTensorImpl() == &x)) return true;
  }
  return !reads_are_told.load(std::memory_order_relaxed) && are_finite(x);
}

bool has_roots(const IValue& value, const Description& how) {
  return all_tensors(value, [&](const c10::TensorImpl* x) {
    auto type = type_of(*x);
    if (!is_defined(x) || !is_carrier(type) || !x->is_contiguous()) return false;
    return exact::is_of_torch(*x) && numbers_of(*x) && (type == at::kFloat ? how.single_root : how.twofold_root);
  });
}

bool is_whole(double number) {
  constexpr double largest = 1 << 24;
  return std::floor(number) == number && std::abs(number) <= largest;
}

// Whether the elements of a small tensor are integers now, whatever was written since it was marked; of others Python
// finds out.
bool holds_integers(const c10::TensorImpl& x) {
  constexpr int64_t most = 1 << 12;
  if (x.numel() > most || !x.is_contiguous() || !x.data()) return false;
  auto are_integers = [&](const auto* numbers) {
    for (int64_t i = 0; i < x.numel(); ++i)
      if (std::floor(numbers[i]) != numbers[i] || std::isinf(numbers[i])) return false;
    return true;
  };
  return type_of(x) == at::kFloat ? are_integers(static_cast<const float*>(x.data()))
                                  : are_integers(static_cast<const double*>(x.data()));
}

// Whether an integer is added in place to integers in marked memory; in a backward pass they are data.
bool counts_up(const IValue* given, const Description& how, const Simulation& simulation) {
  double number, factor;
  if (!how.counts_up || !given[0].isTensor()) return false;
  const auto* x = given[0].unsafeToTensorImpl();
  if (!is_defined(x) || !is_plain(*x) || x->requires_grad()) return false;
  if (!is_carrier(type_of(*x)) || !(simulation.marks.of(*x) & memory::kIntegers)) return false;
  if (!number_of(given[1], &number) || !is_whole(number) || !holds_integers(*x)) return false;
  return number_of(given[2], &factor) && factor == 1 && torch::autograd::get_current_graph_task_id() == -1;
}

bool has_axes(const IValue& value) {
  return value.isTensor() ? value.toTensor().dim() != 0 : !value.isIntList() || !value.toIntVector().empty();
}

// Whether a call makes whole numbers, of arguments that say so by themselves.
bool makes_whole(const IValue* given, size_t count, const Description& how) {
  for (size_t i = 0; i < count; ++i) {
    if (!has(how.numbers_given, i) || given[i].isNone() || given[i].isBool()) continue;
    double number;
    if (!number_of(given[i], &number) || !is_whole(number)) return false;
    if (how.makes_whole == 2 && has_axes(given[i - 1]) && std::abs(number) > 1) return false;
  }
  return !computes_gradients();
}

// Of numbers that are no plain ones it is said in Python whether they are whole.
bool gives_numbers(const IValue* given, size_t count, const Description& how) {
  double number;
  for (size_t i = 0; i < count; ++i)
    if (has(how.numbers_given, i) && !given[i].isNone() && !given[i].isBool() && !number_of(given[i], &number))
      return false;
  return true;
}

bool covers_its_memory(const c10::TensorImpl& x) {
  return x.has_storage() && x.numel() * x.itemsize() == x.unsafe_storage().nbytes();
}

const Loop& of_operands(const c10::TensorImpl& x, const Description& how) {
  return type_of(x) == at::kFloat ? how.single_operand : how.twofold_operand;
}

// Whether an operand is a tensor of numbers in a carrier; others are seen as they are.
bool is_seen_rounded(const IValue& value) {
  if (!value.isTensor()) return false;
  const auto* x = value.unsafeToTensorImpl();
  return is_defined(x) && !x->is_wrapped_number() &&
         is_carrier(type_of(*x));
}

// Whether a loop rounds tensors that lie so.
bool can_round(const Loop& loop, const c10::TensorImpl& x) {
  constexpr int64_t most = int64_t(1) << 32;  // further numbers take other random bits
  if (!loop.run || x.numel() >= most || (x.numel() && !x.data())) return false;
  // Random bits and blocks follow the order of the elements, others that of memory.
  return loop.draws || has_blocks(loop) ? x.is_contiguous() : x.is_non_overlapping_and_dense();
}

void round(const Loop& loop, const c10::TensorImpl& x, const void* source, void* target, const loops::Random& random) {
  loops::Shape shape{x.numel(), x.dim() ? x.size(-1) : 1, 1, x.dim() > 1 ? x.size(-2) : 1};
  loops::run(loop, type_of(x) == at::kFloat, source, target, shape, random);
}

bool can_be_seen(const IValue& value, const Description& how) {
  if (!is_seen_rounded(value)) return true;
  const auto& x = *value.unsafeToTensorImpl();
  return can_round(of_operands(x, how), x);
}

// The random bits of the roundings of one operation.
class Draws {
 public:
  Draws(const Simulation& simulation, loops::Counts* counts)
      : seed_(simulation.seed), bits_(simulation.bits), counts_(counts), before_(counts ? counts->number : 0) {}

  loops::Random next(int64_t draws) {
    if (!draws || !counts_) return {};
    return {seed_, (static_cast<uint64_t>(counts_->step) << 32) + static_cast<uint64_t>(counts_->number++), bits_};
  }

  void take_back() {
    if (counts_) counts_->number = before_;
  }

 private:
  uint64_t seed_;
  uint32_t bits_;
  loops::Counts* counts_;
  int64_t before_ = 0;
};

// Finds out whether exact results are to be computed, of which there are no rows if PyTorch's kernel will do; false if
// that is left to Python.
bool finds_exact(const Description& how, const IValue* given, size_t count, exact::Rows& rows) {
  exact::Answer answer = how.exact.form ? exact::rows_of(how.exact, given, count, rows) : exact::kKernel;
  if (answer == exact::kKernel) rows.clear();
  return answer != exact::kPython;
}

// Whether the operands of a product are rounded here, and what they are.
bool sees_products(const products::Description& how, const Simulation& simulation, const IValue* given, size_t count,
                   bool notes_weights, products::Call& call) {
  if (count > products::most_arguments) return false;
  if (how.tells && !products::tell(how, simulation.marks, given, count, notes_weights, &call)) return false;
  products::look_at_convolution(how, given, &call);
  return products::all_products(how, call, given, [&](const products::Call& product, uint64_t operands) {
    for (size_t i = 0; i < count; ++i)
      if (has(operands, i) && !products::can_be_seen(given[i], how, product, i)) return false;
    return true;
  });
}

// `seen`: the operands that are rounded before.
bool takes(const Plain& plain, const Simulation& simulation, const IValue* given, size_t count, exact::Rows& rows,
           products::Call& call, uint64_t& seen) {
  const Description& how = plain.how;
  seen = how.parameters == memory::kRounded ? 0 : how.operands;
  bool notes_weights = how.following == memory::kWeights ||
                       (how.following == memory::kUnlessGradient && at::GradMode::is_enabled());
  memory::Operands operands(notes_weights, static_cast<memory::Parameters>(how.parameters));
  size_t position = 0;
  auto fits = [&](const c10::TensorImpl* x) {
    if (!suits(x, how, simulation)) return false;
    if (!how.following || !is_defined(x) || how.products.tells) return true;
    bool is_parameter = false;
    if (!operands.add(*x, simulation.marks.of(*x), has(how.changed, position), &is_parameter)) return false;
    if (is_parameter && how.parameters == memory::kRounded) seen |= how.operands & uint64_t(1) << position;
    return true;
  };
  for (; position < count; ++position)
    if (!all_tensors(given[position], fits)) return false;
  if (!operands.say_nothing(!(how.made | how.changed))) return false;
  if (how.data >= 0 && !is_data(given[how.data])) return false;
  if (how.dtypes)
    for (size_t i = 0; i < count; ++i)
      if (has(how.dtypes, i) && !given[i].isNone() &&
          !is_carrier(static_cast<at::ScalarType>(given[i].toInt())))
        return false;
  if (how.product >= 0 && is_large_product(given, how)) return false;
  for (size_t i = 0; seen && i < count; ++i)
    if (has(seen, i) && !can_be_seen(given[i], how)) return false;
  if (how.products.roundings && !sees_products(how.products, simulation, given, count, notes_weights, call)) return false;
  if (how.makes_whole && !gives_numbers(given, count, how)) return false;
  if (how.reads && !(is_finite(given[0]) && is_unchanged(simulation, given[0]))) return false;
  if (how.asks && !asks_in_vain(how, given)) return false;
  if (how.root && !has_roots(given[0], how)) return false;
  double power;
  if (how.power && (!number_of(given[1], &power) || power == 0.5)) return false;
  if (how.converts >= 0 && given[how.converts].isTensor()) {
    const auto* x = given[how.converts].unsafeToTensorImpl();
    if (is_defined(x) && type_of(*x) == at::kDouble) return false;
  }
  if (how.counts && may_count(given, how)) return false;
  if (!finds_exact(how, given, count, rows)) return false;
  // Of exact results nothing is left to Python.
  bool looked_at = !how.exact.of_lists && (how.no_single == 1 || (how.no_single == 2 && simulation.marks.may_have(memory::kMeasure)));
  return rows.empty() || (how.single.run && !(looked_at && rows[0].model->numel() == 1));
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
    if (!is_defined(x) || x->is_wrapped_number()) return true;
    auto mine = type_of(*x);
    if (any && mine != type) return false;
    any = true;
    type = mine;
    return true;
  };
  for (size_t i = 0; i < count; ++i)
    if (has(how.tensors, i) && !all_tensors(given[i], is_alike)) return false;
  return true;
}

bool is_sound(const c10::TensorImpl* x, const Description& how) {
  if (!is_defined(x)) return true;
  auto type = type_of(*x);
  if (!at::isFloatingType(type) && !at::isComplexType(type)) return true;
  if (!is_plain(*x) || !is_carrier(type) || is_large(*x, how)) return false;
  return can_round(type == at::kFloat ? how.single : how.twofold, *x);
}

bool round(c10::TensorImpl* x, Plain& plain, Draws& draws) {
  if (!is_defined(x)) return true;
  auto type = type_of(*x);
  if (!is_carrier(type)) return true;  // integers and truth
  const Loop& loop = type == at::kFloat ? plain.how.single : plain.how.twofold;
  void* numbers = x->mutable_data();  // its own from here on, if it was a lazy copy
  round(loop, *x, numbers, numbers, draws.next(loop.draws));
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
  return is_defined(x) && x->numel() == 1 &&
         at::isFloatingType(type_of(*x));
}

// Whether it is looked at in Python what rounding does to the one element of a result.
bool is_looked_at(const Description& how, const Simulation& simulation, const IValue* given, size_t count,
                  const IValue& result) {
  if (!is_single(result)) return false;
  if (how.no_single == 1 || simulation.has_changed(*result.unsafeToTensorImpl())) return true;
  for (size_t i = 0; i < count; ++i)
    if (!all_tensors(given[i], [&](const c10::TensorImpl* x) { return !is_defined(x) || !simulation.has_changed(*x); }))
      return true;
  return false;
}

// Notes what was computed inside.
void note(const Description& how, Simulation& simulation, const IValue* given, size_t count, const IValue* results,
          size_t made) {
  if (how.blank) return;
  auto add = [&](const c10::TensorImpl* x) {
    if (is_defined(x)) simulation.marks.add(*x, memory::kComputedInside);
    return true;
  };
  for (size_t i = 0; i < made; ++i)
    if (has(how.made, i)) all_tensors(results[i], add);
  for (size_t i = 0; how.changed && i < count; ++i)
    if (has(how.changed, i)) all_tensors(given[i], add);
}

// Notes that a call has made whole numbers.
void note_whole(Plain& plain, Simulation& simulation, const IValue* given, size_t count, const IValue* results, size_t made) {
  plain.left_whole.fetch_add(1, std::memory_order_relaxed);
  auto mark = [&](const c10::TensorImpl* x) {
    if (is_defined(x) && is_carrier(type_of(*x))) simulation.marks.add(*x, memory::kIntegers);
    return true;
  };
  if (!plain.how.overwrites) {
    for (size_t i = 0; i < made; ++i) all_tensors(results[i], mark);
    return;
  }
  for (size_t i = 0; i < count; ++i)
    if (has(plain.how.overwrites, i))
      all_tensors(given[i], [&](const c10::TensorImpl* x) { return !is_defined(x) || !covers_its_memory(*x) || mark(x); });
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
uint64_t see(const Description& how, uint64_t which, const IValue* given, size_t count, IValue* operands, Draws& draws) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  uint64_t seen = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!has(which, i) || !is_seen_rounded(given[i])) continue;
    const at::Tensor& x = given[i].toTensor();
    at::Tensor rounded = values::unwritten_like(x);
    const Loop& loop = of_operands(*x.unsafeGetTensorImpl(), how);
    const auto& impl = *x.unsafeGetTensorImpl();
    round(loop, impl, impl.data(), rounded.unsafeGetTensorImpl()->mutable_data(), draws.next(loop.draws));
    operands[i] = std::move(rounded);
    seen |= uint64_t(1) << i;
  }
  return seen;
}

// Puts rounded copies in the place of the operands of a product.
void see_product(const products::Description& how, const products::Call& call, uint64_t seen, size_t count,
                 IValue* operands, Draws& draws) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  auto next = [&](int64_t draws_any) { return draws.next(draws_any); };
  for (size_t i = 0; i < count; ++i) {
    if (!has(seen, i) || !products::is_number(operands[i])) continue;
    products::all_roundings(how, call, i, [&](const products::Rounding& rounding, size_t) {
      operands[i] = products::seen(operands[i].toTensor(), how, call, rounding, i, next);
      return true;
    });
  }
}

// Puts the gradients of a convolution in the place of its arguments on the stack, each of operands rounded for it.
void compute_separately(const products::Description& how, const products::Call& call, const c10::OperatorHandle& op,
                        DispatchKeySet keys, Stack* stack, const IValue* given, size_t count, Draws& draws) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  const auto asked = given[products::kMask].toBoolList();
  IValue gradients[3] = {at::Tensor(), at::Tensor(), at::Tensor()};
  products::all_products(how, call, given, [&](const products::Call& product, uint64_t seen) {
    Stack arguments(given, given + count);
    see_product(how, product, seen, count, arguments.data(), draws);
    bool of_weight = product.over_positions;
    c10::List<bool> mask;
    for (size_t i = 0; i < 3; ++i) mask.push_back(asked.get(i) && of_weight == (i > 0));
    arguments[products::kMask] = std::move(mask);
    op.redispatchBoxed(keys & below, &arguments);
    for (size_t i = 0; i < 3; ++i)
      if (of_weight == (i > 0)) gradients[i] = std::move(arguments[i]);
    return true;
  });
  stack->erase(stack->end() - count, stack->end());
  stack->insert(stack->end(), gradients, gradients + 3);
}

// Puts exact results in the place of the arguments on the stack.
void compute_exactly(const Description& how, const exact::Rows& rows, Stack* stack, const IValue* given, size_t count,
                     size_t made, Draws& draws) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  stack->erase(stack->end() - count, stack->end());
  c10::List<at::Tensor> results;
  for (size_t i = 0; i < rows.size(); ++i) {
    const IValue& first = how.exact.of_lists ? given[0].toListRef()[i] : given[0];
    results.push_back(compute(rows[i], how.exact.in_place ? &first.toTensor() : nullptr, draws.next(rows[i].way->draws)));
  }
  if (!made) return;
  if (how.exact.in_place) stack->push_back(given[0]);
  else if (how.exact.of_lists) stack->push_back(std::move(results));
  else stack->push_back(results.get(0));
}

// A tensor to write to, or a list of them, laid out as results are.
IValue unwritten_result(const IValue& given) {
  if (given.isTensor()) return values::unwritten_result(given.toTensor());
  c10::List<at::Tensor> made;
  for (const IValue& item : given.toListRef()) made.push_back(values::unwritten_result(item.toTensor()));
  return made;
}

// Whether an operation is to be run piece by piece: on which tensor's numbers; null if not.
const at::Tensor* in_pieces(const Plain& plain, const IValue* given, size_t count) {
  if (!plain.how.pieces || plain.how.operands || plain.how.products.roundings || at::get_num_threads() > 1) return nullptr;
  if (plain.how.pieces == 2 && !plain.writing && !plain.how.root) return nullptr;
  const at::Tensor* model = pieces::model_of(given, count);
  if (!model) return nullptr;
  const Loop& loop = model->scalar_type() == at::kFloat ? plain.how.single : plain.how.twofold;
  return loop.run && loop.calling == loops::kByAddress ? model : nullptr;
}

void run_in_pieces(Plain& plain, const at::Tensor& model, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack,
                   const IValue* given, size_t count, size_t made) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  const Loop& loop = model.scalar_type() == at::kFloat ? plain.how.single : plain.how.twofold;
  bool writes = plain.how.pieces == 2;
  auto compute = [&](Stack& piece) {
    if (plain.how.root) {
      auto root = model.scalar_type() == at::kFloat ? plain.how.single_root : plain.how.twofold_root;
      const auto& from = *piece[0].unsafeToTensorImpl();
      return root(from.data(), piece[1].unsafeToTensorImpl()->mutable_data(), 0, from.numel());
    }
    (writes ? *plain.writing : op).redispatchBoxed(keys & below, &piece);
  };
  auto round_piece = [&](c10::TensorImpl& piece) {
    void* numbers = piece.mutable_data();
    round(loop, piece, numbers, numbers, {});
  };
  at::Tensor result = pieces::run(model, given, count, writes, compute, round_piece);
  stack->erase(stack->end() - count, stack->end());
  if (made) stack->push_back(std::move(result));
  plain.rounded.fetch_add(1, std::memory_order_relaxed);
}

// Has PyTorch's kernel, or a loop in its place, replace the arguments on the stack by the results.
void compute(const Description& how, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack,
             const IValue* given, size_t count, size_t made) {
  c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
  if (!how.root) return op.redispatchBoxed(keys & below, stack);
  stack->erase(stack->end() - count, stack->end());
  if (how.root == 1) stack->push_back(unwritten_result(given[0]));
  else if (made) stack->push_back(given[0]);
  const IValue& computed = how.root == 2 ? given[0] : stack->back();
  size_t number = 0;
  all_tensors(given[0], [&](const c10::TensorImpl* x) {
    const IValue& target = computed.isTensor() ? computed : computed.toListRef()[number++];
    auto root = type_of(*x) == at::kFloat ? how.single_root : how.twofold_root;
    void* into = target.unsafeToTensorImpl()->mutable_data();
    root(x->data(), into, 0, x->numel());
    return true;
  });
}

void run_whole(Plain& plain, Simulation& simulation, const exact::Rows& rows, Draws draws, const c10::OperatorHandle& op,
               DispatchKeySet keys, Stack* stack) {
  plain.calls.fetch_add(1, std::memory_order_relaxed);
  size_t count = op.schema().arguments().size(), made = op.schema().returns().size();
  c10::SmallVector<IValue, 8> given(stack->end() - count, stack->end());
  if (rows.empty()) {
    c10::impl::ExcludeDispatchKeyGuard guard(python_and_above);
    op.redispatchBoxed(keys & below, stack);
  } else {
    compute_exactly(plain.how, rows, stack, given.data(), count, made, draws);
  }
  note(plain.how, simulation, given.data(), count, stack->data() + stack->size() - made, made);
  plain.left_whole.fetch_add(1, std::memory_order_relaxed);
}

void run(Plain& plain, Simulation& simulation, const exact::Rows& rows, const products::Call& call, uint64_t which,
         Draws draws, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const Description& how = plain.how;
  size_t count = op.schema().arguments().size(), made = op.schema().returns().size();
  c10::SmallVector<IValue, 8> given(stack->end() - count, stack->end());
  uint64_t seen = which ? see(how, which, given.data(), count, stack->data() + stack->size() - count, draws) : 0;
  if (how.products.roundings) {
    products::remember(how.products, call, simulation.marks, given.data(), count);
    if (!how.products.separates)
      see_product(how.products, call, how.products.operands, count, stack->data() + stack->size() - count, draws);
  }
  plain.calls.fetch_add(1, std::memory_order_relaxed);
  bool whole = how.makes_whole && makes_whole(given.data(), count, how);
  const at::Tensor* model = rows.empty() && !whole ? in_pieces(plain, given.data(), count) : nullptr;
  if (model) run_in_pieces(plain, *model, op, keys, stack, given.data(), count, made);
  else if (how.products.separates) compute_separately(how.products, call, op, keys, stack, given.data(), count, draws);
  else if (rows.empty()) compute(how, op, keys, stack, given.data(), count, made);
  else compute_exactly(how, rows, stack, given.data(), count, made, draws);
  auto count_seen = [&] {
    for (size_t i = 0; seen && i < count; ++i)
      if (has(seen, i)) plain.seen[i].fetch_add(1, std::memory_order_relaxed);
    if (!how.products.roundings) return;
    products::all_products(how.products, call, given.data(), [&](const products::Call& product, uint64_t operands) {
      for (size_t i = 0; i < count; ++i)
        if (has(operands, i) && products::is_number(given[i]))
          products::all_roundings(how.products, product, i, [&](const products::Rounding&, size_t place) {
            plain.seen[place].fetch_add(1, std::memory_order_relaxed);
            return true;
          });
      return true;
    });
  };
  const IValue* results = stack->data() + stack->size() - made;
  if (whole) note_whole(plain, simulation, given.data(), count, results, made);
  if (!how.rounds || how.reads || whole) {
    count_seen();
    note(how, simulation, given.data(), count, results, made);
    if (moves(how, given.data(), count)) plain.moved.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto sound = [&](const c10::TensorImpl* x) { return is_sound(x, how); };
  if (!model && ((how.no_single && made && is_looked_at(how, simulation, given.data(), count, results[0])) ||
                 !all_computed(how, given.data(), count, results, made, sound))) {
    plain.calls.fetch_sub(1, std::memory_order_relaxed);
    draws.take_back();
    go_on_in_python(op, keys, stack, given.data(), count, made);
    return;
  }
  count_seen();
  note(how, simulation, given.data(), count, results, made);
  if (moves(how, given.data(), count)) plain.moved.fetch_add(1, std::memory_order_relaxed);
  if (!model)
    all_computed(how, given.data(), count, results, made, [&](c10::TensorImpl* x) { return round(x, plain, draws); });
}

size_t detaching = 0;  // the number of the operation that gives shallow copies

// Whether there is nothing to be done for a shallow copy that autograd makes, but to count it.
bool takes_saved(const c10::TensorImpl* x) {
  Simulation* simulation = at_work();
  Plain* plain = simulation ? simulation->find(detaching) : nullptr;
  if (!plain) return false;
  const IValue given = at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
      const_cast<c10::TensorImpl*>(x)));
  exact::Rows rows;
  products::Call call;
  uint64_t seen;
  if (!takes(*plain, *simulation, &given, 1, rows, call, seen)) return false;
  plain->calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(size_t number) : number_(number) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (Simulation* simulation = at_work())
      if (Plain* plain = simulation->find(number_)) {
        size_t count = op.schema().arguments().size();
        const IValue* given = stack->data() + stack->size() - count;
        auto* counts = plain->how.draws ? loops::counts_of(simulation->draws) : nullptr;
        if (!counts && plain->how.draws) return fallback->callBoxed(op, keys, stack);
        Draws draws(*simulation, counts);
        exact::Rows rows;
        products::Call call;
        uint64_t seen;
        if (takes(*plain, *simulation, given, count, rows, call, seen))
          return run(*plain, *simulation, rows, call, seen, draws, op, keys, stack);
        rows.clear();
        if (counts_up(given, plain->how, *simulation) && finds_exact(plain->how, given, count, rows))
          return run_whole(*plain, *simulation, rows, draws, op, keys, stack);
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
  auto found = numbered.find("aten::detach");
  if (found != numbered.end()) {
    detaching = found->second;
    saved::begin(takes_saved);
  }
  pthread_atfork(Lock::lock_all, Lock::unlock_all, Lock::unlock_all);
  return static_cast<int64_t>(operators.size());
}

// Tells of the classes of tensors in Python, by the addresses of PyTorch's two and of an object of the first.
void roundoff_classes(const void* tensor, const void* parameter, const void* sample) {
  exact::tensor_class = tensor;
  exact::parameter_class = parameter;
  for (int64_t i = 1; i < 4; ++i)
    if (static_cast<const void* const*>(sample)[i] == tensor) exact::type_at = i;
}

// Of this thread: where the stochastic roundings are counted that have this number.
void roundoff_tell_draws(uint64_t draws, void* counts) { loops::tell(draws, static_cast<loops::Counts*>(counts)); }

// The descriptions of simulations of some arithmetic; none at first.
void* roundoff_descriptions() { return new std::shared_ptr<Descriptions>(std::make_shared<Descriptions>()); }

// No further simulation is made with them.
void roundoff_free_descriptions(void* descriptions) { delete static_cast<std::shared_ptr<Descriptions>*>(descriptions); }

// `follows`: an operation depends on its place, of which the functions below are told; `draws`, `seed` and `bits`: of
// stochastic rounding.
void* roundoff_simulation(void* descriptions, int64_t follows, uint64_t draws, uint64_t seed, int64_t bits) {
  uint64_t number = ++latest_number;
  auto& shared = *static_cast<std::shared_ptr<Descriptions>*>(descriptions);
  auto* simulation = new Simulation(shared, number, follows != 0, draws, seed, static_cast<uint32_t>(bits), operators.size());
  std::lock_guard<Lock> guard(modes_lock);
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

// Describes an operation as plain, at a place, in a simulation and in all of its arithmetic; null if it has no kernel here.
void* roundoff_describe(void* simulation, int64_t role, int64_t module, const char* name,
                        const Description* description) {
  auto found = numbered.find(name);
  if (found == numbered.end()) return nullptr;
  const auto& op = operators[found->second];
  auto one = std::make_unique<Known>(*description, op.schema().arguments().size());
  if (description->pieces == 2) one->writing = c10::Dispatcher::singleton().findSchema({op.operator_name().name, "out"});
  auto& of = *static_cast<Simulation*>(simulation);
  places::Place place{role, module};
  return of.begin(found->second, place, *of.descriptions->add(Simulation::key_of(found->second, place), std::move(one)));
}

// What is counted of an operation at a place of a simulation; null if it has not run here yet.
void* roundoff_counted(void* simulation, int64_t role, int64_t module, const char* name) {
  auto found = numbered.find(name);
  return found == numbered.end() ? nullptr : static_cast<Simulation*>(simulation)->at(found->second, {role, module});
}

// Of this thread: a module begins, or (-1) has ended, with so many around it.
void roundoff_module(void* simulation, int64_t module, int64_t around) {
  auto& thread = whereabouts(*static_cast<Simulation*>(simulation));
  if (module < 0) thread.end(around);
  else thread.begin(module, around);
}

// What this thread is in goes on as another module, inside of so many: a part of the program begins.
void roundoff_part_begins(void* simulation, int64_t module, int64_t around) {
  whereabouts(*static_cast<Simulation*>(simulation)).go_on(module, around);
}

// The part of the program that this thread is in, as a module (0: none), and the backward pass in which it began (-1: none).
void roundoff_part(void* simulation, int64_t part, int64_t begun) {
  auto& thread = whereabouts(*static_cast<Simulation*>(simulation));
  thread.part = part;
  thread.begun = begun;
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

// How often an argument was seen rounded since it was asked last; or by a place of `all_roundings`.
int64_t roundoff_take_seen(void* plain, int64_t place) { return static_cast<Plain*>(plain)->seen[place].exchange(0); }

// The bits of a storage in the table of marks.
int64_t roundoff_marks(void* simulation, const void* storage) {
  return static_cast<Simulation*>(simulation)->marks.of(static_cast<const c10::StorageImpl*>(storage));
}

// Sets some bits of a storage, which is alive, and clears others.
void roundoff_set_marks(void* simulation, void* storage, int64_t on, int64_t off) {
  static_cast<Simulation*>(simulation)->marks.set(static_cast<c10::StorageImpl*>(storage), on, off);
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

}  // extern "C"
