// 16-bit floating point types with the layout of CUDA's, which convert to float and compute in it.
#pragma once
#ifdef KZ_HALF
namespace c10 {

#define KZ_SMALL_FLOAT(Name, native, raw, to_float, from_float)                                            \
  struct alignas(2) Name {                                                                                 \
    unsigned short x;                                                                                      \
    struct from_bits_t {};                                                                                 \
    static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return from_bits_t(); }                     \
    Name() = default;                                                                                      \
    constexpr C10_HOST_DEVICE Name(unsigned short bits, from_bits_t) : x(bits) {}                          \
    C10_HOST_DEVICE Name(float value) : x(static_cast<raw>(from_float(value)).x) {}                        \
    C10_HOST_DEVICE Name(const native& value) : x(static_cast<raw>(value).x) {}                            \
    C10_HOST_DEVICE operator float() const { return to_float(static_cast<native>(*this)); }                \
    C10_HOST_DEVICE operator native() const {                                                              \
      raw bits;                                                                                            \
      bits.x = x;                                                                                          \
      return native(bits);                                                                                 \
    }                                                                                                      \
  };                                                                                                       \
  KZ_OPERATOR(Name, +)                                                                                     \
  KZ_OPERATOR(Name, -)                                                                                     \
  KZ_OPERATOR(Name, *)                                                                                     \
  KZ_OPERATOR(Name, /)                                                                                     \
  inline C10_HOST_DEVICE Name operator-(const Name& a) { return Name(-static_cast<float>(a)); }            \
  KZ_COMPARISON(Name, <)                                                                                   \
  KZ_COMPARISON(Name, >)                                                                                   \
  KZ_COMPARISON(Name, <=)                                                                                  \
  KZ_COMPARISON(Name, >=)                                                                                  \
  KZ_COMPARISON(Name, ==)                                                                                  \
  KZ_COMPARISON(Name, !=)

// With a float or a double the result is one; with an integer it stays small.
#define KZ_OPERATOR(Name, op)                                                                              \
  inline C10_HOST_DEVICE Name operator op(const Name& a, const Name& b) {                                  \
    return Name(static_cast<float>(a) op static_cast<float>(b));                                           \
  }                                                                                                        \
  inline C10_HOST_DEVICE Name& operator op##=(Name& a, const Name& b) { return a = a op b; }               \
  inline C10_HOST_DEVICE float operator op(const Name& a, float b) { return static_cast<float>(a) op b; }  \
  inline C10_HOST_DEVICE float operator op(float a, const Name& b) { return a op static_cast<float>(b); }  \
  inline C10_HOST_DEVICE float& operator op##=(float& a, const Name& b) {                                  \
    return a = a op static_cast<float>(b);                                                                 \
  }                                                                                                        \
  inline C10_HOST_DEVICE double operator op(const Name& a, double b) { return static_cast<float>(a) op b; } \
  inline C10_HOST_DEVICE double operator op(double a, const Name& b) { return a op static_cast<float>(b); } \
  inline C10_HOST_DEVICE Name operator op(const Name& a, int b) { return a op Name(static_cast<float>(b)); } \
  inline C10_HOST_DEVICE Name operator op(int a, const Name& b) { return Name(static_cast<float>(a)) op b; } \
  inline C10_HOST_DEVICE Name operator op(const Name& a, int64_t b) {                                      \
    return a op Name(static_cast<float>(b));                                                               \
  }                                                                                                        \
  inline C10_HOST_DEVICE Name operator op(int64_t a, const Name& b) { return Name(static_cast<float>(a)) op b; }
#define KZ_COMPARISON(Name, op)                                                                            \
  inline C10_HOST_DEVICE bool operator op(const Name& a, const Name& b) {                                  \
    return static_cast<float>(a) op static_cast<float>(b);                                                 \
  }                                                                                                        \
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                    \
  inline C10_HOST_DEVICE bool operator op(const Name& a, T b) {                                            \
    return static_cast<float>(a) op b;                                                                     \
  }                                                                                                        \
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                    \
  inline C10_HOST_DEVICE bool operator op(T a, const Name& b) {                                            \
    return a op static_cast<float>(b);                                                                     \
  }

KZ_SMALL_FLOAT(Half, __half, __half_raw, __half2float, __float2half_rn)
KZ_SMALL_FLOAT(BFloat16, __nv_bfloat16, __nv_bfloat16_raw, __bfloat162float, __float2bfloat16_rn)

}  // namespace c10

namespace std {
#define KZ_LIMITS(Name, lowest_, max_, min_, epsilon_, infinity_, nan_, digits_)                             \
  template <>                                                                                              \
  class numeric_limits<c10::Name> {                                                                        \
    using T = c10::Name;                                                                                   \
                                                                                                           \
   public:                                                                                                 \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;   \
    static constexpr bool has_infinity = true, has_quiet_NaN = true;                                       \
    static constexpr int digits = digits_, radix = 2;                                                      \
    static constexpr C10_HOST_DEVICE T lowest() { return T(lowest_, T::from_bits()); }                     \
    static constexpr C10_HOST_DEVICE T max() { return T(max_, T::from_bits()); }                           \
    static constexpr C10_HOST_DEVICE T min() { return T(min_, T::from_bits()); }                           \
    static constexpr C10_HOST_DEVICE T epsilon() { return T(epsilon_, T::from_bits()); }                   \
    static constexpr C10_HOST_DEVICE T infinity() { return T(infinity_, T::from_bits()); }                 \
    static constexpr C10_HOST_DEVICE T quiet_NaN() { return T(nan_, T::from_bits()); }                     \
  };
KZ_LIMITS(Half, 0xFBFF, 0x7BFF, 0x0400, 0x1400, 0x7C00, 0x7E00, 11)
KZ_LIMITS(BFloat16, 0xFF7F, 0x7F7F, 0x0080, 0x3C00, 0x7F80, 0x7FC0, 8)
#undef KZ_LIMITS
}  // namespace std
#endif
