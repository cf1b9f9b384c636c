#include "comm/mesh.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "comm/loopback.h"
#include "comm/process.h"

namespace rz {

void Mesh::check_shape(int rank, int size, const MeshOptions& options) {
    rank_ = rank;
    size_ = size;
    shard_size_ = options.shard_size == 0 ? size : options.shard_size;
    if (shard_size_ > 0 && size % shard_size_ == 0) return;
    int below = std::min(std::max(shard_size_, 1), size), above = below;
    while (size % below != 0) --below;
    while (size % above != 0) ++above;
    fail("--shard-size %d does not divide %d ranks\n  nearest: --shard-size %d or %d", shard_size_, size, below, above);
}

void Mesh::fill(const MeshOptions& options) {
    for (Group* group : {&world_, &shard_, &replicate_})
        group->collectives = make_collectives(options.algorithm, *group->transport, options.collectives);
}

Mesh::Mesh(Process& process, Device device, const MeshOptions& options) {
    check_shape(process.rank(), process.size(), options);
    world_.transport = process.make_transport(options.transport, device, 0, rank_, "world");
    shard_.transport = process.make_transport(options.transport, device, replica(), rank_, "shard");
    replicate_.transport = process.make_transport(options.transport, device, shard_rank(), rank_, "replicate");
    fill(options);
}

Mesh::Mesh(Device device, const MeshOptions& options) {
    check_shape(0, 1, options);
    world_.transport = std::make_unique<SelfTransport>(device, "world");
    shard_.transport = std::make_unique<SelfTransport>(device, "shard");
    replicate_.transport = std::make_unique<SelfTransport>(device, "replicate");
    fill(options);
}

Mesh::Mesh(LoopbackHub& hub, int rank, const MeshOptions& options) {
    check_shape(rank, hub.size(), options);
    std::vector<int> row, column;
    for (int c = 0; c < shard_size_; ++c) row.push_back(replica() * shard_size_ + c);
    for (int r = 0; r < replicas(); ++r) column.push_back(r * shard_size_ + shard_rank());
    world_.transport = hub.transport(rank);
    shard_.transport = hub.subgroup(rank, row, "row" + std::to_string(replica()));
    replicate_.transport = hub.subgroup(rank, column, "column" + std::to_string(shard_rank()));
    fill(options);
}

int64_t Mesh::bytes_sent() const {
    return world_.transport->bytes_sent() + shard_.transport->bytes_sent() + replicate_.transport->bytes_sent();
}

std::unique_ptr<Stream> make_comm_stream(Device device) {
    auto stream = std::make_unique<Stream>(device, "communication", /*high_priority=*/true);
#ifdef _OPENMP
    if (!device.is_cuda()) stream->enqueue_host([] { omp_set_num_threads(1); });
#endif
    return stream;
}

}  // namespace rz
