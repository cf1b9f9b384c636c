// For the files that give instructions their meaning: types by PTX's names, and loops over lanes.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <string>

#include "test/ptx/machine.h"
#include "test/ptx/order.h"

namespace ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f16 = _Float16;
struct bf16 {
    u16 bits;
};
template <class T>
struct pair {
    T low, high;
};  // .f16x2, .bf16x2

template <class T>
constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
template <class T>
constexpr bool is_float = std::is_same_v<T, float> || std::is_same_v<T, double> || is_half<T>;
template <class T>
constexpr bool is_pair = false;
template <class T>
constexpr bool is_pair<pair<T>> = true;

// Calls f.operator()<T>() for the type of that name; false if there is none.
template <class F>
bool with_type(const std::string& t, F f) {
#define PTX_TYPE(name, T) \
    if (t == name) return f.template operator()<T>(), true
    PTX_TYPE("u32", u32);
    PTX_TYPE("s32", s32);
    PTX_TYPE("b32", u32);
    PTX_TYPE("u64", u64);
    PTX_TYPE("s64", s64);
    PTX_TYPE("b64", u64);
    PTX_TYPE("u16", u16);
    PTX_TYPE("s16", s16);
    PTX_TYPE("b16", u16);
    PTX_TYPE("u8", u8);
    PTX_TYPE("s8", s8);
    PTX_TYPE("b8", u8);
    PTX_TYPE("pred", u8);
    PTX_TYPE("f32", float);
    PTX_TYPE("f64", double);
    PTX_TYPE("f16", f16);
    PTX_TYPE("bf16", bf16);
    PTX_TYPE("f16x2", pair<f16>);
    PTX_TYPE("bf16x2", pair<bf16>);
#undef PTX_TYPE
    return false;
}

// ---- floating point

inline float wide(float x) { return x; }
inline double wide(double x) { return x; }
inline double wide(f16 x) { return double(x); }
inline double wide(bf16 x) { return double(std::bit_cast<float>(u32(x.bits) << 16)); }

template <class T>
T narrow(double x) {
    return T(x);
}
// Rounded once: to a float by truncation with a sticky bit, then to 8 bits.
template <>
inline bf16 narrow<bf16>(double x) {
    if (std::isnan(x)) return {0x7fff};
    float f = float(x);
    u32 b = std::bit_cast<u32>(f);
    if (double(f) != x && std::isfinite(f)) {
        if (std::fabs(double(f)) > std::fabs(x)) b--;
        b |= 1;
    }
    b += 0x7fff + (b >> 16 & 1);
    return {u16(b >> 16)};
}

// .ftz: subnormal f32 become zero
template <class T>
T flush(T x) {
    if constexpr (std::is_same_v<T, float>)
        return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
    else
        return x;
}
template <class T>
T saturate(T x) {
    if constexpr (is_half<T>)
        return wide(x) > 0 ? wide(x) > 1 ? narrow<T>(1) : x : narrow<T>(0);
    else
        return x > 0 ? x > 1 ? T(1) : x : T(0);
}

// The host's rounding mode for .rz, .rm, .rp
inline int rounding(const Inst& i) {
    return i.has("rz") || i.has("rzi")   ? FE_TOWARDZERO
           : i.has("rm") || i.has("rmi") ? FE_DOWNWARD
           : i.has("rp") || i.has("rpi") ? FE_UPWARD
                                         : FE_TONEAREST;
}
inline Step rounded(Step s, int mode) {
    if (!s || mode == FE_TONEAREST) return s;
    return [s, mode](Warp& w, u32 lanes) {
        const int old = fegetround();
        fesetround(mode);
        s(w, lanes);
        fesetround(old);
    };
}

// ---- loops over lanes: f of one, two or three sources, of types S..., to a D

template <class D, class A, class F>
Step map1(const Inst& i, F f) {
    return [d = i.operand.at(0).slot, a = i.operand.at(1).slot, f](Warp& w, u32 lanes) {
        u64 *D_ = w.row(d), *A_ = w.row(a);
        each(lanes, [&](u32 l) { D_[l] = put<D>(f(get<A>(A_[l]))); });
    };
}
template <class D, class A, class B, class F>
Step map2(const Inst& i, F f) {
    return [d = i.operand.at(0).slot, a = i.operand.at(1).slot, b = i.operand.at(2).slot, f](Warp& w, u32 lanes) {
        u64 *D_ = w.row(d), *A_ = w.row(a), *B_ = w.row(b);
        each(lanes, [&](u32 l) { D_[l] = put<D>(f(get<A>(A_[l]), get<B>(B_[l]))); });
    };
}
template <class D, class A, class B, class C, class F>
Step map3(const Inst& i, F f) {
    return [d = i.operand.at(0).slot, a = i.operand.at(1).slot, b = i.operand.at(2).slot, c = i.operand.at(3).slot, f](
               Warp& w, u32 lanes) {
        u64 *D_ = w.row(d), *A_ = w.row(a), *B_ = w.row(b), *C_ = w.row(c);
        each(lanes, [&](u32 l) { D_[l] = put<D>(f(get<A>(A_[l]), get<B>(B_[l]), get<C>(C_[l]))); });
    };
}

// The address that an operand names for one lane
inline u64 address(const Warp& w, const Operand& o, u32 lane) { return w.row(o.slot)[lane] + u64(o.offset); }
inline u32 shared_address(const Warp& w, const Operand& o, u32 lane) { return u32(address(w, o, lane)); }

// One file each. Empty: not among theirs.
Step bind_arithmetic(const Inst& i);
Step bind_move(const Inst& i);    // mov, cvt, setp, selp, bits
Step bind_memory(const Inst& i);  // ld, st, atom, cp.async, fences
Step bind_warp(const Inst& i);    // shuffles, votes, barriers
Step bind_tensor(const Inst& i);  // ldmatrix, stmatrix, mma, wgmma
Step bind_hopper(const Inst& i);  // mbarrier, bulk copies, TMA, clusters

}  // namespace ptx
