// NCCL, opened at its first call: a run on one GPU or on CPUs, a plan and --help need no NCCL. The functions have the
// library's own names, as those of kernels/gemm/lt_library.cpp; the linker says if one is missing here.
#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)
#include "comm/nccl_window.h"
#include "kernels/runtime/check.h"
#include "kernels/runtime/shared_library.h"

#ifdef RZ_NCCL_DEVICE_API
#include <nccl_device.h>
#endif

namespace rz {

static void* nccl_opened() {
    constexpr char kAdvice[] =
        "several GPUs need NVIDIA's NCCL: add its folder to LD_LIBRARY_PATH, or get PyPI's "
        "nvidia-nccl-cu12 or -cu13, of the CUDA that the driver has";
    void* const library = open_library("libnccl.so.2", kAdvice);
    int version = 0;
    reinterpret_cast<decltype(&ncclGetVersion)>(function_of(library, "ncclGetVersion"))(&version);
    require(version >= NCCL_VERSION_CODE, "NCCL here is %d, and this program was built with %d\n  %s", version,
            NCCL_VERSION_CODE, kAdvice);
    return library;
}

static void* nccl_function(const char* name) {
    static void* const library = nccl_opened();
    return function_of(library, name);
}

}  // namespace rz

#define FORWARD(Result, name, parameters, arguments)                                               \
    Result name parameters {                                                                       \
        static const auto real = reinterpret_cast<Result(*) parameters>(rz::nccl_function(#name)); \
        return real arguments;                                                                     \
    }

FORWARD(ncclResult_t, ncclAllGather,
        (const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
         cudaStream_t stream),
        (sendbuff, recvbuff, sendcount, datatype, comm, stream))
FORWARD(ncclResult_t, ncclAllReduce,
        (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (sendbuff, recvbuff, count, datatype, op, comm, stream))
FORWARD(ncclResult_t, ncclBroadcast,
        (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
         cudaStream_t stream),
        (sendbuff, recvbuff, count, datatype, root, comm, stream))
FORWARD(ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm))
FORWARD(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm))
FORWARD(ncclResult_t, ncclCommFinalize, (ncclComm_t comm), (comm))
FORWARD(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* asyncError), (comm, asyncError))
FORWARD(ncclResult_t, ncclCommInitRankConfig,
        (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config),
        (comm, nranks, commId, rank, config))
FORWARD(const char*, ncclGetErrorString, (ncclResult_t result), (result))
FORWARD(const char*, ncclGetLastError, (ncclComm_t comm), (comm))
FORWARD(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * uniqueId), (uniqueId))
FORWARD(ncclResult_t, ncclGetVersion, (int* version), (version))
FORWARD(ncclResult_t, ncclGroupEnd, (), ())
FORWARD(ncclResult_t, ncclGroupStart, (), ())
FORWARD(ncclResult_t, ncclRecv,
        (void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream),
        (recvbuff, count, datatype, peer, comm, stream))
FORWARD(ncclResult_t, ncclReduce,
        (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
         ncclComm_t comm, cudaStream_t stream),
        (sendbuff, recvbuff, count, datatype, op, root, comm, stream))
FORWARD(ncclResult_t, ncclReduceScatter,
        (const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
         ncclComm_t comm, cudaStream_t stream),
        (sendbuff, recvbuff, recvcount, datatype, op, comm, stream))
FORWARD(ncclResult_t, ncclSend,
        (const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream),
        (sendbuff, count, datatype, peer, comm, stream))
#if NCCL_VERSION_CODE >= 22700  // windows
FORWARD(ncclResult_t, ncclMemAlloc, (void** ptr, size_t size), (ptr, size))
FORWARD(ncclResult_t, ncclMemFree, (void* ptr), (ptr))
FORWARD(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win), (comm, win))
FORWARD(ncclResult_t, ncclCommWindowRegister,
        (ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags), (comm, buff, size, win, winFlags))
#endif
#ifdef RZ_NCCL_DEVICE_API
FORWARD(ncclResult_t, ncclDevCommCreate, (ncclComm_t comm, ncclDevCommRequirements_t const* asked, ncclDevComm_t* made),
        (comm, asked, made))
FORWARD(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, ncclDevComm_t const* made), (comm, made))
FORWARD(ncclTeam_t, ncclTeamLsa, (ncclComm_t comm), (comm))
#endif
#endif
