#include "kernels/fp8/prepare_products.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/runtime/context.h"
#include "kernels/runtime/memory.h"

namespace rz {
namespace {

// Beyond the alignment that cuBLASLt asks about
constexpr uintptr_t kAligned = 256;

template <class T>
T* within(T* address) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) % kAligned);
}

std::string text_of(const Gemm& g) {
    return format("%s %s %d %d %d %d %ld %ld %ld %ld %ld %ld", name_of(g.dtype), name_of(g.c_dtype), g.trans_a,
                  g.trans_b, g.beta != 0, g.bias != nullptr, g.M, g.N, g.K, g.lda, g.ldb, g.ldc);
}
template <class G>
std::string sizes(const G& g) {
    return format("%s %d %ld %ld %ld", name_of(g.c_dtype), g.beta != 0, g.M, g.N, g.K);
}
std::string text_of(const Fp8Gemm& g) {
    return format("fp8 %s %s %d ", name_of(g.a_type), name_of(g.b_type), g.fast_accumulation) + sizes(g);
}
std::string text_of(const Fp8BlockGemm& g) { return format("fp8 block %d ", int(g.b_tiles)) + sizes(g); }
std::string text_of(const Fp8MxGemm& g) { return "fp8 mx " + sizes(g); }

template <class G>
void add_shape(std::map<std::string, ProductShapes::Any>& all, G g) {
    if (g.M == 0 || g.N == 0) return;
    g.a = within(g.a), g.b = within(g.b), g.c = within(g.c);
    const auto offset = [](const void* p) { return int(reinterpret_cast<uintptr_t>(p)); };
    std::string text = text_of(g) + format(" at %d %d %d", offset(g.a), offset(g.b), offset(g.c));
    if constexpr (std::is_same_v<G, Gemm>)
        if ((g.add = within(g.add))) text += format(" %d", offset(g.add));  // aligned it changes no choice
    all.emplace(text, g);
}

struct Bytes {
    int64_t a, b, c, scales;
};
Bytes bytes_of(const Gemm& g) {
    const int64_t lda = g.lda ? g.lda : g.trans_a ? g.M : g.K, ldb = g.ldb ? g.ldb : g.trans_b ? g.K : g.N;
    const int64_t a = (g.trans_a ? g.K : g.M) * lda * size_of(g.dtype), bias = g.N * size_of(g.c_dtype);
    const int64_t b = (g.trans_b ? g.N : g.K) * ldb * size_of(g.dtype),
                  c = g.M * (g.ldc ? g.ldc : g.N) * size_of(g.c_dtype);
    return {g.bias ? std::max(a, bias) : a, g.add ? std::max(b, c) : b, c, 0};
}
// The most scales are those of 4 bytes for each 128 elements of a row, or of a byte for each 32.
template <class G>
Bytes bytes_of(const G& g) {
    return {g.M * g.K, g.N * g.K, g.M * g.N * size_of(g.c_dtype), std::max(g.M, g.N) * (g.K / 32 + 16) + 4096};
}

// Numbers of either sign and many magnitudes, in each of the types: sums in another order have other bits. In fp8 none
// is NaN.
void fill(Stream& stream, const Buffer& buffer) {
    std::vector<uint16_t> piece(65521);  // a prime: rows differ
    uint64_t random = 88172645463325252ull;
    for (uint16_t& x : piece) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        x = uint16_t((random & 0x80bf) | (0x3a00 + (random >> 20) % 6 * 256));
    }
    const int64_t bytes = buffer.bytes();
    int64_t done = std::min<int64_t>(bytes, int64_t(piece.size()) * 2);
    stream.copy(buffer.data(), piece.data(), done);
    for (; done < bytes; done += std::min(done, bytes - done))
        stream.copy(buffer.bytes_at(done), buffer.data(), std::min(done, bytes - done));
    stream.synchronize();  // `piece` ends here
}

struct Operands {
    Buffer a, b, c, scale, scales;
};

