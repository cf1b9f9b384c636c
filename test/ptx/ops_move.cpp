// Moves, conversions, comparisons, selection and the byte and bit permutations.
#include <algorithm>

#include "kernels/fp8/fp8.h"
#include "test/ptx/ops.h"

namespace ptx {
namespace {

// ---- mov

uint64_t low_bits(int n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }

Step move(const Inst& i) {
    const Operand &d = i.operand.at(0), &a = i.operand.at(1);
    const std::string& type = i.part.back();
    if (type == "pred") return map1<u8, u8>(i, [](u8 x) { return u8(x & 1); });
    const int bits = atoi(type.c_str() + 1);
    if (bits < 8 || bits > 64) return {};
    if (d.kind == Operand::vector) {
        const int part = bits / int(d.rows.size());
        return [to = d.rows, from = a.slot, part](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) {
                const u64 x = w.row(from)[l];
                for (size_t e = 0; e < to.size(); e++) w.row(to[e])[l] = x >> (part * int(e)) & low_bits(part);
            });
        };
    }
    if (a.kind == Operand::vector) {
        const int part = bits / int(a.rows.size());
        return [to = d.slot, from = a.rows, part](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) {
                u64 x = 0;
                for (size_t e = 0; e < from.size(); e++) x |= (w.row(from[e])[l] & low_bits(part)) << (part * int(e));
                w.row(to)[l] = x;
            });
        };
    }
    if (a.name.rfind("%clock", 0) == 0 || a.name.rfind("%globaltimer", 0) == 0)
        return [d = d.slot](Warp& w, u32 lanes) { each(lanes, [&](u32 l) { w.row(d)[l] = w.machine->warp_insts; }); };
    const u64 more = a.immediate ? 0 : u64(a.offset), mask = low_bits(bits);
    return [d = d.slot, a = a.slot, more, mask](Warp& w, u32 lanes) {
        u64 *D = w.row(d), *A = w.row(a);
        each(lanes, [&](u32 l) { D[l] = (A[l] + more) & mask; });
    };
}

// ---- setp, set, selp

// f(result) for the comparison of that name
template <class T, class Build>
bool with_comparison(std::string name, Build build) {
    const bool u = name.size() == 3 && name[2] == 'u' && is_float<T>;
    if (u) name.pop_back();
    const auto unordered = [u](auto a, auto b) { return u && (a != a || b != b); };
    if (name == "eq") return build([=](auto a, auto b) { return a == b || unordered(a, b); }), true;
    if (name == "ne") return build([=](auto a, auto b) { return a < b || a > b || unordered(a, b); }), true;
    if (name == "lt" || name == "lo") return build([=](auto a, auto b) { return a < b || unordered(a, b); }), true;
    if (name == "le" || name == "ls") return build([=](auto a, auto b) { return a <= b || unordered(a, b); }), true;
    if (name == "gt" || name == "hi") return build([=](auto a, auto b) { return a > b || unordered(a, b); }), true;
    if (name == "ge" || name == "hs") return build([=](auto a, auto b) { return a >= b || unordered(a, b); }), true;
    if (name == "num") return build([](auto a, auto b) { return a == a && b == b; }), true;
    if (name == "nan") return build([](auto a, auto b) { return a != a || b != b; }), true;
    return false;
}

