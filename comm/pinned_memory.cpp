#include "comm/pinned_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/runtime/request.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

namespace {

class NamedMemory : public SharedMemory {
   public:
    NamedMemory(const std::string& name, int rank, int members, int64_t bytes, Alloc how,
                const std::function<void()>& meet) {
        bytes_ = bytes;
        const int64_t part = round_up(std::max<int64_t>(bytes, 1), 4096);
        stride_ = how == Alloc::shared ? 0 : part;
        all_ = how == Alloc::shared ? part : checked_mul(part, members, "memory that ranks share");
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
        }
        if (rank == 0) require_room(file.fd < 0 ? errno : room(file.fd), members);
        meet();
        if (rank != 0) file.fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
        require_request(
            file.fd >= 0,
            "--collectives symmetric: rank %d of the group does not see the memory of rank 0 in /dev/shm (%s): they "
            "are on different hosts, or in containers that do not share it\n  nearest: --collectives hier-symmetric "
            "or direct",
            rank, std::strerror(errno));
        file.owned = true;  // whoever fails now ends the job: nobody else takes the name away
        // Zeros, and the room for them: a page that is not there would be SIGBUS. By each rank, on its own NUMA node.
        if (stride_ > 0 || rank == 0) require_room(::posix_fallocate(file.fd, rank * stride_, part), members);
        void* there = ::mmap(nullptr, size_t(all_), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
        require(there != MAP_FAILED, "mapping %s that ranks share: %s", human_bytes(all_).c_str(),
                std::strerror(errno));
        base_ = static_cast<char*>(there);
        meet();
        file.owned = rank == 0;
    }
    ~NamedMemory() override {
        if (base_) ::munmap(base_, size_t(all_));
    }

   private:
    // Before the ranks take their parts: ENOSPC where all of them do not fit.
    int room(int fd) const {
        struct statvfs disk;
        if (::ftruncate(fd, all_) != 0) return errno;
        if (::fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0) return 0;  // no limit
        return int64_t(disk.f_bavail) * int64_t(disk.f_frsize) < all_ ? ENOSPC : 0;
    }
    void require_room(int error, int members) const {
        require(error == 0,
                "--collectives symmetric: %s in /dev/shm for %d ranks: %s\n"
                "  make it larger (containers: --shm-size), or take --collectives direct",
                human_bytes(all_).c_str(), members, std::strerror(error));
    }

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

std::unique_ptr<SharedMemory> map_by_name(const std::string& name, int rank, int members, int64_t bytes, Alloc how,
                                          const std::function<void()>& meet) {
    return std::make_unique<NamedMemory>(name, rank, members, bytes, how, meet);
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
