// Collectives over memory that the ranks of a host map, by MPI's shared windows.

#include "test/comm/symmetric_cases.h"

namespace rz {
namespace {

TEST(MpiSymmetric, GivesTheBitsOfDirect) {
    Process& process = test_process();
    const Device cpu{DeviceKind::cpu, 0};
    auto transport = process.make_transport(TransportKind::mpi, cpu, 0, process.rank(), "world");
    if (process.size() == 1) GTEST_SKIP() << "one rank";
    Stream stream(cpu, "comm");
    auto symmetric = make_symmetric(*transport, {.chunk_bytes = 1 << 20, .lanes = 2, .meter = nullptr});
    auto direct = make_direct(*transport, {.chunk_bytes = 1 << 20, .lanes = 2, .meter = nullptr});
    compare_with_direct(*symmetric, *direct, stream);
    gather_in_common_memory(*symmetric, stream);
}

}  // namespace
}  // namespace rz
