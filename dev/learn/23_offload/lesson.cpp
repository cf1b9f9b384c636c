// Offload: state in the host's memory, and whether the bus is fast enough for it.
#include <algorithm>
#include <vector>

// Bytes per parameter that a step moves to the device and back from it, of bf16 training whose optimizer state, fp32
// master, m and v, lies on the host.
struct Traffic {
    double to_device, to_host;
};
// The device updates: tile by tile the state comes and goes back. Gradients and parameters are on the device anyhow.
Traffic state_comes_and_goes() {
    // >>> hole 1: three fp32 numbers, both ways
#ifdef HOLE
    return {12, 0};
#else
    return {12, 12};
#endif
    // <<<
}
// The host updates: it gets the bf16 gradient, and sends the bf16 parameter.
Traffic host_updates() {
    // >>> hole 2
#ifdef HOLE
    return {14, 14};
#else
    return {2, 2};
#endif
    // <<<
}

// How long the update takes when the state is cut into tiles for which the device has room twice. Each tile comes, is
// updated and goes back, in so many seconds; the three are done by different hands, each for one tile at a time and in
// order. Tile i lies where tile i - 2 was.
double time_of_tiles(int tiles, double come, double update, double go) {
    std::vector<double> come_end(size_t(tiles) + 2), update_end(come_end), go_end(come_end);  // [i + 2] is of tile i
    for (size_t i = 2; i < size_t(tiles) + 2; ++i) {
        // >>> hole 3: when the tile before has come, and the memory is free
#ifdef HOLE
        const double begin = come_end[i - 1];
#else
        const double begin = std::max(come_end[i - 1], go_end[i - 2]);
#endif
        // <<<
        come_end[i] = begin + come;
        update_end[i] = std::max(update_end[i - 1], come_end[i]) + update;
        go_end[i] = std::max(go_end[i - 1], update_end[i]) + go;
    }
    return go_end.back();
}

// The share of a step that the device computes, if nothing overlaps: it does `intensity` FLOPs for each byte that it
// waits for, at `peak` FLOP/s, and the bus brings `bandwidth` bytes/s.
double efficiency(double intensity, double bandwidth, double peak) {
    // >>> hole 4: the time of a byte's FLOPs beside that of the byte
#ifdef HOLE
    return intensity * bandwidth / peak;
#else
    const double compute = intensity / peak, wait = 1 / bandwidth;
    return compute / (compute + wait);
#endif
    // <<<
}
