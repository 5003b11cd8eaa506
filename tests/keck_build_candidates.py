# ruff: noqa: E501
"""CUDA extensions as language models write them for KernelBench tasks, by name: the arguments of load_inline.

    python tests/keck_build_candidates.py [CACHE]    # builds all of them; prints rung, seconds, kernels

Not covered: what they compute. None of them has to be fast.
"""

from __future__ import annotations

from typing import Any

CANDIDATES: dict[str, dict[str, Any]] = {}


def _add(name: str, cpp: str, cuda: str, functions: list[str] | None = None, **more: Any) -> None:
    CANDIDATES[name] = {"name": name, "cpp_sources": cpp, "cuda_sources": cuda, "functions": functions, **more}


_add(
    "relu",
    "torch::Tensor relu_cuda(torch::Tensor x);",
    r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void relu_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < n) {
        y[idx] = fmaxf(x[idx], 0.0f);
    }
}

torch::Tensor relu_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    const int block_size = 256;
    const int num_blocks = (n + block_size - 1) / block_size;
    relu_kernel<<<num_blocks, block_size>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
""",
    ["relu_cuda"],
    verbose=True,
    extra_cflags=[""],
    extra_ldflags=[""],
)

_add(
    "add_example",
    "torch::Tensor elementwise_add_cuda(torch::Tensor a, torch::Tensor b);",
    r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void elementwise_add_kernel(const float* a, const float* b, float* out, int size) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < size) {
        out[idx] = a[idx] + b[idx];
    }
}

torch::Tensor elementwise_add_cuda(torch::Tensor a, torch::Tensor b) {
    auto size = a.numel();
    auto out = torch::zeros_like(a);

    const int block_size = 256;
    const int num_blocks = (size + block_size - 1) / block_size;

    elementwise_add_kernel<<<num_blocks, block_size>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), size);

    return out;
}
""",
    ["elementwise_add_cuda"],
)

_add(
    "softmax_shared",
    "torch::Tensor softmax_forward(torch::Tensor input);",
    r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <float.h>

__global__ void softmax_kernel(const float* __restrict__ input, float* __restrict__ output, int cols) {
    extern __shared__ float sdata[];
    const int row = blockIdx.x;
    const int tid = threadIdx.x;
    const float* x = input + (size_t)row * cols;
    float* y = output + (size_t)row * cols;

    float m = -FLT_MAX;
    for (int i = tid; i < cols; i += blockDim.x) m = max(m, x[i]);
    sdata[tid] = m;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) sdata[tid] = fmaxf(sdata[tid], sdata[tid + s]);
        __syncthreads();
    }
    m = sdata[0];
    __syncthreads();

    float sum = 0.f;
    for (int i = tid; i < cols; i += blockDim.x) {
        float e = __expf(x[i] - m);
        y[i] = e;
        sum += e;
    }
    sdata[tid] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) sdata[tid] += sdata[tid + s];
        __syncthreads();
    }
    float inv = 1.0f / sdata[0];
    for (int i = tid; i < cols; i += blockDim.x) y[i] *= inv;
}

torch::Tensor softmax_forward(torch::Tensor input) {
    TORCH_CHECK(input.is_cuda(), "input must be a CUDA tensor");
    TORCH_CHECK(input.dim() == 2, "expected a 2D tensor, got ", input.dim(), "D");
    auto output = torch::empty_like(input);
    int rows = input.size(0), cols = input.size(1);
    int threads = 256;
    softmax_kernel<<<rows, threads, threads * sizeof(float)>>>(input.data_ptr<float>(), output.data_ptr<float>(), cols);
    cudaError_t err = cudaGetLastError();
    TORCH_CHECK(err == cudaSuccess, "softmax_kernel failed: ", cudaGetErrorString(err));
    return output;
}
""",
    ["softmax_forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)

_add(
    "matmul_tiled",
    "torch::Tensor matmul_cuda(torch::Tensor A, torch::Tensor B);",
    r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#define TILE 32
#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)

__global__ void matmul_tiled_kernel(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float acc = 0.0f;
    for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
        int a_col = t * TILE + threadIdx.x;
        int b_row = t * TILE + threadIdx.y;
        As[threadIdx.y][threadIdx.x] = (row < M && a_col < K) ? A[row * K + a_col] : 0.0f;
        Bs[threadIdx.y][threadIdx.x] = (b_row < K && col < N) ? B[b_row * N + col] : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = acc;
}

torch::Tensor matmul_cuda(torch::Tensor A, torch::Tensor B) {
    CHECK_INPUT(A);
    CHECK_INPUT(B);
    TORCH_CHECK(A.size(1) == B.size(0), "inner dimensions differ");
    const int M = A.size(0), K = A.size(1), N = B.size(1);
    auto C = torch::zeros({M, N}, torch::TensorOptions().dtype(torch::kFloat32).device(A.device()));
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    matmul_tiled_kernel<<<grid, block>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
""",
    ["matmul_cuda"],
)

