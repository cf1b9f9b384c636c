// A library that is in no folder of the linker is found in NVIDIA's wheels; what is nowhere is said with advice.
#include "kernels/runtime/shared_library.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "kernels/runtime/check.h"

namespace fs = std::filesystem;

static std::string refusal(const char* name) {
    try {
        rz::open_library(name, "get it there");
    } catch (const rz::Error& e) {
        return e.what();
    }
    return "opened";
}

TEST(SharedLibrary, IsFoundInTheWheelsOfAVirtualEnvironment) {
    const fs::path root = fs::path(testing::TempDir()) / ("wheels" + std::to_string(getpid()));
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
    EXPECT_NE(refusal("librz_wheel.so.2"), "opened");
    setenv("VIRTUAL_ENV", root.c_str(), 1);
    void* const wheel = rz::open_library("librz_wheel.so.2", "");
    EXPECT_NE(wheel, self);
    const auto cosine = reinterpret_cast<double (*)(double)>(rz::function_of(wheel, "cos"));
    EXPECT_EQ(cosine(0), 1);
    EXPECT_THROW(rz::function_of(wheel, "rz_no_such_function"), rz::Error);
    EXPECT_NE(refusal("librz_wheel_broken.so.2"), "opened");
    unsetenv("VIRTUAL_ENV");
    fs::remove_all(root);
}

TEST(SharedLibrary, SaysWhichIsMissingAndWhereItIs) {
    const std::string text = refusal("librz_nowhere.so.7");
    EXPECT_NE(text.find("librz_nowhere.so.7"), std::string::npos) << text;
    EXPECT_NE(text.find("\n  get it there"), std::string::npos) << text;
}
