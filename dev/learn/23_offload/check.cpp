#include <cstring>
#include <vector>

#include "dev/learn/lesson.h"
#include "dev/learn/optimizer.h"

using namespace learn;

struct Traffic {
    double to_device, to_host;
};
Traffic state_comes_and_goes();
Traffic host_updates();
double time_of_tiles(int tiles, double come, double update, double go);
double efficiency(double intensity, double bandwidth, double peak);

// ZeRO-Infinity (Rajbhandari et al. 2021), section 4: a step does 8 FLOPs per parameter and token, with recomputation.
// Parameters and gradients are moved 4 times in 2 bytes, so there are tokens FLOPs per byte; the state's 16 bytes are
// read and written, so there are tokens / 4. A GPU of 70 TFLOP/s, sequences of 1024.
static void check_paper() {
    constexpr double kPeak = 70e12;
    const double parameters = 8.0 * 1024 / (4 * 2), state = 8.0 * 1024 / (2 * 16);
    close("FLOPs per byte of parameters and gradients, one sequence", parameters, 1024, 0);
    close("FLOPs per byte of state: a quarter", state, 256, 0);
    const double half = efficiency(parameters, 70e9, kPeak);
    expect(half > 0.5 && half < 0.52, "figure 3a: 70 GB/s give just over half of the peak, found %.3f", half);
    close("figure 3b: the state needs four times that for the same", efficiency(state, 4 * 70e9, kPeak), half, 1e-12);
    close("an infinitely fast bus", efficiency(state, 1e30, kPeak), 1, 1e-9);
}

static void check_bytes() {
    // ZeRO-Offload (Ren et al. 2021), section 4: with fp16 gradients out and fp16 parameters in, 4 bytes per parameter
    // cross the bus, and no other cut has less.
    const Traffic host = host_updates(), device = state_comes_and_goes();
    close("the host updates: bytes per parameter, the paper's 4M", host.to_device + host.to_host, 4, 0);
    close("the state comes and goes: three fp32 numbers, twice", device.to_device + device.to_host, 24, 0);
    expect(device.to_device == device.to_host, "what comes goes back");
}

// A clock that knows nothing of the recurrence: in small steps of time it begins whatever may begin.
static double play(int tiles, int come, int update, int go) {
    std::vector<int> stage(static_cast<size_t>(tiles));  // 0 on the host, 2 here, 4 updated, 6 back; odd: under way
    int left[3] = {}, of[3] = {-1, -1, -1}, time = 0;
    const int need[3] = {come, update, go};
    for (int back = 0; back < tiles; ++time) {
        for (int hand = 2; hand >= 0; --hand) {
            if (of[hand] >= 0 && left[hand] == 0) {
                ++stage[size_t(of[hand])];
                back += hand == 2;
                of[hand] = -1;
            }
        }
        if (back == tiles) break;
        for (int hand = 0; hand < 3; ++hand)
            for (int i = 0; i < tiles && of[hand] < 0; ++i) {
                const bool room = hand > 0 || i < 2 || stage[size_t(i - 2)] == 6;
                if (stage[size_t(i)] == 2 * hand && room) of[hand] = i, left[hand] = need[hand], ++stage[size_t(i)];
            }
        for (int& l : left) l -= l > 0;
    }
    return time;
}

static void check_tiles() {
    close("one tile: one after the other", time_of_tiles(1, 3, 1, 3), 7, 0);
    for (const auto& [come, update, go] : {std::array{3, 1, 3}, {1, 5, 1}, {4, 2, 1}, {2, 2, 2}})
        for (const int tiles : {2, 3, 10})
            close("time of the tiles and of a clock", time_of_tiles(tiles, come, update, go),
                  play(tiles, come, update, go), 0);
    // Two tiles' memory is a loop of come + update + go for each two tiles.
    const double each = (time_of_tiles(1000, 3, 1, 3) - time_of_tiles(500, 3, 1, 3)) / 500;
    close("many tiles of 3 + 1 + 3 seconds: (3 + 1 + 3) / 2 each", each, 3.5, 1e-9);
    const double bound = (time_of_tiles(1000, 1, 5, 1) - time_of_tiles(500, 1, 5, 1)) / 500;
    close("many tiles of 1 + 5 + 1 seconds: the update is all that is seen", bound, 5, 1e-9);
}

// Tiles change nothing but time: the program's AdamW gives the same bits for any cut.
static void check_bits() {
    constexpr int n = 4096;
    const std::vector<float> gradient = noises(n, 7000);
    std::vector<float> whole = noises(n, 0), m(n), v(n), tiled = whole, tm = m, tv = v;
    program_adamw(whole.data(), m.data(), v.data(), gradient.data(), n, n, 1, 0.01f);
    for (size_t at = 0; at < n; at += 512)
        program_adamw(&tiled[at], &tm[at], &tv[at], &gradient[at], 512, 512, 1, 0.01f);
    expect(tiled == whole && tm == m && tv == v, "AdamW in eight tiles and at once: the same bits");
}

int main() {
    check_bytes();
    check_paper();
    check_tiles();
    check_bits();
    return verdict("memory of the host is free where a step has tokens enough: FLOPs per byte decide, not bytes");
}
