// Offload's parts: copies between a GPU and pinned memory of its host, one way and both at once, and AdamW with
// its state there, in each of its ways (zero/offload.h), beside the state on the device. Rates count the bytes that
// cross the bus, both directions added; those of the optimizer on the device, the bytes of its memory. On a CPU both
// memories are one. That the ways give the same bits is test/zero/test_offload.cpp's.

#include <memory>

#include "comm/mesh.h"
#include "dev/bench/bench.h"
#include "kernels/runtime/host_streams.h"
#include "zero/zero.h"

namespace rz {
namespace {

using bench::Launch;

// Bytes from the host, to it, or both at the same time on streams of their own.
struct Copies {
    Copies(Device device, int64_t bytes, bool from, bool to)
        : there(device, bytes, MemKind::workspace, "benchmark"),
          there_too(device, bytes, MemKind::workspace, "benchmark"),
          here(Buffer::host_for(device, bytes, MemKind::workspace, "benchmark")),
          here_too(Buffer::host_for(device, bytes, MemKind::workspace, "benchmark")),
          from_host(device, kFromHostStream),
          to_host(device, kToHostStream),
          comes(from),
          goes(to) {
        std::memset(here.data(), 0, size_t(bytes));
        std::memset(here_too.data(), 0, size_t(bytes));
        from_host.zero(there_too.data(), bytes);
        from_host.synchronize();
    }
    ~Copies() { drain(from_host), drain(to_host); }

    void run(Stream& s) {
        const Event begin = s.record();
        if (comes) from_host.wait(begin), from_host.copy(there.data(), here.data(), here.bytes());
        if (goes) to_host.wait(begin), to_host.copy(here_too.data(), there_too.data(), there_too.bytes());
        if (comes) s.wait(from_host.record());
        if (goes) s.wait(to_host.record());
    }

    Buffer there, there_too, here, here_too;
    Stream from_host, to_host;
    bool comes, goes;
};

// The gradient norm and AdamW on one unit of n parameters, whose gradients are zeros.
struct Update {
    Update(Device device, Stream& compute, int64_t n, DType dtype, OffloadOptimizer way)
        : mesh(device),
          zero(device, compute, {make_unit("unit", 0, n)}, {.end = {make_unit("unit", 0, n).padded}, .decays = {1}},
               {.param_dtype = dtype, .grad_dtype = dtype, .wire_dtype = dtype, .offload_optimizer = way}, {}, mesh) {}

    void run() {
        zero.optimizer.gradient_norm();
        zero.optimizer.update(1e-3f, ++step);
    }

    Mesh mesh;
    Zero zero;
    int64_t step = 0;
};

}  // namespace
}  // namespace rz

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Offload: copies to and from the host, and AdamW with its state there", "n", {"4194304"},
                       {"268435456"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0];
        const std::string size = bench::joined(shape);
        const auto copies = [&](const char* name, bool from, bool to) {
            const int64_t bytes = 4 * n;
            b.measure({name, size, double(bytes) * (int(from) + int(to)), 0, 0, /*check=*/false},
                      [&](bench::Memory& m) -> bench::Launch {
                          auto both = std::make_shared<Copies>(m.device(), bytes, from, to);
                          return [both](Stream& s) { both->run(s); };
                      });
        };
        copies("copy from host", true, false);
        copies("copy to host", false, true);
        copies("copies both ways", true, true);
        const DType t = b.dtype();
        const int64_t masters = t == DType::f32 ? 0 : 4, state = masters + 8, e = size_of(t);
        const std::pair<OffloadOptimizer, int64_t> ways[] = {
            {OffloadOptimizer::none, 2 * state + (masters ? 3 : 4) * e},
            {OffloadOptimizer::stream, 2 * state},
            {OffloadOptimizer::zero_copy, 2 * state},
            {OffloadOptimizer::cpu, e}};  // parameters come back; gradients went as they became final
        for (const auto& [way, each] : ways)
            b.measure({format("adamw, offload %s", name_of(way)), size, double(each) * double(n), 0, 0, false},
                      [&, way = way](bench::Memory& m) -> bench::Launch {
                          auto update = std::make_shared<Update>(m.device(), m.stream(), n, t, way);
                          return [update](Stream&) { update->run(); };
                      });
    });
}
