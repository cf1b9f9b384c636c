// Every PTX wrapper once, on pseudo-random registers, so that the models can be compared with real hardware.
//
//   fidelity list            the wrappers, and which architecture each needs
//   fidelity write DIR       (on a GPU) runs them and writes DIR/<wrapper>.txt: what the hardware gave
//   fidelity check DIR       (in the emulator, or on a GPU) runs them and compares with DIR; a wrapper without a file
//   is
//                            listed as unconfirmed. Exit status 1 if one differs.
//
// A golden file holds the outputs as 32-bit words in hexadecimal. Float results may differ by a tolerance that each
// case states: hardware neither orders nor rounds its sums as the model does.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iomanip>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "test/simt/device_array.h"

namespace rz::fidelity {
namespace {

constexpr int kWords = 8192;  // of input, and at most of output

// ---- the kernels: 32-bit words in, 32-bit words out

__global__ void cp_async_kernel(uint32_t* out, const uint32_t* in) {
    __shared__ __align__(16) uint32_t s[128];
    const int t = int(threadIdx.x), words = 4;
    for (int i = t; i < 128; i += 32) s[i] = 0xdeadbeef;
    __syncthreads();
    const int keep = t % (words + 1) * 4 - (t % 5 == 4 ? 1 : 0);  // partly masked, not only by whole words
    const int src_bytes = keep < 0 ? 0 : keep;
    ptx::cp_async16(s + t * words, in + t * words, src_bytes);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    for (int i = t; i < 128; i += 32) out[i] = s[i];
}

template <bool kTrans>
__global__ void ldmatrix_kernel(uint32_t* out, const uint32_t* in) {
    __shared__ __align__(16) uint32_t s[128];
    const int t = int(threadIdx.x);
    for (int i = t; i < 128; i += 32) s[i] = in[i];
    __syncwarp();
    uint32_t r[4];
    const uint32_t* row = s + t * 7 % 32 * 4;  // rows in a scattered order
    kTrans ? ptx::ldmatrix_x4_trans(r, row) : ptx::ldmatrix_x4(r, row);
    for (int i = 0; i < 4; i++) out[i * 32 + t] = r[i];
}

// Registers of small values: 16-bit floats with random mantissa and an exponent near 1.
__device__ uint32_t small_halves(uint32_t bits, bool fp16) {
    return fp16 ? (bits & 0x83ff83ffu) | 0x38003800u : (bits & 0x807f807fu) | 0x3f003f00u;
}

template <bool kFp16>
__global__ void mma_kernel(uint32_t* out, const uint32_t* in) {
    const int t = int(threadIdx.x);
    uint32_t a[4], b[2];
    float c[4];
    for (int i = 0; i < 4; i++) a[i] = small_halves(in[i * 32 + t], kFp16);
    for (int i = 0; i < 2; i++) b[i] = small_halves(in[128 + i * 32 + t], kFp16);
    for (int i = 0; i < 4; i++) c[i] = float(int(in[192 + i * 32 + t] % 2001) - 1000) / 256;
    if (kFp16)
        ptx::mma_m16n8k16_fp16(c, a, b, c);
    else
        ptx::mma_m16n8k16_bf16(c, a, b, c);
    for (int i = 0; i < 4; i++) out[i * 32 + t] = __float_as_uint(c[i]);
}

__global__ void movmatrix_kernel(uint32_t* out, const uint32_t* in) {
    out[threadIdx.x] = ptx::movmatrix(in[threadIdx.x]);
}

__global__ void approx_kernel(uint32_t* out, const uint32_t* in, int function) {
    const int t = int(threadIdx.x);
    constexpr uint32_t special[8] = {0, 0x80000000u, 0x7f800000u, 0xff800000u,
                                     1, 0x00800000u, 0x3f800000u, 0xc3160000u};
    const float x = t < 8 ? __uint_as_float(special[t]) : float(int(in[t] % 200001) - 100000) / 1000;
    const float positive = t < 8 ? x : fabsf(x);
    const float y = function == 0 ? ptx::ex2(x) : function == 1 ? ptx::rcp(x) : ptx::sqrt(positive);
    out[t] = __float_as_uint(y);
}

__global__ void named_barrier_kernel(uint32_t* out, const uint32_t* in) {
    __shared__ uint32_t s[64];
    const int t = int(threadIdx.x);
    if (t < 64) {
        s[t] = in[t];
        ptx::bar_arrive(1, 128);
    } else {
        ptx::bar_sync(1, 128);
        out[t - 64] = s[127 - t];
    }
}

__global__ void tma_kernel(uint32_t* out, const __grid_constant__ CUtensorMap map, int x, int y, int z, int bytes) {
    GPU_DYN_SMEM(smem);
    uint64_t* bar = reinterpret_cast<uint64_t*>(smem + bytes);
    if (threadIdx.x == 0) {
        ptx::mbar_init(bar, 1);
        ptx::fence_mbar_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::mbar_arrive_expect_tx(bar, uint32_t(bytes));
        ptx::tma_load_4d(smem, &map, bar, x, y, z, 0);
    }
    ptx::mbar_wait(bar, 0);
    for (int i = int(threadIdx.x); i < bytes / 4; i += 32) out[i] = reinterpret_cast<uint32_t*>(smem)[i];
}

__global__ void bulk_kernel(uint32_t* out, const uint32_t* in) {
    GPU_DYN_SMEM(smem);
    uint32_t* data = reinterpret_cast<uint32_t*>(smem);
    uint64_t* bar = reinterpret_cast<uint64_t*>(smem + 1024);
    if (threadIdx.x == 0) {
        ptx::mbar_init(bar, 1);
        ptx::fence_mbar_init();
        ptx::mbar_arrive_expect_tx(bar, 1024);
        ptx::bulk_load(data, in, 1024, bar);
    }
    __syncthreads();
    ptx::mbar_wait(bar, 0);
    for (int i = int(threadIdx.x); i < 256; i += 32) out[i] = data[i] ^ 0x5a5a5a5a;
}

// Random shared memory under arbitrary valid descriptors: how it is laid out need not be known here.
template <int N, bool kTransA, bool kTransB, bool kRegisters, bool kFp16>
__global__ void wgmma_kernel(uint32_t* out, const uint32_t* in, uint32_t layout) {
    GPU_DYN_SMEM(smem);
    const int t = int(threadIdx.x);
    for (int i = t; i < kWords; i += 128) reinterpret_cast<uint32_t*>(smem)[i] = small_halves(in[i], kFp16);
    ptx::fence_proxy_async();
    __syncthreads();
    const uint32_t row = layout == 1 ? 128 : layout == 2 ? 64 : layout == 3 ? 32 : 16;
    const auto descriptor = [&](const void* p, bool trans) {
        if (layout == 0) return ptx::wgmma_descriptor(p, 128, 256, 0);
        return trans ? ptx::wgmma_descriptor(p, row * 16, row * 8, layout)
                     : ptx::wgmma_descriptor(p, 16, row * 8, layout);
    };
    const uint64_t da = descriptor(smem, kTransA), db = descriptor(smem + 8192, kTransB);
    uint32_t a[4];
    for (int i = 0; i < 4; i++) a[i] = small_halves(in[i * 128 + t], kFp16);
    float d[N / 2];
    for (int i = 0; i < N / 2; i++) d[i] = float(t) - float(i);
    ptx::wgmma_fence();
    if constexpr (kRegisters && kFp16) ptx::wgmma_fp16<N, kTransB>(d, a, db, true);
    if constexpr (kRegisters && !kFp16) ptx::wgmma_bf16<N, kTransB>(d, a, db, true);
    if constexpr (!kRegisters && kFp16) ptx::wgmma_fp16<N, kTransA, kTransB>(d, da, db, true);
    if constexpr (!kRegisters && !kFp16) ptx::wgmma_bf16<N, kTransA, kTransB>(d, da, db, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (int i = 0; i < N / 2; i++)
        if (i * 128 + t < kWords) out[i * 128 + t] = __float_as_uint(d[i]);
}

// ---- the table

struct Case {
    std::string name;
    int arch;          // 80 or 90
    double tolerance;  // 0: words must be equal; else relative to 1 + |value|, as floats
    std::function<void(uint32_t* out, const uint32_t* in)> run;
};

CUtensorMap map_2d(const void* p, int swizzle) {
    return ptx::tensor_map(p, {64, 24, 1, 1}, {128, 3072, 3072}, {uint32_t(swizzle ? swizzle / 2 : 16), 8, 1, 1},
                           swizzle);
}
CUtensorMap map_4d(const void* p, int swizzle) {
    return ptx::tensor_map(p, {64, 6, 4, 2}, {128, 768, 3072}, {uint32_t(swizzle / 2), 2, 2, 2}, swizzle);
}

std::vector<Case> cases() {
    std::vector<Case> all;
    const auto add = [&](std::string name, int arch, double tolerance, auto k, int threads, int shared, auto... more) {
        all.push_back({std::move(name), arch, tolerance, [=](uint32_t* out, const uint32_t* in) {
                           launch(k, LaunchConfig(1, threads, size_t(shared), nullptr), out, in, more...);
                       }});
    };
    add("cp_async16", 80, 0, kernel<cp_async_kernel>, 32, 0);
    add("ldmatrix_x4", 80, 0, kernel<ldmatrix_kernel<false>>, 32, 0);
    add("ldmatrix_x4_trans", 80, 0, kernel<ldmatrix_kernel<true>>, 32, 0);
    add("movmatrix", 80, 0, kernel<movmatrix_kernel>, 32, 0);
    // 16 products of values below 1 and a sum below 20: 17 roundings of 2^-24 relative to it.
    add("mma_m16n8k16_bf16", 80, 1e-5, kernel<mma_kernel<false>>, 32, 0);
    add("mma_m16n8k16_fp16", 80, 1e-5, kernel<mma_kernel<true>>, 32, 0);
    add("bar_sync_arrive", 80, 0, kernel<named_barrier_kernel>, 128, 0);
    const char* functions[3] = {"ex2", "rcp", "sqrt"};
    for (int f = 0; f < 3; f++) add(functions[f], 80, 1e-6, kernel<approx_kernel>, 256, 0, f);
    add("bulk_load", 90, 0, kernel<bulk_kernel>, 32, 1032);
    const auto tma = [&](std::string name, auto map, int swizzle, int x, int y, int z, int bytes) {
        all.push_back({std::move(name), 90, 0, [=](uint32_t* out, const uint32_t* in) {
                           launch(kernel<tma_kernel>, LaunchConfig(1, 32, size_t(bytes) + 8, nullptr), out,
                                  map(in, swizzle), x, y, z, bytes);
                       }});
    };
    // Named after the instruction for two dimensions, with which the GPU wrote their files: two more, of one element,
    // change no byte of a box.
    for (int swizzle : {0, 32, 64, 128})
        tma("tma_load_2d_swizzle" + std::to_string(swizzle), map_2d, swizzle, 8, -3, 0, (swizzle ? swizzle : 32) * 8);
    tma("tma_load_4d", map_4d, 64, 40, 5, 1, 64 * 8);
    const auto wgmma = [&](std::string name, uint32_t layout, auto product) {
        add(name + "_layout" + std::to_string(layout), 90, 2e-5, product, 128, kWords * 4, layout);
    };
    for (uint32_t layout = 0; layout < 4; layout++) {
        wgmma("wgmma_bf16_n64", layout, kernel<wgmma_kernel<64, false, false, false, false>>);
        wgmma("wgmma_bf16_n64_trans_a", layout, kernel<wgmma_kernel<64, true, false, false, false>>);
        wgmma("wgmma_bf16_n64_trans_b", layout, kernel<wgmma_kernel<64, false, true, false, false>>);
        wgmma("wgmma_bf16_n64_a_in_registers", layout, kernel<wgmma_kernel<64, false, false, true, false>>);
    }
    wgmma("wgmma_fp16_n64", 1, kernel<wgmma_kernel<64, false, false, false, true>>);
    wgmma("wgmma_fp16_n64_a_in_registers", 1, kernel<wgmma_kernel<64, false, true, true, true>>);
    // p v and the gradients of attention: columns beyond 64 lie in a second panel
    wgmma("wgmma_bf16_n96_a_in_registers_trans_b", 1, kernel<wgmma_kernel<96, false, true, true, false>>);
    wgmma("wgmma_bf16_n128_a_in_registers_trans_b", 1, kernel<wgmma_kernel<128, false, true, true, false>>);
    wgmma("wgmma_bf16_n16", 1, kernel<wgmma_kernel<16, false, false, false, false>>);
    wgmma("wgmma_bf16_n96", 1, kernel<wgmma_kernel<96, false, false, false, false>>);
    wgmma("wgmma_bf16_n128", 1, kernel<wgmma_kernel<128, false, false, false, false>>);
    return all;
}

// ---- running and comparing

std::vector<uint32_t> run_case(const Case& c) {
    std::vector<uint32_t> in(kWords), poison(kWords, 0xffffffffu);
    uint32_t state = 12345;
    for (char ch : c.name) state = state * 31 + uint32_t(ch);
    for (uint32_t& x : in) x = state = state * 1664525u + 1013904223u, x ^= x >> 15;
    selftest::DeviceArray<uint32_t> din(in), dout(poison);
    c.run(dout.data(), din.data());
    const cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) fail("%s: %s", c.name.c_str(), cudaGetErrorString(e));
    std::vector<uint32_t> out = dout.get();
    while (!out.empty() && out.back() == 0xffffffffu) out.pop_back();
    return out;
}

std::string path_of(const std::string& dir, const Case& c) { return dir + "/" + c.name + ".txt"; }

void write(const std::string& dir, const Case& c) {
    std::ofstream f(path_of(dir, c));
    const auto words = run_case(c);
    for (size_t i = 0; i < words.size(); i++)
        f << std::hex << std::setw(8) << std::setfill('0') << words[i] << (i % 8 == 7 ? '\n' : ' ');
    f << '\n';
    if (!f.flush()) fail("can't write %s", path_of(dir, c).c_str());
}

bool equal(uint32_t got, uint32_t want, double tolerance) {
    if (got == want) return true;
    float x, y;
    memcpy(&x, &got, 4), memcpy(&y, &want, 4);
    if (std::isnan(x) && std::isnan(y)) return tolerance > 0;
    return tolerance > 0 && std::fabs(double(x) - y) <= tolerance * (1 + std::fabs(double(y)));
}

// "confirmed", "unconfirmed", or what differs.
std::string check(const std::string& dir, const Case& c) {
    std::ifstream f(path_of(dir, c));
    const auto got = run_case(c);
    if (!f) return "unconfirmed";
    std::vector<uint32_t> want;
    for (uint32_t w; f >> std::hex >> w;) want.push_back(w);
    if (want.size() != got.size())
        return "DIFFERS: " + std::to_string(got.size()) + " words, golden " + std::to_string(want.size());
    for (size_t i = 0; i < got.size(); i++)
        if (!equal(got[i], want[i], c.tolerance)) {
            char text[100];
            snprintf(text, sizeof text, "DIFFERS: word %zu is %08x, golden %08x", i, got[i], want[i]);
            return text;
        }
    return "confirmed";
}

int main_(int argc, char** argv) {
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "list") {
        for (const Case& c : cases()) printf("%-36s sm_%d\n", c.name.c_str(), c.arch);
        return 0;
    }
    if (argc != 3 || (command != "write" && command != "check"))
        return fprintf(stderr, "usage: fidelity list | write DIR | check DIR\n"), 2;
    int major = 0, minor = 0, differ = 0, confirmed = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    std::string unconfirmed;
    for (const Case& c : cases()) {
        if (major * 10 + minor < c.arch) continue;
        if (command == "write") {
            write(argv[2], c);
            continue;
        }
        const std::string verdict = check(argv[2], c);
        if (verdict == "confirmed")
            confirmed++;
        else if (verdict == "unconfirmed")
            unconfirmed += " " + c.name;
        else
            differ++, printf("%s %s\n", c.name.c_str(), verdict.c_str());
    }
    if (command == "write") return 0;
    printf("%d wrappers agree with a GPU's results, %d differ\n", confirmed, differ);
    if (!unconfirmed.empty()) printf("unconfirmed (no golden from a GPU yet):%s\n", unconfirmed.c_str());
    return differ != 0;
}

}  // namespace
}  // namespace rz::fidelity

int main(int argc, char** argv) {
    try {
        return rz::fidelity::main_(argc, argv);
    } catch (const std::exception& e) {
        fprintf(stderr, "fidelity: %s\n", e.what());
        return 1;
    }
}
