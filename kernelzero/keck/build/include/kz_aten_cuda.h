// The current stream and device from torch's own headers, without the vendor libraries that theirs bring along.
#pragma once
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
namespace at::cuda {
using namespace c10::cuda;
cudaDeviceProp* getCurrentDeviceProperties();
cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
int warp_size();
}  // namespace at::cuda
#ifndef AT_CUDA_CHECK
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)
#endif
namespace torch::cuda {
using namespace at::cuda;
}
