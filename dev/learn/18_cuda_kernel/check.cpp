#include <cstring>
#include <vector>

#include "dev/learn/18_cuda_kernel/kernel.h"
#include "dev/learn/lesson.h"
#include "kernels/runtime/check.h"
#include "test/simt/control.h"
#include "test/simt/device_array.h"

using namespace learn;
using rz::selftest::DeviceArray;

struct Result {
    std::vector<float> y;
    std::string error;
};

static Result run(const std::vector<float>& x, const std::vector<float>& w, int rows, int C, float eps) {
    simt::clear_error();
    DeviceArray<float> dx(x), dw(w), dy(std::vector<float>(x.size(), NAN));  // a place that is not written stays NaN
    Result r;
    try {
        rmsnorm(dy.data(), dx.data(), dw.data(), rows, C, eps, nullptr);
    } catch (const rz::Error& e) {
        r.error = e.what();
    }
    if (cudaDeviceSynchronize() != cudaSuccess) r.error = simt::last_error();
    r.y = dy.get();
    return r;
}

// The formula in double, on the host.
static std::vector<double> formula(const std::vector<float>& x, const std::vector<float>& w, int rows, double eps) {
    const int C = int(w.size());
    std::vector<double> y;
    for (int r = 0; r < rows; ++r) {
        const float* row = &x[size_t(r * C)];
        const double rstd = 1 / std::sqrt(dot(row, row, C) / C + eps);
        for (int i = 0; i < C; ++i) y.push_back(row[i] * rstd * w[size_t(i)]);
    }
    return y;
}

int main() {
    simt::options().policy = simt::Policy::in_order;
    const Result small = run({3, 4}, {1, 1}, 1, 2, 0);
    close("rmsnorm(3, 4)[0] = 3 / sqrt(12.5)", small.y[0], 0.848528137, 1e-6);
    close("rmsnorm(3, 4)[1] = 4 / sqrt(12.5)", small.y[1], 1.131370850, 1e-6);

    // Fewer elements than threads, as many, no multiple, many
    for (const int C : {40, 128, 300, 1024}) {
        constexpr int kRows = 5;
        const std::vector<float> x = noises(kRows * C, 0, 3);
        std::vector<float> w;
        for (int i = 0; i < C; ++i) w.push_back(float(1 + 0.5 * noise(100000 + unsigned(i))));
        simt::options().policy = simt::Policy::in_order;
        const Result plain = run(x, w, kRows, C, 1e-5f);
        std::printf("5 rows of %d:\n", C);
        expect(plain.error.empty(), "runs to its end: %s", plain.error.empty() ? "yes" : plain.error.c_str());
        close("the formula in double: largest difference", distance(plain.y, formula(x, w, kRows, 1e-5), kRows * C), 0,
              2e-6);
        // The same kernel with its threads and warps in other orders, some far ahead of others.
        int others = 0, failed = 0;
        for (const simt::Policy policy :
             {simt::Policy::reverse, simt::Policy::random, simt::Policy::thread_priority, simt::Policy::warp_priority})
            for (uint64_t seed = 1; seed <= 5; ++seed) {
                simt::options().policy = policy;
                simt::options().seed = seed;
                const Result again = run(x, w, kRows, C, 1e-5f);
                failed += !again.error.empty();
                others += std::memcmp(again.y.data(), plain.y.data(), x.size() * sizeof(float)) != 0;
            }
        expect(failed == 0 && others == 0, "20 other orders of its threads: %d failed, %d gave other bits", failed,
               others);
    }
    return verdict("a kernel is one thread's program; what threads tell each other needs a shuffle or a barrier");
}
