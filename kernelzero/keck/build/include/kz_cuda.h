// The current stream, the current device and CUDA's errors.
#pragma once
#include <cuda_runtime_api.h>
#include "kz_mini.h"
namespace c10 {
namespace cuda {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw Error(std::string("CUDA error: ") + cudaGetErrorString(status));
}

class CUDAStream {
 public:
  CUDAStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  operator cudaStream_t() const { return stream_; }
  cudaStream_t stream() const { return stream_; }
  DeviceIndex device_index() const { return static_cast<DeviceIndex>(device_); }
  Device device() const { return Device(kCUDA, device_); }
  void synchronize() const { check(cudaStreamSynchronize(stream_)); }
  bool query() const { return cudaStreamQuery(stream_) == cudaSuccess; }

 private:
  int device_;
  cudaStream_t stream_;
};

inline DeviceIndex current_device() {
  int device = 0;
  check(cudaGetDevice(&device));
  return static_cast<DeviceIndex>(device);
}
inline void set_device(int device) { check(cudaSetDevice(device)); }
inline DeviceIndex device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count));
  return static_cast<DeviceIndex>(count);
}
inline void device_synchronize() { check(cudaDeviceSynchronize()); }

// The stream that Python says is current.
inline CUDAStream getCurrentCUDAStream(int device = -1) {
  if (device < 0) device = current_device();
  void* stream = nullptr;
  if (kz::the_host->stream(device, &stream) != 0) throw Error("the current stream is not known");
  return CUDAStream(device, static_cast<cudaStream_t>(stream));
}
inline CUDAStream getDefaultCUDAStream(int device = -1) {
  return CUDAStream(device < 0 ? current_device() : device, nullptr);
}

class CUDAGuard {
 public:
  explicit CUDAGuard(int device) : before_(current_device()) {
    if (device != before_) set_index(device);
  }
  explicit CUDAGuard(Device device) : CUDAGuard(device.index() < 0 ? current_device() : device.index()) {}
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;
  ~CUDAGuard() { (void)cudaSetDevice(before_); }
  void set_index(int device) { check(cudaSetDevice(device)); }
  void set_device(Device device) { set_index(device.index()); }
  Device original_device() const { return Device(kCUDA, before_); }

 private:
  int before_;
};

class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(int device) { guard_.emplace(device); }
  explicit OptionalCUDAGuard(Device device) {
    if (device.is_cuda()) guard_.emplace(device);
  }
  explicit OptionalCUDAGuard(std::optional<Device> device) {
    if (device && device->is_cuda()) guard_.emplace(*device);
  }

 private:
  std::optional<CUDAGuard> guard_;
};

}  // namespace cuda
using cuda::CUDAStream;
}  // namespace c10

namespace at {
namespace cuda {
using namespace c10::cuda;
inline cudaDeviceProp* getCurrentDeviceProperties() {
  static cudaDeviceProp properties[16];
  static bool known[16];
  int device = current_device() & 15;
  if (!known[device]) {
    check(cudaGetDeviceProperties(&properties[device], device));
    known[device] = true;
  }
  return &properties[device];
}
inline int warp_size() { return 32; }
}  // namespace cuda
}  // namespace at
namespace torch {
namespace cuda {
using namespace at::cuda;
inline void synchronize(int64_t = -1) { device_synchronize(); }
}  // namespace cuda
}  // namespace torch

#define C10_CUDA_CHECK(expression) ::c10::cuda::check(expression)
#define AT_CUDA_CHECK(expression) ::c10::cuda::check(expression)
#define TORCH_CUDA_CHECK(expression) ::c10::cuda::check(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ::c10::cuda::check(cudaGetLastError())
#define C10_CUDA_ERROR_HANDLED(expression) (expression)
#define C10_CUDA_CHECK_WARN(expression) ((void)(expression))

#ifdef __CUDACC__
// What torch's kernels call shuffles and atomics.
template <class T>
__device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_sync(mask, value, lane, width);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_XOR(T value, int lanes, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_xor_sync(mask, value, lanes, width);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_UP(T value, unsigned by, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_up_sync(mask, value, by, width);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned by, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_down_sync(mask, value, by, width);
}
template <class T>
__device__ __forceinline__ T gpuAtomicAdd(T* address, T value) {
  return atomicAdd(address, value);
}
template <>
__device__ __forceinline__ int64_t gpuAtomicAdd<int64_t>(int64_t* address, int64_t value) {
  using wide = unsigned long long;
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<wide*>(address), static_cast<wide>(value)));
}
#ifdef KZ_HALF
template <>
__device__ __forceinline__ c10::Half gpuAtomicAdd<c10::Half>(c10::Half* address, c10::Half value) {
  return atomicAdd(reinterpret_cast<__half*>(address), static_cast<__half>(value));
}
template <>
__device__ __forceinline__ c10::BFloat16 gpuAtomicAdd<c10::BFloat16>(c10::BFloat16* address, c10::BFloat16 value) {
  return atomicAdd(reinterpret_cast<__nv_bfloat16*>(address), static_cast<__nv_bfloat16>(value));
}
#endif
template <class T>
__device__ __forceinline__ void gpuAtomicAddNoReturn(T* address, T value) {
  gpuAtomicAdd(address, value);
}
#endif