_add(
    "layernorm_dispatch",
    "torch::Tensor layernorm_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps);",
    r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <typename T>
__inline__ __device__ T warp_reduce_sum(T val) {
    for (int offset = 16; offset > 0; offset /= 2) val += __shfl_down_sync(0xffffffff, val, offset);
    return val;
}

template <typename scalar_t>
__global__ void layernorm_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ w,
                                 const scalar_t* __restrict__ b, scalar_t* __restrict__ y, int N, float eps) {
    __shared__ float s_sum[32], s_sq[32];
    int row = blockIdx.x;
    x += (int64_t)row * N;
    y += (int64_t)row * N;
    float sum = 0.f, sq = 0.f;
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        float v = static_cast<float>(x[i]);
        sum += v;
        sq += v * v;
    }
    sum = warp_reduce_sum(sum);
    sq = warp_reduce_sum(sq);
    int lane = threadIdx.x & 31, wid = threadIdx.x >> 5;
    if (lane == 0) { s_sum[wid] = sum; s_sq[wid] = sq; }
    __syncthreads();
    if (wid == 0) {
        sum = lane < (blockDim.x >> 5) ? s_sum[lane] : 0.f;
        sq = lane < (blockDim.x >> 5) ? s_sq[lane] : 0.f;
        sum = warp_reduce_sum(sum);
        sq = warp_reduce_sum(sq);
        if (lane == 0) { s_sum[0] = sum / N; s_sq[0] = rsqrtf(sq / N - (sum / N) * (sum / N) + eps); }
    }
    __syncthreads();
    float mean = s_sum[0], rstd = s_sq[0];
    for (int i = threadIdx.x; i < N; i += blockDim.x)
        y[i] = static_cast<scalar_t>((static_cast<float>(x[i]) - mean) * rstd * static_cast<float>(w[i]) + static_cast<float>(b[i]));
}

torch::Tensor layernorm_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
    const at::cuda::OptionalCUDAGuard device_guard(device_of(x));
    x = x.contiguous();
    auto y = torch::empty_like(x);
    int N = weight.numel();
    int rows = x.numel() / N;
    auto stream = at::cuda::getCurrentCUDAStream();
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "layernorm_forward", ([&] {
        layernorm_kernel<scalar_t><<<rows, 256, 0, stream>>>(
            x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), N, (float)eps);
    }));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
""",
    ["layernorm_forward"],
)

_add(
    "conv2d_naive",
    "torch::Tensor conv2d_forward(torch::Tensor input, torch::Tensor weight, c10::optional<torch::Tensor> bias, int stride, int padding);",
    r"""
#include <torch/extension.h>
#include <vector>

__global__ void conv2d_kernel(const float* __restrict__ in, const float* __restrict__ w, const float* __restrict__ b,
                              float* __restrict__ out, int B, int C, int H, int W, int OC, int KH, int KW,
                              int OH, int OW, int stride, int pad) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    int total = B * OC * OH * OW;
    if (idx >= total) return;
    int ow = idx % OW;
    int oh = (idx / OW) % OH;
    int oc = (idx / (OW * OH)) % OC;
    int n = idx / (OW * OH * OC);
    float acc = b ? b[oc] : 0.0f;
    for (int c = 0; c < C; ++c)
        for (int kh = 0; kh < KH; ++kh)
            for (int kw = 0; kw < KW; ++kw) {
                int ih = oh * stride - pad + kh;
                int iw = ow * stride - pad + kw;
                if (ih >= 0 && ih < H && iw >= 0 && iw < W)
                    acc += in[((n * C + c) * H + ih) * W + iw] * w[((oc * C + c) * KH + kh) * KW + kw];
            }
    out[idx] = acc;
}

torch::Tensor conv2d_forward(torch::Tensor input, torch::Tensor weight, c10::optional<torch::Tensor> bias, int stride, int padding) {
    auto B = input.size(0), C = input.size(1), H = input.size(2), W = input.size(3);
    auto OC = weight.size(0), KH = weight.size(2), KW = weight.size(3);
    int OH = (H + 2 * padding - KH) / stride + 1;
    int OW = (W + 2 * padding - KW) / stride + 1;
    auto out = torch::empty({B, OC, OH, OW}, input.options());
    int total = out.numel();
    const float* bias_ptr = bias.has_value() ? bias.value().data_ptr<float>() : nullptr;
    conv2d_kernel<<<(total + 255) / 256, 256>>>(input.data_ptr<float>(), weight.data_ptr<float>(), bias_ptr,
        out.data_ptr<float>(), B, C, H, W, OC, KH, KW, OH, OW, stride, padding);
    return out;
}
""",
    ["conv2d_forward"],
)

_add(
    "reduce_warp",
    "torch::Tensor sum_reduce(torch::Tensor x, int64_t dim);",
    r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__inline__ __device__ float warpReduceSum(float val) {
#pragma unroll
    for (int mask = warpSize / 2; mask > 0; mask >>= 1) val += __shfl_xor_sync(0xffffffff, val, mask, 32);
    return val;
}

__inline__ __device__ float blockReduceSum(float val) {
    static __shared__ float shared[32];
    int lane = threadIdx.x % warpSize;
    int wid = threadIdx.x / warpSize;
    val = warpReduceSum(val);
    if (lane == 0) shared[wid] = val;
    __syncthreads();
    val = (threadIdx.x < blockDim.x / warpSize) ? shared[lane] : 0;
    if (wid == 0) val = warpReduceSum(val);
    return val;
}

__global__ void sum_kernel(const float* x, float* out, int outer, int reduce, int inner) {
    int o = blockIdx.x / inner;
    int i = blockIdx.x % inner;
    float acc = 0;
    for (int r = threadIdx.x; r < reduce; r += blockDim.x) acc += x[(o * reduce + r) * inner + i];
    acc = blockReduceSum(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = acc;
}

torch::Tensor sum_reduce(torch::Tensor x, int64_t dim) {
    auto sizes = x.sizes().vec();
    int outer = 1, inner = 1;
    for (int i = 0; i < dim; i++) outer *= sizes[i];
    for (size_t i = dim + 1; i < sizes.size(); i++) inner *= sizes[i];
    int reduce = sizes[dim];
    sizes[dim] = 1;
    auto out = torch::empty(sizes, x.options());
    sum_kernel<<<outer * inner, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), outer, reduce, inner);
    return out;
}
""",
    ["sum_reduce"],
)

