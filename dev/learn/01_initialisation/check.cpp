#include <string>
#include <vector>

#include "dev/learn/toy.h"
#include "kernels/elementwise.h"

using namespace learn;

double initial_std(double std, bool adds_to_stream, int layers);
float initial_weight(uint64_t seed, uint64_t tensor, int64_t i, float std);

// Variance of a sum of 2 * layers branches, in units of one branch's at std 0.02.
static double stream_variance(int layers) {
    const double std = initial_std(0.02, true, layers);
    return 2.0 * layers * std * std / (0.02 * 0.02);
}

static void check_table(const char* name) {
    const rz::ModelConfig config = preset(name);
    const rz::ParamTable table(config);
    int wrong = 0;
    for (const rz::Tensor& t : table.tensors()) {
        if (t.init == rz::Init::kOnes) continue;
        const bool adds = t.name.find("o_proj") != std::string::npos || t.name.find("down_proj") != std::string::npos;
        wrong += initial_std(config.init_std, adds, int(config.layers)) != t.init_std;
    }
    expect(wrong == 0, "%s: %d tensors whose deviation differs from the program's table", name, wrong);
}

int main() {
    close("std of q_proj, 32 layers", initial_std(0.02, false, 32), 0.02, 0);
    close("std of o_proj, 32 layers (0.02 / 8)", initial_std(0.02, true, 32), 0.0025, 1e-12);
    close("variance of the stream after 4 layers", stream_variance(4), 1, 1e-9);
    close("variance of the stream after 80 layers", stream_variance(80), 1, 1e-9);
    check_table("bytes");
    check_table("llama3.1-8b");

    // The program fills elements [5, 4005) of tensor 3 in one call; element by element must give the same bits.
    constexpr int64_t kFirst = 5, kCount = 4000;
    std::vector<float> whole(kCount);
    rz::random_normal_cpu({.x = whole.data(),
                           .n = kCount,
                           .first = kFirst,
                           .seed = 1337,
                           .stream = 3,
                           .std = 0.02f,
                           .dtype = rz::DType::f32});
    int64_t different = 0;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < kCount; ++i) {
        const float mine = initial_weight(1337, 3, kFirst + i, 0.02f);
        different += mine != whole[size_t(i)];
        sum += mine, squares += double(mine) * mine;
    }
    expect(different == 0, "%lld of %lld elements differ from rz::random_normal's", (long long)different,
           (long long)kCount);
    // The mean of n normals has deviation std / sqrt(n), their sample deviation std / sqrt(2n): four of each.
    close("mean", sum / kCount, 0, 4 * 0.02 / std::sqrt(double(kCount)));
    close("deviation", std::sqrt(squares / kCount), 0.02, 4 * 0.02 / std::sqrt(2.0 * kCount));
    return verdict("the stream's variance does not depend on depth, and no weight depends on who made it");
}
