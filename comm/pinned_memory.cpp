#include "comm/pinned_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

namespace {

class NamedMemory : public SharedMemory {
   public:
    NamedMemory(const std::string& name, int rank, int members, int64_t bytes, const std::function<void()>& meet) {
        bytes_ = bytes;
        stride_ = round_up(std::max<int64_t>(bytes, 1), 4096);
        all_ = checked_mul(stride_, members, "memory that ranks share");
        struct File {
            ~File() {
                if (fd >= 0) ::close(fd);
                if (owned) ::shm_unlink(name.c_str());
            }
            std::string name;
            int fd = -1;
            bool owned = false;
        } file{.name = name};
        if (rank == 0) {
            file.fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            file.owned = file.fd >= 0;
            const int error = file.fd < 0 ? errno : ::posix_fallocate(file.fd, 0, all_);  // zeros, and there is room
            require(error == 0,
                    "--collectives symmetric: %s in /dev/shm for %d ranks: %s\n"
                    "  make it larger (containers: --shm-size), or take --collectives direct",
                    human_bytes(all_).c_str(), members, std::strerror(error));
        }
        meet();
        if (rank != 0) file.fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
        require(
            file.fd >= 0,
            "--collectives symmetric: rank %d of the group does not see the memory of rank 0 in /dev/shm (%s): they "
            "are on different hosts, or in containers that do not share it\n  nearest: --collectives hier-symmetric "
            "or direct",
            rank, std::strerror(errno));
        void* there = ::mmap(nullptr, size_t(all_), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
        require(there != MAP_FAILED, "mapping %s that ranks share: %s", human_bytes(all_).c_str(),
                std::strerror(errno));
        base_ = static_cast<char*>(there);
        meet();
    }
    ~NamedMemory() override {
        if (base_) ::munmap(base_, size_t(all_));
    }

   private:
    int64_t all_ = 0;
};

class PinnedMemory : public SharedMemory {
   public:
    PinnedMemory(std::unique_ptr<SharedMemory> shared, [[maybe_unused]] int members, Device device)
        : shared_(std::move(shared)), device_(device) {
        base_ = shared_->part(0);
        bytes_ = shared_->bytes();
        stride_ = shared_->stride();
#ifdef RZ_CUDA
        device_.make_current();
        const int64_t all = stride_ > 0 ? stride_ * members : bytes_;
        CUDA_CHECK(cudaHostRegister(base_, size_t(all), cudaHostRegisterPortable));
#endif
    }
    ~PinnedMemory() override {
#ifdef RZ_CUDA
        try {
            device_.make_current();
        } catch (const Error&) {
            return;  // a CUDA fault is on its way out, and the process ends
        }
        cudaDeviceSynchronize();  // copies that are queued
        cudaHostUnregister(base_);
#endif
    }

   private:
    std::unique_ptr<SharedMemory> shared_;
    Device device_;
};

}  // namespace

std::unique_ptr<SharedMemory> map_by_name(const std::string& name, int rank, int members, int64_t bytes,
                                          const std::function<void()>& meet) {
    return std::make_unique<NamedMemory>(name, rank, members, bytes, meet);
}

std::unique_ptr<SharedMemory> pin(std::unique_ptr<SharedMemory> shared, int members, Device device) {
    return std::make_unique<PinnedMemory>(std::move(shared), members, device);
}

std::string unreachable_gpus([[maybe_unused]] Device device) {
    std::string list;
#ifdef RZ_CUDA
    int count = 0, found = 0;
    if (device.is_cuda()) CUDA_CHECK(cudaGetDeviceCount(&count));
    for (int other = 0; other < count; ++other) {
        int reaches = 0;
        if (other != device.index) CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, device.index, other));
        if (other == device.index || reaches) continue;
        list += (found++ ? ", " : "") + std::to_string(other);
    }
    if (found) list = format("GPU %d does not reach GPU%s %s", device.index, found > 1 ? "s" : "", list.c_str());
#endif
    return list;
}

}  // namespace rz