_add(
    "pybind_style",
    "",
    r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

template <typename scalar_t>
__global__ void leaky_relu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, scalar_t slope, size_t n) {
    const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i < n) y[i] = x[i] > scalar_t(0) ? x[i] : slope * x[i];
}

torch::Tensor forward(torch::Tensor x, float negative_slope) {
    auto out = torch::empty_like(x);
    const size_t n = x.numel();
    AT_DISPATCH_FLOATING_TYPES(x.type(), "leaky_relu", ([&] {
        leaky_relu_kernel<scalar_t><<<(n + 1023) / 1024, 1024>>>(x.data<scalar_t>(), out.data<scalar_t>(), negative_slope, n);
    }));
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward, "Leaky ReLU forward (CUDA)", py::arg("x"), py::arg("negative_slope") = 0.01);
}
""",
)

_add(
    "packed_accessor",
    "std::vector<torch::Tensor> lltm_cuda_forward(torch::Tensor gates, torch::Tensor old_cell);",
    r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

namespace {
template <typename scalar_t>
__device__ __forceinline__ scalar_t sigmoid(scalar_t z) { return 1.0 / (1.0 + exp(-z)); }
template <typename scalar_t>
__device__ __forceinline__ scalar_t elu(scalar_t z, scalar_t alpha = 1.0) {
  return fmaxf(0.0, z) + fminf(0.0, alpha * (exp(z) - 1.0));
}

template <typename scalar_t>
__global__ void lltm_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> gates,
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> old_cell,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> new_h,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> new_cell) {
  const int n = blockIdx.y;
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < gates.size(2)) {
    const auto input_gate = sigmoid(gates[n][0][c]);
    const auto output_gate = sigmoid(gates[n][1][c]);
    const auto candidate = elu(gates[n][2][c]);
    new_cell[n][c] = old_cell[n][c] + candidate * input_gate;
    new_h[n][c] = tanh(new_cell[n][c]) * output_gate;
  }
}
}  // namespace

std::vector<torch::Tensor> lltm_cuda_forward(torch::Tensor gates, torch::Tensor old_cell) {
  auto new_h = torch::zeros_like(old_cell);
  auto new_cell = torch::zeros_like(old_cell);
  const auto batch_size = old_cell.size(0);
  const auto state_size = old_cell.size(1);
  const int threads = 1024;
  const dim3 blocks((state_size + threads - 1) / threads, batch_size);
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "lltm_forward_cuda", ([&] {
    lltm_kernel<scalar_t><<<blocks, threads>>>(
        gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
        old_cell.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        new_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        new_cell.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  return {new_h, new_cell};
}
""",
    ["lltm_cuda_forward"],
)

_add(
    "float4_gelu",
    "torch::Tensor gelu(torch::Tensor x);",
    r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <math_constants.h>

__device__ __forceinline__ float gelu_f(float x) {
    const float k = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(k * (x + 0.044715f * x * x * x)));
}

__global__ void gelu_vec4(const float4* __restrict__ in, float4* __restrict__ out, const float* tail_in, float* tail_out, int n4, int tail) {
    int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n4; i += stride) {
        float4 v = __ldg(&in[i]);
        v.x = gelu_f(v.x); v.y = gelu_f(v.y); v.z = gelu_f(v.z); v.w = gelu_f(v.w);
        out[i] = v;
    }
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < tail) tail_out[t] = gelu_f(tail_in[t]);
}

torch::Tensor gelu(torch::Tensor x) {
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "float32 only, got ", x.scalar_type());
    auto xc = x.contiguous();
    auto y = torch::empty_like(xc);
    int64_t n = xc.numel();
    int n4 = n / 4;
    int tail = n % 4;
    int blocks = std::min<int64_t>((n4 + 255) / 256 + 1, 132 * 8);
    gelu_vec4<<<blocks, 256>>>(reinterpret_cast<const float4*>(xc.data_ptr<float>()), reinterpret_cast<float4*>(y.data_ptr<float>()),
                               xc.data_ptr<float>() + n4 * 4, y.data_ptr<float>() + n4 * 4, n4, tail);
    return y.view(x.sizes());
}
""",
    ["gelu"],
    extra_cuda_cflags=["-O3", "-lineinfo", "-Xptxas", "-v"],
)

_add(
    "half_cast",
    "torch::Tensor scale_half(torch::Tensor x, double s);",
    r"""
#include <torch/extension.h>
#include <cuda_fp16.h>

__global__ void scale_kernel(const half2* __restrict__ x, half2* __restrict__ y, float s, int n2) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n2) {
        float2 f = __half22float2(x[i]);
        f.x *= s;
        f.y *= s;
        y[i] = __float22half2_rn(f);
    }
}

