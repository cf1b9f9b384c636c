// Collectives over memory that the ranks of a host map, by MPI's shared windows.

#include "comm/mesh.h"
#include "test/comm/mpi_main.h"
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

// Two nodes made of this host: what each node's ranks map and messages between them give the bits of messages alone.
TEST(MpiSymmetric, InsideNodesGivesTheBitsOfHier) {
    Process& process = test_process();
    if (process.size() < 4 || process.size() % 2 != 0) GTEST_SKIP() << "two nodes of two ranks and more";
    const auto mesh_of = [&](Algorithm how) {
        const MeshOptions options{.algorithms = {.data = how}, .ranks_per_node = process.size() / 2};
        return std::make_unique<Mesh>(process, Device{DeviceKind::cpu, 0}, options);
    };
    const std::unique_ptr<Mesh> messages = mesh_of(Algorithm::hier), mapped = mesh_of(Algorithm::hier_symmetric);
    EXPECT_STREQ(mapped->data().name(), "hier-symmetric");
    const auto offsets = even_offsets(100000, process.size(), 16);
    for (const DType wire : {DType::f32, DType::bf16}) {
        std::vector<float> sums[2];
        for (Mesh* mesh : {messages.get(), mapped.get()}) {
            std::vector<float>& x = sums[mesh == mapped.get()];
            for (int64_t i = 0; i < offsets.back(); ++i) x.push_back(rough_value(process.rank(), i));
            mesh->data().all_reduce(
                mesh->stream(),
                {.out = x.data(), .in = x.data(), .offsets = offsets, .dtype = DType::f32, .wire = wire});
            mesh->stream().synchronize();
        }
        EXPECT_TRUE(sums[0] == sums[1]) << "over " << name_of(wire);
    }
}

}  // namespace
}  // namespace rz
