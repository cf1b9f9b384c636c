// RoPE in place. Unavoidable bytes: the rotated heads once in and once out. "magnitudes": of whole rows, for codes in
// fp8, so v's heads are read, too; bench_quantise's abs_max is what that saves.

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("RoPE on the query and key heads of packed qkv rows", "B,T,H,K,D",
                       {"8x256x8x4x32", "4x128x8x8x64", "1x2048x16x8x128"}, {"8x1024x16x16x128", "2x4096x32x8x128"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4];
        const ops::RopeCase c{B * T, T, H + K, D, K * D, b.dtype()};
        b.measure({"rope"}, rope, [=](bench::Memory& m) { return c.args(m); });
        b.measure({"rope, magnitudes"}, rope, [=](bench::Memory& m) { return bench::with_magnitude(m, c.args(m)); });
    });
}