torch::Tensor scale_half(torch::Tensor x, double s) {
    TORCH_CHECK(x.dtype() == torch::kHalf, "half needed");
    auto y = torch::empty_like(x);
    int n2 = x.numel() / 2;
    scale_kernel<<<(n2 + 255) / 256, 256>>>(reinterpret_cast<const half2*>(x.data_ptr<at::Half>()),
                                            reinterpret_cast<half2*>(y.data_ptr<at::Half>()), (float)s, n2);
    return y;
}
""",
    ["scale_half"],
)

_add(
    "bf16_dispatch",
    "torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor w, double eps);",
    r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__global__ void rmsnorm_kernel(const scalar_t* x, const scalar_t* w, scalar_t* y, int n, float eps) {
    using acc_t = at::opmath_type<scalar_t>;
    __shared__ float buf[1024];
    const scalar_t* row = x + blockIdx.x * n;
    acc_t acc = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        acc_t v = row[i];
        acc += v * v;
    }
    buf[threadIdx.x] = acc;
    __syncthreads();
    for (int s = blockDim.x / 2; s; s >>= 1) {
        if (threadIdx.x < s) buf[threadIdx.x] += buf[threadIdx.x + s];
        __syncthreads();
    }
    float r = rsqrtf(buf[0] / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = scalar_t(row[i] * r) * w[i];
}

torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor w, double eps) {
    auto y = torch::empty_like(x);
    int n = x.size(-1);
    int rows = x.numel() / n;
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "rmsnorm", [&] {
        rmsnorm_kernel<scalar_t><<<rows, 256, 0, stream>>>(x.data_ptr<scalar_t>(), w.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n, eps);
    });
    C10_CUDA_CHECK(cudaGetLastError());
    return y;
}
""",
    ["rmsnorm"],
)

_add(
    "template_op",
    "torch::Tensor apply_op(torch::Tensor a, torch::Tensor b, std::string op);",
    r"""
#include <torch/extension.h>
#include <string>

struct AddOp { __device__ __forceinline__ float operator()(float a, float b) const { return a + b; } };
struct MulOp { __device__ __forceinline__ float operator()(float a, float b) const { return a * b; } };
struct MaxOp { __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); } };

template <typename Op, int UNROLL>
__global__ void binary_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, Op op) {
    int base = (blockIdx.x * blockDim.x + threadIdx.x) * UNROLL;
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (base + u < n) c[base + u] = op(a[base + u], b[base + u]);
}

template <typename Op>
void launch(const torch::Tensor& a, const torch::Tensor& b, torch::Tensor& c, Op op) {
    constexpr int U = 4;
    int n = a.numel();
    binary_kernel<Op, U><<<(n + 256 * U - 1) / (256 * U), 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n, op);
}

torch::Tensor apply_op(torch::Tensor a, torch::Tensor b, std::string op) {
    auto c = torch::empty_like(a);
    if (op == "add") launch(a, b, c, AddOp());
    else if (op == "mul") launch(a, b, c, MulOp());
    else if (op == "max") launch(a, b, c, MaxOp());
    else TORCH_CHECK(false, "unknown op ", op);
    return c;
}
""",
    ["apply_op"],
)

_add(
    "two_kernels_streams",
    "torch::Tensor forward(torch::Tensor x, torch::Tensor y);",
    r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

#define CUDA_CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    fprintf(stderr, "CUDA error %s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e)); exit(EXIT_FAILURE); } } while (0)

__global__ void square(const float* x, float* o, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i] = x[i] * x[i]; }
__global__ void axpy(const float* x, float* o, float a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i] += a * x[i]; }

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty(x.sizes(), x.options());
    int n = x.numel();
    cudaStream_t s1;
    cudaEvent_t done;
    CUDA_CHECK(cudaStreamCreate(&s1));
    CUDA_CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    square<<<(n + 255) / 256, 256, 0, s1>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    CUDA_CHECK(cudaEventRecord(done, s1));
    CUDA_CHECK(cudaStreamWaitEvent(0, done, 0));
    axpy<<<(n + 255) / 256, 256>>>(y.data_ptr<float>(), out.data_ptr<float>(), 2.0f, n);
    CUDA_CHECK(cudaStreamSynchronize(s1));
    CUDA_CHECK(cudaStreamDestroy(s1));
    CUDA_CHECK(cudaEventDestroy(done));
    return out;
}
""",
    ["forward"],
)

_add(
    "vector_return",
    "std::vector<at::Tensor> minmax(at::Tensor x); std::tuple<at::Tensor, at::Tensor> topone(at::Tensor x);",
    r"""
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <vector>
#include <tuple>

__global__ void minmax_kernel(const float* x, float* lo, float* hi, int64_t* where, int n) {
    int row = blockIdx.x;
    float l = INFINITY, h = -INFINITY;
    int64_t w = 0;
    for (int i = 0; i < n; i++) {
        float v = x[(int64_t)row * n + i];
        l = fminf(l, v);
        if (v > h) { h = v; w = i; }
    }
    lo[row] = l;
    hi[row] = h;
    where[row] = w;
}

static void run(const at::Tensor& x, at::Tensor& lo, at::Tensor& hi, at::Tensor& w) {
    minmax_kernel<<<x.size(0), 1, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), lo.data_ptr<float>(), hi.data_ptr<float>(), w.data_ptr<int64_t>(), x.size(1));
    AT_CUDA_CHECK(cudaGetLastError());
}

std::vector<at::Tensor> minmax(at::Tensor x) {
    auto lo = at::empty({x.size(0)}, x.options()), hi = at::empty({x.size(0)}, x.options());
    auto w = at::empty({x.size(0)}, x.options().dtype(at::kLong));
    run(x, lo, hi, w);
    return {lo, hi, w};
}

