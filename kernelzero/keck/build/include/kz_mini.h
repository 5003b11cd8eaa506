// A thin stand-in for torch's C++ headers: what kernels need to reach their tensors, nothing that computes.
//
// It is many times faster to compile than torch's own headers. What is missing is a compile error, and the candidate is
// then built with torch's headers. Metadata comes from torch's C interface, everything that allocates, copies or makes
// a view is carried out by torch's Python interface, so that whatever watches operators there sees it.
#pragma once
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include "kz_std.h"
#ifdef KZ_HALF
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
#include "kz_protocol.h"

#ifdef __CUDACC__
#define C10_HOST __host__
#define C10_DEVICE __device__
#define C10_HOST_DEVICE __host__ __device__
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define CUDA_KERNEL_ASSERT(condition) assert(condition)
#define CUDA_KERNEL_LOOP(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define C10_WARP_SIZE 32
#else
#define C10_HOST
#define C10_DEVICE
#define C10_HOST_DEVICE
#endif
#define C10_RESTRICT __restrict__
#define C10_API
#define C10_ALWAYS_INLINE inline __attribute__((always_inline))
#define C10_LIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 1))
#define C10_UNLIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 0))

namespace c10 {

// --- errors

class Error : public std::exception {
 public:
  explicit Error(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const char* what_without_backtrace() const noexcept { return text_.c_str(); }

 private:
  std::string text_;
};

// --- dtypes

// The numbers are torch's own. Only types that kernels are written for.
#define KZ_PLAIN_TYPES(_)    \
  _(uint8_t, Byte, 0)        \
  _(int8_t, Char, 1)         \
  _(int16_t, Short, 2)       \
  _(int32_t, Int, 3)         \
  _(int64_t, Long, 4)        \
  _(float, Float, 6)         \
  _(double, Double, 7)       \
  _(bool, Bool, 11)

enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7,
  ComplexHalf = 8, ComplexFloat = 9, ComplexDouble = 10, Bool = 11, BFloat16 = 15,
  Float8_e5m2 = 23, Float8_e4m3fn = 24, Undefined = 127
};

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short,
                     kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half,
                     kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool,
                     kBFloat16 = ScalarType::BFloat16, kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort,
                     kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble,
                     kU8 = kByte, kI8 = kChar, kI16 = kShort, kI32 = kInt, kI64 = kLong, kF16 = kHalf,
                     kF32 = kFloat, kF64 = kDouble, kComplexFloat = ScalarType::ComplexFloat,
                     kComplexDouble = ScalarType::ComplexDouble;

inline const char* toString(ScalarType type) {
  switch (type) {
#define KZ_NAME(t, name, number) case ScalarType::name: return #name;
    KZ_PLAIN_TYPES(KZ_NAME)
#undef KZ_NAME
    case ScalarType::Half: return "Half";
    case ScalarType::BFloat16: return "BFloat16";
    case ScalarType::ComplexHalf: return "ComplexHalf";
    case ScalarType::ComplexFloat: return "ComplexFloat";
    case ScalarType::ComplexDouble: return "ComplexDouble";
    case ScalarType::Float8_e5m2: return "Float8_e5m2";
    case ScalarType::Float8_e4m3fn: return "Float8_e4m3fn";
    default: return "UNKNOWN_SCALAR";
  }
}

inline int64_t elementSize(ScalarType type) {
  switch (type) {
#define KZ_SIZE(t, name, number) case ScalarType::name: return sizeof(t);
    KZ_PLAIN_TYPES(KZ_SIZE)
#undef KZ_SIZE
    case ScalarType::Half: case ScalarType::BFloat16: return 2;
    case ScalarType::ComplexHalf: return 4;
    case ScalarType::ComplexFloat: return 8;
    case ScalarType::ComplexDouble: return 16;
    case ScalarType::Float8_e5m2: case ScalarType::Float8_e4m3fn: return 1;
    default: throw Error("the size of this dtype is not known");
  }
}

inline bool isFloatingType(ScalarType t) {
  return t == kFloat || t == kDouble || t == kHalf || t == kBFloat16 || t == ScalarType::Float8_e5m2 ||
         t == ScalarType::Float8_e4m3fn;
}
inline bool isIntegralType(ScalarType t, bool with_bool = false) {
  return t == kByte || t == kChar || t == kShort || t == kInt || t == kLong || (with_bool && t == kBool);
}
inline bool isReducedFloatingType(ScalarType t) { return isFloatingType(t) && elementSize(t) < 4; }

}  // namespace c10

