// ldmatrix, stmatrix, mma.sync and wgmma: what the lanes hold, around the models that the emulator uses too.
#include <algorithm>

#include "kernels/fp8/fp8.h"
#include "test/ptx/census.h"
#include "test/ptx/counts.h"
#include "test/ptx/ops.h"
#include "test/simt/models.h"

namespace ptx {
namespace {

// .sync.aligned: the lanes wait until all 32 are here.
Step together(Step s) {
    if (!s) return s;
    return [s](Warp& w, u32 lanes) {
        if (const u32 all = w.meet(lanes, ~0u)) {
            if (all != ~0u) fail("some lanes of the warp do not exist or have returned");
            s(w, all);
        }
    };
}

float f32(u64 x) { return get<float>(x); }
float half(u64 x, int h, bool bf16) { return models::half_to_float(u16(x >> 16 * h), bf16); }

Step matrix_move(const Inst& i) {
    const bool load = i.part[0] == "ldmatrix", trans = i.has("trans");
    if (!i.has("m8n8") || i.part.back() != "b16") return {};
    const Operand &r = i.operand.at(load ? 0 : 1), &a = i.operand.at(load ? 1 : 0);
    const Inst* const inst = &i;
    return [=, rows = r.rows](Warp& w, u32) {
        unsigned char* at[32];
        u32 addresses[32];
        const auto n = u32(rows.size());
        OrderCheck* const order = w.machine->order.get();
        for (u32 j = 0; j < n * 8; j++) {
            addresses[j] = shared_address(w, a, j);
            at[j] = w.at(Space::shared, addresses[j], 16, j, !load);
            if (order && load) order->warp_read(w, at[j], 16, j);
            if (order && !load) order->access(w, at[j], 16, j, Access::write);
        }
        if (w.machine->counts) w.machine->counts->matrix(*inst, addresses, n * 8);
        for (u32 m = 0; m < n; m++)
            for (int l = 0; l < 32; l++) {
                u64& lane = w.row(rows[m])[l];
                u16 halves[2] = {u16(lane), u16(lane >> 16)};
                for (int h = 0; h < 2; h++) {
                    int row, column;
                    models::matrix_place(l, h, trans, &row, &column);
                    unsigned char* p = at[m * 8 + u32(row)] + 2 * column;
                    load ? memcpy(&halves[h], p, 2) : memcpy(p, &halves[h], 2);
                }
                if (load) lane = halves[0] | u32(halves[1]) << 16;
            }
    };
}

// m16n8k16 and m16n8k8 of 16-bit values, sums in f32
Step mma(const Inst& i) {
    const bool bf16 = i.part.back() == "f32" && i.part.at(i.part.size() - 2) == "bf16";
    const int k = i.has("m16n8k16") ? 16 : i.has("m16n8k8") ? 8 : 0;
    const std::string& type = i.part[i.part.size() - 2];
    const bool plain = i.has("row") && i.has("col") && i.part[i.part.size() - 4] == "f32" && i.part.back() == "f32";
    if (!k || !plain || (type != "bf16" && type != "f16") || i.has("sp")) return {};
    return [o = i.operand, bf16, k](Warp& w, u32) {
        float a[16 * 16], b[16 * 8], c[16 * 8];
        const auto b_source = [&](int r) {
            return w.row(o[2].kind == Operand::vector ? o[2].rows[size_t(r)] : o[2].slot);
        };
        for (int l = 0; l < 32; l++) {
            for (int h = 0; h < 2; h++) {
                for (int r = 0; r < k / 4; r++)
                    a[models::a_row(l, r) * k + models::a_column(l, r, h)] =
                        half(w.row(o[1].rows[size_t(r)])[l], h, bf16);
                for (int r = 0; r < k / 8; r++)
                    b[models::b_row(l, k == 8 ? 0 : r, h) % k * 8 + models::b_column(l)] =
                        half(b_source(r)[l], h, bf16);
            }
            for (int r = 0; r < 4; r++)
                c[models::d_row(l, r) * 8 + models::d_column(l, r)] = f32(w.row(o[3].rows[size_t(r)])[l]);
        }
        models::multiply(c, a, b, 8, k);
        for (int l = 0; l < 32; l++)
            for (int r = 0; r < 4; r++)
                w.row(o[0].rows[size_t(r)])[l] = put(c[models::d_row(l, r) * 8 + models::d_column(l, r)]);
    };
}

// ---- wgmma: each warp computes its own 16 rows, when the first of the four waits. The product is complete for all
// four then: CUTLASS frees a stage of its pipeline by one arrival of one warp.

enum class Element { bf16, f16, e4m3, e5m2 };
constexpr const char* kElementNames[] = {"bf16", "f16", "e4m3", "e5m2"};
// Element e of what lies at p
float element(const unsigned char* p, int e, Element t) {
    if (t >= Element::e4m3) return (t == Element::e4m3 ? rz::kE4m3Values : rz::kE5m2Values)[p[e]];
    u16 v;
    memcpy(&v, p + 2 * e, 2);
    return models::half_to_float(v, t == Element::bf16);
}

struct Wgmma {
    int n, per_half;  // per_half: elements in 16 bits; the models count in 16 bits along k
    Element a_type, b_type;
    bool from_registers, trans_a, trans_b, accumulate;
    float scale_a, scale_b;
    u64 a, b;  // descriptors
    std::vector<u32> d_rows, a_rows;
    std::vector<u64> a_held;  // the A registers when it was issued
};

unsigned char* operand_at(Warp& w, u32 address) {
    return w.machine->shared_at(*w.block, (address & 0x3ffff) | w.block->rank << kRankShift, 16, "wgmma");
}

// Calls f(pointer to 16 bytes) for what this warp reads of both operands.
template <class F>
void for_each_operand(Warp& w, const Wgmma& g, F f) {
    const auto at = [&](int, int, u32 address) { f(operand_at(w, address)); };
    if (!g.from_registers) models::for_each_chunk(g.a, int(w.id % 4 * 16), 16, g.trans_a, at);
    models::for_each_chunk(g.b, 0, g.n, g.trans_b, at);
}

void compute(Warp& w, const Wgmma& g) {
    static thread_local float a[16 * 32], b[32 * 256], c[16 * 256];
    const int per = g.per_half, depth = 16 * per;  // k of one instruction
    if (g.from_registers) {
        for (int l = 0; l < 32; l++)
            for (int r = 0; r < 4; r++) {
                const auto held = u32(g.a_held[size_t(r) * 32 + size_t(l)]);
                unsigned char bytes[4];
                memcpy(bytes, &held, 4);
                const int row = models::a_row(l, models::flip == models::Flip::a_register_operand ? r ^ 1 : r);
                for (int e = 0; e < 2 * per; e++)
                    a[row * depth + models::a_column(l, r, e / per) * per + e % per] =
                        g.scale_a * element(bytes, e, g.a_type);
            }
    } else {
        models::for_each_chunk(g.a, int(w.id % 4 * 16), 16, g.trans_a, [&](int m, int k, u32 address) {
            const unsigned char* p = operand_at(w, address);
            const bool along = models::along_mn(g.trans_a);
            for (int e = 0; e < (along ? 8 : 8 * per); e++)
                a[(along ? m + e : m) * depth + (along ? k : k * per + e)] = g.scale_a * element(p, e, g.a_type);
        });
    }
    models::for_each_chunk(g.b, 0, g.n, g.trans_b, [&](int n, int k, u32 address) {
        const unsigned char* p = operand_at(w, address);
        const bool along = models::along_mn(g.trans_b);
        for (int e = 0; e < (along ? 8 : 8 * per); e++)
            b[(along ? k : k * per + e) * g.n + (along ? n + e : n)] = g.scale_b * element(p, e, g.b_type);
    });
    const auto place = [&](int l, int e) { return models::d_row(l, e) * g.n + models::d_column(l, e); };
    for (int l = 0; l < 32; l++)
        for (int e = 0; e < g.n / 2; e++) c[place(l, e)] = g.accumulate ? f32(w.row(g.d_rows[size_t(e)])[l]) : 0.0f;
    models::multiply(c, a, b, g.n, depth);
    for (int l = 0; l < 32; l++)
        for (int e = 0; e < g.n / 2; e++) w.row(g.d_rows[size_t(e)])[l] = put(c[place(l, e)]);
}

void in_order(Warp& w, const models::WarpgroupOrder::Step& step) {
    auto& groups = w.block->warpgroups;
    if (groups.empty()) groups.resize((w.block->warps.size() + 3) / 4);
    if (const char* wrong = groups[w.id / 4].next(w.id % 4, step)) fail("wgmma: %s", wrong);
}

void issue(Warp& w, const Wgmma& g) {
    if ((w.id / 4 + 1) * 128 > w.block->threads) fail("wgmma: the four warps of this warpgroup do not all exist");
    for (const u64 d : {g.a, g.b})
        if (const char* wrong = models::wrong_descriptor(d)) fail("wgmma: %s", wrong);
    in_order(w, {g.a, g.b, g.n, g.accumulate, g.trans_a, g.trans_b, g.a_type == Element::bf16});
    auto held = std::make_shared<Wgmma>(g);
    for (u32 r : g.a_rows) held->a_held.insert(held->a_held.end(), w.row(r), w.row(r) + 32);
    Warp* const warp = &w;
    OrderCheck* const order = w.machine->order.get();
    if (order) {
        for_each_operand(w, g, [&](unsigned char* p) { order->async_read(*warp, p, 16, 0, false); });
        order->wgmma_begins(w, g.d_rows, g.a_rows);
    }
    const u64 group = w.wgmma.committed + 1;
    w.products.emplace_back(group, [warp, held, order, group] {
        compute(*warp, *held);
        if (order)
            for_each_operand(*warp, *held, [&](unsigned char* p) { order->wgmma_has_read(*warp, p, 16, group); });
    });
    w.wgmma.ops.push_back([warp, held, order] {
        for (size_t r = 0; r < held->a_rows.size(); r++)
            if (memcmp(warp->row(held->a_rows[r]), held->a_held.data() + 32 * r, 256) != 0)
                fail("A register %zu of a wgmma was written before it was waited for", r);
        if (order) order->wgmma_ends(*warp, held->d_rows, held->a_rows);
    });
}

void multiply_until(Warp& w, u64 group) {
    size_t n = 0;
    while (n < w.products.size() && w.products[n].first <= group) w.products[n++].second();
    w.products.erase(w.products.begin(), w.products.begin() + long(n));
}

Step wait_for_groups(size_t keep) {
    return [keep](Warp& w, u32 lanes) {
        const u64 group = w.wgmma.committed > keep ? w.wgmma.committed - keep : 0;
        Warp* const four = &w.block->warps[w.id / 4 * 4];
        const u32 n = std::min(4u, u32(w.block->warps.size()) - w.id / 4 * 4);
        for (u32 i = 0; group && i < n; i++)
            if (four[i].live && four[i].wgmma.committed < group) {
                w.yields = w.again = true, w.machine->idle++;  // the product needs all four
                return;
            }
        if (w.meet(lanes, ~0u) == 0) return;
        for (u32 i = 0; group && i < n; i++) multiply_until(four[i], group);
        if (w.machine->order) w.machine->order->wgmma_waited(w, group);
        w.wgmma.wait(keep);
        w.machine->idle = 0;
    };
}

// d, a (descriptor or registers), b, accumulate, scale-a, scale-b, and of 16-bit types [trans-a,] trans-b
Step wgmma_multiply(const Inst& i) {
    const auto& o = i.operand;
    std::string shape;
    for (const std::string& p : i.part)
        if (p.rfind("m64n", 0) == 0) shape = p;
    const size_t parts = i.part.size();
    if (shape.size() < 5 || i.has("sp") || o.size() < 6 || i.part.at(parts - 3) != "f32") return {};
    const auto type_of = [&](const std::string& name) {
        return int(std::find(std::begin(kElementNames), std::end(kElementNames), name) - std::begin(kElementNames));
    };
    const int a_type = type_of(i.part[parts - 2]), b_type = type_of(i.part[parts - 1]);
    if (a_type == 4 || b_type == 4) return {};
    const bool fp8 = a_type >= int(Element::e4m3), from_registers = o[1].kind == Operand::vector;
    if (shape.substr(shape.find('k')) != (fp8 ? "k32" : "k16")) return {};
    const size_t trans = from_registers ? 6 : 7;
    if (o.size() != (fp8 ? 6 : trans + 1)) return {};
    Wgmma g{};
    g.n = atoi(shape.c_str() + 4), g.per_half = fp8 ? 2 : 1, g.from_registers = from_registers;
    g.a_type = Element(a_type), g.b_type = Element(b_type);
    if (!fp8) g.trans_a = !from_registers && o[6].offset, g.trans_b = o[trans].offset;
    g.scale_a = float(o[4].offset),
    g.scale_b = float(o[5].offset) * (models::flip == models::Flip::scale_sign ? -1 : 1);
    g.d_rows = o[0].rows, g.a_rows = o[1].rows;
    return [g, a = o[1].slot, b = o[2].slot, p = o[3].slot](Warp& w, u32) {
        Wgmma now = g;
        for (u32 l = 1; l < 32; l++)
            if (w.row(b)[l] != w.row(b)[0] || (!g.from_registers && w.row(a)[l] != w.row(a)[0]))
                fail("wgmma: the lanes disagree on a descriptor");
        now.a = g.from_registers ? 0 : w.row(a)[0], now.b = w.row(b)[0];
        now.accumulate = (w.row(p)[0] & 1) != (models::flip == models::Flip::accumulate);
        count_descriptors(g.n, now.a, now.b, g.from_registers, g.trans_a, g.trans_b);
        issue(w, now);
    };
}

Step wgmma(const Inst& i) {
    if (i.part[1] == "fence")
        return [](Warp& w, u32) {
            if (w.machine->order) w.machine->order->wgmma_fence(w);
        };
    if (i.part[1] == "commit_group")
        return [](Warp& w, u32) {
            in_order(w, {});
            w.wgmma.commit();
            // Late, always, when order is checked: its marks must last until the wait.
            if (w.machine->launch.seed && !w.machine->order && !w.machine->late()) multiply_until(w, ~0ull);
        };
    if (i.part[1] == "wait_group") return wait_for_groups(size_t(i.operand.at(0).offset));
    if (i.part[1] == "mma_async") return wgmma_multiply(i);
    return {};
}

}  // namespace

std::map<std::string, uint64_t>& descriptors() {
    static auto& counts = *new std::map<std::string, uint64_t>;
    return counts;
}

void count_descriptors(int n, uint64_t a, uint64_t b, bool registers, bool trans_a, bool trans_b) {
    struct Key {
        int n;
        u32 a, b;
        bool operator==(const Key&) const = default;
    };
    static thread_local Key last;
    static thread_local u64* count = nullptr;
    const Key key{n * 8 + registers * 4 + trans_a * 2 + trans_b, u32(a >> 16 & 0x3fff) ^ u32(a >> 32),
                  u32(b >> 16 & 0x3fff) ^ u32(b >> 32)};
    if (count && key == last) return void(++*count);
    const auto text = [](u64 d, bool mn) {
        static const char* const swizzle[] = {"none", "128B", "64B", "32B"};
        return std::string(mn ? "MN-major " : "K-major ") + swizzle[d >> 62] + " lbo " +
               std::to_string((d >> 16 & 0x3fff) << 4) + " sbo " + std::to_string((d >> 32 & 0x3fff) << 4);
    };
    last = key;
    count = &descriptors()["n" + std::to_string(n) + "  A " + (registers ? "registers" : text(a, trans_a)) + "  B " +
                           text(b, trans_b)];
    ++*count;
}

Step movmatrix(const Inst& i) {
    if (!i.has("m8n8") || !i.has("trans") || i.part.back() != "b16") return {};
    return [d = i.operand.at(0).slot, a = i.operand.at(1).slot](Warp& w, u32) {
        u32 in[32], out[32];
        for (int l = 0; l < 32; l++) in[l] = u32(w.row(a)[l]);
        models::transpose_matrix(out, in);
        for (int l = 0; l < 32; l++) w.row(d)[l] = out[l];
    };
}

Step bind_tensor(const Inst& i) {
    const std::string& op = i.part[0];
    if (op == "movmatrix") return together(movmatrix(i));
    if (op == "ldmatrix" || op == "stmatrix") return together(matrix_move(i));
    if (op == "mma") return together(mma(i));
    if (op == "wgmma") return i.part.at(1) == "wait_group" ? wgmma(i) : together(wgmma(i));
    return {};
}

}  // namespace ptx
