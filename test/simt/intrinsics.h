// CUDA's arithmetic and memory intrinsics that the host lacks. Included by simt.h only.
#pragma once

template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T>
T __ldlu(const T* p) {
    return *p;
}
template <class T>
T __ldcv(const T* p) {
    return *p;
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> v) {
    *p = v;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
    *p = v;
}
template <class T>
void __stwt(T* p, std::type_identity_t<T> v) {
    *p = v;
}

// glibc declares __expf, __logf... itself, so only a macro can replace them. They are exact here (correctly rounded
// host functions), where the device errs by a few ulp.
namespace simt {
inline float host_exp(float x) { return std::exp(x); }
inline float host_exp10(float x) { return float(std::pow(10.0, double(x))); }
inline float host_log(float x) { return std::log(x); }
inline float host_log2(float x) { return std::log2(x); }
inline float host_log10(float x) { return std::log10(x); }
inline float host_pow(float x, float y) { return std::pow(x, y); }
inline float host_sin(float x) { return std::sin(x); }
inline float host_cos(float x) { return std::cos(x); }
inline void host_sincos(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }
}  // namespace simt
#define __expf(x) ::simt::host_exp(x)
#define __exp10f(x) ::simt::host_exp10(x)
#define __logf(x) ::simt::host_log(x)
#define __log2f(x) ::simt::host_log2(x)
#define __log10f(x) ::simt::host_log10(x)
#define __powf(x, y) ::simt::host_pow(x, y)
#define __sinf(x) ::simt::host_sin(x)
#define __cosf(x) ::simt::host_cos(x)
#define __sincosf(x, s, c) ::simt::host_sincos(x, s, c)

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline void sincospif(float x, float* s, float* c) {
    *s = float(std::sin(M_PI * double(x))), *c = float(std::cos(M_PI * double(x)));
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return 1.0f / std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline int __float2int_rd(float x) { return int(std::floor(x)); }
inline unsigned __float2uint_rn(float x) { return unsigned(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }
inline unsigned __float_as_uint(float x) { return simt::from_bits<unsigned>(simt::to_bits(x)); }
inline int __float_as_int(float x) { return simt::from_bits<int>(simt::to_bits(x)); }
inline float __uint_as_float(unsigned x) { return simt::from_bits<float>(x); }
inline float __int_as_float(int x) { return simt::from_bits<float>(unsigned(x)); }
inline long long __double_as_longlong(double x) { return simt::from_bits<long long>(simt::to_bits(x)); }
inline double __longlong_as_double(long long x) { return simt::from_bits<double>(uint64_t(x)); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(uint64_t(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
    return unsigned((((uint64_t(hi) << 32) | lo) << (s & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
    return unsigned(((uint64_t(hi) << 32) | lo) >> (s & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    const uint64_t v = uint64_t(y) << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= unsigned(v >> (8 * (s >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return C(a) < C(b) ? C(b) : C(a);
}

// CUDA's headers declare these for the device only.
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    const auto one = [](__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
        return std::fma(__bfloat162float(x), __bfloat162float(y), __bfloat162float(z));
    };
    return __floats2bfloat162_rn(one(a.x, b.x, c.x), one(a.y, b.y, c.y));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __float2bfloat16_rn(std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    const auto one = [](__half x, __half y, __half z) {
        return std::fma(__half2float(x), __half2float(y), __half2float(z));
    };
    return __floats2half2_rn(one(a.x, b.x, c.x), one(a.y, b.y, c.y));
}
inline __half __hfma(__half a, __half b, __half c) {
    return __float2half_rn(std::fma(__half2float(a), __half2float(b), __half2float(c)));
}