std::tuple<at::Tensor, at::Tensor> topone(at::Tensor x) {
    auto lo = at::empty({x.size(0)}, x.options()), hi = at::empty_like(lo);
    auto w = at::empty({x.size(0)}, x.options().dtype(at::kLong));
    run(x, lo, hi, w);
    return std::make_tuple(hi, w);
}
""",
    ["minmax", "topone"],
)

_add(
    "cumsum_scan",
    "torch::Tensor cumsum_cuda(torch::Tensor input, int dim);",
    r"""
#include <torch/extension.h>
#include <cub/cub.cuh>

template <int BLOCK>
__global__ void scan_kernel(const float* in, float* out, int n) {
    typedef cub::BlockScan<float, BLOCK> BlockScan;
    __shared__ typename BlockScan::TempStorage temp;
    __shared__ float carry;
    if (threadIdx.x == 0) carry = 0.f;
    __syncthreads();
    const float* x = in + (size_t)blockIdx.x * n;
    float* y = out + (size_t)blockIdx.x * n;
    for (int base = 0; base < n; base += BLOCK) {
        int i = base + threadIdx.x;
        float v = i < n ? x[i] : 0.f, total;
        BlockScan(temp).InclusiveSum(v, v, total);
        if (i < n) y[i] = v + carry;
        __syncthreads();
        if (threadIdx.x == 0) carry += total;
        __syncthreads();
    }
}

torch::Tensor cumsum_cuda(torch::Tensor input, int dim) {
    auto out = torch::empty_like(input);
    scan_kernel<256><<<input.size(0), 256>>>(input.data_ptr<float>(), out.data_ptr<float>(), input.size(1));
    return out;
}
""",
    ["cumsum_cuda"],
)

_add(
    "cpp_wrapper",
    r"""
#include <torch/extension.h>
torch::Tensor swish_cuda(torch::Tensor x);

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

torch::Tensor swish(torch::Tensor x) {
    CHECK_CUDA(x);
    CHECK_CONTIGUOUS(x);
    return swish_cuda(x);
}
""",
    r"""
#include <torch/extension.h>
__global__ void swish_kernel(const float* x, float* y, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float v = x[i]; y[i] = v / (1.f + expf(-v)); }
}
torch::Tensor swish_cuda(torch::Tensor x) {
    auto y = at::empty_like(x);
    int64_t n = x.numel();
    dim3 grid((unsigned int)((n + 511) / 512));
    swish_kernel<<<grid, 512>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
""",
    ["swish"],
)

_add(
    "maxpool_template_half",
    "torch::Tensor maxpool2d(torch::Tensor x, int k, int s, int p, int d);",
    r"""
#include <torch/extension.h>
#include <limits>

template <typename scalar_t>
__global__ void maxpool_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int N, int C, int H, int W,
                               int OH, int OW, int k, int s, int p, int d) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * C * OH * OW) return;
    int ow = i % OW, oh = (i / OW) % OH, nc = i / (OW * OH);
    scalar_t best = -std::numeric_limits<scalar_t>::infinity();
    for (int a = 0; a < k; a++)
        for (int b = 0; b < k; b++) {
            int h = oh * s - p + a * d, w = ow * s - p + b * d;
            if (h >= 0 && h < H && w >= 0 && w < W) {
                scalar_t v = x[(nc * H + h) * W + w];
                if (v > best) best = v;
            }
        }
    y[i] = best;
}

torch::Tensor maxpool2d(torch::Tensor x, int k, int s, int p, int d) {
    const int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const int OH = (H + 2 * p - d * (k - 1) - 1) / s + 1, OW = (W + 2 * p - d * (k - 1) - 1) / s + 1;
    auto y = torch::empty({N, C, OH, OW}, x.options());
    int total = y.numel();
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "maxpool2d", ([&] {
        maxpool_kernel<scalar_t><<<(total + 255) / 256, 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), N, C, H, W, OH, OW, k, s, p, d);
    }));
    return y;
}
""",
    ["maxpool2d"],
)

_add(
    "atomic_bincount",
    "torch::Tensor histogram(torch::Tensor idx, int64_t bins);",
    r"""
