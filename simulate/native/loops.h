// The loops that numba has compiled, called by their addresses; and the random bits of stochastic rounding, as
// formats/base/random_words.py has them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace loops {

enum Calling : int64_t {  // see formats/cpu/addressed.py
  kByAddress, kDrawn, kPosit, kPositInMode, kGrid, kGridInMode, kWrapping, kBlocks, kBlocksInMode,
  kScaled, kTable, kTableInBlocks, kLogarithm, kLogarithmInMode,
  kWhole, kSquares,
};

struct Loop {
  const void* run;  // null: numbers of that dtype are not rounded here
  const void* parameters;
  int64_t calling;
  int64_t draws;  // whether it takes random bits
};

// What a loop is given that has no parameters at an address.
struct Numbers {
  int64_t whole[8];
  double real[4];
  int64_t settings[10];
};

// The random bits of one rounding: the upper `bits` of a word of 32 for each element, and a half of the lowest of them.
struct Random {
  uint64_t seed, step;
  uint32_t bits = 32;

  uint32_t mask() const { return ~uint32_t(0) << (32 - bits); }
  uint32_t half() const { return bits < 32 ? uint32_t(1) << (31 - bits) : 0; }
};

inline uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

inline uint64_t base_of(const Random& random) { return mixed(mixed(random.seed) ^ random.step); }

// How a tensor lies that is rounded: how many numbers there are, how many of them lie along the axis of its blocks, and
// the stride of that axis; for squares, how many rows of that length a matrix has.
struct Shape {
  int64_t count, length, inner = 1, rows = 1;
};

// Whether a loop wants to know of axes.
inline bool has_blocks(const Loop& loop) {
  return loop.calling == kBlocks || loop.calling == kBlocksInMode || loop.calling == kScaled ||
         loop.calling == kTableInBlocks || loop.calling == kSquares;
}

inline const void* at(int64_t address) { return reinterpret_cast<const void*>(address); }

inline int64_t upwards(int64_t count, int64_t each) { return count / each + (count % each != 0); }

