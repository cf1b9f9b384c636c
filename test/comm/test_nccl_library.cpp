// NCCL behind comm/nccl_library.cpp, as far as it answers with no GPU: what is forwarded arrives under that name.
#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)
#include <gtest/gtest.h>

#include "comm/nccl_comm.h"
#include "comm/nccl_window.h"

TEST(NcclLibrary, IsThatOfTheHeadersOrNewer) {
    EXPECT_GE(rz::NcclComm::version(), NCCL_VERSION_CODE);
    EXPECT_STREQ(ncclGetErrorString(ncclSuccess), "no error");
    EXPECT_STREQ(ncclGetLastError(nullptr), "");
}

TEST(NcclLibrary, RefusesToCommunicateWithoutACommunicator) {
    float x[2] = {};
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(ncclSend(x, 1, ncclFloat, 0, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclRecv(x, 1, ncclFloat, 0, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclReduce(x, x, 1, ncclFloat, ncclSum, 0, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(x, x, 1, ncclFloat, 0, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclReduceScatter(x, x, 1, ncclFloat, ncclSum, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclAllGather(x, x, 1, ncclFloat, nullptr, nullptr), ncclInvalidArgument);
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(nullptr, &state), ncclInvalidArgument);
}
#endif