template <class T>
T* placed(const Buffer& in, T* offset) {
    return reinterpret_cast<T*>(static_cast<char*>(in.data()) + reinterpret_cast<uintptr_t>(offset));
}
void run(Stream& s, Gemm g, const Operands& o) {
    g.a = placed(o.a, g.a), g.b = placed(o.b, g.b), g.c = placed(o.c, g.c);
    if (g.bias) g.bias = o.a.data();
    if (g.add) g.add = placed(o.b, g.add);
    gemm(s, g);
}
template <class G>
void run(Stream& s, G g, const Operands& o) {
    g.a = placed(o.a, g.a), g.b = placed(o.b, g.b), g.c = placed(o.c, g.c);
    if constexpr (std::is_same_v<G, Fp8Gemm>) {
        g.a_scale = g.b_scale = o.scale.as<Fp8Scale>();
        fp8_gemm(s, g);
    } else if constexpr (std::is_same_v<G, Fp8BlockGemm>) {
        g.a_scales = g.b_scales = o.scales.as<float>();
        fp8_block_gemm(s, g);
    } else {
        g.a_scales = g.b_scales = o.scales.as<uint8_t>();
        fp8_mx_gemm(s, g);
    }
}

}  // namespace

void reserve_product_workspace(Stream& stream) {
#ifdef RZ_CUDA
    if (stream.device().is_cuda()) reserve_gemm_workspace_cuda(stream);
#else
    (void)stream;
#endif
}

void ProductShapes::add(const OpCall& op) {
    if (const Gemm* g = op.as<Gemm>()) add_shape(all, *g);
    if (const Fp8Gemm* g = op.as<Fp8Gemm>()) add_shape(all, *g);
    if (const Fp8BlockGemm* g = op.as<Fp8BlockGemm>()) add_shape(all, *g);
    if (const Fp8MxGemm* g = op.as<Fp8MxGemm>()) add_shape(all, *g);
}

std::string PreparedProducts::text() const {
    return format("%d matrix products prepared in %.2f s, %s", count, seconds, human_bytes(bytes).c_str());
}

PreparedProducts prepare_products(Device device, const ProductShapes& shapes) {
    PreparedProducts done;
    if (shapes.all.empty()) return done;
    const auto begin = std::chrono::steady_clock::now();
    const int64_t free = device.free_bytes();
    {
        Stream stream(device, "products");
        Bytes most{};
        for (const auto& [key, product] : shapes.all) {
            const Bytes one = std::visit([](const auto& g) { return bytes_of(g); }, product);
            most = {std::max(most.a, one.a), std::max(most.b, one.b), std::max(most.c, one.c),
                    std::max(most.scales, one.scales)};
        }
        const Device uncounted{device.kind, device.index};  // nothing else is there yet, so it is not the run's peak
        const auto buffer = [&](int64_t bytes) {
            return Buffer(uncounted, bytes + int64_t(kAligned), MemKind::workspace, "operand of a product");
        };
        const Operands operands{buffer(most.a), buffer(most.b), buffer(most.c), buffer(sizeof(Fp8Scale)),
                                buffer(most.scales)};
        const Fp8Scale one{.inverse = 1, .amax = 0, .unused = {}};
        stream.copy(operands.scale.data(), &one, sizeof one);
        const std::vector<uint8_t> ones(size_t(operands.scales.bytes()), 0x3f);  // about 0.75 in fp32; 2^-64
        stream.copy(operands.scales.data(), ones.data(), operands.scales.bytes());
        fill(stream, operands.a);
        fill(stream, operands.b);
        for (const auto& [key, product] : shapes.all) {
            stream.zero(operands.c.data(), operands.c.bytes());
            std::visit([&](const auto& g) { run(stream, g, operands); }, product);
        }
        stream.synchronize();
#ifdef RZ_CUDA
        release_gemm_workspace_cuda(stream);
#endif
    }
    done.count = int(shapes.all.size());
    done.bytes = std::max<int64_t>(0, free - device.free_bytes());
    done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return done;
}

}  // namespace rz
