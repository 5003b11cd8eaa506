// Checks, and the choice of a C++ type by dtype.
#pragma once
namespace kz {

inline void add_text(std::string& out, const char* value) { out += value; }
inline void add_text(std::string& out, const std::string& value) { out += value; }
inline void add_text(std::string& out, bool value) { out += value ? "1" : "0"; }
inline void add_text(std::string& out, c10::ScalarType value) { out += c10::toString(value); }
inline void add_text(std::string& out, c10::TypeMeta value) { out += c10::toString(value.toScalarType()); }
inline void add_text(std::string& out, const c10::Device& value) { out += value.str(); }
inline void add_text(std::string& out, c10::DeviceType value) { out += value == c10::kCUDA ? "cuda" : "cpu"; }
template <class T>
std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>> add_text(std::string& out, const T& value) {
  if constexpr (std::is_enum_v<T>)
    out += std::to_string(static_cast<long long>(value));
  else if constexpr (std::is_same_v<T, char>)
    out += value;
  else if constexpr (std::is_integral_v<T>)
    out += std::to_string(value);
  else {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%g", static_cast<double>(value));
    out += digits;
  }
}

template <class T>
void add_text(std::string& out, const c10::ArrayRef<T>& values) {
  out += "[";
  for (size_t i = 0; i < values.size(); i++) {
    if (i) out += ", ";
    add_text(out, values[i]);
  }
  out += "]";
}
template <class... T>
std::string text(const T&... parts) {
  std::string out;
  (add_text(out, parts), ...);
  return out;
}

template <class... T>
[[noreturn]] __attribute__((noinline)) void fail(const char* condition, const T&... message) {
  if constexpr (sizeof...(T) == 0)
    throw c10::Error(std::string("Expected ") + condition + " to be true, but got false.");
  else
    throw c10::Error(text(message...));
}

}  // namespace kz

namespace c10 {
template <class... T>
std::string str(const T&... parts) { return kz::text(parts...); }
}  // namespace c10

#define TORCH_CHECK(condition, ...)                                                        \
  do {                                                                                     \
    if (C10_UNLIKELY(!(condition))) ::kz::fail(#condition __VA_OPT__(, ) __VA_ARGS__);     \
  } while (0)
#define KZ_COMPARE(a, b, op) TORCH_CHECK((a)op(b), "Check failed: " #a " " #op " " #b)
#define TORCH_CHECK_EQ(a, b) KZ_COMPARE(a, b, ==)
#define TORCH_CHECK_NE(a, b) KZ_COMPARE(a, b, !=)
#define TORCH_CHECK_LT(a, b) KZ_COMPARE(a, b, <)
#define TORCH_CHECK_LE(a, b) KZ_COMPARE(a, b, <=)
#define TORCH_CHECK_GT(a, b) KZ_COMPARE(a, b, >)
#define TORCH_CHECK_GE(a, b) KZ_COMPARE(a, b, >=)
#define TORCH_CHECK_VALUE TORCH_CHECK
#define TORCH_CHECK_TYPE TORCH_CHECK
#define TORCH_CHECK_INDEX TORCH_CHECK
#define TORCH_CHECK_LINALG TORCH_CHECK
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY TORCH_CHECK
#define AT_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ERROR(...) ::kz::fail("" __VA_OPT__(, ) __VA_ARGS__)
#define TORCH_WARN(...) ((void)0)
#define TORCH_WARN_ONCE(...) ((void)0)

#define AT_DISPATCH_CASE(enum_type, ...)                              \
  case enum_type: {                                                   \
    using scalar_t [[maybe_unused]] = typename ::kz::cpp_type<enum_type>::type; \
    return __VA_ARGS__();                                             \
  }
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                           \
  [&] {                                                                                               \
    const ::c10::ScalarType kz_type = ::kz::type_of(TYPE);                                            \
    switch (kz_type) {                                                                                \
      __VA_ARGS__                                                                                     \
      default: ::kz::fail("", '"', NAME, "\" not implemented for '", ::c10::toString(kz_type), '\''); \
    }                                                                                                 \
  }()

namespace kz {
template <c10::ScalarType type>
struct cpp_type;
#define KZ_TYPE(t, name, number)               \
  template <>                                  \
  struct cpp_type<c10::ScalarType::name> {     \
    using type = t;                            \
  };
KZ_PLAIN_TYPES(KZ_TYPE)
#ifdef KZ_HALF
KZ_TYPE(c10::Half, Half, 5)
KZ_TYPE(c10::BFloat16, BFloat16, 15)
#endif
#undef KZ_TYPE
inline c10::ScalarType type_of(c10::ScalarType type) { return type; }
inline c10::ScalarType type_of(c10::TypeMeta type) { return type.toScalarType(); }
}  // namespace kz

#define KZ_CASE(name, ...) AT_DISPATCH_CASE(::c10::ScalarType::name, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) KZ_CASE(Double, __VA_ARGS__) KZ_CASE(Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) KZ_CASE(Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)                                                            \
  KZ_CASE(Byte, __VA_ARGS__) KZ_CASE(Char, __VA_ARGS__) KZ_CASE(Int, __VA_ARGS__) KZ_CASE(Long, __VA_ARGS__) \
  KZ_CASE(Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...)                       \
  AT_DISPATCH_SWITCH(TYPE, NAME,                                                     \
                     AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)                    \
                     AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, KZ_CASE(Half, __VA_ARGS__) KZ_CASE(BFloat16, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...)                            \
  AT_DISPATCH_SWITCH(TYPE, NAME,                                                     \
                     AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__)                         \
                     AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(A, B, C, TYPE, NAME, ...)                         \
  AT_DISPATCH_SWITCH(TYPE, NAME,                                                     \
                     AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__)                         \
                     AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__) \
                     AT_DISPATCH_CASE(C, __VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...)                                     \
  [&] {                                                                              \
    if (::kz::type_of(TYPE) == ::c10::kInt) {                                        \
      using index_t [[maybe_unused]] = int32_t;                                      \
      return __VA_ARGS__();                                                          \
    }                                                                                \
    if (::kz::type_of(TYPE) != ::c10::kLong) ::kz::fail("", NAME, " needs an index type"); \
    using index_t [[maybe_unused]] = int64_t;                                        \
    return __VA_ARGS__();                                                            \
  }()
