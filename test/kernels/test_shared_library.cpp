// A library that is in no folder of the linker is found in NVIDIA's wheels; what is nowhere is said with advice.
#include "kernels/runtime/shared_library.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "test/checks.h"

namespace fs = std::filesystem;

static std::string refusal(const char* name) {
    return rz::error_of([&] { rz::open_library(name, "get it there"); });
}

TEST(SharedLibrary, IsFoundInTheWheelsOfAVirtualEnvironment) {
    const rz::TempFolder root;
    const fs::path lib = root / "lib/python3.11/site-packages/nvidia/nccl/lib";
    fs::create_directories(lib);
    void* const self = rz::open_library("libm.so.6", "");
    fs::copy_file("/proc/self/exe", lib / "librz_wheel_broken.so.2");  // a program is no library
    for (const std::string folder : {"/lib/x86_64-linux-gnu", "/lib64", "/usr/lib", "/lib/aarch64-linux-gnu"})
        if (fs::exists(folder + "/libm.so.6")) {
            fs::copy_file(folder + "/libm.so.6", lib / "librz_wheel.so.2", fs::copy_options::overwrite_existing);
            break;
        }
    ASSERT_TRUE(fs::exists(lib / "librz_wheel.so.2"));
    EXPECT_NE(refusal("librz_wheel.so.2"), "");
    setenv("VIRTUAL_ENV", root.path.c_str(), 1);
    void* const wheel = rz::open_library("librz_wheel.so.2", "");
    EXPECT_NE(wheel, self);
    const auto cosine = reinterpret_cast<double (*)(double)>(rz::function_of(wheel, "cos"));
    EXPECT_EQ(cosine(0), 1);
    EXPECT_THROW(rz::function_of(wheel, "rz_no_such_function"), rz::Error);
    EXPECT_NE(refusal("librz_wheel_broken.so.2"), "");
    unsetenv("VIRTUAL_ENV");
}

TEST(SharedLibrary, SaysWhichIsMissingAndWhereItIs) {
    const std::string text = refusal("librz_nowhere.so.7");
    EXPECT_TRUE(rz::says(text, "librz_nowhere.so.7"));
    EXPECT_TRUE(rz::says(text, "\n  get it there"));
}
