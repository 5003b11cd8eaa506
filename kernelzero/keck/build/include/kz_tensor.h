// The Tensor: a counted handle to one of torch's, with metadata read once.
#pragma once
namespace kz {

// One per library, not per process: libraries are built against hosts of one version each.
inline const kz_host* the_host = nullptr;
inline void set_host(const kz_host* host) { the_host = host; }

inline void sure(int status, const char* what) {
  if (status != 0) throw c10::Error(std::string("torch could not tell ") + what);
}

struct tensor_body {
  void* handle;
  int64_t dim = 0, numel = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0, device_type = 0, device_index = 0;
  long users = 1;

  explicit tensor_body(void* taken) : handle(taken) {
    sure(the_host->dim(handle, &dim) | the_host->numel(handle, &numel) | the_host->sizes(handle, &sizes) |
             the_host->strides(handle, &strides) | the_host->dtype(handle, &dtype) |
             the_host->device_type(handle, &device_type) | the_host->device_index(handle, &device_index),
         "a tensor's shape");
  }
  ~tensor_body() { the_host->free_handle(handle); }
};

}  // namespace kz

namespace c10 {

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(kz::tensor_body* body) : body_(body) {}
  Tensor(const Tensor& other) : body_(other.body_) {
    if (body_) body_->users++;
  }
  Tensor(Tensor&& other) noexcept : body_(other.body_) { other.body_ = nullptr; }
  Tensor& operator=(Tensor other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  ~Tensor() { reset(); }
  void reset() {
    if (body_ && --body_->users == 0) delete body_;
    body_ = nullptr;
  }

  bool defined() const { return body_ != nullptr; }
  bool is_same(const Tensor& other) const { return body_ == other.body_; }
  int64_t dim() const { return body().dim; }
  int64_t ndimension() const { return body().dim; }
  int64_t numel() const { return body().numel; }
  int64_t size(int64_t i) const { return body().sizes[wrapped(i)]; }
  int64_t stride(int64_t i) const { return body().strides[wrapped(i)]; }
  IntArrayRef sizes() const { return IntArrayRef(body().sizes, static_cast<size_t>(dim())); }
  IntArrayRef strides() const { return IntArrayRef(body().strides, static_cast<size_t>(dim())); }
  ScalarType scalar_type() const { return static_cast<ScalarType>(body().dtype); }
  TypeMeta dtype() const { return scalar_type(); }
  TypeMeta type() const { return scalar_type(); }
  Device device() const {
    return Device(static_cast<DeviceType>(body().device_type), is_cuda() ? body().device_index : -1);
  }
  int64_t get_device() const { return is_cuda() ? body().device_index : -1; }
  bool is_cuda() const { return body().device_type == 1; }
  bool is_cpu() const { return body().device_type == 0; }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  int64_t element_size() const { return elementSize(scalar_type()); }
  size_t itemsize() const { return static_cast<size_t>(element_size()); }
  size_t nbytes() const { return itemsize() * static_cast<size_t>(numel()); }
  int64_t storage_offset() const {
    int64_t offset = 0;
    kz::sure(kz::the_host->storage_offset(body().handle, &offset), "a tensor's offset");
    return offset;
  }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    if (numel() == 0) return true;
    if (format == MemoryFormat::ChannelsLast) return dim() == 4 && is_dense({1, 3, 2, 0});
    if (format == MemoryFormat::ChannelsLast3d) return dim() == 5 && is_dense({1, 4, 3, 2, 0});
    int64_t due = 1;
    for (int64_t i = dim() - 1; i >= 0; i--)
      if (!is_next(i, due)) return false;
    return true;
  }
  MemoryFormat suggest_memory_format() const {
    if (is_contiguous()) return MemoryFormat::Contiguous;
    if (is_contiguous(MemoryFormat::ChannelsLast)) return MemoryFormat::ChannelsLast;
    return is_contiguous(MemoryFormat::ChannelsLast3d) ? MemoryFormat::ChannelsLast3d : MemoryFormat::Contiguous;
  }

