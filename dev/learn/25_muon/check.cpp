#include <string>
#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/gemm/newton_schulz.h"
#include "kernels/muon.h"
#include "kernels/runtime/memory.h"

using namespace learn;

using Matrix = std::vector<double>;
double momentum(double& m, double gradient, double mu);
Matrix orthogonal(Matrix u, int rows, int cols);
double scale(int rows, int cols);
double overhead(double rows, double cols, double tokens);

// I - 2 v v^T / |v|^2: orthogonal, whatever v is.
static Matrix mirror(int n, unsigned seed) {
    const std::vector<double> v = noises<double>(n, seed);
    const double squares = dot(v.data(), v.data(), n);
    Matrix out(size_t(n * n), 0);
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) out[size_t(i * n + j)] = (i == j) - 2 * v[size_t(i)] * v[size_t(j)] / squares;
    return out;
}

// U diag(s) V^T with s.size() rows
static Matrix with_singular_values(const std::vector<double>& s, int cols) {
    const int rows = int(s.size());
    const Matrix u = mirror(rows, 1), v = mirror(cols, 100);
    Matrix out(size_t(rows * cols), 0);
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; ++j)
            for (int k = 0; k < rows; ++k)
                out[size_t(i * cols + j)] += u[size_t(i * rows + k)] * s[size_t(k)] * v[size_t(j * cols + k)];
    return out;
}

// Five steps, for a singular value that is so large a part of the norm.
static double five_times(double s) {
    for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
    return s;
}

static void check_singular_values() {
    const std::vector<double> s = {5, 1, 0.3, 0.02};
    const double norm = std::sqrt(dot(s.data(), s.data(), 4));
    std::vector<double> expected;
    for (const double x : s) expected.push_back(five_times(x / norm));
    const Matrix got = orthogonal(with_singular_values(s, 6), 4, 6), want = with_singular_values(expected, 6);
    close("U, V stay, singular values go through the polynomial: largest difference", distance(got, want, 24), 0,
          1e-12);
    double least = 9, most = 0;
    for (double x = 0.0015; x < 1; x += 0.0005) {
        const double end = orthogonal({x, 0, 0, std::sqrt(1 - x * x)}, 2, 2)[0];
        least = std::fmin(least, end), most = std::fmax(most, end);
    }
    expect(least > 0.679 && most < 1.21, "from 0.0015 of the norm on they end between %.3f and %.3f", least, most);
}

// torch.optim.Muon([w], lr=0.1, weight_decay=0, momentum=0.95, adjust_lr_fn="match_rms_adamw"), whose products are bf16
// (PyTorch 2.15): of two steps of at most 0.035, each element is known to 2^-8 of it a few times.
static void check_against_torch() {
    const double gradients[2][6] = {{0.5, -0.25, 2, 1, 0.125, -1}, {-1, 0.5, 0.25, 0.75, -2, 0.5}};
    const double torch_w[2][6] = {{0.9830177830976645, -0.9973782434065119, 0.47902594725209563, 0.21508835090993983,
                                   1.9986045489099176, -0.4888363912793412},
                                  {0.9951962653383832, -0.9923377049235478, 0.4445202475700594, 0.20541322335203555,
                                   2.0210670828205766, -0.49918810118395207}};
    double w[6] = {1, -1, 0.5, 0.25, 2, -0.5}, m[6] = {};
    for (int step = 0; step < 2; ++step) {
        Matrix u;
        for (int i = 0; i < 6; ++i) u.push_back(momentum(m[i], gradients[step][i], 0.95));
        const Matrix x = orthogonal(u, 2, 3);
        for (int i = 0; i < 6; ++i) w[i] -= 0.1 * scale(2, 3) * x[size_t(i)];
        const std::string what = "PyTorch's weights after step " + std::to_string(step + 1) + ": largest difference";
        close(what.c_str(), distance(w, torch_w[step], 6), 0, 1e-3);
    }
}

// In fp32: five steps of slope up to 3.4, each of three products.
static void check_against_program() {
    constexpr int rows = 5, cols = 9;
    std::vector<float> x = noises(rows * cols, 0);
    const Matrix mine(x.begin(), x.end());
    const rz::Device cpu{rz::DeviceKind::cpu, 0};
    rz::Stream stream(cpu, "lesson");
    const rz::Buffer work(cpu, rz::newton_schulz_bytes(rows, cols, rz::DType::f32), rz::MemKind::workspace, "work");
    rz::newton_schulz(stream, {.x = x.data(),
                               .rows = rows,
                               .cols = cols,
                               .dtype = rz::DType::f32,
                               .steps = rz::jordan_steps(5),
                               .work = work.data()});
    stream.synchronize();
    close("rz::newton_schulz: largest difference", distance(orthogonal(mine, rows, cols), x, rows * cols), 0, 1e-5);
    float m = 0.5f, u = 0;
    const float gradient = 2, one = 1;
    rz::muon_momentum_cpu({.out = &u,
                           .m = &m,
                           .grad = &gradient,
                           .grad_scale = &one,
                           .n = 1,
                           .momentum = 0.95f,
                           .step = 1,
                           .out_dtype = rz::DType::f32,
                           .grad_dtype = rz::DType::f32});
    double my_m = 0.5;
    const double my_u = momentum(my_m, 2, 0.95);
    close("rz::muon_momentum: Nesterov's sum", double(u), my_u, 1e-6);
}

int main() {
    check_singular_values();
    check_against_torch();
    check_against_program();
    const Matrix x = orthogonal(with_singular_values({1, 1, 1, 1}, 8), 4, 8);
    const double size = scale(4, 8) * std::sqrt(dot(x.data(), x.data(), 32) / 32) / five_times(0.5);
    close("a step of singular values of one: root of the mean square", size, 0.2, 1e-12);
    // Jordan (2024): 0.7 % for the NanoGPT speedrun, 0.5 % for Llama 405B
    close("width 768, 524,288 tokens: overhead in %", 100 * overhead(768, 768, 524288), 0.7, 0.05);
    close("width 16,384, 16 million tokens: overhead in %", 100 * overhead(16384, 16384, 16e6), 0.5, 0.05);
    return verdict("every direction of the gradient gets a step of the same size, by products alone");
}
