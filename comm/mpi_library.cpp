// MPI as a plug-in, for the program that `make dist` packs and that is carried to other machines: opened at its first
// call, if it has MPICH's binary interface (MPICH, Intel MPI, MVAPICH, Cray's). Linked instead of the library. Without
// it the program says that it has no MPI, and starts ranks by --ranks, torchrun or srun --mpi=none.
#include <dlfcn.h>
#include <mpi.h>

#include "kernels/runtime/shared_library.h"

namespace rz {

static void* mpi_opened() {
    static void* const library = []() -> void* {
        for (const char* name : {"libmpi.so.12", "libmpich.so.12"})  // that of the common interface, and Debian's
            if (void* found = dlopen(name, RTLD_NOW | RTLD_GLOBAL); found && !dlsym(found, "ompi_mpi_comm_world"))
                return found;
        return nullptr;
    }();
    return library;
}

}  // namespace rz

// The first call: no library has no version.
int MPI_Get_library_version(char* version, int* length) {
    *length = 0;
    if (!rz::mpi_opened()) return MPI_SUCCESS;
    return reinterpret_cast<decltype(&MPI_Get_library_version)>(
        rz::function_of(rz::mpi_opened(), "MPI_Get_library_version"))(version, length);
}

#define FORWARD(Result, name, parameters, arguments)                                                          \
    Result name parameters {                                                                                  \
        static const auto real = reinterpret_cast<decltype(&name)>(rz::function_of(rz::mpi_opened(), #name)); \
        return real arguments;                                                                                \
    }

FORWARD(int, MPI_Abort, (MPI_Comm comm, int errorcode), (comm, errorcode))
FORWARD(int, MPI_Allgather,
        (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype,
         MPI_Comm comm),
        (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm))
FORWARD(int, MPI_Barrier, (MPI_Comm comm), (comm))
FORWARD(int, MPI_Bcast, (void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm),
        (buffer, count, datatype, root, comm))
FORWARD(int, MPI_Comm_free, (MPI_Comm * comm), (comm))
FORWARD(int, MPI_Comm_group, (MPI_Comm comm, MPI_Group* group), (comm, group))
FORWARD(int, MPI_Comm_rank, (MPI_Comm comm, int* rank), (comm, rank))
FORWARD(int, MPI_Comm_set_errhandler, (MPI_Comm comm, MPI_Errhandler errhandler), (comm, errhandler))
FORWARD(int, MPI_Comm_size, (MPI_Comm comm, int* size), (comm, size))
FORWARD(int, MPI_Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm* newcomm), (comm, color, key, newcomm))
FORWARD(int, MPI_Comm_split_type, (MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm* newcomm),
        (comm, split_type, key, info, newcomm))
FORWARD(int, MPI_Error_string, (int errorcode, char* string, int* resultlen), (errorcode, string, resultlen))
FORWARD(int, MPI_Finalize, (), ())
FORWARD(int, MPI_Finalized, (int* flag), (flag))
FORWARD(int, MPI_Get_count, (const MPI_Status* status, MPI_Datatype datatype, int* count), (status, datatype, count))
FORWARD(int, MPI_Group_free, (MPI_Group * group), (group))
FORWARD(int, MPI_Group_translate_ranks, (MPI_Group group1, int n, const int ranks1[], MPI_Group group2, int ranks2[]),
        (group1, n, ranks1, group2, ranks2))
FORWARD(int, MPI_Iallgather,
        (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype,
         MPI_Comm comm, MPI_Request* request),
        (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request))
FORWARD(int, MPI_Iallgatherv,
        (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
         const int displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request),
        (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, request))
FORWARD(int, MPI_Iallreduce,
        (const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (sendbuf, recvbuf, count, datatype, op, comm, request))
FORWARD(int, MPI_Ibcast,
        (void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Request* request),
        (buffer, count, datatype, root, comm, request))
FORWARD(int, MPI_Init_thread, (int* argc, char*** argv, int required, int* provided), (argc, argv, required, provided))
FORWARD(int, MPI_Irecv,
        (void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Request* request),
        (buf, count, datatype, source, tag, comm, request))
FORWARD(int, MPI_Ireduce_scatter,
        (const void* sendbuf, void* recvbuf, const int recvcounts[], MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (sendbuf, recvbuf, recvcounts, datatype, op, comm, request))
FORWARD(int, MPI_Ireduce_scatter_block,
        (const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (sendbuf, recvbuf, recvcount, datatype, op, comm, request))
FORWARD(int, MPI_Isend,
        (const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm, MPI_Request* request),
        (buf, count, datatype, dest, tag, comm, request))
FORWARD(int, MPI_Op_create, (MPI_User_function * user_fn, int commute, MPI_Op* op), (user_fn, commute, op))
FORWARD(int, MPI_Request_get_status, (MPI_Request request, int* flag, MPI_Status* status), (request, flag, status))
FORWARD(int, MPI_Testall, (int count, MPI_Request array_of_requests[], int* flag, MPI_Status array_of_statuses[]),
        (count, array_of_requests, flag, array_of_statuses))
