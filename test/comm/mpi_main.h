#pragma once
// Shared by every test under mpirun: the job it is part of.

#include <gtest/gtest.h>

#include <memory>

#include "comm/process.h"
#include "test/checks.h"

namespace rz {

Process& test_process();

// A folder that all ranks know. Rank 0 removes it in the end; no rank may still use it then.
struct SharedFolder {
    explicit SharedFolder(Process& process)
        : made(process.is_root() ? std::make_unique<TempFolder>() : nullptr),
          path(process.broadcast_text(made ? made->path : "", 0)) {}
    const std::unique_ptr<TempFolder> made;
    const std::string path;
};

}  // namespace rz
