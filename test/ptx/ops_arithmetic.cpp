// Arithmetic, compiled without contraction: what PTX does not fuse stays apart. (ptxas may fuse mul, add without .rn.)
#include <algorithm>

#include "test/ptx/ops.h"

namespace ptx {
namespace {

// Flushes, computes in the wider type, rounds, saturates. Pairs of halves go part by part.
template <class T, int N, class F>
Step float_op(const Inst& i, F f) {
    const bool ftz = i.has("ftz"), sat = i.has("sat");
    const auto one = [=](auto first, auto... more) {
        using E = decltype(first);
        if constexpr (is_half<E>) {
            const E e = narrow<E>(double(f(wide(first), wide(more)...)));
            return sat ? saturate(e) : e;
        } else {
            if (!ftz && !sat) return E(f(first, more...));
            E e = E(ftz ? f(flush(first), flush(more)...) : f(first, more...));
            if (ftz) e = flush(e);
            return sat ? saturate(e) : e;
        }
    };
    const auto lane = [=](auto first, auto... more) {
        if constexpr (is_pair<T>)
            return T{one(first.low, more.low...), one(first.high, more.high...)};
        else
            return one(first, more...);
    };
    Step s;
    if constexpr (N == 1) s = map1<T, T>(i, lane);
    if constexpr (N == 2) s = map2<T, T, T>(i, lane);
    if constexpr (N == 3) s = map3<T, T, T, T>(i, lane);
    return rounded(s, rounding(i));
}

template <class W>
W smaller(W a, W b, bool nan, bool max) {
    if (std::isnan(a) || std::isnan(b)) return nan ? W(NAN) : std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) != max ? a : b;
    return (a < b) != max ? a : b;
}

template <class T>
Step float_arithmetic(const Inst& i) {
    const std::string& op = i.part[0];
    const bool nan = i.has("NaN"), relu = i.has("relu");
    if (op == "add") return float_op<T, 2>(i, [](auto a, auto b) { return a + b; });
    if (op == "sub") return float_op<T, 2>(i, [](auto a, auto b) { return a - b; });
    if (op == "mul") return float_op<T, 2>(i, [](auto a, auto b) { return a * b; });
    if (op == "fma" || op == "mad")
        return float_op<T, 3>(i, [relu](auto a, auto b, auto c) {
            const auto r = std::fma(a, b, c);
            return relu && r < 0 ? decltype(r)(0) : r;
        });
    if (op == "neg") return float_op<T, 1>(i, [](auto a) { return -a; });
    if (op == "abs") return float_op<T, 1>(i, [](auto a) { return std::fabs(a); });
    if (op == "min" || op == "max") {
        const bool max = op == "max";
        if (i.has("xorsign")) return {};
        if (i.operand.size() == 4)
            return float_op<T, 3>(
                i, [=](auto a, auto b, auto c) { return smaller(smaller(a, b, nan, max), c, nan, max); });
        return float_op<T, 2>(i, [=](auto a, auto b) { return smaller(a, b, nan, max); });
    }
    // Half-precision ex2 and tanh
    if (op == "ex2") return float_op<T, 1>(i, [](auto a) { return std::exp2(a); });
    if (op == "tanh") return float_op<T, 1>(i, [](auto a) { return std::tanh(a); });
    return {};
}

// Operations of f32 and f64 alone. Those marked .approx are computed exactly and rounded: within any stated error.
template <class T>
Step full_float(const Inst& i) {
    const std::string& op = i.part[0];
    if (op == "div") return float_op<T, 2>(i, [](T a, T b) { return a / b; });
    if (op == "rcp") return float_op<T, 1>(i, [](T a) { return T(1) / a; });
    if (op == "sqrt") return float_op<T, 1>(i, [](T a) { return std::sqrt(a); });
    if (op == "rsqrt") return float_op<T, 1>(i, [](T a) { return T(1 / std::sqrt(double(a))); });
    if (op == "lg2") return float_op<T, 1>(i, [](T a) { return std::log2(a); });
    if (op == "sin") return float_op<T, 1>(i, [](T a) { return std::sin(a); });
    if (op == "cos") return float_op<T, 1>(i, [](T a) { return std::cos(a); });
    if (op == "copysign") return map2<T, T, T>(i, [](T a, T b) { return std::copysign(b, a); });
    if (op == "testp") {
        const bool finite = i.has("finite"), inf = i.has("infinite"), num = i.has("number"), nan = i.has("notanumber");
        if (!finite && !inf && !num && !nan) return {};
        return map1<u8, T>(i, [=](T x) {
            return u8(finite ? std::isfinite(x) : inf ? std::isinf(x) : num ? !std::isnan(x) : std::isnan(x));
        });
    }
    return {};
}

template <class T>
T multiply_high(T a, T b) {
    using W = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                                 std::conditional_t<std::is_signed_v<T>, s64, u64>>;
    return T((W(a) * W(b)) >> (8 * sizeof(T)));
}
template <class T>
using Double = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, s32, u32>,
                                  std::conditional_t<std::is_signed_v<T>, s64, u64>>;

// add.cc, addc, sub.cc, subc, madc: no kernel of ours has them, and they are not modelled
bool has_carry(const Inst& i) {
    return i.has("cc") || i.part[0] == "addc" || i.part[0] == "subc" || i.part[0] == "madc";
}

template <class T>
Step multiply_add(const Inst& i) {
    using D = Double<T>;
    if (i.part[0] == "mul") {
        if (i.has("lo")) return map2<T, T, T>(i, [](T a, T b) { return T(u64(a) * u64(b)); });
        if (i.has("hi")) return map2<T, T, T>(i, [](T a, T b) { return multiply_high(a, b); });
        if (i.has("wide")) return map2<D, T, T>(i, [](T a, T b) { return D(u64(D(a)) * u64(D(b))); });
        return {};
    }
    if (i.has("lo")) return map3<T, T, T, T>(i, [](T a, T b, T c) { return T(u64(a) * u64(b) + u64(c)); });
    if (i.has("hi")) return map3<T, T, T, T>(i, [](T a, T b, T c) { return T(u64(multiply_high(a, b)) + u64(c)); });
    if (i.has("wide")) return map3<D, T, T, D>(i, [](T a, T b, D c) { return D(u64(D(a)) * u64(D(b)) + u64(c)); });
    return {};
}

template <class T>
Step shift(const Inst& i) {
    using U = std::make_unsigned_t<T>;
    constexpr u32 bits = 8 * sizeof(T);
    if (i.part[0] == "shl") return map2<T, T, u32>(i, [](T a, u32 n) { return n >= bits ? T(0) : T(U(a) << n); });
    return map2<T, T, u32>(i, [](T a, u32 n) { return n >= bits ? (a < 0 ? T(-1) : T(0)) : T(a >> n); });
}

template <class T>
Step bits_of(const Inst& i) {
    using U = std::make_unsigned_t<T>;
    constexpr u32 bits = 8 * sizeof(T);
    const std::string& op = i.part[0];
    if (op == "popc") return map1<u32, T>(i, [](T a) { return u32(std::popcount(U(a))); });
    if (op == "clz") return map1<u32, T>(i, [](T a) { return u32(std::countl_zero(U(a))); });
    if (op == "brev")
        return map1<T, T>(i, [](T a) {
            U r = 0;
            for (u32 b = 0; b < bits; b++) r = U(r | U(U(a) >> b & 1) << (bits - 1 - b));
            return T(r);
        });
    if (op == "bfind") {
        const bool amount = i.has("shiftamt");
        return map1<u32, T>(i, [amount](T a) {
            const U x = U(a < 0 ? ~a : a);
            return x ? amount ? u32(std::countl_zero(x)) : bits - 1 - u32(std::countl_zero(x)) : ~0u;
        });
    }
    if (op == "bfe")
        return map3<T, T, u32, u32>(i, [](T a, u32 at, u32 n) {
            const u32 pos = at & 255, len = n & 255;
            const bool sign = std::is_signed_v<T> && len && (U(a) >> std::min(pos + len - 1, bits - 1) & 1);
            U r = 0;
            for (u32 b = 0; b < bits; b++) {
                const U bit = b < len && pos + b < bits ? U(U(a) >> (pos + b) & 1) : U(sign);
                r = U(r | U(bit << b));
            }
            return T(r);
        });
    if (op == "bfi") {  // a into b
        const u32 b_slot = i.operand.at(2).slot, d = i.operand[0].slot, a_slot = i.operand[1].slot;
        return [=, pos_slot = i.operand.at(3).slot, len_slot = i.operand.at(4).slot](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) {
                const u32 pos = w.row(pos_slot)[l] & 255, len = w.row(len_slot)[l] & 255;
                U mask = 0;
                for (u32 b = pos; b < std::min(pos + len, bits); b++) mask = U(mask | U(U(1) << b));
                const U a = pos < bits ? U(get<U>(w.row(a_slot)[l]) << pos) : U(0);
                w.row(d)[l] = put<T>(T((get<U>(w.row(b_slot)[l]) & ~mask) | (a & mask)));
            });
        };
    }
    return {};
}

