// Checks a job: its ranks, their devices, and communication: ring and direct against the library on small data.
//
//   mpirun -n 4 build/dev/sanity [--device auto] [--transport auto] [--tp 2] [--cp 1] [--pp 2] [--links]
//
// --links tries every pair of ranks by itself, then the ring of each host's: bandwidth, latency, and whether the bytes
// that came are those that were sent. What is odd is named: a slow link, host or rank, sockets where P2P should be.
//
// Exit code 0 and "ok" at the end if everything agrees.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "comm/collectives.h"
#include "comm/host.h"
#include "comm/layout_text.h"
#include "dev/common/links.h"
#include "comm/mesh.h"
#include "comm/meter.h"
#include "comm/mpi_transport.h"
#include "comm/nccl_transport.h"
#include "comm/process.h"

namespace rz {
namespace {

// Sums of these are exact, so every algorithm must give the same bits.
std::vector<float> values(int rank, int64_t n) {
    std::vector<float> v(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) v[size_t(i)] = float((i * 7 + rank * 13) % 17 - 8);
    return v;
}

std::vector<float> all_reduce(Collectives& how, Stream& stream, Device device, int64_t n) {
    std::vector<float> host = values(how.rank(), n);
    const auto offsets = even_offsets(n, how.size());
    Buffer data(device, n * 4, MemKind::workspace, "sanity");
    stream.copy(data.data(), host.data(), n * 4);
    how.all_reduce(
        stream, {.out = data.data(), .in = data.data(), .offsets = offsets, .dtype = DType::f32, .wire = DType::f32});
    stream.copy(host.data(), data.data(), n * 4);
    stream.synchronize();
    return host;
}

void check(Process& process, Device device, TransportKind kind) {
    auto transport = process.make_transport(kind, device, 0, process.rank(), "world");
    auto stream = make_comm_stream(device);
    if (process.is_root()) std::printf("transport: %s\n", transport->name());
    const bool maps = process.local_size() == process.size();
    for (const auto& [algorithm, name] : kNames<Algorithm>) {
        if (!maps && (algorithm == Algorithm::symmetric || algorithm == Algorithm::hier_symmetric)) {
            if (process.is_root())
                std::printf("  all_reduce by %-8s not tried: ranks do not map each other's memory\n", name);
            continue;
        }
        auto how = make_collectives(algorithm, *transport);
        int64_t wrong = 0;
        Timer timer;
        for (int64_t n : {1, 1000, 100003}) {
            const auto got = all_reduce(*how, *stream, device, n);
            for (int64_t i = 0; i < n; ++i) {
                float want = 0;
                for (int r = 0; r < process.size(); ++r) want += float((i * 7 + r * 13) % 17 - 8);
                wrong += got[size_t(i)] != want;
            }
        }
        wrong = int64_t(process.sum(double(wrong)));
        if (process.is_root())
            std::printf("  all_reduce by %-8s %s (%.1f ms)%s%s\n", name, wrong == 0 ? "agrees" : "WRONG",
                        1e3 * timer.seconds(), how->through().empty() ? "" : " ", how->through().c_str());
        require(wrong == 0, "%s: %lld of the sums are wrong", name, (long long)wrong);
        how->barrier(*stream);
        stream->synchronize();
    }
}

void check_links(Process& process, Device device, TransportKind kind, const std::vector<std::string>& hosts,
                 int64_t bytes) {
    auto transport = process.make_transport(kind, device, 0, process.rank(), "world");
    const Links links = measure_links(process, *transport, hosts, bytes, /*repeats=*/3);
    if (process.is_root()) {
        std::printf("links, pair by pair, %s each way at once:\n", human_bytes(bytes).c_str());
        for (const auto& line : link_table(links.pairs)) std::printf("  %s\n", line.c_str());
        std::printf("links of each host's ring, all at once:\n");
        for (const auto& line : link_table(links.rings)) std::printf("  %s\n", line.c_str());
        for (const auto* list : {&links.pairs, &links.rings})
            for (const auto& line : odd_links(*list, hosts, device.is_cuda())) std::printf("  ODD: %s\n", line.c_str());
    }
    require(!any_wrong(links.pairs) && !any_wrong(links.rings),
            "bytes came other than they were sent: see the lines above");
}

struct LinkOptions {
    bool links = false;
    int64_t mib = 16;
};

int run(Process& process, DeviceChoice choice, TransportKind transport, const GridOptions& axes,
        const LinkOptions& links) {
    std::string note;
    const Device device = process.choose_device(choice, transport, &note);
    const auto lines = process.all_gather_text(format("rank %d of %d: host %s, pid %d, local rank %d of %d, %s%s%s",
                                                      process.rank(), process.size(), host_name().c_str(), getpid(),
                                                      process.local_rank(), process.local_size(), device.name().c_str(),
                                                      device.is_cuda() ? " at " : "", gpu_bus_id(device).c_str()) +
                                               (note.empty() ? "" : "\n  " + note));
    if (process.is_root()) {
        std::printf("built with: CUDA %s, NCCL %s, MPI %s; started %s\n", built_with_cuda() ? "yes" : "no",
                    built_with_nccl() ? "yes" : "no", built_with_mpi() ? "yes" : "no",
                    process.uses_mpi() ? "under MPI" : "as one process");
        for (const auto& line : lines) std::printf("%s\n", line.c_str());
    }
    const Grid grid(process.size(), axes);
    const auto hosts = process.all_gather_text(host_name());
    if (process.is_root() && grid.ranks() > grid.size(Axis::dp))
        for (const auto& line : layout_text(grid, hosts)) std::printf("%s\n", line.c_str());
    if (links.links) check_links(process, device, transport, hosts, links.mib << 20);
    check(process, device, transport);
    if (process.is_root()) std::printf("ok\n");
    return 0;
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) {
    std::string device = "auto", transport = "auto";
    double timeout = 60;
    CLI::App app("says who is in the job and checks that its collectives work");
    app.add_option("--device", device, "Device: auto, cuda or cpu.")->capture_default_str();
    app.add_option("--transport", transport, "auto, mpi, nccl, nccl-shared (NCCL between ranks that share a GPU)")
        ->capture_default_str();
    app.add_option("--timeout", timeout, "Longest time that a wait may take, in seconds.")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    rz::GridOptions axes;
    app.add_option("--tp", axes.tp, "Ranks of the tp axis, for the drawing of ranks.")->capture_default_str();
    app.add_option("--cp", axes.cp, "Ranks of the cp axis.")->capture_default_str();
    app.add_option("--pp", axes.pp, "Ranks of the pp axis.")->capture_default_str();
    rz::LinkOptions links;
    app.add_flag("--links", links.links, "tries every pair of ranks, then each host's ring");
    app.add_option("--link-mib", links.mib, "MiB that a link carries each way")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    rz::Process process({.timeout_s = timeout});
    return process.run([&] {
        return rz::run(process, rz::parse_name<rz::DeviceChoice>("--device", device),
                       rz::parse_name<rz::TransportKind>("--transport", transport), axes, links);
    });
}