#include "kz_half.h"

namespace c10 {

template <class T>
struct CppTypeToScalarType;
#define KZ_TYPE(t, name, number)                                                   \
  template <>                                                                      \
  struct CppTypeToScalarType<t> {                                                  \
    static constexpr ScalarType value = ScalarType::name;                          \
  };
KZ_PLAIN_TYPES(KZ_TYPE)
#ifdef KZ_HALF
KZ_TYPE(Half, Half, 5)
KZ_TYPE(BFloat16, BFloat16, 15)
#endif
#undef KZ_TYPE

// The arithmetic type for elements of type T.
template <class T>
struct OpMathType { using type = T; };
template <class T, bool is_cuda = true>
struct AccumulateType {
  using type = std::conditional_t<std::is_integral_v<T>, std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>,
                                  std::conditional_t<is_cuda && !std::is_same_v<T, double>, float, double>>;
};
#ifdef KZ_HALF
template <>
struct OpMathType<Half> { using type = float; };
template <>
struct OpMathType<BFloat16> { using type = float; };
#endif

// What Tensor::dtype() returns.
class TypeMeta {
 public:
  TypeMeta(ScalarType type) : type_(type) {}
  ScalarType toScalarType() const { return type_; }
  ScalarType scalarType() const { return type_; }
  operator ScalarType() const { return type_; }
  size_t itemsize() const { return static_cast<size_t>(elementSize(type_)); }
  std::string name() const { return toString(type_); }
  template <class T>
  static TypeMeta Make() { return CppTypeToScalarType<T>::value; }
  friend bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
  friend bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }
  friend bool operator==(TypeMeta a, ScalarType b) { return a.type_ == b; }
  friend bool operator!=(TypeMeta a, ScalarType b) { return a.type_ != b; }
  friend bool operator==(ScalarType a, TypeMeta b) { return a == b.type_; }
  friend bool operator!=(ScalarType a, TypeMeta b) { return a != b.type_; }

 private:
  ScalarType type_;
};
inline ScalarType typeMetaToScalarType(TypeMeta type) { return type.toScalarType(); }

// --- devices

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
using DeviceIndex = int8_t;

class Device {
 public:
  Device(DeviceType type, int index = -1) : type_(type), index_(static_cast<DeviceIndex>(index)) {}
  Device(const std::string& text)
      : type_(text.rfind("cuda", 0) == 0 ? DeviceType::CUDA : DeviceType::CPU), index_(-1) {
    size_t colon = text.find(':');
    if (colon != std::string::npos) index_ = static_cast<DeviceIndex>(std::atoi(text.c_str() + colon + 1));
  }
  Device(const char* text) : Device(std::string(text)) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ >= 0; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  std::string str() const {
    return std::string(is_cuda() ? "cuda" : "cpu") + (has_index() ? ":" + std::to_string(int(index_)) : "");
  }
  friend bool operator==(const Device& a, const Device& b) { return a.type_ == b.type_ && a.index_ == b.index_; }
  friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

// --- arrays that are only looked at

template <class T>
class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;
  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(static_cast<size_t>(end - begin)) {}
  ArrayRef(const std::vector<T>& values) : data_(values.data()), size_(values.size()) {}
  constexpr ArrayRef(const std::initializer_list<T>& values) : data_(values.begin()), size_(values.size()) {}
  template <size_t N>
  constexpr ArrayRef(const T (&values)[N]) : data_(values), size_(N) {}
  template <class C, class = decltype(std::tuple_size<C>::value),
            class = std::enable_if_t<std::is_same_v<typename C::value_type, T>>>
  constexpr ArrayRef(const C& values) : data_(values.data()), size_(values.size()) {}
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr iterator begin() const { return data_; }
  constexpr iterator end() const { return data_ + size_; }
  constexpr const T& front() const { return data_[0]; }
  constexpr const T& back() const { return data_[size_ - 1]; }
  constexpr const T& operator[](size_t i) const { return data_[i]; }
  const T& at(size_t i) const {
    if (i >= size_) throw Error("ArrayRef: invalid index");
    return data_[i];
  }
  ArrayRef slice(size_t from, size_t count) const { return ArrayRef(data_ + from, count); }
  ArrayRef slice(size_t from) const { return ArrayRef(data_ + from, size_ - from); }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef other) const {
    if (size_ != other.size_) return false;
    for (size_t i = 0; i < size_; i++)
      if (!(data_[i] == other.data_[i])) return false;
    return true;
  }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};
