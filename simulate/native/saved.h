// What autograd saves of a result, and what it begins a backward pass with: shallow copies, which PyTorch asks the mode for
// beside its dispatcher, by the table of functions of its interpreter. This table answers for the plain ones that there
// is nothing to ask, so that PyTorch makes them as it does without a mode; all else it hands to PyTorch's own.

#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>

namespace saved {

using Takes = bool (*)(const c10::TensorImpl* x);

class Table final : public c10::impl::PyInterpreterVTable {
  using Impl = c10::TensorImpl;
  using Op = c10::OperatorHandle;
  using Stack = torch::jit::Stack;

 public:
  Table(const c10::impl::PyInterpreterVTable* own, Takes takes) : own_(*own), takes_(takes) {}

  c10::intrusive_ptr<Impl> detach(const Impl* x) const override {
    if (takes_(x)) return {};
    return own_.detach(x);
  }

  std::string name() const override { return own_.name(); }
  void incref(PyObject* x) const override { own_.incref(x); }
  void decref(PyObject* x) const override { own_.decref(x); }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const override { return own_.try_incref(slot); }
  size_t refcnt(PyObject* x) const override { return own_.refcnt(x); }
  void dispatch(const Op& op, Stack* stack) const override { own_.dispatch(op, stack); }
  void reportErrorCallback(PyObject* callback, c10::DispatchKey key) const override {
    own_.reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(const Op& op, c10::DispatchKey key, c10::DispatchKeySet keys, Stack* stack,
                                         bool with_keys, bool with_op) const override {
    own_.python_op_registration_trampoline(op, key, keys, stack, with_keys, with_op);
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char* module, const char* context) const override {
    own_.throw_abstract_impl_not_imported_error(std::move(op), module, context);
  }
  void python_dispatcher(const Op& op, c10::DispatchKeySet keys, Stack* stack) const override {
    own_.python_dispatcher(op, keys, stack);
  }
  bool is_contiguous(const Impl* x, at::MemoryFormat format) const override { return own_.is_contiguous(x, format); }
  c10::SymBool sym_is_contiguous(const Impl* x, at::MemoryFormat format) const override {
    return own_.sym_is_contiguous(x, format);
  }
  bool is_strides_like(const Impl* x, at::MemoryFormat format) const override { return own_.is_strides_like(x, format); }
  bool is_non_overlapping_and_dense(const Impl* x) const override { return own_.is_non_overlapping_and_dense(x); }
  c10::Device device(const Impl* x) const override { return own_.device(x); }
  int64_t dim(const Impl* x) const override { return own_.dim(x); }
  c10::IntArrayRef strides(const Impl* x) const override { return own_.strides(x); }
  c10::IntArrayRef sizes(const Impl* x) const override { return own_.sizes(x); }
  c10::SymIntArrayRef sym_sizes(const Impl* x) const override { return own_.sym_sizes(x); }
  c10::Layout layout(const Impl* x) const override { return own_.layout(x); }
  int64_t numel(const Impl* x) const override { return own_.numel(x); }
  c10::SymInt sym_numel(const Impl* x) const override { return own_.sym_numel(x); }
  c10::SymIntArrayRef sym_strides(const Impl* x) const override { return own_.sym_strides(x); }
  c10::SymInt sym_storage_offset(const Impl* x) const override { return own_.sym_storage_offset(x); }
  void trace_gpu_event_creation(c10::DeviceType type, uintptr_t event) const override {
    own_.trace_gpu_event_creation(type, event);
  }
  void trace_gpu_event_deletion(c10::DeviceType type, uintptr_t event) const override {
    own_.trace_gpu_event_deletion(type, event);
  }
  void trace_gpu_event_record(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    own_.trace_gpu_event_record(type, event, stream);
  }
  void trace_gpu_event_wait(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    own_.trace_gpu_event_wait(type, event, stream);
  }
  void trace_gpu_memory_allocation(c10::DeviceType type, uintptr_t x) const override {
    own_.trace_gpu_memory_allocation(type, x);
  }
  void trace_gpu_memory_deallocation(c10::DeviceType type, uintptr_t x) const override {
    own_.trace_gpu_memory_deallocation(type, x);
  }
  void trace_gpu_stream_creation(c10::DeviceType type, uintptr_t stream) const override {
    own_.trace_gpu_stream_creation(type, stream);
  }
  void trace_gpu_device_synchronization(c10::DeviceType type) const override {
    own_.trace_gpu_device_synchronization(type);
  }
  void trace_gpu_stream_synchronization(c10::DeviceType type, uintptr_t stream) const override {
    own_.trace_gpu_stream_synchronization(type, stream);
  }
  void trace_gpu_event_synchronization(c10::DeviceType type, uintptr_t event) const override {
    own_.trace_gpu_event_synchronization(type, event);
  }
  void reset_backward_hooks(const Impl* x) const override { own_.reset_backward_hooks(x); }

 private:
  const c10::impl::PyInterpreterVTable& own_;
  const Takes takes_;
};

// Has PyTorch's interpreter ask `takes` first, from now on.
inline void begin(Takes takes) {
  auto* interpreter = c10::impl::getGlobalPyInterpreter();
  interpreter->vtable_ = new Table(interpreter->vtable_, takes);  // never taken back, as the kernels
}

}  // namespace saved