// setp.cmp[.and|.or|.xor].type p[|q], a, b [, c]: c joins the result in p, and its negation in q
Step compare(const Inst& i) {
    enum { none, both, either, one } mix = i.has("and") ? both : i.has("or") ? either : i.has("xor") ? one : none;
    const auto& o = i.operand;
    const bool ftz = i.has("ftz");
    const u64 yes = i.part[0] == "setp" ? 1 : i.part[i.part.size() - 2] == "f32" ? 0x3f800000u : 0xffffffffu;
    const u32 d = o.at(0).slot, a = o.at(1).slot, b = o.at(2).slot, c = mix ? o.at(3).slot : 0;
    const bool c_negated = mix && o[3].negated, has_q = !o[0].rows.empty();
    const u32 q = has_q ? o[0].rows[0] : 0;
    Step s;
    with_type(i.part.back(), [&]<class T>() {
        if constexpr (!is_pair<T>)
            with_comparison<T>(i.part.at(1), [&](auto f) {
                s = [=](Warp& w, u32 lanes) {
                    u64 *D = w.row(d), *A = w.row(a), *B = w.row(b), *C = w.row(c), *Q = w.row(q);
                    each(lanes, [&](u32 l) {
                        bool r;
                        if constexpr (is_float<T>) {
                            auto x = wide(get<T>(A[l])), y = wide(get<T>(B[l]));
                            r = ftz ? f(flush(x), flush(y)) : f(x, y);
                        } else {
                            r = f(get<T>(A[l]), get<T>(B[l]));
                        }
                        const bool with = (C[l] & 1) != u64(c_negated);
                        const auto join = [&](bool x) {
                            return mix == both ? x && with : mix == either ? x || with : mix == one ? x != with : x;
                        };
                        const bool p = join(r), not_p = join(!r);
                        D[l] = p ? yes : 0;
                        if (has_q) Q[l] = not_p;
                    });
                };
            });
    });
    return s;
}

// ---- cvt

template <class D, class S>
D convert(S x, bool sat, bool ftz) {
    if constexpr (is_float<S> && is_float<D>) {
        double v = wide(x);
        if constexpr (std::is_same_v<S, float>)
            if (ftz) v = flush(x);
        D r = narrow<D>(v);
        if (ftz) r = flush(r);
        return sat ? saturate(r) : r;
    } else if constexpr (is_float<S>) {  // by the rounding mode, then clamped; NaN gives 0 (64 bits: the sign bit)
        double v = wide(x);
        if constexpr (std::is_same_v<S, float>)
            if (ftz) v = flush(x);
        if (std::isnan(v)) return sizeof(D) == 8 ? D(1ull << 63) : D(0);
        v = std::nearbyint(v);
        using L = std::numeric_limits<D>;
        return v <= double(L::min()) ? L::min() : v >= double(L::max()) ? L::max() : D(v);
    } else if constexpr (is_float<D>) {
        if constexpr (is_half<D>)
            return narrow<D>(double(x));
        else
            return D(x);
    } else {
        using L = std::numeric_limits<D>;
        const __int128 v = x;
        if (sat) return v < L::min() ? L::min() : v > L::max() ? L::max() : D(v);
        return D(x);
    }
}

// cvt.rn.satfinite.e4m3x2.f32 d, a, b: a into the upper byte
Step convert_two_to_fp8(const Inst& i, const std::string& to) {
    if (rounding(i) != FE_TONEAREST || !i.has("satfinite") || i.has("relu") || i.has("rs")) return {};
    const auto build = [&]<rz::Fp8 kType>() -> Step {
        return map2<u16, float, float>(
            i, [](float a, float b) { return u16(rz::to_fp8<kType>(a) << 8 | rz::to_fp8<kType>(b)); });
    };
    if (to == "e4m3x2") return build.template operator()<rz::Fp8::e4m3>();
    return build.template operator()<rz::Fp8::e5m2>();
}

// cvt.rn.bf16x2.f32 d, a, b: a into the upper half
Step convert_two(const Inst& i, const std::string& to) {
    if (to == "e4m3x2" || to == "e5m2x2") return convert_two_to_fp8(i, to);
    const bool relu = i.has("relu");
    if (rounding(i) != FE_TONEAREST || i.has("satfinite") || i.has("rs")) return {};
    const auto build = [&]<class T>() -> Step {
        return map2<u32, float, float>(i, [=](float a, float b) {
            if (relu) a = a < 0 ? 0 : a, b = b < 0 ? 0 : b;
            return u32(std::bit_cast<u16>(narrow<T>(a))) << 16 | std::bit_cast<u16>(narrow<T>(b));
        });
    };
    if (to == "bf16x2") return build.template operator()<bf16>();
    if (to == "f16x2") return build.template operator()<f16>();
    return {};
}

