// How torch's own Tensor passes through kz_protocol.h: its handle is the address of one on the heap.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <utility>
#include "kz_protocol.h"
namespace kz {
using ScalarType = c10::ScalarType;
using IntArrayRef = c10::IntArrayRef;
using Tensor = at::Tensor;
inline void set_host(const kz_host*) {}
inline Tensor take_tensor(void* handle) {
  at::Tensor* held = static_cast<at::Tensor*>(handle);
  at::Tensor result = std::move(*held);
  delete held;
  return result;
}
inline void* give_tensor(const Tensor& tensor) { return new at::Tensor(tensor); }
}  // namespace kz