template <class T>
Step integer_arithmetic(const Inst& i) {
    using U = std::make_unsigned_t<T>;
    const std::string& op = i.part[0];
    constexpr bool is_signed = std::is_signed_v<T>;
    if (has_carry(i) || (i.has("sat") && op != "cvt")) return {};
    if (op == "add") return map2<T, T, T>(i, [](T a, T b) { return T(U(a) + U(b)); });
    if (op == "sub") return map2<T, T, T>(i, [](T a, T b) { return T(U(a) - U(b)); });
    if (op == "mul" || op == "mad") return multiply_add<T>(i);
    if (op == "div")
        return map2<T, T, T>(i, [](T a, T b) {
            return b == 0 ? T(-1) : is_signed && b == T(-1) ? T(U(0) - U(a)) : T(a / b);
        });
    if (op == "rem")
        return map2<T, T, T>(i, [](T a, T b) { return b == 0 ? a : is_signed && b == T(-1) ? T(0) : T(a % b); });
    if (op == "min" && !i.has("relu")) return map2<T, T, T>(i, [](T a, T b) { return std::min(a, b); });
    if (op == "max" && !i.has("relu")) return map2<T, T, T>(i, [](T a, T b) { return std::max(a, b); });
    if (op == "neg") return map1<T, T>(i, [](T a) { return T(U(0) - U(a)); });
    if (op == "abs") return map1<T, T>(i, [](T a) { return a < 0 ? T(U(0) - U(a)) : a; });
    if (op == "and") return map2<T, T, T>(i, [](T a, T b) { return T(a & b); });
    if (op == "or") return map2<T, T, T>(i, [](T a, T b) { return T(a | b); });
    if (op == "xor") return map2<T, T, T>(i, [](T a, T b) { return T(a ^ b); });
    if (op == "not" && i.part.back() == "pred") return map1<T, T>(i, [](T a) { return T(a ^ 1); });
    if (op == "not") return map1<T, T>(i, [](T a) { return T(~a); });
    if (op == "shl" || op == "shr") return shift<T>(i);
    return bits_of<T>(i);
}

// d = c + the products of four bytes with four bytes
Step dot_of_bytes(const Inst& i) {
    const bool sign_a = i.part.at(1) == "s32", sign_b = i.part.at(2) == "s32";
    return map3<u32, u32, u32, u32>(i, [=](u32 a, u32 b, u32 c) {
        const auto byte = [](u32 x, int n, bool sign) { return sign ? s32(s8(x >> 8 * n)) : s32(u8(x >> 8 * n)); };
        for (int n = 0; n < 4; n++) c += u32(byte(a, n, sign_a) * byte(b, n, sign_b));
        return c;
    });
}

}  // namespace

Step bind_arithmetic(const Inst& i) {
    if (i.operand.size() < 2) return {};
    if (i.part[0] == "dp4a") return dot_of_bytes(i);
    Step s;
    with_type(i.part.back(), [&]<class T>() {
        if constexpr (is_float<T> || is_pair<T>) {
            s = float_arithmetic<T>(i);
            if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
                if (!s) s = full_float<T>(i);
        } else {
            s = integer_arithmetic<T>(i);
        }
    });
    return s;
}

}  // namespace ptx