#include <torch/extension.h>
__global__ void hist_kernel(const int64_t* idx, int* counts, int64_t n, int64_t bins) {
    extern __shared__ int local[];
    for (int i = threadIdx.x; i < bins; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        if (idx[i] >= 0 && idx[i] < bins) atomicAdd(&local[idx[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < bins; i += blockDim.x) atomicAdd(&counts[i], local[i]);
}
torch::Tensor histogram(torch::Tensor idx, int64_t bins) {
    auto counts = torch::zeros({bins}, torch::dtype(torch::kInt32).device(idx.device()));
    hist_kernel<<<64, 256, bins * sizeof(int)>>>(idx.data_ptr<int64_t>(), counts.data_ptr<int>(), idx.numel(), bins);
    return counts;
}
""",
    ["histogram"],
)

_add(
    "wmma_gemm",
    "torch::Tensor gemm(torch::Tensor a, torch::Tensor b);",
    r"""
#include <torch/extension.h>
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

__global__ void to_half(const float* x, half* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __float2half(x[i]);
}
__global__ void gemm_kernel(const half* A, const half* B, float* C, int M, int N, int K) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    int m = blockIdx.y * 16, n = blockIdx.x * 16;
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(fa, A + m * K + k, K);
        wmma::load_matrix_sync(fb, B + k * N + n, N);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(C + m * N + n, fc, N, wmma::mem_row_major);
}
torch::Tensor gemm(torch::Tensor a, torch::Tensor b) {
    int M = a.size(0), K = a.size(1), N = b.size(1);
    auto ha = torch::empty({M, K}, a.options().dtype(torch::kFloat16));
    auto hb = torch::empty({K, N}, a.options().dtype(torch::kFloat16));
    auto c = torch::empty({M, N}, a.options());
    to_half<<<(M * K + 255) / 256, 256>>>(a.data_ptr<float>(), reinterpret_cast<half*>(ha.data_ptr<at::Half>()), M * K);
    to_half<<<(N * K + 255) / 256, 256>>>(b.data_ptr<float>(), reinterpret_cast<half*>(hb.data_ptr<at::Half>()), N * K);
    gemm_kernel<<<dim3(N / 16, M / 16), 32>>>(reinterpret_cast<half*>(ha.data_ptr<at::Half>()), reinterpret_cast<half*>(hb.data_ptr<at::Half>()),
                                              c.data_ptr<float>(), M, N, K);
    return c;
}
""",
    ["gemm"],
)

_add(
    "cooperative_groups",
    "torch::Tensor l2norm(torch::Tensor x);",
    r"""
#include <torch/extension.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__global__ void l2norm_kernel(const float* x, float* y, int n) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    float acc = 0.f;
    for (int i = warp.thread_rank(); i < n; i += warp.size()) acc += x[row * n + i] * x[row * n + i];
    acc = cg::reduce(warp, acc, cg::plus<float>());
    float r = rsqrtf(acc);
    for (int i = warp.thread_rank(); i < n; i += warp.size()) y[row * n + i] = x[row * n + i] * r;
}
torch::Tensor l2norm(torch::Tensor x) {
    auto y = torch::empty_like(x);
    l2norm_kernel<<<x.size(0) / 4, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
""",
    ["l2norm"],
)

_add(
    "cp_async_ptx",
    "torch::Tensor copy_async(torch::Tensor x);",
    r"""
#include <torch/extension.h>
#include <cstdint>

__device__ __forceinline__ void cp_async16(void* smem, const void* gmem) {
    uint32_t s = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(s), "l"(gmem));
}
__global__ void __launch_bounds__(128) copy_kernel(const float4* x, float4* y, int n4) {
    __shared__ float4 buf[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n4) cp_async16(&buf[threadIdx.x], x + i);
    asm volatile("cp.async.commit_group;\n" "cp.async.wait_group %0;\n" ::"n"(0));
    __syncthreads();
    if (i < n4) y[i] = buf[threadIdx.x];
}
torch::Tensor copy_async(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n4 = x.numel() / 4;
    copy_kernel<<<(n4 + 127) / 128, 128>>>((const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), n4);
    return y;
}
""",
    ["copy_async"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_80,code=sm_80", "-std=c++17"],
)

_add(
    "dynamic_smem_attribute",
    "torch::Tensor transpose(torch::Tensor x);",
    r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <algorithm>

template <int T>
__global__ void transpose_kernel(const float* __restrict__ x, float* __restrict__ y, int R, int C) {
    extern __shared__ float tile[];
    int c = blockIdx.x * T + threadIdx.x, r = blockIdx.y * T + threadIdx.y;
    for (int j = 0; j < T; j += 8)
        if (c < C && r + j < R) tile[(threadIdx.y + j) * (T + 1) + threadIdx.x] = x[(size_t)(r + j) * C + c];
    __syncthreads();
    c = blockIdx.y * T + threadIdx.x;
    r = blockIdx.x * T + threadIdx.y;
    for (int j = 0; j < T; j += 8)
        if (c < R && r + j < C) y[(size_t)(r + j) * R + c] = tile[threadIdx.x * (T + 1) + threadIdx.y + j];
}
torch::Tensor transpose(torch::Tensor x) {
    int64_t R = x.size(0), C = x.size(1);
    auto y = torch::empty({C, R}, x.options());
    constexpr int T = 32;
    size_t smem = T * (T + 1) * sizeof(float);
    int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    TORCH_CHECK(sms > 0);
    cudaFuncSetAttribute(transpose_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    dim3 grid((C + T - 1) / T, std::max<int64_t>((R + T - 1) / T, 1));
    transpose_kernel<T><<<grid, dim3(T, 8), smem, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), R, C);
    return y;
}
""",
    ["transpose"],
)

_add(
    "inplace_void",
    "void add_bias_(torch::Tensor& x, const torch::Tensor& bias);",
    r"""
#include <torch/extension.h>
__global__ void bias_kernel(float* x, const float* b, int n, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += b[i % c];
}
void add_bias_(torch::Tensor& x, const torch::Tensor& bias) {
    int n = x.numel();
    bias_kernel<<<(n + 255) / 256, 256>>>(x.mutable_data_ptr<float>(), bias.const_data_ptr<float>(), n, bias.numel());
}
""",
    ["add_bias_"],
)

