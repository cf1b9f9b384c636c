#pragma once
// MPI as a wire, and the few calls by which a job starts and ends. Compiled with and without MPI: without it (no
// RZ_HAVE_MPI) every function but built_with_mpi() fails, naming the fix.
//
// Threads. Streams run their work on threads of their own, so MPI is called from several. It is initialised with
// MPI_THREAD_SERIALIZED and every call is made under one lock of this file: portable, cheaper than MPI's own locking,
// and an order that ThreadSanitizer can see. No call blocks while holding it: messages and collectives are the
// nonblocking ones, polled by MPI_Testall. One thread of a rank makes progress for all lanes and groups: of the threads
// that wait one polls for all, and the others sleep. The exceptions are the calls at bring-up (MPI_Init, the
// communicator splits) and MPI_Finalize.

#include <memory>

#include "comm/host_transport.h"

namespace rz {

struct MpiWorld {
    int rank = 0, size = 1;
    int local_rank = 0, local_size = 1;  // among the ranks that share this host's memory
    int first_on_host = 0;               // the first of those
    std::string library;                 // its name and version
};

bool built_with_mpi();
std::string mpi_library();  // its name and version; "": none. Before mpi_init() too
MpiWorld mpi_init();        // once per process
void mpi_finalize();
// Before a process ends without having come to mpi_init(): a launcher takes it for a program that has no MPI, and the
// others would wait for it. Says that it belongs to the job, which then ends with it; waits until its last words are
// read. By PMI-1; does nothing under others, or once MPI has begun. May be called by a signal handler.
void mpi_end_before_start();
// For an MPI_Finalize that does not return: tells the launcher that this process ends as it should. By PMI-1, which is
// Hydra's; does nothing under others. From then on a crash of another thread stops that thread alone: the caller ends
// the process soon.
void mpi_leave();
[[noreturn]] void mpi_abort(int code);

// Members: the ranks that pass the same color, ordered by key, then rank; color -1: none, and nullptr. Collective over
// all ranks of the job.
std::unique_ptr<HostTransport> make_mpi_transport(int color, int key, const std::string& group, Device device,
                                                  std::shared_ptr<Watch> watch);

}  // namespace rz