Step convert(const Inst& i) {
    const std::string &to = i.part.at(i.part.size() - 2), &from = i.part.back();
    const bool sat = i.has("sat"), ftz = i.has("ftz"), relu = i.has("relu");
    const bool integral = i.has("rni") || i.has("rzi") || i.has("rmi") || i.has("rpi");
    const int mode = rounding(i);
    if (i.operand.size() == 3) return from == "f32" ? convert_two(i, to) : Step();
    if (i.has("satfinite") || i.has("rs") || i.has("rna")) return {};
    Step s;
    with_type(to, [&]<class D>() {
        with_type(from, [&]<class S>() {
            if constexpr (!is_pair<D> && !is_pair<S>) {
                if (is_half<D> && mode != FE_TONEAREST && !integral) return;  // host rounding does not reach narrow()
                s = map1<D, S>(i, [=](S x) {
                    D r;
                    if constexpr (is_float<D> && is_float<S>) {
                        if (integral) {
                            const double v = std::nearbyint(double(ftz ? flush(wide(x)) : wide(x)));
                            r = narrow<D>(v);
                            return sat ? saturate(r) : r;
                        }
                    }
                    r = convert<D>(x, sat, ftz);
                    if constexpr (is_float<D>)
                        if (relu && wide(r) < 0) r = narrow<D>(0);
                    return r;
                });
            }
        });
    });
    return rounded(s, mode);
}

// ---- bits and bytes

Step three_logic(const Inst& i) {  // lop3
    if (i.part.back() != "b32" || i.operand.size() != 5) return {};
    const u32 table = u32(i.operand[4].offset);
    return map3<u32, u32, u32, u32>(i, [table](u32 a, u32 b, u32 c) {
        u32 r = 0;
        for (u32 k = 0; k < 8; k++)
            if (table >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
        return r;
    });
}

Step funnel_shift(const Inst& i) {
    const bool left = i.has("l"), wrap = i.has("wrap");
    return map3<u32, u32, u32, u32>(i, [=](u32 a, u32 b, u32 c) {
        const u32 n = wrap ? c & 31 : std::min(c, 32u);
        const u64 x = u64(b) << 32 | a;
        return left ? u32((x << n) >> 32) : u32(x >> n);
    });
}

Step permute(const Inst& i) {
    if (i.part.size() != 2) return {};  // .f4e and such
    return map3<u32, u32, u32, u32>(i, [](u32 a, u32 b, u32 c) {
        const u64 x = u64(b) << 32 | a;
        u32 r = 0;
        for (int k = 0; k < 4; k++) {
            const u32 s = c >> 4 * k & 15;
            u32 v = u32(x >> 8 * (s & 7)) & 255;
            if (s & 8) v = v & 128 ? 255 : 0;
            r |= v << 8 * k;
        }
        return r;
    });
}

u64 window_of(const Inst& i) {
    return i.has("shared") || i.has("shared::cta") || i.has("shared::cluster") ? kSharedWindow
           : i.has("local")                                                    ? kLocalWindow
           : i.has("param") || i.has("param::entry")                           ? kParamWindow
                                                                               : 0;
}

}  // namespace

Step bind_move(const Inst& i) {
    const std::string& op = i.part[0];
    if (op == "mov") return move(i);
    if (op == "cvt") return convert(i);
    if (op == "setp" || op == "set") return compare(i);
    if (op == "lop3") return three_logic(i);
    if (op == "shf") return funnel_shift(i);
    if (op == "prmt") return permute(i);
    if (op == "cvta") {
        const u64 window = window_of(i);
        const bool to = i.has("to");
        return map1<u64, u64>(i, [=](u64 a) { return !window ? a : to ? a & ~kWindow : a | window; });
    }
    if (op == "isspacep") {
        const u64 window = window_of(i);
        return map1<u8, u64>(i, [=](u64 a) { return u8((a & kWindow) == window); });
    }
    if (op == "selp") {
        Step s;
        const bool negated = i.operand.at(3).negated;
        with_type(i.part.back(), [&]<class T>() {
            s = map3<T, T, T, u8>(i, [negated](T a, T b, u8 p) { return ((p & 1) != 0) != negated ? a : b; });
        });
        return s;
    }
    if (op == "slct" && i.part.back() == "s32")
        return map3<u64, u64, u64, s32>(i, [](u64 a, u64 b, s32 c) { return c >= 0 ? a : b; });
    if (op == "createpolicy")
        return [d = i.operand.at(0).slot](Warp& w, u32 m) { each(m, [&](u32 l) { w.row(d)[l] = 0; }); };
    return {};
}

}  // namespace ptx