_add(
    "grid_stride_macros",
    "at::Tensor hardtanh(const at::Tensor& input, float lo, float hi);",
    r"""
#include <torch/types.h>
#include <cuda_runtime.h>
#define CUDA_1D_KERNEL_LOOP(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
constexpr int kThreads = 512;
inline int GET_BLOCKS(const int N) { return (N + kThreads - 1) / kThreads; }

template <typename T>
__global__ void hardtanh_kernel(const int n, const T* in, T* out, const T lo, const T hi) {
    CUDA_1D_KERNEL_LOOP(i, n) { out[i] = in[i] < lo ? lo : (in[i] > hi ? hi : in[i]); }
}
at::Tensor hardtanh(const at::Tensor& input, float lo, float hi) {
    at::Tensor output = at::zeros_like(input);
    AT_DISPATCH_ALL_TYPES(input.scalar_type(), "hardtanh", [&] {
        hardtanh_kernel<scalar_t><<<GET_BLOCKS(input.numel()), kThreads>>>(
            static_cast<int>(input.numel()), input.data_ptr<scalar_t>(), output.data_ptr<scalar_t>(), static_cast<scalar_t>(lo), static_cast<scalar_t>(hi));
    });
    return output;
}
""",
    ["hardtanh"],
)

_add(
    "attention_fused",
    "torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal);",
    r"""
#include <torch/extension.h>
#include <cmath>
#include <tuple>

template <int D>
__global__ void attention_kernel(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
                                 float* __restrict__ O, int T, float scale, bool causal) {
    const int bh = blockIdx.y, t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= T) return;
    const size_t base = (size_t)bh * T * D;
    float q[D], acc[D];
#pragma unroll
    for (int d = 0; d < D; d++) { q[d] = Q[base + (size_t)t * D + d] * scale; acc[d] = 0.f; }
    float m = -INFINITY, l = 0.f;
    const int last = causal ? t + 1 : T;
    for (int j = 0; j < last; j++) {
        float s = 0.f;
#pragma unroll
        for (int d = 0; d < D; d++) s = fmaf(q[d], K[base + (size_t)j * D + d], s);
        float m2 = fmaxf(m, s), c = __expf(m - m2), p = __expf(s - m2);
        l = l * c + p;
#pragma unroll
        for (int d = 0; d < D; d++) acc[d] = acc[d] * c + p * V[base + (size_t)j * D + d];
        m = m2;
    }
#pragma unroll
    for (int d = 0; d < D; d++) O[base + (size_t)t * D + d] = acc[d] / l;
}

torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal) {
    TORCH_CHECK(q.sizes() == k.sizes() && k.sizes() == v.sizes(), "shapes differ: ", q.sizes(), " ", k.sizes());
    const int B = q.size(0), H = q.size(1), T = q.size(2), D = q.size(3);
    auto o = torch::empty_like(q);
    float scale = 1.0f / std::sqrt(static_cast<float>(D));
    dim3 grid((T + 127) / 128, B * H);
    switch (D) {
        case 32: attention_kernel<32><<<grid, 128>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), o.data_ptr<float>(), T, scale, causal); break;
        case 64: attention_kernel<64><<<grid, 128>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), o.data_ptr<float>(), T, scale, causal); break;
        default: throw std::runtime_error("unsupported head size");
    }
    return o;
}
""",
    ["attention"],
)

_add(
    "batchnorm_stats",
    "std::vector<torch::Tensor> bn_train(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, torch::Tensor rm, torch::Tensor rv, double momentum, double eps);",
    r"""
#include <torch/extension.h>
__global__ void stats(const float* x, float* mean, float* var, int N, int C, int S) {
    __shared__ double s1[256], s2[256];
    int c = blockIdx.x;
    double a = 0, b = 0;
    for (int i = threadIdx.x; i < N * S; i += blockDim.x) {
        double v = x[(i / S) * C * S + c * S + i % S];
        a += v; b += v * v;
    }
    s1[threadIdx.x] = a; s2[threadIdx.x] = b;
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (threadIdx.x < k) { s1[threadIdx.x] += s1[threadIdx.x + k]; s2[threadIdx.x] += s2[threadIdx.x + k]; }
        __syncthreads();
    }
    if (threadIdx.x == 0) { double m = s1[0] / (N * S); mean[c] = m; var[c] = s2[0] / (N * S) - m * m; }
}
__global__ void norm(const float* x, float* y, const float* mean, const float* var, const float* g, const float* b, int C, int S, int n, float eps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int c = (i / S) % C;
    y[i] = (x[i] - mean[c]) * rsqrtf(var[c] + eps) * g[c] + b[c];
}
__global__ void running(float* r, const float* v, float m, float f, int n) { int i = threadIdx.x + blockIdx.x * blockDim.x; if (i < n) r[i] = (1 - m) * r[i] + m * v[i] * f; }

std::vector<torch::Tensor> bn_train(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, torch::Tensor rm, torch::Tensor rv, double momentum, double eps) {
    auto y = torch::empty_like(x);
    int N = x.size(0), C = x.size(1), S = x.numel() / (N * C), n = x.numel();
    auto mean = torch::empty({C}, x.options()), var = torch::empty({C}, x.options());
    stats<<<C, 256>>>(x.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(), N, C, S);
    norm<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(), C, S, n, eps);
    running<<<(C + 255) / 256, 256>>>(rm.data_ptr<float>(), mean.data_ptr<float>(), momentum, 1.0f, C);
    running<<<(C + 255) / 256, 256>>>(rv.data_ptr<float>(), var.data_ptr<float>(), momentum, (float)(N * S) / (N * S - 1), C);
    return {y, mean, var};
}
""",
    ["bn_train"],
)

