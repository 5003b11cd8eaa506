// Element access with sizes and strides, on the host and in kernels.
#pragma once
namespace c10 {

template <class T>
struct DefaultPtrTraits { typedef T* PtrType; };
template <class T>
struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };

template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class index_t = int64_t>
class TensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  C10_HOST_DEVICE TensorAccessor(PtrType data, const index_t* sizes, const index_t* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  C10_HOST_DEVICE index_t size(index_t i) const { return sizes_[i]; }
  C10_HOST_DEVICE index_t stride(index_t i) const { return strides_[i]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }
  ArrayRef<index_t> sizes() const { return ArrayRef<index_t>(sizes_, N); }
  ArrayRef<index_t> strides() const { return ArrayRef<index_t>(strides_, N); }
  C10_HOST_DEVICE decltype(auto) operator[](index_t i) const {
    if constexpr (N == 1)
      return static_cast<T&>(data_[strides_[0] * i]);
    else
      return TensorAccessor<T, N - 1, Traits, index_t>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }

 private:
  PtrType data_;
  const index_t* sizes_;
  const index_t* strides_;
};

// Carries its sizes and strides, so that it can be a kernel's argument.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class index_t = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  template <class other_t>
  C10_HOST GenericPackedTensorAccessor(PtrType data, const other_t* sizes, const other_t* strides) : data_(data) {
    for (size_t i = 0; i < N; i++) {
      sizes_[i] = static_cast<index_t>(sizes[i]);
      strides_[i] = static_cast<index_t>(strides[i]);
    }
  }
  C10_HOST_DEVICE index_t size(index_t i) const { return sizes_[i]; }
  C10_HOST_DEVICE index_t stride(index_t i) const { return strides_[i]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }
  C10_HOST_DEVICE decltype(auto) operator[](index_t i) const {
    if constexpr (N == 1)
      return static_cast<T&>(data_[strides_[0] * i]);
    else
      return TensorAccessor<T, N - 1, Traits, index_t>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }

 private:
  PtrType data_;
  index_t sizes_[N];
  index_t strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;

}  // namespace c10