template <class Real>
void run_with_numbers(const Loop& loop, const void* source, void* target, const Shape& shape, const Numbers& given,
                      const int64_t* settings) {
  const int64_t n = shape.count, *w = given.whole;
  const Real inverse = static_cast<Real>(given.real[0]), scale = static_cast<Real>(given.real[1]), zero = 0;
  const Real low = static_cast<Real>(w[0]), high = static_cast<Real>(w[1]);
  const void* words = nullptr;
  switch (loop.calling) {
    case kPosit: {
      using Run = void (*)(const void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
      return reinterpret_cast<Run>(loop.run)(source, target, 0, n, w[0], w[1], w[2], w[3]);
    }
    case kPositInMode: {
      using Run = void (*)(const void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, const int64_t*,
                           const void*);
      return reinterpret_cast<Run>(loop.run)(source, target, 0, n, w[0], w[1], w[2], w[3], settings, words);
    }
    case kGrid: {  // one row of `n` numbers
      using Run = void (*)(const void*, void*, const Real*, const Real*, const Real*, int64_t, int64_t, int64_t, int64_t,
                           Real, Real);
      return reinterpret_cast<Run>(loop.run)(source, target, &inverse, &scale, &zero, 1, 0, 1, n, low, high);
    }
    case kGridInMode: {  // one long run
      using Run = void (*)(const void*, void*, const Real*, const Real*, const Real*, int64_t, int64_t, int64_t, int64_t,
                           Real, Real, const int64_t*, const void*);
      return reinterpret_cast<Run>(loop.run)(source, target, &inverse, &scale, &zero, 0, n, 1, 0, low, high, settings,
                                             words);
    }
    case kWrapping: {
      using Run = void (*)(const void*, void*, int64_t, int64_t, Real, Real, Real, Real, Real, const int64_t*,
                           const void*);
      const Real turn = static_cast<Real>(w[1] - w[0] + 1);
      return reinterpret_cast<Run>(loop.run)(source, target, 0, n, inverse, scale, turn, low, high, settings, words);
    }
    case kBlocks: {
      using Run = void (*)(const void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, Real, Real,
                           int64_t);
      int64_t blocks = n / shape.length * ((shape.length + w[0] - 1) / w[0]);
      return reinterpret_cast<Run>(loop.run)(source, target, 0, blocks, shape.length, w[0], w[1], w[2], w[3],
                                             static_cast<Real>(given.real[0]), static_cast<Real>(given.real[1]), w[4]);
    }
    case kBlocksInMode: {  // or strips of them
      using Run = void (*)(const void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                           int64_t, double, Real, int64_t, const int64_t*, const void*);
      int64_t pieces = n / (shape.length * shape.inner) * upwards(shape.length, w[0]) * upwards(shape.inner, w[6]);
      return reinterpret_cast<Run>(loop.run)(source, target, 0, pieces, shape.length, shape.inner, w[0], w[1], w[2], w[3],
                                             w[4], given.real[0], Real(0), w[5], settings, words);
    }
    case kTable: {
      using Run = void (*)(const void*, void*, const void*, const void*, int64_t, int64_t, int64_t, const int64_t*,
                           const void*);
      return reinterpret_cast<Run>(loop.run)(source, target, at(w[0]), at(w[1]), 0, n, w[2], settings, words);
    }
    case kTableInBlocks: {
      using Run = void (*)(const void*, void*, const void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t,
                           int64_t, Real, Real, Real, int64_t, const int64_t*, const void*);
      int64_t blocks = n / shape.length * upwards(shape.length, w[4]);
      return reinterpret_cast<Run>(loop.run)(source, target, at(w[0]), at(w[1]), at(w[2]), 0, blocks, w[3], shape.length,
                                             w[4], static_cast<Real>(given.real[0]), static_cast<Real>(given.real[1]),
                                             static_cast<Real>(given.real[2]), w[5], settings, words);
    }
    case kLogarithm: {
      using Run = void (*)(const void*, void*, int64_t, int64_t, int64_t, int64_t, const void*, const void*, const void*);
      return reinterpret_cast<Run>(loop.run)(source, target, 0, n, w[0], w[1], at(w[2]), at(w[3]), at(w[4]));
    }
    case kLogarithmInMode: {
      using Run = void (*)(const void*, void*, const void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t,
                           double, const int64_t*, const void*);
      return reinterpret_cast<Run>(loop.run)(source, target, at(w[2]), at(w[3]), at(w[4]), 0, n, w[0], w[1],
                                             given.real[0], settings, words);
    }
    case kWhole: {  // one scale for all, which follows from them where none is given
      using Run = void (*)(const void*, void*, int64_t, double, double, int64_t, double, Real, Real);
      return reinterpret_cast<Run>(loop.run)(source, target, n, given.real[0], given.real[1], w[0], given.real[2],
                                             static_cast<Real>(given.real[3]), static_cast<Real>(w[1]));
    }
    default:
      return;
  }
}

inline void run(const Loop& loop, bool single, const void* source, void* target, const Shape& shape, const Random& random);

// Scales blocks up, has the loop of the elements round them, and scales them down.
template <class Real>
void run_scaled(const Loop& loop, const void* source, void* target, const Shape& shape, const Random& random) {
  using Up = void (*)(const void*, void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t, Real, int64_t);
  using Down = void (*)(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t);
  thread_local std::vector<Real> scales;
  const auto& given = *static_cast<const Numbers*>(loop.parameters);
  const int64_t* w = given.whole;
  bool whole = !w[0];  // one block
  int64_t length = whole ? shape.count : shape.length, inner = whole ? 1 : shape.inner;
  int64_t block = whole ? length : std::min(w[0], length), blocks = upwards(length, block);
  int64_t pieces = shape.count / (length * inner) * blocks * upwards(inner, w[6]);
  scales.resize(shape.count / length * blocks);
  reinterpret_cast<Up>(loop.run)(source, target, scales.data(), 0, pieces, length, inner, block,
                                 static_cast<Real>(given.real[0]), w[1]);
  const Loop elements{at(w[2]), at(w[3]), w[4], loop.draws};
  run(elements, sizeof(Real) == sizeof(float), target, target, shape, random);
  reinterpret_cast<Down>(w[5])(target, scales.data(), 0, pieces, length, inner, block);
}

// Has a loop round the squares of matrices, of which the last in each row and column may be smaller, each as one block.
template <class Real>
void run_squares(const Loop& loop, const Real* source, Real* target, const Shape& shape, const Random& random) {
  thread_local std::vector<Real> square;
  const int64_t* w = static_cast<const Numbers*>(loop.parameters)->whole;
  const Loop block{loop.run, at(w[1]), w[2], loop.draws};
  const int64_t side = w[0], columns = shape.length;
  for (int64_t first = 0; first < shape.count; first += shape.rows * columns)
    for (int64_t row = 0; row < shape.rows; row += side)
      for (int64_t column = 0; column < columns; column += side) {
        int64_t high = std::min(side, shape.rows - row), wide = std::min(side, columns - column);
        square.resize(high * wide);
        auto each_row = [&](auto copy) {
          for (int64_t i = 0; i < high; ++i) copy(square.data() + i * wide, first + (row + i) * columns + column);
        };
        each_row([&](Real* inside, int64_t place) { std::copy_n(source + place, wide, inside); });
        run(block, sizeof(Real) == sizeof(float), square.data(), square.data(), {high * wide, high * wide}, random);
        each_row([&](Real* inside, int64_t place) { std::copy_n(inside, wide, target + place); });
      }
}

// Rounds numbers from one place to another, or where they stand; `single`: they are float32.
inline void run(const Loop& loop, bool single, const void* source, void* target, const Shape& shape, const Random& random) {
  if (loop.calling == kByAddress) {
    using Run = void (*)(const void*, void*, int64_t, const void*);
    return reinterpret_cast<Run>(loop.run)(source, target, shape.count, loop.parameters);
  }
  uint64_t base = loop.draws ? base_of(random) : 0;
  if (loop.calling == kDrawn) {
    using Run = void (*)(const void*, void*, int64_t, const void*, int64_t, const uint32_t*);
    uint64_t key = mixed(base);  // of the first 2^32 numbers
    const uint32_t drawn[4] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), random.mask(), random.half()};
    return reinterpret_cast<Run>(loop.run)(source, target, shape.count, loop.parameters, 0, drawn);
  }
  if (loop.calling == kScaled) {
    if (!shape.count) return;
    return single ? run_scaled<float>(loop, source, target, shape, random)
                  : run_scaled<double>(loop, source, target, shape, random);
  }
  if (loop.calling == kSquares) {
    if (!shape.count) return;
    return single ? run_squares(loop, static_cast<const float*>(source), static_cast<float*>(target), shape, random)
                  : run_squares(loop, static_cast<const double*>(source), static_cast<double*>(target), shape, random);
  }
  const auto& given = *static_cast<const Numbers*>(loop.parameters);
  int64_t settings[10];
  std::memcpy(settings, given.settings, sizeof(settings));
  if (loop.draws) {
    settings[5] = static_cast<int64_t>(base & 0xFFFFFFFF);
    settings[6] = static_cast<int64_t>(base >> 32);
    settings[7] = random.mask();
    settings[8] = random.half();
  }
  if (!shape.count) return;
  if (single) run_with_numbers<float>(loop, source, target, shape, given, settings);
  else run_with_numbers<double>(loop, source, target, shape, given, settings);
}

// Where each of the threads has its counts of stochastic roundings, by the number of their `Draws`; see
// presence/draws.py. The latest few are remembered, of which Python tells again if it is asked.
struct Counts {
  int64_t step, number;
};

struct OfDraws {
  uint64_t number;
  Counts* counts;
};

inline thread_local OfDraws told[8];
inline thread_local int next_told = 0;

inline Counts* counts_of(uint64_t draws) {
  for (const auto& one : told)
    if (one.number == draws) return one.counts;
  return nullptr;
}

inline void tell(uint64_t draws, Counts* counts) {
  for (auto& one : told)
    if (one.number == draws) {
      one.counts = counts;
      return;
    }
  told[next_told] = {draws, counts};
  next_told = (next_told + 1) % 8;
}

}  // namespace loops
