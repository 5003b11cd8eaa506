// Entry points: deduces from a C++ function's type how its arguments and result travel. Needs a Tensor with
// kz::take_tensor and kz::give_tensor, which each rung defines before it includes this.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#ifdef KZ_CUDA
#include <cuda_runtime_api.h>
#endif
#include "kz_protocol.h"

namespace kz {

struct argument_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class T, class = void>
struct from_value;  // a type that is not here cannot be an argument

[[noreturn]] inline void wrong(const char* wanted, const kz_value& value) {
  const char* got = "another type";
  switch (value.kind) {
    case 'N': got = "None"; break;
    case 'T': got = "a tensor"; break;
    case 'I': got = "an int"; break;
    case 'F': got = "a float"; break;
    case 'B': got = "a bool"; break;
    case 'S': got = "a str"; break;
    case 'D': got = "a dtype"; break;
    case 'L': got = "a list"; break;
  }
  throw argument_error(std::string(wanted) + " is needed, got " + got);
}

template <>
struct from_value<Tensor> {
  static constexpr const char* name = "Tensor";
  static Tensor get(kz_value& value) {
    if (value.kind != 'T') wrong("a tensor", value);
    void* handle = value.as.tensor;
    value.kind = 'N';
    return take_tensor(handle);
  }
};

template <>
struct from_value<bool> {
  static constexpr const char* name = "bool";
  static bool get(kz_value& value) {
    if (value.kind != 'B') wrong("a bool", value);
    return value.as.i != 0;
  }
};

template <class T>
struct from_value<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static constexpr const char* name = "int";
  static T get(kz_value& value) {
    if (value.kind != 'I' && value.kind != 'B') wrong("an int", value);
    T result = static_cast<T>(value.as.i);
    if (static_cast<int64_t>(result) != value.as.i || (std::is_unsigned_v<T> && value.as.i < 0))
      throw argument_error("the int " + std::to_string(value.as.i) + " does not fit its type");
    return result;
  }
};

template <class T>
struct from_value<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static constexpr const char* name = "float";
  static T get(kz_value& value) {
    if (value.kind == 'F') return static_cast<T>(value.as.f);
    if (value.kind == 'I' || value.kind == 'B') return static_cast<T>(value.as.i);
    wrong("a float", value);
  }
};

template <>
struct from_value<std::string> {
  static constexpr const char* name = "str";
  static std::string get(kz_value& value) {
    if (value.kind != 'S') wrong("a str", value);
    return std::string(value.as.text, static_cast<size_t>(value.count));
  }
};

template <>
struct from_value<ScalarType> {
  static constexpr const char* name = "torch.dtype";
  static ScalarType get(kz_value& value) {
    if (value.kind != 'D') wrong("a dtype", value);
    return static_cast<ScalarType>(value.as.i);
  }
};

template <class T>
struct from_value<std::vector<T>> {
  static constexpr const char* name = "list";
  static std::vector<T> get(kz_value& value) {
    if (value.kind != 'L') wrong("a list", value);
    std::vector<T> result;
    result.reserve(static_cast<size_t>(value.count));
    for (int64_t i = 0; i < value.count; i++) result.push_back(from_value<T>::get(value.as.items[i]));
    return result;
  }
};

template <class T>
struct from_value<std::optional<T>> {
  static constexpr const char* name = "optional";
  static std::optional<T> get(kz_value& value) {
    if (value.kind == 'N') return std::nullopt;
    return from_value<T>::get(value);
  }
};

// How an argument is kept while the function runs, where that is not its own type.
template <class T>
struct kept {
  using type = T;
};
template <>
struct kept<const char*> {
  using type = std::string;
};
template <>
struct kept<IntArrayRef> {
  using type = std::vector<int64_t>;
};
template <class A>
using kept_t = typename kept<std::decay_t<A>>::type;

template <class A>
decltype(auto) hand_over(kept_t<A>& value) {
  if constexpr (std::is_same_v<std::decay_t<A>, const char*>)
    return value.c_str();
  else if constexpr (!std::is_same_v<kept_t<A>, std::decay_t<A>>)
    return std::decay_t<A>(value);
  else
    return static_cast<std::conditional_t<std::is_reference_v<A>, A, kept_t<A>&&>>(value);
}

// --- results

template <class T>
kz_value to_value(const T& result);

inline kz_value none() {
  kz_value value;
  std::memset(&value, 0, sizeof value);
  value.kind = 'N';
  return value;
}