  void* data_ptr() const {
    void* address = nullptr;
    kz::sure(kz::the_host->data_ptr(body().handle, &address), "a tensor's address");
    return address;
  }
  void* mutable_data_ptr() const { return data_ptr(); }
  const void* const_data_ptr() const { return data_ptr(); }
  template <class T>
  T* data_ptr() const {
    ScalarType due = CppTypeToScalarType<std::remove_const_t<T>>::value;
    if (scalar_type() != due)
      throw Error(std::string("expected scalar type ") + toString(due) + " but found " + toString(scalar_type()));
    return static_cast<T*>(data_ptr());
  }
  template <class T>
  T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T>
  const T* const_data_ptr() const { return data_ptr<std::remove_const_t<T>>(); }
  template <class T>
  T* data() const { return data_ptr<T>(); }

  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const {
    check_dim(N);
    return TensorAccessor<T, N>(data_ptr<T>(), body_->sizes, body_->strides);
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const {
    check_dim(N);
    if (numel() > INT_MAX) throw Error("numel needs to be smaller than int32_t max; use packed_accessor64");
    return PackedTensorAccessor32<T, N, Traits>(data_ptr<T>(), body_->sizes, body_->strides);
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const {
    check_dim(N);
    return PackedTensorAccessor64<T, N, Traits>(data_ptr<T>(), body_->sizes, body_->strides);
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class index_t = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, index_t> packed_accessor() const {
    check_dim(N);
    return GenericPackedTensorAccessor<T, N, Traits, index_t>(data_ptr<T>(), body_->sizes, body_->strides);
  }

  // Copies and views, by torch itself.
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    return is_contiguous(format) ? *this : operate("contiguous", {}, TensorOptions().memory_format(format));
  }
  Tensor clone(std::optional<MemoryFormat> format = std::nullopt) const {
    return operate("clone", {}, TensorOptions().memory_format(format));
  }
  Tensor detach() const { return operate("detach"); }
  Tensor cuda() const { return is_cuda() ? *this : operate("to", {}, TensorOptions(kCUDA)); }
  Tensor cpu() const { return is_cpu() ? *this : operate("to", {}, TensorOptions(kCPU)); }
  Tensor to(const TensorOptions& options) const {
    bool same = options.dtype_opt().value_or(scalar_type()) == scalar_type() &&
                (!options.device_opt() || options.device_opt()->type() == device().type());
    return same ? *this : operate("to", {}, options);
  }
  Tensor to(Device device, ScalarType type) const { return to(TensorOptions(type).device(device)); }
  Tensor toType(ScalarType type) const { return to(TensorOptions(type)); }
  Tensor view(IntArrayRef sizes) const { return operate("view", sizes); }
  Tensor reshape(IntArrayRef sizes) const { return operate("reshape", sizes); }
  Tensor view_as(const Tensor& other) const { return view(other.sizes()); }
  Tensor reshape_as(const Tensor& other) const { return reshape(other.sizes()); }
  Tensor expand(IntArrayRef sizes) const { return operate("expand", sizes); }
  Tensor expand_as(const Tensor& other) const { return expand(other.sizes()); }
  Tensor flatten(int64_t from = 0, int64_t to = -1) const { return operate("flatten", {from, to}); }
  Tensor squeeze() const { return operate("squeeze"); }
  Tensor squeeze(int64_t i) const { return operate("squeeze", {i}); }
  Tensor unsqueeze(int64_t i) const { return operate("unsqueeze", {i}); }
  Tensor transpose(int64_t a, int64_t b) const { return operate("transpose", {a, b}); }
  Tensor t() const { return operate("t"); }
  Tensor permute(IntArrayRef order) const { return operate("permute", order); }
  Tensor select(int64_t dim, int64_t index) const { return operate("select", {dim, index}); }
  Tensor narrow(int64_t dim, int64_t from, int64_t length) const { return operate("narrow", {dim, from, length}); }
  Tensor operator[](int64_t index) const { return select(0, index); }
  const Tensor& zero_() const {
    operate("zero_");
    return *this;
  }
  const Tensor& fill_(double value) const {
    operate("fill_", {}, {}, value);
    return *this;
  }
  const Tensor& copy_(const Tensor& source, bool = false) const {
    const Tensor* both[] = {this, &source};
    request("copy_", both, 2, {}, {}, 0);
    return *this;
  }
  template <class T>
  T item() const {
    const Tensor* one[] = {this};
    kz_value value = request("item", one, 1, {}, {}, 0);
    return value.kind == 'F' ? static_cast<T>(value.as.f) : static_cast<T>(value.as.i);
  }
  Tensor new_empty(IntArrayRef sizes, const TensorOptions& options = {}) const {
    return make("empty", sizes, options, 0, this);
  }
  Tensor new_zeros(IntArrayRef sizes, const TensorOptions& options = {}) const {
    return make("zeros", sizes, options, 0, this);
  }

  static Tensor make(const char* name, IntArrayRef sizes, TensorOptions options, double value = 0,
                     const Tensor* like = nullptr) {
    if (like && !options.dtype_opt()) options = options.dtype(like->scalar_type());
    if (like && !options.device_opt()) options = options.device(like->device());
    kz_value result = request(name, nullptr, 0, sizes, options, value);
    return Tensor(new kz::tensor_body(result.as.tensor));
  }
  Tensor operate(const char* name, IntArrayRef ints = {}, const TensorOptions& options = {}, double value = 0) const {
    const Tensor* one[] = {this};
    kz_value result = request(name, one, 1, ints, options, value);
    return result.kind == 'T' ? Tensor(new kz::tensor_body(result.as.tensor)) : Tensor();
  }
  void* handle() const { return body().handle; }

 private:
  kz::tensor_body* body_ = nullptr;

  const kz::tensor_body& body() const {
    if (!body_) throw Error("an undefined Tensor is used");
    return *body_;
  }
  int64_t wrapped(int64_t i) const {
    int64_t n = dim();
    if (i < -n || i >= n)
      throw Error("Dimension out of range (expected to be in range of [" + std::to_string(-n) + ", " +
                  std::to_string(n - 1) + "], but got " + std::to_string(i) + ")");
    return i < 0 ? i + n : i;
  }
  // Whether dimension i continues a dense layout whose elements so far span `due`.
  bool is_next(int64_t i, int64_t& due) const {
    if (body_->sizes[i] != 1 && body_->strides[i] != due) return false;
    due *= body_->sizes[i];
    return true;
  }
  bool is_dense(std::initializer_list<int64_t> innermost_first) const {
    int64_t due = 1;
    for (int64_t i : innermost_first)
      if (!is_next(i, due)) return false;
    return true;
  }
  void check_dim(size_t n) const {
    if (dim() != static_cast<int64_t>(n))
      throw Error("TensorAccessor expected " + std::to_string(n) + " dims but tensor has " + std::to_string(dim()));
  }
  static kz_value request(const char* name, const Tensor* const* tensors, int count, IntArrayRef ints,
                          const TensorOptions& options, double scalar);
};

}  // namespace c10

namespace kz {

using c10::IntArrayRef;
using c10::ScalarType;
using c10::Tensor;

inline Tensor take_tensor(void* handle) { return Tensor(new tensor_body(handle)); }
inline void* give_tensor(const Tensor& tensor) {
  void* copy = nullptr;
  sure(the_host->copy_handle(tensor.handle(), &copy), "a tensor's address");
  return copy;
}

}  // namespace kz

namespace c10 {

inline kz_value Tensor::request(const char* name, const Tensor* const* tensors, int count, IntArrayRef ints,
                                const TensorOptions& options, double scalar) {
  void* handles[2] = {nullptr, nullptr};
  for (int i = 0; i < count; i++) handles[i] = tensors[i]->handle();
  kz_request request;
  std::memset(&request, 0, sizeof request);
  request.name = name;
  request.tensors = handles;
  request.tensor_count = count;
  request.ints = ints.data();
  request.int_count = static_cast<int32_t>(ints.size());
  request.scalar = scalar;
  request.dtype = options.dtype_opt() ? static_cast<int32_t>(*options.dtype_opt()) : -1;
  request.device_type = options.device_opt() ? static_cast<int32_t>(options.device_opt()->type()) : -1;
  request.device_index = options.device_opt() ? options.device_opt()->index() : -1;
  request.memory_format = options.memory_format_opt() ? static_cast<int32_t>(*options.memory_format_opt()) : -1;
  kz_value result;
  std::memset(&result, 0, sizeof result);
  // Python's exception is already set; the host raises it whatever the candidate makes of this one.
  if (kz::the_host->operate(&request, &result) != 0) throw Error(std::string(name) + " failed");
  return result;
}

using Format = std::optional<MemoryFormat>;
inline Tensor empty(IntArrayRef sizes, const TensorOptions& options = {}, Format format = std::nullopt) {
  return Tensor::make("empty", sizes, options.memory_format(format));
}
inline Tensor zeros(IntArrayRef sizes, const TensorOptions& options = {}) {
  return Tensor::make("zeros", sizes, options);
}
inline Tensor ones(IntArrayRef sizes, const TensorOptions& options = {}) {
  return Tensor::make("ones", sizes, options);
}
inline Tensor full(IntArrayRef sizes, double value, const TensorOptions& options = {}) {
  return Tensor::make("full", sizes, options, value);
}
inline Tensor empty_like(const Tensor& t, const TensorOptions& options = {}, Format format = std::nullopt) {
  return t.operate("empty_like", {}, options.memory_format(format));
}
inline Tensor zeros_like(const Tensor& t, const TensorOptions& options = {}, Format format = std::nullopt) {
  return t.operate("zeros_like", {}, options.memory_format(format));
}
inline Tensor ones_like(const Tensor& t, const TensorOptions& options = {}, Format format = std::nullopt) {
  return t.operate("ones_like", {}, options.memory_format(format));
}
inline Tensor full_like(const Tensor& t, double value, const TensorOptions& options = {}) {
  return t.operate("full_like", {}, options, value);
}
inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}

using TensorList = ArrayRef<Tensor>;

}  // namespace c10

namespace caffe2 {
using TypeMeta = c10::TypeMeta;
}
namespace at {
using namespace c10;
template <class T>
using opmath_type = typename c10::OpMathType<T>::type;
template <class T, bool is_cuda>
using acc_type = typename c10::AccumulateType<T, is_cuda>::type;
template <class T>
C10_HOST_DEVICE constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
struct NoGradGuard {
  NoGradGuard() {}
};
}  // namespace at
namespace torch {
using namespace c10;
using at::NoGradGuard;
template <class T, size_t N, template <class> class Traits = c10::DefaultPtrTraits>
using PackedTensorAccessor = c10::GenericPackedTensorAccessor<T, N, Traits, int64_t>;
struct InferenceMode {
  InferenceMode(bool = true) {}
};
}  // namespace torch
