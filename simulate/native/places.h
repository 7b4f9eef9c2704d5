// Where in a program an operation runs: its role and its module, as policy/places.py finds them, which tells of every
// module, optimizer and block that begins or ends.

#pragma once

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace torch::autograd {
int get_current_graph_task_id();
}

namespace places {

enum Role : int64_t { kForward, kBackward, kOptimizer };  // the first of OPERATION_ROLES
constexpr size_t most_changes = 1 << 17;
constexpr uint64_t no_forward = ~uint64_t(0);  // sequence number of nodes that accumulate gradients

struct Place {
  int64_t role, module;  // a module in a part of the program; 0: none, in none
};

// What is at work in one thread, for one simulation.
struct Whereabouts {
  uint64_t simulation;  // its number
  uint64_t round;       // how often it had been left by all threads before
  struct Inside {
    int64_t module, pass;  // the backward pass in which it began; -1: in none
  };
  std::vector<Inside> modules;
  int64_t part = 0;    // the part of the program, outside of its modules
  int64_t begun = -1;  // the backward pass in which that began; -1: in none
  int64_t optimizers = 0;
  bool lost = false;  // something began of which nothing was told: an interrupt came between
  // From autograd's sequence number `starts[i]` on, operations were made by the module `owners[i]`.
  std::vector<uint64_t> starts;
  std::vector<int64_t> owners;

  int64_t module() const { return modules.empty() ? 0 : modules.back().module; }

  void owner_changes() {
    uint64_t number = at::sequence_number::peek();
    if (!starts.empty() && starts.back() == number) {
      owners.back() = module();
      return;
    }
    starts.push_back(number);
    owners.push_back(module());
    if (starts.size() > most_changes) {
      starts.erase(starts.begin(), starts.begin() + most_changes / 2);
      owners.erase(owners.begin(), owners.begin() + most_changes / 2);
    }
  }

  // A module begins inside of so many.
  void begin(int64_t module, size_t around) {
    shrink(around);
    modules.push_back({module, torch::autograd::get_current_graph_task_id()});
    owner_changes();
  }

  // What it is in goes on as another module, in the pass that it began in.
  void go_on(int64_t module, size_t around) {
    shrink(around);
    modules.push_back({module, modules.empty() ? -1 : modules.back().pass});
    owner_changes();
  }

  // One has ended: so many are left.
  void end(size_t left) {
    shrink(left);
    owner_changes();
  }

 private:
  void shrink(size_t count) {
    lost = lost || modules.size() < count;
    modules.resize(count);
  }
};

inline thread_local int64_t said = -1;  // the role that the code of this thread says; -1: none
inline thread_local std::vector<Whereabouts> here;

// What is at work in this thread for a simulation; null if nothing was told of it since all threads had left it.
inline Whereabouts* whereabouts(uint64_t simulation, uint64_t round) {
  for (auto& one : here)
    if (one.simulation == simulation && one.round == round) return &one;
  return nullptr;
}

// Where this thread is; false if that is to be found out in Python.
inline bool find(const Whereabouts* thread, Place* place) {
  if (thread && thread->lost) return false;
  int64_t alone = thread ? thread->part : 0;
  if (said >= 0) {
    *place = {said, alone};
    return true;
  }
  if (thread && thread->optimizers) {
    *place = {kOptimizer, alone};
    return true;
  }
  int64_t inside = thread ? thread->module() : 0;
  int64_t pass = torch::autograd::get_current_graph_task_id();
  if (pass == -1 || (thread && !thread->modules.empty() && thread->modules.back().pass == pass)) {
    // Outside of the backward pass, or in a module that a checkpoint calls again in this one.
    *place = {kForward, inside};
    return true;
  }
  *place = {kBackward, inside};
  if (inside != alone) return true;
  if (thread && thread->begun == pass) return false;  // a part that began in this pass: in the module of the node
  auto node = torch::autograd::get_current_node();
  uint64_t number = node ? node->sequence_nr() : no_forward;
  if (number == no_forward) return true;
  if (!thread || thread->starts.empty()) return false;  // autograd may work for another thread
  auto behind = std::upper_bound(thread->starts.begin(), thread->starts.end(), number) - thread->starts.begin();
  place->module = behind ? thread->owners[behind - 1] : alone;
  return true;
}

}  // namespace places