inline kz_value sequence(int32_t kind, int64_t count) {
  kz_value value = none();
  value.kind = kind;
  value.count = count;
  value.as.items = static_cast<kz_value*>(std::calloc(static_cast<size_t>(count) + 1, sizeof(kz_value)));
  return value;
}

template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
struct is_tuple : std::false_type {};
template <class... T>
struct is_tuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct is_tuple<std::pair<A, B>> : std::true_type {};

template <class T, size_t... I>
kz_value tuple_to_value(const T& result, std::index_sequence<I...>) {
  kz_value value = sequence('U', sizeof...(I));
  ((value.as.items[I] = to_value(std::get<I>(result))), ...);
  return value;
}

template <class T>
kz_value to_value(const T& result) {
  kz_value value = none();
  if constexpr (std::is_base_of_v<Tensor, T>) {
    if (result.defined()) {
      value.kind = 'T';
      value.as.tensor = give_tensor(result);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    value.kind = 'B';
    value.as.i = result;
  } else if constexpr (std::is_integral_v<T>) {
    value.kind = 'I';
    value.as.i = static_cast<int64_t>(result);
  } else if constexpr (std::is_floating_point_v<T>) {
    value.kind = 'F';
    value.as.f = static_cast<double>(result);
  } else if constexpr (std::is_convertible_v<const T&, std::string>) {
    std::string text = result;
    value.kind = 'S';
    value.count = static_cast<int64_t>(text.size());
    value.as.text = static_cast<char*>(std::malloc(text.size() + 1));
    std::memcpy(value.as.text, text.c_str(), text.size() + 1);
  } else if constexpr (is_optional<T>::value) {
    if (result) value = to_value(*result);
  } else if constexpr (is_vector<T>::value) {
    value = sequence('L', static_cast<int64_t>(result.size()));
    for (size_t i = 0; i < result.size(); i++) value.as.items[i] = to_value(result[i]);
  } else if constexpr (is_tuple<T>::value) {
    value = tuple_to_value(result, std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    static_assert(!sizeof(T), "a function's result is of a type that cannot be handed to Python");
  }
  return value;
}

// --- calls

inline void check_launch() {
#ifdef KZ_CUDA
  // A launch that was refused says nothing by itself: outputs would just stay as they were.
  cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(status));
#endif
}

inline void forget_old_errors() {
#ifdef KZ_CUDA
  (void)cudaGetLastError();
#endif
}

inline int report(int code, const char* text, char* error, size_t size) {
  std::snprintf(error, size, "%s", text);
  return code;
}

template <class Call>
int guarded(Call&& call, char* error, size_t size) {
  try {
    call();
    return KZ_OK;
  } catch (const argument_error& e) {
    return report(KZ_TYPE_ERROR, e.what(), error, size);
  } catch (const c10::Error& e) {
    return report(KZ_RUNTIME_ERROR, e.what_without_backtrace(), error, size);
  } catch (const std::exception& e) {
    return report(KZ_RUNTIME_ERROR, e.what(), error, size);
  } catch (...) {
    return report(KZ_RUNTIME_ERROR, "a C++ exception of an unknown type", error, size);
  }
}

template <class F, class R, class... A>
struct caller {
  template <size_t... I>
  static void run(F& function, kz_value* arguments, kz_value* result, std::index_sequence<I...>) {
    std::tuple<kept_t<A>...> held{from_value<kept_t<A>>::get(arguments[I])...};
    (void)held;
    (void)arguments;
    forget_old_errors();
    if constexpr (std::is_void_v<R>) {
      function(hand_over<A>(std::get<I>(held))...);
      check_launch();
      *result = none();
    } else {
      auto&& value = function(hand_over<A>(std::get<I>(held))...);
      check_launch();
      *result = to_value<std::decay_t<R>>(value);
    }
  }

  static int invoke(void* self, kz_value* arguments, kz_value* result, char* error, size_t size) {
    auto call = [&] { run(*static_cast<F*>(self), arguments, result, std::index_sequence_for<A...>()); };
    return guarded(call, error, size);
  }

  static std::string signature() {
    std::string text;
    ((text += text.empty() ? "" : ", ", text += from_value<kept_t<A>>::name), ...);
    return "(" + text + ")";
  }
};

// --- what PYBIND11_MODULE's body sees

struct named {
  std::string name;
  kz_value value = kz_value();
};

struct argument : named {
  explicit argument(const char* text) { name = text; }
  argument& noconvert(bool = true) { return *this; }
  argument& none(bool = true) { return *this; }
  template <class T>
  named operator=(const T& value) const {
    named result = *this;
    if constexpr (std::is_convertible_v<T, std::nullopt_t> || std::is_same_v<T, std::nullptr_t>)
      result.value = kz::none();
    else
      result.value = to_value(value);
    return result;
  }
};

struct anything {
  template <class... T>
  anything(T&&...) {}
  template <class T>
  anything& operator=(T&&) {
    return *this;
  }
};

class bindings {
 public:
  template <class F, class... Extra>
  bindings& def(const char* name, F&& function, const Extra&... extra) {
    deduce(name, std::forward<F>(function), extra...);
    return *this;
  }
  anything doc() { return {}; }
  int finish(const kz_function** functions, int32_t* count) {
    *functions = table_.data();
    *count = static_cast<int32_t>(table_.size());
    return 0;
  }

 private:
  template <class R, class... A, class... Extra>
  void deduce(const char* name, R (*function)(A...), const Extra&... extra) {
    using pointer = R (*)(A...);
    add<pointer, R, A...>(name, new pointer(function), extra...);
  }
  template <class F, class... Extra>
  auto deduce(const char* name, F&& functor, const Extra&... extra) -> decltype(&std::decay_t<F>::operator(), void()) {
    member(name, std::forward<F>(functor), &std::decay_t<F>::operator(), extra...);
  }
  template <class F, class C, class R, class... A, class... Extra>
  void member(const char* name, F&& functor, R (C::*)(A...) const, const Extra&... extra) {
    using stored = std::decay_t<F>;
    add<stored, R, A...>(name, new stored(std::forward<F>(functor)), extra...);
  }

  // Entries live as long as the process: the host keeps pointers into them.
  struct entry {
    std::string name, signature;
    std::vector<std::string> names;
    std::vector<const char*> pointers;
    std::vector<kz_value> defaults;
  };

  template <class F, class R, class... A, class... Extra>
  void add(const char* name, F* self, const Extra&... extra) {
    static_assert(sizeof...(A) <= KZ_MAX_ARGUMENTS, "too many arguments");
    entry* e = new entry();
    e->name = name;
    e->signature = caller<F, R, A...>::signature();
    (take(*e, extra), ...);
    e->defaults.resize(sizeof...(A));
    for (const std::string& n : e->names) e->pointers.push_back(n.c_str());
    kz_function function;
    function.name = e->name.c_str();
    function.signature = e->signature.c_str();
    function.arguments = sizeof...(A);
    function.named = static_cast<int32_t>(e->pointers.size());
    function.names = e->pointers.data();
    function.defaults = e->defaults.data();
    function.self = self;
    function.invoke = &caller<F, R, A...>::invoke;
    table_.push_back(function);
  }
  template <class T>
  static void take(entry& e, const T& extra) {
    if constexpr (std::is_base_of_v<named, T>) {
      e.names.push_back(extra.name);
      e.defaults.push_back(extra.value);
    }
  }

  std::vector<kz_function> table_;
};

}  // namespace kz