template <class T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <class T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <class T>
bool operator==(ArrayRef<T> a, const std::vector<T>& b) { return a.equals(b); }
template <class T>
bool operator!=(ArrayRef<T> a, const std::vector<T>& b) { return !a.equals(b); }
template <class T>
bool operator==(const std::vector<T>& a, ArrayRef<T> b) { return b.equals(a); }
using IntArrayRef = ArrayRef<int64_t>;

using std::make_optional;
using std::nullopt;
using std::nullopt_t;
using std::optional;

// --- options of a new tensor

enum class Layout : int8_t { Strided = 0 };
constexpr Layout kStrided = Layout::Strided;
enum class MemoryFormat : int8_t { Contiguous = 0, Preserve = 1, ChannelsLast = 2, ChannelsLast3d = 3 };

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(TypeMeta type) : dtype_(type.toScalarType()) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType type) : device_(Device(type)) {}
  TensorOptions dtype(ScalarType type) const {
    TensorOptions result = *this;
    result.dtype_ = type;
    return result;
  }
  TensorOptions dtype(TypeMeta type) const { return dtype(type.toScalarType()); }
  template <class T>
  TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); }
  TensorOptions device(Device device) const {
    TensorOptions result = *this;
    result.device_ = device;
    return result;
  }
  TensorOptions device(DeviceType type, int index = -1) const { return device(Device(type, index)); }
  TensorOptions device_index(int index) const { return device(Device(kCUDA, index)); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions memory_format(std::optional<MemoryFormat> format) const {
    TensorOptions result = *this;
    if (format) result.format_ = format;
    return result;
  }
  // No gradients flow through an extension: whether they were asked for makes no difference to what is computed.
  TensorOptions requires_grad(bool) const { return *this; }
  TypeMeta dtype() const { return dtype_.value_or(ScalarType::Float); }
  Device device() const { return device_.value_or(Device(kCPU)); }
  const std::optional<ScalarType>& dtype_opt() const { return dtype_; }
  const std::optional<Device>& device_opt() const { return device_; }
  const std::optional<MemoryFormat>& memory_format_opt() const { return format_; }

 private:
  std::optional<ScalarType> dtype_;
  std::optional<MemoryFormat> format_;
  std::optional<Device> device_;
};
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions dtype(TypeMeta type) { return TensorOptions(type); }
template <class T>
TensorOptions dtype() { return TensorOptions(CppTypeToScalarType<T>::value); }
inline TensorOptions device(Device device) { return TensorOptions(device); }
inline TensorOptions requires_grad(bool = true) { return TensorOptions(); }

}  // namespace c10

// Filled by kz_cuda.h; declared here so that an error names what is missing.
namespace c10::cuda {}
namespace at::cuda {}
namespace torch::cuda {}

#include "kz_accessor.h"
#include "kz_tensor.h"
#include "kz_macros.h"