_add(
    "workspace_static",
    "torch::Tensor splitk(torch::Tensor a, torch::Tensor b);",
    r"""
#include <torch/extension.h>
#include <unordered_map>
#include <mutex>

__global__ void partial(const float* a, const float* b, float* w, int K, int splits) {
    int s = blockIdx.x, per = (K + splits - 1) / splits;
    __shared__ float buf[256];
    float acc = 0;
    for (int k = s * per + threadIdx.x; k < min(K, (s + 1) * per); k += blockDim.x) acc += a[k] * b[k];
    buf[threadIdx.x] = acc;
    __syncthreads();
    for (int h = 128; h; h >>= 1) { if (threadIdx.x < h) buf[threadIdx.x] += buf[threadIdx.x + h]; __syncthreads(); }
    if (!threadIdx.x) w[s] = buf[0];
}
__global__ void finish(const float* w, float* out, int splits) {
    float acc = 0;
    for (int i = 0; i < splits; i++) acc += w[i];
    *out = acc;
}
static std::unordered_map<int64_t, torch::Tensor> cache;
static std::mutex guard;
torch::Tensor splitk(torch::Tensor a, torch::Tensor b) {
    const int splits = 64;
    std::lock_guard<std::mutex> lock(guard);
    auto it = cache.find(splits);
    if (it == cache.end()) it = cache.emplace(splits, torch::empty({splits}, a.options())).first;
    auto out = torch::empty({}, a.options());
    partial<<<splits, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), it->second.data_ptr<float>(), a.numel(), splits);
    finish<<<1, 1>>>(it->second.data_ptr<float>(), out.data_ptr<float>(), splits);
    return out;
}
""",
    ["splitk"],
)

_add(
    "torch_atomics",
    "torch::Tensor scatter_sum(torch::Tensor src, torch::Tensor index, int64_t n);",
    r"""
#include <torch/extension.h>
#include <ATen/cuda/Atomic.cuh>

template <typename scalar_t>
__global__ void scatter_kernel(const scalar_t* src, const int64_t* index, scalar_t* out, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) gpuAtomicAdd(out + index[i], src[i]);
}
torch::Tensor scatter_sum(torch::Tensor src, torch::Tensor index, int64_t n) {
    auto out = torch::zeros({n}, src.options());
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(src.scalar_type(), "scatter_sum", [&] {
        scatter_kernel<scalar_t><<<(src.numel() + 255) / 256, 256>>>(src.data_ptr<scalar_t>(), index.data_ptr<int64_t>(), out.data_ptr<scalar_t>(), src.numel());
    });
    return out;
}
""",
    ["scatter_sum"],
)

_add(
    "channels_last",
    "torch::Tensor upsample(torch::Tensor x);",
    r"""
#include <torch/extension.h>
__global__ void up_kernel(const float* x, float* y, int n, int c, int h, int w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int ch = i % c, ow = (i / c) % (2 * w), oh = (i / c / (2 * w)) % (2 * h), b = i / c / (4 * w * h);
    y[i] = x[((b * h + oh / 2) * w + ow / 2) * c + ch];
}
torch::Tensor upsample(torch::Tensor x) {
    auto xc = x.contiguous(at::MemoryFormat::ChannelsLast);
    auto y = torch::empty({x.size(0), x.size(1), x.size(2) * 2, x.size(3) * 2}, x.options().memory_format(at::MemoryFormat::ChannelsLast));
    int n = y.numel();
    up_kernel<<<(n + 255) / 256, 256>>>(xc.data_ptr<float>(), y.data_ptr<float>(), n, x.size(1), x.size(2), x.size(3));
    return y;
}
""",
    ["upsample"],
)


_add(
    "aten_slice",
    "torch::Tensor shift(torch::Tensor x, const at::Scalar& fill);",
    r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void shift_kernel(const float* x, float* y, float fill, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = i ? x[i - 1] : fill;
}
torch::Tensor shift(torch::Tensor x, const at::Scalar& fill) {
    c10::cuda::CUDAGuard guard(x.device());
    auto flat = x.contiguous().view({-1}).slice(0, 0, x.numel());
    auto y = torch::empty_like(flat);
    int n = flat.numel();
    shift_kernel<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(flat.data_ptr<float>(), y.data_ptr<float>(), fill.to<float>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y.view(x.sizes());
}
torch::Tensor shift_zero(torch::Tensor x) { return shift(x, 0.0); }
""",
    ["shift_zero"],
)
CANDIDATES["aten_slice"]["cpp_sources"] = "torch::Tensor shift_zero(torch::Tensor x);"

_add(
    "full_indexing",
    "torch::Tensor first_rows(torch::Tensor x, int64_t n);",
    r"""
#include <torch/extension.h>
__global__ void copy_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
torch::Tensor first_rows(torch::Tensor x, int64_t n) {
    torch::indexing::Slice rows(0, n);
    auto y = torch::empty({n, x.size(1)}, x.options());
    int total = y.numel();
    copy_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), total);
    return y;
}
""",
    ["first_rows"],
)


def main() -> None:
    """Build all candidates, or those named after the cache folder, and print what each took."""
    import os
    import sys
    import tempfile
    import time
    from pathlib import Path

    from kernelzero.keck.build import Builder, Built, parse_request

    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
        for name in sys.argv[2:] or CANDIDATES:
            start, before = time.perf_counter(), os.times()
            made = builder.build(parse_request("load_inline", (), CANDIDATES[name]))
            seconds, after = time.perf_counter() - start, os.times()
            cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
            found = f"{len(made.kernels)} kernels" if isinstance(made, Built) else f"{made.status.value}: {made.reason}"
            print(f"{name:24s} {made.rung:5s} {seconds:6.2f} s {cpu_s:6.2f} cpu s  {found}", flush=True)


if __name__ == "__main__":
    main()