#define KZ_MODULE(variable)                                                                                     \
  static void kz_define(kz::bindings&);                                                                           \
  extern "C" __attribute__((visibility("default"))) int PyInit_candidate(const kz_host* host,                   \
                                                                         const kz_function** functions,         \
                                                                         int32_t* count) {                      \
    static kz::bindings the_module;                                                                               \
    char error[8];                                                                                              \
    kz::set_host(host);                                                                                         \
    if (kz::guarded([&] { kz_define(the_module); }, error, sizeof error)) return 1;                             \
    return the_module.finish(functions, count);                                                                 \
  }                                                                                                             \
  static void kz_define([[maybe_unused]] kz::bindings& variable)
#define PYBIND11_MODULE(name, variable, ...) KZ_MODULE(variable)

namespace pybind11 {
using arg = kz::argument;
using module_ = kz::bindings;
using module = kz::bindings;
struct gil_scoped_release {
  gil_scoped_release() {}
  ~gil_scoped_release() {}
};
struct gil_scoped_acquire {
  gil_scoped_acquire() {}
  ~gil_scoped_acquire() {}
};
template <class... T>
struct call_guard {};
struct none {
  operator std::nullopt_t() const { return std::nullopt; }
};
enum class return_value_policy { automatic, copy, move, reference, take_ownership };
namespace literals {
inline kz::argument operator""_a(const char* name, size_t) { return kz::argument(name); }
}  // namespace literals
}  // namespace pybind11
namespace py = pybind11;
namespace torch {
template <class F>
F&& wrap_pybind_function(F&& function) {
  return static_cast<F&&>(function);
}
template <class F>
F&& wrap_pybind_function_no_gil(F&& function) {
  return static_cast<F&&>(function);
}
}  // namespace torch
